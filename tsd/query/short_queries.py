"""Answers repeated queries of few series within one step of the event loop, or with one read or one call of a thread.

The general path (`tsd.query.engine`) answers a query first; the rows of few series are read here. If nothing is
unusual, the access path to its rows is kept, without any points. The next such query reads these rows, and downsamples
and merges them by the same functions. A query that is answered in one step needs no slot, deadline or cancel scope,
because nothing else runs meanwhile. Unusual queries are left to the general path: `answer` returns None then, and has
changed nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from tsd.codec.points import NO_POINTS, Batch, Columns, Points, doubles_as_points
from tsd.codec.putline import HOUR_MS, HOUR_S
from tsd.errors import BadQuery, StoreError
from tsd.query.assemble import answer_bytes
from tsd.query.buckets import buckets_of, has_many_steps, within
from tsd.query.cached_reader import CachedReader
from tsd.query.collect import POINT_BYTES, SERIES_BYTES, ReadCounts
from tsd.query.columns import Chosen
from tsd.query.downsample import Downsampler
from tsd.query.few_series import FewSeries, Known, KnownGroup, OnlyTexts, known_answer, stats_of
from tsd.query.joint import JointRead
from tsd.query.later_hours import LaterReads, is_settled
from tsd.query.limits import UNBOUNDED, Bounds, Limits, MemoryShare, QueryBudget, QueryMemory, check_fetched
from tsd.query.merge import keeps_only, merge, merge_only, rate
from tsd.query.model import Fill, Query, SubQuery
from tsd.query.open_series import HourPoints, open_series_of
from tsd.query.plan import Plan, range_to_end, scan_range
from tsd.query.result import Answer, SubAnswer, SubFigures, count_between, is_histogram
from tsd.query.rollups import intervals_for, is_pre_aggregated
from tsd.query.row_buckets import HAS_LOOP, buckets_of_batch, has_loop_for
from tsd.query.workers import SMALL_PAGE, WorkerPool
from tsd.store import StepLimit
from tsd.store.scheduling import IngestLoad
from tsd.tables.open_points import OpenPointSource, OpenSelection
from tsd.tables.quirks import Quirks
from tsd.tables.reading import PointPage, RollupSource, ScanRange, SeriesSpan

FEW_HOURS = 8  # of a query of one series: each is a row
KEPT, SHORT = 1000, 300  # sub queries that are kept, and the characters of each
KEPT_SERIES = 20_000  # in all of them
MOST_SERIES, MOST_HOURS, MOST_POINTS = 256, 1000, 400_000  # of a query whose access path is kept
FEW_GROUPS = 32  # merged in one step: each takes 20 us
ONE_SERIES = StepLimit(64, 16 << 10, 10_000)
NOW = StepLimit(600, 64 << 10, 30_000)  # read, decoded and merged in a millisecond
LARGE = StepLimit(1500, 1 << 20, MOST_POINTS)  # read in a millisecond; the rest is done in a thread


class WrittenAnswer(NamedTuple):
    """An answer as JSON."""

    text: bytes
    figures: SubFigures


class FirstRead(NamedTuple):
    """The rows of a query that is not known yet."""

    known: Known
    read: JointRead


class ShortQueries:
    """The sub queries that are answered in one step, or in one call of a thread."""

    def __init__(
        self,
        limits: Limits,
        memory: QueryMemory,
        workers: WorkerPool,
        load: IngestLoad,
        cached: CachedReader,
        open_points: OpenPointSource | None,
    ) -> None:
        self._limits = limits
        self._is_unbounded = limits.default == UNBOUNDED and not limits.overrides
        self._memory = memory
        self._workers = workers
        self._load = load
        self._cached = cached
        self._open_points = open_points
        self._known: dict[tuple[SubQuery, Quirks], Known] = {}  # the oldest first
        self._kept_series = 0

    async def read_first(self, query: Query, plan: Plan, share: MemoryShare) -> FirstRead | None:
        """Read the rows of few series of a sub query that is not known, by their keys; None if the general path must do
        it. `share` accounts for memory. Raise BadQuery, StoreError."""
        source, scan, selection, started = self._open_points, plan.scan, plan.selection, perf_counter()
        if source is None or not _is_short(query, plan) or self._load.is_high() or not await selection.find_few(scan):
            return None
        metric, open_series = selection.metric.encode(), None
        if (listed := source.known_series(metric)) is not None:
            open_series = await open_series_of(selection, listed, numbers_all=True)
        series = selection.matched_series()
        if series is None:
            return None
        known = Known(series, metric, selection, open_series, LaterReads())
        columns = self._open_now(known, scan)  # before stored points
        if columns is None and open_series is not None:
            columns = await open_series.points_soon(source, metric, scan)
        if columns is None or len(columns.series) > NOW.points:
            return None
        opened = known.opened(columns, scan)
        if opened is None:
            return None
        few = self._few(query, known, plan, opened, share.resize)
        is_small = len(selection.series.series_pairs) * scan.hours <= SMALL_PAGE
        if not few.read(self._cached, NOW if is_small else LARGE):
            return None
        is_small &= not has_many_steps(plan.sub.downsample, scan)
        if not (self._workers.run_here(few.add) if is_small else await self._workers.run(few.add)):
            return None
        few.collector.check()
        collected = await few.collector.finished()
        return FirstRead(known, JointRead(collected, perf_counter() - started))

    async def learn(self, query: Query, plan: Plan, answer: SubAnswer, known: Known | None) -> None:
        """Keep the access path to the rows of a query that the general path has answered, if it has few series. `known`
        is what was found when they were read."""
        if not _may_be_kept(query, plan, answer) or (known := known or await self._access(plan)) is None:
            return
        sub, selection = plan.sub, plan.selection
        series_pairs, counts = selection.series.series_pairs, answer.stats
        groups = []
        has_points = np.zeros(len(series_pairs), np.bool_)
        for group, numbers in zip(answer.groups, answer.members, strict=True):
            has_points[numbers] = True
            tsuids = tuple(selection.series.tsuid(series_pairs[at]) for at in numbers.tolist())
            groups.append(KnownGroup.of(group, numbers, tsuids))
        self._forget((sub, query.quirks))  # the newest comes last
        self._known[sub, query.quirks] = known._replace(
            groups=groups,
            are_ordered=all(one.is_ordered for one in groups),
            filter_tagks=answer.filter_tagks,
            resolved=counts["uidPairsResolved"],
            texts=_texts_of(sub, groups, len(series_pairs)),
            has_points=has_points,
            hourly_rows=counts["rowsPreFilter"] / plan.scan.hours,
            hourly_bytes=counts["bytesFetched"] / plan.scan.hours,
            hourly_points=counts["dpsPreFilter"] / plan.scan.hours,
        )
        self._kept_series += len(has_points)
        while len(self._known) > KEPT or self._kept_series > KEPT_SERIES:
            self._forget(next(iter(self._known)))

    async def _access(self, plan: Plan) -> Known | None:
        """Return how the rows of a sub query are read again, None if they cannot be."""
        source, selection = self._open_points, plan.selection
        series = selection.matched_series()
        if source is None or series is None or not selection.metric.isascii():
            return None
        metric, open_series = selection.metric.encode(), None
        if (listed := source.known_series(metric)) is not None:
            with suppress(BadQuery, StoreError):  # the query is answered already
                open_series = await open_series_of(selection, listed)
        if plan.open_hours and open_series is None and len(selection.series.series_pairs) > 1:
            return None
        stored = selection.stored if isinstance(selection, OpenSelection) else selection
        return Known(series, metric, stored, open_series, LaterReads())

    def _forget(self, key: tuple[SubQuery, Quirks]) -> None:
        """Forget a sub query, if it is known."""
        if (known := self._known.pop(key, None)) is not None:
            self._kept_series -= len(known.has_points)

    def _find(self, query: Query) -> tuple[Known, ScanRange] | None:
        """Return what is known of a query, and what to read; None if the general path must answer it."""
        if len(query.queries) != 1 or not self._known:
            return None
        known = self._known.get((query.queries[0], query.quirks))
        scan = None if known is None else self._scan(query)
        return None if known is None or scan is None else (known, scan)

    def _scan(self, query: Query) -> ScanRange | None:
        """Return what to read for a query whose sub query is known; None if the general path must answer it."""
        [sub] = query.queries
        scan = scan_range(query.start_ms, query.end_ms, sub.downsample, quirks=query.quirks)
        is_long = scan.stop_s - scan.start_s > MOST_HOURS * HOUR_S
        return None if is_long or query.delete or query.global_annotations or self._load.is_high() else scan

    def write(self, query: Query, *, arrays: bool) -> WrittenAnswer | None:
        """Return the text and the figures of the answer to a short query of one series whose points it leaves as they
        are. None for any other query, and if the general path must answer it."""
        known = self._known.get((query.queries[0], query.quirks)) if len(query.queries) == 1 else None
        if known is None or known.texts is None or known.series.is_remote:
            return None
        if query.show_tsuids or query.show_query or query.show_stats or query.show_summary:
            return None
        started = perf_counter()
        scan = self._scan(query)
        if (
            scan is None
            or scan.stop_s - scan.start_s > FEW_HOURS * HOUR_S
            or (columns := self._open_now(known, scan)) is None  # before stored points
            or (pages := self._pages_now(query, known, scan, columns)) is None
        ):
            return None
        counts, read = _counts_of(pages), perf_counter()
        if not self._allows(query, known, counts, counts.points):
            return None
        points = _points_of(pages) if counts.points else NO_POINTS
        text = known.texts.write(points, query, scan, arrays=arrays) if counts.points else b"[]"
        if text is None:
            return None
        emitted = count_between(points.times, range(query.start_ms, query.end_ms + 1))
        return WrittenAnswer(text, SubFigures(stats_of(counts, known, started, read), emitted))

    def answer(self, query: Query) -> Answer | None:
        """Return the answer to a query, None if it is not that short, or if the general path must answer it."""
        if (found := self._find(query)) is None:
            return None
        known, scan = found
        if known.series.is_remote:
            return None
        is_one = len(known.has_points) == 1 and scan.hours <= FEW_HOURS
        if not is_one and _is_long(known, scan):
            return None
        columns = self._open_now(known, scan)  # before stored points
        if columns is None or len(columns.series) > NOW.points:
            return None
        if is_one:
            return self._answer_one(query, known, scan, columns)
        return self._answer_few(query, known, Plan(query.queries[0], scan, known.selection), columns)

    def _answer_few(self, query: Query, known: Known, plan: Plan, columns: Columns) -> Answer | None:
        """Return the answer to a query of few series."""
        opened = known.opened(columns, plan.scan)
        if opened is None:
            return None
        few = self._few(query, known, plan, opened, lambda _: None)
        if not few.read(self._cached, NOW):
            return None
        answer = few.merge()
        if answer is None:
            self._forget((plan.sub, query.quirks))  # the next attempt would also read this much for nothing
        elif not self._allows(query, known, few.collector.read, few.collector.size):
            return None
        return answer

    async def answer_longer(self, query: Query, share: MemoryShare, *, is_cut: bool) -> Answer | None:
        """Return the answer to a longer query, or to one whose rows cannot be read at once; None if the general path
        must answer it. `share` accounts for its memory. `is_cut`: none of its points after the end is shown. Raise
        BadQuery, StoreError."""
        if (found := self._find(query)) is None:
            return None
        known, scan = found
        is_remote, is_long = known.series.is_remote, _is_long(known, scan)
        is_one = len(known.has_points) == 1 and scan.hours <= FEW_HOURS
        if not is_one and known.is_over(LARGE, scan.hours):
            return None
        columns = self._open_now(known, scan)  # before stored points
        has_waited = columns is None and known.open_series is not None
        if columns is None and known.open_series is not None:
            assert self._open_points is not None
            columns = await known.open_series.points_soon(self._open_points, known.metric, scan)
        if columns is None or len(columns.series) > (NOW if is_one else LARGE).points:
            return None
        if is_one and is_remote:
            return await self._fetch_one(query, known, scan, columns, is_cut=is_cut)
        is_many = len(columns.series) > NOW.points
        if not (is_remote or is_long or is_many or has_waited):
            return None
        if is_one:
            return self._answer_one(query, known, scan, columns)
        find = partial(known.opened, columns, scan)
        opened = await self._workers.run(find) if is_many else find()
        if opened is None:
            return None
        few = self._few(query, known, Plan(query.queries[0], scan, known.selection), opened, share.resize)
        if not (await few.fetch(LARGE, is_cut=is_cut) if is_remote else few.read(self._cached, LARGE)):
            return None
        answer = await self._merge(few, is_long=is_long)
        if few.needs_later and await few.fetch_later(LARGE):
            answer = await self._merge(few, is_long=is_long)
        if answer is None:
            self._forget((query.queries[0], query.quirks))
            return None
        few.collector.check()
        share.resize(answer_bytes(answer.subs[0].groups))
        return answer

    async def _merge(self, few: FewSeries, *, is_long: bool) -> Answer | None:
        """Return the answer from the rows that were read, see `FewSeries.merge`."""
        is_short = few.is_short or (not is_long and few.cells <= NOW.cells)
        return self._workers.run_here(few.merge) if is_short else await self._workers.run(few.merge)

    def _few(
        self, query: Query, known: Known, plan: Plan, opened: Sequence[HourPoints], set_memory: Callable[[int], None]
    ) -> FewSeries:
        """Return what reads the rows of a query with open points."""
        budget = QueryBudget(self._bounds(query, known), set_memory, self._workers)
        return FewSeries(query, known, plan, budget, opened)

    def _answer_one(self, query: Query, known: Known, scan: ScanRange, columns: Columns) -> Answer | None:
        """Return the answer to a query of one series, which may have open points."""
        started = perf_counter()
        pages = self._pages_now(query, known, scan, columns)
        return None if pages is None else self._answer_pages(query, known, scan, pages, started)

    def _pages_now(self, query: Query, known: Known, scan: ScanRange, columns: Columns) -> list[PointPage] | None:
        """Return the points of one series, without a wait; None if the general path must read them."""
        try:
            stored = known.series.read(scan, ONE_SERIES, annotations=not query.no_annotations)
            page = None if stored is None else stored.decode()
        except StoreError:  # the general path reports which rows cannot be read
            return None
        return None if page is None else _with_open(known, scan, columns, page)

    async def _fetch_one(
        self, query: Query, known: Known, scan: ScanRange, columns: Columns, *, is_cut: bool
    ) -> Answer | None:
        """Return the answer to a query of one series of a remote store, see `_answer_one`. If it `is_cut`, points after
        the end are read only where it needs them. Raise StoreError."""
        started = perf_counter()
        [sub], span = query.queries, scan
        if is_cut and not len(columns.series) and known.later.are_apart():
            span = range_to_end(query.end_ms, sub.downsample, scan)
        page = await self._fetch_page(query, known, span)
        if page is None:
            return None
        pages = _with_open(known, scan, columns, page)
        if pages and span != scan and not is_settled(page.batch, sub, query.end_ms):
            known.later.needed(1, 1)
            page = await self._fetch_page(query, known, ScanRange(span.stop_s, scan.stop_s))
            pages = None if page is None or page.annotations or page.warnings else [*pages, page]
        answer = None if pages is None else self._answer_pages(query, known, scan, pages, started)
        if answer is None:  # the general path would read the row again, each time
            self._forget((query.queries[0], query.quirks))
        return answer

    async def _fetch_page(self, query: Query, known: Known, span: ScanRange) -> PointPage | None:
        """Return the stored points of one series; None if the general path must read them. Raise StoreError."""
        stored = await known.series.fetch([SeriesSpan(span)], ONE_SERIES, annotations=not query.no_annotations)
        if stored is None:
            return None
        return stored.decode() if stored.cells <= ONE_SERIES.cells else await self._workers.run(stored.decode)

    def _open_now(self, known: Known, scan: ScanRange) -> Columns | None:
        """Return the open points of a query's series, None if they cannot be read at once."""
        source, opened = self._open_points, known.open_series
        assert source is not None
        if opened is None:
            return source.points_now(known.metric, scan, None, None)
        return opened.points_now(source, known.metric, scan)

    def _answer_pages(
        self, query: Query, known: Known, scan: ScanRange, pages: Sequence[PointPage], started: float
    ) -> Answer | None:
        """Return the answer from the points of one series."""
        [sub] = query.queries
        counts = _counts_of(pages)
        if not self._allows(query, known, counts, counts.points):
            return None
        read = perf_counter()
        groups = []
        if counts.points:
            group = known.groups[0].with_points(query)
            group.points, group.interpolated = _merged(query, sub, scan, pages)
            groups.append(group)
        return known_answer(query, known, groups, counts, started, read)

    def _bounds(self, query: Query, known: Known) -> Bounds:
        """Return the bounds of a query."""
        return self._limits.bounds(
            known.metric.decode(),
            override_size=query.override_byte_limit,
            override_points=query.override_point_limit,
        )

    def _allows(self, query: Query, known: Known, read: ReadCounts, kept: int) -> bool:
        """Return whether what was read is within all limits, and the `kept` points."""
        series = len(known.has_points)
        if self._memory.held + series * SERIES_BYTES + kept * POINT_BYTES > self._memory.limit:
            return False
        if self._is_unbounded:
            return True
        try:
            check_fetched(self._bounds(query, known), size=read.size, points=read.points)
        except BadQuery:  # raised by the general path
            return False
        return True


def _is_long(known: Known, scan: ScanRange) -> bool:
    """Return whether a query is expected to take too long for one step of the event loop."""
    return len(known.groups) > FEW_GROUPS or known.is_over(NOW, scan.hours)


def _is_short(query: Query, plan: Plan) -> bool:
    """Return whether a query that is not known yet is of the kind whose rows are read in one step."""
    selection = plan.selection
    if not _is_simple(query, plan.sub) or plan.scan.hours > MOST_HOURS or not selection.metric.isascii():
        return False
    return selection.rollups is None or _is_raw(plan, selection.rollups)


def _may_be_kept(query: Query, plan: Plan, answer: SubAnswer) -> bool:
    """Return whether a query, as it was answered, is of the kind and the size that is kept."""
    sub, selection = plan.sub, plan.selection
    if not _is_simple(query, sub) or plan.scan.hours > MOST_HOURS:
        return False
    if not answer.groups or answer.warnings or len(answer.members) != len(answer.groups):
        return False
    if len(selection.series.numbers) > MOST_SERIES or answer.stats["dpsPreFilter"] > MOST_POINTS:
        return False
    if selection.rollups is not None and not _is_raw(plan, selection.rollups):
        return False
    size = len(selection.metric) + sum(len(each.expression) for each in sub.filters) + sum(map(len, sub.tsuids))
    return size <= SHORT and all(group.annotations is None for group in answer.groups)


def _is_simple(query: Query, sub: SubQuery) -> bool:
    """Return whether a query has one sub query, and only reads points."""
    return len(query.queries) == 1 and not (query.delete or query.global_annotations or is_histogram(sub))


def _is_raw(plan: Plan, rollups: RollupSource) -> bool:
    """Return whether a sub query reads raw points whatever rollups there are."""
    spec = plan.sub.downsample
    return not is_pre_aggregated(plan, rollups) and (spec is None or not intervals_for(rollups, spec))


def _texts_of(sub: SubQuery, groups: Sequence[KnownGroup], series: int) -> OnlyTexts | None:
    """Return what writes the answers to a sub query, None if there are several series or if their points change."""
    is_sum = keeps_only(sub.aggregator)
    if not HAS_LOOP or sub.downsample is not None or sub.rate or series != 1 or is_sum is None:
        return None
    return OnlyTexts(sub, groups[0].group, is_sum=is_sum)


def _with_open(known: Known, scan: ScanRange, columns: Columns, page: PointPage) -> list[PointPage] | None:
    """Return the stored points of one series, and those of open hours; None if the rows have annotations or warnings,
    or if another series may match."""
    if page.annotations or page.warnings:
        return None
    if not len(columns.series):
        return [page]
    opened = known.opened(columns, scan)
    if opened is None:
        return None
    rows = [hour.page for hour in opened]
    if not rows or not len(page.batch.times):
        return [page, *rows] if page.rows_read or not rows else rows
    stored_ms, open_ms = int(page.batch.times[-1]), int(rows[0].batch.times[0])
    if stored_ms // HOUR_MS < open_ms // HOUR_MS:
        return [page, *rows]
    return [_merged_rows(page, rows)]


def _merged_rows(page: PointPage, rows: Sequence[PointPage]) -> PointPage:
    """Return the stored rows of one series with open points of the same and of later hours. Of equal times the open
    point counts, see `tsd.tables.open_points`."""
    pages = [page, *rows]
    times, bits, floats = (np.concatenate(each) for each in zip(*(one.batch[2:] for one in pages), strict=True))
    if np.count_nonzero(times[1:] > times[:-1]) < len(times) - 1:
        order = np.argsort(times, kind="stable")
        last = np.append(np.diff(times[order]) > 0, True)
        times, bits, floats = (each[order[last]] for each in (times, bits, floats))
    hours = times // HOUR_MS
    starts = np.concatenate(([0], np.flatnonzero(np.diff(hours)) + 1, [len(times)]))
    added = len(starts) - 1 - len(np.unique(page.batch.times // HOUR_MS))  # hours without a stored row
    counts = page.rows_read + added, sum([one.size for one in pages])
    batch = Batch(page.batch.series[0].repeat(len(starts) - 1), starts, times, bits, floats)
    return PointPage(batch, *counts, (), (), page.duplicates, None)


def _counts_of(pages: Sequence[PointPage]) -> ReadCounts:
    """Return what was read."""
    if len(pages) == 1:
        [page] = pages
        batch = page.batch
        return ReadCounts(page.rows_read, len(batch.series), len(batch.times), page.size, page.duplicates)
    return ReadCounts(
        sum([page.rows_read for page in pages]),
        sum([len(page.batch.series) for page in pages]),
        sum([len(page.batch.times) for page in pages]),
        sum([page.size for page in pages]),
        sum([page.duplicates for page in pages]),
    )


def _merged(query: Query, sub: SubQuery, scan: ScanRange, pages: Sequence[PointPage]) -> tuple[Points, int]:
    """Return the points of an answer, and how many were interpolated."""
    points, quirks = _downsampled(query, sub, scan, pages), query.quirks
    if sub.rate:
        return merge(
            [rate(points, sub.rate_options, scan.start_ms, quirks=quirks)], sub.aggregator, scan, quirks=quirks
        )
    if (only := merge_only(points, sub.aggregator, scan)) is not None:
        return only, 0
    return merge(Chosen.all_of([points]), sub.aggregator, scan, quirks=quirks)


def _points_of(pages: Sequence[PointPage]) -> Points:
    """Return the points of the only series."""
    if len(pages) == 1:
        return Points(*pages[0].batch[2:])
    batches = [page.batch for page in pages if len(page.batch.times)]
    if len(batches) == 1:
        return Points(*batches[0][2:])
    return Points(*(np.concatenate(columns) for columns in zip(*(batch[2:] for batch in batches), strict=True)))


def _downsampled(query: Query, sub: SubQuery, scan: ScanRange, pages: Sequence[PointPage]) -> Points:
    """Return the points of the only series, downsampled if the query says so."""
    spec = sub.downsample
    if spec is None:
        return _points_of(pages)
    batches = [page.batch for page in pages if len(page.batch.times)]
    buckets = buckets_of(spec, query.start_ms, query.end_ms, scan)
    if spec.fill is Fill.NONE and buckets.within_hours and HAS_LOOP and has_loop_for(spec.function):
        found = [buckets_of_batch(within(batch, buckets.span), spec.interval_ms, spec.function) for batch in batches]
        if len(found) == 1:
            return doubles_as_points(found[0].flat_stamps(), found[0].values)
        stamps = np.concatenate([one.flat_stamps() for one in found])
        return doubles_as_points(stamps, np.concatenate([one.values for one in found]))
    sink = Downsampler(spec, query.start_ms, query.end_ms, scan, quirks=query.quirks)
    for batch in batches:
        sink.feed(batch)
    return sink.finish(1)[0]
