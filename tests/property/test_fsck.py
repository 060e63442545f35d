"""A writer, two fscks and crashes at any step, on one row: in the end each time holds what was written last."""

import random
from itertools import count
from pathlib import Path

import pytest
import trio

from tests.unit.codec.codec_rows import KEY
from tsd.codec.cell import COLUMN, Point, join, ms_qualifier, seconds_qualifier
from tsd.codec.fsck import FsckOptions
from tsd.codec.merge import MergeRules
from tsd.codec.row import data_cells, points, problems
from tsd.codec.rowkey import Layout
from tsd.codec.uid import ID_FAMILY, NAME_FAMILY, Kind, Widths
from tsd.fsck import BUSY_MS, Fsck
from tsd.store import Family, Put, Row, Store, Table
from tsd.store.embedded import EmbeddedStore
from tsd.store.memory import MemoryStore
from tsd.uids import Uids

UID_TABLE = "tsdb-uid"
OPTIONS = FsckOptions.fix_all(last_write_wins=True)
UNTIDY = (Put(KEY, b"t:\2", b"?"), Put(KEY, b"t:\0\2", b"???"), Put(KEY, b"t:\5\0\0", b"?"))  # what fsck is to delete


class Scene:
    """One row, and what it is to hold in the end."""

    def __init__(self, seed: int, store: Store) -> None:
        """`store` is one whose stamps rise with every put: then no row is too young."""
        self.draw = random.Random(seed)
        self.store = store
        self.table = f"tsdb{seed}"
        self.last: dict[int, int] = {}

    async def prepare(self) -> None:
        names = Table(UID_TABLE, (Family(ID_FAMILY), Family(NAME_FAMILY)))
        await self.store.create_tables([Table(self.table, (Family(COLUMN[:-1]),)), names])
        await self.store.put(UID_TABLE, [Put(b"\0\0\1", kind.name_column, b"name") for kind in Kind])

    async def write(self) -> None:
        """Points one after the other, also of times that were sent before, alone and joined, well and badly encoded."""
        for number in range(1, 15):
            found = sorted(self.draw.sample(range(5), self.draw.randint(1, 3)))
            cell = join([self.point(second, number) for second in found])
            puts = [Put(KEY, COLUMN + cell.qualifier, cell.value)]
            if self.draw.random() < 0.3:
                puts.append(self.draw.choice(UNTIDY))
            await self.pause()
            await self.store.put(self.table, puts)
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
        fsck = Fsck(self.store, self.table, Uids(self.store, UID_TABLE, Widths()), Layout(), OPTIONS)
        await fsck.examine(rows, read_ms=10**6 + BUSY_MS)

    async def pause(self) -> None:
        for _ in range(self.draw.randrange(6)):
            await trio.lowlevel.checkpoint()

    async def die(self, life: trio.CancelScope, steps: int) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        life.cancel()

    async def row(self) -> Row:
        return Row(KEY, (await self.store.get(self.table, [KEY]))[KEY])


async def play(seed: int, store: Store) -> None:
    """One schedule, and what came of it."""
    scene = Scene(seed, store)
    await scene.prepare()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.write)
        nursery.start_soon(scene.mend)
        nursery.start_soon(scene.mend)
    for _ in range(2):  # a crash may have left what a last one mends
        row = await scene.row()
        assert readable(row) == scene.last, seed
        await scene.examine([row])
    row = await scene.row()
    assert readable(row) == scene.last, seed
    assert len(row.cells) == 1, seed
    assert problems(KEY, data_cells(row.cells)) == [], seed


@pytest.mark.parametrize("seeds", [range(at, at + 100) for at in range(0, 500, 100)])
async def test_what_was_written_last_is_there_in_the_end(seeds: range) -> None:
    clock = count(1000)
    store = MemoryStore(lambda: next(clock))
    for seed in seeds:
        await play(seed, store)


async def test_in_the_embedded_store_too(tmp_path: Path) -> None:
    clock = count(1000)
    store = await EmbeddedStore.open(tmp_path / "store", lambda: next(clock))
    for seed in range(50):
        await play(seed, store)
    await store.aclose()


def readable(row: Row) -> dict[int, object]:
    """Number by second, of the cells that hold any."""
    junk = {(put.column, put.value) for put in UNTIDY}
    cells = data_cells(cell for cell in row.cells if (cell.column, cell.value) not in junk)
    found = points(KEY, cells, MergeRules(fix_duplicates=True))
    return {point.offset_ms // 1000: point.number for point in found}
