"""CQL of KairosDB's tables: how they are created and recognized, and the statements on them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tsd.store.cassandra.schema import CHUNK_KIB, COMPRESSIONS

DATA_POINTS, ROW_KEYS, ROW_TIMES = "data_points", "row_keys", "row_key_time_index"
TAG_ROW_KEYS, OLD_INDEX, STRINGS, SPEC = "tag_indexed_row_keys", "row_key_index", "string_index", "spec"
SERVICE = "service_index"
CLUSTER_CONFIG, UNIT_NAME, WIDTH_NAME = "cluster_config", "row_time_unit", "row_width"

Columns = Mapping[str, tuple[str, str]]  # name → kind and type, as in system_schema.columns

PARTITION, CLUSTERING, STATIC, REGULAR = "partition_key", "clustering", "static", "regular"
TAGS_TYPE = "frozen<map<text, text>>"
_ROW = {"metric": (PARTITION, "text"), "table_name": (PARTITION, "text"), "row_time": (PARTITION, "timestamp")}
_BYTES = {"key": (PARTITION, "blob"), "column1": (CLUSTERING, "blob"), "value": (REGULAR, "blob")}
_SERIES = {"mtime": (STATIC, "timeuuid"), "value": (REGULAR, "text")}
TABLES: Mapping[str, Columns] = {
    DATA_POINTS: _BYTES,
    ROW_KEYS: {**_ROW, "data_type": (CLUSTERING, "text"), "tags": (CLUSTERING, TAGS_TYPE), **_SERIES},
    ROW_TIMES: {
        "metric": (PARTITION, "text"),
        "table_name": (CLUSTERING, "text"),
        "row_time": (CLUSTERING, "timestamp"),
        "value": (REGULAR, "text"),
    },
    TAG_ROW_KEYS: {
        **_ROW,
        "single_tag_pair": (PARTITION, "text"),
        "data_type": (CLUSTERING, "text"),
        "tag_collection_hash": (CLUSTERING, "int"),
        "tags": (CLUSTERING, TAGS_TYPE),
        **_SERIES,
    },
    OLD_INDEX: _BYTES,
    STRINGS: {"key": (PARTITION, "blob"), "column1": (CLUSTERING, "text"), "value": (REGULAR, "blob")},
    SERVICE: {
        "service": (PARTITION, "text"),
        "service_key": (PARTITION, "text"),
        "key": (CLUSTERING, "text"),
        **_SERIES,
    },
    SPEC: {"spec_type": (PARTITION, "text"), "name": (CLUSTERING, "text"), "value": (REGULAR, "text")},
}
OPTIONAL = (SERVICE,)  # not used for points
ALL_COLUMNS = "SELECT table_name, column_name, kind, type FROM system_schema.columns WHERE keyspace_name = %s"


def create_tables(keyspace: str, compression: str) -> dict[str, str]:
    """Return the statement for each table, by its name.

    >>> create_tables("k", "ZSTD")["string_index"].partition(" WITH")[0]
    'CREATE TABLE IF NOT EXISTS "k"."string_index" (key blob, column1 text, value blob, PRIMARY KEY ((key), column1))'
    """
    return {name: _create(keyspace, name, columns, compression) for name, columns in TABLES.items()}


def _create(keyspace: str, name: str, columns: Columns, compression: str) -> str:
    texts = [f"{column} {kind}{' static' if role == STATIC else ''}" for column, (role, kind) in columns.items()]
    partition = ", ".join(column for column, (role, _) in columns.items() if role == PARTITION)
    clustering = ", ".join(column for column, (role, _) in columns.items() if role == CLUSTERING)
    text = f'CREATE TABLE IF NOT EXISTS "{keyspace}"."{name}" ({", ".join(texts)}, '
    text += f"PRIMARY KEY (({partition}), {clustering}))"
    if compression in COMPRESSIONS:
        options = f"{{'class': '{COMPRESSIONS[compression]}', 'chunk_length_in_kb': {CHUNK_KIB}}}"
        text += f" WITH compression = {options}"
    return text


def wrong_shape(found: Mapping[str, Columns]) -> str | None:
    """Return what is wrong with the tables of a keyspace, in one line; None if all are KairosDB's.

    >>> wrong_shape({})
    'there is no table data_points'
    >>> wrong_shape({"data_points": {"key": ("partition_key", "text")}})
    "table data_points is not KairosDB's: got key text, wanted column1 blob, key blob, value blob"
    """
    for name, wanted in TABLES.items():
        if name not in found and name not in OPTIONAL:
            return f"there is no table {name}"
        if name in found and dict(found[name]) != dict(wanted):
            return f"table {name} is not KairosDB's: got {_shown(found[name])}, wanted {_shown(wanted)}"
    return None


def _shown(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" for name, (_, kind) in sorted(columns.items()))


class Statements(NamedTuple):
    """Statements on the tables of a keyspace. All write with a timestamp, in ms."""

    put_point: str
    put_row_key: str
    put_row_time: str
    put_string: str
    put_tag_row_key: str
    put_old_key: str
    spec: str
    put_spec: str
    has_string: str
    strings: str
    row_times: str
    row_keys: str
    old_keys: str
    points: str
    timed_points: str
    joined_points: (
        str  # of several rows of points, each with its row's key; functions, as token(), would cost Cassandra more
    )
    joined_timed_points: str
    newest_point: str
    delete_row: str
    delete_points: str
    delete_row_key: str
    delete_row_time: str
    delete_tag_row_key: str
    delete_old_key: str
    delete_old_keys: str
    delete_string: str
    put_service: str
    service: str
    service_names: str
    service_keys: str
    delete_service: str


def statements(keyspace: str) -> Statements:
    """Return the statements on a keyspace's tables."""

    def table(name: str) -> str:
        return f'"{keyspace}".{name}'

    def put(name: str, columns: Sequence[str], values: str = "") -> str:
        marks = ", ".join("?" for _ in columns)
        names = ", ".join(columns)
        into = f"{table(name)} ({names}{', mtime' if values else ''}) VALUES ({marks}{values})"
        return f"INSERT INTO {into} USING TTL ? AND TIMESTAMP ?"

    def delete(name: str, where: str) -> str:
        return f"DELETE FROM {table(name)} USING TIMESTAMP ? WHERE {where}"

    row = "metric = ? AND table_name = ? AND row_time = ?"
    key = ["metric", "table_name", "row_time"]
    service = "service = ? AND service_key = ?"
    data = f"FROM {table(DATA_POINTS)} WHERE key = ? AND column1 >= ? AND column1 <= ? LIMIT ?"
    joined = f"FROM {table(DATA_POINTS)} WHERE key IN ? AND column1 >= ? AND column1 <= ? PER PARTITION LIMIT ?"
    return Statements(
        put_point=put(DATA_POINTS, ["key", "column1", "value"]),
        put_row_key=put(ROW_KEYS, [*key, "data_type", "tags"], ", now()"),
        put_row_time=put(ROW_TIMES, key),
        put_string=put(STRINGS, ["key", "column1", "value"]),
        put_tag_row_key=put(
            TAG_ROW_KEYS, [*key, "single_tag_pair", "tag_collection_hash", "data_type", "tags"], ", now()"
        ),
        put_old_key=put(OLD_INDEX, ["key", "column1", "value"]),
        spec=f"SELECT name, value FROM {table(SPEC)} WHERE spec_type = ?",
        put_spec=put(SPEC, ["spec_type", "name", "value"]),
        has_string=f"SELECT column1 FROM {table(STRINGS)} WHERE key = ? AND column1 = ?",
        strings=f"SELECT column1 FROM {table(STRINGS)} WHERE key = ? AND column1 >= ? LIMIT ?",
        row_times=f"SELECT blobasbigint(timestampasblob(row_time)) FROM {table(ROW_TIMES)} "
        "WHERE metric = ? AND table_name = ? AND row_time >= ? AND row_time <= ?",
        row_keys=f"SELECT data_type, tags FROM {table(ROW_KEYS)} WHERE {row}",
        old_keys=f"SELECT column1 FROM {table(OLD_INDEX)} WHERE key = ? AND column1 >= ? AND column1 <= ?",
        points=f"SELECT column1, value {data}",
        timed_points=f"SELECT column1, value, WRITETIME(value), TTL(value) {data}",
        joined_points=f"SELECT key, column1, value {joined}",
        joined_timed_points=f"SELECT key, column1, value, WRITETIME(value), TTL(value) {joined}",
        newest_point=f"SELECT column1, value, WRITETIME(value), TTL(value) FROM {table(DATA_POINTS)} WHERE key = ? "
        "AND column1 >= ? AND column1 <= ? ORDER BY column1 DESC LIMIT 1",
        delete_row=delete(DATA_POINTS, "key = ?"),
        delete_points=delete(DATA_POINTS, "key = ? AND column1 >= ? AND column1 <= ?"),
        delete_row_key=delete(ROW_KEYS, f"{row} AND data_type = ? AND tags = ?"),
        delete_row_time=delete(ROW_TIMES, row),
        delete_tag_row_key=delete(
            TAG_ROW_KEYS, f"{row} AND single_tag_pair = ? AND data_type = ? AND tag_collection_hash = ? AND tags = ?"
        ),
        delete_old_key=delete(OLD_INDEX, "key = ? AND column1 = ?"),
        delete_old_keys=delete(OLD_INDEX, "key = ?"),
        delete_string=delete(STRINGS, "key = ? AND column1 = ?"),
        put_service=put(SERVICE, ["service", "service_key", "key", "value"], ", now()"),
        service=f"SELECT value FROM {table(SERVICE)} WHERE {service} AND key = ?",
        service_names=f"SELECT key FROM {table(SERVICE)} WHERE {service} AND key >= ? LIMIT ?",
        service_keys=f"SELECT service_key, key FROM {table(SERVICE)} WHERE service = ? "
        "PER PARTITION LIMIT 1 LIMIT ? ALLOW FILTERING",
        delete_service=delete(SERVICE, f"{service} AND key = ?"),
    )
