"""The series of KairosDB's recorded queries, in memory, and the comparison of answers by value."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tsd.query.kairosdb.column import of_doubles, of_integers, of_texts
from tsd.query.kairosdb.groups import TaggedColumn
from tsd.query.kairosdb.model import MetricQuery

VECTORS = Path(__file__).parent / "vectors" / "kairosdb_vectors.json"
Key = tuple[tuple[tuple[str, str], ...], str]  # tags, and the type of the values


@cache
def recorded() -> dict[str, Any]:
    """The whole file."""
    loaded: dict[str, Any] = json.loads(VECTORS.read_text("utf-8"))
    return loaded


def body_of(case: Mapping[str, Any]) -> str:
    """The body of a query's request."""
    return str(case["body"]) if "body" in case else json.dumps(case["query"])


@cache
def stored() -> Mapping[str, Mapping[Key, Mapping[int, Any]]]:
    """The points of each metric, by series and type, then by time in ms."""
    found: dict[str, dict[Key, dict[int, Any]]] = defaultdict(dict)
    for text in recorded()["queries"]["puts"]:
        body = json.loads(text)
        for metric in body if isinstance(body, list) else [body]:
            tags = tuple(sorted(metric["tags"].items()))
            for time_ms, value, *types in metric["datapoints"]:
                kind, made = typed(value, types[0] if types else metric.get("type"))
                found[metric["name"]].setdefault((tags, kind), {})[time_ms] = made
    return found


def typed(value: Any, name: str | None) -> tuple[str, Any]:
    """The type and the value of a point, as KairosDB stores it."""
    names = {str: "string", float: "double", int: "long"}
    kind = name or names[type(value)]
    return kind, {"string": str, "double": float, "long": int}[kind](value)


def series_of(metric: MetricQuery) -> Sequence[TaggedColumn]:
    """The stored points that a query selects."""
    found = []
    for (tags, kind), points in stored().get(metric.name, {}).items():
        if not all(_matches(dict(tags).get(name), each) for name, each in metric.tags.items()):
            continue
        times = sorted(time_ms for time_ms in points if metric.start_ms <= time_ms <= metric.end_ms)
        values = [points[time_ms] for time_ms in times]
        at = np.array(times, np.int64)
        if kind == "string":
            column = of_texts(at, np.array([*values, None], object)[:-1])
        elif kind == "double":
            column = of_doubles(at, np.array(values, np.float64))
        else:
            column = of_integers(at, np.array(values, np.int64))
        found.append(TaggedColumn(dict(tags), column))
    return found


def _matches(value: str | None, alternatives: Sequence[str]) -> bool:
    patterns = [one.removeprefix("regex:") for one in alternatives if one.startswith("regex:")]
    return value is not None and (value in alternatives or any(re.fullmatch(one, value) for one in patterns[-1:]))


def is_same(got: Any, wanted: Any) -> bool:
    """Whether two answers are equal by value; numbers but for the last digits, lists of a tag's values in any order."""
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(
            {name: sorted(each) for name, each in got[key].items()}
            == {name: sorted(each) for name, each in wanted[key].items()}
            if key == "tags" and isinstance(wanted[key], dict)
            else is_same(got[key], wanted[key])
            for key in wanted
        )
    if isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(is_same, got, wanted))
    if isinstance(wanted, float) and isinstance(got, int | float):
        return bool(np.isclose(got, wanted, rtol=1e-12, atol=0))
    return bool(got == wanted)
