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
from weakref import ReferenceType, ref

import numpy as np

from tsd.codec.points import NO_POINTS, Columns, Int32, Points, doubles_as_points
from tsd.errors import BadQuery
from tsd.query.assemble import counts_of
from tsd.query.buckets import buckets_of, within
from tsd.query.collect import POINT_BYTES, SERIES_BYTES, SMALL, ReadCounts
from tsd.query.columns import Chosen
from tsd.query.downsample import Downsampler
from tsd.query.fold import HAS_LOOP, can_fold, fold_batch
from tsd.query.limits import Limits, QueryMemory, check_fetched
from tsd.query.merge import merge, merge_only, rate
from tsd.query.model import Fill, Query, SubQuery
from tsd.query.plan import Plan, scan_range
from tsd.query.result import Answer, Group, SubAnswer, is_histogram
from tsd.query.rollups import intervals_for, is_pre_aggregated
from tsd.store.scheduling import IngestLoad
from tsd.tables.open_points import HOUR_MS, OpenPointSource, rows_of
from tsd.tables.quirks import Quirks
from tsd.tables.reading import UNWANTED, OnlySeries, PointPage, RollupSource, ScanRange, Selection
from tsd.tables.writing import KnownSeries

FEW_HOURS = 8  # of a query: each is a row
FEW_LISTED = 64  # series that are looked at one by one
KEPT, SHORT = 1000, 300  # sub queries that are kept, and the characters of each


class _Known(NamedTuple):
    """What is known of a sub query with one series."""

    series: OnlySeries
    metric: bytes  # as lines have it
    group: Group  # without points
    tsuids: Sequence[bytes]  # of its series
    filter_tagks: Sequence[bytes] | None
    resolved: int  # names that were looked up
    listed: ReferenceType[KnownSeries] | None  # of the metric in memory; many queries must not keep old lists
    number: Int32 | None  # of the series among these, empty if it is not there; None: it is not known


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

    async def learn(self, query: Query, plan: Plan, answer: SubAnswer) -> None:
        """Keep the way to the rows of a query that the general way has answered, if it has one series."""
        sub, selection = plan.sub, plan.selection
        if self._open_points is None or not _is_simple(query, sub) or plan.scan.hours > FEW_HOURS:
            return
        if len(answer.groups) != 1 or answer.warnings or len(selection.series.pairs) != 1:
            return
        if len(selection.series.numbers) > FEW_LISTED:  # all of them would be kept
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
        listed = self._open_points.known_series(metric.encode())
        number = None if listed is None else await _number_of(pairs, selection, listed)
        held = None if listed is None else ref(listed)
        self._known.pop((sub, query.quirks), None)  # the newest comes last
        self._known[sub, query.quirks] = _Known(
            series, metric.encode(), bare, tsuids, answer.filter_tagks, resolved, held, number
        )
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
        started = perf_counter()
        listed = None if known.listed is None else known.listed()
        columns = self._open_points.points_now(known.metric, scan, listed, known.number)  # before stored points
        if columns is None:
            return None
        page = known.series.read(scan, annotations=not query.no_annotations)
        if page is None or page.annotations or page.warnings:
            return None
        pages = [page]
        if len(columns.series):
            rows = _open_row(columns, scan)
            if rows is None or (len(page.batch.times) and page.batch.times[-1] >= rows.batch.times[0]):
                return None  # points of several hours, or stored ones of the open hour
            pages.append(rows)
        counts = _counts_of(pages)
        if not self._allows(query, known.metric.decode(), counts):
            return None
        read = perf_counter()
        groups = []
        if counts.points:
            points, interpolated = _merged(query, sub, scan, pages)
            group = Group(**vars(known.group))  # `replace` takes several times as long
            group.points, group.interpolated = points, interpolated
            group.tsuids = known.tsuids if query.show_tsuids else ()
            groups.append(group)
        merged = perf_counter()
        scan_ms = (read - started) * 1000
        stats = counts_of(counts, known.resolved)
        stats["queryScanTime"] = stats["scannerTime"] = scan_ms
        stats["aggregationTime"] = (merged - read) * 1000
        found = SubAnswer(sub, groups, filter_tagks=known.filter_tagks, duplicates=counts.duplicates, stats=stats)
        self.answered += 1
        return Answer(query, [found])

    def _allows(self, query: Query, metric: str, read: ReadCounts) -> bool:
        """Return whether what was read is small and within all limits."""
        points = read.points
        if points > SMALL or self._memory.held + SERIES_BYTES + points * POINT_BYTES > self._memory.limit:
            return False
        bounds = self._limits.bounds(
            metric, override_size=query.override_byte_limit, override_points=query.override_point_limit
        )
        try:
            check_fetched(bounds, size=read.size, points=points)
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


async def _number_of(pairs: bytes, selection: Selection, listed: KnownSeries) -> Int32 | None:
    """Return the number of a selection's only series in memory, empty if it is not there. None: others match, or
    they are too many to look at each."""
    places = await selection.find_known(listed)
    if len(listed if places is None else places) > FEW_LISTED:
        return None
    some = range(len(listed)) if places is None else places.tolist()
    series = selection.series
    each = selection.pairs_of(listed.keys.at(some))
    await series.match([one for one in each if one is not None])
    matching = [place for place, one in zip(some, each, strict=True) if one and series.numbers[one] != UNWANTED]
    # After names have changed, a series may have two numbers.
    return listed.numbers[matching] if series.pairs == [pairs] and len(matching) < 2 else None


def _open_row(columns: Columns, scan: ScanRange) -> PointPage | None:
    """Return open points of one series as a page, None if they are not of one hour of the scan."""
    first, last = int(columns.instants.min()) // 2, int(columns.instants.max()) // 2
    if first // HOUR_MS != last // HOUR_MS or first < scan.start_ms or last >= scan.stop_ms:
        return None
    return rows_of(columns).decode()


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


def _downsampled(query: Query, sub: SubQuery, scan: ScanRange, pages: Sequence[PointPage]) -> Points:
    """Return the points of the only series, downsampled if the query says so."""
    spec = sub.downsample
    batches = [page.batch for page in pages if len(page.batch.times)]
    if spec is None:
        if len(batches) == 1:
            return Points(*batches[0][2:])
        return Points(*(np.concatenate(columns) for columns in zip(*(batch[2:] for batch in batches), strict=True)))
    buckets = buckets_of(spec, query.start_ms, query.end_ms, scan)
    if spec.fill is Fill.NONE and buckets.within_hours and HAS_LOOP and can_fold(spec.function):
        folded = [fold_batch(within(batch, buckets.span), spec.interval_ms, spec.function) for batch in batches]
        if len(folded) == 1:
            return doubles_as_points(folded[0].flat_stamps(), folded[0].values)
        stamps = np.concatenate([one.flat_stamps() for one in folded])
        return doubles_as_points(stamps, np.concatenate([one.values for one in folded]))
    sink = Downsampler(spec, query.start_ms, query.end_ms, scan, quirks=query.quirks)
    for batch in batches:
        sink.feed(batch)
    return sink.finish(1)[0]
