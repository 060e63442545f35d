"""Answers as JSON: keys and their order, forms of numbers, omissions."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.metadata import Annotation
from tsd.codec.points import Points, doubles_as_points
from tsd.errors import BadQuery
from tsd.query.model import Query, SubQuery
from tsd.query.parse.times import read_downsample
from tsd.query.result import Answer, Group, SubAnswer
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.serialize import PointFormat, double_texts, number_texts, write_answer, written_answer
from tsd.tables.filters import Filter
from tsd.tables.quirks import CORRECTED, OPENTSDB

START_S = 1356998400
SUB = SubQuery("sum", "m")
NAN, INFINITY = float("nan"), float("inf")


def points(*pairs: tuple[float, float]) -> Points:
    """Of seconds after the start, and values."""
    times = np.array([round((START_S + at) * 1000) for at, _ in pairs], np.int64)
    floats = np.array([isinstance(value, float) for _, value in pairs], np.bool_)
    bits = [np.float64(v).view(np.int64) if isinstance(v, float) else np.int64(v) for _, v in pairs]
    return Points(times, np.array(bits, np.int64), floats)


def answer(*groups: Group, sub: SubQuery = SUB, warnings: tuple[str, ...] = (), **query: Any) -> Answer:
    made = Query(START_S * 1000, (START_S + 3600) * 1000, (sub,), **query)
    return Answer(made, [SubAnswer(sub, list(groups), warnings=list(warnings))])


def group(*pairs: tuple[float, float], **more: Any) -> Group:
    return Group("m", {"host": "a"}, ["dc"], points=points(*pairs), **more)


def text(found: Answer, *, arrays: bool = False) -> str:
    return b"".join(write_answer(found, arrays=arrays)).decode()


def dps(found: Answer, *, arrays: bool = False) -> str:
    return text(found, arrays=arrays).partition('"dps":')[2].removesuffix("}]")


def test_whole_answer_is_written() -> None:
    assert text(answer(group((0, 1), (60, 2.5)))) == (
        '[{"metric":"m","tags":{"host":"a"},"aggregateTags":["dc"],"dps":{"1356998400":1,"1356998460":2.5}}]'
    )


def test_arrays_and_milliseconds() -> None:
    found = answer(group((0, 1), (0.5, 2.5)), ms_resolution=True)
    assert dps(found) == '{"1356998400000":1,"1356998400500":2.5}'
    assert dps(found, arrays=True) == "[[1356998400000,1],[1356998400500,2.5]]"


def test_empty_answer_is_an_empty_array() -> None:
    assert text(answer()) == "[]"
    assert dps(answer(group())) == "{}"
    assert dps(answer(group()), arrays=True) == "[]"


def test_points_are_cut_to_the_query_with_both_ends() -> None:
    assert dps(answer(group((-1, 1), (0, 2), (3600, 3), (3601, 4)))) == '{"1356998400":2,"1357002000":3}'


def test_first_bucket_is_shown_if_corrected() -> None:
    found = answer(group((0, 1), (10, 2)), sub=replace(SUB, downsample=read_downsample("10s-sum")))
    found = replace(found, query=replace(found.query, start_ms=(START_S + 5) * 1000))
    assert dps(found) == '{"1356998410":2}'
    assert dps(replace(found, query=replace(found.query, quirks=CORRECTED))) == '{"1356998400":1,"1356998410":2}'


@pytest.mark.difference(
    "repeated-seconds",
    topic="corrected",
    theirs="Several points of one second repeat its key",
    ours="the last one is answered",
)
def test_points_of_a_second_repeat_keys_unless_corrected() -> None:
    pairs = ((0, 1), (0.25, 2), (1, 3))
    assert dps(answer(group(*pairs))) == '{"1356998400":1,"1356998400":2,"1356998401":3}'
    assert dps(answer(group(*pairs), quirks=CORRECTED)) == '{"1356998400":2,"1356998401":3}'
    assert dps(answer(group(*pairs), quirks=CORRECTED), arrays=True).count("[") == 4


@pytest.mark.parametrize(("fill", "wanted"), [("-nan", '"NaN"'), ("-null", "null"), ("-zero", '"NaN"'), ("", '"NaN"')])
def test_nan_depends_on_the_fill(fill: str, wanted: str) -> None:
    sub = SubQuery("sum", "m", downsample=read_downsample(f"1m-avg{fill}"))
    assert dps(answer(group((0, NAN), (60, 1.0)), sub=sub)) == f'{{"1356998400":{wanted},"1356998460":1.0}}'


@pytest.mark.parametrize("value", [INFINITY, -INFINITY])
def test_infinity_is_refused_before_writing(value: float) -> None:
    with pytest.raises(BadQuery, match=r"Got Infinity: -?Infinity at 1356998460000"):
        write_answer(answer(group((0, 1.0)), group((0, 1), (60, value))))


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("count", [1, 6000])
def test_infinity_of_a_second_with_other_values_is_refused(count: int, corrected: bool) -> None:
    pairs = [(at / 2, INFINITY if at == count - 1 else 0.1) for at in range(count + 1)]
    found = answer(group(*pairs, (count, -INFINITY)), quirks=CORRECTED if corrected else OPENTSDB)
    wanted = rf"Got Infinity: Infinity at {1356998400_000 + (count - 1) * 500}"
    with pytest.raises(BadQuery, match=wanted):
        write_answer(found)
    with pytest.raises(BadQuery, match=wanted):
        written_answer(found, arrays=False)


def test_infinity_outside_the_query_is_ignored() -> None:
    looks = int(np.float64(INFINITY).view(np.int64))
    assert dps(answer(group((-1, INFINITY), (0, looks)))) == f'{{"1356998400":{looks}}}'


NOTE = Annotation(START_S + 1, 0, "d", "n", "000001", {"k": "v"})
NOTE_SHOWN = {
    "tsuid": "000001",
    "description": "d",
    "notes": "n",
    "custom": {"k": "v"},
    "startTime": START_S + 1,
    "endTime": 0,
}


@pytest.mark.difference("query-warnings")
def test_keys_are_in_opentsdbs_order() -> None:
    found = answer(
        group((0, 1), tsuids=[b"\0\0\x0b", b"\0\0\x0a"], annotations=[NOTE]),
        sub=replace(SUB, filters=(Filter("host", "wildcard", "*", group_by=True),)),
        show_query=True,
        show_tsuids=True,
        global_annotations=True,
        show_stats=True,
        warnings=("a row could not be read",),
    )
    found.global_annotations = [Annotation(START_S)]
    (shown,) = json.loads(text(found))
    assert list(shown) == [
        *("metric", "tags", "aggregateTags", "query", "tsuids", "annotations", "globalAnnotations", "dps", "stats"),
        "warnings",
    ]
    assert shown["tsuids"] == ["00000A", "00000B"]
    assert shown["annotations"] == [NOTE_SHOWN]
    assert shown["globalAnnotations"] == [
        {"tsuid": "", "description": "", "notes": "", "startTime": START_S, "endTime": 0}
    ]
    assert list(shown["stats"])[:-1] == [
        *("aggregationTime", "emittedDPs", "groupByTime", "queryIndex", "queryScanTime", "saltScannerMergeTime"),
        *("serializationTime", "uidToStringTime"),
    ]
    assert shown["stats"]["emittedDPs"] == 1
    assert shown["warnings"] == ["a row could not be read"]


def test_annotations_outside_the_query_leave_an_empty_list() -> None:
    found = answer(group((0, 1), annotations=[Annotation(START_S - 1), Annotation(START_S * 1000 + 3_600_001)]))
    assert json.loads(text(found))[0]["annotations"] == []
    assert '"annotations"' not in text(answer(group((0, 1))))
    assert '"annotations"' not in text(answer(group((0, 1), annotations=[NOTE]), no_annotations=True))


@pytest.mark.difference(
    "query-warnings",
    topic="queries",
    theirs="A row that cannot be read fails the query. Names without a UID and interpolated values are not reported",
    ours=(
        "The last key of the sub query's first group, or of the answer of `exp`, is `warnings`, if there are any. "
        "The header `X-Tsd-Warnings` has them as well, also for `/q?ascii` and `query/last`. With `show_stats` the "
        "interpolated points are counted"
    ),
)
def test_warnings_are_shown_once_per_sub_query() -> None:
    shown = json.loads(text(answer(group((0, 1)), group((0, 2)), warnings=("w",))))
    assert [each.get("warnings") for each in shown] == [["w"], None]


def test_summary_is_the_last_element() -> None:
    *groups, summary = json.loads(text(answer(group((0, 1)), show_summary=True, warnings=("w",))))
    assert len(groups) == 1
    assert list(summary) == ["statsSummary"]
    figures = summary["statsSummary"]
    assert figures["emittedDPs"] == 1
    assert figures["queryIdx_00"]["warnings"] == ["w"]
    assert {"avgScannerTime", "maxUidToStringTime", "processingPreWriteTime", "uidPairsResolved"} <= set(figures)
    assert list(json.loads(text(answer(show_summary=True)))[0]) == ["statsSummary"]


@pytest.mark.difference(
    "emitted-points",
    topic="queries",
    theirs="`emittedDPs` of a sub query in `statsSummary` is that of its last group",
    ours="It is the sum of its groups",
)
def test_summary_counts_the_written_points_of_all_groups() -> None:
    """Regression: it counted those before the query's start and after its end, too: the buckets of whole hours."""
    around = group((-60, 1), (0, 1), (60, 2), (7200, 3))
    *_, summary = json.loads(text(answer(around, group((0, 1)), show_summary=True)))
    figures = summary["statsSummary"]
    assert (figures["emittedDPs"], figures["queryIdx_00"]["emittedDPs"]) == (3, 3)


def test_parts_of_a_large_answer_join_to_valid_json() -> None:
    count = 100_000
    times = (START_S + np.arange(count)) * 1000
    values = np.random.default_rng(1).normal(50, 10, count)
    query = Query(START_S * 1000, (START_S + count) * 1000, (SUB,))
    groups = [Group("m", {}, [], points=doubles_as_points(times, values)) for _ in range(2)]
    parts = list(write_answer(Answer(query, [SubAnswer(SUB, groups)])))
    assert max(map(len, parts)) < 1 << 20
    for shown in json.loads(b"".join(parts)):
        assert list(map(int, shown["dps"])) == (times // 1000).tolist()
        assert list(shown["dps"].values()) == values.tolist()


value_lists = st.lists(
    st.one_of(
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_infinity=False),
        st.floats(1e6, 1e18),
        st.floats(0, 1e-2),
    )
)


@given(value_lists, st.booleans())
def test_written_values_parse_to_themselves(values: list[float], arrays: bool) -> None:
    found = answer(group(*enumerate(values)))
    shown = json.loads(dps(found, arrays=arrays))
    read = [value for _, value in shown] if arrays else list(shown.values())
    assert [repr(value) for value in read] == ["'NaN'" if value != value else repr(value) for value in values]


usual_values = st.lists(st.floats(0.001, 9_999_999), min_size=1) | st.lists(st.integers(-9, 9), min_size=1)


@given(value_lists.filter(len) | usual_values, st.sampled_from([1, 0.4]), st.booleans())
def test_only_group_is_written_like_one_of_two(values: list[float], step_s: float, corrected: bool) -> None:
    """Points of an answer's only group may be encoded at once."""
    one = group(*((at * step_s, value) for at, value in enumerate(values)))
    quirks = CORRECTED if corrected else OPENTSDB
    alone, both = text(answer(one, quirks=quirks)), text(answer(one, one, quirks=quirks))
    assert both == f"[{alone[1:-1]},{alone[1:-1]}]"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (42.0, "42.0"),
        (-0.0, "-0.0"),
        (0.001, "0.001"),
        (9999999.999999998, "9999999.999999998"),
        (1e7, "1.0E7"),
        (-12345678.5, "-1.23456785E7"),
        (1e15, "1.0E15"),
        (1e16, "1.0E16"),
        (1.5e300, "1.5E300"),
        (123456789012345680.0, "1.2345678901234568E17"),
        (0.00099, "9.9E-4"),
        (-0.00001, "-1.0E-5"),
        (2.5e-7, "2.5E-7"),
        (5e-324, "5E-324"),
    ],
)
def test_double_is_written_like_java(value: float, wanted: str) -> None:
    shown = double_texts(np.array([value]))[0].decode()
    assert shown == wanted or float(shown) == float(wanted) == 5e-324  # Java: 4.9E-324
    assert double_texts(np.array([1.5, value, NAN, 1e9]))[1].decode() == shown


def test_integers_among_doubles_stay_integers() -> None:
    assert number_texts(points((0, 1), (1, 1.0), (2, 10**18), (3, 1e18))) == [b"1", b"1.0", b"%d" % 10**18, b"1.0E18"]


@given(
    st.lists(
        st.one_of(
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.floats(allow_infinity=False),
            st.floats(-1e7, 1e7),
            st.floats(1e-3, 1),
            st.builds(
                lambda whole, to: float(np.nextafter(whole / 1000, to)), st.integers(2, 10**9), st.floats(0, 1e8)
            ),
            st.builds(lambda whole, by: whole / by, st.integers(-(10**9), 10**9), st.sampled_from((3, 7, 60, 1024))),
            st.integers(-(10**17), 10**17).flatmap(lambda whole: st.integers(0, 18).map(lambda at: whole / 10**at)),
            st.sampled_from([0.0, -0.0, 0.001, 1e7, 9999999.99999999, 0.1 + 0.2, 123456.789, 1e15, -1.5, 42.0]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_compiled_loop_writes_the_same_text(
    values: list[float], arrays: bool, ms_resolution: bool, corrected: bool
) -> None:
    query = answer(ms_resolution=ms_resolution, quirks=CORRECTED if corrected else OPENTSDB).query
    some = points(*((at * 0.7, value) for at, value in enumerate(values)))
    looped, plain = (
        b"".join(PointFormat(query, arrays=arrays, compiled=compiled).write(some, b'"NaN"'))
        for compiled in (HAS_LOOP, False)
    )
    assert looped == plain
