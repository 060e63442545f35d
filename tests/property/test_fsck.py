"""A writer, two fscks, a compactor and crashes at any step, on one row: in the end each time holds what was written
last."""

import random
from itertools import count
from pathlib import Path

import pytest
import trio

from tests.peers.hbase import RunningHbase
from tests.property.compaction_schedules import AGES_MS, AHEAD_MS, Graves
from tests.seeds import groups
from tests.unit.codec.codec_rows import KEY
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.cell import COLUMN, Point, join, ms_qualifier, seconds_qualifier
from tsd.codec.opentsdb.fsck import FsckOptions
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import data_cells, points, problems
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY, name_column
from tsd.store import Family, Put, Row, Store, Table
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.fsck import BUSY_MS, Fsck
from tsd.tables.opentsdb.uids import Uids

RULES = MergeRules(fix_duplicates=True)
COMPACTIONS = 25
STAMPS = count(1000, 5)  # of all writes, in ms
OPTIONS = FsckOptions.fix_all(last_write_wins=True)
UNTIDY = (Put(KEY, b"t:\2", b"?"), Put(KEY, b"t:\0\2", b"???"), Put(KEY, b"t:\5\0\0", b"?"))  # what fsck is to delete


class Scene:
    """One row, and what it is to hold in the end."""

    def __init__(self, seed: int, store: Store, tables: str) -> None:
        """`tables` begins their names. Written timestamps are so far apart that no row is too young."""
        self.draw = random.Random(seed)
        self.store = store
        self.table, self.uid_table = f"{tables}{seed}", f"{tables}-uid"
        self.last: dict[int, int] = {}

    async def prepare(self) -> None:
        names = Table(self.uid_table, (Family(ID_FAMILY), Family(NAME_FAMILY)))
        await self.store.create_tables([Table(self.table, (Family(COLUMN[:-1]),)), names])
        await self.store.put(self.uid_table, [Put(b"\0\0\1", name_column(kind), b"name") for kind in Kind])

    async def write(self) -> None:
        """Points one after the other, also of times that were sent before, alone and joined, well and badly encoded."""
        for number in range(1, 15):
            found = sorted(self.draw.sample(range(5), self.draw.randint(1, 3)))
            cell = join([self.point(second, number) for second in found])
            puts = [Put(KEY, COLUMN + cell.qualifier, cell.value)]
            if self.draw.random() < 0.3:
                puts.append(self.draw.choice(UNTIDY))
            await self.pause()
            await self.store.put(self.table, puts, time_ms=next(STAMPS))
            self.last.update(dict.fromkeys(found, number))

    def point(self, second: int, number: int) -> Point:
        form = self.draw.randrange(3)
        if form == 0:
            return Point(ms_qualifier(second * 1000, 0), bytes((number,)))
        return Point(seconds_qualifier(second, 7 if form == 1 else 0), number.to_bytes(8 if form == 1 else 1, "big"))

    async def mend(self) -> None:
        """Again and again, dying in between."""
        for _ in range(6):
            await self.pause()
            with trio.CancelScope() as life:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.die, life, self.draw.choice((2, 5, 9, 1000)))
                    rows = await self.store.get(self.table, [KEY])
                    read = [Row(*row) for row in rows.items()]
                    await self.pause()
                    await self.examine(read)
                    nursery.cancel_scope.cancel()

    async def examine(self, rows: list[Row]) -> None:
        fsck = Fsck(DataTable(self.store, self.table, KeyLayout()), Uids(self.store, self.uid_table, Widths()), OPTIONS)
        await fsck.check(rows, read_ms=10**6 + BUSY_MS)

    async def compact(self) -> None:
        """Join the row's cells again and again, dying in between."""
        for _ in range(COMPACTIONS):
            await self.pause()
            with trio.CancelScope() as life:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.die, life, self.draw.choice((9, 20, 1000)))
                    age_ms = self.draw.choice(AGES_MS)
                    compactor = RowCompactor(
                        DataTable(self.store, self.table, KeyLayout()), RULES, lambda: AHEAD_MS, lambda _: None,
                        settle_ms=0, span_age_ms=age_ms,
                    )  # fmt: skip
                    await compactor.compact_keys([KEY])
                    nursery.cancel_scope.cancel()

    async def pause(self) -> None:
        for _ in range(self.draw.randrange(6)):
            await trio.lowlevel.checkpoint()

    async def die(self, life: trio.CancelScope, steps: int) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        life.cancel()

    async def row(self) -> Row:
        return Row(KEY, (await self.store.get(self.table, [KEY])).get(KEY, []))


async def play(seed: int, store: Store, tables: str = "tsdb") -> Scene:
    """One schedule; what was written last is there whenever it is over, and once more when it was mended again."""
    scene = Scene(seed, store, tables)
    await scene.prepare()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.write)
        nursery.start_soon(scene.mend)
        nursery.start_soon(scene.mend)
        nursery.start_soon(scene.compact)
    for _ in range(2):  # a crash may have left what a last one mends
        row = await scene.row()
        assert readable(row) == scene.last, seed
        await scene.examine([row])
    assert readable(await scene.row()) == scene.last, seed
    return scene


async def is_tidy(scene: Scene) -> bool:
    """Whether the row became one cell that nothing is wrong with."""
    cells = data_cells((await scene.row()).cells)
    return len(cells) == 1 and not problems(KEY, cells)


@pytest.mark.difference(
    "fsck-race",
    topic="rows",
    theirs="fsck writes at its own time and deletes whole columns: a point written meanwhile may be lost",
    ours="Only what was read is deleted, and a point written meanwhile is newer",
)
@pytest.mark.parametrize("seeds", groups(260, fast=20, size=120))
async def test_last_write_survives_concurrent_fsck(seeds: range) -> None:
    clock = count(1000)
    store = MemoryStore(lambda: next(clock))
    for seed in seeds:
        assert await is_tidy(await play(seed, store)), seed


@pytest.mark.slow
async def test_last_write_survives_on_the_embedded_store(tmp_path: Path) -> None:
    clock = count(1000)
    store = await EmbeddedStore.open(tmp_path / "store", lambda: next(clock))
    for seed in range(50):
        assert await is_tidy(await play(seed, store)), seed
    await store.aclose()


@pytest.mark.slow
async def test_last_write_survives_if_deletes_hide_puts() -> None:
    clock = count(1000)
    store = Graves(lambda: next(clock))
    tidy = [await is_tidy(await play(seed, store)) for seed in range(100)]
    assert sum(tidy) > len(tidy) / 2  # what is hidden is left as it is, and read as it should be


def test_last_write_survives_on_hbase(hbase: RunningHbase) -> None:
    async def run() -> None:
        store = HBaseStore([(hbase.host, hbase.thrift_port)], connections=4)
        tables = hbase.unused_tables().data
        tidy = [await is_tidy(await play(seed, store, tables)) for seed in range(12)]
        assert sum(tidy) > len(tidy) / 2
        await store.aclose()

    trio.run(run)


def readable(row: Row) -> dict[int, object]:
    """Number by second, of the cells that hold any."""
    junk = {(put.column, put.value) for put in UNTIDY}
    cells = data_cells(cell for cell in row.cells if (cell.column, cell.value) not in junk)
    found = points(KEY, cells, RULES)
    return {point.offset_ms // 1000: point.number for point in found}
