"""Calls for wide rows: parts of rows, and writes that leave one version, on the engines that have them."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.peers.bigtable import RunningBigtable
from tests.peers.cassandra import RunningCassandra
from tests.peers.hbase import RunningHbase
from tests.unit.server.test_control import calling, listening
from tsd.errors import NoTable
from tsd.server.control import store_operations
from tsd.store import Cell, Family, Put, Store, Table
from tsd.store.hbase import connection
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.remote import RemoteStore
from tsd.store.rocksdb.engine import EmbeddedStore

ENGINES = [
    "memory",
    "embedded",
    "remote",
    *(pytest.param(name, marks=[getattr(pytest.mark, name), pytest.mark.slow]) for name in ("hbase", "cassandra")),
    pytest.param("bigtable", marks=pytest.mark.bigtable),
]
TABLE = f"wide-{os.getpid()}"  # HBase is shared
COLUMNS = [b"a:" + bytes(4), b"a:\0\0\0\7", b"a:\0\0\1\0", b"a:\xff\xff\xff\xff", b"b:\0\0\0\7"]


@pytest.fixture(params=ENGINES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store
    if request.param == "remote":
        async with listening(tmp_path, store_operations(MemoryStore(lambda: 1))) as path, calling(path) as caller:
            made = RemoteStore(caller)
            await made.create_tables([Table(TABLE, (Family(b"a"), Family(b"b")))])
            yield made
        return
    if request.param == "memory":
        made = MemoryStore(lambda: 1)
    elif request.param == "embedded":
        made = await EmbeddedStore.open(tmp_path, lambda: 1)
    elif request.param == "hbase":
        hbase: RunningHbase = request.getfixturevalue("hbase")
        made = HBaseStore([(hbase.host, hbase.thrift_port)])
    elif request.param == "cassandra":
        cassandra: RunningCassandra = request.getfixturevalue("cassandra")
        made = cassandra.store(cassandra.unused_keyspace())
    else:
        bigtable: RunningBigtable = request.getfixturevalue("bigtable")
        made = bigtable.store(bigtable.unused_instance())
    await made.create_tables([Table(TABLE, (Family(b"a"), Family(b"b")))])
    yield made
    if isinstance(made, HBaseStore):
        await made.drop_tables([TABLE])
    await made.aclose()


async def between(store: Store, first: bytes, last: bytes, *rows: bytes) -> dict[bytes, list[bytes]]:
    assert store.wide_rows is not None
    found = await store.wide_rows.get_between(TABLE, rows, first, last)
    return {row: [cell.column for cell in cells] for row, cells in found.items()}


async def test_columns_between_two_are_read(store: Store) -> None:
    await store.put(TABLE, [Put(row, column, b"v") for row in (b"r\0", b"r\0s", b"t") for column in COLUMNS])
    whole = await between(store, COLUMNS[0], COLUMNS[3], b"r\0", b"t", b"absent")
    assert whole == {b"r\0": COLUMNS[:4], b"t": COLUMNS[:4]}
    assert await between(store, COLUMNS[1], COLUMNS[2], b"r\0s") == {b"r\0s": COLUMNS[1:3]}
    assert await between(store, COLUMNS[1], COLUMNS[1], b"t") == {b"t": [COLUMNS[1]]}
    assert await between(store, b"a:\0\0\0\1", b"a:\0\0\0\6", b"t") == {}
    assert await between(store, COLUMNS[4], COLUMNS[4], b"t") == {b"t": [COLUMNS[4]]}


async def test_keys_of_rows_come_in_order(store: Store) -> None:
    assert store.wide_rows is not None
    rows = [b"a", b"a\0", b"a\0\xff", b"a\1", b"b", b"\xff"]
    await store.put(TABLE, [Put(row, column, b"v") for row in rows for column in COLUMNS])
    assert await store.wide_rows.row_keys(TABLE, b"", None, limit=100) == rows
    assert await store.wide_rows.row_keys(TABLE, b"a\0", b"b", limit=100) == rows[1:4]
    assert await store.wide_rows.row_keys(TABLE, b"a\0\0", None, limit=2) == rows[2:4]
    assert await store.wide_rows.row_keys(TABLE, b"c", b"d", limit=2) == []


async def test_a_replaced_cell_is_the_only_version(store: Store) -> None:
    assert store.wide_rows is not None
    await store.put(TABLE, [Put(b"r", COLUMNS[0], b"old"), Put(b"r", COLUMNS[1], b"kept")])
    for value in (b"new", b"newest"):
        await store.wide_rows.replace(TABLE, [Put(b"r", COLUMNS[0], value)])
    [replaced, kept] = (await store.get(TABLE, [b"r"]))[b"r"]
    assert (replaced.value, kept.value) == (b"newest", b"kept")
    await store.delete(TABLE, {b"r": [COLUMNS[0]]}, up_to_ms=replaced.time_ms)
    assert await between(store, *COLUMNS[:2], b"r") == {b"r": [COLUMNS[1]]}


async def test_rows_of_a_missing_table_are_an_error(store: Store) -> None:
    assert store.wide_rows is not None
    with pytest.raises(NoTable):
        await store.wide_rows.get_between("absent", [b"r"], *COLUMNS[:2])
    with pytest.raises(NoTable):
        await store.wide_rows.replace("absent", [Put(b"r", COLUMNS[0], b"v")])


async def test_long_cells_outside_are_no_obstacle(store: Store) -> None:
    long = Cell(b"a:" + bytes(40), b"v", 0)
    await store.put(TABLE, [Put(b"r", long.column, long.value), Put(b"r", COLUMNS[2], b"v")])
    assert await between(store, COLUMNS[1], COLUMNS[3], b"r") == {b"r": [COLUMNS[2]]}


async def test_long_rows_are_read_whole_and_in_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """HBase sends such a row in several pieces. Quotes have a meaning in its filters."""
    monkeypatch.setattr(connection, "PIECE_CELLS", 300)
    columns = [b"a:" + (at * 1_431_655 % 2**32).to_bytes(4, "big") for at in range(3_000)] + [b"a:''''", b"a:'()'"]
    for at in range(0, len(columns), 1000):
        await store.put(TABLE, [Put(row, column, b"v") for row in (b"r", b"s") for column in columns[at : at + 1000]])
    ordered = sorted(set(columns))
    assert await between(store, ordered[0], ordered[-1], b"r", b"s") == {b"r": ordered, b"s": ordered}
    for first, last in ((100, 2_500), (ordered.index(b"a:''''"), ordered.index(b"a:'()'"))):
        assert await between(store, ordered[first], ordered[last], b"s") == {b"s": ordered[first : last + 1]}
