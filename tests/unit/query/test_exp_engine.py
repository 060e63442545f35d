"""Expressions over hand-made series: what a request gets where it wants OpenTSDB's accidents left out."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tsd.errors import BadQuery
from tsd.query.answers import Answer, Group, SubAnswer
from tsd.query.body import LARGEST
from tsd.query.exp.answer import write_outputs
from tsd.query.exp.engine import Evaluation
from tsd.query.exp.request import read_request, to_query
from tsd.query.points import doubles_as_points
from tsd.query.validate import MOST_SUBS

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


def ask(expressions: Mapping[str, str], *, corrected: bool, **more: Any) -> dict[str, Any]:
    """The answer of m.a and m.b as a and b, from T to T + 10 minutes."""
    body = {
        "time": {"start": T, "end": T + 600, "aggregator": "sum"},
        "metrics": [{"id": name[-1], "metric": name, "fillPolicy": NAN} for name in FOUND],
        "expressions": [{"id": name, "expr": text} for name, text in expressions.items()],
        "corrected": corrected,
        **more,
    }
    asked = read_request(json.dumps(body).encode(), corrected=False)
    query, subs = to_query(asked, 0)
    answer = Answer(query, [SubAnswer(sub, FOUND[sub.metric or ""]) for sub in query.queries])
    outputs: dict[str, Any] = json.loads(b"".join(write_outputs(Evaluation(asked, answer, subs).outputs(), asked)))
    return outputs


def rows(answer: Mapping[str, Any], at: int = 0) -> list[list[Any]]:
    """Seconds after T, and values."""
    return [[time // 1000 - T, *values] for time, *values in answer["outputs"][at]["dps"]]


def test_a_series_that_a_variable_lacks_is_zero_or_corrected_its_fill() -> None:
    assert rows(ask({"e": "a + b"}, corrected=False)) == [[0, 11.0, 3.0], [60, 22.0, "NaN"]]
    assert rows(ask({"e": "a + b"}, corrected=True)) == [[0, 11.0, "NaN"], [60, 22.0, "NaN"]]


def test_a_metric_shows_all_that_was_read_or_corrected_what_was_asked_for() -> None:
    shown = [{"id": "b"}]
    assert rows(ask({}, corrected=False, outputs=shown)) == [[0, 10.0], [60, 20.0], [900, 30.0]]
    assert rows(ask({}, corrected=True, outputs=shown)) == [[0, 10.0], [60, 20.0]]


def test_a_downsampler_s_fill_is_ignored_or_corrected_used() -> None:
    time = {"start": T, "end": T + 600, "aggregator": "sum"}
    time["downsampler"] = {"interval": "1m", "aggregator": "avg", "fillPolicy": {"policy": "zero"}}
    fills = []
    for corrected in (False, True):
        body = {"time": time, "metrics": [{"id": "a", "metric": "m.a"}], "corrected": corrected}
        query, _ = to_query(read_request(json.dumps(body).encode(), corrected=False), 0)
        downsample = query.queries[0].downsample
        assert downsample
        fills.append(downsample.fill.value)
    assert fills == ["none", "zero"]


def test_upper_case_is_missing_or_corrected_a_variable_like_any() -> None:
    metrics = [{"id": "A", "metric": "m.a"}]
    with pytest.raises(BadQuery, match="Missing results for variable A"):
        ask({"e": "A * 2"}, corrected=False, metrics=metrics)
    assert rows(ask({"e": "A * 2"}, corrected=True, metrics=metrics)) == [[0, 2.0, 6.0], [60, 4.0, 0.0]]


def test_a_literal_has_32_bits_or_corrected_64() -> None:
    assert rows(ask({"e": "a * 0.123456789"}, corrected=False))[0] == [0, 0.12345679, 3 * 0.12345679]
    assert rows(ask({"e": "a * 0.123456789"}, corrected=True))[0] == [0, 0.123456789, 3 * 0.123456789]


def test_an_expression_of_another_that_yields_nan_is_answered() -> None:
    """OpenTSDB fails, or takes each value for that of the next moment."""
    assert rows(ask({"e": "a + b", "g": "e * 2"}, corrected=False), 1) == [[0, 22.0, 6.0], [60, 44.0, "NaN"]]


@pytest.mark.parametrize(
    ("expressions", "message"),
    [
        ({"e": "e + a"}, "Self referencing expression found: e"),
        ({"e": "f + a", "f": "e + a"}, "Circular reference found: f"),
        ({"e": "a > b ? 1 : 0"}, "Expression returned a result of type: java.lang.Integer"),
    ],
)
def test_expressions_that_cannot_be(expressions: Mapping[str, str], message: str) -> None:
    with pytest.raises(BadQuery, match=message):
        ask(expressions, corrected=False)


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
def test_requests_that_are_refused(change: Mapping[str, Any], message: str) -> None:
    body = {
        "time": {"start": T, "end": T + 60, "aggregator": "sum"},
        "metrics": [{"id": "a", "metric": "m.a"}],
        **change,
    }
    with pytest.raises(BadQuery) as refused:
        to_query(read_request(json.dumps(body).encode(), corrected=False), 0)
    assert refused.value.status == 500
    assert message in refused.value.message


def test_a_request_has_so_many_metrics_and_bytes_at_most() -> None:
    """To hold each metric against each other took the square of their number: some made the daemon stand still."""

    def places(count: int) -> list[int]:
        metrics = [{"id": f"a{n}", "metric": f"m{n % 1000}"} for n in range(count)]
        body = {"time": {"start": T, "end": T + 600, "aggregator": "sum"}, "metrics": metrics}
        return to_query(read_request(json.dumps(body).encode(), corrected=False), 0)[1]

    assert places(MOST_SUBS) == [*range(1000)] * 2
    for make in (lambda: places(MOST_SUBS + 1), lambda: read_request(b" " * (LARGEST + 1), corrected=False)):
        with pytest.raises(BadQuery, match="wanted at most") as refused:
            make()
        assert refused.value.status == 413


def test_a_fill_that_no_double_can_hold_is_refused() -> None:
    with pytest.raises(BadQuery, match="wanted a number"):
        ask({"e": "a"}, corrected=False, metrics=[{"id": "a", "metric": "m.a", "fillPolicy": {"value": 10**400}}])
