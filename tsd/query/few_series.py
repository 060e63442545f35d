"""A repeated query of few series, as far as it was answered before.

Its series and groups are known. Its points are read again, and the functions of the general path downsample and merge
them.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple
from weakref import ReferenceType

import numpy as np

from tsd.codec.points import Bool, Columns, Int32, Int64, Points
from tsd.codec.putline import HOUR_MS, HOUR_S
from tsd.errors import StoreError
from tsd.query.assemble import counts_of, merge_chosen
from tsd.query.cached_reader import CachedReader
from tsd.query.collect import PointCollector, ReadCounts
from tsd.query.columns import Chosen
from tsd.query.later_hours import LaterReads, unsettled_series
from tsd.query.limits import QueryBudget
from tsd.query.model import Query, SubQuery
from tsd.query.plan import Plan, range_to_end
from tsd.query.result import Answer, Group, SubAnswer
from tsd.query.serialize import Frame, PointFormat
from tsd.query.workers import SMALL
from tsd.store import StepLimit
from tsd.tables.open_points import rows_of
from tsd.tables.reading import EncodedPage, MatchedSeries, PointPage, ScanRange, Selection, SeriesSpan
from tsd.tables.writing import KnownSeries

FEW_POINTS = 1000  # open points that are kept as a row
ROOM = 1.2  # a query that is expected to read more than this multiple of a limit is not tried with it


class KnownGroup(NamedTuple):
    """A group of a sub query."""

    group: Group  # without points
    numbers: Int64  # of its series with points, in order
    tsuids: Sequence[bytes]  # of these

    def with_points(self, query: Query) -> Group:
        """Return a new group, for the points of a query."""
        group = Group(**vars(self.group))  # `replace` takes several times as long
        group.tsuids = self.tsuids if query.show_tsuids else ()
        return group


class OpenRows:
    """The open points of one series that were read last, as a row an hour."""

    def __init__(self) -> None:
        self._columns: Columns | None = None
        self._rows: list[tuple[int, PointPage]] = []  # with the base time of the hour, in order

    def of(self, columns: Columns, scan: ScanRange) -> list[PointPage]:
        """Return open points of the scan's hours, in order, as pages of one row."""
        if columns is not self._columns:
            self._rows = _rows_by_hour(columns)
            self._columns = columns
        pages = [page for base_s, page in self._rows if scan.start_s <= base_s < scan.stop_s]
        if len(columns.series) > FEW_POINTS:
            self._columns, self._rows = None, []
        return pages


def _rows_by_hour(columns: Columns) -> list[tuple[int, PointPage]]:
    """Return the points of one series as a row an hour, with the base times in order."""
    hours = columns.instants // (2 * HOUR_MS)
    first, last = int(hours.min()), int(hours.max())
    if first == last:
        return [(first * HOUR_S, rows_of(columns).decode())]
    places = ((hour, np.flatnonzero(hours == hour)) for hour in np.unique(hours).tolist())
    return [(hour * HOUR_S, rows_of(columns.at(some)).decode()) for hour, some in places]


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
            form = PointFormat(query, arrays=arrays, is_single=True)
            self._made[how] = form, form.frame(Answer(query, [SubAnswer(self._sub, [self._group])]))
        form, frame = self._made[how]
        return form.write_only(points, query, scan, frame, is_sum=self._is_sum)


class Known(NamedTuple):
    """What is known of a sub query with few series."""

    series: MatchedSeries
    metric: bytes  # as lines have it
    groups: Sequence[KnownGroup]
    filter_tagks: Sequence[bytes] | None
    resolved: int  # names that were looked up
    listed: ReferenceType[KnownSeries] | None  # of the metric in memory; many queries must not keep old lists
    open_rows: OpenRows  # of the only series
    texts: OnlyTexts | None  # of it; None: its points are downsampled, or there are other series
    number: Int32 | None  # of the only series among these, empty if it is not there; None: it is not known
    selection: Selection | None  # None: it has open points, and would keep them
    has_points: Bool  # of each series: whether it had points
    later: LaterReads  # of a store in another process
    hourly_rows: float
    hourly_bytes: float  # of rows
    hourly_points: float

    def is_over(self, limit: StepLimit, hours: int) -> bool:
        """Return whether this number of hours is expected to exceed a limit."""
        each = (self.hourly_rows, self.hourly_bytes, self.hourly_points)
        return any(hours * one > most * ROOM for one, most in zip(each, limit, strict=True))


class FewSeries:
    """The rows of one query, read but not decoded."""

    def __init__(self, query: Query, known: Known, plan: Plan, budget: QueryBudget) -> None:
        """`plan` is made from the known selection."""
        self._query = query
        self._known = known
        self._plan = plan
        self._budget = budget
        self._add: Callable[[], bool] = lambda: False
        self._pages: list[EncodedPage[PointPage]] = []  # fetched
        self._later: ScanRange | None = None  # hours that were fetched only of series without points
        self.needs_later: Sequence[int] = ()  # series whose points in these hours the answer needs, once merged
        self._started = self._read = perf_counter()
        self.cells = 0  # fetched
        self.collector = PointCollector(query, plan, budget)
        self.is_short = False  # whether few values are left to merge, of cached hours

    def read(self, cached: CachedReader, limit: StepLimit) -> bool:
        """Read all rows, or take hours from the cache. Return False if the general path must do it."""
        query, known, plan, collector = self._query, self._known, self._plan, self.collector
        hours = page = None
        bucketing = None if known.series.by_key else cached.bucketing(query, plan)
        if bucketing is not None and known.series.are_all():
            hours = cached.cached_now(plan, bucketing)
        series = plan.selection.series
        if hours is not None:
            self.is_short = sum([len(one.buckets.values) for some in hours for one in some]) <= SMALL
            self._add = lambda: all(map(collector.add_cached_now, hours))
        elif bucketing is None or len(series.numbers) > len(series.series_pairs):  # hours of others are not cached
            page = known.series.read(plan.scan, limit, annotations=not query.no_annotations)
            self._add = lambda: page is not None and _add_page(collector, page)
        self._read = perf_counter()
        return hours is not None or page is not None

    async def fetch(self, limit: StepLimit, *, is_cut: bool) -> bool:
        """Read all rows, with a wait; those with points up to the end of the query, if its answer `is_cut` there.
        Return False if the general path must do it. Raise StoreError."""
        query, known, whole = self._query, self._known, self._plan.scan
        span = whole
        if is_cut and known.later.are_apart():
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
        self._pages.append(page)
        self._add = lambda: all(_add_page(self.collector, page) for page in self._pages)
        self.cells += page.cells
        self._read = perf_counter()
        return True

    def merge(self) -> Answer | None:
        """Return the answer. None if it needs later points of the series in `needs_later`, which is set then, or if the
        general path must find it. May be called in a thread."""
        query, known, plan = self._query, self._known, self._plan
        if not self._add():
            return None
        collected = self.collector.finish()
        if self._later is not None:
            members = [one.numbers for one in known.groups]
            needed = unsettled_series(collected.series, collected.counts, members, plan.sub, query.end_ms)
            needed = needed[known.has_points[needed]]
            if len(needed):
                self.needs_later = needed.tolist()
                return None
        if not np.array_equal(collected.counts > 0, known.has_points):  # other groups, or other tags of them
            return None
        groups: list[Group] = []
        for one in known.groups:
            group = one.with_points(query)
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
    """Add a page. Return whether it has nothing but points."""
    try:
        if not collector.add_tables(page):
            collector.add_page(page)
    except StoreError:  # the general path reports which rows cannot be read
        return False
    return not (collector.has_annotations or collector.read.warnings)
