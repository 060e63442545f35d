"""Expressions over hand-made series: what a request gets where it wants OpenTSDB's accidents left out."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tsd.errors import BadQuery
from tsd.query.answers import Answer, Group, SubAnswer
from tsd.query.body import LARGEST
from tsd.query.exp import engine
from tsd.query.exp.answer import write_outputs
from tsd.query.exp.engine import Evaluation
from tsd.query.exp.language import parse
from tsd.query.exp.order import in_order
from tsd.query.exp.request import Formula, Join, read_request, to_query
from tsd.query.exp.series import blocks
from tsd.query.model import Downsample, Fill, Filter, Query
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
    with pytest.raises(BadQuery) as refused:
        to_query(read_request(json.dumps(body).encode(), params={"corrected": [""]}, corrected=False), 0)
    assert refused.value.status == 400
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


def formulas(texts: Mapping[str, str]) -> list[Formula]:
    return [Formula(name, text, Join(), None, parse(text)) for name, text in texts.items()]


class Counted(tuple[str, ...]):
    """Names that know how often they were gone through."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        type(self).looks += 1
        return super().__iter__()


def test_each_expression_is_looked_at_once_for_circles() -> None:
    """Each of its next two, of which the first is made of the second too: twice the ways with each more."""
    count = 60
    texts = {f"e{n}": f"e{n + 1} + e{n + 2}" if n < count - 2 else "a" for n in range(count)}
    each = [
        replace(one, expression=one.expression._replace(names=Counted(one.expression.names)))
        for one in formulas(texts)
    ]  # fmt: skip
    assert [one.id for one in in_order(each)][2:] == [f"e{n}" for n in reversed(range(count - 2))]
    assert Counted.looks == count


def test_expressions_of_expressions_may_go_as_deep_as_they_are_many() -> None:
    """Deeper than Python's stack."""
    count = 1200
    texts = {f"e{n}": f"e{n + 1} + 0" if n < count - 1 else "a" for n in range(count)}
    assert rows(ask(texts, corrected=False, outputs=[{"id": "e0"}])) == rows(ask({"e": "a"}, corrected=False))
    with pytest.raises(BadQuery, match="2001 expressions, wanted at most 2000") as refused:
        ask({f"e{n}": "a" for n in range(MOST_SUBS + 1)}, corrected=False)
    assert refused.value.status == 413


def test_only_what_is_needed_is_evaluated() -> None:
    texts = {"e": "f + a", "f": "a * 2", "g": "a > b ? 1 : 0"}
    assert rows(ask(texts, corrected=False, outputs=[{"id": "e"}])) == [[0, 3.0, 9.0], [60, 6.0, "NaN"]]


@pytest.mark.parametrize("most", [1, 2, 5, 100])
def test_in_parts_or_at_once_the_results_are_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [ask({"e": "a + b * 2", "f": "e - a"}, corrected=corrected) for corrected in (False, True)]
    monkeypatch.setattr(engine, "blocks", lambda shape, _: blocks(shape, most))
    assert [ask({"e": "a + b * 2", "f": "e - a"}, corrected=corrected) for corrected in (False, True)] == whole


def test_what_is_held_is_told_beforehand_and_looked_at_between_parts() -> None:
    """300 series of 30 points, all at times of their own: the table is 300 times as large."""
    found = [group("m.a", host, {host + 300 * at: 1.0 for at in range(30)}) for host in range(300)]
    body = {
        "time": {"start": T, "end": T + 9000, "aggregator": "sum"},
        "metrics": [{"id": "a", "metric": "m.a"}],
        "expressions": [{"id": "e", "expr": "a * 2"}],
    }
    asked = read_request(json.dumps(body).encode(), corrected=False)
    query, subs = to_query(asked, 0)
    held: list[int] = [0]
    looks: list[int] = []
    answer = Answer(query, [SubAnswer(query.queries[0], found)])
    evaluation = Evaluation(
        asked, answer, subs, hold=lambda size: held.append(held[-1] + size), check=lambda: looks.append(held[-1])
    )
    [shown] = evaluation.outputs()
    assert shown.table.values.shape == (300, 9000)
    assert shown.table.values.nbytes < held[-1] < 2 * shown.table.values.nbytes
    assert any(look > shown.table.values.nbytes for look in looks)

    def refuse(size: int) -> None:
        if size > 1 << 20:
            raise BadQuery("too much")

    with pytest.raises(BadQuery, match="too much"):
        Evaluation(asked, answer, subs, hold=refuse).outputs()


def test_integers_beyond_all_doubles_are_infinite() -> None:
    assert rows(ask({"e": f"a * 1{'0' * 400}", "f": f"a - 1{'0' * 400}"}, corrected=False))[0] == [
        0, "Infinity", "Infinity",
    ]  # fmt: skip


def corrected_query(**more: Any) -> Query:
    body = {
        "time": {"start": T, "end": T + 600, "aggregator": "sum"},
        "metrics": [{"id": "a", "metric": "m.a"}],
        "corrected": True,
    }
    return to_query(read_request(json.dumps(body | more).encode(), corrected=False), 0)[0]


def test_corrected_both_ends_may_have_decimals() -> None:
    query = corrected_query(time={"start": f"{T}.5", "end": f"{T + 1}.25", "aggregator": "sum"})
    assert (query.start_ms, query.end_ms) == (T * 1000 + 500, T * 1000 + 1250)


def test_corrected_the_downsampler_fills_with_its_number() -> None:
    downsampler = {"interval": "1m", "aggregator": "avg", "fillPolicy": {"policy": "scalar", "value": 7}}
    query = corrected_query(time={"start": T, "end": T + 600, "aggregator": "sum", "downsampler": downsampler})
    assert query.queries[0].downsample == Downsample("1m-avg-scalar", 60_000, "avg", Fill.SCALAR, scalar=7.0)


def test_corrected_a_filter_may_be_not_key() -> None:
    wanted = {"type": "not_key", "tagk": "host", "filter": ""}
    filters = [{"id": "f", "tags": [wanted]}]
    query = corrected_query(filters=filters, metrics=[{"id": "a", "metric": "m.a", "filter": "f"}])
    assert query.queries[0].filters == (Filter("host", "not_key", ""),)
    with pytest.raises(BadQuery, match="Could not find a tag value filter of the type: not_key"):
        corrected_query(filters=filters, corrected=False)


def test_a_fill_that_no_double_can_hold_is_refused() -> None:
    with pytest.raises(BadQuery, match="wanted a number"):
        ask({"e": "a"}, corrected=False, metrics=[{"id": "a", "metric": "m.a", "fillPolicy": {"value": 10**400}}])
