"""Functions of `gexp`: differences from OpenTSDB, corrected answers, and bounds."""

import tracemalloc
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from tsd.codec.points import Points
from tsd.errors import BadQuery
from tsd.query.gexp.engine import read_gexp, run_gexp
from tsd.query.gexp.functions import FUNCTIONS, AverageWindow, TimeSpan, by_current, by_maximum, moving_average
from tsd.query.gexp.parser import parse
from tsd.query.model import Query
from tsd.query.result import Answer, Group, SubAnswer
from tsd.tables.quirks import CORRECTED, OPENTSDB

T = 1356998400
RANGE = {"start": [str(T)], "end": [str(T + 600)]}


def points(values: Mapping[int, float]) -> Points:
    """Points by second after T."""
    floats = np.array([isinstance(value, float) for value in values.values()], np.bool_)
    bits = [np.float64(v).view(np.int64) if isinstance(v, float) else v for v in values.values()]
    return Points(np.array([(T + s) * 1000 for s in values], np.int64), np.array(bits, np.int64), floats)


def group(metric: str, host: int, values: Mapping[int, float]) -> Group:
    uid = ord(metric).to_bytes(3, "big")
    pair = {b"\0\0\1": host.to_bytes(3, "big")}
    return Group(metric, {"host": f"h{host}"}, [], [uid + b"\0\0\1" + pair[b"\0\0\1"]], points(values), tag_uids=pair)


class Job:
    """Finds groups by metric, and does everything at once."""

    def __init__(self, found: Mapping[str, list[Group]]) -> None:
        self._found = found
        self.ran: list[Query] = []
        self.held: list[int] = []  # bytes, each time

    async def answer(self, query: Query) -> Answer:
        self.ran.append(query)
        return Answer(query, [SubAnswer(sub, self._found[sub.metric or ""]) for sub in query.queries])

    async def in_thread(self, _: int, work: Callable[[], list[SubAnswer]]) -> list[SubAnswer]:
        return work()

    def check(self) -> None:
        pass

    def add_memory(self, size: int) -> None:
        self.held.append((self.held or [0])[-1] + size)


def answer(texts: Sequence[str], found: Mapping[str, list[Group]], **flags: str) -> list[tuple[str, dict[int, float]]]:
    """Names and points of the groups that expressions make of groups by metric."""
    request = read_gexp({**RANGE, "exp": list(texts), **{k: [v] for k, v in flags.items()}}, 0, quirks=OPENTSDB)
    coroutine = run_gexp(request, Job(found))
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    shown = []
    for sub in done.value.value.subs:
        for one in sub.groups:
            values = (one.points.doubles() if one.points.floats.any() else one.points.bits).tolist()
            shown.append((one.metric, dict(zip((one.points.times // 1000 - T).tolist(), values, strict=True))))
    return shown


UNEVEN = {"a": [group("a", 1, {0: 1, 60: 2, 120: -3})], "b": [group("b", 1, {60: 10, 120: 20, 180: 30})]}


@pytest.mark.difference(
    "gexp-pairs",
    topic="corrected",
    theirs="`gexp` pairs points by position: sides of unequal length fail, and uneven times give wrong pairs",
    ours="points are paired by time",
)
def test_points_are_paired_by_place_or_by_time_if_corrected() -> None:
    assert answer(["sum(sum:a,sum:b)"], UNEVEN) == [("a", {0: 11.0, 60: 22.0, 120: 27.0})]
    assert answer(["sum(sum:a,sum:b)"], UNEVEN, corrected="") == [("a", {60: 12.0, 120: 17.0})]


@pytest.mark.difference("gexp-pairs")
def test_unequal_lengths_fail_unless_corrected() -> None:
    found = {**UNEVEN, "b": [group("b", 1, {120: 20})]}
    with pytest.raises(BadQuery, match="No more elements"):
        answer(["sum(sum:a,sum:b)"], found)
    assert answer(["difference(sum:a,sum:b)"], found, corrected="") == [("a", {120: -23.0})]


@pytest.mark.difference(
    "alias-absolute",
    topic="corrected",
    theirs="`alias` makes values absolute",
    ours="they keep the sign",
)
def test_alias_is_absolute_unless_corrected() -> None:
    assert answer(["alias(sum:a,n.@host)"], UNEVEN) == [("n.h1", {0: 1, 60: 2, 120: 3})]
    assert answer(["alias(sum:a,n.@host)"], UNEVEN, corrected="") == [("n.h1", {0: 1, 60: 2, 120: -3})]


@pytest.mark.difference(
    "time-shift",
    topic="corrected",
    theirs="`timeShift` always fails",
    ours="it answers the points of that much earlier",
)
def test_time_shift_works_only_if_corrected() -> None:
    with pytest.raises(BadQuery, match="unknown time unit=min'"):
        answer(["timeShift(sum:a,'1min')"], UNEVEN)
    assert answer(["timeShift(sum:a,'1min')"], UNEVEN, corrected="") == [("a", {60: 1, 120: 2, 180: -3})]
    both = answer(["difference(sum:a,shift(sum:a,'60s'))"], UNEVEN, corrected="")
    assert both == [("a", {60: 1.0, 120: -5.0})]


@pytest.mark.difference(
    "gexp-metric-queries",
    topic="corrected",
    theirs="An expression with an `m`, or with a repeated metric query, uses another result, or fails",
    ours="it uses its own result",
)
def test_metric_query_has_its_own_result_if_corrected() -> None:
    with pytest.raises(BadQuery, match="Index 1 out of bounds for length 1"):
        answer(["scale(sum:a,2)", "scale(sum:a,3)"], UNEVEN)
    assert answer(["scale(sum:a,2)", "scale(sum:a,3)"], UNEVEN, corrected="") == [
        ("a", {0: 2, 60: 4, 120: -6}),
        ("a", {0: 3, 60: 6, 120: -9}),
    ]
    assert answer(["scale(sum:a,2)"], UNEVEN, m="sum:b") == [("b", {60: 20, 120: 40, 180: 60})]
    assert answer(["scale(sum:a,2)"], UNEVEN, m="sum:b", corrected="") == [("a", {0: 2, 60: 4, 120: -6})]


@pytest.mark.parametrize(
    ("texts", "more", "wanted"),
    [
        (["difference(sum:a,sum:b)", "scale(sum:a,2)"], {}, [0, 1, 0]),
        (["scale(sum:a,2)", "scale(sum:a,3)"], {"m": ["sum:b"]}, [1, 1]),
        (["scale(sum:a,2)"], {"m": ["sum:a", "sum:b"]}, [0]),
        (["scale(sum:c,2)", "scale(sum:b,2)"], {"m": ["sum:a", "sum:b", "sum:a"], "tsuid": ["sum:01"]}, [3, 2]),
    ],
)
def test_corrected_metric_queries_have_their_own_results(
    texts: list[str], more: Mapping[str, Sequence[str]], wanted: list[int]
) -> None:
    request = read_gexp({**RANGE, **more, "exp": texts}, 0, quirks=CORRECTED)
    assert request.subs == wanted


@pytest.mark.difference("gexp-metric-queries")
def test_corrected_repeated_metric_query_moves_no_other() -> None:
    found = {name: [group(name, 1, {0: value, 10: value})] for name, value in (("a", 1), ("b", 100))}
    assert answer(["difference(sum:a,sum:b)", "scale(sum:a,2)"], found, corrected="") == [
        ("a", {0: -99.0, 10: -99.0}),
        ("a", {0: 2, 10: 2}),
    ]


@pytest.mark.difference(
    "highest",
    topic="corrected",
    theirs="`highestMax` and `highestCurrent` rank columns in which series move up after others have ended",
    ours="each series is ranked by its own points",
)
def test_ranking_by_columns_or_by_series_if_corrected() -> None:
    found = {"a": [group("a", 1, {0: 5, 60: 6}), group("a", 2, {0: 1, 600: 2}), group("a", 3, {300: 100, 600: 100})]}
    assert [metric_points[1] for metric_points in answer(["highestMax(sum:a,1)"], found)] == [{0: 1, 600: 2}]
    assert [one[1] for one in answer(["highestMax(sum:a,1)"], found, corrected="")] == [{300: 100, 600: 100}]


def test_series_with_nan_is_ranked_without_warning() -> None:
    found = {"a": [group("a", 1, {0: 5.0, 60: np.nan}), group("a", 2, {0: 4.0, 60: 4.0})]}
    assert [one[1][0] for one in answer(["highestMax(sum:a,2)"], found)] == [4.0, 5.0]


def test_ranking_needs_no_table_of_all_columns() -> None:
    """Of series at times of their own it would be far larger than their points."""
    series = [points({host + 150 * at: host for at in range(20)}) for host in range(150)]
    span = TimeSpan(T * 1000, (T + 3000) * 1000)
    for ranked in (by_maximum, by_current):
        tracemalloc.start()
        try:
            assert len(ranked(series, span, quirks=OPENTSDB)) == len(series)
            assert tracemalloc.get_traced_memory()[1] < 150 * 3000 * 8 / 4
        finally:
            tracemalloc.stop()


def plainly(values: Sequence[float], window: int) -> list[float]:
    """Means of windows of points, one addition after the other, from the newest on."""
    means = []
    for end in range(1, len(values) + 1):
        total = 0.0
        for value in reversed(values[max(0, end - window) : end]):
            total += value
        means.append(total / window if end >= window else 0.0)
    return means


@pytest.mark.parametrize("kind", ["integers", "halves", "decimals", "large", "small"])
def test_moving_average_equals_sequential_addition(kind: str) -> None:
    lot = np.random.default_rng(5)
    draw = {
        "integers": lambda: lot.integers(-1000, 1000, 90).astype(np.float64),
        "halves": lambda: lot.integers(-1000, 1000, 90) / 8,
        "decimals": lambda: np.round(lot.normal(0, 1000, 90), 1),
        "large": lambda: lot.choice([1e308, -1e308, 1.0, np.inf], 90, p=[0.3, 0.3, 0.39, 0.01]),
        "small": lambda: lot.integers(-9, 9, 90) * 5e-324,
    }[kind]()
    series = points({at: float(value) for at, value in enumerate(draw)})
    for window in (1, 2, 7, 40, 90, 91):
        found = moving_average(series, AverageWindow(points=window), block_size=16).doubles()
        np.testing.assert_array_equal(found, plainly(draw.tolist(), window))
        by_time = moving_average(series, AverageWindow(length_ms=window * 1000)).doubles()
        wanted = plainly(draw.tolist(), window)
        wanted[:window] = [0.0] * len(wanted[:window])  # 0.0 too where the window begins with the first point
        np.testing.assert_array_equal(by_time, wanted)


def test_moving_average_cost_does_not_grow_with_the_window() -> None:
    """Where the order of additions cannot show, there is one for a point; else it is looked at whether to go on."""
    looks: list[int] = []
    for factor, adds_up in ((1.0, False), (0.1, True)):
        looks.clear()
        series = points({at: at * factor for at in range(20_000)})
        moving_average(series, AverageWindow(points=2000), lambda: looks.append(1))
        assert bool(looks) == adds_up


def test_expression_texts_are_bounded() -> None:
    known = FUNCTIONS.__contains__
    with pytest.raises(BadQuery, match="wanted at most"):
        parse(["scale(" + "a" * 10_001], known)
    with pytest.raises(BadQuery, match="nested deeper"):
        parse(["absolute(" * 100 + "sum:a" + ")" * 100], known)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale(sum:a", "Failed to parse scale(sum:a"),
        ("sum:a", "Failed to parse sum:a"),
        ("scale(sum:a{host=web*},2)", "Failed to parse scale(sum:a{host=web*},2)"),
        ("scale(sum:a%2)", "Failed to parse scale(sum:a%2)"),
        ("Scale(sum:a,2)", "Function Scale has not been implemented"),
        ("", "Failed to parse "),
    ],
)
def test_invalid_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadQuery) as caught:
        parse([text], FUNCTIONS.__contains__)
    assert (caught.value.status, caught.value.message) == (500, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale(sum:a,--1)", "Invalid parameter, must be an integer or floating point"),
        ("movingAverage(sum:a)", "Missing moving average window size"),
        ("movingAverage(sum:a,x)", "Unparseable window size: x"),
        ("movingAverage(sum:a,'2x')", "Unknown time unit=x in window='2x'"),
        ("movingAverage(sum:a,'min')", "Invalid moving window parameter: 'min'"),
        ("highestMax(sum:a)", "Need aggregation window for moving average"),
        ("highestMax(sum:a,x)", "Unparseable top n value: x"),
        ("timeShift(sum:a)", "Need amount of timeshift to perform timeshift"),
        ("timeShift(sum:a,1min)", "Invalid timeshift parameter: eg '10min'"),
        ("timeShift(sum:a,'x')", "Invalid Parameter: 'x'"),
        ("alias(sum:a)", "Missing the alias"),
        ("movingAverage(sum:a,99999999999999999999)", "Invalid parameter, must be an integer"),
        ("movingAverage(sum:a,2147483648)", "Invalid parameter, must be an integer"),
        (
            "movingAverage(sum:a,'99999999999999999999d')",
            "Unable to parse moving window parameter: '99999999999999999999d'",
        ),
        ("movingAverage(sum:a,'5')", "Unknown time unit= in window='5'"),
        ("highestMax(sum:a,2147483648)", "Invalid parameter, must be an integer"),
        ("timeShift(sum:a,'9999999999min')", 'For input string: "9999999999"'),
    ],
)
def test_wrong_words_have_opentsdbs_errors(text: str, message: str) -> None:
    with pytest.raises(BadQuery) as caught:
        answer([text], UNEVEN)
    assert (caught.value.status, caught.value.message) == (400, message)


def test_largest_window_is_accepted() -> None:
    for window in ("2147483647", "'2147483647d'"):
        assert answer([f"movingAverage(sum:a,{window})"], UNEVEN) == [("a", {0: 0.0, 60: 0.0, 120: 0.0})]


def test_shift_before_1970_is_refused() -> None:
    with pytest.raises(BadQuery, match="Invalid timestamp: -"):
        answer(["shift(sum:a,'99y')"], UNEVEN, corrected="")


def test_shift_of_a_range_from_1970_reads_what_there_is() -> None:
    found = {"a": [group("a", 1, {0: 1.0, 60: 2.0})]}
    assert answer(["shift(sum:a,'1d')"], found, corrected="", start="0") == [("a", {86400: 1.0, 86460: 2.0})]


def test_corrected_average_includes_the_first_bucket() -> None:
    found = {"a": [group("a", 1, {0: 1.0, 120: 3.0, 240: 5.0})]}
    request = {"start": str(T + 30), "end": str(T + 600)}
    text = ["movingAverage(sum:2m-avg:a,2)"]
    assert answer(text, found, **request) == [("a", {120: 0.0, 240: 4.0})]
    assert answer(text, found, **request, corrected="") == [("a", {0: 0.0, 120: 2.0, 240: 4.0})]
