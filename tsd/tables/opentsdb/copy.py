"""Copy of all tables of a store to another: names, then rows, then names assigned in the meantime.

Names keep their UIDs, so that rows are copied unchanged. A target with other names under the same UIDs is refused. The
target's UID counters are raised to the source's first, so that no daemon there assigns a UID that is about to be
copied; they are never lowered.

Rows are copied cell by cell, with their timestamps: cells that the target lacks are put and then read back. A cell
that is newer in the target is kept, so after repeated copies the newer of two values remains. Nothing is deleted:
cells deleted in the source since an earlier copy remain in the target.

On Cassandra a compaction deletes all cells of a row that are older than the merged one, also those that come later. So
cells get new timestamps there, in the order of their own. Of a row that the target has, only those points are put that
it lacks, or has older values of. Of two values of one time only the newer one is put.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import data_cells, points
from tsd.codec.opentsdb.uid import COUNTER_ROW, ID_FAMILY, NAME_FAMILY, decode_counter
from tsd.codec.text import show_signed
from tsd.errors import CorruptRow, TsdError
from tsd.store import Cell, Page, Put, Row, Store, scan
from tsd.store.retry import run_bounded
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.opentsdb.rollup_progress import Changing, unobserved

PAGE_ROWS = 1000  # with one cell per point up to 360,000 cells; three pages are in memory
CONCURRENT_PUTS = 4  # with different timestamps
NEXT_MS_S = 0.002  # after which a write timestamp is a later millisecond
EXAMPLES = 10
NEWEST = MergeRules(fix_duplicates=True)

Existing: TypeAlias = Mapping[bytes, Sequence[Cell]]  # cells in the target, by row key


class CopyStats(NamedTuple):
    """Result of copying rows."""

    rows: int = 0
    cells: int = 0
    put: int = 0  # cells that were new in the target
    hidden: int = 0  # rows whose put cells are not visible in the target
    examples: tuple[bytes, ...] = ()  # keys of the first of these rows

    def plus(self, more: "CopyStats") -> "CopyStats":
        """Return the sum."""
        return CopyStats(
            self.rows + more.rows,
            self.cells + more.cells,
            self.put + more.put,
            self.hidden + more.hidden,
            (self.examples + more.examples)[:EXAMPLES],
        )


class TableRef(NamedTuple):
    """A table of a store."""

    store: Store
    table: str
    changing: Changing = unobserved  # around puts
    prepare: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint  # before a page of rows is put


async def copy_rows(rows: Sequence[Row], existing: Existing, target: TableRef) -> CopyStats:
    """Put the cells of `rows` that are missing in `existing`, and read them back. Raise StoreError."""
    stamps_anew = target.store.capabilities.hides_for_days
    choose = _newer_cells if stamps_anew else _missing_in
    changed = [Row(row.key, cells) for row in rows if (cells := choose(row, existing.get(row.key, ())))]
    keys = [row.key for row in changed]
    if changed:
        async with target.changing(keys):
            await (_put_in_order if stamps_anew else _put_as_stamped)(changed, target)
    shown = await target.store.get(target.table, keys) if changed else {}
    hidden = [row.key for row in changed if not _is_visible(row, shown.get(row.key, ()))]
    return CopyStats(
        rows=len(rows),
        cells=sum(len(row.cells) for row in rows),
        put=sum(len(row.cells) for row in changed),
        hidden=len(hidden),
        examples=tuple(hidden[:EXAMPLES]),
    )


async def _put_as_stamped(rows: Sequence[Row], target: TableRef) -> None:
    """Put cells with their timestamps."""
    by_time: dict[int, list[Put]] = {}
    for key, cells in rows:
        for cell in cells:
            by_time.setdefault(cell.time_ms, []).append(Put(key, cell.column, cell.value))

    async def put(part: tuple[int, list[Put]]) -> None:
        await target.store.put(target.table, part[1], time_ms=part[0])

    await run_bounded(by_time.items(), put, limit=CONCURRENT_PUTS)


async def _put_in_order(rows: Sequence[Row], target: TableRef) -> None:
    """Put cells with new timestamps, in the order of their old ones within each row; those of equal ones together."""
    steps: dict[int, list[Put]] = {}
    for key, cells in rows:
        ranks = {time_ms: rank for rank, time_ms in enumerate(sorted({cell.time_ms for cell in cells}))}
        for cell in sorted(cells):
            steps.setdefault(ranks[cell.time_ms], []).append(Put(key, cell.column, cell.value))
    for rank in sorted(steps):
        if rank:
            await trio.sleep(NEXT_MS_S)
        await target.store.put(target.table, steps[rank])


def _missing_in(row: Row, existing: Sequence[Cell]) -> list[Cell]:
    return _missing_cells(row.cells, existing)


def _newer_cells(row: Row, existing: Sequence[Cell]) -> list[Cell]:
    """Return the cells to put into a row with `existing` cells, so that it has the newer of two values. Their points
    may be in other cells. No two have points of one time: after an interruption the older one would count as new."""
    missing = _missing_cells(row.cells, existing)
    if not missing or not all(cell.column.startswith(COLUMN) for cell in missing):
        return missing
    joined = {cell.column: cell for cell in [*existing, *missing]}
    try:
        wanted = points(row.key, data_cells(joined.values()), NEWEST)
        if not existing and sum(len(points(row.key, data_cells([cell]), NEWEST)) for cell in missing) == len(wanted):
            return missing
        has = set(points(row.key, data_cells(existing), NEWEST))
        others = [cell for cell in missing if not _has_points(row.key, cell)]
    except CorruptRow:
        return missing
    time_ms = max(cell.time_ms for cell in missing)
    return [*others, *(Cell(COLUMN + one.qualifier, one.value, time_ms) for one in wanted if one not in has)]


def _missing_cells(cells: Sequence[Cell], existing: Sequence[Cell]) -> list[Cell]:
    """Return the cells that are missing or older in the target."""
    if not existing:
        return list(cells)
    by_column = {cell.column: cell for cell in existing}
    return [cell for cell in cells if (old := by_column.get(cell.column)) is None or _is_older(old, cell)]


def _is_older(old: Cell, new: Cell) -> bool:
    return old.time_ms < new.time_ms or (old.time_ms == new.time_ms and old.value != new.value)


def _is_visible(put: Row, existing: Sequence[Cell]) -> bool:
    """Return whether a reader of the target finds the put cells or newer ones.

    In HBase the marker of an earlier delete may hide a cell, for example if the target compacted the row after an
    earlier copy. That does no harm if the row has the same points without the cell.
    """
    hidden = _missing_cells(put.cells, existing)
    if not hidden:
        return True
    shown = {cell.column: cell for cell in existing}
    try:
        return points(put.key, data_cells({**shown, **{cell.column: cell for cell in hidden}}.values()), NEWEST) == (
            points(put.key, data_cells(existing), NEWEST)
        ) and all(_has_points(put.key, cell) for cell in hidden)
    except CorruptRow:
        return False


def _has_points(key: bytes, cell: Cell) -> bool:
    return bool(points(key, data_cells([cell]), NEWEST))


async def copy_table(
    source: TableRef,
    target: TableRef,
    start: bytes,
    stop: bytes | None,
    on_page: Callable[[CopyStats, Page], Awaitable[None]],
) -> None:
    """Copy the rows from `start` to before `stop` (None: the end). `on_page` is called after each page, while the next
    one is read. Rows written before the current position are missed. Raise TsdError."""
    send, receive = trio.open_memory_channel[Page | TsdError](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_rows, source, start, stop, send)
        error = await _write(receive, target, on_page)
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


async def _read_rows(
    source: TableRef, start: bytes, stop: bytes | None, pages: trio.MemorySendChannel[Page | TsdError]
) -> None:
    async with pages:
        at: bytes | None = start
        while at is not None:
            try:
                page = await source.store.page(source.table, at, stop, limit=PAGE_ROWS)
            except TsdError as exc:
                await pages.send(exc)
                return
            await pages.send(page)
            at = page.next_start


async def _write(
    pages: trio.MemoryReceiveChannel[Page | TsdError],
    target: TableRef,
    on_page: Callable[[CopyStats, Page], Awaitable[None]],
) -> TsdError | None:
    """Copy pages; return the error that ended this early, if any."""
    async for page in pages:
        if isinstance(page, TsdError):
            return page
        try:
            await target.prepare()
            existing = await target.store.get(target.table, [row.key for row in page.rows]) if page.rows else {}
            await on_page(await copy_rows(page.rows, existing, target), page)
        except TsdError as exc:
            return exc
    return None


SHOWN = 10  # conflicts listed in the error


class NamesDiffer(TsdError):
    """The target has other names under the same UIDs."""


async def copy_names(source: TableRef, target: TableRef) -> CopyStats:
    """Copy the UID table. Raise NamesDiffer, before any write unless a daemon assigns UIDs at the same time; CorruptRow
    for an invalid counter; StoreError."""
    await check_names(source, target)
    await _raise_counters(source, target)
    total = CopyStats()
    async with aclosing(scan(source.store, source.table, limit=PAGE_ROWS)) as pages:
        async for rows in pages:
            total = total.plus(await _copy_page(rows, target))
    return total


class _Names:
    """Copies names, and again before rows that may have new ones: a copy may be killed after any row, and a daemon of
    the target would assign their UIDs to other names."""

    def __init__(self, source: TableRef, target: TableRef) -> None:
        self._source = source
        self._target = target
        self._counters: Mapping[bytes, int] = {}
        self.copied = CopyStats()

    async def copy(self) -> None:
        """Copy all names. Raise as `copy_names` does."""
        self._counters = await _counters(self._source)
        copied = await copy_names(self._source, self._target)
        again = self.copied.rows > 0
        self.copied = self.copied.plus(copied._replace(rows=0, cells=copied.put) if again else copied)

    async def copy_new(self) -> None:
        """Copy all names if the source has assigned UIDs since. Raise as `copy_names` does."""
        if await _counters(self._source) != self._counters:
            await self.copy()


async def _copy_page(rows: Sequence[Row], target: TableRef) -> CopyStats:
    keys = [row.key for row in rows]
    existing = await target.store.get(target.table, keys)
    _refuse(list(_conflicts(rows, existing)))
    copied = await copy_rows(list(_without_counters(rows)), existing, target)
    _refuse(list(_conflicts(rows, await target.store.get(target.table, keys))))
    return copied


async def check_names(source: TableRef, target: TableRef) -> None:
    """Raise NamesDiffer if a name has another UID in the target, or a UID another name."""
    found: list[str] = []
    async with aclosing(scan(source.store, source.table, limit=PAGE_ROWS)) as pages:
        async for rows in pages:
            found += _conflicts(rows, await target.store.get(target.table, [row.key for row in rows]))
            if len(found) > SHOWN:
                break
    _refuse(found)


def _refuse(found: Sequence[str]) -> None:
    if found:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise NamesDiffer("the target has other names under the same UIDs: " + "; ".join([*found[:SHOWN], *more]))


def _conflicts(rows: Sequence[Row], existing: Existing) -> Iterator[str]:
    for row in _without_counters(rows):
        by_column = {cell.column: cell.value for cell in existing.get(row.key, ())}
        for cell in row.cells:
            theirs = by_column.get(cell.column, cell.value)
            if _is_mapping(cell.column) and theirs != cell.value:
                yield _conflict(row.key, cell, theirs)


def _is_mapping(column: bytes) -> bool:
    """Return whether a column maps a name to its UID or back. Other columns of the families hold metadata."""
    return column.startswith((ID_FAMILY + b":", NAME_FAMILY + b":")) and not column.endswith(b"_meta")


def _conflict(key: bytes, cell: Cell, theirs: bytes) -> str:
    family, _, kind = cell.column.partition(b":")
    if family == ID_FAMILY:
        name = key.decode("latin-1")
        uids = f"{show_signed(cell.value)} in the source and {show_signed(theirs)} in the target"
        return f"{kind.decode('latin-1')} {name} is {uids}"
    ours, other = cell.value.decode("latin-1"), theirs.decode("latin-1")
    return f"{kind.decode('latin-1')} {show_signed(key)} is {ours} in the source and {other} in the target"


def _without_counters(rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        if row.key != COUNTER_ROW:
            yield row
        elif cells := [cell for cell in row.cells if not cell.column.startswith(ID_FAMILY + b":")]:
            yield Row(row.key, cells)


async def _raise_counters(source: TableRef, target: TableRef) -> None:
    ours, theirs = await _counters(source), await _counters(target)
    for column, number in ours.items():
        if number > theirs.get(column, 0):
            await target.store.increment(target.table, COUNTER_ROW, column, number - theirs.get(column, 0))


async def _counters(place: TableRef) -> dict[bytes, int]:
    cells = (await place.store.get(place.table, [COUNTER_ROW])).get(COUNTER_ROW, [])
    try:
        return {cell.column: decode_counter(cell.value) for cell in cells if cell.column.startswith(ID_FAMILY + b":")}
    except ValueError as exc:
        raise CorruptRow(f"UID table {place.table}: {exc}; repair it with `tsd uid fsck`") from exc


class Mark(NamedTuple):
    """Progress of one table: all its rows up to `last` are copied, read back and synced."""

    last: bytes  # last copied row; if the target lacks it, the checkpoint is for another target
    next_start: bytes | None  # None: all rows are copied


class CopyProgress:
    """The marks of all tables, saved in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Load the marks of an earlier run. Raise TsdError."""
        self._checkpoint = checkpoint
        self._marks: dict[str, Mark] = {}
        try:
            for table, (last, next_start) in (checkpoint.load() or {}).items():
                self._marks[table] = Mark(
                    bytes.fromhex(last), None if next_start is None else bytes.fromhex(next_start)
                )
        except (ValueError, TypeError):  # damaged
            self._marks.clear()

    def mark(self, table: str) -> Mark | None:
        """Return the mark of a table, None if it has none."""
        return self._marks.get(table)

    def save(self, table: str, mark: Mark) -> None:
        """Save the mark of a table. Raise TsdError."""
        self._marks[table] = mark
        self._checkpoint.save(
            {
                name: (last.hex(), None if next_start is None else next_start.hex())
                for name, (last, next_start) in self._marks.items()
            }
        )

    def clear(self) -> None:
        """Remove the marks: the copy is complete, and the next one starts at the first row."""
        self._marks.clear()
        self._checkpoint.clear()


SAVE_S = 1.0  # shortest interval between saves: each save syncs the target


class TablePair(NamedTuple):
    """A table's name in the source and in the target."""

    source: str
    target: str


class CopyJob(NamedTuple):
    """Stores and tables to copy."""

    source: Store
    target: Store
    names: TablePair  # the UID table
    rows: TablePair  # the data table
    others: Sequence[TablePair] = ()  # skipped if missing in the source
    changing: Changing = unobserved  # around puts into the target's data table

    def refs(self, pair: TablePair) -> tuple[TableRef, TableRef]:
        """Return a table in the source and in the target."""
        return TableRef(self.source, pair.source), TableRef(self.target, pair.target)


async def copy_store(job: CopyJob, progress: CopyProgress, on_rows: Callable[[str, int], None]) -> CopyStats:
    """Copy what the source has at the start. Rows that an earlier run copied are copied again, last. `on_rows` is
    called with a table and a number of copied rows. The target's tables must exist. Raise TsdError; the next run
    resumes."""
    present = await job.source.tables()
    names = _Names(*job.refs(job.names))
    await names.copy()
    source, target = job.refs(job.rows)
    target = target._replace(changing=job.changing, prepare=names.copy_new)
    total = await _copy_rest(source, target, progress, on_rows)
    for pair in (other for other in job.others if other.source in present):
        source, target = job.refs(pair)
        total = total.plus(await _copy_rest(source, target._replace(prepare=names.copy_new), progress, on_rows))
    await names.copy()  # random UIDs have no counter
    await job.target.sync()
    progress.clear()
    return total.plus(names.copied)


async def _copy_rest(
    source: TableRef, target: TableRef, progress: CopyProgress, on_rows: Callable[[str, int], None]
) -> CopyStats:
    """Copy the rows of a table after its mark, then those before it, which may have changed since the earlier run."""
    total = CopyStats()
    saved_s = -math.inf

    async def on_page(copied: CopyStats, page: Page, *, save: bool) -> None:
        nonlocal total, saved_s
        total = total.plus(copied)
        on_rows(source.table, copied.rows)
        is_due = page.next_start is None or trio.current_time() - saved_s >= SAVE_S
        if save and page.rows and is_due:
            await target.store.sync()
            progress.save(source.table, Mark(page.rows[-1].key, page.next_start))
            saved_s = trio.current_time()

    start = await _resume_row(target, progress.mark(source.table))
    await copy_table(source, target, start, None, partial(on_page, save=True))
    if start:
        await copy_table(source, target, b"", start, partial(on_page, save=False))
    return total


async def _resume_row(target: TableRef, mark: Mark | None) -> bytes:
    """Return the row to resume from. It is the first row if there is no mark, the table is complete, or the target
    lacks the marked row."""
    if mark is None or mark.next_start is None or not await target.store.get(target.table, [mark.last]):
        return b""
    return mark.next_start
