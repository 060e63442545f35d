"""Percentiles and buckets of histograms, each as a series (docs/compat/query.md §18)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from tsd.codec.names import Kind
from tsd.codec.points import Batch, Bucket, Histogram, Points, doubles_as_points, in_order
from tsd.codec.text import show_double
from tsd.query.buckets import buckets_of
from tsd.query.collect import POINT_BYTES, SERIES_BYTES, ReadCounts
from tsd.query.limits import QueryBudget, check_fetched
from tsd.query.model import NONE, Query, SubQuery
from tsd.query.parse.uri import shortest_float
from tsd.query.plan import Plan
from tsd.query.result import Group
from tsd.query.tag_groups import CommonTags, common_tags, grouped
from tsd.query.workers import check_cancelled
from tsd.tables.reading import EncodedPage, HistogramPage, HistogramSource, PointPage

_LONG = 1 << 64
HISTOGRAM_BYTES, BUCKET_BYTES = 600, 350  # twice the memory of one: sums of groups need as much
SLICE_BUCKETS = 50_000  # added without a pause
HISTOGRAM_BUCKETS = 10  # buckets that take as long to add as a histogram without buckets

HistogramsBySeries = dict[int, dict[int, Histogram]]  # by number, by time in ms


def added(histograms: Iterable[Histogram]) -> Histogram:
    """Add histograms bucket by bucket; counts wrap as 64-bit integers.

    >>> one = Histogram((Bucket(0.0, 1.0, 2),), underflow=1)
    >>> added([one, Histogram((Bucket(0.0, 1.0, 3), Bucket(1.0, 2.0, 1)), overflow=4)])
    Histogram(buckets=(Bucket(lower=0.0, upper=1.0, values=5), Bucket(lower=1.0, upper=2.0, values=1)), \
underflow=1, overflow=4)
    """
    counts: dict[tuple[float, float], int] = {}
    underflow = overflow = 0
    for histogram in histograms:
        underflow += histogram.underflow
        overflow += histogram.overflow
        for lower, upper, values in histogram.buckets:
            counts[lower, upper] = counts.get((lower, upper), 0) + values
    buckets = (Bucket(lower, upper, _wrapped(values)) for (lower, upper), values in counts.items())
    return Histogram(tuple(in_order(buckets)), _wrapped(underflow), _wrapped(overflow))


def _wrapped(number: int) -> int:
    return (number + (_LONG >> 1)) % _LONG - (_LONG >> 1)


def percentile(histogram: Histogram, wanted: float) -> float:
    """Return the middle of the bucket with a percentile; under- and overflow do not count.

    >>> percentile(Histogram((Bucket(0.0, 1.0, 9), Bucket(1.0, 2.0, 1))), 90.0)
    0.5
    >>> percentile(Histogram((Bucket(0.0, 1.0, 9), Bucket(1.0, 2.0, 1))), 95.0)
    1.5
    """
    if wanted < 1:
        return -1.0
    total = sum(bucket.values for bucket in histogram.buckets)
    cumulated = 0
    for lower, upper, values in histogram.buckets:
        cumulated += values
        if total and 100.0 * cumulated / total >= wanted:
            return (lower + upper) / 2
    return 0.0


class _UnnamedHistogram(NamedTuple):
    """A group, before its names are looked up."""

    series_pairs: list[bytes]  # of its series, in order
    common: CommonTags
    answers: list[tuple[str, Points]]


class HistogramQuery:
    """A sub query about histograms."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        source: HistogramSource,
        budget: QueryBudget,
        slice_buckets: int = SLICE_BUCKETS,
    ) -> None:
        """`slice_buckets`: buckets added in one thread call."""
        self._slice_buckets = slice_buckets
        self._query = query
        self._plan = plan
        self._source = source
        self._budget = budget
        self._series = plan.selection.series
        self._found: HistogramsBySeries = {}
        self._held = 0  # bytes
        self._listed = ReadCounts()  # of the rows to delete
        self.read = ReadCounts()

    async def groups(self) -> list[Group]:
        """Return the groups. Raise BadQuery, StoreError."""
        budget, plan = self._budget, self._plan
        run = budget.workers.run
        if self._query.delete:
            await plan.selection.read(plan.rows, self._list, annotations=False)
        await self._source.read(plan.rows, self._take)
        held = self._held + len(self._series.series_pairs) * SERIES_BYTES
        groups: list[Group] = []
        for part in slices(await run(self._grouped), self._found, self._slice_buckets):
            series = [[self._found.pop(number) for number in members] for members in part]
            merged = await run(partial(_all_merged, self._query, plan, series))
            held += sum(answer_size(one, plan.sub) for one in merged)
            budget.set_memory(held)
            members = [[self._series.series_pairs[number] for number in numbers] for numbers in part]
            groups += await self._named(await run(partial(self._answered, members, merged)))
        return groups

    async def _list(self, page: EncodedPage[PointPage]) -> None:
        """Decode a page of whole rows, so that the selection can delete them: also their points. Raise BadQuery beyond
        the limits of a query that reads them."""
        await self._series.match(page.series())
        decoded = await self._budget.workers.run(page.decode)
        listed = self._listed
        listed.size += decoded.size
        listed.points += len(decoded.batch.times)
        check_fetched(self._budget.bounds, size=listed.size, points=listed.points)
        self._budget.set_memory(listed.size + len(self._series.series_pairs) * SERIES_BYTES)

    async def _take(self, page: EncodedPage[HistogramPage]) -> None:
        await self._series.match(page.series())
        await self._budget.workers.run(lambda: self._add(page.decode()))
        check_fetched(self._budget.bounds, size=self.read.size, points=self.read.points)
        self._budget.set_memory(self._held + len(self._series.series_pairs) * SERIES_BYTES)

    def _add(self, page: HistogramPage) -> None:
        read = self.read
        read.rows_read += page.rows_read
        read.rows_wanted += page.rows_wanted
        read.size += page.size
        read.warn(page.warnings)
        for number, time_ms, histogram in page.histograms:
            of_series = self._found.setdefault(number, {})
            read.points += 1
            read.duplicates += time_ms in of_series
            of_series[time_ms] = histogram
            self._held += HISTOGRAM_BYTES + len(histogram.buckets) * BUCKET_BYTES

    def _grouped(self) -> list[list[int]]:
        """Return the series with histograms, by groups, in order."""
        series = self._series
        order = series.order(self._found)
        ordered = [series.series_pairs[number] for number in order]
        places = grouped(ordered, series.widths, series.group_by, each=self._plan.sub.aggregator == NONE)
        return [[order[place] for place in group.tolist()] for group in places]

    def _answered(
        self, groups: Sequence[list[bytes]], merged: Sequence[Mapping[int, Histogram]]
    ) -> list[_UnnamedHistogram]:
        """Return the answers of some groups: for each the tag pairs of its series, and its histograms."""
        widths, sub = self._series.widths, self._plan.sub
        return [
            _UnnamedHistogram(series_pairs, common_tags(series_pairs, widths), answers_of(each, sub))
            for series_pairs, each in zip(groups, merged, strict=True)
        ]

    async def _named(self, found: Sequence[_UnnamedHistogram]) -> list[Group]:
        """Return the answers of some groups, with their names."""
        series, metric = self._series, self._plan.selection.metric
        tagks = dict.fromkeys(uid for one in found for uid in (*one.common.tags, *one.common.aggregated))
        tagvs = dict.fromkeys(uid for one in found for uid in one.common.tags.values())
        keys = await series.names(Kind.TAGK, list(tagks))
        values = await series.names(Kind.TAGV, list(tagvs))
        return [
            Group(
                metric + suffix,
                {keys[tagk]: values[tagv] for tagk, tagv in one.common.tags.items()},
                [keys[tagk] for tagk in one.common.aggregated],
                tsuids=[series.tsuid(pairs) for pairs in one.series_pairs] if self._query.show_tsuids else (),
                points=points,
                tag_uids=one.common.tags,
                aggregate_tag_uids=one.common.aggregated,
            )
            for one in found
            for suffix, points in one.answers
        ]


def slices(
    groups: Sequence[list[int]], series: HistogramsBySeries, slice_buckets: int = SLICE_BUCKETS
) -> Iterator[Sequence[list[int]]]:
    """Split groups into slices of about `slice_buckets`: a thread call for each group would cost more than its work."""
    part: list[list[int]] = []
    size = 0
    for members in groups:
        part.append(members)
        size += sum(HISTOGRAM_BUCKETS + len(one.buckets) for number in members for one in series[number].values())
        if size >= slice_buckets:
            yield part
            part, size = [], 0
    if part:
        yield part


def _all_merged(
    query: Query, plan: Plan, groups: Iterable[Sequence[Mapping[int, Histogram]]]
) -> list[dict[int, Histogram]]:
    return [_merged(query, plan, series) for series in groups]


def _merged(query: Query, plan: Plan, series: Sequence[Mapping[int, Histogram]]) -> dict[int, Histogram]:
    """Return the histograms of a group by time, or by bucket of the downsampler."""
    found: dict[int, list[Histogram]] = {}
    for one in series:
        check_cancelled()
        times = np.array(sorted(one), np.int64)
        stamps = times
        if plan.sub.downsample is not None:
            buckets = buckets_of(plan.sub.downsample, query.start_ms, query.end_ms, plan.scan)
            times = times[(times >= buckets.span[0]) & (times < buckets.span[1])]
            starts = np.array([0, len(times)], np.int64)
            none = np.zeros(len(times), np.int64)
            batch = Batch(np.zeros(1, np.int32), starts, times, none, none.astype(np.bool_))
            stamps = buckets.stamps(buckets.labels(batch))
        for time_ms, stamp in zip(times.tolist(), stamps.tolist(), strict=True):
            found.setdefault(stamp, []).append(one[time_ms])
    merged = {}
    for stamp in sorted(found):
        check_cancelled()
        merged[stamp] = added(found[stamp])
    return merged


def answer_size(merged: Mapping[int, Histogram], sub: SubQuery) -> int:
    """Return about how many bytes `answers_of` returns."""
    answers, points = len(sub.percentiles), len(sub.percentiles) * len(merged)
    if sub.show_histogram_buckets:
        sizes = [len(histogram.buckets) for histogram in merged.values()]
        answers, points = answers + max(sizes, default=0) + 2, points + sum(sizes) + 2 * len(sizes)
    return answers * SERIES_BYTES + points * POINT_BYTES


def answers_of(merged: Mapping[int, Histogram], sub: SubQuery) -> list[tuple[str, Points]]:
    """Return the answers of a group: suffixes of the metric, and points."""
    times = np.fromiter(merged, np.int64, len(merged))
    found: list[tuple[str, Points]] = []
    for wanted in sub.percentiles:
        check_cancelled()
        values = np.array([percentile(histogram, wanted) for histogram in merged.values()], np.float64)
        found.append((f"_pct_{_shown(wanted)}", doubles_as_points(times, values)))
    if sub.show_histogram_buckets:
        found += _buckets(merged)
    return found


def _buckets(merged: Mapping[int, Histogram]) -> list[tuple[str, Points]]:
    """Return a series for each bucket, with the times that have it."""
    counts: dict[tuple[float, float], dict[int, int]] = {}
    for time_ms, histogram in merged.items():
        for lower, upper, values in histogram.buckets:
            counts.setdefault((lower, upper), {})[time_ms] = values
    return [
        ("_UNDERFLOW", _integers({time_ms: one.underflow for time_ms, one in merged.items()})),
        *((f"_{_shown(lower)}_{_shown(upper)}", _integers(counts[lower, upper])) for lower, upper in sorted(counts)),
        ("_OVERFLOW", _integers({time_ms: one.overflow for time_ms, one in merged.items()})),
    ]


def _shown(number: float) -> str:
    """Return a 32-bit number as Java writes it.

    >>> _shown(3.0), _shown(1e7)
    ('3.0', '1.0E7')
    """
    return show_double(shortest_float(number)).strip('"')


def _integers(values: Mapping[int, int]) -> Points:
    times = np.fromiter(values, np.int64, len(values))
    return Points(times, np.fromiter(values.values(), np.int64, len(values)), np.zeros(len(values), np.bool_))
