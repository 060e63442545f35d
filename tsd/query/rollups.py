"""Sub queries that rollups can answer: which interval, which aggregators, and what their cells yield
(docs/compat/query.md §18)."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from tsd.codec.points import Batch, Int64, Points, starts_of
from tsd.codec.putline import HOUR_S
from tsd.errors import BadQuery
from tsd.query.buckets import has_many_steps, stable_order, steps, within
from tsd.query.calendar import EXACT, after, base, is_midnight
from tsd.query.collect import POINT_BYTES, SERIES_BYTES, Collected, PointCollector, ReadCounts, decode_page
from tsd.query.columns import SeriesColumns
from tsd.query.downsample import Downsampler, PointJoiner
from tsd.query.limits import QueryBudget, check_fetched
from tsd.query.model import Downsample, Fill, Query
from tsd.query.plan import Plan, scan_range
from tsd.query.workers import SMALL
from tsd.tables.reading import EncodedPage, RollupInterval, RollupPage, RollupSource, ScanRange, SeriesSet

RAW, NO_FALLBACK, FALLBACK, FALLBACK_RAW = "ROLLUP_RAW", "ROLLUP_NOFALLBACK", "ROLLUP_FALLBACK", "ROLLUP_FALLBACK_RAW"
_SAME = {"zimsum": "sum", "mimmax": "max", "mimmin": "min"}  # aggregators that use the cells of another
_MEAN = ("avg",)
_EXACT = frozenset({"sum", "count", "min", "max", "avg", *_SAME})  # functions of which rollups give the same answer
FOREVER_MS = 1 << 62
_TIMES = 1 << 43  # above the highest time in ms, which has 32 bits of seconds


class Cells(NamedTuple):
    """Which rollup cells are read, and how they are downsampled."""

    interval: RollupInterval
    aggregators: tuple[str, ...]
    function: str


def intervals_for(rollups: RollupSource, downsample: Downsample) -> list[RollupInterval]:
    """Return the intervals that divide a downsampler's, longest first."""
    if downsample.is_all:
        return []
    matching = [one for one in rollups.intervals if downsample.interval_ms % (one.seconds * 1000) == 0]
    return sorted(matching, key=lambda one: -one.seconds)


def cells_for(rollups: RollupSource, interval: RollupInterval, function: str) -> Cells:
    """Return what to read of an interval for a downsample function. Raise BadQuery if there are no such cells."""
    if function == "dev":
        raise BadQuery("dev cannot be computed from rollups: use rollupUsage ROLLUP_RAW")
    wanted = _aggregators_of(function)
    if not all(map(rollups.has, wanted)):
        raise BadQuery(f"No ID found mapping to aggregator: {function}")
    return Cells(interval, wanted, "sum" if function in ("count", *_MEAN) else function)


def _aggregators_of(function: str) -> tuple[str, ...]:
    """Return the aggregators whose cells a downsample function needs."""
    return ("sum", "count") if function in _MEAN else (_SAME.get(function, function),)


def rollup_range(query: Query, interval: RollupInterval, downsample: Downsample, *, rate: bool) -> ScanRange:
    """Return the rows to read: from the one that holds the start (with a rate, the one before) past the one that holds
    the end. Corrected: all of the buckets that hold either, which may be longer than a row."""
    first_s = query.start_ms // 1000
    stop_s = interval.row_start(query.end_ms // 1000 + interval.row_s)
    if not query.quirks.whole_rollup_rows:
        whole = scan_range(query.start_ms, query.end_ms, downsample, quirks=query.quirks)
        first_s, stop_s = min(first_s, whole.start_s), max(stop_s, whole.stop_s)
    start_s = interval.row_start(first_s)
    if rate:
        start_s = interval.row_start(max(start_s - 1, 0))
    return ScanRange(start_s, stop_s + 1)


class RollupQuery(NamedTuple):
    """A sub query and the rollups that may answer it."""

    query: Query
    plan: Plan
    rollups: RollupSource
    budget: QueryBudget
    read_raw: Callable[[Plan, PointCollector], Awaitable[None]]  # passes all rows of a plan to a collector

    async def collect(self) -> Collected | None:
        """Return the points of the plan's series; None if raw points must be read. Raise BadQuery, StoreError."""
        sub, rollups = self.plan.sub, self.rollups
        pre_aggregated = is_pre_aggregated(self.plan, rollups)
        if not pre_aggregated and rollups.complete_until_s(rollups.intervals[0]) is not None:
            return await self._joined()
        intervals = intervals_for(rollups, sub.downsample) if sub.downsample and sub.rollup_usage != RAW else []
        if not intervals or intervals[0].is_default:
            return await self._pre_aggregated() if pre_aggregated else None
        assert sub.downsample is not None
        tried = intervals if sub.rollup_usage == FALLBACK else intervals[:1]
        for interval in tried:
            if interval.is_default:
                break
            last = interval
            cells = cells_for(rollups, interval, sub.downsample.function)
            collected = await self._read(cells, pre_aggregated=pre_aggregated)
            if collected.counts.any():
                return collected
        if sub.rollup_usage not in (FALLBACK, FALLBACK_RAW):
            return collected
        if not self.query.quirks.fallback_interval:
            return await self._pre_aggregated() if pre_aggregated else None
        # OpenTSDB downsamples raw points with the interval of the table in which it found nothing.
        spec = sub.downsample._replace(interval_ms=last.seconds * 1000, calendar=None)
        plan = self.plan._replace(sub=replace(sub, downsample=spec))
        if pre_aggregated:
            return await self._with_plan(plan)._pre_aggregated()
        collector = PointCollector(self.query, plan, self.budget)
        await plan.selection.read(plan.rows, collector.take, annotations=not self.query.no_annotations)
        return await self._finished(collector)

    async def _joined(self) -> Collected | None:
        """Collect the rollups that are complete, and raw points for the rest of the range. None: raw points only."""
        find = partial(complete_part, self.plan, self.query, self.rollups)
        many = has_many_steps(self.plan.sub.downsample, self.plan.scan)
        part = await self.budget.workers.run(find) if many else find()
        if part is None:
            return None
        query, plan, spec = self.query, self.plan, self.plan.sub.downsample
        assert spec is not None
        bare = plan._replace(sub=replace(plan.sub, downsample=spec._replace(fill=Fill.NONE)))
        raw = PointCollector(query, bare, self.budget)
        for span in (ScanRange(plan.rows.start_s, part.span.start_s), ScanRange(part.span.stop_s, plan.rows.stop_s)):
            if span.start_s < span.stop_s:
                hours = tuple(hour for hour in plan.open_hours if span.start_s <= hour < span.stop_s)
                await self.read_raw(bare._replace(part=span, open_hours=hours), raw)
        cells = cells_for(self.rollups, part.interval, spec.function)
        stored = await self._with_plan(bare)._read(cells, span=part.span, held=raw.size)
        rest = await self._finished(raw)
        count = len(plan.selection.series.series_pairs)
        fill = None
        if spec.fill is not Fill.NONE:  # of one value in each bucket any function gives that
            filling = spec._replace(function="sum")
            fill = Downsampler(filling, query.start_ms, query.end_ms, plan.scan, quirks=query.quirks)
        points = len(stored.series.bits) + len(rest.series.bits)
        size = max(points, 0 if fill is None else fill.answer_size(count))
        self.budget.set_memory(count * SERIES_BYTES + size * POINT_BYTES)
        join = partial(_join, stored.series, rest.series, part.span, count, fill)
        series = join() if size <= SMALL else await self.budget.workers.run(join)
        counts = np.append(stored.counts, np.zeros(count - len(stored.counts), np.int64))
        counts[: len(rest.counts)] += rest.counts
        return Collected(series, counts, rest.annotations, stored.read.plus(rest.read), stored.table)

    def _with_plan(self, plan: Plan) -> "RollupQuery":
        return self._replace(plan=plan)

    async def _pre_aggregated(self) -> Collected:
        """Collect pre-aggregates that are stored like raw points."""
        collector = PointCollector(self.query, self.plan, self.budget)
        annotations = not self.query.no_annotations
        await self.rollups.read_pre_aggregated(self.plan.rows, collector.take, annotations=annotations)
        return await self._finished(collector)

    async def _finished(self, collector: PointCollector) -> Collected:
        collector.check()  # series may have rows in another table only: these are filled too
        return await collector.finished()

    async def _read(
        self, cells: Cells, *, pre_aggregated: bool = False, span: ScanRange | None = None, held: int = 0
    ) -> Collected:
        """Collect the points of one rollup table: those of a span, without one of the query's range. `held` points are
        in memory already."""
        query, plan, budget = self.query, self.plan, self.budget
        assert plan.sub.downsample is not None
        scan = rollup_range(query, cells.interval, plan.sub.downsample, rate=plan.sub.rate)
        if span is not None:
            scan = ScanRange(cells.interval.row_start(span.start_s), cells.interval.row_start(span.stop_s - 1) + 1)
        series = plan.selection.series
        points, read = RollupPoints(plan.sub.downsample, cells, query, span or scan, span), ReadCounts()
        in_thread = has_many_steps(plan.sub.downsample, scan)

        async def take(page: EncodedPage[RollupPage]) -> None:
            add = partial(points.add, series=series, read=read)
            await decode_page(page, series, budget, add, always_in_thread=in_thread)
            check()

        def check() -> None:
            check_fetched(budget.bounds, size=read.size, points=read.points)
            count = len(series.series_pairs)
            budget.set_memory(count * SERIES_BYTES + (held + points.size(count)) * POINT_BYTES)

        await self.rollups.read(cells.interval, cells.aggregators, scan, take, pre_aggregated=pre_aggregated)
        check()
        count = len(series.series_pairs)
        finish = partial(points.finish, count)
        found = finish() if points.size(count) <= SMALL else await budget.workers.run(finish)
        return Collected(found, points.counts(count), {}, read, cells.interval.name, scan)


class CompletePart(NamedTuple):
    """What rollups can answer of a sub query."""

    interval: RollupInterval
    span: ScanRange  # whole buckets, in whole hours


def complete_part(plan: Plan, query: Query, rollups: RollupSource) -> CompletePart | None:
    """Return the part of a plan that the rollups of the longest interval answer like raw points; None if there is none.

    Shorter intervals follow where a longer one has no whole bucket. Points that are not stored yet are in no rollup.
    """
    sub, scan = plan.sub, plan.scan
    spec = sub.downsample
    if spec is None or spec.function not in _EXACT or sub.rollup_usage == RAW or query.delete:
        return None
    for interval in intervals_for(rollups, spec):
        until_s = None if interval.is_default else rollups.complete_until_s(interval)
        if until_s is None or not all(map(rollups.has, _aggregators_of(spec.function))):
            continue
        within_s = ScanRange(scan.start_s, min(until_s, scan.stop_s, *plan.open_hours))
        span = _calendar_span(spec, interval, scan, within_s) if spec.calendar else _whole_span(spec, within_s)
        if span is not None and span.start_s < span.stop_s:
            return CompletePart(interval, span)
    return None


def _whole_span(spec: Downsample, within_s: ScanRange) -> ScanRange:
    """Return the whole buckets, of whole hours, of a range."""
    unit_s = math.lcm(spec.interval_ms, HOUR_S * 1000) // 1000
    return ScanRange(-(-within_s.start_s // unit_s) * unit_s, within_s.stop_s // unit_s * unit_s)


def _calendar_span(
    spec: Downsample, interval: RollupInterval, scan: ScanRange, within_s: ScanRange
) -> ScanRange | None:
    """Return the whole calendar buckets of a range. None if rollups cannot answer them. A rollup may be in two of them,
    or where they begin depends on the first point of a series."""
    buckets = spec.calendar
    assert buckets is not None
    if buckets.number != 1 or buckets.unit in EXACT:
        return None
    first_ms = base(scan.start_ms, buckets)
    edges = steps(first_ms if first_ms == scan.start_ms else after(first_ms, buckets), scan.stop_ms, buckets)
    unit_ms = math.lcm(interval.seconds, HOUR_S) * 1000
    if (edges % unit_ms).any() or not all(is_midnight(edge, buckets) for edge in edges.tolist()):
        return None
    whole = edges[edges <= within_s.stop_ms] // 1000
    return ScanRange(int(whole[0]), int(whole[-1])) if len(whole) else None


def _join(
    stored: SeriesColumns, rest: SeriesColumns, span: ScanRange, count: int, fill: Downsampler | None
) -> SeriesColumns:
    """Return the buckets of rollups of a span and those of points before and after it, those of a series in order.
    `fill` adds empty ones."""
    if fill is None and not len(rest.bits) and len(stored) == count:
        return stored
    series, times, bits = _flat(rest)
    is_before = times < span.start_ms
    parts = [
        (one[is_before], two, one[~is_before]) for one, two in zip((series, times, bits), _flat(stored), strict=True)
    ]
    series, times, bits = (np.concatenate(three) for three in parts)
    order = stable_order(series, count)  # within a series they are in order of time already
    bounds = np.searchsorted(series[order], np.arange(count + 1)).astype(np.int64)
    floats = np.ones(len(order), np.bool_)
    if fill is None:
        return SeriesColumns(Points(times[order], bits[order], floats), bounds)
    fill.feed(Batch(np.arange(count, dtype=np.int32), bounds, times[order], bits[order], floats))
    return fill.finish(count)


def _flat(columns: SeriesColumns) -> tuple[Int64, Int64, Int64]:
    """Return series, time and bits of each point."""
    series = np.repeat(np.arange(len(columns)), np.diff(columns.bounds))
    return series, columns.flat_times(), columns.bits


def is_pre_aggregated(plan: Plan, rollups: RollupSource) -> bool:
    """Return whether a sub query reads pre-aggregates."""
    return plan.sub.pre_aggregate or any(
        each.tagk == rollups.tag_key and each.type == "literal_or" and each.expression != rollups.raw_value
        for each in plan.sub.filters
    )


class RollupPoints:
    """Rollup cells → downsampled points: the values of one aggregator, or sums divided by counts."""

    def __init__(
        self, spec: Downsample, cells: Cells, query: Query, scan: ScanRange, only: ScanRange | None = None
    ) -> None:
        """`scan` is what is read. With `only`, cells outside of that span are skipped, which rows may have."""
        bare = spec._replace(function=cells.function, fill=Fill.NONE if len(cells.aggregators) > 1 else spec.fill)
        self._last = Downsampler(spec._replace(function="sum"), query.start_ms, query.end_ms, scan, quirks=query.quirks)
        self._is_bucket = bare.fill is Fill.NONE and spec.interval_ms == cells.interval.seconds * 1000
        self._parts: list[Downsampler | PointJoiner] = [
            PointJoiner()
            if self._is_bucket
            else Downsampler(bare, query.start_ms, query.end_ms, scan, quirks=query.quirks)
            for _ in cells.aggregators
        ]
        self._is_mean = self._is_bucket and len(cells.aggregators) > 1  # of cells: each is divided as it comes
        if self._is_mean:
            self._parts = [PointJoiner() if spec.fill is Fill.NONE and not spec.calendar else self._last]
        first_ms, stop_ms = (scan.start_ms, FOREVER_MS) if only is None else (only.start_ms, only.stop_ms)
        self._only = first_ms, stop_ms
        self._counts = np.zeros(0, np.int64)

    def add(self, page: RollupPage, series: SeriesSet, read: ReadCounts) -> None:
        """Add the next page."""
        batches = [within(batch, self._only) for batch in page.batches]
        if len(batches) > 1:
            batches = [_shared(batch, other) for batch, other in zip(batches, reversed(batches), strict=True)]
        self._counts = np.append(self._counts, np.zeros(max(len(series.series_pairs) - len(self._counts), 0), int))
        for batch in batches:
            np.add.at(self._counts, batch.series, np.diff(batch.starts))
            read.points += len(batch.times)
        if self._is_mean:
            batches = [within(_mean(*batches), self._last.span)]
        for part, batch in zip(self._parts, batches, strict=True):
            part.feed(_as_doubles(batch) if self._is_bucket else batch)
        read.rows_read += page.rows_read
        read.size += page.size
        read.duplicates += page.duplicates
        read.warn(page.warnings)

    def counts(self, series: int) -> Int64:
        """Return how many points were read of each series."""
        return np.append(self._counts, np.zeros(series - len(self._counts), np.int64))

    def size(self, series: int) -> int:
        """Return the number of values kept, or returned at the end."""
        parts = self._parts if len(self._parts) == 1 else [*self._parts, self._last]
        return sum(part.size(series) for part in parts)

    def finish(self, series: int) -> SeriesColumns:
        """Return the points of each series."""
        if len(self._parts) == 1:
            return self._parts[0].finish(series)
        sums, counts = (part.finish(series) for part in self._parts)
        self._last.feed(_quotients(sums, counts))  # one value in each bucket: this only fills
        return self._last.finish(series)


def _quotients(sums: SeriesColumns, counts: SeriesColumns) -> Batch:
    """Divide the sums of each series by its counts, at the times that have both."""
    times = sums.flat_times()
    if not np.array_equal(sums.bounds, counts.bounds) or not np.array_equal(times, counts.flat_times()):
        return _batch([_quotient(one, other) for one, other in zip(sums, counts, strict=True)])
    with np.errstate(all="ignore"):
        values = sums.bits.view(np.float64) / counts.bits.view(np.float64)
    every = np.arange(len(sums), dtype=np.int32)
    return Batch(every, sums.bounds, times, values.view(np.int64), np.ones(len(times), np.bool_))


def _mean(sums: Batch, counts: Batch) -> Batch:
    """Divide sums by counts that are at the same places."""
    with np.errstate(all="ignore"):
        values = _as_doubles(sums).bits.view(np.float64) / _as_doubles(counts).bits.view(np.float64)
    return sums._replace(bits=values.view(np.int64), floats=np.ones(len(values), np.bool_))


def _quotient(sums: Points, counts: Points) -> Points:
    """Divide sums by counts, at the times that have both."""
    _, one, other = np.intersect1d(sums.times, counts.times, assume_unique=True, return_indices=True)
    with np.errstate(all="ignore"):
        values = sums.doubles()[one] / counts.doubles()[other]
    return Points(sums.times[one], values.view(np.int64), np.ones(len(one), np.bool_))


def _as_doubles(batch: Batch) -> Batch:
    """Return a batch with doubles, as downsampling yields them."""
    if batch.floats.all():
        return batch
    bits = Points(batch.times, batch.bits, batch.floats).doubles().view(np.int64)
    return batch._replace(bits=bits, floats=np.ones(len(bits), np.bool_))


def _shared(batch: Batch, other: Batch) -> Batch:
    """Return the points of a batch that the other also has: a sum without its count gives no mean."""
    if batch.has_places_of(other):
        return batch
    kept = np.isin(_places(batch), _places(other))
    return Batch(batch.series, starts_of(kept)[batch.starts], batch.times[kept], batch.bits[kept], batch.floats[kept])


def _places(batch: Batch) -> Int64:
    """Return a number for the series and time of each point."""
    places: Int64 = np.repeat(batch.series.astype(np.int64), np.diff(batch.starts)) * _TIMES + batch.times
    return places


def _batch(series: Sequence[Points]) -> Batch:
    sizes = [len(points.times) for points in series]
    none: Int64 = np.empty(0, np.int64)
    return Batch(
        np.arange(len(series), dtype=np.int32),
        starts_of(sizes),
        np.concatenate([none, *(points.times for points in series)]),
        np.concatenate([none, *(points.bits for points in series)]),
        np.ones(sum(sizes), np.bool_),
    )
