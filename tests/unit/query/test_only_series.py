"""The answer with a group's only series, written without merging: the same text as merged, or none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import Points
from tsd.query.merge import keeps_only, merge_only
from tsd.query.model import AGGREGATORS, Query, SubQuery
from tsd.query.plan import scan_range
from tsd.query.result import Answer, Group, SubAnswer
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.serialize import PointFormat, written_answer
from tsd.tables.quirks import CORRECTED, OPENTSDB

START_MS = 1356998400_000
SPECIAL = st.sampled_from((0.0, -0.0, 1.5, 1e-7, 1e300, float("nan"), float("inf"), float("-inf")))
USUAL = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**9), 10**9).map(lambda v: v / 100))
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.one_of(
    st.lists(USUAL, min_size=1, max_size=40),
    st.lists(INTEGERS, min_size=1, max_size=40),
    st.lists(st.one_of(USUAL, SPECIAL), min_size=1, max_size=10),
    st.lists(st.one_of(USUAL, INTEGERS), min_size=1, max_size=10),
)


def points(values: list[float], step_ms: int, first_ms: int = START_MS) -> Points:
    floats = [isinstance(value, float) for value in values]
    bits = [int(np.float64(value).view(np.int64)) if isinstance(value, float) else value for value in values]
    times = first_ms + step_ms * np.arange(len(values))
    return Points(times, np.array(bits, np.int64), np.array(floats, np.bool_))


def merged(some: Points, query: Query, *, arrays: bool) -> bytes | None:
    """Return the answer as it is merged and written; None if that takes more than a look at the values."""
    [sub] = query.queries
    found = merge_only(some, sub.aggregator, scan_range(query.start_ms, query.end_ms, None))
    if found is None:
        return None
    group = Group("m", {"host": "a"}, ["dc"], points=found)
    return written_answer(Answer(query, [SubAnswer(sub, [group])]), arrays=arrays)


def written(some: Points, query: Query, *, arrays: bool) -> bytes | None:
    """Return the answer as it is written at once; None if it is not."""
    [sub] = query.queries
    is_sum = keeps_only(sub.aggregator)
    if is_sum is None:
        return None
    form = PointFormat(query, arrays=arrays)
    frame = form.frame(Answer(query, [SubAnswer(sub, [Group("m", {"host": "a"}, ["dc"])])]))
    return form.write_only(some, query, scan_range(query.start_ms, query.end_ms, None), frame, is_sum=is_sum)


@given(
    VALUES,
    st.sampled_from(AGGREGATORS),
    st.sampled_from((1, 400, 1000, 60_000)),
    st.tuples(st.integers(-100_000, 100_000), st.integers(1, 3_000_000)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_text_is_that_of_the_merged_series(
    values: list[float],
    aggregator: str,
    step_ms: int,
    span: tuple[int, int],
    arrays: bool,
    in_ms: bool,
    corrected: bool,
) -> None:
    quirks, start_ms = CORRECTED if corrected else OPENTSDB, START_MS + span[0]
    query = Query(start_ms, start_ms + span[1], (SubQuery(aggregator, "m"),), ms_resolution=in_ms, quirks=quirks)
    some = points(values, step_ms)
    text = written(some, query, arrays=arrays)
    if text is not None:
        assert text == merged(some, query, arrays=arrays)


@pytest.mark.skipif(not HAS_LOOP, reason="nothing is written at once without the compiled loop")
@pytest.mark.parametrize("values", [[1, -2, 3], [1.25, -1e-9, 12345678.5]])
@pytest.mark.parametrize("aggregator", ["sum", "avg", "none", "max"])
def test_usual_points_are_written(values: list[float], aggregator: str) -> None:
    query = Query(START_MS, START_MS + 60_000, (SubQuery(aggregator, "m"),))
    assert written(points(values, 1000), query, arrays=False) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1])
def test_values_that_may_change_are_not_written(value: float) -> None:
    query = Query(START_MS, START_MS + 60_000, (SubQuery("sum", "m"),))
    assert written(points([0.5, value], 1000), query, arrays=False) is None


@pytest.mark.parametrize(("first_ms", "step_ms"), [(START_MS, 0), (START_MS, -1000), (START_MS - 3_600_000, 3_600_000)])
def test_points_in_another_order_or_out_of_the_scan_are_not_written(first_ms: int, step_ms: int) -> None:
    query = Query(START_MS, START_MS + 60_000, (SubQuery("sum", "m"),))
    assert written(points([1.0, 2.0], step_ms, first_ms), query, arrays=False) is None
