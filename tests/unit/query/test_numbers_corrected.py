"""What `corrected` makes of OpenTSDB's accidents in numbers (query.md §21), beside what they are without it."""

from typing import Any

import pytest

from tests.query_vectors import Asked, Value, answer
from tsd.query.durations import read_downsample
from tsd.query.model import PLAIN_RATE, RateOptions

BASE_MS = 1_356_998_400_000


def at(*values: Value, step_s: int = 60, first_s: int = 0) -> dict[int, Value]:
    return {BASE_MS + (first_s + place * step_s) * 1000: value for place, value in enumerate(values)}


def asked(aggregator: str, downsample: str = "", first_s: int = 0, last_s: int = 3600, **more: Any) -> Asked:
    spec = read_downsample(downsample, **more.pop("spec", {})) if downsample else None
    bounds = (BASE_MS + first_s * 1000, BASE_MS + last_s * 1000)
    return Asked("m", aggregator, *bounds, spec, more.get("rate"), {}, {}, True)


def both(series: list[dict[int, Value]], question: Asked) -> list[dict[int, Value]]:
    """The answer as OpenTSDB's, and corrected; times in seconds after the base."""
    groups = [range(len(series))]
    found = [answer(series, groups, question, corrected=corrected)[0] for corrected in (False, True)]
    return [{(time - BASE_MS) // 1000: value for time, value in one.items()} for one in found]


def test_a_series_adds_nothing_before_its_first_real_rate() -> None:
    counter = at(10**12, 10**12 + 60, first_s=120)
    theirs, ours = both([at(0, 60, 120, 180), counter], asked("sum", rate=PLAIN_RATE))
    assert theirs[60] == pytest.approx(1 + 10**12 / (BASE_MS / 1000 + 120))
    assert ours == {60: 1.0, 120: 1.0, 180: 2.0}


def test_of_a_counter_that_begins_below_zero_no_real_rate_is_left_out() -> None:
    dropping = RateOptions(counter=True, drop_resets=True)
    theirs, ours = both([at(-5, 55, 115)], asked("sum", rate=dropping))
    assert (theirs, ours) == ({120: 1.0}, {60: 1.0, 120: 1.0})


def test_estimated_percentiles_of_doubles_are_what_their_names_say() -> None:
    series = [at(float(value)) for value in (1, 2, 3, 4)]
    assert both(series, asked("ep50r7")) == [{0: 2.5}, {0: 2.5}]
    assert both(series, asked("ep75r7")) == [{0: 3.75}, {0: 3.25}]
    assert both(series, asked("ep75r3")) == [{0: 3.75}, {0: 3.0}]
    assert both([at(1, 2, 3, 4, step_s=1)], asked("sum", "1m-ep75r7")) == [{0: 3.75}, {0: 3.25}]


def test_the_bucket_that_holds_the_start_is_answered_and_complete() -> None:
    series = [at(1, 2, 4, 8, 16, 32, step_s=60)]
    theirs, ours = both(series, asked("sum", "2m-sum", first_s=61, last_s=300))
    assert (theirs, ours) == ({120: 12.0, 240: 48.0}, {0: 3.0, 120: 12.0, 240: 48.0})


def test_calendar_buckets_are_read_whole() -> None:
    series: list[dict[int, Value]] = [{BASE_MS + hour * 3_600_000: 1 for hour in range(-24 * 5, 24 * 5)}]
    daily = {"zone": "America/New_York"}
    theirs, ours = both(series, asked("sum", "1dc-sum-zero", 0, 86400, spec=daily))
    assert theirs == {18000: 24.0}  # that of January 1st in New York; the bucket with the start is not shown
    assert ours == {-68400: 24.0, 18000: 24.0}
