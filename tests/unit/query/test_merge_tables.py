"""Series that share their times are merged like the same series without that knowledge."""

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import Int64, Points
from tsd.query.columns import Chosen, SeriesColumns
from tsd.query.merge import merge
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.same_times import summed_groups
from tsd.tables.reading import ScanRange

VALUES = st.one_of(st.floats(-10, 10), st.sampled_from((0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e308)))


INTEGERS = st.one_of(st.integers(-10, 10), st.sampled_from((-(1 << 63), (1 << 63) - 1)))


@st.composite
def shared_rows(draw: st.DrawFn) -> tuple[list[list[int]], list[list[bool]]]:
    """Return the bits of series of three points, and which of these are doubles."""
    count = draw(st.integers(1, 4))
    doubles = st.lists(VALUES, min_size=3, max_size=3).map(lambda row: np.array(row).view(np.int64).tolist())
    integers = st.lists(INTEGERS, min_size=3, max_size=3)
    kinds = draw(st.sampled_from(([True] * count, [False] * count, [at % 2 == 0 for at in range(count)])))
    return [draw(doubles if is_double else integers) for is_double in kinds], [[kind] * 3 for kind in kinds]


@pytest.mark.parametrize(
    "aggregator", ["sum", "avg", "zimsum", "pfsum", "min", "mimmin", "max", "mimmax", "count", "dev"]
)
@given(shared_rows(), st.data())
def test_a_table_is_merged_like_its_series(
    aggregator: str, rows: tuple[list[list[int]], list[list[bool]]], data: st.DataObject
) -> None:
    times = np.array(data.draw(st.sampled_from(([3_600_000, 3_600_500, 7_199_000], [3_599_000, 3_600_000, 7_200_001]))))
    bits, floats = map(np.array, rows)
    table = SeriesColumns(Points(times, bits.ravel(), floats.ravel()), np.arange(len(bits) + 1) * 3, shares_times=True)
    apart = SeriesColumns.of([Points(times, *row) for row in zip(bits, floats, strict=True)])
    chosen = np.array(data.draw(st.lists(st.sampled_from(range(len(bits))), min_size=1, unique=True)))
    found, wanted = (merge(Chosen(columns, chosen), aggregator, ScanRange(3600, 7200)) for columns in (table, apart))
    assert found.interpolated == wanted.interpolated
    assert found.points.times.tolist() == wanted.points.times.tolist()
    assert found.points.floats.tolist() == wanted.points.floats.tolist()
    assert found.points.bits[~found.points.floats].tolist() == wanted.points.bits[~wanted.points.floats].tolist()
    assert list(map(repr, found.points.doubles().tolist())) == list(map(repr, wanted.points.doubles().tolist()))


@pytest.mark.parametrize("aggregator", ["sum", "avg", "zimsum", "pfsum", "max"])
@given(
    st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=2, max_size=6),
    st.sampled_from(([3_600_000, 3_600_500, 7_199_000], [3_599_000, 3_600_000, 7_200_001])),
    st.data(),
)
def test_groups_of_a_table_are_merged_together_like_each(
    aggregator: str, rows: list[list[float]], moments: list[int], data: st.DataObject
) -> None:
    table, scan = SeriesColumns.table(np.array(moments), np.array(rows).view(np.int64)), ScanRange(3600, 7200)
    group_of = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))))
    each = data.draw(
        st.lists(st.sampled_from(np.unique(group_of).tolist()), min_size=1, unique=True)
    )  # or some of them
    groups = [np.flatnonzero(group_of == group) for group in each]
    found = summed_groups(table, groups, aggregator, scan)
    if aggregator != "max" and HAS_LOOP and moments[0] >= scan.start_ms and np.abs(rows).max() <= 10:
        assert None not in found
    check_groups(found, table, groups, aggregator, scan)


def check_groups(
    found: Sequence[Points | None], columns: SeriesColumns, groups: list[Int64], aggregator: str, scan: ScanRange
) -> None:
    """Compare groups that were merged together with each on its own."""
    for group, points in zip(groups, found, strict=True):
        if points is None:
            continue
        wanted = merge(Chosen(columns, group), aggregator, scan).points
        assert points.times.tolist() == wanted.times.tolist()
        assert points.floats.tolist() == wanted.floats.tolist()
        assert list(map(repr, points.doubles().tolist())) == list(map(repr, wanted.doubles().tolist()))


@pytest.mark.parametrize("aggregator", ["sum", "avg", "min", "count"])
@given(
    st.lists(st.tuples(st.lists(VALUES, min_size=4, max_size=4), st.integers(0, 7)), min_size=1, max_size=8),
    st.data(),
)
def test_groups_of_series_with_the_most_frequent_times_are_merged_together_like_each(
    aggregator: str, drawn: list[tuple[list[float], int]], data: st.DataObject
) -> None:
    times = np.arange(3_600_000, 3_640_000, 10_000)
    series = []
    for values, odd in drawn:
        kept = np.arange(4) != odd  # most have all times
        series.append(Points(times[kept], np.array(values).view(np.int64)[kept], np.ones(kept.sum(), np.bool_)))
    columns, scan = SeriesColumns.of(series), ScanRange(3600, 7200)
    order = data.draw(st.permutations(range(len(series))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(series)))))
    groups = [group for group in np.split(np.array(order), cuts) if len(group)]
    found = summed_groups(columns, groups, aggregator, scan)
    check_groups(found, columns, groups, aggregator, scan)
    if HAS_LOOP and aggregator == "sum" and not np.isnan([values for values, _ in drawn]).any():
        odd = np.array([odd < 4 for _, odd in drawn])
        if np.count_nonzero(~odd) > np.count_nonzero(odd):
            assert [points is None for points in found] == [bool(odd[group].any()) for group in groups]


def test_times_of_large_groups_are_not_compared() -> None:
    """Regression: they were copied, without regard to the memory limit, for groups that are merged alone anyway."""
    width, count = 5000, 100
    moments = np.arange(3_600_000, 3_600_000 + width)
    bits, floats = np.ones(width, np.int64), np.zeros(width, np.bool_)
    series = [Points(moments, bits, floats)] * count
    series[3] = Points(moments[1:], bits[1:], floats[1:])
    columns = SeriesColumns.of(series)
    tracemalloc.start()
    try:
        small, large = summed_groups(columns, [np.arange(1), np.arange(1, count)], "sum", ScanRange(3600, 7200))
        assert tracemalloc.get_traced_memory()[1] < width * count
    finally:
        tracemalloc.stop()
    assert large is None
    assert (small is not None) == HAS_LOOP
