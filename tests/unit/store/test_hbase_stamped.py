"""Calls on cells with timestamps of their own, on a real HBase: which cells a delete reaches, and which stay."""

from collections.abc import AsyncIterator

import pytest

from tests.peers.hbase import RunningHbase
from tsd.store import Cell, Family, Put, StampedCells, StampedDelete, StampedPut, StampedSpan, Table
from tsd.store.hbase.engine import HBaseStore

ROWS = [b"\0\0\1row%d" % number for number in range(1, 4)]


class Opened:
    """A store, and a new table with two families in it."""

    def __init__(self, store: HBaseStore, table: str) -> None:
        assert store.stamped_cells is not None
        self.stamped: StampedCells = store.stamped_cells
        self.store = store
        self.table = table

    async def shown(self, rows: list[bytes] = ROWS) -> list[dict[bytes, int]]:
        """What each row has: write timestamps by column."""
        found = await self.store.get(self.table, rows)
        return [{cell.column: cell.time_ms for cell in found.get(row, ())} for row in rows]


@pytest.fixture
async def opened(hbase: RunningHbase) -> AsyncIterator[Opened]:
    name = hbase.unused_tables().data
    store = HBaseStore([(hbase.host, hbase.thrift_port)], connections=4)
    await store.create_tables([Table(name, (Family(b"t"), Family(b"u")))])
    yield Opened(store, name)
    await store.aclose()


async def test_cells_are_written_read_and_deleted_by_their_timestamps(opened: Opened) -> None:
    stamped, table = opened.stamped, opened.table
    puts = [StampedPut(row, b"t:%d" % at, b"v%d" % at, 5 + at) for row in ROWS for at in range(3)]
    await stamped.put(table, puts)
    assert await opened.shown() == [{b"t:0": 5, b"t:1": 6, b"t:2": 7}] * 3
    places = [(ROWS[0], b"t:2"), (ROWS[0], b"t:0"), (ROWS[1], b"t:1"), (ROWS[2], b"t:missing"), (b"none", b"t:0")]
    for row_cells in (0, 3, 1000):
        found = await stamped.get(table, places, row_cells=row_cells)
        assert {row: sorted(cells) for row, cells in found.items()} == {
            ROWS[0]: [Cell(b"t:0", b"v0", 5), Cell(b"t:2", b"v2", 7)],
            ROWS[1]: [Cell(b"t:1", b"v1", 6)],
        }
    await stamped.delete(table, [StampedDelete(ROWS[0], b"t:0", 5), StampedDelete(ROWS[0], b"t:1", 5)])
    assert await opened.shown() == [{b"t:1": 6, b"t:2": 7}] + [{b"t:0": 5, b"t:1": 6, b"t:2": 7}] * 2


async def test_cells_of_many_rows_with_columns_of_their_own_are_read(opened: Opened) -> None:
    puts = [StampedPut(b"row%03d" % row, b"t:%d" % (row % 70), b"v", 1 + row % 3) for row in range(300)]
    await opened.stamped.put(opened.table, puts)
    found = await opened.stamped.get(opened.table, [(put.row, put.column) for put in puts])
    assert found == {put.row: [Cell(put.column, b"v", put.time_ms)] for put in puts}


async def test_span_takes_older_cells_of_its_family_and_no_others(opened: Opened) -> None:
    stamped, table = opened.stamped, opened.table
    for row in ROWS:
        for at in range(1, 8):
            await opened.store.put(table, [Put(row, b"t:%d" % at, b"v"), Put(row, b"u:%d" % at, b"v")], time_ms=at)
    await stamped.delete_spans(
        table, [StampedSpan(ROWS[0], b"t:1", b"t:7", 5), StampedSpan(ROWS[1], b"t:1", b"t:7", 6)]
    )
    others = {b"u:%d" % at: at for at in range(1, 8)}
    whole = others | {b"t:%d" % at: at for at in range(1, 8)}
    assert await opened.shown() == [{b"t:6": 6, b"t:7": 7} | others, {b"t:7": 7} | others, whole]
    await opened.store.put(table, [Put(ROWS[0], b"t:8", b"v")], time_ms=5)
    await opened.store.put(table, [Put(ROWS[0], b"t:9", b"v")], time_ms=6)
    await opened.store.put(table, [Put(ROWS[0], b"t:1", b"v")])
    [first, *_] = await opened.shown()
    assert first.keys() & {b"t:1", b"t:8", b"t:9"} == {b"t:1", b"t:9"}


async def test_rows_of_a_range_are_deleted_up_to_a_timestamp(opened: Opened) -> None:
    stamped, table = opened.stamped, opened.table
    for row in ROWS:
        await opened.store.put(table, [Put(row, b"t:1", b"v"), Put(row, b"u:1", b"v")], time_ms=5)
        await opened.store.put(table, [Put(row, b"t:2", b"v")], time_ms=6)
    await stamped.delete_rows(table, ROWS[0], ROWS[2], up_to_ms=5)
    assert await opened.shown() == [{b"t:2": 6}, {b"t:2": 6}, {b"t:1": 5, b"t:2": 6, b"u:1": 5}]
