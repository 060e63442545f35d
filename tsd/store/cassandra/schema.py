"""CQL of the engine: keyspace, tables and statements.

A table of cells has a row for each cell. `key` is what a row key has after its partition's bytes; `col` is the column
with its family. Only the column `value` is written, never a row marker, so that a deleted value leaves no row.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tsd.errors import StoreError
from tsd.store.cassandra.keys import Shape, cassandra_name, comment

DIRECTORY = "tsd_partitions"
COLUMNS = {"part": "partition_key", "key": "clustering", "col": "clustering", "value": "regular"}  # column -> kind
MOST_REPLICAS = 3
UNIFIED_SINCE = 5  # Cassandra's major version with UnifiedCompactionStrategy

COMPRESSIONS = {
    "ZSTD": "ZstdCompressor",
    "LZ4": "LZ4Compressor",
    "SNAPPY": "SnappyCompressor",
    "GZ": "DeflateCompressor",
}
CHUNK_KIB = 64  # larger chunks than the default 16: half the bytes for rows that are alike

LIST_TABLES = "SELECT table_name, comment FROM system_schema.tables WHERE keyspace_name = %s"
LIST_COLUMNS = "SELECT column_name, kind, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
VERSION = "SELECT release_version, data_center FROM system.local"
PEERS = "SELECT data_center FROM system.peers"
KEYSPACES = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"


def create_keyspace(keyspace: str, datacenters: Sequence[str]) -> str:
    """Return the statement for a keyspace with up to three replicas in each data centre. `datacenters` has the data
    centre of each node.

    >>> create_keyspace("tsd", ["dc1", "dc1", "dc2"]).partition("WITH ")[2]
    "replication = {'class': 'NetworkTopologyStrategy', 'dc1': 2, 'dc2': 1}"
    """
    replicas = ", ".join(
        f"'{name}': {min(MOST_REPLICAS, datacenters.count(name))}" for name in sorted(set(datacenters))
    )
    strategy = f"{{'class': 'NetworkTopologyStrategy', {replicas}}}"
    return f'CREATE KEYSPACE IF NOT EXISTS "{keyspace}" WITH replication = {strategy}'


def create_directory(keyspace: str) -> str:
    """Return the statement for the table of directories."""
    return (
        f'CREATE TABLE IF NOT EXISTS "{keyspace}".{DIRECTORY} '
        "(name text, dir blob, entry blob, PRIMARY KEY ((name, dir), entry))"
    )


def create_table(keyspace: str, shape: Shape, compression: str, version: str) -> str:
    """Return the statement for a table of cells on a Cassandra `version`. Raise StoreError."""
    if compression == "NONE":
        compressed = "{'enabled': 'false'}"
    elif compression in COMPRESSIONS:
        compressed = f"{{'class': '{COMPRESSIONS[compression]}', 'chunk_length_in_kb': {CHUNK_KIB}}}"
    else:
        raise StoreError(f"compression: got {compression}, wanted NONE, {', '.join(COMPRESSIONS)} on Cassandra")
    major = version.partition(".")[0]
    unified = major.isdigit() and int(major) >= UNIFIED_SINCE
    compaction = "UnifiedCompactionStrategy" if unified else "SizeTieredCompactionStrategy"
    text = comment(shape).replace("'", "''")
    return (
        f'CREATE TABLE IF NOT EXISTS "{keyspace}"."{cassandra_name(shape.name)}" '
        "(part blob, key blob, col blob, value blob, PRIMARY KEY ((part), key, col)) "
        f"WITH compression = {compressed} AND compaction = {{'class': '{compaction}'}} AND comment = '{text}'"
    )


class Statements(NamedTuple):
    """Statements on one table of cells."""

    put: str
    delete: str  # named cells of several rows
    delete_span: str  # cells of a row between two columns
    delete_partition: str
    delete_from: str  # rows of a partition
    delete_between: str  # the same, with an end
    rows: str  # cells of several rows
    columns: str  # and of several columns in them
    slice: str  # cells of a row between two columns
    stored: str  # named cells
    cells: str  # named cells of several rows
    from_key: str  # cells of a part of a partition, up to a limit
    between: str  # the same, with an end
    replace: str  # if the value is as expected


def statements(keyspace: str, name: str) -> Statements:
    """Return the statements on the table `name` of a store."""
    table = f'"{keyspace}"."{cassandra_name(name)}"'
    select = f"SELECT key, col, value, WRITETIME(value) FROM {table} WHERE part = ?"
    cell = "WHERE part = ? AND key = ? AND col = ?"
    delete = f"DELETE FROM {table} USING TIMESTAMP ? WHERE part = ?"
    return Statements(
        put=f"UPDATE {table} USING TIMESTAMP ? SET value = ? {cell}",
        delete=f"DELETE value FROM {table} USING TIMESTAMP ? WHERE part = ? AND (key, col) IN ?",
        delete_span=f"{delete} AND key = ? AND col >= ? AND col <= ?",
        delete_partition=delete,
        delete_from=f"{delete} AND key >= ?",
        delete_between=f"{delete} AND key >= ? AND key < ?",
        rows=f"{select} AND key IN ?",
        columns=f"{select} AND key IN ? AND col IN ?",
        slice=f"{select} AND key = ? AND col >= ? AND col <= ?",
        stored=f"{select} AND key = ? AND col IN ?",
        cells=f"{select} AND (key, col) IN ?",
        from_key=f"{select} AND key >= ? LIMIT ?",
        between=f"{select} AND key >= ? AND key < ? LIMIT ?",
        replace=f"UPDATE {table} SET value = ? {cell} IF value = ?",
    )


class DirectoryStatements(NamedTuple):
    """Statements on the directories."""

    enter: str
    list: str
    list_before: str


def directory_statements(keyspace: str) -> DirectoryStatements:
    """Return the statements on the directories."""
    table = f'"{keyspace}".{DIRECTORY}'
    select = f"SELECT entry FROM {table} WHERE name = ? AND dir = ? AND entry >= ?"
    return DirectoryStatements(
        enter=f"INSERT INTO {table} (name, dir, entry) VALUES (?, ?, ?)",
        list=f"{select} LIMIT ?",
        list_before=f"{select} AND entry < ? LIMIT ?",
    )
