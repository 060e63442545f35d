"""Answers repeated queries of one series and few hours within one step of the event loop.

The general way (`tsd.query.engine`) answers a query first. If it found one series and nothing unusual, the way to its
rows is kept, without any points. The next such query reads these rows, and downsamples and merges them by the same
functions. It needs no slot, deadline or cancel scope, because nothing else runs meanwhile. Whatever is unusual is left
to the general way: `answer` returns None then, and has changed nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np

from tsd.codec.points import NO_POINTS, Points
from tsd.errors import BadQuery
from tsd.query.assemble import counts_of
from tsd.query.collect import POINT_BYTES, SERIES_BYTES, SMALL, ReadCounts
from tsd.query.columns import Chosen, SeriesColumns
from tsd.query.downsample import Downsampler, PointJoiner
from tsd.query.limits import Limits, QueryMemory, check_fetched
from tsd.query.merge import merge, rate
from tsd.query.model import Query, SubQuery
from tsd.query.plan import Plan, scan_range
from tsd.query.result import Answer, Group, SubAnswer, is_histogram
from tsd.query.rollups import intervals_for, is_pre_aggregated
from tsd.store.scheduling import IngestLoad
from tsd.tables.open_points import OpenPointSource
from tsd.tables.quirks import Quirks
from tsd.tables.reading import OnlySeries, PointPage, RollupSource, ScanRange

FEW_HOURS = 8  # of a query: each is a row
KEPT, SHORT = 1000, 300  # sub queries that are kept, and the characters of each
ONLY = np.zeros(1, np.int64)


class _Known(NamedTuple):
    """What is known of a sub query with one series."""

    series: OnlySeries
    metric: bytes  # as lines have it
    group: Group  # without points
    tsuids: Sequence[bytes]  # of its series
    filter_tagks: Sequence[bytes] | None
    resolved: int  # names that were looked up


class ShortQueries:
    """The sub queries that are answered in one step."""

    def __init__(
        self, limits: Limits, memory: QueryMemory, load: IngestLoad, open_points: OpenPointSource | None
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._load = load
        self._open_points = open_points
        self._known: dict[tuple[SubQuery, Quirks], _Known] = {}  # the oldest first
        self.answered = 0

    def learn(self, query: Query, plan: Plan, answer: SubAnswer) -> None:
        """Keep the way to the rows of a query that the general way has answered, if it has one series."""
        sub, selection = plan.sub, plan.selection
        if self._open_points is None or not _is_simple(query, sub) or plan.scan.hours > FEW_HOURS:
            return
        if len(answer.groups) != 1 or answer.warnings or len(selection.series.pairs) != 1:
            return
        if selection.rollups is not None and not _is_raw(plan, selection.rollups):
            return
        [group], [pairs] = answer.groups, selection.series.pairs
        metric = selection.metric
        size = len(metric) + sum(len(each.expression) for each in sub.filters) + sum(map(len, sub.tsuids))
        if group.annotations is not None or answer.stats["dpsPreFilter"] > SMALL or size > SHORT:
            return
        series = selection.only_series()
        if series is None or not metric.isascii():
            return
        bare = replace(group, points=NO_POINTS, tsuids=(), interpolated=0)
        tsuids = (selection.series.tsuid(pairs),)
        resolved = answer.stats["uidPairsResolved"]
        self._known[sub, query.quirks] = _Known(series, metric.encode(), bare, tsuids, answer.filter_tagks, resolved)
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]

    def answer(self, query: Query) -> Answer | None:
        """Return the answer to a query, None if the general way must answer it."""
        if (
            len(query.queries) != 1
            or not self._known
            or not (known := self._known.get((query.queries[0], query.quirks)))
        ):
            return None
        [sub] = query.queries
        scan = scan_range(query.start_ms, query.end_ms, sub.downsample, quirks=query.quirks)
        assert self._open_points is not None
        if scan.hours > FEW_HOURS or not _is_simple(query, sub) or self._load.is_high():
            return None
        if self._open_points.has_points(known.metric, scan):
            return None
        started = perf_counter()
        page = known.series.read(scan, annotations=not query.no_annotations)
        if page is None or page.annotations or page.warnings or not self._allows(query, sub, page):
            return None
        read = perf_counter()
        counts = ReadCounts(page.rows_read, len(page.batch.series), len(page.batch.times), page.size, page.duplicates)
        groups = []
        if counts.points:
            points, interpolated = _merged(query, sub, scan, page)
            tsuids = known.tsuids if query.show_tsuids else ()
            groups.append(replace(known.group, points=points, interpolated=interpolated, tsuids=tsuids))
        merged = perf_counter()
        scan_ms = (read - started) * 1000
        stats = counts_of(counts, known.resolved)
        stats["queryScanTime"] = stats["scannerTime"] = scan_ms
        stats["aggregationTime"] = (merged - read) * 1000
        found = SubAnswer(sub, groups, filter_tagks=known.filter_tagks, duplicates=page.duplicates, stats=stats)
        self.answered += 1
        return Answer(query, [found])

    def _allows(self, query: Query, sub: SubQuery, page: PointPage) -> bool:
        """Return whether a page is small and within all limits."""
        points = len(page.batch.times)
        if points > SMALL or self._memory.held + SERIES_BYTES + points * POINT_BYTES > self._memory.limit:
            return False
        bounds = self._limits.bounds(
            sub.metric or "", override_size=query.override_byte_limit, override_points=query.override_point_limit
        )
        try:
            check_fetched(bounds, size=page.size, points=points)
        except BadQuery:  # raised by the general way
            return False
        return True


def _is_simple(query: Query, sub: SubQuery) -> bool:
    """Return whether a query has one sub query, and only reads points."""
    return len(query.queries) == 1 and not (query.delete or query.global_annotations or is_histogram(sub))


def _is_raw(plan: Plan, rollups: RollupSource) -> bool:
    """Return whether a sub query reads raw points whatever rollups there are."""
    spec = plan.sub.downsample
    return not is_pre_aggregated(plan, rollups) and (spec is None or not intervals_for(rollups, spec))


def _merged(query: Query, sub: SubQuery, scan: ScanRange, page: PointPage) -> tuple[Points, int]:
    """Return the points of an answer, and how many were interpolated."""
    spec, quirks = sub.downsample, query.quirks
    sink = Downsampler(spec, query.start_ms, query.end_ms, scan, quirks=quirks) if spec else PointJoiner()
    sink.feed(page.batch)
    columns: SeriesColumns = sink.finish(1)
    if sub.rate:
        rates = [rate(columns[0], sub.rate_options, scan.start_ms, quirks=quirks)]
        return merge(rates, sub.aggregator, scan, quirks=quirks)
    return merge(Chosen(columns, ONLY), sub.aggregator, scan, quirks=quirks)
