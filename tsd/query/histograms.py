"""Histograms of a sub query → its percentiles and its buckets, each a series of its own (query.md §18)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from tsd.codec.cell import COLUMN
from tsd.codec.histogram import (
    HISTOGRAM,
    Bucket,
    Histogram,
    decode_histogram,
    histogram_offset_ms,
    in_order,
    split_value,
)
from tsd.codec.jsontext import show_double
from tsd.codec.rowkey import Layout, salt_of
from tsd.codec.uid import Kind
from tsd.errors import CorruptRow
from tsd.query.answers import Group
from tsd.query.assembling import names_of
from tsd.query.buckets import buckets_of
from tsd.query.gathering import MOST_WARNINGS, POINT_BYTES, SERIES_BYTES, Tally
from tsd.query.groups import CommonTags, common_tags, grouped
from tsd.query.limits import Allowance, check_fetched
from tsd.query.model import Query, SubQuery
from tsd.query.names import NONE
from tsd.query.plan import Plan
from tsd.query.points import Batch, Points, doubles_as_points
from tsd.query.reading import key_ranges, read_ranges
from tsd.query.selecting import UNWANTED, Selection, by_key
from tsd.query.uri import shortest_float
from tsd.store import Store
from tsd.store.cells import CellPage
from tsd.uids import Uids

_COLUMN = COLUMN + HISTOGRAM
_LONG = 1 << 64
HISTOGRAM_BYTES, BUCKET_BYTES = 600, 350  # twice what one needs: those of a group are added up beside them
SLICE_BUCKETS = 50_000  # added up in one go
HISTOGRAM_BUCKETS = 10  # that a histogram takes the time of, beside its own

Series = dict[int, dict[int, Histogram]]  # by series' number, by time in ms


def added(histograms: Iterable[Histogram]) -> Histogram:
    """Histograms as one, bucket by bucket, of however many together; counts wrap as 64-bit integers.

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
    """The middle of the bucket in which a percentile lies; under- and overflow do not count.

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


class _Found(NamedTuple):
    """A group, before its tags have names."""

    pairs: list[bytes]  # of its series, in order
    common: CommonTags
    answers: list[tuple[str, Points]]


class _Cells:
    """The histograms that have been read for a sub query."""

    def __init__(self, selection: Selection, layout: Layout, simple_id: int) -> None:
        self._selection = selection
        self._layout = layout
        self._simple_id = simple_id
        self.series: Series = {}
        self.tally = Tally()
        self.held = 0  # bytes

    def take(self, page: CellPage) -> None:
        """Take in a page, whose series have been met. One that cannot be read is told of."""
        layout, tally, numbers = self._layout, self.tally, self._selection.numbers
        wanted = [at for at, key in enumerate(page.keys) if numbers[key[layout.pairs_start :]] != UNWANTED]
        tally.rows_read += len(set(page.keys))
        tally.rows_wanted += len({page.keys[at] for at in wanted})
        for at in wanted:
            key, (column, value, _) = page.keys[at], page.cell(at)
            tally.size += len(column) + len(value)
            if not column.startswith(_COLUMN) or not len(column) & 1:
                continue
            base = int.from_bytes(key[layout.metric_end : layout.pairs_start], "big")
            try:
                time_ms = base * 1000 + histogram_offset_ms(column[len(COLUMN) :])
                histogram = self._read(value)
            except CorruptRow as exc:
                if len(tally.warnings) < MOST_WARNINGS:
                    tally.warnings.append(f"histogram {column.hex()} in row {key.hex()}: {exc}")
                continue
            of_series = self.series.setdefault(numbers[key[layout.pairs_start :]], {})
            tally.points += 1
            tally.duplicates += time_ms in of_series
            of_series[time_ms] = histogram
            self.held += HISTOGRAM_BYTES + len(histogram.buckets) * BUCKET_BYTES

    def _read(self, value: bytes) -> Histogram:
        """The histogram of a cell; raises CorruptRow."""
        codec_id, payload = split_value(value)
        if codec_id != self._simple_id:
            raise CorruptRow(f"no codec has the id {codec_id}")
        return decode_histogram(payload)


class HistogramReader:
    """Reads what a sub query wants of histograms."""

    def __init__(self, store: Store, table: str, layout: Layout, uids: Uids, simple_id: int) -> None:
        self._store = store
        self._table = table
        self._layout = layout
        self._uids = uids
        self._simple_id = simple_id

    async def groups(
        self, query: Query, plan: Plan, selection: Selection, metric: str, allowance: Allowance
    ) -> tuple[list[Group], Tally]:
        """The groups of a plan that asks for percentiles or buckets, and what was read. Raises BadQuery, StoreError."""
        cells, run = _Cells(selection, self._layout, self._simple_id), allowance.threads.run
        start = self._layout.pairs_start

        async def take(page: CellPage) -> None:
            await selection.meet({key[start:] for key in page.keys})
            await run(partial(cells.take, page))
            check_fetched(allowance.bounds, size=cells.tally.size, points=cells.tally.points)
            allowance.hold(cells.held + len(selection.wanted) * SERIES_BYTES)

        await read_ranges(self._store, self._table, key_ranges(self._layout, plan), take, at_once=1)
        held = cells.held + len(selection.wanted) * SERIES_BYTES
        found: list[Group] = []
        for part in slices(await run(partial(self._grouped, plan, selection, cells.series)), cells.series):
            series = [[cells.series.pop(number) for number in members] for members in part]
            merged = await run(partial(_all_merged, query, plan, series, allowance.check))
            held += sum(answer_size(one, plan.sub) for one in merged)
            allowance.hold(held)
            pairs = [[selection.wanted[number] for number in members] for members in part]
            made = await run(partial(self._answered, plan, pairs, merged, allowance.check))
            found += await self._named(metric, made, query, plan, selection)
        return found, cells.tally

    def _grouped(self, plan: Plan, selection: Selection, cells: Series) -> list[list[int]]:
        """The series with histograms, by groups, in order."""
        layout = self._layout
        numbers = sorted(cells)
        pairs = [selection.wanted[number] for number in numbers]
        salts = [salt_of(plan.metric or b"", one, layout.salt_width, layout.salt_buckets) for one in pairs]
        order = [numbers[place] for place in by_key(pairs, salts)]
        ordered = [selection.wanted[number] for number in order]
        places = grouped(ordered, layout.widths, plan.group_by, each=plan.sub.aggregator == NONE)
        return [[order[place] for place in group] for group in places]

    def _answered(
        self,
        plan: Plan,
        groups: Sequence[list[bytes]],
        merged: Sequence[Mapping[int, Histogram]],
        check: Callable[[], None],
    ) -> list[_Found]:
        """What is answered of some groups: of each the tag pairs of its series, and its histograms."""
        widths = self._layout.widths
        return [
            _Found(pairs, common_tags(pairs, widths), answers_of(each, plan.sub, check))
            for pairs, each in zip(groups, merged, strict=True)
        ]

    async def _named(
        self, metric: str, found: Sequence[_Found], query: Query, plan: Plan, selection: Selection
    ) -> list[Group]:
        """The answers of some groups, with their names."""
        tagks = dict.fromkeys(uid for one in found for uid in (*one.common.tags, *one.common.aggregated))
        tagvs = dict.fromkeys(uid for one in found for uid in one.common.tags.values())
        keys = await names_of(self._uids, Kind.TAGK, list(tagks), selection.nameless)
        values = await names_of(self._uids, Kind.TAGV, list(tagvs), selection.nameless)
        return [
            Group(
                metric + suffix,
                {keys[tagk]: values[tagv] for tagk, tagv in one.common.tags.items()},
                [keys[tagk] for tagk in one.common.aggregated],
                tsuids=[(plan.metric or b"") + pairs for pairs in one.pairs] if query.show_tsuids else (),
                points=points,
                tag_uids=one.common.tags,
                aggregate_tag_uids=one.common.aggregated,
            )
            for one in found
            for suffix, points in one.answers
        ]


def slices(groups: Sequence[list[int]], series: Series) -> Iterator[Sequence[list[int]]]:
    """Groups, some at once: as many as have about so many buckets. A thread for each would cost more than its work."""
    part: list[list[int]] = []
    size = 0
    for members in groups:
        part.append(members)
        size += sum(HISTOGRAM_BUCKETS + len(one.buckets) for number in members for one in series[number].values())
        if size >= SLICE_BUCKETS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _all_merged(
    query: Query, plan: Plan, groups: Iterable[Sequence[Mapping[int, Histogram]]], check: Callable[[], None]
) -> list[dict[int, Histogram]]:
    return [_merged(query, plan, series, check) for series in groups]


def _merged(
    query: Query, plan: Plan, series: Sequence[Mapping[int, Histogram]], check: Callable[[], None]
) -> dict[int, Histogram]:
    """The histograms of a group by time, or by bucket of its downsampler."""
    found: dict[int, list[Histogram]] = {}
    for one in series:
        check()
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
        check()
        merged[stamp] = added(found[stamp])
    return merged


def answer_size(merged: Mapping[int, Histogram], sub: SubQuery) -> int:
    """About how many bytes `answers_of` makes."""
    answers, points = len(sub.percentiles), len(sub.percentiles) * len(merged)
    if sub.show_histogram_buckets:
        sizes = [len(histogram.buckets) for histogram in merged.values()]
        answers, points = answers + max(sizes, default=0) + 2, points + sum(sizes) + 2 * len(sizes)
    return answers * SERIES_BYTES + points * POINT_BYTES


def answers_of(merged: Mapping[int, Histogram], sub: SubQuery, check: Callable[[], None]) -> list[tuple[str, Points]]:
    """What is answered of a group's histograms: what to put behind the metric, and the points."""
    times = np.fromiter(merged, np.int64, len(merged))
    found: list[tuple[str, Points]] = []
    for wanted in sub.percentiles:
        check()
        values = np.array([percentile(histogram, wanted) for histogram in merged.values()], np.float64)
        found.append((f"_pct_{_shown(wanted)}", doubles_as_points(times, values)))
    if sub.show_histogram_buckets:
        found += _buckets(merged)
    return found


def _buckets(merged: Mapping[int, Histogram]) -> list[tuple[str, Points]]:
    """A series for each bucket, of the times that have it."""
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
    """A number of 32 bits as Java writes it.

    >>> _shown(3.0), _shown(1e7)
    ('3.0', '1.0E7')
    """
    return show_double(shortest_float(number)).strip('"')


def _integers(values: Mapping[int, int]) -> Points:
    times = np.fromiter(values, np.int64, len(values))
    return Points(times, np.fromiter(values.values(), np.int64, len(values)), np.zeros(len(values), np.bool_))
