"""Every store does the same: one list of calls, run on a model of a few lines and on the real thing.

In HBase and Cassandra a delete hides older puts that come later. The model of these stores does the same.
"""

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import NamedTuple

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.peers.bigtable import RunningBigtable
from tests.peers.cassandra import RunningCassandra
from tests.peers.hbase import RunningHbase
from tests.property.store_calls import (
    AHEAD_MS,
    COUNTER,
    Call,
    CheckAndPut,
    Create,
    Delete,
    DeleteRange,
    Fold,
    Get,
    Increment,
    PutNew,
    Reopen,
    Replace,
    Wait,
    Walk,
    Write,
    calls,
    programs,
)
from tsd.codec.packing.cell import pack
from tsd.codec.packing.points import unpack_points
from tsd.store import Cell, ColumnBlocks, Family, Put, Rewrite, Row, Store, Table, cell_pages, cells_of_keys
from tsd.store.cassandra.engine import CassandraStore
from tsd.store.cassandra.keys import Prefixes
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore

FAMILIES = (Family(b"t"), Family(b"u"))
NOW_MS = 10**15  # later than the timestamps of calls, but for AHEAD_MS

# ---- What should come of it


class Model:
    """The cells of a table, and, for HBase, what deletes leave behind."""

    def __init__(
        self, *, hbase: bool, deletes_ranges: bool = False, rewrites: bool = False, markers: bool = True
    ) -> None:
        self.rewrites = rewrites
        self.markers = markers
        self.deletes_ranges = deletes_ranges
        self.clock_ms = NOW_MS
        self.last_ms = 0
        self.hbase = hbase
        self.cells: dict[tuple[bytes, bytes], tuple[bytes, int]] = {}
        self.deleted: dict[tuple[bytes, bytes], int] = {}

    def now(self, *, rising: bool = False) -> int:
        """A stamp of the store's own. Those of HBase all count as one."""
        self.last_ms = max(self.last_ms + (rising and not self.hbase), self.clock_ms)
        return self.last_ms

    def write(self, cell: Put, time_ms: int) -> None:
        place = cell.row, cell.column
        if time_ms >= self.cells.get(place, (b"", 0))[1] and time_ms > self.deleted.get(place, 0):
            self.cells[place] = cell.value, time_ms

    def delete(self, place: tuple[bytes, bytes], up_to_ms: int | None) -> None:
        bound = up_to_ms or self.now()
        if place in self.cells and self.cells[place][1] <= bound:
            del self.cells[place]
        if self.hbase and self.markers:  # before the next call comes, a millisecond passes
            self.deleted[place] = max(self.deleted.get(place, 0), up_to_ms or bound - 1)

    def check_and_put(self, cell: Put, expected: bytes | None) -> bool:
        now = self.now()
        value, time_ms = self.cells.get((cell.row, cell.column), (b"", 0))
        if value != (expected or b""):
            return False
        self.write(cell, max(now, time_ms))
        return True

    def rewrite(self, change: Rewrite) -> bool:
        for column, time_ms in change.kept:
            if self.cells.get((change.row, column), (b"", 0))[1] < time_ms:
                return False
        for row, column, value in change.puts:
            stored = self.cells.get((row, column), (value, 0))
            if stored[1] > change.time_ms and stored[0] != value:
                return False
        for put in change.puts:
            self.write(put, change.time_ms)
        for column, up_to_ms in change.deletes:
            self.delete((change.row, column), up_to_ms)
        return True

    def increment(self, row: bytes, by: int) -> int:
        held = int.from_bytes(self.cells.get((row, COUNTER), (b"", 0))[0], "big", signed=True)
        total = (held + by + 2**63) % 2**64 - 2**63
        self.write(Put(row, COUNTER, total.to_bytes(8, "big", signed=True)), self.now())
        return total

    def row(self, row: bytes, columns: Collection[bytes] | None) -> list[Cell]:
        held = sorted((column, *cell) for (of, column), cell in self.cells.items() if of == row)
        return [Cell(*cell) for cell in held if columns is None or cell[0] in columns]

    def rows(self, call: Walk) -> list[Row]:
        keys = sorted({row for row, _ in self.cells if call.start <= row and (call.stop is None or row < call.stop)})
        return [Row(key, cells) for key in keys if (cells := self.row(key, call.columns))]

    def answer(self, call: Call) -> object:
        """Do a call."""
        match call:
            case Write([]):
                pass  # takes no stamp
            case Write(cells, time_ms):
                stamp = self.now(rising=True) if time_ms is None else time_ms
                for cell in cells:
                    self.write(cell, stamp)
            case Delete(columns, up_to_ms):
                for row, names in columns.items():
                    for column in names:
                        self.delete((row, column), up_to_ms)
            case Get(rows, columns):
                return {row: held for row in rows if (held := self.row(row, columns))}
            case Walk():
                return self.rows(call)
            case CheckAndPut(cell, expected):
                return self.check_and_put(cell, expected)
            case Create(cells):
                return [self.check_and_put(cell, None) for cell in cells]
            case Increment(row, by):
                return self.increment(row, by)
            case DeleteRange(start, stop) if self.deletes_ranges:
                self.cells = {place: held for place, held in self.cells.items() if not start <= place[0] < stop}
                stamp = self.now(rising=True) if call.keep else 0
                for cell in call.keep:
                    self.write(cell, stamp)
            case PutNew(cells) if self.deletes_ranges:
                stamp = self.now(rising=True)
                for cell in cells:
                    self.write(cell, stamp)
            case Replace() if self.rewrites:
                return [self.rewrite(change) for change in call.changes]
            case Wait(ms) if not self.hbase:  # that clock is not ours
                self.clock_ms += ms
        return None


class Under(NamedTuple):
    """A store that is held against the model, on rows that start with `prefix`."""

    store: Store
    table: str
    prefix: bytes = b""

    async def check_cells(self, keys: list[bytes], found: dict[bytes, list[Cell]]) -> None:
        """Assert that a read of rows as parallel lists finds the same."""
        page = await cells_of_keys(self.store, self.table, keys)
        cells = [(row, cell) for row in sorted(found) for cell in found[row]]
        assert [(key, page.cell(at)) for at, key in enumerate(page.keys)] == cells

    async def answer(self, call: Call) -> object:
        """Do a call."""
        match call:
            case Write(cells, time_ms):
                await self.store.put(self.table, self.placed(cells), time_ms=time_ms)
            case Delete(columns, up_to_ms):
                names = {self.prefix + row: names for row, names in columns.items()}
                await self.store.delete(self.table, names, up_to_ms=up_to_ms)
            case Get(rows, columns):
                keys = [self.prefix + row for row in rows]
                found = await self.store.get(self.table, keys, columns=columns)
                if columns is None:
                    await self.check_cells(sorted(set(keys)), found)
                return {row.removeprefix(self.prefix): timed(cells) for row, cells in found.items()}
            case Walk():
                return await self.walk(call)
            case CheckAndPut(cell, expected):
                [put] = self.placed([cell])
                return await self.store.check_and_put(self.table, *put, expected=expected)
            case Create(cells):
                return await self.store.create(self.table, self.placed(cells))
            case Increment(row, by):
                return await self.store.increment(self.table, self.prefix + row, COUNTER, by)
            case Fold(prefix) if self.store.column_blocks is not None:
                await self.store.column_blocks.fold(self.table, self.prefix + prefix)
            case PutNew() if self.store.derived_values is not None:
                prefix = self.prefix + b"\0"
                await self.store.derived_values.put_new(self.table, prefix, iter([call.matrix]), {b"\1": b""})
            case Replace() if self.store.atomic_rewrites is not None:
                changes = [
                    one._replace(row=self.prefix + one.row, puts=self.placed(list(one.puts))) for one in call.changes
                ]
                return await self.store.atomic_rewrites.rewrite(self.table, changes)
            case DeleteRange(start, stop) if self.store.range_deletes is not None:
                ends = self.prefix + start, self.prefix + stop
                await self.store.range_deletes.delete_range(self.table, *ends, changed=[], keep=self.placed(call.keep))
        return None

    def placed(self, cells: list[Put]) -> list[Put]:
        return [cell._replace(row=self.prefix + cell.row) for cell in cells]

    async def walk(self, call: Walk) -> list[Row]:
        """All pages, one after the other."""
        after = self.prefix[:-1] + bytes([self.prefix[-1] + 1]) if self.prefix else None
        stop = after if call.stop is None else self.prefix + call.stop
        found: list[Row] = []
        at: bytes | None = self.prefix + call.start
        while at is not None:
            page = await self.store.page(self.table, at, stop, limit=call.limit, columns=call.columns)
            assert len(page.rows) <= call.limit
            assert page.next_start is None or page.next_start > at
            found += [Row(row.key.removeprefix(self.prefix), timed(row.cells)) for row in page.rows]
            at = page.next_start
        if call.columns is None:
            assert await self.scanned(self.prefix + call.start, stop, call.limit) == found
            if self.store.column_blocks is not None:
                assert await self.by_column(self.store.column_blocks, call.start, stop, call.limit) == found
        return found

    async def by_column(self, blocks: ColumnBlocks, start: bytes, stop: bytes | None, limit_bytes: int) -> list[Row]:
        """All rows of a scan by column."""
        rows: dict[bytes, list[Cell]] = {}
        async with aclosing(blocks.read_columns(self.table, start, stop, limit_bytes=limit_bytes)) as pages:
            async for parts in pages:
                for part in parts:
                    for cells in (part.cells, None if part.packed is None else part.packed.unpack()):
                        if cells is not None:
                            assert rows.keys().isdisjoint(cells.keys)
                            for at, key in enumerate(cells.keys):
                                rows.setdefault(key, []).append(cells.cell(at))
                    if part.rows is not None:
                        suffixes = part.rows.suffixes()
                        points = part.rows.decode(np.ones(len(suffixes), np.bool_))
                        assert part.rows.points == len(points.bits)
                        keys = [part.rows.prefix + suffix for suffix in suffixes]
                        assert rows.keys().isdisjoint(keys)
                        stored = await self.store.get(self.table, keys)
                        packed = [pack(stored[key][0].column[2:], stored[key][0].value) or b"" for key in keys]
                        found = unpack_points(packed, 0, np.zeros(len(keys), np.int64), part.rows.points)
                        assert found is not None
                        assert [found.bits.tolist(), found.times.tolist(), found.counts.tolist()] == [
                            points.bits.tolist(),
                            points.offsets.tolist(),
                            np.diff(points.starts).tolist(),
                        ]
                        rows |= {key: stored[key] for key in keys}
        return [Row(key, rows[key]) for key in sorted(rows)]

    async def scanned(self, start: bytes, stop: bytes | None, limit_bytes: int) -> list[Row]:
        """All rows of a cell scan."""
        rows: dict[bytes, list[Cell]] = {}
        async with aclosing(cell_pages(self.store, self.table, start, stop, limit_bytes=limit_bytes)) as pages:
            async for page in pages:
                assert rows.keys().isdisjoint(page.keys)
                for at, key in enumerate(page.keys):
                    rows.setdefault(key.removeprefix(self.prefix), []).append(page.cell(at))
        return [Row(key, timed(cells)) for key, cells in rows.items()]


def timed(cells: list[Cell]) -> list[Cell]:
    """Cells as the model has them: the times of HBase's own clock, about 10**12, all count as its present."""
    return [cell._replace(time_ms=NOW_MS) if 10**10 < cell.time_ms < NOW_MS else cell for cell in cells]


# ---- The stores

Opened = Callable[[Model], AbstractAsyncContextManager[Under]]


async def check(program: list[Call], model: Model, opened: Opened) -> None:
    """Run a program on a store and on the model, and want the same answers and in the end the same cells."""
    steps = [*program, Walk(b"", None, 3, None)]
    while steps:
        async with opened(model) as under:
            while steps:
                call = steps.pop(0)
                if isinstance(call, Reopen):
                    break
                assert await under.answer(call) == model.answer(call), call


def in_memory() -> Opened:
    store: list[MemoryStore] = []

    @asynccontextmanager
    async def opened(model: Model) -> AsyncIterator[Under]:
        if not store:
            store.append(MemoryStore(lambda: model.clock_ms))
            await store[0].create_tables([Table("cells", FAMILIES)])
        yield Under(store[0], "cells")

    return opened


def in_folder(folder: str) -> Opened:
    @asynccontextmanager
    async def opened(model: Model) -> AsyncIterator[Under]:
        store = await EmbeddedStore.open(folder, lambda: model.clock_ms)
        try:
            await store.create_tables([Table("cells", FAMILIES)])
            yield Under(store, "cells")
        finally:
            await store.aclose()

    return opened


def in_hbase(hbase: RunningHbase, table: str, prefix: bytes) -> Opened:
    @asynccontextmanager
    async def opened(model: Model) -> AsyncIterator[Under]:
        store = HBaseStore([(hbase.host, hbase.thrift_port)], connections=2)
        yield Under(store, table, prefix)
        await store.aclose()

    return opened


@given(programs)
@settings(deadline=None)
def test_memory_store(program: list[Call]) -> None:
    trio.run(check, program, Model(hbase=False, rewrites=True), in_memory())


@pytest.mark.slow
@given(programs)
@settings(deadline=None, max_examples=50)
def test_embedded_store(program: list[Call]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(check, program, Model(hbase=False, deletes_ranges=True, rewrites=True), in_folder(folder))


@pytest.fixture(scope="module")
def hbase_table(hbase: RunningHbase) -> str:
    """A table for all programs: each has rows of its own."""
    name = hbase.unused_tables().data

    async def make() -> None:
        store = HBaseStore([(hbase.host, hbase.thrift_port)])
        assert await store.create_tables([Table(name, FAMILIES)]) == [name]
        await store.aclose()

    trio.run(make)
    return name


prefixes = itertools.count(1)


@given(program=programs)
@settings(deadline=None, max_examples=25)
def test_hbase_store(hbase: RunningHbase, hbase_table: str, program: list[Call]) -> None:
    prefix = b"%06d/" % next(prefixes)
    trio.run(check, program, Model(hbase=True), in_hbase(hbase, hbase_table, prefix))


def in_cassandra(cassandra: RunningCassandra, table: str, prefix: bytes) -> Opened:
    @asynccontextmanager
    async def opened(model: Model) -> AsyncIterator[Under]:
        store = cassandra.store(widths=PREFIXES)
        try:
            yield Under(store, table, prefix)
        finally:
            await store.aclose()

    return opened


PREFIXES = Prefixes(7, 8)  # a directory for each program, a partition for each first byte


@pytest.fixture(scope="module")
def cassandra_table(cassandra: RunningCassandra) -> str:
    """A table for all programs: each has rows of its own."""

    async def make() -> None:
        store: CassandraStore = cassandra.store(widths=PREFIXES)
        assert await store.create_tables([Table("cells", FAMILIES)]) == ["cells"]
        await store.aclose()

    trio.run(make)
    return "cells"


def without_future(call: Call) -> Call:
    """A call that stores no cell with a timestamp of the future. Conditional writes cannot replace it on Cassandra,
    and do so with their own timestamp on Bigtable: tests/unit/store/test_cassandra.py and test_bigtable.py pin that."""
    return call._replace(time_ms=None) if isinstance(call, Write) and call.time_ms == AHEAD_MS else call


@given(program=st.lists(calls.map(without_future), max_size=30))
@settings(deadline=None, max_examples=25)
def test_cassandra_store(cassandra: RunningCassandra, cassandra_table: str, program: list[Call]) -> None:
    prefix = b"%06d/" % next(prefixes)
    trio.run(check, program, Model(hbase=True), in_cassandra(cassandra, cassandra_table, prefix))


def in_bigtable(bigtable: RunningBigtable, table: str, prefix: bytes) -> Opened:
    @asynccontextmanager
    async def opened(model: Model) -> AsyncIterator[Under]:
        store = bigtable.store()
        try:
            yield Under(store, table, prefix)
        finally:
            await store.aclose()

    return opened


@pytest.fixture(scope="module")
def bigtable_table(bigtable: RunningBigtable) -> str:
    """A table for all programs: each has rows of its own."""

    async def make() -> None:
        store = bigtable.store()
        assert await store.create_tables([Table("cells", FAMILIES)]) == ["cells"]
        await store.aclose()

    trio.run(make)
    return "cells"


@given(program=st.lists(calls.map(without_future), max_size=30))
@settings(deadline=None, max_examples=25)
def test_bigtable_store(bigtable: RunningBigtable, bigtable_table: str, program: list[Call]) -> None:
    prefix = b"%06d/" % next(prefixes)
    trio.run(check, program, Model(hbase=True, markers=False), in_bigtable(bigtable, bigtable_table, prefix))
