"""Compaction of stored rows: merge a row's cells, write the result, then delete the cells that it replaces.

Readers see all points at any time. The merged cells get the timestamp of the newest cell that was read, or a later one
that several old rows share (`with_one_time`). They are read back before any delete, unless the store changes a row in
one atomic step (`tsd.store.AtomicRewrites`). There are no locks. Concurrent writes, compactions and crashes lose no
point:

- A write after the read has a later timestamp than all cells that were read (`Store.put`; see `SETTLE_MS` for HBase).
  So it takes precedence over the merged cell, and no delete reaches it, because each delete is bounded by a timestamp
  that was read. If it uses the merged cell's own column, it hides the put, which the read-back detects.
- A column names the times of its points. The merged cells have all these times and the newest timestamp, so readers
  ignore an obsolete cell, which is no newer, whatever its values.
- Among cells with equal timestamps readers use the lowest column. Deletes go from the highest column down. If they are
  interrupted, the cells that remain as new as the merged ones give the same points.
- Another compaction puts what it read, which is no newer than the merged cells here unless it read newer cells.
- A delete of points between the reads of two compactions changes how a long row is divided into merged cells. An atomic
  step checks that the cells on which it relies are stored; if not, the row is read again later. On other engines the
  merged cells of a long row get a later timestamp than all that were read (`with_later_time`).
- In HBase a delete hides later puts with timestamps up to its own. A merged cell that is hidden is missing in the
  read-back, and nothing is deleted.
- Where the engine can, one delete takes all old cells of a row, and would take an older cell that comes after the read.
  A write that takes minutes could bring one. So younger rows lose cells by name. A clock that is minutes late could
  bring one, too; such an engine refuses writes then (`tsd.errors.WrongClock`).

Only a delete of points during a compaction of their row may be undone by it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.merge import (
    HAS_MERGE_LOOP,
    CellTotals,
    DuplicateTimestamp,
    MergeRules,
    StoredCell,
    join_simple,
    measure,
)
from tsd.codec.opentsdb.row import Compaction, compact, data_cells
from tsd.codec.opentsdb.rowkey import check_key
from tsd.errors import CorruptRow, StoreError
from tsd.store import (
    AtomicRewrites,
    Cell,
    Put,
    Row,
    StampedCells,
    StampedDelete,
    StampedPut,
    StampedSpan,
)
from tsd.store.retry import run_bounded
from tsd.tables.opentsdb.compaction.row_plan import (
    TIME_BYTES,
    RowPlan,
    deletes_by_time,
    is_visible,
    plan_joined,
    plan_of,
    puts_by_time,
    rewrites_of,
    row_deletes,
    size_of,
    span_of,
    with_later_time,
    with_one_time,
)
from tsd.tables.opentsdb.data_table import DataTable

NEVER_MS = -(1 << 62)  # before all write times


@dataclass
class CompactionStats:
    """Counters since the start. Cells and bytes are those of all examined rows; an unchanged row counts the same before
    and after."""

    rows: int = 0  # examined
    compacted: int = 0  # rows
    cells_before: int = 0
    cells_after: int = 0
    bytes_before: int = 0  # row key, column, value and timestamp of each cell, uncompressed
    bytes_after: int = 0
    identical: int = 0  # duplicate points dropped, equal to the one kept
    variant: int = 0  # duplicate points dropped, with other values
    writes: int = 0  # cells
    deletes: int = 0  # cells
    corrupt: int = 0  # rows that cannot be decoded
    undecided: int = 0  # rows with duplicates of different values, unless the rules choose one
    hidden: int = 0  # rows whose merged cell is not visible: not changed further
    busy: int = 0  # rows that a pass skipped because they were being written to
    errors: Counter[str] = field(default_factory=Counter)  # StoreErrors by call: read, put, delete

    def count_row(self, before: tuple[int, int]) -> None:
        """Count an examined row, as unchanged."""
        self.rows += 1
        self.cells_before += before[0]
        self.cells_after += before[0]
        self.bytes_before += before[1]
        self.bytes_after += before[1]

    def count_change(self, change: "RowPlan") -> None:
        """Count a compacted row, after `count_row`."""
        self.compacted += 1
        self.cells_after += change.after[0] - change.before[0]
        self.bytes_after += change.after[1] - change.before[1]
        self.identical += change.identical
        self.variant += change.variant

    def count_joined(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Count a row whose cells were joined. Both are the number of its cells, and their bytes."""
        self.rows += 1
        self.compacted += 1
        self.cells_before += before[0]
        self.cells_after += after[0]
        self.bytes_before += before[1]
        self.bytes_after += after[1]
        self.writes += after[0]
        self.deletes += before[0]

    def count_corrupt(self, error: CorruptRow) -> None:
        """Count a row that cannot be compacted."""
        if isinstance(error, DuplicateTimestamp):
            self.undecided += 1
        else:
            self.corrupt += 1


def summary(stats: CompactionStats) -> list[str]:
    """Return the summary of a pass, line by line.

    >>> summary(CompactionStats(rows=3, compacted=2, cells_before=7, cells_after=4))[:2]
    ['rows: 3, compacted 2', 'cells: 7 before, 4 after']
    """
    lines = [
        f"rows: {stats.rows}, compacted {stats.compacted}",
        f"cells: {stats.cells_before} before, {stats.cells_after} after",
        f"bytes: {stats.bytes_before} before, {stats.bytes_after} after, uncompressed",
        f"duplicates dropped: {stats.identical} equal, {stats.variant} older ones with other values",
    ]
    left = {
        "cannot be decoded": stats.corrupt,
        "have different values for one time (tsd.storage.fix_duplicates is false)": stats.undecided,
        "are hidden by earlier deletes until a major compaction of HBase": stats.hidden,
        "are being written to": stats.busy,
    }
    return lines + [f"rows skipped that {why}: {count}" for why, count in left.items() if count]


# HBase sets timestamps in milliseconds. A later cell can have the timestamp of a cell that was read only if both are
# written in the same millisecond. So a row with such a recent cell is skipped. The margin is for differing clocks.
SETTLE_MS = 2000
SPAN_AGE_MS = 240_000  # since the last write of a row whose old cells are deleted together
REWRITTEN_CELLS = 100  # of a row that one atomic step changes, for each merged cell: more would take milliseconds
LARGE_BYTES = 16 << 10  # of a row's qualifiers: some 10 ms of work
TURN_BYTES = 4 << 10  # of qualifiers of rows that are planned without a checkpoint: about a millisecond of work
LEAST_WORK_BYTES = 256  # of a row: work that does not depend on its size
CONCURRENT_CALLS = 4  # connections to a gateway are shared with the writer


class ReadStart(NamedTuple):
    """When a read started."""

    wall_ms: int  # by the wall clock of this machine
    store_ms: int  # by the clock that sets write times, or earlier


class StoreClock:
    """The clock that sets write times: the latest time of a cell that was read, and the time since then."""

    def __init__(self) -> None:
        self._ahead_ms: float = NEVER_MS  # of the monotonic clock, at least

    def see(self, time_ms: int) -> None:
        """Take the write time of a cell that was read."""
        self._ahead_ms = max(self._ahead_ms, time_ms - trio.current_time() * 1000)

    def least_ms(self) -> int:
        """Return a time that this clock has reached: before all write times if no cell was seen."""
        return int(self._ahead_ms + trio.current_time() * 1000)


class PlannedRows(NamedTuple):
    """Result of examining rows."""

    plans: list[RowPlan]
    sizes: list[tuple[int, int]]  # cells and bytes of each row without a plan
    corrupt: list[CorruptRow]
    recent: list[bytes]  # keys of rows with recent writes


class Executed(NamedTuple):
    """What became of plans."""

    compacted: list[RowPlan]
    hidden: list[RowPlan]  # their merged cells are not visible
    refused: list[RowPlan]  # their rows changed since they were read


class RowCompactor:
    """Compacts rows of one table. Several compactors, in this or other processes, may compact the same rows."""

    def __init__(
        self,
        table: DataTable,
        rules: MergeRules,
        now_ms: Callable[[], int],
        on_corrupt: Callable[[CorruptRow], None],
        *,
        settle_ms: int = SETTLE_MS,
        span_age_ms: int = SPAN_AGE_MS,
        dry: bool = False,
    ) -> None:
        """`now_ms` is the wall clock. `settle_ms` is 0 for a store with ascending timestamps, where no row is too
        recent. `span_age_ms`: see `SPAN_AGE_MS`. `on_corrupt` is called for each row that cannot be compacted. With
        `dry` nothing is written."""
        self.stats = CompactionStats()
        self._store, self._table, self._layout = table
        self._rules = rules
        self._now_ms = now_ms
        self._on_corrupt = on_corrupt
        self._settle_ms = settle_ms
        self._span_age_ms = span_age_ms
        self._dry = dry
        self._store_clock = StoreClock()

    @property
    def joins_requests(self) -> bool:
        """Whether the engine reads and changes neighbouring rows with few requests."""
        return self._store.atomic_rewrites is not None or self._store.stamped_cells is not None

    @property
    def makes_requests(self) -> bool:
        """Whether rows are read and changed by requests to other processes, several rows by each."""
        return self._store.atomic_rewrites is None and self._store.stamped_cells is not None

    def start_read(self) -> ReadStart:
        """Return the present time, for rows that are read from now on."""
        return ReadStart(self._now_ms(), self._store_clock.least_ms())

    async def compact_keys(self, keys: Collection[bytes]) -> list[bytes]:
        """Compact those rows that exist; return the keys of those that are being written to. Raise StoreError."""
        start = self.start_read()
        rewrites = self._store.atomic_rewrites
        if rewrites is not None and HAS_MERGE_LOOP and not self._settle_ms and not self._dry:
            keys = await self._join(rewrites, keys)
            if not keys:
                return []
        with nullcontext() if rewrites is None else rewrites.watching(self._table, keys) as written:
            with self._counted("read"):
                rows = await self._store.get(self._table, keys)
            return await self.compact([Row(*row) for row in rows.items()], start, written=written)

    async def _join(self, rewrites: AtomicRewrites, keys: Collection[bytes]) -> list[bytes]:
        """Join the cells of simple rows, which are most: they have several cells of points, no two for one time, or are
        compacted. Each is read and changed in one step, for half of the CPU time. Return the other rows. Raise
        StoreError."""
        sizes: dict[bytes, tuple[tuple[int, int], tuple[int, int]]] = {}
        compacted: dict[bytes, tuple[int, int]] = {}

        def join(key: bytes, cells: Sequence[tuple[bytes, bytes, int]]) -> tuple[bytes, bytes] | None:
            compacted.pop(key, None)  # of an earlier call
            totals = measure(cells)
            joined = self._joined(key, cells, totals)
            if joined is None:
                return None
            each = len(key) + TIME_BYTES
            before = len(cells), totals.columns + totals.values + each * len(cells)
            if len(cells) == 1:
                if joined == cells[0][:2]:
                    compacted[key] = before
                return None
            sizes[key] = before, (1, len(joined[0]) + len(joined[1]) + each)
            return joined

        with self._counted("put"):
            changed = await rewrites.join(self._table, list(keys), join)
        for key in changed:
            before, after = sizes[key]
            self.stats.count_joined(before, after)
        for size in compacted.values():
            self.stats.count_row(size)
        done = {*changed, *compacted}
        return [key for key in keys if key not in done]

    def _joined(
        self, key: bytes, cells: Sequence[tuple[bytes, bytes, int]], totals: CellTotals
    ) -> tuple[bytes, bytes] | None:
        """Return the column and the value of the cell that a simple row becomes; None for another row, a large one, and
        one that cannot be compacted."""
        if totals.columns >= LARGE_BYTES:
            return None
        try:
            check_key(self._layout, key)
        except CorruptRow:
            return None
        return join_simple(cells, COLUMN, self._rules.cell_points)

    async def compact(
        self, rows: Sequence[Row], start: ReadStart, *, written: Collection[bytes] | None = None
    ) -> list[bytes]:
        """Compact rows that were read with all their cells; return the keys of those that are being written to: with
        recent writes, or changed since they were read.

        Reading may have started long ago. Only a successful call counts and reports rows, and never
        those that it returns. `written`: see `AtomicRewrites`.
        """
        found = await self._plan(rows, start)
        did = Executed(found.plans, [], []) if self._dry else await self._execute(found.plans, start, written)
        for size in found.sizes:
            self.stats.count_row(size)
        for plan in did.compacted:
            self.stats.count_row(plan.before)
            self.stats.count_change(plan)
        for plan in did.hidden:
            self.stats.count_row(plan.before)
        self.stats.hidden += len(did.hidden)
        for error in found.corrupt:
            self.stats.count_corrupt(error)
            self._on_corrupt(error)
        return found.recent + [plan.key for plan in did.refused]

    async def _plan(self, rows: Sequence[Row], start: ReadStart) -> PlannedRows:
        found = PlannedRows([], [], [], [])
        work = TURN_BYTES
        newest_ms = NEVER_MS
        for row in rows:
            totals = measure(row.cells)
            size = totals.columns - len(COLUMN) * len(row.cells)
            work += max(size, LEAST_WORK_BYTES)
            if work >= TURN_BYTES:
                await trio.lowlevel.checkpoint()
                work = 0
            if self._settle_ms and totals.time_ms > start.wall_ms - self._settle_ms:
                found.recent.append(row.key)
                continue
            newest_ms = max(newest_ms, totals.time_ms)
            joined = self._joined(row.key, row.cells, totals) if len(row.cells) > 1 else None
            if joined is not None:
                found.plans.append(plan_joined(row, joined, totals))
                continue
            cells = data_cells(row.cells)
            before = size_of(row.key, cells)
            try:
                check_key(self._layout, row.key)
                done = await self._compaction(row.key, cells, is_large=size >= LARGE_BYTES)
            except CorruptRow as exc:
                found.corrupt.append(exc)
                found.sizes.append(before)
                continue
            if done.changes:
                found.plans.append(plan_of(row.key, cells, done, before))
            else:
                found.sizes.append(before)
        self._store_clock.see(newest_ms)
        return found

    async def _compaction(self, key: bytes, cells: Sequence[StoredCell], *, is_large: bool) -> Compaction:
        """Return the compaction of a row; that of a large one, which may take seconds, is computed in a thread."""
        if not is_large:
            return compact(key, cells, self._rules)
        return await trio.to_thread.run_sync(compact, key, cells, self._rules)

    async def _execute(self, plans: Sequence[RowPlan], start: ReadStart, written: Collection[bytes] | None) -> Executed:
        """Execute plans."""
        if not plans:
            return Executed([], [], [])
        rewrites = self._store.atomic_rewrites
        if rewrites is not None:
            return await self._rewrite(rewrites, plans, written)
        plans = [with_later_time(plan) for plan in plans]
        stamped = self._store.stamped_cells
        if stamped is None:
            return await self._replace(plans)
        done = await self._replace_stamped(stamped, [plan for plan in plans if not plan.ties], start)
        if not (tied := [plan for plan in plans if plan.ties]):
            return done
        more = await self._replace(tied)
        return Executed(done.compacted + more.compacted, done.hidden + more.hidden, [])

    async def _rewrite(
        self, rewrites: AtomicRewrites, plans: Sequence[RowPlan], written: Collection[bytes] | None
    ) -> Executed:
        """Execute plans in atomic steps, so that nothing has to be read back: one a plan, several if it is large."""
        steps = [rewrites_of(plan, REWRITTEN_CELLS) for plan in plans]
        with self._counted("put"):
            changed = await rewrites.rewrite(self._table, [first for first, *_ in steps], written=written)
            for at, (_, *others) in enumerate(steps):
                for step in others:
                    if changed[at]:
                        changed[at] = (await rewrites.rewrite(self._table, [step], written=written))[0]
        done = [plan for plan, is_done in zip(plans, changed, strict=True) if is_done]
        self.stats.writes += sum(len(plan.puts) for plan in done)
        self.stats.deletes += sum(len(plan.obsolete) for plan in done)
        return Executed(done, [], [plan for plan, is_done in zip(plans, changed, strict=True) if not is_done])

    async def _replace(self, plans: Sequence[RowPlan]) -> Executed:
        """Execute plans in three steps: put, read back, delete."""

        async def put(part: tuple[int, list[Put]]) -> None:
            await self._store.put(self._table, part[1], time_ms=part[0])

        async def delete(part: tuple[int, Mapping[bytes, Collection[bytes]]]) -> None:
            await self._store.delete(self._table, part[1], up_to_ms=part[0])

        with self._counted("put"):
            await run_bounded(puts_by_time(plans).items(), put, limit=CONCURRENT_CALLS)
        self.stats.writes += sum(len(plan.puts) for plan in plans)
        with self._counted("read"):
            visible, hidden = await self._verified(plans)
        with self._counted("delete"):
            await run_bounded(deletes_by_time(visible).items(), delete, limit=CONCURRENT_CALLS)
        self.stats.deletes += sum(len(plan.obsolete) for plan in visible)
        return Executed(visible, hidden, [])

    async def _replace_stamped(self, stamped: StampedCells, plans: Sequence[RowPlan], start: ReadStart) -> Executed:
        """Do the same with few requests. Not for plans with ties, whose puts might not be kept."""
        # A wall clock that is ahead would make rows old while they are written: it does not count alone.
        plans = with_one_time(plans, min(self._now_ms(), start.wall_ms, start.store_ms) - self._span_age_ms)
        puts = [
            StampedPut(plan.key, COLUMN + put.qualifier, put.value, plan.time_ms) for plan in plans for put in plan.puts
        ]
        with self._counted("put"):
            await stamped.put(self._table, puts)
        self.stats.writes += len(puts)
        with self._counted("read"):
            row_cells = max([plan.before[0] + len(plan.puts) for plan in plans], default=0)
            found = await stamped.get(self._table, [(put.row, put.column) for put in puts], row_cells=row_cells)
        visible, hidden = _by_visibility(plans, found)
        last_ms = min(start.wall_ms, self._now_ms()) - self._span_age_ms  # the clock may have been set back meanwhile
        spans: list[StampedSpan] = []
        deletes: list[StampedDelete] = []
        for plan in visible:
            if plan.time_ms <= last_ms and (span := span_of(plan)) is not None:
                spans.append(span)
                newest = [cell.column for cell in plan.obsolete if cell.time_ms == plan.time_ms]
                deletes += [StampedDelete(plan.key, column, plan.time_ms) for column in newest]
            else:
                deletes += [StampedDelete(plan.key, *delete) for delete in row_deletes(plan)]
        with self._counted("delete"):
            await stamped.delete_spans(self._table, spans)
            await stamped.delete(self._table, deletes)
        self.stats.deletes += sum(len(plan.obsolete) for plan in visible)
        return Executed(visible, hidden, [])

    async def _verified(self, plans: Sequence[RowPlan]) -> tuple[list[RowPlan], list[RowPlan]]:
        """Return the plans whose merged cells can be read back, and the others."""
        by_columns: dict[tuple[bytes, ...], list[RowPlan]] = defaultdict(list)
        for plan in plans:
            by_columns[plan.columns].append(plan)
        visible: list[RowPlan] = []
        hidden: list[RowPlan] = []

        async def check(part: tuple[tuple[bytes, ...], list[RowPlan]]) -> None:
            columns, some = part
            found = await self._store.get(self._table, [plan.key for plan in some], columns=columns)
            seen, unseen = _by_visibility(some, found)
            visible.extend(seen)
            hidden.extend(unseen)

        await run_bounded(by_columns.items(), check, limit=CONCURRENT_CALLS)
        return visible, hidden

    @contextmanager
    def _counted(self, call: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self.stats.errors[call] += 1
            raise


def _by_visibility(
    plans: Sequence[RowPlan], found: Mapping[bytes, Sequence[Cell]]
) -> tuple[list[RowPlan], list[RowPlan]]:
    """Return the plans whose merged cells are among the cells of `found`, by row, and the others."""
    seen: list[RowPlan] = []
    unseen: list[RowPlan] = []
    for plan in plans:
        (seen if is_visible(plan, found.get(plan.key, ())) else unseen).append(plan)
    return seen, unseen
