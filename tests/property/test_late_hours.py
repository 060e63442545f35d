"""Which times are built again for late hours, compared with a slow definition."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tables.rollup_parts import DAY_S, HOUR_S
from tsd.tables.opentsdb.rollup_task import spans_to_build

LONGEST = 3 * 24  # hours


@given(
    st.sets(st.integers(0, LONGEST - 1), min_size=1),
    st.lists(st.sampled_from([600, HOUR_S, 2 * HOUR_S, 6 * HOUR_S, 8 * HOUR_S, DAY_S]), unique=True),
    st.integers(1, LONGEST),
)
def test_late_hours_are_built_with_the_longer_intervals_that_are_over(
    late: set[int], lengths: list[int], end: int
) -> None:
    wanted = {
        hour
        for one in late
        for length in {1, *(seconds // HOUR_S for seconds in lengths if seconds >= HOUR_S)}
        for hour in range(one // length * length, (one // length + 1) * length)
        if (one // length + 1) * length <= end
    }
    spans = spans_to_build([hour * HOUR_S for hour in late], lengths, end * HOUR_S)
    found = [at // HOUR_S for span in spans for at in range(span.start_s, span.stop_s, HOUR_S)]
    assert found == sorted(wanted)
    assert all(one.stop_s < other.start_s for one, other in pairwise(spans))
