"""The points of a group's only series, with and without the compiled loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import Points
from tsd.query.merge import merge_only
from tsd.query.model import AGGREGATORS
from tsd.query.row_buckets import HAS_LOOP
from tsd.tables.reading import ScanRange

SCAN = ScanRange(3600, 7200)
DOUBLES = st.one_of(st.floats(), st.sampled_from((0.0, -0.0, 1.5, float("nan"), float("inf"))))
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)


def points(values: list[float]) -> Points:
    """Return points at each minute from half an hour before the scan on."""
    floats = [isinstance(value, float) for value in values]
    bits = [int(np.float64(value).view(np.int64)) if isinstance(value, float) else value for value in values]
    times = (1800 + 60 * np.arange(len(values))) * 1000
    return Points(times, np.array(bits, np.int64), np.array(floats, np.bool_))


@given(
    st.one_of(
        st.lists(DOUBLES, max_size=80),
        st.lists(INTEGERS, max_size=80),
        st.lists(st.one_of(DOUBLES, INTEGERS), max_size=80),
    ),
    st.sampled_from(AGGREGATORS),
)
def test_compiled_loop_gives_the_same_points(values: list[float], aggregator: str) -> None:
    looped, plain = (merge_only(points(values), aggregator, SCAN, compiled=compiled) for compiled in (HAS_LOOP, False))
    assert (looped is None) == (plain is None)
    if looped is not None and plain is not None:
        assert [column.tolist() for column in looped] == [column.tolist() for column in plain]


@pytest.mark.parametrize("compiled", [HAS_LOOP, False])
def test_sum_of_negative_zero_is_zero(compiled: bool) -> None:
    found = merge_only(points([1.0] * 30 + [-0.0, 2.0]), "sum", SCAN, compiled=compiled)
    assert found is not None
    assert [str(value) for value in found.doubles().tolist()] == ["0.0", "2.0"]
