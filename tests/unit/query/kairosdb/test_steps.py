"""Aggregators on many groups at once give what they give on each, and buckets of the calendar are found anywhere."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.codec.points import Points
from tsd.query.kairosdb.column import Column, in_order, joined, merged, of_doubles, of_texts
from tsd.query.kairosdb.model import Sampling, Step
from tsd.query.kairosdb.properties import RANGES
from tsd.query.kairosdb.steps import Frame, apply, apply_all
from tsd.query.kairosdb.times import Buckets

START_MS = 1_357_000_000_000
FRAME = Frame(START_MS, START_MS + 10 * 86_400_000, ZoneInfo("Europe/Berlin"), lambda _bytes: None, lambda: None)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """Points of one group: mostly in order and numbers, at times before the query's start, texts or none."""
    first = draw(st.sampled_from([0, 0, 0, 0, -5_000_000]))
    passed = draw(st.lists(st.integers(first, 864_000_000), max_size=8))
    times = np.array(passed if draw(st.integers(0, 9)) == 0 else sorted(passed), np.int64) + START_MS
    if draw(st.integers(0, 9)) == 0:
        return of_texts(times, np.array([*map(str, passed), None], object)[:-1])
    floats = np.array([draw(st.booleans()) for _ in passed], np.bool_)
    doubles = np.array([draw(st.floats(width=32)) for _ in passed], np.float64)
    whole = np.array([draw(st.integers(-1000, 1000)) for _ in passed], np.int64)
    return Column(Points(times, np.where(floats, doubles.view(np.int64), whole), floats))


steps = st.builds(
    Step,
    st.sampled_from(sorted(RANGES)),
    st.sampled_from([Sampling(1, "HOURS"), Sampling(2, "DAYS"), Sampling(1, "MONTHS"), Sampling(7, "MINUTES")]),
    align_sampling=st.booleans(),
    align_start_time=st.booleans(),
    align_end_time=st.booleans(),
    trims_gaps=st.just(value=True),
    percentile=st.sampled_from([0.0, 0.5, 0.99]),
)


def shown(column: Column) -> tuple[object, ...]:
    """Return a column as lists, with the bits of its values."""
    points, texts, nulls = column.points, column.texts, column.nulls
    return (
        points.times.tolist(),
        points.bits.tolist(),
        points.floats.tolist(),
        None if texts is None else texts.tolist(),
        None if nulls is None else nulls.tolist(),
    )


@settings(deadline=None)
@given(st.lists(columns(), max_size=6), steps)
def test_groups_together_have_the_results_of_each(groups: list[Column], step: Step) -> None:
    found = apply_all(groups, step, FRAME)
    assert [shown(column) for column in found] == [shown(apply(column, step, FRAME)) for column in groups]


@given(st.integers(0, 3000), st.sampled_from(["DAYS", "WEEKS", "MONTHS", "YEARS"]), st.integers(1, 3))
def test_first_bucket_that_is_asked_for_may_be_any(number: int, unit: str, value: int) -> None:
    number %= 3000 if unit == "DAYS" else 300
    edge = Buckets(START_MS, Sampling(value, unit), UTC).edge(number)
    assert Buckets(START_MS, Sampling(value, unit), UTC).number(edge) == number


class ZoneOfEnds(tzinfo):
    """UTC, for times near the start of the calendar and near those of the tests."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        assert moment is not None
        assert moment.year < 5 or moment.year > 2010, moment
        return timedelta(0)

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)


@pytest.mark.parametrize("name", ["sum", "gaps"])
@pytest.mark.parametrize("unit", ["DAYS", "WEEKS", "MONTHS", "YEARS"])
def test_buckets_long_before_the_points_are_not_computed(name: str, unit: str) -> None:
    step = Step(name, Sampling(1, unit), align_sampling=False, align_start_time=True, trims_gaps=True)
    first_ms = int(datetime(2, 1, 1, tzinfo=UTC).timestamp()) * 1000
    wanted_ms = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp()) * 1000
    found = apply(
        of_doubles(np.array([START_MS]), np.ones(1)), step, FRAME._replace(start_ms=first_ms, zone=ZoneOfEnds())
    )
    assert found.times.tolist() == [START_MS if name == "gaps" else wanted_ms]


@pytest.mark.parametrize("unit", ["DAYS", "WEEKS", "MONTHS", "YEARS"])
def test_buckets_between_two_points_far_apart_are_not_computed(unit: str) -> None:
    first_ms = int(datetime(2, 1, 1, tzinfo=UTC).timestamp()) * 1000
    times = np.array([first_ms, START_MS, START_MS])
    frame = FRAME._replace(start_ms=first_ms, zone=ZoneOfEnds())
    found = apply(of_doubles(times, np.ones(3)), Step("sum", Sampling(1, unit), align_sampling=False), frame)
    assert (found.times.tolist(), found.numbers().tolist()) == ([first_ms, START_MS], [1.0, 2.0])


def test_descending_points_are_in_the_bucket_of_the_first() -> None:
    day_ms = 86_400_000
    times = np.array([START_MS + days * day_ms for days in (40, 39, 2)], np.int64)
    step = Step("sum", Sampling(1, "DAYS"), align_sampling=False, align_start_time=True)
    found = apply(of_doubles(times, np.ones(3)), step, FRAME._replace(zone=UTC))
    assert (found.times.tolist(), found.numbers().tolist()) == ([START_MS + 40 * day_ms], [3.0])


def test_trimmed_gaps_begin_at_the_first_point() -> None:
    day_ms = 86_400_000
    times = np.array([START_MS + days * day_ms for days in (20, 22)], np.int64)
    step = Step("gaps", Sampling(1, "DAYS"), align_sampling=False, trims_gaps=True)
    found = apply(of_doubles(times, np.ones(2)), step, FRAME._replace(zone=UTC))
    assert found.times.tolist() == [START_MS + days * day_ms for days in (20, 21, 22)]


def test_nulls_among_texts_pass_a_filter() -> None:
    hour_ms = 3_600_000
    column = of_texts(np.array([START_MS, START_MS + 2 * hour_ms]), np.array(["down", "up", None], object)[:2])
    gaps = Step("gaps", Sampling(1, "HOURS"), align_sampling=False, trims_gaps=True)
    for operator in ("lt", "lte", "gt", "gte", "equal", "ne"):
        found = apply(apply(column, gaps, FRAME), Step("filter", filter_op=operator, threshold="no"), FRAME)
        assert found.texts is not None
        assert None in found.texts.tolist()


@given(st.integers(0, 4), st.integers(0, 5), st.booleans(), st.data())
def test_series_with_equal_times_are_merged_as_others(
    times: int, series: int, descending: bool, data: st.DataObject
) -> None:
    at = np.arange(times, dtype=np.int64)
    values = st.lists(st.floats(), min_size=times, max_size=times)
    each = [of_doubles(at, np.array(data.draw(values), np.float64)) for _ in range(series)]
    one, wanted = merged(each, descending=descending), in_order(joined(each), descending=descending)
    assert np.array_equal(one.times, wanted.times)
    assert np.array_equal(one.numbers(), wanted.numbers(), equal_nan=True)


def test_gaps_over_many_buckets_can_be_cancelled() -> None:
    checks: list[None] = []

    def check() -> None:
        checks.append(None)
        if len(checks) > 3:
            raise InterruptedError

    count = 600_000
    points = of_doubles(START_MS + np.array([0, count // 2, count]) * 1000, np.ones(3))
    step = Step("gaps", Sampling(1, "SECONDS"), trims_gaps=True)
    found = apply(points, step, FRAME)
    assert found.times.tolist() == list(range(START_MS, START_MS + count * 1000 + 1, 1000))
    assert found.nulls is not None
    assert np.flatnonzero(~found.nulls).tolist() == [0, count // 2, count]
    with pytest.raises(InterruptedError):
        apply(points, step, FRAME._replace(check=check))
