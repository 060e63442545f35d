"""The same questions by `/q?ascii`, `gexp` and `exp`, whose answers are computed from those of the reference."""

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from tests.fuzz.process import Client
from tests.fuzz.questions import METRICS, Answer, Filter, Group, Question, differing
from tests.fuzz.world import World
from tests.query_vectors import Value

FACTOR = 3
Span = tuple[int, int]


def group_of(answer: Mapping[str, Any]) -> Group:
    """Return what is answered of a group."""
    return Group(*(tuple(sorted(own)) for own in (answer["tags"].items(), answer["aggregateTags"], answer["tsuids"])))


def points_of(dps: Mapping[str, Any] | list[tuple[int, Any]]) -> dict[int, Value]:
    """Return the points of a group."""
    pairs = dps.items() if isinstance(dps, Mapping) else dps
    return {int(at): math.nan if value in (None, "NaN") else value for at, value in pairs}


def ask_otherwise(daemon: Client, dice: random.Random, world: World, one: Question, span_ms: Span) -> str:
    """Ask a question, without what the form cannot have, by one of the forms. Return which. Raise AssertionError for
    another answer."""
    form = dice.choice(["gexp", "exp", "ascii"])
    span_ms = span_ms[0] // 1000 * 1000, span_ms[1] // 1000 * 1000
    filters = tuple(Filter(each.key, "wildcard", "*", form != "exp") for each in one.filters)
    one = replace(one, rate=one.rate and "rate", filters=filters, explicit=False, tsuids=(), usage="", zone="")
    if form == "exp":
        aggregator = "sum" if one.aggregator == "none" else one.aggregator
        one = replace(one, aggregator=aggregator, downsample="-".join(one.downsample.split("-")[:2]))
    is_fast = one.metric == world.names.now["metric"][METRICS.index("fast")]
    has_ms = is_fast or world.has_ms or "ms-" in one.downsample
    if world.names.lack(one) or not world.is_certain(one, span_ms) or "0all" in one.downsample or has_ms:
        return "other forms left out"
    expected = one.answer(world.stored, span_ms)
    match form:
        case "gexp":
            _ask_gexp(daemon, dice, one, span_ms, expected)
        case "exp":
            _ask_exp(daemon, one, span_ms, expected)
        case "ascii":
            _ask_ascii(daemon, one, span_ms, expected)
    return form


def _ask_gexp(daemon: Client, dice: random.Random, one: Question, span_ms: Span, expected: Answer) -> None:
    """Ask by `gexp`. Raise AssertionError for another answer."""
    name, change = dice.choice([("scale({},3)", _scaled), ("absolute({})", abs)])
    asked = one.uri().replace("wildcard(*)", "*").replace("{}", "")
    path = f"/api/query/gexp?ms&show_tsuids&start={span_ms[0]}&end={span_ms[1]}&exp={quote(name.format(asked))}"
    status, text = daemon.request(path)
    assert status == 200, (status, text, path)
    found = {group_of(each): points_of(each["dps"]) for each in json.loads(text)}
    _compare(found, {group: _changed(own, change) for group, own in expected.items()}, path)


def _ask_exp(daemon: Client, one: Question, span_ms: Span, expected: Answer) -> None:
    """Ask by `exp`, where all series are one group. Raise AssertionError for another answer."""
    metric = {"id": "a", "metric": one.metric, "aggregator": one.aggregator, "filter": "f"}
    times: dict[str, Any] = {
        "start": span_ms[0],
        "end": span_ms[1],
        "aggregator": one.aggregator,
        "rate": bool(one.rate),
    }
    if one.downsample:
        interval, function = one.downsample.split("-")[:2]
        times["downsampler"] = {"interval": interval, "aggregator": function}
    tags = [{"type": each.kind, "tagk": each.key, "filter": each.text, "groupBy": False} for each in one.filters]
    body = {
        "time": times, "filters": [{"id": "f", "tags": tags}], "metrics": [metric],
        "expressions": [{"id": "e", "expr": f"a * {FACTOR}"}],
    }  # fmt: skip
    status, text = daemon.request("/api/query/exp", body)
    assert status == 200, (status, text, body)
    [output] = json.loads(text)["outputs"]
    found = {at: values[0] for at, *values in output["dps"] if values}
    wanted = {at: _scaled(value) for own in expected.values() for at, value in own.items()}
    where = Group((), (), ())
    _compare({where: points_of(list(found.items()))}, {where: wanted}, body)


def _ask_ascii(daemon: Client, one: Question, span_ms: Span, expected: Answer) -> None:
    """Ask by `/q?ascii`, which also answers points before and after the range. Raise AssertionError for another
    answer."""
    start, end = (at // 1000 for at in span_ms)
    path = f"/q?start={start}&end={end}&m={quote(one.uri())}&ascii&nocache"
    status, text = daemon.request(path)
    assert status == 200, (status, text, path)
    found: Answer = {}
    for line in text.decode().splitlines():
        _, at, value, *tags = line.split(" ")
        pairs = [tuple(tag.split("=")) for tag in tags]
        group = Group(tuple(sorted((key, value) for key, value in pairs)), (), ())
        if start <= int(at) <= end:
            found.setdefault(group, {})[int(at) * 1000] = float(value)
    wanted = {
        group._replace(aggregated=(), tsuids=()): {at: value for at, value in own.items() if not math.isnan(value)}
        for group, own in expected.items()
    }
    _compare(found, {group: own for group, own in wanted.items() if own}, path)


def _scaled(value: Value) -> Value:
    return value * FACTOR


def _changed(points: Mapping[int, Value], change: Callable[[Value], Value]) -> dict[int, Value]:
    return {at: change(value) for at, value in points.items()}


def _compare(found: Answer, expected: Answer, where: object) -> None:
    differences = differing(found, expected)
    assert not differences, (differences[:4], len(differences), where)
