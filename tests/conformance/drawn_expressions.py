"""Requests of `exp` and `gexp` drawn by lot, over the points of query.md's vectors."""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

METRICS = ("qs.cpu", "qs.neg", "qs.mix", "qs.flt", "qs.tags", "qs.count16", "qs.sparse", "qs.edge", "qs.one")
START_S = 1356998400
HOSTS = {"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}
FILLS = ({"policy": "nan"}, {"policy": "zero"}, {"policy": "scalar", "value": 3})


class Drawn(NamedTuple):
    """A request."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


def drawn(seed: int) -> Drawn:
    """The request of a number."""
    lot = random.Random(seed)
    start = START_S + lot.choice([0, 0, 0, 30, 70, 110, 140])
    end = start + lot.choice([60, 100, 300, 300, 900, 3600])
    if seed % 2:
        return Drawn("GET", f"/api/query/gexp?start={start}&end={end}&exp={quote(call(lot))}")
    return Drawn("POST", "/api/query/exp", body(lot, start, end))


def metric_query(lot: random.Random) -> str:
    aggregator = lot.choice(["sum", "avg", "none", "max", "min", "count", "zimsum"])
    downsample = lot.choice(["", "", "1m-avg:", "1m-sum-zero:", "1m-max-nan:", "30s-sum:", "2m-count-zero:"])
    rate = lot.choice(["", "", "", "", "rate:"])
    tags = lot.choice(["", "", "{host=*}", "{host=web01}", "{host=web02}", "{host=web01|web02}"])
    return f"{aggregator}:{downsample}{rate}{lot.choice(METRICS)}{tags}"


def call(lot: random.Random, depth: int = 0) -> str:
    """A function of queries, and of one other function at most."""

    def operand() -> str:
        return metric_query(lot) if depth or lot.random() < 0.7 else call(lot, depth + 1)

    match lot.randrange(7):
        case 0:
            return f"absolute({operand()})"
        case 1:
            return f"scale({operand()},{lot.choice(['2', '-1', '0.5', '1.0', '0'])})"
        case 2:
            return f"alias({metric_query(lot)},x_@host)"
        case 3:
            window = lot.choice(["1", "2", "3", "'1min'", "'2min'", "'90s'", "'1h'"])
            return f"movingAverage({operand()},{window})"
        case 4:
            name = lot.choice(["highestMax", "highestCurrent"])
            return f"{name}({operand()},{lot.choice('123')})"
        case _:
            name = lot.choice(["sum", "difference", "multiply", "divide"])
            return f"{name}({operand()},{metric_query(lot)})"


def formula(lot: random.Random, depth: int = 0) -> str:
    """An expression over a and b. No truth is added to another, nor two parentheses put around a name."""
    if depth > 3 or lot.random() < 0.25:
        return lot.choice(["a", "b", "a", "b", "2", "3", "0.1", "0", "1.5", "0.5d"])
    one, two = formula(lot, depth + 1), formula(lot, depth + 1)
    match lot.randrange(8):
        case 0:
            return f"({one} + {two})"
        case 1:
            return f"({one} > {two} ? {one} : a)"
        case 2:
            return f"b * ({one} {lot.choice(['>', '<', '==', '!=', '>=', '<='])} a)"
        case 3:
            return f"-{lot.choice('ab')} * {one}"
        case _:
            return f"{one} {lot.choice('+-*/%')} {two}"


def body(lot: random.Random, start: int, end: int) -> Mapping[str, Any]:
    """A request of two metrics and an expression of them."""
    some = {"type": "literal_or", "tagk": "host", "filter": "web01|web03", "groupBy": lot.random() < 0.7}
    time: dict[str, Any] = {
        "start": str(start),
        "end": str(end),
        "aggregator": lot.choice(["sum", "avg", "none", "max"]),
    }
    if lot.random() < 0.6:
        time["downsampler"] = {"interval": lot.choice(["1m", "30s", "2m"]), "aggregator": lot.choice(["avg", "sum"])}
    if lot.random() < 0.15:
        time["rate"] = True
    expression: dict[str, Any] = {"id": "e", "expr": formula(lot)}
    if lot.random() < 0.5:
        expression["join"] = {
            "operator": lot.choice(["union", "intersection"]),
            "useQueryTags": lot.random() < 0.4,
            "includeAggTags": lot.random() < 0.5,
        }
    found: dict[str, Any] = {
        "time": time,
        "filters": [{"id": "f1", "tags": [HOSTS]}, {"id": "f2", "tags": [some]}],
        "metrics": [metric(lot, "a"), metric(lot, "b")],
        "expressions": [expression],
    }
    if lot.random() < 0.2:
        found["outputs"] = [{"id": "a"}, {"id": "e", "alias": "shown"}]
    return found


def metric(lot: random.Random, name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {"id": name, "metric": lot.choice(METRICS)}
    if lot.random() < 0.7:
        found["filter"] = lot.choice(["f1", "f1", "f2"])
    if lot.random() < 0.3:
        found["aggregator"] = lot.choice(["sum", "max"])
    if lot.random() < 0.4:
        found["fillPolicy"] = lot.choice(FILLS)
    return found
