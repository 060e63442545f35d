"""Hours that are over are written straight to the blocks of the embedded store."""

import math
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from tests.flaky_store import FlakyStore
from tests.unit.ingest.parts import BASE, Parts, going, line
from tsd.codec.opentsdb.cell import FAMILY
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.codec.packing.cell import HAS_PACKING_LOOP
from tsd.codec.putline import HOUR_S
from tsd.ingest.open_hours import held_until_s
from tsd.store import Family, Put, Row, Table, scan
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.writer import HourBlocks

pytestmark = pytest.mark.skipif(not HAS_PACKING_LOOP, reason="no C compiler when tsd was installed")
HOSTS = [f"h{number:03}" for number in range(60)]
TABLES = [Table("tsdb", (Family(FAMILY),)), Table("tsdb-uid", (Family(ID_FAMILY), Family(NAME_FAMILY)))]
END_S = held_until_s(BASE, BASE)


class Hours:
    """Ingest with blocks: metrics with fewer than 20 series in an hour stay rows."""

    def __init__(self, folder: Path, store: EmbeddedStore, **settings: int) -> None:
        self.store = store
        self.recorded: list[tuple[Put, bool]] = []  # cells, each with whether its hour was written whole
        blocks = HourBlocks(store.column_blocks, KeyLayout().pairs_start, 20)
        self.parts = Parts(
            folder,
            cast("FlakyStore", store),
            hold_intervals=math.inf,
            on_cells=self._record,
            blocks=blocks,
            **settings,
        )
        self.parts.now_s = BASE + 60

    def _record(self, puts: Sequence[Put], /, *, whole: bool) -> None:
        self.recorded += [(put, whole) for put in puts]

    async def send(self, offsets: Sequence[int], hosts: Sequence[str] = HOSTS, value: int = 1) -> None:
        """Send a point of each host at each offset, and seal them."""
        for at in offsets:
            await self.parts.take(*(line(at, value, host) for host in hosts))
        self.parts.writer.seal()

    async def end(self, now_s: int) -> None:
        """Let the wall clock show a time, and wait until what is due then is stored."""
        self.parts.now_s = now_s
        self.parts.writer.seal()
        assert await self.parts.writer.flush_due()

    async def rows(self) -> list[Row]:
        return [row async for page in scan(self.store, "tsdb") for row in page]

    async def first_row_outside(self) -> bytes | None:
        """The first row with a cell outside of blocks."""
        return await self.store.column_blocks.next_unfolded("tsdb", b"", None)


@asynccontextmanager
async def opened(**settings: int) -> AsyncIterator[Hours]:
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(Path(folder) / "store", lambda: BASE * 1000)
        await store.create_tables(TABLES)
        hours = Hours(Path(folder), store, **settings)
        try:
            async with going(hours.parts):
                yield hours
        finally:
            await store.aclose()


def points(row: Row) -> list[int]:
    """The offsets of a row's points, which must be in one cell."""
    (cell,) = row.cells
    qualifier = cell.column[len(FAMILY) + 1 :]
    return [int.from_bytes(qualifier[at : at + 2], "big") >> 4 for at in range(0, len(qualifier), 2)]


@pytest.mark.parametrize("memory_limit", [64 << 20, 1 << 20])  # the smaller one has points packed
async def test_rows_of_an_hour_go_to_blocks_at_its_end(memory_limit: int) -> None:
    async with opened(memory_limit=memory_limit) as hours:
        for start in range(0, 3600, 600):
            await hours.send(range(start, start + 600, 60))
        await hours.end(END_S)
        assert [points(row) for row in await hours.rows()] == [list(range(0, 3600, 60))] * len(HOSTS)
        assert await hours.first_row_outside() is None
        assert all(whole for _, whole in hours.recorded)  # late cells of these rows are known to be second ones


async def test_late_points_join_the_rows_in_blocks() -> None:
    async with opened() as hours:
        await hours.send([0, 60, 120])
        await hours.end(END_S)
        recorded = len(hours.recorded)
        await hours.send([30, 180], HOSTS[::2])
        await hours.send([60], HOSTS[:1], value=7)  # of a time that the row has already
        await hours.end(END_S + HOUR_S)
        rows = await hours.rows()
        assert [points(row) for row in rows[1:]] == [[0, 30, 60, 120, 180], [0, 60, 120]][::-1] * 29 + [[0, 60, 120]]
        assert len(rows[0].cells) == 2
        assert [put.row for put, _ in hours.recorded[recorded:]] == [rows[0].key]  # only this one needs compaction


async def test_few_rows_stay_rows() -> None:
    async with opened() as hours:
        await hours.send([0, 60], HOSTS[:19])
        await hours.end(END_S)
        assert [points(row) for row in await hours.rows()] == [[0, 60]] * 19
        assert await hours.first_row_outside() is not None


async def test_clean_stop_writes_the_open_hour_with_its_last_window() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(Path(folder) / "store", lambda: BASE * 1000)
        try:
            await store.create_tables(TABLES)
            for offsets in ([0, 60], [120, 180]):  # the second run goes on with the hour
                hours = Hours(Path(folder), store)
                async with going(hours.parts):
                    await hours.send(offsets[:1])
                    await hours.parts.take(*(line(offsets[1], 1, host) for host in HOSTS))
            assert [points(row) for row in await hours.rows()] == [[0, 60, 120, 180]] * len(HOSTS)
            assert await hours.first_row_outside() is None
        finally:
            await store.aclose()


async def test_rows_that_were_written_early_get_another_cell() -> None:
    async with opened() as hours:
        await hours.send([0, 60])
        await hours.parts.writer.flush()
        await hours.send([120, 180])
        await hours.end(END_S)
        rows = await hours.rows()
        assert [len(row.cells) for row in rows] == [2] * len(HOSTS)
        keys = [put.row for put, _ in hours.recorded]
        assert sorted(keys) == sorted(key for row in rows for key in [row.key] * 2)
        assert all(one <= other for one, other in pairwise(row.key for row in rows))
