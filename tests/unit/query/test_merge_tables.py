"""Series that share their times are merged like the same series without that knowledge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import Points
from tsd.query.columns import Chosen, SeriesColumns
from tsd.query.merge import merge, summed_groups
from tsd.query.row_buckets import HAS_LOOP
from tsd.tables.reading import ScanRange

VALUES = st.one_of(st.floats(-10, 10), st.sampled_from((0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e308)))


@pytest.mark.parametrize("aggregator", ["sum", "avg", "zimsum", "pfsum", "max", "count"])
@given(st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=1, max_size=4), st.data())
def test_a_table_is_merged_like_its_series(aggregator: str, rows: list[list[float]], data: st.DataObject) -> None:
    times = np.array(data.draw(st.sampled_from(([3_600_000, 3_600_500, 7_199_000], [3_599_000, 3_600_000, 7_200_001]))))
    bits = np.array(rows).view(np.int64)
    table = SeriesColumns.table(times, bits)
    apart = SeriesColumns.of([Points(times, row, np.ones(3, np.bool_)) for row in bits])
    chosen = np.array(data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True)))
    found, wanted = (merge(Chosen(columns, chosen), aggregator, ScanRange(3600, 7200)) for columns in (table, apart))
    assert found.interpolated == wanted.interpolated
    assert found.points.times.tolist() == wanted.points.times.tolist()
    assert found.points.floats.tolist() == wanted.points.floats.tolist()
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
    groups = [np.flatnonzero(group_of == group) for group in np.unique(group_of)]
    found = summed_groups(table, groups, aggregator, scan)
    if aggregator != "max" and HAS_LOOP and moments[0] >= scan.start_ms and np.abs(rows).max() <= 10:
        assert found is not None
    for group, points in zip(groups, found or (), strict=bool(found)):
        wanted = merge(Chosen(table, group), aggregator, scan).points
        assert points.times.tolist() == wanted.times.tolist()
        assert points.floats.tolist() == wanted.floats.tolist()
        assert list(map(repr, points.doubles().tolist())) == list(map(repr, wanted.doubles().tolist()))
