"""The rows of a query of few series, and what is known of one that was answered before.

Such a query is repeated: its series and groups are known. Its points are read again, and the functions of the general
path downsample and merge them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tsd.codec.points import NO_POINTS, Bool, Columns, Int64, Points
from tsd.errors import StoreError
from tsd.query.assemble import counts_of, merge_chosen
from tsd.query.cache import CachedHour
from tsd.query.cached_reader import CachedReader
from tsd.query.collect import PointCollector, ReadCounts
from tsd.query.columns import Chosen
from tsd.query.later_hours import LaterReads, unsettled_series
from tsd.query.limits import QueryBudget
from tsd.query.model import Query, SubQuery
from tsd.query.open_series import HourPoints, OpenSeries
from tsd.query.plan import Plan, range_to_end
from tsd.query.result import Answer, Group, SubAnswer
from tsd.query.same_times import summed_groups
from tsd.query.serialize import Frame, PointFormat
from tsd.query.workers import SMALL, SMALL_PAGE
from tsd.store import StepLimit
from tsd.tables.open_points import split_span
from tsd.tables.open_rows import DecodedPage, MergedPage, split_rows
from tsd.tables.reading import EncodedPage, MatchedSeries, PointPage, ScanRange, Selection, SeriesSpan

ROOM = 1.2  # a query that is expected to read more than this multiple of a limit is not tried with it


class KnownGroup(NamedTuple):
    """A group of a sub query."""

    group: Group  # without points
    numbers: Int64  # of its series with points, in order
    tsuids: Sequence[bytes]  # of these

    @classmethod
    def of(cls, group: Group, numbers: Int64, tsuids: Sequence[bytes]) -> "KnownGroup":
        """Return a group of an answer, without its points."""
        known = Group(**vars(group))  # `replace` takes several times as long
        known.points, known.tsuids, known.interpolated = NO_POINTS, (), 0
        return cls(known, numbers, tsuids)

    @property
    def is_ordered(self) -> bool:
        """Whether its series are numbered in their order."""
        return len(self.numbers) < 2 or bool((self.numbers[1:] > self.numbers[:-1]).all())

    def with_points(self, query: Query) -> Group:
        """Return a new group, for the points of a query."""
        group = Group(**vars(self.group))
        group.tsuids = self.tsuids if query.show_tsuids else ()
        return group


class OnlyTexts:
    """Writes the answers to a sub query of one series whose points are its own."""

    def __init__(self, sub: SubQuery, group: Group, *, is_sum: bool) -> None:
        self._sub = sub
        self._group = group
        self._is_sum = is_sum
        self._made: dict[tuple[bool, bool], tuple[PointFormat, Frame]] = {}

    def write(self, points: Points, query: Query, scan: ScanRange, *, arrays: bool) -> bytes | None:
        """Return the text of an answer; None if the points have to be merged, see `PointFormat.write_only`."""
        how = query.ms_resolution, arrays
        if how not in self._made:
            form = PointFormat(query, arrays=arrays)
            self._made[how] = form, form.frame(Answer(query, [SubAnswer(self._sub, [self._group])]))
        form, frame = self._made[how]
        return form.write_only(points, query, scan, frame, is_sum=self._is_sum)


class Known(NamedTuple):
    """What is known of a sub query with few series: how their rows are read, and the rest once it was answered."""

    series: MatchedSeries
    metric: bytes  # as lines have it
    selection: Selection  # without open points
    open_series: OpenSeries | None  # None: which series may have open points is not known
    later: LaterReads  # of a store in another process
    groups: Sequence[KnownGroup] = ()
    are_ordered: bool = False  # whether the series of each group are numbered in their order
    filter_tagks: Sequence[bytes] | None = None
    resolved: int = 0  # names that were looked up
    texts: OnlyTexts | None = None  # None: its points are downsampled, or there are other series
    has_points: Bool = np.zeros(0, np.bool_)  # of each series: whether it had points
    hourly_rows: float = 0.0
    hourly_bytes: float = 0.0  # of rows
    hourly_points: float = 0.0

    def opened(self, columns: Columns, scan: ScanRange) -> list[HourPoints] | None:
        """Return the open points in the scan's hours, see `OpenSeries.hours`. Without open series there are none."""
        return [] if self.open_series is None else self.open_series.hours(columns, scan)

    def is_over(self, limit: StepLimit, hours: int) -> bool:
        """Return whether this number of hours is expected to exceed a limit."""
        each = (self.hourly_rows, self.hourly_bytes, self.hourly_points)
        return any(hours * one > most * ROOM for one, most in zip(each, limit, strict=True))


class FewSeries:
    """The rows of one query, read but not decoded."""

    def __init__(
        self, query: Query, known: Known, plan: Plan, budget: QueryBudget, opened: Sequence[HourPoints]
    ) -> None:
        """`plan` is made from the known selection. `opened`: all open points of its hours."""
        self._query = query
        self._known = known
        self._plan = plan
        self._budget = budget
        self._opened = {hour.base_s: hour.rows for hour in opened}
        # Functions that add the rows that were read. Bound to this object, they would form a reference cycle with it.
        self._adds: list[Callable[[FewSeries], bool]] = []
        self._later: ScanRange | None = None  # hours that were fetched only of series without points
        self.needs_later: Sequence[int] = ()  # series whose points in these hours the answer needs, once merged
        self._started = self._read = perf_counter()
        self.cells = 0  # fetched
        self.collector = PointCollector(query, plan, budget)
        self.is_short = False  # whether few values are left to merge, of cached and of open hours

    def read(self, cached: CachedReader, limit: StepLimit) -> bool:
        """Read all rows, or take hours from the cache. Return False if the general path must do it."""
        query, known, whole = self._query, self._known, self._plan
        bucketing = None if known.series.by_key else cached.bucketing(query, whole)
        series = whole.selection.series
        can_read = bucketing is None or len(series.numbers) > len(series.series_pairs)  # hours of others are not cached
        values, self.is_short = sum([len(rows.batch.times) for rows in self._opened.values()]), True
        uncached = set(self._opened)
        if bucketing is not None and (present_s := cached.present_hour_s()) in whole.scan.bases:
            uncached.add(present_s)
        for span, is_uncached in split_span(whole.scan, sorted(uncached)):
            hours = None
            if bucketing is not None and not is_uncached and known.series.are_all():
                hours = cached.cached_now(whole._replace(scan=span), bucketing)
            if hours is not None:
                values += sum([len(one.buckets.values) for some in hours for one in some])
                self._adds += [partial(FewSeries._add_cached, some=some) for some in hours]
                continue
            page = None
            if is_uncached or can_read:
                page = known.series.read(span, limit, annotations=not query.no_annotations)
            if page is None:
                return False
            self.is_short &= span.start_s in self._opened and page.cells <= SMALL_PAGE
            self._adds.append(partial(FewSeries._add, page=page, span=span))
        self.is_short &= values <= SMALL
        self._read = perf_counter()
        return True

    def _add_cached(self, some: Sequence[CachedHour]) -> bool:
        """Add cached hours. Return False if a series has no number."""
        return self.collector.add_cached_now(some)

    def _add(self, page: EncodedPage[PointPage], span: ScanRange) -> bool:
        """Add the rows of a span: with the open points, if it is an hour that has some. Return False if they cannot
        be read."""
        rows = self._opened.get(span.start_s)
        if rows is None:
            return _add_page(self.collector, page)
        try:
            stored = page.decode()
        except StoreError:  # the general path reports which rows cannot be read
            return False
        if len(stored.batch.series) or stored.rows_read or stored.annotations or stored.warnings:
            merged = MergedPage(DecodedPage(stored), rows)
            if not _add_page(self.collector, merged):
                return False
            rows = rows.without(merged.found)
        return not rows.cells or _add_page(self.collector, rows)

    async def fetch(self, limit: StepLimit, *, is_cut: bool) -> bool:
        """Read all rows, with a wait; those with points up to the end of the query, if its answer `is_cut` there.
        Return False if the general path must do it. Raise StoreError."""
        query, known, whole = self._query, self._known, self._plan.scan
        span = whole
        if is_cut and known.later.are_apart() and not self._opened:
            span = range_to_end(query.end_ms, self._plan.sub.downsample, whole)
        spans = [SeriesSpan(span)]
        if span != whole:
            self._later = ScanRange(span.stop_s, whole.stop_s)
            # Later points could make a series without points count: hosts that are gone would need a second read.
            if not known.has_points.all():
                spans.append(SeriesSpan(self._later, np.flatnonzero(~known.has_points).tolist()))
        return await self._fetch(spans, limit)

    async def fetch_later(self, limit: StepLimit) -> bool:
        """Read the rows of the series in `needs_later`, like `fetch`."""
        span, numbers = self._later, self.needs_later
        assert span is not None
        self._known.later.needed(len(numbers), len(self._known.has_points))
        self._later, self.needs_later = None, ()
        self.collector = PointCollector(self._query, self._plan, self._budget)
        return await self._fetch([SeriesSpan(span, numbers)], limit)

    async def _fetch(self, spans: Sequence[SeriesSpan], limit: StepLimit) -> bool:
        page = await self._known.series.fetch(spans, limit, annotations=not self._query.no_annotations)
        if page is None:
            return False
        self._adds.append(partial(FewSeries._add_fetched, page=page))
        self.cells += page.cells
        self._read = perf_counter()
        return True

    def _add_fetched(self, page: EncodedPage[PointPage]) -> bool:
        """Add fetched rows, of open hours too. Return False if some cannot be read."""
        if not self._opened:
            return _add_page(self.collector, page)
        try:
            decoded = page.decode()
        except StoreError:  # the general path reports which rows cannot be read
            return False
        spans = [span for span, _ in split_span(self._plan.scan, self._opened)]
        return all(map(self._add, map(DecodedPage, split_rows(decoded, spans)), spans))

    def add(self) -> bool:
        """Add the rows that were read to the collector. Return False if some cannot be read: the general path reports
        which. May be called in a thread."""
        return all(add(self) for add in self._adds)

    def merge(self) -> Answer | None:
        """Return the answer. None if it needs later points of the series in `needs_later`, which is set then, or if the
        general path must find it. May be called in a thread."""
        query, known, plan = self._query, self._known, self._plan
        if not self.add():
            return None
        collected = self.collector.finish()
        if collected.annotations or collected.read.warnings:
            return None
        if self._later is not None:
            members = [one.numbers for one in known.groups]
            needed = unsettled_series(collected.series, collected.counts, members, plan.sub, query.end_ms)
            needed = needed[known.has_points[needed]]
            if len(needed):
                self.needs_later = needed.tolist()
                return None
        if not np.array_equal(collected.counts > 0, known.has_points):  # other groups, or other tags of them
            return None
        summed: Sequence[Points | None] = [None] * len(known.groups)
        if len(known.groups) > 1 and known.are_ordered and not plan.sub.rate:
            numbers = [one.numbers for one in known.groups]
            summed = summed_groups(collected.series, numbers, plan.sub.aggregator, plan.scan)
        groups: list[Group] = []
        for one, points in zip(known.groups, summed, strict=True):
            group = one.with_points(query)
            if points is not None:
                group.points = points
            else:
                chosen = Chosen(collected.series, one.numbers)
                group.points, group.interpolated = merge_chosen(chosen, plan.sub, plan.scan, quirks=query.quirks)
            groups.append(group)
        return known_answer(query, known, groups, collected.read, self._started, self._read)


def known_answer(
    query: Query, known: Known, groups: list[Group], counts: ReadCounts, started: float, read: float
) -> Answer:
    """Return the answer to a query whose rows were `read` after it was `started`, as of `perf_counter`."""
    stats = stats_of(counts, known, started, read)
    [sub] = query.queries
    return Answer(
        query, [SubAnswer(sub, groups, filter_tagks=known.filter_tagks, duplicates=counts.duplicates, stats=stats)]
    )


def stats_of(counts: ReadCounts, known: Known, started: float, read: float) -> dict[str, Any]:
    """Return the statistics of such an answer."""
    stats = counts_of(counts, known.resolved)
    stats["queryScanTime"] = stats["scannerTime"] = (read - started) * 1000
    stats["aggregationTime"] = (perf_counter() - read) * 1000
    return stats


def _add_page(collector: PointCollector, page: EncodedPage[PointPage]) -> bool:
    """Add a page. Return False if some of its rows cannot be read."""
    try:
        if not collector.add_tables(page):
            collector.add_page(page)
    except StoreError:  # the general path reports which rows cannot be read
        return False
    return True
