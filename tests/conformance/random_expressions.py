"""Random requests of `exp` and `gexp` for the points of docs/compat/query.md's vectors."""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

METRICS = ("qs.cpu", "qs.neg", "qs.mix", "qs.flt", "qs.tags", "qs.count16", "qs.sparse", "qs.edge", "qs.one")
START_S = 1356998400
HOSTS = {"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}
FILLS = ({"policy": "nan"}, {"policy": "zero"}, {"policy": "scalar", "value": 3})


class Request(NamedTuple):
    """A request."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


def random_request(seed: int) -> Request:
    """Return the request of a seed."""
    rng = random.Random(seed)
    start = START_S + rng.choice([0, 0, 0, 30, 70, 110, 140])
    end = start + rng.choice([60, 100, 300, 300, 900, 3600])
    if seed % 2:
        return Request("GET", f"/api/query/gexp?start={start}&end={end}&exp={quote(call(rng))}")
    return Request("POST", "/api/query/exp", body(rng, start, end))


def metric_query(rng: random.Random) -> str:
    aggregator = rng.choice(["sum", "avg", "none", "max", "min", "count", "zimsum"])
    downsample = rng.choice(["", "", "1m-avg:", "1m-sum-zero:", "1m-max-nan:", "30s-sum:", "2m-count-zero:"])
    rate = rng.choice(["", "", "", "", "rate:"])
    tags = rng.choice(["", "", "{host=*}", "{host=web01}", "{host=web02}", "{host=web01|web02}"])
    return f"{aggregator}:{downsample}{rate}{rng.choice(METRICS)}{tags}"


def call(rng: random.Random, depth: int = 0) -> str:
    """Return a function of queries and at most one nested function."""

    def operand() -> str:
        return metric_query(rng) if depth or rng.random() < 0.7 else call(rng, depth + 1)

    match rng.randrange(7):
        case 0:
            return f"absolute({operand()})"
        case 1:
            return f"scale({operand()},{rng.choice(['2', '-1', '0.5', '1.0', '0'])})"
        case 2:
            return f"alias({metric_query(rng)},x_@host)"
        case 3:
            window = rng.choice(["1", "2", "3", "'1min'", "'2min'", "'90s'", "'1h'"])
            return f"movingAverage({operand()},{window})"
        case 4:
            name = rng.choice(["highestMax", "highestCurrent"])
            return f"{name}({operand()},{rng.choice('123')})"
        case _:
            name = rng.choice(["sum", "difference", "multiply", "divide"])
            return f"{name}({operand()},{metric_query(rng)})"


def formula(rng: random.Random, depth: int = 0) -> str:
    """Return an expression over a and b. Booleans are not added, and names are not put into double parentheses."""
    if depth > 3 or rng.random() < 0.25:
        return rng.choice(["a", "b", "a", "b", "2", "3", "0.1", "0", "1.5", "0.5d"])
    one, two = formula(rng, depth + 1), formula(rng, depth + 1)
    match rng.randrange(8):
        case 0:
            return f"({one} + {two})"
        case 1:
            return f"({one} > {two} ? {one} : a)"
        case 2:
            return f"b * ({one} {rng.choice(['>', '<', '==', '!=', '>=', '<='])} a)"
        case 3:
            return f"-{rng.choice('ab')} * {one}"
        case _:
            return f"{one} {rng.choice('+-*/%')} {two}"


def body(rng: random.Random, start: int, end: int) -> Mapping[str, Any]:
    """Return a request with two metrics and an expression of them."""
    some = {"type": "literal_or", "tagk": "host", "filter": "web01|web03", "groupBy": rng.random() < 0.7}
    time: dict[str, Any] = {
        "start": str(start),
        "end": str(end),
        "aggregator": rng.choice(["sum", "avg", "none", "max"]),
    }
    if rng.random() < 0.6:
        time["downsampler"] = {"interval": rng.choice(["1m", "30s", "2m"]), "aggregator": rng.choice(["avg", "sum"])}
    if rng.random() < 0.15:
        time["rate"] = True
    expression: dict[str, Any] = {"id": "e", "expr": formula(rng)}
    if rng.random() < 0.5:
        expression["join"] = {
            "operator": rng.choice(["union", "intersection"]),
            "useQueryTags": rng.random() < 0.4,
            "includeAggTags": rng.random() < 0.5,
        }
    found: dict[str, Any] = {
        "time": time,
        "filters": [{"id": "f1", "tags": [HOSTS]}, {"id": "f2", "tags": [some]}],
        "metrics": [metric(rng, "a"), metric(rng, "b")],
        "expressions": [expression],
    }
    if rng.random() < 0.2:
        found["outputs"] = [{"id": "a"}, {"id": "e", "alias": "shown"}]
    return found


def metric(rng: random.Random, name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {"id": name, "metric": rng.choice(METRICS)}
    if rng.random() < 0.7:
        found["filter"] = rng.choice(["f1", "f1", "f2"])
    if rng.random() < 0.3:
        found["aggregator"] = rng.choice(["sum", "max"])
    if rng.random() < 0.4:
        found["fillPolicy"] = rng.choice(FILLS)
    return found
