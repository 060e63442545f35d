"""Parts of the numeric code that generated queries rarely reach."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from tests.cases import all_of
from tests.query_reference import merged_series
from tests.query_vectors import batches, from_points, to_points
from tsd.codec.points import Batch, Points, doubles_as_points
from tsd.errors import BadQuery
from tsd.query.aggregate import BY_NAME, Deviation, Extreme
from tsd.query.align import align
from tsd.query.buckets import by_series
from tsd.query.columns import Chosen
from tsd.query.downsample import Downsampler, PointJoiner
from tsd.query.merge import merge, rate, rate_table
from tsd.query.model import PLAIN_RATE, RateOptions
from tsd.query.parse.times import read_downsample
from tsd.query.plan import scan_range
from tsd.tables.reading import HourTable, ScanRange

BASE_S = 1_356_998_400
BASE_MS = BASE_S * 1000


def test_scalar_fill_without_number_fails_only_if_needed() -> None:
    spec = read_downsample("30m-sum-scalar")
    scan = ScanRange(BASE_S, BASE_S + 3600)
    full = {BASE_MS: 1, BASE_MS + 1_800_000: 2}
    for points, works in ((full, True), ({BASE_MS: 1}, False)):
        taking = Downsampler(spec, BASE_MS, BASE_MS + 3_600_000, scan)
        for batch in batches([points], scan, 10):
            taking.feed(batch)
        if works:
            assert from_points(taking.finish(1)[0]) == {BASE_MS: 1.0, BASE_MS + 1_800_000: 2.0}
        else:
            with pytest.raises(BadQuery, match="unhandled fill policy"):
                taking.finish(1)


def test_scalar_fill_uses_its_number() -> None:
    scan = ScanRange(BASE_S, BASE_S + 3600)
    taking = Downsampler(read_downsample("30m-sum-scalar")._replace(scalar=7.0), BASE_MS, BASE_MS + 3_600_000, scan)
    for batch in batches([{BASE_MS: 1}], scan, 10):
        taking.feed(batch)
    assert from_points(taking.finish(1)[0]) == {BASE_MS: 1.0, BASE_MS + 1_800_000: 7.0}


def test_unknown_zone_is_refused() -> None:
    spec = read_downsample("1dc-sum", zone="Nope/Zone")
    with pytest.raises(BadQuery, match="The timezone specification could not be found"):
        Downsampler(spec, BASE_MS, BASE_MS + 1, ScanRange(BASE_S, BASE_S + 3600))


def test_series_without_points_is_empty_or_filled() -> None:
    scan = ScanRange(BASE_S, BASE_S + 3600)
    empty = Batch(np.array([0], np.int32), np.array([0, 0]), *(np.empty(0, np.int64),) * 2, np.empty(0, np.bool_))
    for taking in (PointJoiner(), Downsampler(read_downsample("1m-sum"), BASE_MS, BASE_MS + 1, scan)):
        taking.feed(empty)
        assert [len(points.times) for points in taking.finish(2)] == [0, 0]
    filling = Downsampler(read_downsample("30m-sum-zero"), BASE_MS, BASE_MS + 1, scan)
    assert [from_points(points) for points in filling.finish(1)] == [{BASE_MS: 0.0, BASE_MS + 1_800_000: 0.0}]


def test_size_of_a_fill_is_known_beforehand() -> None:
    year = ScanRange(BASE_S, BASE_S + 366 * 86400)
    for text, points in (("1ms-sum-nan", 366 * 86_400_000), ("1msc-sum-zero", 366 * 86_400_000 + 1), ("1ms-sum", 0)):
        taking = Downsampler(read_downsample(text), BASE_MS, year.stop_ms - 1, year)
        assert taking.answer_size(10) == 10 * points


def test_complete_buckets_hold_no_values() -> None:
    scan = ScanRange(BASE_S, BASE_S + 2 * 3600)
    taking = Downsampler(read_downsample("1h-p50"), BASE_MS, BASE_MS + 7_200_000, scan)
    series = [{BASE_MS + second * 1000: second % 100 for second in range(0, 7200, 10)}]
    for batch in batches(series, scan, 1):
        taking.feed(batch)
        assert taking.held == 0
    assert [v for points in taking.finish(1) for v in from_points(points).values()] == [45.0, 45.0]


def test_percentiles_hold_values_of_open_buckets_only() -> None:
    scan = ScanRange(BASE_S, BASE_S + 4 * 3600)
    taking = Downsampler(read_downsample("2h-median"), BASE_MS, BASE_MS + 4 * 3_600_000, scan)
    kept = []
    for batch in batches([{BASE_MS + hour * 3_600_000: hour for hour in range(4)}], scan, 1):
        taking.feed(batch)
        kept.append(taking.held)
    assert kept == [1, 2, 1, 2]
    assert list(from_points(taking.finish(1)[0]).values()) == [1.0, 3.0]


@pytest.mark.parametrize("text", ["10m-sum", "1h-count", "10m-p90", "1m-avg-nan", "30m-dev", "10m-first", "1h-last"])
def test_hours_that_come_in_parts_have_the_buckets_of_whole_ones(text: str) -> None:
    scan = ScanRange(BASE_S, BASE_S + 2 * 3600)
    series = [{BASE_MS + second * 1000: second % (7 + one) for second in range(one, 7200, 9)} for one in range(3)]
    answers = []
    for in_parts in (False, True):
        taking = Downsampler(
            read_downsample(text), BASE_MS, BASE_MS + 7_200_000, scan, compiled=not in_parts, hours_in_parts=in_parts
        )
        for batch in batches(series, scan, 2):
            for part in halves(batch) if in_parts else [batch]:
                taking.feed(part)
        answers.append([from_points(points) for points in taking.finish(3)])
    assert answers[0] == answers[1]


def halves(batch: Batch) -> list[Batch]:
    """Return the first points of each row, then the others."""
    cuts = (batch.starts[:-1] + batch.starts[1:] * 2) // 3
    found = []
    for begins, ends in ((batch.starts[:-1], cuts), (cuts, batch.starts[1:])):
        places = np.concatenate([np.arange(*pair) for pair in zip(begins, ends, strict=True)])
        starts = np.append(0, np.cumsum(ends - begins))
        found.append(Batch(batch.series, starts, batch.times[places], batch.bits[places], batch.floats[places]))
    return found


def test_deviation_of_long_and_short_runs_is_equal() -> None:
    values = np.random.default_rng(3).normal(0, 1e6, 1200)
    long, short = Deviation(integers=False), Deviation(integers=False)
    long.grow(1)
    long.runs(np.array([0]), np.array([0, 1200]), values)  # value by value
    short.grow(400)
    slots = np.arange(400)
    for part in values.reshape(-1, 3):
        short.runs(slots, np.arange(401) * 3, np.tile(part, 400))  # a lane of 400 at once
    assert set(short.result().tolist()) == set(long.result().tolist())


@pytest.mark.parametrize("highest", [True, False])
def test_extreme_of_signed_zeros_is_the_first(highest: bool) -> None:
    for first, second in ((0.0, -0.0), (-0.0, 0.0)):
        kernel = Extreme(integers=False, highest=highest)
        kernel.grow(1)
        kernel.runs(np.array([0]), np.array([0, 2]), np.array([first, second]))
        assert math.copysign(1, kernel.result()[0]) == math.copysign(1, first)


@pytest.mark.parametrize("unit", [1, 1000, 60_000, 10_000_000])
def test_alignment_by_table_equals_sorting(unit: int) -> None:
    random = np.random.default_rng(4)
    series = [
        doubles_as_points(BASE_MS + np.unique(random.integers(0, 500, 100)) * unit, np.zeros(0)) for _ in range(5)
    ]
    times, places = align(series)
    assert times.tolist() == sorted({t for points in series for t in points.times.tolist()})
    for points, own in zip(series, places, strict=True):
        assert times[own].tolist() == points.times.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", ["sum", "p90"])
def test_merge_in_blocks_equals_the_reference(aggregator: str) -> None:
    random = np.random.default_rng(5)
    series = []
    for _ in range(3):
        places = np.flatnonzero(random.random(80_000) < 0.7)
        series.append(
            {BASE_MS + place * 1000: value for place, value in zip(places.tolist(), places.tolist()[::-1], strict=True)}
        )
    scan = scan_range(BASE_MS, BASE_MS + 80_000_000, None)
    found = merge(Chosen.all_of(to_points(one) for one in series), aggregator, scan).points
    assert len(found.times) > 70_000
    assert from_points(found) == merged_series(series, [None] * 3, aggregator, scan, rate=False)


def test_rows_of_a_series_are_joined_in_order() -> None:
    scan = ScanRange(BASE_S, BASE_S + 3 * 3600)
    series = [{BASE_MS + hour * 3_600_000 + n: hour for hour in range(3)} for n in range(2)]
    [batch] = batches(series, scan, 100)
    joined = by_series(batch)
    assert joined.series.tolist() == [0, 1]
    assert joined.starts.tolist() == [0, 3, 6]
    assert joined.times.tolist() == [*series[0], *series[1]]


def test_interpolated_values_are_counted() -> None:
    scan = ScanRange(BASE_S, BASE_S + 3600)
    series = Chosen.all_of(
        [to_points({BASE_MS: 1, BASE_MS + 3000: 4}), to_points({BASE_MS + 1000: 1, BASE_MS + 2000: 1})]
    )
    assert merge(series, "sum", scan).interpolated == 2
    assert merge(series, "zimsum", scan).interpolated == 0


ODD = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e17, 3.0]


@all_of(product(sorted(BY_NAME), [1, 2, 50], [True, False]), str)
def test_a_table_is_added_like_its_rows(case: tuple[str, int, bool]) -> None:
    aggregator, width, integers = case
    random = np.random.default_rng(width)
    for odd in (False, True):
        table = random.integers(-100, 100, (300, width))
        if not integers:
            table = random.choice(ODD, table.shape) if odd else table * 0.1
        whole, single = BY_NAME[aggregator].make(integers=integers), BY_NAME[aggregator].make(integers=integers)
        whole.grow(width)
        single.grow(width)
        with np.errstate(all="ignore"):
            for part in (table[:1], table[1:200], table[200:]):
                whole.rows(part)
            for row in table:
                single.column(0, row)
            found, wanted = whole.result(), single.result()
        np.testing.assert_array_equal(found, wanted)
        assert np.signbit(found).tolist() == np.signbit(wanted).tolist() or np.isnan(wanted).any()


@pytest.mark.parametrize("aggregator", ["sum", "min", "count", "p90"])
def test_series_without_some_times_are_merged_with_others(aggregator: str) -> None:
    whole = {BASE_MS + place * 1000: place / 7 for place in range(100)}
    gaps = {time: value for time, value in whole.items() if time % 3000 and BASE_MS + 9000 < time < BASE_MS + 80_000}
    scan = ScanRange(BASE_S, BASE_S + 3600)
    for series in ([whole, whole], [whole, gaps, whole, whole], [gaps, whole, gaps], [gaps, gaps], [whole, {}, whole]):
        found = merge(Chosen.all_of(map(to_points, series)), aggregator, scan).points
        assert from_points(found) == merged_series(series, [None] * len(series), aggregator, scan, rate=False)


@all_of(sorted(BY_NAME), str)
def test_one_series_is_merged_like_two_in_a_row(aggregator: str) -> None:
    scan = ScanRange(BASE_S, BASE_S + 3600)
    columns = [
        {BASE_MS + place * 1000: value for place, value in enumerate(values)}
        for values in (ODD, [1, 2, 1 << 62], [1, 2.5, 3], [2.5, 3.5], [])
    ]
    for series in columns:
        series = {BASE_MS - 1000: 4.5 if any(isinstance(one, float) for one in series.values()) else 4, **series}
        series |= {BASE_MS + 3_600_001: next(iter(series.values()))}
        found = merge(Chosen.all_of([to_points(series)]), aggregator, scan).points
        within = {time: value for time, value in series.items() if time >= BASE_MS}
        wanted = merged_series([within], [None], aggregator, scan, rate=False)
        assert str(from_points(found)) == str(wanted)


def rows_of(series: list[Points], numbers: slice, places: slice) -> Batch:
    """Return a batch with some points of some series. Series without points have no row."""
    rows = [(number, one.at(places)) for number, one in list(enumerate(series))[numbers] if len(one.times)]
    starts = np.cumsum([0, *(len(one.times) for _, one in rows)])
    columns = (np.concatenate(column) for column in zip(*(one for _, one in rows), strict=True))
    return Batch(np.array([number for number, _ in rows], np.int32), starts, *columns)


EVERY = slice(None)
BY_SERIES = ((slice(0, 3), EVERY), (slice(3, 5), EVERY))
BY_TIME = ((EVERY, slice(0, 4)), (EVERY, slice(4, 5)), (EVERY, slice(5, None)))


@pytest.mark.parametrize("missing", [None, 0, 2, 4])
@pytest.mark.parametrize("parts", [BY_SERIES, BY_TIME], ids=["by series", "by time"])
def test_equal_times_of_series_are_kept_once(missing: int | None, parts: Sequence[tuple[slice, slice]]) -> None:
    same = {BASE_MS + place * 1000: place / 8 for place in range(10)}
    series = [{} if number == missing else {at: value + number for at, value in same.items()} for number in range(5)]
    joiner = PointJoiner()
    for numbers, places in parts:
        joiner.feed(rows_of([to_points(one) for one in series], numbers, places))
    found = joiner.finish(5)
    assert found.shares_times
    assert [from_points(one) for one in found] == series
    scan = ScanRange(BASE_S, BASE_S + 3600)
    merged = merge(Chosen(found, np.arange(5)), "sum", scan).points
    assert from_points(merged) == merged_series([one for one in series if one], [None] * 5, "sum", scan, rate=False)


@pytest.mark.parametrize("odd", [0, 4])
def test_series_with_other_times_are_joined(odd: int) -> None:
    series = [{BASE_MS + place * 1000: place + number for place in range(10)} for number in range(5)]
    series[odd] = {at + 500: value for at, value in series[odd].items()}
    joiner = PointJoiner()
    for numbers, places in BY_TIME:
        joiner.feed(rows_of([to_points(one) for one in series], numbers, places))
    found = joiner.finish(5)
    assert not found.shares_times
    assert [from_points(one) for one in found] == series


def test_hours_of_rows_are_joined_like_their_points() -> None:
    for seed in range(60):
        random = np.random.default_rng(seed)
        series: list[dict[int, float]] = [{} for _ in range(6)]
        joiner, tables = PointJoiner(), list[HourTable]()
        for hour in range(int(random.integers(1, 5))):
            chosen = np.roll(np.arange(6), seed % 5)
            if seed % 3 == 0:
                chosen = chosen[: random.integers(7)]
            offsets = np.sort(random.choice(3600, int(random.integers(1, 5)), replace=False)) * 1000
            values = random.random((len(chosen), len(offsets)))
            base_s = BASE_S + hour * 3600
            for number, row in zip(chosen.tolist(), values.tolist(), strict=True):
                series[number] |= dict(zip((base_s * 1000 + offsets).tolist(), row, strict=True))
            floats = np.ones(values.shape, np.bool_)
            if len(chosen):
                tables.append(HourTable(base_s, chosen.astype(np.int32), offsets, values.view(np.int64), floats))
        pages = [tables] if seed % 4 else [[table] for table in tables]
        for page in pages:
            joiner.feed_tables(page)
        assert joiner.size(6) == sum(map(len, series))
        assert [from_points(one) for one in joiner.finish(6)] == series


def test_hours_may_follow_batches() -> None:
    first = {BASE_MS + place * 1000: place / 8 for place in range(4)}
    hour = HourTable(
        BASE_S + 3600,
        np.array([1, 0], np.int32),
        np.array([0, 5000]),
        np.array([[1, 2], [3, 4]]),
        np.zeros((2, 2), bool),
    )
    joiner = PointJoiner()
    joiner.feed(rows_of([to_points(first)] * 2, EVERY, EVERY))
    joiner.feed_tables([hour])
    later = BASE_MS + 3_600_000
    assert [from_points(one) for one in joiner.finish(2)] == [
        first | {later: 3, later + 5000: 4},
        first | {later: 1, later + 5000: 2},
    ]


COUNTERS = {
    "plain": PLAIN_RATE,
    "counter": RateOptions(counter=True),
    "max": RateOptions(counter=True, counter_max=100),
    "reset": RateOptions(counter=True, counter_max=1000, reset_value=50),
    "drop": RateOptions(counter=True, drop_resets=True),
}


@all_of(product(sorted(BY_NAME), ["integers", "doubles", "both", "ascending"], COUNTERS), str)
def test_rates_in_a_table_equal_those_of_each_series(case: tuple[str, str, str]) -> None:
    aggregator, kind, name = case
    random, options = np.random.default_rng(7), COUNTERS[name]
    scan = ScanRange(BASE_S, BASE_S + 3600)
    odd = [*ODD, 7, 1 << 62, -(1 << 62)]
    choices = {"integers": [1, 5, 1 << 62, -(1 << 62)], "doubles": ODD, "both": odd, "ascending": [0, 1, 2.5]}[kind]
    for offsets in ((-7000, -1000, 500, 1000, 4000, 9000, 30_000), (0, 500, 1000, 4000)):
        times = [BASE_MS + offset for offset in offsets]
        drawn = [[choices[int(random.integers(len(choices)))] for _ in times] for _ in range(5)]
        if kind == "ascending":
            drawn = [[sum(row[: at + 1]) for at in range(len(row))] for row in drawn]
        series = [to_points(dict(zip(times, row, strict=True))) for row in drawn]
        chosen = Chosen.all_of(series)
        found = rate_table(chosen, options, scan.start_ms)
        if not options.drop_resets or (kind == "ascending" and offsets[0] == 0):
            assert found is not None
        if found is not None:
            table = merge(found, aggregator, scan)
            each = merge([rate(one, options, scan.start_ms) for one in series], aggregator, scan)
            assert str(from_points(table.points)) == str(from_points(each.points))
            assert table.interpolated == each.interpolated
    assert rate_table(Chosen.all_of([*series, series[0].at(slice(1, None))]), options, scan.start_ms) is None
