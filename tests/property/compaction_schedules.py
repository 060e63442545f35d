"""Writers, compactors, deleters and repairers on a few rows, each call of the store in an order that a seed decides,
some of them cut short.

What a reader finds is looked at after every call: the value that was written last, at each time that was written and
not deleted since.
"""

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import trio
from trio._core._run import _r as trio_order  # of tasks that can run: random unless it is seeded
from trio.testing import wait_all_tasks_blocked

from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN, join, ms_qualifier, seconds_qualifier
from tsd.codec.opentsdb.cell import Point as CellPoint
from tsd.codec.opentsdb.fsck import FsckOptions
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import Span, compact, data_cells, points, removal
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key
from tsd.codec.text import encode_integer
from tsd.daemon.settings import now_ms
from tsd.errors import CorruptRow
from tsd.store import (
    AtomicRewrites,
    Cell,
    JoinCells,
    Put,
    Rewrite,
    Row,
    StampedCells,
    StampedDelete,
    StampedPut,
    StampedSpan,
    Store,
)
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.delete import RowRemoval, remove_parts
from tsd.tables.opentsdb.fsck import BUSY_MS, Fsck

T = TypeVar("T")
RULES = MergeRules(fix_duplicates=True, cell_points=3)  # so few that rows are cut
PUTS = 6  # of each schedule
COMPACTIONS = 4
DELETES = 3
REPAIRS = 4
TIMES = 5  # that points have, in seconds and in ms
AGES_MS = (0, 0, 0, 1 << 62, 50, 100, 200, 400)  # of rows that are old: none, some
AHEAD_MS = 1 << 61  # a wall clock, by which all rows are old
SKEW_MS = 20  # of the clocks of two servers from that of a third
SKEWED_AGES_MS = (2 * SKEW_MS, 50, 100, 200, 1 << 62)  # of rows that are old, though these clocks differ


class Died(Exception):
    """A process ended here."""


class Graves(MemoryStore):
    """A MemoryStore in which, as in HBase and Cassandra, a delete hides later puts with a time up to its own."""

    stamped_cells: StampedCells | None = None

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        super().__init__(clock_ms)
        self.capabilities = replace(self.capabilities, hides_for_days=True)
        self.stamped_cells = Stamps(self)
        self._graves: dict[tuple[bytes, bytes], int] = {}
        self._spans: list[StampedSpan] = []

    @property
    def atomic_rewrites(self) -> AtomicRewrites | None:
        return None

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        if time_ms is not None:
            cells = [c for c in cells if time_ms > self._buried_ms(c.row, c.column)]
        await super().put(table, cells, time_ms=time_ms)

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        assert up_to_ms is not None
        for row, names in columns.items():
            for name in names:
                self._graves[row, name] = max(up_to_ms, self._graves.get((row, name), -1))
        await super().delete(table, columns, up_to_ms=up_to_ms)

    @property
    def spans(self) -> int:
        """How many spans were deleted."""
        return len(self._spans)

    async def delete_span(self, table: str, span: StampedSpan) -> None:
        """Delete the cells of a span, and hide later puts into it with a time up to its own."""
        self._spans.append(span)
        cells = (await self.get(table, [span.row])).get(span.row, [])
        names = [cell.column for cell in cells if span.first <= cell.column <= span.last]
        await super().delete(table, {span.row: names}, up_to_ms=span.up_to_ms)

    def _buried_ms(self, row: bytes, column: bytes) -> int:
        spans = [span.up_to_ms for span in self._spans if span.row == row and span.first <= column <= span.last]
        return max([self._graves.get((row, column), -1), *spans])


class Regions(Graves):
    """A store whose rows are on servers with different clocks."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        super().__init__(clock_ms)
        self._own_ms = clock_ms

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        if time_ms is not None:
            await super().put(table, cells, time_ms=time_ms)
            return
        now_ms = self._own_ms()
        for row in {cell.row for cell in cells}:
            own = [cell for cell in cells if cell.row == row]
            await super().put(table, own, time_ms=now_ms + (row[-1] % 3 - 1) * SKEW_MS)


class Stamps:
    """StampedCells of a store without its own."""

    def __init__(self, store: Graves) -> None:
        self._store = store

    async def put(self, table: str, cells: Sequence[StampedPut]) -> None:
        for *cell, time_ms in cells:
            await self._store.put(table, [Put(*cell)], time_ms=time_ms)

    async def get(
        self, table: str, places: Collection[tuple[bytes, bytes]], *, row_cells: int = 0
    ) -> dict[bytes, list[Cell]]:
        found = await self._store.get(table, [row for row, _ in places])
        wanted = {row: [cell for cell in cells if (row, cell.column) in places] for row, cells in found.items()}
        return {row: cells for row, cells in wanted.items() if cells}

    async def delete(self, table: str, cells: Sequence[StampedDelete]) -> None:
        for row, column, up_to_ms in cells:
            await self._store.delete(table, {row: [column]}, up_to_ms=up_to_ms)

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        for span in spans:
            await self._store.delete_span(table, span)

    async def delete_rows(self, table: str, start: bytes, stop: bytes, *, up_to_ms: int) -> None:
        raise NotImplementedError  # compactors do not use it


class Turns:
    """Hands out turns: one call at a time, whose it is the seed decides."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self._waiting: list[trio.Event] = []
        self._done = trio.Event()

    async def take(self, call: Callable[[], Awaitable[T]]) -> T:
        """Do a call when its turn comes."""
        turn = trio.Event()
        self._waiting.append(turn)
        try:
            await turn.wait()
        except trio.Cancelled:  # its process died of another call
            self._waiting.remove(turn)
            raise
        try:
            return await call()
        finally:
            self._done.set()

    async def give(self, after_each: Callable[[], Awaitable[None]]) -> None:
        """Give turns until no call waits for one."""
        while True:
            await wait_all_tasks_blocked()  # no call is in a thread
            if not self._waiting:
                return
            self._done = trio.Event()
            self._waiting.pop(self.dice.randrange(len(self._waiting))).set()
            await self._done.wait()
            await after_each()


class Turned:
    """The part of a store that these use, in turns. With `fuse` calls left it dies, in the middle of
    the last."""

    def __init__(self, store: Store, turns: Turns, fuse: int | None, *, cuts: bool) -> None:
        self._store = store
        self.capabilities = store.capabilities
        self._turns = turns
        self._fuse = fuse
        self._cuts = cuts  # whether a row's deletes may be cut short
        self.atomic_rewrites = self if store.atomic_rewrites else None
        # Otherwise all rows are read first, and changed later.
        self._joins = self.atomic_rewrites is not None and turns.dice.random() < 0.5
        stamped = store.stamped_cells if turns.dice.random() < 0.7 else None
        self.stamped_cells = None if stamped is None else TurnedStamps(stamped, turns, self.call)

    async def call(self, whole: Callable[[], Awaitable[T]], part: Callable[[], Awaitable[object]]) -> T:
        async def call() -> T:
            if self._fuse is not None:
                self._fuse -= 1
                if self._fuse < 0:
                    await part()
                    raise Died
            return await whole()

        return await self._turns.take(call)

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """Read the rows together, or one after another, as the regions of a server do."""
        parts = [[row] for row in rows] if self.stamped_cells else [rows]
        found: dict[bytes, list[Cell]] = {}
        for part in parts:
            found |= await self.call(partial(self._store.get, table, part, columns=columns), trio.lowlevel.checkpoint)
        return found

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        rows = sorted({cell.row for cell in cells})
        some = self._turns.dice.sample(rows, self._turns.dice.randint(0, len(rows)))
        part = [cell for cell in cells if cell.row in some]
        await self.call(
            lambda: self._store.put(table, cells, time_ms=time_ms),
            lambda: self._store.put(table, part, time_ms=time_ms),
        )

    async def sync(self) -> None:
        await self.call(self._store.sync, trio.lowlevel.checkpoint)

    def watching(self, table: str, rows: Collection[bytes]) -> AbstractContextManager[Collection[bytes]]:
        assert self._store.atomic_rewrites is not None
        return self._store.atomic_rewrites.watching(table, rows)

    async def rewrite(
        self, table: str, changes: Sequence[Rewrite], *, written: Collection[bytes] | None = None
    ) -> list[bool]:
        rewrites = self._store.atomic_rewrites
        assert rewrites is not None
        part = self._turns.dice.sample(changes, self._turns.dice.randint(0, len(changes)))
        return await self.call(
            lambda: rewrites.rewrite(table, changes, written=written),
            lambda: rewrites.rewrite(table, part, written=written),
        )

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:
        rewrites = self._store.atomic_rewrites
        assert rewrites is not None
        if not self._joins:
            return []
        part = self._turns.dice.sample(rows, self._turns.dice.randint(0, len(rows)))
        return await self.call(
            lambda: rewrites.join(table, rows, join),
            lambda: rewrites.join(table, part, join),
        )

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        part: dict[bytes, list[bytes]] = {}
        for row, names in columns.items():
            least = 0 if self._cuts else len(names) * self._turns.dice.randint(0, 1)
            part[row] = list(names)[: self._turns.dice.randint(least, len(names)) if self._cuts else least]
        await self.call(
            lambda: self._store.delete(table, columns, up_to_ms=up_to_ms),
            lambda: self._store.delete(table, {row: names for row, names in part.items() if names}, up_to_ms=up_to_ms),
        )


class TurnedStamps:
    """StampedCells in turns. A process that dies has changed some whole rows."""

    def __init__(self, stamped: StampedCells, turns: Turns, call: Callable[..., Awaitable[Any]]) -> None:
        self._stamped = stamped
        self._turns = turns
        self._call = call

    async def put(self, table: str, cells: Sequence[StampedPut]) -> None:
        some = self._rows(cells)
        part = [cell for cell in cells if cell.row in some]
        await self._call(lambda: self._stamped.put(table, cells), lambda: self._stamped.put(table, part))

    async def get(
        self, table: str, places: Collection[tuple[bytes, bytes]], *, row_cells: int = 0
    ) -> dict[bytes, list[Cell]]:
        found: dict[bytes, list[Cell]] = await self._call(
            lambda: self._stamped.get(table, places, row_cells=row_cells), trio.lowlevel.checkpoint
        )
        return found

    async def delete(self, table: str, cells: Sequence[StampedDelete]) -> None:
        some = self._rows(cells)
        part = [cell for cell in cells if cell.row in some]
        await self._call(lambda: self._stamped.delete(table, cells), lambda: self._stamped.delete(table, part))

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        some = self._rows(spans)
        part = [span for span in spans if span.row in some]
        await self._call(
            lambda: self._stamped.delete_spans(table, spans), lambda: self._stamped.delete_spans(table, part)
        )

    async def delete_rows(self, table: str, start: bytes, stop: bytes, *, up_to_ms: int) -> None:
        raise NotImplementedError  # compactors do not use it

    def _rows(self, cells: Sequence[StampedPut] | Sequence[StampedDelete] | Sequence[StampedSpan]) -> list[bytes]:
        rows = sorted({cell.row for cell in cells})
        return self._turns.dice.sample(rows, self._turns.dice.randint(0, len(rows)))


class Named:
    """UIDs that all have names."""

    async def names(self, _kind: Kind, uids: Collection[bytes]) -> dict[bytes, bytes]:
        return dict.fromkeys(uids, b"name")


class Write(NamedTuple):
    """One put of a writer's, to one row: the value of each time."""

    row: bytes
    cells: list[CellPoint]
    values: dict[int, int]


class Schedule:
    """One seed's."""

    def __init__(
        self,
        store: Store,
        table: str,
        seed: int,
        *,
        cuts: bool,
        clock_ms: Callable[[], int] | None = None,
        gap_ms: int = 0,
        ages_ms: Sequence[int] = AGES_MS,
    ) -> None:
        """`clock_ms` is the clock of the store, which rises with each look; without it nothing is deleted. Each
        write waits for `gap_ms` after the call before. `ages_ms` are those of rows that are old."""
        self._gap_ms = gap_ms
        self._clock_ms = clock_ms
        self._ages_ms = ages_ms
        self._dice = random.Random(seed)
        self._store = store
        self._table = table
        self._turns = Turns(self._dice)
        self._cuts = cuts
        self._is_repaired = clock_ms is not None and seed % 2 == 1
        self._keys = [row_key(KeyLayout(), b"\0\0\1", 3600 * seed, bytes([0, 0, 1, 0, 0, n])) for n in (1, 2, 3)]
        self._other = row_key(KeyLayout(), b"\0\0\2", 3600 * seed, bytes([0, 0, 1, 0, 0, 1]))
        self._truth: dict[bytes, dict[int, int]] = {key: {} for key in self._keys}
        self._deleted: dict[bytes, set[int]] = {key: set() for key in self._keys}  # a compaction may bring them again
        self.deletes = 0  # rows of which a part was deleted
        self.compactors: list[RowCompactor] = []

    async def run(self) -> None:
        """Play it; then compact what is left, which must come to rest."""
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self._write)
            for _ in range(3):
                nursery.start_soon(self._compact)
            if self._clock_ms:
                nursery.start_soon(self._delete)
                nursery.start_soon(self._delete)
            if self._is_repaired:
                nursery.start_soon(self._repair)
                nursery.start_soon(self._repair)
            await self._turns.give(self.look)
        await self._settle()

    async def look(self) -> None:
        """Hold every row against what was written."""
        found = await self._store.get(self._table, self._keys)
        for key, truth in self._truth.items():
            stored = {point.offset_ms: point.number for point in points(key, data_cells(found.get(key, ())), RULES)}
            kept = truth.keys() - self._deleted[key]
            assert {time: stored.get(time) for time in kept} == {time: truth[time] for time in kept}
            assert stored.keys() <= truth.keys()

    async def _write(self) -> None:
        for _ in range(PUTS):
            write = self._drawn()

            async def put(write: Write = write) -> None:
                cells = [Put(write.row, COLUMN + cell.qualifier, cell.value) for cell in write.cells]
                start_ms = now_ms()
                while now_ms() < start_ms + self._gap_ms:
                    await trio.lowlevel.checkpoint()
                await self._store.put(self._table, cells)
                self._truth[write.row] |= write.values
                self._deleted[write.row] -= write.values.keys()

            await self._turns.take(put)

    async def _delete(self) -> None:
        """Delete the points of a span of a row, as `tsd delete` does."""
        assert self._clock_ms
        for _ in range(DELETES):
            fuse = self._dice.choice([None, None, *range(6)])
            store = Turned(self._store, self._turns, fuse, cuts=self._cuts)
            key = self._dice.choice(self._keys)
            first, last = sorted(self._dice.sample(range(TIMES + 1), 2))
            try:
                read_ms = self._clock_ms()
                found = await store.get(self._table, [key])
                row = Row(key, found.get(key, []))
                part = removal(key, data_cells(row.cells), Span(first * 1000, last * 1000))
                if not part.changes:
                    continue
                self._deleted[key] |= set(part.points)
                await remove_parts(store, self._table, [RowRemoval(row, part)], read_ms=read_ms)  # type: ignore[arg-type]
                self.deletes += bool(part.puts)
            except* Died:
                pass

    async def _repair(self) -> None:
        """Repair the rows, as `tsd fsck` does."""
        assert self._clock_ms
        for _ in range(REPAIRS):
            fuse = self._dice.choice([None, None, *range(6)])
            store = Turned(self._store, self._turns, fuse, cuts=self._cuts)
            options = FsckOptions.fix_all(last_write_wins=True)
            options = replace(options, cell_points=RULES.cell_points, compact=self._dice.random() < 0.7)
            fsck = Fsck(DataTable(store, self._table, KeyLayout()), Named(), options)  # type: ignore[arg-type]
            try:
                read_ms = self._clock_ms()
                found = await store.get(self._table, self._keys)
                await fsck.check([Row(*row) for row in found.items()], read_ms=read_ms + 2 * BUSY_MS)  # none is young
            except* Died:
                pass

    def _drawn(self) -> Write:
        """Some points as one cell or as a cell each; of some times in both forms, which may differ. Of equally new
        values a repair keeps another one than readers see, as OpenTSDB's: then there are none."""
        values: dict[int, int] = {}
        drawn: list[CellPoint] = []
        for time in sorted(self._dice.sample(range(TIMES), self._dice.randint(1, 3))):
            both = [] if self._is_repaired else [[False, True]]
            for in_ms in self._dice.choice([[False], [False], [True], *both]):
                number = self._dice.choice([1, 2, 300])
                flags, value = encode_integer(number)
                qualifier = ms_qualifier(time * 1000, flags) if in_ms else seconds_qualifier(time, flags)
                drawn.append(CellPoint(qualifier, value))
                values.setdefault(time * 1000, number)  # of equally new cells the lowest column's, of a cell the first
        joins = len(drawn) <= RULES.cell_points and self._dice.random() < 0.7
        cells = [join(drawn)] if joins else drawn
        return Write(self._dice.choice(self._keys), cells, values)

    async def _compact(self) -> None:
        for _ in range(COMPACTIONS):
            fuse = self._dice.choice([None, *range(6)])
            store = Turned(self._store, self._turns, fuse, cuts=self._cuts)
            compactor = self._compactor(store)  # a process that starts anew
            try:
                for _ in range(self._dice.randint(1, 3)):
                    if self._dice.random() < 0.5:
                        await self._show_time(compactor)
                    keys = self._dice.sample(self._keys, self._dice.randint(1, len(self._keys)))
                    await compactor.compact_keys(keys)
            except* Died:
                pass

    async def _show_time(self, compactor: RowCompactor) -> None:
        """Let a compactor see the present time of the store's clock, in a row of its own."""
        cell = Put(self._other, COLUMN + seconds_qualifier(0, 0), b"\1")
        await self._turns.take(partial(self._store.put, self._table, [cell]))
        await compactor.compact_keys([self._other])

    def _compactor(self, store: object) -> RowCompactor:
        age_ms = self._dice.choice(self._ages_ms)
        is_right = self._clock_ms is not None and self._dice.random() < 0.5
        now_ms = self._clock_ms if is_right else (lambda: AHEAD_MS)
        compactor = RowCompactor(
            DataTable(store, self._table, KeyLayout()),  # type: ignore[arg-type]
            RULES,
            now_ms,
            _raise,
            settle_ms=0,
            span_age_ms=age_ms,
        )
        self.compactors.append(compactor)
        return compactor

    async def _settle(self) -> None:
        last = self._compactor(self._store)
        await last.compact_keys(self._keys)
        await self.look()
        found = await self._store.get(self._table, self._keys)
        again = self._compactor(self._store)
        await again.compact_keys(self._keys)
        if last.stats.hidden:  # by what was deleted: it stays as it is, and is read as it should be
            return
        for key in self._truth:
            assert not compact(key, data_cells(found.get(key, ())), RULES).changes
        assert again.stats.writes == again.stats.deletes == 0
        assert await self._store.get(self._table, self._keys) == found


def _raise(error: CorruptRow) -> None:
    raise error


async def play(
    seeds: Sequence[int],
    store: Store,
    table: str,
    *,
    cuts: bool,
    clock_ms: Callable[[], int] | None = None,
    gap_ms: int = 0,
    ages_ms: Sequence[int] = AGES_MS,
) -> list[RowCompactor]:
    """Run some schedules, each on rows of its own; the compactors they had. The rest: see `Schedule`."""
    found: list[RowCompactor] = []
    deletes = 0
    for seed in seeds:
        schedule = Schedule(store, table, seed, cuts=cuts, clock_ms=clock_ms, gap_ms=gap_ms, ages_ms=ages_ms)
        trio_order.seed(seed)
        try:
            await schedule.run()
        except BaseException as exc:
            exc.add_note(f"seed {seed}")
            raise
        found += schedule.compactors
        deletes += schedule.deletes
    assert clock_ms is None or deletes > len(seeds) / 10
    return found
