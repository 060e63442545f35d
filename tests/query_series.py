"""Generated series and queries, for tests that compare two implementations."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from tests.query_vectors import QueryRequest, Value
from tsd.query.model import AGGREGATORS, NO_COUNTER_MAX, NONE, RateOptions
from tsd.query.parse.times import read_downsample

ZONES = (
    *("UTC", "America/New_York", "America/Sao_Paulo", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"),
    *("Asia/Kathmandu", "America/Havana", "Pacific/Apia", "Africa/Casablanca", "Europe/Dublin", "Asia/Beirut"),
)
# Days around which clocks change, and dull ones.
DAYS_S = (1356998400, 1362873600, 1382745600, 1350777600, 1361059200, 1364688000, 1325203200, 1413590400)


class Question(NamedTuple):
    """One group of series, and what is asked of it."""

    series: Sequence[Mapping[int, Value]]
    query: QueryRequest


def values(nan: bool) -> st.SearchStrategy[Value]:
    """Plain ones mostly, and every extreme."""
    edges = [0.0, -0.0, 1e308, -1e308, 5e-324, 1e-300, 0.1, 1e15 + 0.3] + [math.nan, math.inf, -math.inf] * nan
    return st.one_of(
        st.integers(-1000, 1000),
        st.floats(-1000, 1000, width=32),
        st.floats(-1e6, 1e6),
        st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 53, (1 << 62) + 1, 0]),
        st.sampled_from(edges),
    )


@st.composite
def questions(draw: st.DrawFn, *, by_calendar: bool = False, nan: bool = False) -> Question:
    """Series of one group with uneven times, ints and doubles mixed or not, and one sub query."""
    first_s = draw(st.sampled_from(DAYS_S)) if by_calendar else 1356998400
    days = draw(st.sampled_from([1, 3, 40, 400])) if by_calendar else 0
    span_s = days * 86400 or draw(st.sampled_from([600, 3600, 4 * 3600]))
    step_ms = (
        3_600_000 * max(1, days // 4) // 2 if by_calendar else draw(st.sampled_from([1000, 10_000, 60_000, 1, 250]))
    )
    kind = draw(st.sampled_from(["ints", "floats", "mixed"]))
    value = values(nan)
    if kind != "mixed":
        value = value.filter(lambda v: isinstance(v, float if kind == "floats" else int))
    places = st.integers(0, min(span_s * 1000 // step_ms + 20, 60))
    series = [
        {first_s * 1000 + place * step_ms: v for place, v in sorted(one.items())}
        for one in draw(st.lists(st.dictionaries(places, value, min_size=1, max_size=25), min_size=1, max_size=5))
    ]
    return Question(series, draw(requests(first_s, span_s, by_calendar)))


@st.composite
def requests(draw: st.DrawFn, first_s: int, span_s: int, by_calendar: bool) -> QueryRequest:
    """A sub query over the span, or near it."""
    start_ms = first_s * 1000 + draw(st.sampled_from([0, 0, 1000, 61_000, 90_500, -600_000]))
    end_ms = start_ms + draw(st.sampled_from([span_s * 1000, span_s * 1000 - 1, 60_000, 777_000]))
    downsample = None
    if by_calendar or draw(st.booleans()):
        function = draw(st.sampled_from([name for name in AGGREGATORS if name != NONE]))
        fill = draw(st.sampled_from(["", "-none", "-nan", "-zero"]))
        if by_calendar:
            span = draw(st.sampled_from("1h 2h 5h 7h 12h 1d 2d 3d 1w 2w 1n 2n 5n 1y 2y 30m 45m 90s".split()))
        else:
            span = draw(st.sampled_from("1s 10s 1m 90s 7m 45m 1h 2h 1d 250ms 0all".split()))
        text = f"{span}-{function}{fill}"
        downsample = read_downsample(text, zone=draw(st.sampled_from(ZONES)), use_calendar=by_calendar)
    rate = draw(st.none() | rates()) if draw(st.booleans()) else None
    aggregator = draw(st.sampled_from(AGGREGATORS))
    return QueryRequest("m", aggregator, start_ms, end_ms, downsample, rate, {}, {}, True)


def rates() -> st.SearchStrategy[RateOptions]:
    """Plain rates, and counters of all kinds."""
    limits = st.sampled_from([NO_COUNTER_MAX, 0, 255, 65535, 1000])
    return st.builds(RateOptions, st.booleans(), limits, st.sampled_from([0, 1, 100]), st.booleans())
