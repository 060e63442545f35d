"""Changes of one row by a compaction: the cells to put, those to delete, and the requests that do it.

`tsd.tables.opentsdb.compaction.compactor` executes them, and says why no point is lost.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tsd.codec.opentsdb.cell import COLUMN, Point
from tsd.codec.opentsdb.merge import CellTotals, StoredCell
from tsd.codec.opentsdb.row import Compaction
from tsd.store import Cell, Put, Rewrite, Row, StampedSpan

TIME_BYTES = 8  # bytes of a cell's timestamp
ALIKE_MS = 300_000  # between the newest cells of old rows that get one write time
LEAST_SPAN_CELLS = 3  # fewer are deleted by name


class RowPlan(NamedTuple):
    """Changes of one row."""

    key: bytes
    time_ms: int  # timestamp of its newest cell with points
    puts: tuple[Point, ...]
    obsolete: Sequence[Cell]  # in the order of their deletes
    newest: int  # obsolete cells with the timestamp `time_ms`
    before: tuple[int, int]  # cells, and their bytes
    after: tuple[int, int]
    identical: int  # duplicate points dropped, equal to the one kept
    variant: int
    ties: bool  # a stored cell has the column and the timestamp of a put, and another value
    kept: Sequence[Cell] = ()  # stored cells that remain, have points, and the timestamp `time_ms`

    @property
    def columns(self) -> tuple[bytes, ...]:
        """Columns of the puts."""
        return tuple([COLUMN + put.qualifier for put in self.puts])


def size_of(key: bytes, cells: Iterable[StoredCell | Point]) -> tuple[int, int]:
    """Return the number of cells, and their bytes with row key, column and timestamp each.

    >>> size_of(bytes(13), [StoredCell(b"\\0\\0", b"\\x2a", 5)])
    (1, 26)
    """
    sizes = [len(cell.qualifier) + len(cell.value) for cell in cells]
    return len(sizes), sum(sizes) + len(sizes) * (len(key) + len(COLUMN) + TIME_BYTES)


def plan_joined(row: Row, joined: tuple[bytes, bytes], totals: CellTotals) -> RowPlan:
    """Return the plan of a simple row, whose cells become one with this column and value."""
    each = len(row.key) + TIME_BYTES
    column, value = joined
    obsolete = sorted(row.cells, reverse=True)
    before = len(obsolete), totals.columns + totals.values + each * len(obsolete)
    after = 1, len(column) + len(value) + each
    puts = (Point(column[len(COLUMN) :], value),)
    return RowPlan(row.key, totals.time_ms, puts, obsolete, totals.newest, before, after, 0, 0, ties=False)


def plan_of(key: bytes, cells: Sequence[StoredCell], done: Compaction, before: tuple[int, int]) -> RowPlan:
    """Return the plan of a compaction. `before` is the size of the cells."""
    time_ms = max([cell.time_ms for cell in done.row.cells])
    obsolete = [Cell(COLUMN + cell.qualifier, *cell[1:]) for cell in sorted(done.obsolete, reverse=True)]
    newest = sum([cell.time_ms == time_ms for cell in obsolete])
    if len(obsolete) == len(cells):  # as in most rows: no cell is left, and none has a column of the merged ones
        after = size_of(key, done.merged)
        return RowPlan(
            key, time_ms, done.merged, obsolete, newest, before, after, done.row.identical, done.row.variant,
            ties=False,
        )  # fmt: skip
    changed = {cell.qualifier for cell in done.obsolete} | {cell.qualifier for cell in done.merged}
    left = [cell for cell in cells if cell.qualifier not in changed]
    holders = {cell.qualifier for cell in done.row.cells}
    # A remaining cell must be as new as the obsolete ones, so it is written again with a new timestamp.
    aged = [Point(c.qualifier, c.value) for c in left if c.qualifier in holders and c.time_ms < time_ms]
    kept = [Cell(COLUMN + c.qualifier, *c[1:]) for c in left if c.qualifier in holders and c.time_ms == time_ms]
    return RowPlan(
        key,
        time_ms,
        (*done.merged, *aged),
        obsolete,
        newest,
        before,
        size_of(key, [*left, *(StoredCell(*cell, time_ms) for cell in done.merged)]),
        done.row.identical,
        done.row.variant,
        _ties(cells, done.merged, time_ms),
        kept,
    )


def with_later_time(plan: RowPlan) -> RowPlan:
    """Return a plan that writes all cells of a row with several merged cells, with a timestamp later than those read.

    Parts of a row's points may be deleted meanwhile. Then two compactions read different points with the same newest
    timestamp, and divide them differently. Merged cells with that timestamp could each be deleted by the other
    compaction. Its deletes do not reach cells that are a millisecond later.
    """
    return plan if len(plan.puts) + len(plan.kept) < 2 else _with_time(plan, plan.time_ms + 1)


def _with_time(plan: RowPlan, time_ms: int) -> RowPlan:
    """Return a plan that writes all merged cells with a timestamp later than those read, also those that are stored.
    Its deletes reach up to that time, so they may take what another compaction wrote for the same points."""
    puts = (*plan.puts, *[Point(cell.column[len(COLUMN) :], cell.value) for cell in plan.kept])
    return plan._replace(time_ms=time_ms, puts=puts, kept=(), newest=0, ties=False)


def with_one_time(plans: Sequence[RowPlan], last_ms: int) -> list[RowPlan]:
    """Give plans of rows whose newest cells are older than `last_ms`, and `ALIKE_MS` apart at most, one write time, one
    ms after the newest of them. HBase needs a request for each time of puts and deletes, and a delete up to the ms
    before it takes all obsolete cells of a row. All rows were read later than `last_ms` by the clock that sets write
    times, so every later write is newer. A copy compares the time with those of other stores, so it stays close."""
    times: dict[int, int] = {}
    newest_ms = -1
    for time_ms in sorted({plan.time_ms for plan in plans if plan.time_ms < last_ms}, reverse=True):
        if newest_ms - time_ms > ALIKE_MS or newest_ms < 0:
            newest_ms = time_ms
        times[time_ms] = newest_ms + 1
    return [_with_time(plan, times[plan.time_ms]) if plan.time_ms in times else plan for plan in plans]


def _ties(cells: Iterable[StoredCell], puts: Iterable[Point], time_ms: int) -> bool:
    """Return whether a stored cell has the column of a put and the timestamp `time_ms`, and another value."""
    values = {put.qualifier: put.value for put in puts}
    return any(cell.time_ms == time_ms and values.get(cell.qualifier, cell.value) != cell.value for cell in cells)


def rewrites_of(plan: RowPlan, most: int) -> list[Rewrite]:
    """Return the atomic changes of a plan, in order. A plan of more than `most` cells is divided: the puts come first,
    and each later change deletes up to `most` cells for each merged one, which requires that these are stored."""
    puts = [Put(plan.key, COLUMN + put.qualifier, put.value) for put in plan.puts]
    deletes = row_deletes(plan)
    kept = [(cell.column, plan.time_ms) for cell in plan.kept]
    if len(puts) + len(deletes) <= most:
        return [Rewrite(plan.key, puts, plan.time_ms, deletes, kept)]
    merged = kept + [(put.column, plan.time_ms) for put in puts]
    each = most * max(len(merged), 1)  # the merged cells are read with each part
    parts = [deletes[at : at + each] for at in range(0, len(deletes), each)]
    first = [Rewrite(plan.key, puts, plan.time_ms, (), kept)] if puts else []
    return first + [Rewrite(plan.key, (), plan.time_ms, part, merged) for part in parts]


def row_deletes(plan: RowPlan) -> list[tuple[bytes, int]]:
    """Return the columns to delete, each with the bound of its timestamp: that of the merged cells for cells with that
    timestamp, and one ms less for older cells."""
    return [(cell.column, plan.time_ms - (cell.time_ms < plan.time_ms)) for cell in plan.obsolete]


def span_of(plan: RowPlan) -> StampedSpan | None:
    """Return the delete of all cells of a row that are older than the merged ones. None: there are few, or the row has
    other cells."""
    older = len(plan.obsolete) - plan.newest
    if older < LEAST_SPAN_CELLS or len(plan.obsolete) < plan.before[0]:
        return None
    return StampedSpan(plan.key, plan.obsolete[-1].column, plan.obsolete[0].column, plan.time_ms - 1)


def is_visible(plan: RowPlan, cells: Iterable[Cell]) -> bool:
    """Return whether a row's cells are the merged ones, with sufficient timestamps."""
    found = {cell.column: cell for cell in cells}
    for put in plan.puts:
        cell = found.get(COLUMN + put.qualifier)
        if cell is None or cell.value != put.value or cell.time_ms < plan.time_ms:
            return False
    return True


def puts_by_time(plans: Iterable[RowPlan]) -> dict[int, list[Put]]:
    """Return the merged cells by timestamp."""
    found: dict[int, list[Put]] = defaultdict(list)
    for plan in plans:
        found[plan.time_ms] += [Put(plan.key, COLUMN + put.qualifier, put.value) for put in plan.puts]
    return found


def deletes_by_time(plans: Iterable[RowPlan]) -> Mapping[int, Mapping[bytes, Collection[bytes]]]:
    """Return the columns to delete, by row, by the bound of their timestamps."""
    found: dict[int, dict[bytes, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for plan in plans:
        for column, up_to_ms in row_deletes(plan):
            found[up_to_ms][plan.key].append(column)
    return found
