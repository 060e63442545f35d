"""Expressions of `/api/query/exp` over hand-made series, as in OpenTSDB and corrected."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tsd.codec.points import doubles_as_points
from tsd.errors import BadQuery
from tsd.query.exp.engine import BLOCK_BYTES, Evaluation
from tsd.query.exp.output import write_outputs
from tsd.query.exp.parser import parse
from tsd.query.exp.request import Formula, Join, by_dependency, read_request, to_query
from tsd.query.model import Downsample, Fill, Query
from tsd.query.parse.body import LARGEST
from tsd.query.parse.validate import MAX_SUB_QUERIES
from tsd.query.result import Answer, Group, SubAnswer
from tsd.tables.filters import Filter
from tsd.tables.quirks import OPENTSDB

T = 1356998400
NAN: dict[str, object] = {"policy": "nan"}


def group(metric: str, host: int, values: Mapping[int, float]) -> Group:
    times = np.array([(T + s) * 1000 for s in values], np.int64)
    points = doubles_as_points(times, np.array(list(values.values()), np.float64))
    return Group(metric, {"host": f"h{host}"}, [], points=points, tag_uids={b"\0\0\1": host.to_bytes(3, "big")})


FOUND = {
    "m.a": [group("m.a", 1, {0: 1.0, 60: 2.0}), group("m.a", 2, {0: 3.0})],
    "m.b": [group("m.b", 1, {0: 10.0, 60: 20.0, 900: 30.0})],
}


def run(
    expressions: Mapping[str, str], *, corrected: bool, block_bytes: int = BLOCK_BYTES, **more: Any
) -> dict[str, Any]:
    """The answer of m.a and m.b as a and b, from T to T + 10 minutes."""
    body = {
        "time": {"start": T, "end": T + 600, "aggregator": "sum"},
        "metrics": [{"id": name[-1], "metric": name, "fillPolicy": NAN} for name in FOUND],
        "expressions": [{"id": name, "expr": text} for name, text in expressions.items()],
        "corrected": corrected,
        **more,
    }
    request = read_request(json.dumps(body).encode(), quirks=OPENTSDB)
    query, subs = to_query(request, 0)
    answer = Answer(query, [SubAnswer(sub, FOUND[sub.metric or ""]) for sub in query.queries])
    evaluation = Evaluation(request, answer, subs, block_bytes=block_bytes)
    outputs: dict[str, Any] = json.loads(b"".join(write_outputs(evaluation.outputs(), request)))
    return outputs


def rows(answer: Mapping[str, Any], at: int = 0) -> list[list[Any]]:
    """Seconds after T, and values."""
    return [[time // 1000 - T, *values] for time, *values in answer["outputs"][at]["dps"]]


@pytest.mark.difference(
    "exp-missing-series",
    topic="corrected",
    theirs="`exp`: a series that a variable lacks is 0, whatever its fill",
    ours="it has the variable's fill",
)
def test_missing_series_is_zero_or_its_fill_if_corrected() -> None:
    assert rows(run({"e": "a + b"}, corrected=False)) == [[0, 11.0, 3.0], [60, 22.0, "NaN"]]
    assert rows(run({"e": "a + b"}, corrected=True)) == [[0, 11.0, "NaN"], [60, 22.0, "NaN"]]


@pytest.mark.difference(
    "exp-outputs",
    topic="corrected",
    theirs=(
        "`exp`: a metric's output has all points that were read, an expression that is shown twice has rows only the "
        "first time, the downsampler's fill is ignored, and upper-case ids are not found"
    ),
    ours="the output has the requested range, each output has its rows, the fill is used, and such ids are found",
)
def test_metric_output_is_cut_to_the_query_if_corrected() -> None:
    shown = [{"id": "b"}]
    assert rows(run({}, corrected=False, outputs=shown)) == [[0, 10.0], [60, 20.0], [900, 30.0]]
    assert rows(run({}, corrected=True, outputs=shown)) == [[0, 10.0], [60, 20.0]]


def test_repeated_metric_is_shown_each_time() -> None:
    answer = run({}, corrected=False, outputs=[{"id": "a", "alias": "x"}, {"id": "b"}, {"id": "a", "alias": "y"}])
    assert [(one["id"], one.get("alias")) for one in answer["outputs"]] == [("a", "x"), ("b", None), ("a", "y")]
    assert rows(answer, 0) == rows(answer, 2) == [[0, 1.0, 3.0], [60, 2.0, 0.0]]


@pytest.mark.difference("exp-outputs")
def test_repeated_expression_has_its_rows_only_if_corrected() -> None:
    shown = [{"id": "e", "alias": "x"}, {"id": "e", "alias": "y"}]
    for corrected, again in ((False, []), (True, [[0, 2.0, 6.0], [60, 4.0, "NaN"]])):
        answer = run({"e": "a * 2"}, corrected=corrected, outputs=shown)
        first, second = answer["outputs"]
        assert (first["alias"], second["alias"]) == ("x", "y")
        assert rows(answer, 0) == [[0, 2.0, 6.0], [60, 4.0, "NaN"]]
        assert rows(answer, 1) == again
        assert second["meta"] == first["meta"]
        times = [T * 1000, (T + 60) * 1000] if again else [0, 0]
        assert list(second["dpsMeta"].values()) == [*times, len(again), 2]


@pytest.mark.difference("sub-query-limit")
def test_outputs_of_a_request_are_bounded() -> None:
    with pytest.raises(BadQuery, match="2001 outputs, wanted at most 2000") as refused:
        run({}, corrected=False, outputs=[{"id": "a"}] * (MAX_SUB_QUERIES + 1))
    assert refused.value.status == 413


@pytest.mark.difference("exp-outputs")
def test_downsampler_fill_is_used_only_if_corrected() -> None:
    time = {"start": T, "end": T + 600, "aggregator": "sum"}
    time["downsampler"] = {"interval": "1m", "aggregator": "avg", "fillPolicy": {"policy": "zero"}}
    fills = []
    for corrected in (False, True):
        body = {"time": time, "metrics": [{"id": "a", "metric": "m.a"}], "corrected": corrected}
        query, _ = to_query(read_request(json.dumps(body).encode(), quirks=OPENTSDB), 0)
        downsample = query.queries[0].downsample
        assert downsample
        fills.append(downsample.fill.value)
    assert fills == ["none", "zero"]


@pytest.mark.difference("exp-outputs")
def test_upper_case_variable_works_only_if_corrected() -> None:
    metrics = [{"id": "A", "metric": "m.a"}]
    with pytest.raises(BadQuery, match="Missing results for variable A"):
        run({"e": "A * 2"}, corrected=False, metrics=metrics)
    assert rows(run({"e": "A * 2"}, corrected=True, metrics=metrics)) == [[0, 2.0, 6.0], [60, 4.0, 0.0]]


@pytest.mark.difference(
    "exp-literals",
    topic="corrected",
    theirs="`exp`: a literal with a point is a 32-bit float",
    ours="it is a double",
)
def test_literal_has_32_bits_or_64_if_corrected() -> None:
    assert rows(run({"e": "a * 0.123456789"}, corrected=False))[0] == [0, 0.12345679, 3 * 0.12345679]
    assert rows(run({"e": "a * 0.123456789"}, corrected=True))[0] == [0, 0.123456789, 3 * 0.123456789]


@pytest.mark.difference(
    "nested-expressions",
    topic="queries",
    theirs="An expression of another one fails if that yields NaN, and uses values of wrong times if their rows differ",
    ours="Values are used at their own times, and NaN where there is none",
)
def test_expression_over_nan_results_is_answered() -> None:
    """OpenTSDB fails, or takes each value for that of the next moment."""
    assert rows(run({"e": "a + b", "g": "e * 2"}, corrected=False), 1) == [[0, 22.0, 6.0], [60, 44.0, "NaN"]]


@pytest.mark.parametrize(
    ("expressions", "message"),
    [
        ({"e": "e + a"}, "Self referencing expression found: e"),
        ({"e": "f + a", "f": "e + a"}, "Circular reference found: f"),
        ({"e": "a > b ? 1 : 0"}, "Expression returned a result of type: java.lang.Integer"),
    ],
)
def test_impossible_expressions_are_refused(expressions: Mapping[str, str], message: str) -> None:
    with pytest.raises(BadQuery, match=message):
        run(expressions, corrected=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": None}, "missing time"),
        ({"time": {"start": "x", "aggregator": "sum"}}, "Invalid time"),
        ({"time": {"start": T, "end": T, "aggregator": "sum"}}, "End time [1356998400000] must be greater"),
        ({"filters": [{"id": "f", "tags": []}] * 2}, "duplicated filter id: f"),
        ({"filters": [{"id": "f f", "tags": []}]}, "Invalid filter at index 0"),
        ({"expressions": [{"id": "e", "expr": "a", "join": {}}]}, "The set operator cannot be null"),
        ({"expressions": [{"id": "e", "expr": "1 + 2"}]}, "The expression didn't appear to have any variables"),
        ({"expressions": [{"id": "e", "expr": "a +"}]}, "parsing error in 'a +'"),
        ({"metrics": [{"id": "a", "metric": "m", "fillPolicy": {"policy": "x"}}]}, "Unrecognized fill policy: x"),
        ({"metrics": [{"id": "a", "metric": "m", "fillPolicy": {"policy": "nan", "value": 5}}]}, "must be NaN"),
        ({"metrics": "m"}, "metrics: wanted a list"),
    ],
)
def test_invalid_requests_are_refused(change: Mapping[str, Any], message: str) -> None:
    body = {
        "time": {"start": T, "end": T + 60, "aggregator": "sum"},
        "metrics": [{"id": "a", "metric": "m.a"}],
        **change,
    }
    with pytest.raises(BadQuery) as refused:
        to_query(read_request(json.dumps(body).encode(), quirks=OPENTSDB), 0)
    assert refused.value.status == 500
    assert message in refused.value.message
    with pytest.raises(BadQuery) as refused:
        to_query(read_request(json.dumps(body).encode(), params={"corrected": [""]}, quirks=OPENTSDB), 0)
    assert refused.value.status == 400
    assert message in refused.value.message


@pytest.mark.difference(
    "sub-query-limit",
    topic="limits",
    theirs="A request may have any number of sub queries, or of expressions, their metrics and outputs",
    ours="It may have 2,000; 413 beyond",
)
def test_metrics_and_bytes_of_a_request_are_bounded() -> None:
    """To hold each metric against each other took the square of their number: some made the daemon stand still."""

    def places(count: int) -> list[int]:
        metrics = [{"id": f"a{n}", "metric": f"m{n % 1000}"} for n in range(count)]
        body = {"time": {"start": T, "end": T + 600, "aggregator": "sum"}, "metrics": metrics}
        return to_query(read_request(json.dumps(body).encode(), quirks=OPENTSDB), 0)[1]

    assert places(MAX_SUB_QUERIES) == [*range(1000)] * 2
    for make in (lambda: places(MAX_SUB_QUERIES + 1), lambda: read_request(b" " * (LARGEST + 1), quirks=OPENTSDB)):
        with pytest.raises(BadQuery, match="wanted at most") as refused:
            make()
        assert refused.value.status == 413


def formulas(texts: Mapping[str, str]) -> list[Formula]:
    return [Formula(name, text, Join(), None, parse(text)) for name, text in texts.items()]


class Counted(tuple[str, ...]):
    """Names that know how often they were gone through."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        type(self).looks += 1
        return super().__iter__()


def test_cycle_check_visits_each_expression_once() -> None:
    """Each of its next two, of which the first is made of the second too: twice the ways with each more."""
    count = 60
    texts = {f"e{n}": f"e{n + 1} + e{n + 2}" if n < count - 2 else "a" for n in range(count)}
    each = [
        replace(one, expression=one.expression._replace(names=Counted(one.expression.names)))
        for one in formulas(texts)
    ]  # fmt: skip
    assert [one.id for one in by_dependency(each)][2:] == [f"e{n}" for n in reversed(range(count - 2))]
    assert Counted.looks == count


@pytest.mark.difference("sub-query-limit")
def test_nested_expressions_are_not_limited_by_the_stack() -> None:
    """Deeper than Python's stack."""
    count = 1200
    texts = {f"e{n}": f"e{n + 1} + 0" if n < count - 1 else "a" for n in range(count)}
    assert rows(run(texts, corrected=False, outputs=[{"id": "e0"}])) == rows(run({"e": "a"}, corrected=False))
    with pytest.raises(BadQuery, match="2001 expressions, wanted at most 2000") as refused:
        run({f"e{n}": "a" for n in range(MAX_SUB_QUERIES + 1)}, corrected=False)
    assert refused.value.status == 413


def test_only_needed_expressions_are_evaluated() -> None:
    texts = {"e": "f + a", "f": "a * 2", "g": "a > b ? 1 : 0"}
    assert rows(run(texts, corrected=False, outputs=[{"id": "e"}])) == [[0, 3.0, 9.0], [60, 6.0, "NaN"]]


@pytest.mark.parametrize("block_bytes", [1, 200, 1000, 10_000])
@pytest.mark.parametrize("corrected", [False, True])
def test_blocks_do_not_change_results(block_bytes: int, corrected: bool) -> None:
    texts = {"e": "a + b * 2", "f": "e - a"}
    assert run(texts, corrected=corrected, block_bytes=block_bytes) == run(texts, corrected=corrected)


def test_memory_is_held_before_use_and_checked_between_blocks() -> None:
    """300 series of 30 points, all at times of their own: the table is 300 times as large."""
    found = [group("m.a", host, {host + 300 * at: 1.0 for at in range(30)}) for host in range(300)]
    body = {
        "time": {"start": T, "end": T + 9000, "aggregator": "sum"},
        "metrics": [{"id": "a", "metric": "m.a"}],
        "expressions": [{"id": "e", "expr": "a * 2"}],
    }
    request = read_request(json.dumps(body).encode(), quirks=OPENTSDB)
    query, subs = to_query(request, 0)
    held: list[int] = [0]
    looks: list[int] = []
    answer = Answer(query, [SubAnswer(query.queries[0], found)])
    evaluation = Evaluation(
        request,
        answer,
        subs,
        add_memory=lambda size: held.append(held[-1] + size),
        check=lambda: looks.append(held[-1]),
    )
    [shown] = evaluation.outputs()
    assert shown.table.values.shape == (300, 9000)
    assert shown.table.values.nbytes < held[-1] < 2 * shown.table.values.nbytes
    assert any(look > shown.table.values.nbytes for look in looks)

    def refuse(size: int) -> None:
        if size > 1 << 20:
            raise BadQuery("too much")

    with pytest.raises(BadQuery, match="too much"):
        Evaluation(request, answer, subs, add_memory=refuse).outputs()


def test_integer_larger_than_any_double_is_infinite() -> None:
    assert rows(run({"e": f"a * 1{'0' * 400}", "f": f"a - 1{'0' * 400}"}, corrected=False))[0] == [
        0, "Infinity", "Infinity",
    ]  # fmt: skip


def corrected_query(**more: Any) -> Query:
    body = {
        "time": {"start": T, "end": T + 600, "aggregator": "sum"},
        "metrics": [{"id": "a", "metric": "m.a"}],
        "corrected": True,
    }
    return to_query(read_request(json.dumps(body | more).encode(), quirks=OPENTSDB), 0)[0]


def test_corrected_start_and_end_may_have_decimals() -> None:
    query = corrected_query(time={"start": f"{T}.5", "end": f"{T + 1}.25", "aggregator": "sum"})
    assert (query.start_ms, query.end_ms) == (T * 1000 + 500, T * 1000 + 1250)


@pytest.mark.difference("exp-outputs")
def test_corrected_downsampler_fills_with_its_scalar() -> None:
    downsampler = {"interval": "1m", "aggregator": "avg", "fillPolicy": {"policy": "scalar", "value": 7}}
    query = corrected_query(time={"start": T, "end": T + 600, "aggregator": "sum", "downsampler": downsampler})
    assert query.queries[0].downsample == Downsample("1m-avg-scalar", 60_000, "avg", Fill.SCALAR, scalar=7.0)


def test_corrected_expression_accepts_not_key() -> None:
    wanted = {"type": "not_key", "tagk": "host", "filter": ""}
    filters = [{"id": "f", "tags": [wanted]}]
    query = corrected_query(filters=filters, metrics=[{"id": "a", "metric": "m.a", "filter": "f"}])
    assert query.queries[0].filters == (Filter("host", "not_key", ""),)
    with pytest.raises(BadQuery, match="Could not find a tag value filter of the type: not_key"):
        corrected_query(filters=filters, corrected=False)


def test_fill_larger_than_any_double_is_refused() -> None:
    with pytest.raises(BadQuery, match="wanted a number"):
        run({"e": "a"}, corrected=False, metrics=[{"id": "a", "metric": "m.a", "fillPolicy": {"value": 10**400}}])
