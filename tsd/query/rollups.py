"""Sub queries whose downsampler can be told from rollups: which table, which cells, and what they come to (query.md
§18)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from tsd.codec.cell import COLUMN
from tsd.codec.merge import READABLE
from tsd.codec.rollup import Interval, rollup_base
from tsd.codec.rowkey import Layout
from tsd.codec.words import FLOAT, LENGTH, decode_number
from tsd.errors import BadLine, BadQuery
from tsd.query.downsample import Downsampler
from tsd.query.gathering import MOST_WARNINGS, POINT_BYTES, SERIES_BYTES, SMALL, SMALL_PAGE, Gathered, Gathering, Tally
from tsd.query.limits import Allowance, check_fetched
from tsd.query.model import Downsample, Fill, Query
from tsd.query.plan import Plan
from tsd.query.points import Batch, Int64, Points
from tsd.query.ranges import ScanRange, scan_range
from tsd.query.reading import key_ranges, read_ranges
from tsd.query.selecting import UNWANTED, Selection
from tsd.rollups import Rollups
from tsd.store import Store
from tsd.store.cells import CellPage

RAW, NO_FALLBACK, FALLBACK, FALLBACK_RAW = "ROLLUP_RAW", "ROLLUP_NOFALLBACK", "ROLLUP_FALLBACK", "ROLLUP_FALLBACK_RAW"
_SAME = {"zimsum": "sum", "mimmax": "max", "mimmin": "min"}  # whose cells serve for whom
_MEAN = ("avg",)
_TIMES = 1 << 43  # more than there are: ms of 32 bits of seconds
_FLAGS = FLOAT | LENGTH


class Cells(NamedTuple):
    """Which cells of a rollup table are read, and what becomes of them."""

    interval: Interval
    table: str
    columns: tuple[tuple[bytes, ...], ...]  # how the columns of each aggregator that is read may start
    function: str  # that points are downsampled with


def intervals_for(rollups: Rollups, downsample: Downsample) -> list[Interval]:
    """The intervals that divide a downsampler's, longest first."""
    if downsample.is_all:
        return []
    matching = [one for one in rollups.config.intervals if downsample.interval_ms % (one.seconds * 1000) == 0]
    return sorted(matching, key=lambda one: -one.seconds)


def cells_for(rollups: Rollups, interval: Interval, function: str, *, grouped: bool) -> Cells:
    """What to read of an interval for a downsample function; raises BadQuery where it has no cells."""
    table = interval.pre_aggregate_table if grouped else interval.table
    if function == "dev":
        raise BadQuery("dev cannot be told from rollups: ask for it with rollupUsage ROLLUP_RAW")
    wanted = ("sum", "count") if function in _MEAN else (_SAME.get(function, function),)
    try:
        ids = [rollups.config.id_of(name) for name in wanted]
    except BadLine as exc:
        raise BadQuery(f"No ID found mapping to aggregator: {function}") from exc
    starts = tuple(
        (COLUMN + bytes((number,)), COLUMN + name.encode() + b":") for number, name in zip(ids, wanted, strict=True)
    )
    return Cells(interval, table, starts, "sum" if function in ("count", *_MEAN) else function)


def rollup_range(query: Query, interval: Interval, downsample: Downsample, *, rate: bool) -> ScanRange:
    """The rows that are read: from the one that holds the start (with a rate, the one before) past the one that holds
    the end. Corrected: all of the buckets that hold either, which may be longer than a row."""
    first_s = query.start_ms // 1000
    stop_s: int = rollup_base(query.end_ms // 1000 + interval.per_row * interval.seconds, interval)
    if query.corrected:
        whole = scan_range(query.start_ms, query.end_ms, downsample, corrected=True)
        first_s, stop_s = min(first_s, whole.start_s), max(stop_s, whole.stop_s)
    start_s = rollup_base(first_s, interval)
    if rate:
        start_s = rollup_base(max(start_s - 1, 0), interval)
    return ScanRange(start_s, stop_s + 1)


class RollupReader:
    """Reads what a sub query wants out of rollups and pre-aggregates."""

    def __init__(self, store: Store, table: str, layout: Layout, rollups: Rollups) -> None:
        """`table` is the raw one."""
        self._store = store
        self._table = table
        self._layout = layout
        self._rollups = rollups

    async def gather(self, query: Query, plan: Plan, selection: Selection, allowance: Allowance) -> Gathered | None:
        """The points of the plan's series; None where the raw ones are to be read as they were asked for. Raises
        BadQuery, StoreError."""
        sub = plan.sub
        grouped = is_grouped(plan, self._rollups)
        intervals = intervals_for(self._rollups, sub.downsample) if sub.downsample and sub.rollup_usage != RAW else []
        if not intervals or intervals[0].is_default:
            table = self._rollups.config.default.pre_aggregate_table
            return await self._raw(query, plan, selection, allowance, table) if grouped else None
        assert sub.downsample is not None
        tried = intervals if sub.rollup_usage == FALLBACK else intervals[:1]
        for interval in tried:
            if interval.is_default and not grouped:
                break
            last = interval
            cells = cells_for(self._rollups, interval, sub.downsample.function, grouped=grouped)
            gathered = await self._read(query, plan, selection, allowance, cells)
            if any(gathered.counts):
                return gathered
        if sub.rollup_usage not in (FALLBACK, FALLBACK_RAW):
            return gathered
        if query.corrected:
            return None
        # OpenTSDB downsamples raw points with the interval of the table in which it found nothing.
        spec = sub.downsample._replace(interval_ms=last.seconds * 1000, calendar=None)
        plan = plan._replace(sub=replace(sub, downsample=spec))
        return await self._raw(query, plan, selection, allowance, self._table)

    async def _raw(self, query: Query, plan: Plan, selection: Selection, allowance: Allowance, table: str) -> Gathered:
        """Points that are stored as raw ones are, of another table or otherwise downsampled."""
        gathering = Gathering(query, plan, selection, self._layout, allowance)
        ranges = key_ranges(self._layout, plan)
        await read_ranges(self._store, table, ranges, gathering.take, at_once=1)
        gathering.check()  # series that another table had may have no row here: they are filled, too
        if max(gathering.tally.points, gathering.size) <= SMALL:
            return gathering.finish()
        return await allowance.threads.run(gathering.finish)

    async def _read(
        self, query: Query, plan: Plan, selection: Selection, allowance: Allowance, cells: Cells
    ) -> Gathered:
        """The points of one rollup table."""
        assert plan.sub.downsample is not None
        scan = rollup_range(query, cells.interval, plan.sub.downsample, rate=plan.sub.rate)
        summing = Summing(plan.sub.downsample, cells, query, scan)
        tally = Tally()
        start = self._layout.pairs_start

        async def take(page: CellPage) -> None:
            await selection.meet({key[start:] for key in page.keys})
            work = partial(summing.take, page, selection, self._layout, tally)
            if len(page.keys) <= SMALL_PAGE:
                work()
            else:
                await allowance.threads.run(work)
            check()

        def check() -> None:
            check_fetched(allowance.bounds, size=tally.size, points=tally.points)
            count = len(selection.wanted)
            allowance.hold(count * SERIES_BYTES + summing.size(count) * POINT_BYTES)

        await read_ranges(self._store, cells.table, key_ranges(self._layout, plan._replace(scan=scan)), take, at_once=1)
        check()
        count = len(selection.wanted)
        finish = partial(summing.finish, count)
        series = finish() if summing.size(count) <= SMALL else await allowance.threads.run(finish)
        return Gathered(series, summing.counts(count), {}, tally, [], cells.table, scan)


def is_grouped(plan: Plan, rollups: Rollups) -> bool:
    """Whether a sub query is about pre-aggregates."""
    tag_key, raw = rollups.tag_key.decode("latin-1"), rollups.raw_value.decode("latin-1")
    return plan.sub.pre_aggregate or any(
        each.tagk == tag_key and each.type == "literal_or" and each.expression != raw for each in plan.sub.filters
    )


class Summing:
    """Rollup cells as they come → downsampled points: what one aggregator's cells say, or sums through counts."""

    def __init__(self, spec: Downsample, cells: Cells, query: Query, scan: ScanRange) -> None:
        self._cells = cells
        bare = spec._replace(function=cells.function, fill=Fill.NONE if len(cells.columns) > 1 else spec.fill)
        self._last = Downsampler(
            spec._replace(function="sum"), query.start_ms, query.end_ms, scan, corrected=query.corrected
        )
        self._parts = [
            Downsampler(bare, query.start_ms, query.end_ms, scan, corrected=query.corrected) for _ in cells.columns
        ]
        self._counts = np.zeros(0, np.int64)

    def take(self, page: CellPage, selection: Selection, layout: Layout, tally: Tally) -> None:
        """Take in the next page, whose series have been met."""
        batches = [
            batch_of(page, selection.numbers, layout, self._cells.interval, starts, tally)
            for starts in self._cells.columns
        ]
        if len(batches) > 1:
            batches = [_shared(batch, other) for batch, other in zip(batches, reversed(batches), strict=True)]
        for part, batch in zip(self._parts, batches, strict=True):
            part.feed(batch)
            self._counts = np.append(self._counts, np.zeros(max(len(selection.wanted) - len(self._counts), 0), int))
            np.add.at(self._counts, batch.series, np.diff(batch.starts))
            tally.points += len(batch.times)
        tally.rows_read += len(set(page.keys))

    def counts(self, series: int) -> list[int]:
        """How many points were read of each series."""
        found: list[int] = self._counts.tolist()
        return found + [0] * (series - len(found))

    def size(self, series: int) -> int:
        """How many values are kept, or will be in the end."""
        parts = self._parts if len(self._parts) == 1 else [*self._parts, self._last]
        return sum(part.size(series) for part in parts)

    def finish(self, series: int) -> list[Points]:
        """The points of each series."""
        if len(self._parts) == 1:
            return self._parts[0].finish(series)
        sums, counts = (part.finish(series) for part in self._parts)
        quotients = [_quotient(one, other) for one, other in zip(sums, counts, strict=True)]
        self._last.feed(_batch(quotients))  # one value in each bucket: only its fill is wanted
        return self._last.finish(series)


def _quotient(sums: Points, counts: Points) -> Points:
    """Sums through counts, at the times that have both."""
    _, one, other = np.intersect1d(sums.times, counts.times, assume_unique=True, return_indices=True)
    with np.errstate(all="ignore"):
        values = sums.doubles()[one] / counts.doubles()[other]
    return Points(sums.times[one], values.view(np.int64), np.ones(len(one), np.bool_))


def _shared(batch: Batch, other: Batch) -> Batch:
    """The points of a batch that have one in the other: a sum without its count tells no mean."""
    kept = np.isin(_places(batch), _places(other))
    before: Int64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)))
    return Batch(batch.series, before[batch.starts], batch.times[kept], batch.bits[kept], batch.floats[kept])


def _places(batch: Batch) -> Int64:
    """A number for the series and the time of each point."""
    places: Int64 = np.repeat(batch.series.astype(np.int64), np.diff(batch.starts)) * _TIMES + batch.times
    return places


def _batch(series: Sequence[Points]) -> Batch:
    sizes = [len(points.times) for points in series]
    none: Int64 = np.empty(0, np.int64)
    return Batch(
        np.arange(len(series), dtype=np.int32),
        np.cumsum([0, *sizes], dtype=np.int64),
        np.concatenate([none, *(points.times for points in series)]),
        np.concatenate([none, *(points.bits for points in series)]),
        np.ones(sum(sizes), np.bool_),
    )


def batch_of(
    page: CellPage,
    numbers_of: Mapping[bytes, int],
    layout: Layout,
    interval: Interval,
    starts: tuple[bytes, ...],
    tally: Tally,
) -> Batch:
    """The points of one aggregator in a page of a rollup table, row by row; `numbers_of` are series by their pairs.

    Of several for one interval the newest counts; cells that hold no number are told of in `tally`.
    """
    series: list[int] = []
    row_starts: list[int] = []
    times: list[int] = []
    numbers: list[int | float] = []
    row = b""
    newest: dict[int, tuple[int, int | float]] = {}  # offset → written when, and what

    def close() -> None:
        base = int.from_bytes(row[layout.metric_end : layout.pairs_start], "big")
        series.append(numbers_of[row[layout.pairs_start :]])
        row_starts.append(len(times))
        for offset in sorted(newest):
            times.append((base + offset * interval.seconds) * 1000)
            numbers.append(newest[offset][1])
        newest.clear()

    for at, (key, column) in enumerate(zip(page.keys, page.columns, strict=True)):
        if key != row:
            if newest:
                close()
            row = key
        if column[:-2] not in starts or numbers_of[key[layout.pairs_start :]] == UNWANTED:
            continue
        cell = page.cell(at)
        number = int.from_bytes(column[-2:], "big")
        try:
            value = _number(number & _FLAGS, cell.value)
        except ValueError as exc:
            if len(tally.warnings) < MOST_WARNINGS:
                tally.warnings.append(f"rollup {column.hex()} in row {key.hex()}: {exc}")
            continue
        tally.size += len(cell.column) + len(cell.value)
        before = newest.get(number >> 4)
        tally.duplicates += before is not None
        if before is None or cell.time_ms >= before[0]:
            newest[number >> 4] = cell.time_ms, value
    if newest:
        close()
    return _points(series, [*row_starts, len(times)], times, numbers)


def _number(flags: int, value: bytes) -> int | float:
    if flags not in READABLE or len(value) != (flags & LENGTH) + 1:
        raise ValueError(f"flags {flags} and {len(value)} bytes fit no number")
    return decode_number(flags, value)


def _points(series: list[int], starts: list[int], times: list[int], numbers: list[int | float]) -> Batch:
    floats = np.fromiter((isinstance(number, float) for number in numbers), np.bool_, len(numbers))
    integers = np.fromiter((0 if isinstance(one, float) else one for one in numbers), np.int64, len(numbers))
    doubles = np.fromiter((float(one) for one in numbers), np.float64, len(numbers))
    return Batch(
        np.array(series, np.int32),
        np.array(starts, np.int64),
        np.array(times, np.int64),
        np.where(floats, doubles.view(np.int64), integers),
        floats,
    )
