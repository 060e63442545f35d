"""The longest step of the event loop in CPU time, under random requests.

They are valid requests with parts that are repeated, nested, lengthened or replaced."""

import copy
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from tests.faults.longest_step import BASE, LONGEST_MS, ROUNDS, measured, timed
from tests.running import Running
from tests.unit.server.web_parts import read_response

SETTINGS = {
    "tsd.core.auto_create_metrics": "true",
    "tsd.http.request.max_chunk": str(16 << 20),
    "tsd.kairosdb.enabled": "true",
    "tsd.heroic.enabled": "true",
    "tsd.core.tree.enable_processing": "true",
}
REQUESTS = 40  # of one seed
BODY_BYTES = 1 << 20
TARGET_BYTES = 60_000
POINT = {"metric": "m", "timestamp": BASE, "value": 1, "tags": {"host": "a", "dc": "b"}}
FILTER = {"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}
RULE = {"treeId": 1, "level": 0, "order": 0, "type": "TAGK", "field": "host", "regex": "^(.*)$", "regexGroupIdx": 0}
BODIES: list[tuple[str, Any]] = [
    ("/api/put?details", [POINT, POINT]),
    ("/api/put?summary", POINT),
    ("/api/rollup", [{**POINT, "interval": "1h", "aggregator": "SUM"}]),
    ("/api/histogram", [{**POINT, "buckets": {"0,1": 4, "1,2": 5}, "underflow": 0, "overflow": 1}]),
    (
        "/api/query",
        {
            "start": BASE,
            "end": BASE + 600,
            "queries": [
                {"aggregator": "sum", "metric": "m", "rate": True, "downsample": "1m-avg", "filters": [FILTER, FILTER]},
                {"aggregator": "max", "metric": "m", "tags": {"host": "*"}, "percentiles": [50.0, 99.0]},
                {"aggregator": "sum", "tsuids": ["000001000001000001"]},
            ],
        },
    ),
    ("/api/query/last", {"queries": [{"metric": "m", "tags": {"host": "a"}}], "resolveNames": True, "backScan": 24}),
    (
        "/api/query/exp",
        {
            "time": {"start": str(BASE), "end": str(BASE + 600), "aggregator": "sum"},
            "filters": [{"id": "f", "tags": [FILTER]}],
            "metrics": [{"id": "a", "metric": "m", "filter": "f"}],
            "expressions": [{"id": "e", "expr": "a + (a * 2)", "join": {"operator": "union"}}],
            "outputs": [{"id": "e", "alias": "x"}],
        },
    ),
    ("/api/search/lookup", {"metric": "m", "tags": [{"key": "host", "value": "*"}], "limit": 10}),
    ("/api/suggest", {"type": "metrics", "q": "m", "max": 10}),
    ("/api/uid/assign", {"metric": ["m", "n"], "tagk": ["host"], "tagv": ["a"]}),
    ("/api/uid/uidmeta", {"uid": "000001", "type": "metric", "description": "x", "custom": {"a": "b"}}),
    ("/api/uid/tsmeta", {"tsuid": "000001000001000001", "description": "x", "custom": {"a": "b"}}),
    ("/api/annotation", {"startTime": BASE, "tsuid": "000001000001000001", "description": "x", "custom": {"a": "b"}}),
    ("/api/annotation/bulk", [{"startTime": BASE, "description": "x", "notes": "y", "custom": {"a": "b"}}]),
    ("/api/tree", {"treeId": 1, "name": "t", "description": "x", "strictMatch": False}),
    ("/api/tree/rule", RULE),
    ("/api/tree/rules", [RULE, {**RULE, "order": 1}]),
    ("/api/v1/datapoints", [{"name": "m", "datapoints": [[BASE * 1000, 1], [BASE * 1000 + 1, 2]], "tags": {"a": "b"}}]),
    (
        "/write",
        {
            "series": {"key": "m", "tags": {"host": "a"}, "resource": {"pod": "b"}},
            "data": {"type": "points", "data": [[BASE * 1000, 1], [BASE * 1000 + 1, 2.5]]},
        },
    ),
    (
        "/api/v1/datapoints/query",
        {
            "start_absolute": BASE * 1000,
            "metrics": [
                {
                    "name": "m",
                    "tags": {"host": ["a", "b"]},
                    "group_by": [{"name": "tag", "tags": ["host"]}],
                    "aggregators": [{"name": "sum", "sampling": {"value": 1, "unit": "minutes"}}],
                }
            ],
        },
    ),
    (
        "/api/v1/datapoints/query/tags",
        {"start_absolute": BASE * 1000, "metrics": [{"name": "m", "tags": {"a": ["b"]}}]},
    ),
]
TARGETS = [
    f"/api/query?start={BASE}&end={BASE + 600}&m=sum:1m-avg:rate{{counter,1,2}}:m{{host=*,dc=a|b}}{{x=regexp(a.*)}}",
    f"/q?start={BASE}&end={BASE + 600}&m=sum:m{{host=*}}&o=axis%20x1y2&yrange=[0:1]&ascii",
    f"/api/query/gexp?start={BASE}&exp=scale(sumSeries(sum:m{{host=*}},max:1m-avg:m),2)",
    f"/api/query?start={BASE}&tsuid=sum:000001000001000001,000001000001000002",
    "/api/query/last?timeseries=m{host=a,dc=b}&tsuids=000001000001000001&back_scan=24",
    "/api/search/lookup?m=m{host=*,dc=a}&limit=5",
    "/api/suggest?type=tagv&q=a&max=100",
    "/api/uid/assign?metric=a,b,c&tagk=d,e&tagv=f",
    "/api/annotation?start_time=1&tsuid=000001000001000001",
    "/api/tree/rule?treeid=1&level=0&order=0&type=TAGK&field=host&regex=(a|b)*",
    "/api/v1/metricnames?prefix=m",
    "/s/none/such?a=b&c=d",
]
LINES = [
    b"put m 1356998400 42.5 host=a dc=b",
    b"put m 1356998400123 -7 host=a dc=b cpu=0",
    b"rollup 1h:SUM m 1356998400 42 host=a",
    b"histogram m 1356998400 AAAA host=a",
    b"version",
    b"stats",
    b"help",
    b"meta x a=b",
]
TEXTS: list[Callable[[random.Random, int], str]] = [
    lambda chance, size: chance.choice("a0.-_/*|(){}[],:;\\\"'é\u2028\U0001f600%=&? \t") * size,
    lambda chance, size: "".join(chance.choices("ab01|*.(){}[],:=", k=size)),
    lambda chance, size: chance.choice(("a|", "(a+)+", "a,b=", "1d-avg:", "host=*,", "()", "%C3")) * (size // 4 + 1),
    lambda chance, size: str(chance.getrandbits(min(8 * size, 14_000))),
]


def text(chance: random.Random) -> str:
    return chance.choice(TEXTS)(chance, int(10 ** chance.uniform(0, 5)))


def leaf(chance: random.Random) -> Any:
    return chance.choice(
        (None, True, 0, -1, 1 << 70, 1e308, 10**300, "", [], {}, text(chance), text(chance), {text(chance)[:99]: []})
    )


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every list or object of a body, each with each of its keys or indexes."""
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else []
    found = [(value, key) for key in keys]
    for key in keys:
        found += places(value[key])
    return found


def mutated(chance: random.Random, body: Any) -> Any:
    """Return a copy of a body with one to three changes."""
    body = [copy.deepcopy(body)]
    for _ in range(chance.randint(1, 3)):
        at, key = chance.choice(places(body)[:500])
        one = at[key]
        count = int(10 ** chance.uniform(0, 4.5))
        count = max(min(count, BODY_BYTES // (len(json.dumps(one)) + 4)), 1)
        match chance.randrange(5):
            case 0 if isinstance(at, list):
                at[key:key] = [one] * count
            case 1 if isinstance(at, dict):
                at |= {f"{key}{n}": one for n in range(count)}
            case 2:
                at[key] = [one] * count
            case 3:
                for _ in range(chance.choice((1, 10, 200))):
                    one = [one] if chance.random() < 0.5 else {"a": one}
                at[key] = one
            case _:
                at[key] = leaf(chance)
    return body[0]


def post(chance: random.Random) -> bytes:
    path, body = chance.choice(BODIES)
    data = json.dumps(mutated(chance, body)).encode()
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data))]
    coding = ""
    if chance.random() < 0.1:
        data, coding = gzip.compress(data, 1), "Content-Encoding: gzip\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{coding}Content-Length: {len(data)}\r\n\r\n".encode() + data


def get(chance: random.Random) -> bytes:
    target = chance.choice(TARGETS)
    for _ in range(chance.randint(1, 3)):
        start, end = sorted(chance.choices(range(1, len(target) + 1), k=2))
        part = target[start:end]
        if chance.random() < 0.5:
            part *= int(10 ** chance.uniform(0, 4.5)) // (len(part) + 1) + 1
        else:
            part += quote(text(chance), safe="*|(){}[],:=&")
        target = (target[:start] + part + target[end:])[:TARGET_BYTES]
    safe = "".join(letter for letter in target if " " < letter < "\x7f")
    return f"GET {safe} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def lines(chance: random.Random) -> bytes:
    """Lines of one form with a part that is changed, again and again."""
    line = chance.choice(LINES)
    start, end = sorted(chance.choices(range(len(line) + 1), k=2))
    part = line[start:end] * chance.randint(0, 200) + text(chance)[:900].encode("utf-8", "ignore").replace(b"\n", b"")
    line = (line[:start] + part + line[end:])[:1023] + b"\n"
    return line * max((BODY_BYTES // 4) // len(line), 1)


async def longest_ms(daemon: Running, data: bytes, *, is_http: bool) -> tuple[float, str]:
    """Return the longest step while `data` is sent and answered, and its task."""
    async with timed() as clock, daemon.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send, data if is_http else data + b"\nsync\n")
        await (read_response(client) if is_http else client.read_until(b"synced "))
    return clock.longest_ms, clock.task


@pytest.mark.slow
@pytest.mark.parametrize("make", [post, get, lines], ids=["bodies", "targets", "lines"])
@pytest.mark.parametrize("seed", range(4))
async def test_no_random_request_holds_the_loop(
    make: Callable[[random.Random], bytes], seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    slow = []
    async with measured(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(b"put m %d 1 host=a\n" % BASE)
        for number in range(REQUESTS):
            data = make(chance)
            step = await longest_ms(daemon, data, is_http=make is not lines)
            for _ in range(ROUNDS):
                if step[0] > LONGEST_MS:  # a collection of garbage may fall into any step
                    step = min(step, await longest_ms(daemon, data, is_http=make is not lines))
            if step[0] > LONGEST_MS:
                slow.append((number, *step, data[:200]))
    assert not slow
