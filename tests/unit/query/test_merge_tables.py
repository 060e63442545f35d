"""Series that share their times are merged like the same series without that knowledge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import Points
from tsd.query.columns import Chosen, SeriesColumns
from tsd.query.merge import merge
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
