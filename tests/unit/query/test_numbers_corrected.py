"""Numbers as in OpenTSDB and corrected (docs/compat/query.md §21)."""

from typing import Any

import pytest

from tests.query_vectors import QueryRequest, Value, answer
from tsd.query.model import PLAIN_RATE, RateOptions
from tsd.query.parse.times import read_downsample
from tsd.tables.quirks import CORRECTED, OPENTSDB

BASE_MS = 1_356_998_400_000


def at(*values: Value, step_s: int = 60, first_s: int = 0) -> dict[int, Value]:
    return {BASE_MS + (first_s + place * step_s) * 1000: value for place, value in enumerate(values)}


def make_query(
    aggregator: str, downsample: str = "", first_s: int = 0, last_s: int = 3600, **more: Any
) -> QueryRequest:
    spec = read_downsample(downsample, **more.pop("spec", {})) if downsample else None
    bounds = (BASE_MS + first_s * 1000, BASE_MS + last_s * 1000)
    return QueryRequest("m", aggregator, *bounds, spec, more.get("rate"), {}, {}, True)


def both(series: list[dict[int, Value]], question: QueryRequest) -> list[dict[int, Value]]:
    """The answer as OpenTSDB's, and corrected; times in seconds after the base."""
    groups = [range(len(series))]
    found = [answer(series, groups, question, quirks=quirks)[0] for quirks in (OPENTSDB, CORRECTED)]
    return [{(time - BASE_MS) // 1000: value for time, value in one.items()} for one in found]


@pytest.mark.difference(
    "first-rates",
    topic="corrected",
    theirs=(
        "In a sum of rates each series counts with its value divided by its time (a counter at 10^12: 737) until "
        "its first real rate"
    ),
    ours="a series counts from its first real rate on",
)
def test_series_adds_nothing_before_its_first_rate() -> None:
    counter = at(10**12, 10**12 + 60, first_s=120)
    theirs, ours = both([at(0, 60, 120, 180), counter], make_query("sum", rate=PLAIN_RATE))
    assert theirs[60] == pytest.approx(1 + 10**12 / (BASE_MS / 1000 + 120))
    assert ours == {60: 1.0, 120: 1.0, 180: 2.0}


@pytest.mark.difference(
    "dropcounter",
    topic="corrected",
    theirs="With `dropcounter`, a first value below zero loses the first real rate",
    ours="it is answered",
)
def test_counter_below_zero_keeps_its_real_rates() -> None:
    dropping = RateOptions(counter=True, drop_resets=True)
    theirs, ours = both([at(-5, 55, 115)], make_query("sum", rate=dropping))
    assert (theirs, ours) == ({120: 1.0}, {60: 1.0, 120: 1.0})


@pytest.mark.difference(
    "estimated-percentiles",
    topic="corrected",
    theirs="`ep50r3` … `ep999r7` of doubles are equal to `p50` … `p999`",
    ours="they are estimated as their names say (R-3, R-7)",
)
def test_estimated_percentiles_of_doubles_are_estimated() -> None:
    series = [at(float(value)) for value in (1, 2, 3, 4)]
    assert both(series, make_query("ep50r7")) == [{0: 2.5}, {0: 2.5}]
    assert both(series, make_query("ep75r7")) == [{0: 3.75}, {0: 3.25}]
    assert both(series, make_query("ep75r3")) == [{0: 3.75}, {0: 3.0}]
    assert both([at(1, 2, 3, 4, step_s=1)], make_query("sum", "1m-ep75r7")) == [{0: 3.75}, {0: 3.25}]


@pytest.mark.difference(
    "first-bucket",
    topic="corrected",
    theirs="The bucket that contains `start` is missing, unless it begins there",
    ours="it is answered complete, with the time of its beginning",
)
def test_first_bucket_is_answered_completely() -> None:
    series = [at(1, 2, 4, 8, 16, 32, step_s=60)]
    theirs, ours = both(series, make_query("sum", "2m-sum", first_s=61, last_s=300))
    assert (theirs, ours) == ({120: 12.0, 240: 48.0}, {0: 3.0, 120: 12.0, 240: 48.0})


@pytest.mark.difference(
    "calendar-buckets",
    topic="corrected",
    theirs="Calendar buckets at either end are read by nominal lengths: they lack points, or are missing",
    ours="they are read completely",
)
def test_calendar_buckets_are_read_whole() -> None:
    series: list[dict[int, Value]] = [{BASE_MS + hour * 3_600_000: 1 for hour in range(-24 * 5, 24 * 5)}]
    daily = {"zone": "America/New_York"}
    theirs, ours = both(series, make_query("sum", "1dc-sum-zero", 0, 86400, spec=daily))
    assert theirs == {18000: 24.0}  # that of January 1st in New York; the bucket with the start is not shown
    assert ours == {-68400: 24.0, 18000: 24.0}
