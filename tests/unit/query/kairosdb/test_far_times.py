"""KairosDB's queries with times far outside of the calendar are answered, or refused with a reason."""

import json
from typing import Any

import numpy as np
import pytest

from tsd.query.kairosdb.answer import evaluate
from tsd.query.kairosdb.column import of_doubles
from tsd.query.kairosdb.groups import TaggedColumn
from tsd.query.kairosdb.model import BadRequest
from tsd.query.kairosdb.request import read_request
from tsd.query.kairosdb.steps import Frame

NOW_MS = 1_790_000_000_000
LOWEST_MS, LATE_MS = -(1 << 62), 1 << 62
POINTS = of_doubles(np.array([NOW_MS - 1000, NOW_MS]), np.array([1.0, 2.0]))


def answer(metric: dict[str, Any], **times: Any) -> list[list[int]]:
    """Return the times of each result for two points."""
    wanted = read_request(json.dumps({**times, "metrics": [{"name": "m", **metric}]}), NOW_MS)
    [one] = wanted.metrics
    frame = Frame(one.start_ms, max(one.start_ms, NOW_MS), wanted.zone, lambda _size: None, lambda: None)
    return [result.column.times.tolist() for result in evaluate([TaggedColumn({"a": "b"}, POINTS)], one, frame).results]


def summed(unit: str) -> dict[str, Any]:
    return {"aggregators": [{"name": "sum", "sampling": {"value": 1, "unit": unit}}]}


def by_time(value: int, unit: str) -> dict[str, Any]:
    return {"group_by": [{"name": "time", "range_size": {"value": value, "unit": unit}, "group_count": 12}]}


@pytest.mark.parametrize("start_ms", [LOWEST_MS, LATE_MS])
@pytest.mark.parametrize("unit", ["weeks", "months", "years"])
def test_start_that_is_in_no_week_is_refused(unit: str, start_ms: int) -> None:
    with pytest.raises(BadRequest, match="years 1 to 9999"):
        answer(summed(unit), start_absolute=start_ms)


@pytest.mark.parametrize("unit", ["minutes", "days"])
def test_other_buckets_may_start_at_any_time(unit: str) -> None:
    [times] = answer(summed(unit), start_absolute=LOWEST_MS)
    assert times[0] == NOW_MS - 1000


def test_months_are_counted_from_any_start() -> None:
    assert answer(by_time(1, "months"), start_absolute=LOWEST_MS) == [[NOW_MS - 1000, NOW_MS]]


@pytest.mark.parametrize("metric", [by_time(LATE_MS, "weeks"), by_time(LATE_MS, "months")])
def test_range_of_times_beyond_64_bits_is_refused(metric: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="range_size"):
        answer(metric, start_absolute=0)


@pytest.mark.parametrize(
    "times", [{"start_absolute": -(1 << 63)}, {"start_relative": {"value": LATE_MS, "unit": "hours"}}]
)
def test_start_from_which_times_do_not_fit_in_64_bits_is_refused(times: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="start_time"):
        answer(summed("hours"), **times)
