"""Random writes, deletions and repeated queries by KairosDB's API of a real daemon: each answer is a reference's.

The daemon uses the embedded store on a clock that runs fast, as in `tests.fuzz.answers`, or KairosDB's tables on a
Cassandra. Points are of this hour, of hours around a limit between two of KairosDB's rows, and of a change to winter
time. Queries run while nothing is written.
"""

import json
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio

from bench.scaled import ScaledClock, Timeline
from tests.fuzz.answers import SPEEDS
from tests.fuzz.kairos_queries import METRICS, Maker
from tests.fuzz.kairos_reference import FOREVER_MS, ROW_MS, Refused, answer, passes, span_of
from tests.fuzz.kairos_sent import DAY_MS, HOUR_MS, Sent, now_ms
from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tsd.daemon.settings import elapsed_ms
from tsd.store.cassandra.engine import CassandraStore
from tsd.store.cassandra.keys import Prefixes
from tsd.store.cassandra.session import Contact
from tsd.tables.kairosdb import reader
from tsd.tables.kairosdb.layout import make_tables

API = "/api/v1/datapoints"
STEPS = {
    "put": 40, "lines": 15, "texts": 10, "flush": 5, "drop": 4, "wait": 3, "delete": 7, "delete_metric": 1, "none": 15
}  # fmt: skip
FIXED = 7  # spans with times that do not depend on the present
SESSION_STEPS = 40  # until the daemon is started again
POOL = 12  # queries that are asked for again and again
NOW_TRIES = 300  # ms between a request and its answer, each of which may have been the present of a relative time
ROWS = (  # unit of columns, and width of rows
    ("MILLISECONDS", str(ROW_MS)),
    ("MILLISECONDS", str(HOUR_MS)),
    ("MILLISECONDS", "604800001"),
    ("LEGACY", str(ROW_MS)),
)


class Judge:
    """Asks queries and compares the answers."""

    def __init__(self, dice: random.Random, sent: Sent, *, is_fast: bool) -> None:
        self._dice = dice
        self._sent = sent
        self._is_fast = is_fast
        self.maker = Maker(dice)
        self._pool = [self.maker.metrics() for _ in range(POOL)]
        self.log: list[str] = []
        self.done: Counter[str] = Counter()

    def body(self) -> dict[str, Any]:
        """Return a query."""
        if self._dice.random() < 0.1:
            self._pool[self._dice.randrange(POOL)] = self.maker.metrics()
        found: dict[str, Any] = {"metrics": self._dice.choice(self._pool), "time_zone": "UTC", **self.span()}
        if self._dice.random() < 0.2:
            found["time_zone"] = "Europe/Berlin"
        return found

    def span(self) -> dict[str, Any]:
        """Return the times of a query."""
        start, end = self._dice.choice(self._sent.areas)
        hour = start // HOUR_MS * HOUR_MS
        spans: list[dict[str, Any]] = [
            {"start_absolute": start, "end_absolute": end},
            {"start_absolute": hour, "end_absolute": hour + 2 * HOUR_MS - 1},
            {"start_absolute": hour - DAY_MS, "end_absolute": hour + DAY_MS},
            {"start_absolute": start + 60_001, "end_absolute": end - 10_000},
            {"start_absolute": self._sent.areas[-1][0]},
            {"start_absolute": hour, "end_absolute": hour + HOUR_MS},
            {"start_absolute": start, "end_absolute": start},
            {"start_relative": {"value": 1, "unit": "hours"}},
            {"start_relative": {"value": 90, "unit": "minutes"}, "end_relative": {"value": 30, "unit": "minutes"}},
            {"start_relative": {"value": 3, "unit": "days"}},
            {"start_relative": {"value": 2, "unit": "months"}, "end_relative": {"value": 1, "unit": "weeks"}},
        ]
        return self._dice.choice(spans[:FIXED] if self._is_fast else spans)

    async def ask(self, daemon: Running) -> None:
        """Ask some questions, queries one after the other or at once. Raise AssertionError for another answer."""
        bodies = [self.body() for _ in range(3)]
        if self._dice.random() < 0.5:
            async with trio.open_nursery() as nursery:
                for one in bodies:
                    nursery.start_soon(self.compare, daemon, one)
        else:
            for one in (*bodies, bodies[0]):
                await self.compare(daemon, one)
        if self._dice.random() < 0.2:
            await self.compare_tags(daemon, self.body())
        if self._dice.random() < 0.1:
            names = (await http_request(daemon, "/api/v1/metricnames")).json["results"]
            held = {key.metric for key, points in self._sent.points.items() if points}
            assert (
                held
                <= {one for one in names if not one.startswith("kairosdb.")}
                <= {metric for metric, _ in self._sent.ever}
            ), (names, held)

    async def compare(self, daemon: Running, body: dict[str, Any]) -> None:
        """Compare the answer to a query."""
        before = now_ms()
        got = await http_post(daemon, f"{API}/query", json.dumps(body).encode())
        after = now_ms()
        wanted: Any = None
        for now in dict.fromkeys([before, after, *range(before, min(after, before + NOW_TRIES))]):
            try:
                wanted = answer(self._sent.points, body, now)
            except Refused:
                wanted = None
            if self._is_same(got.status, got.body, wanted):
                self.done["queries"] += 1
                self.done["refused"] += wanted is None
                return
        raise Different(body, before, got.status, json.loads(got.body), wanted, self.log[-9:])

    @staticmethod
    def _is_same(status: int, text: bytes, wanted: Any) -> bool:
        if wanted is None:
            return status == 400
        return status == 200 and is_same(json.loads(text), wanted)

    async def compare_tags(self, daemon: Running, body: dict[str, Any]) -> None:
        """Compare the tags of a query: at least of the points in its span, at most of all that were ever sent."""
        before = now_ms()
        got = await http_post(daemon, f"{API}/query/tags", json.dumps(body).encode())
        assert got.status == 200, (body, got)
        start, end = span_of(body, before)
        for metric, found in zip(body["metrics"], got.json["queries"], strict=True):
            pairs = {(name, value) for name, values in found["results"][0]["tags"].items() for value in values}
            wanted = metric.get("tags", {})
            least = {
                pair
                for key, points in self._sent.points.items()
                if key.metric == metric["name"] and passes(key.tags, wanted)
                and any(start + 1000 <= at <= end for at in points)
                for pair in key.tags
            }  # fmt: skip
            ever = (tags for name, tags in self._sent.ever if name == metric["name"] and passes(tags, wanted))
            most = {pair for tags in ever for pair in tags}
            assert least <= pairs <= most, (body, metric, sorted(least - pairs), sorted(pairs - most), self.log[-9:])
        self.done["tags"] += 1


class Different(AssertionError):
    """Another answer: query, time of the question, status, answer, wanted answer (None: 400), and what was done."""


def is_same(got: Any, wanted: Any) -> bool:
    """Return whether two answers are equal, numbers but for the last digits."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and got.keys() == wanted.keys() and all(is_same(got[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(is_same, got, wanted))
    if isinstance(wanted, float) and isinstance(got, int | float):
        return math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-6)
    return bool(got == wanted)


async def step(dice: random.Random, sent: Sent, judge: Judge, daemon: Running, *, on_cassandra: bool) -> str:
    """Do one thing, and return what."""
    [name] = dice.choices(list(STEPS), list(STEPS.values()))
    shown = ""
    match name:
        case "put" | "texts":
            if name == "put" or on_cassandra:
                body = getattr(sent, name)()
                sync = dice.choice(["", "?sync"])
                shown = sync + json.dumps(body)[:300]
                while (got := await http_post(daemon, API + sync, json.dumps(body).encode())).status == 503:
                    assert not on_cassandra, got  # while the disk is slow, for a clock that runs fast
                assert got.status == 204, (got.status, got.body[:500], sync, body)
        case "lines":
            answers = await daemon.send_lines(sent.lines().encode())
            assert b"put:" not in answers, answers
        case "flush":
            assert await daemon.daemon.flush()
        case "drop":
            daemon.daemon.drop_caches()
        case "wait":
            await trio.sleep(dice.choice([0.05, 0.3] if on_cassandra else [60, 300, 900]))
        case "delete_metric":
            shown = dice.choice(METRICS)
            got = await http_request(daemon, f"/api/v1/metric/{shown}", method="DELETE")
            assert got.status == 204, got
            assert sent.delete(shown, {}, 0, FOREVER_MS)
        case "delete":
            shown = await delete(dice, sent, judge, daemon)
    judge.done[name] += 1
    return f"{name} {shown}"


async def delete(dice: random.Random, sent: Sent, judge: Judge, daemon: Running) -> str:
    """Delete points of one metric, and return which."""
    chosen: dict[str, Any] = {"name": dice.choice(METRICS)}
    if dice.random() < 0.7:
        chosen["tags"] = judge.maker.tags()
    span = judge.span()
    while "start_absolute" not in span:
        span = judge.span()
    if dice.random() < 0.5:  # whole hours
        start = span["start_absolute"] // HOUR_MS * HOUR_MS
        span = {"start_absolute": start, "end_absolute": start + dice.choice([1, 2, 24]) * HOUR_MS - 1}
    body = {"metrics": [chosen], **span}
    got = await http_post(daemon, f"{API}/delete", json.dumps(body).encode())
    is_taken = sent.delete(chosen["name"], chosen.get("tags", {}), *span_of(body, 0))
    assert got.status == (204 if is_taken else 400), (body, got)
    judge.done["deletes" if is_taken else "refused deletes"] += 1
    return json.dumps(body)


def settings_of(dice: random.Random, cassandra: Mapping[str, str] | None, seed: int) -> dict[str, str]:
    """Return settings with which caches are used, or are too small."""
    found = {
        "tsd.core.auto_create_metrics": "true",
        "tsd.http.query.allow_delete": "true",
        "tsd.kairosdb.enabled": "true",
        "tsd.quota.new_names_pace": "0",
        "tsd.query.cache_memory": dice.choice([str(64 << 20), str(64 << 20), "30000", "0"]),
    }
    if cassandra is None:
        return found | {
            "tsd.core.drain_timeout": "10000000",
            "tsd.http.request.timeout": "36000",
            "tsd.storage.compaction.min_flush_threshold": "1",
            "tsd.storage.compaction.flush_speed": "60",
            "tsd.storage.blocks_delay": "120",
            "tsd.storage.blocks_age": dice.choice(["0", "600"]),
            "tsd.storage.blocks": dice.choice(["false", "true"]),
            "tsd.storage.row_cache": dice.choice([str(64 << 20), "60000", "0"]),
            "tsd.storage.hold_open_hours": dice.choice(["true", "true", "false"]),
        }
    return found | {
        "tsd.storage.backend": "cassandra",
        "tsd.storage.layout": "kairosdb",
        "tsd.core.tag.allow_specialchars": "|(:=*",
        "tsd.storage.flush_interval": dice.choice(["100", "1000"]),
        "tsd.storage.kairosdb.shared": dice.choice(["true", "false"]),
        "tsd.storage.kairosdb.tag_indexed_metrics": dice.choice(["", METRICS[0]]),
        "tsd.storage.cassandra.keyspace": f"fuzz{seed}_{now_ms()}",
        **cassandra,
    }


async def create_tables(given: Mapping[str, str], rows: tuple[str, str]) -> None:
    """Create KairosDB's tables."""
    host, _, port = given["tsd.storage.cassandra.hosts"].partition(":")
    keyspace = given["tsd.storage.cassandra.keyspace"]
    contact = Contact(((host, int(port)),), timeout_s=20)
    store = CassandraStore(contact, keyspace, now_ms, lambda _: Prefixes(0, 2), elapsed_ms=elapsed_ms, clock_limit_ms=0)
    try:
        await make_tables(store, keyspace, now_ms).create("LZ4")
        for name, value in zip(("row_time_unit", "row_width"), rows, strict=True):
            text = f"INSERT INTO {keyspace}.spec (spec_type, name, value) VALUES ('cluster_config', %s, %s)"
            await store.cql.command(text, (name, value))
    finally:
        await store.aclose()


async def _play(folder: Path, seed: int, steps: int, cassandra: Mapping[str, str] | None) -> Counter[str]:
    dice = random.Random(seed)
    on_cassandra = cassandra is not None
    given, sent = settings_of(dice, cassandra, seed), Sent(dice, now_ms(), on_cassandra=on_cassandra)
    if cassandra is not None:
        await create_tables(given, dice.choice(ROWS))
    judge = Judge(dice, sent, is_fast=not on_cassandra)
    judge.log.append(str(given))
    for at in range(0, steps, SESSION_STEPS):
        async with running(folder, given) as daemon:
            for _ in range(min(SESSION_STEPS, steps - at)):
                judge.log.append(await step(dice, sent, judge, daemon, on_cassandra=on_cassandra))
                await judge.ask(daemon)
        judge.log.append("restart")
    judge.done["points"] = sum(map(len, sent.points.values()))
    return judge.done


def play(folder: Path, seed: int, steps: int, cassandra: Mapping[str, str] | None = None) -> Counter[str]:
    """Write, delete and ask `steps` times, with settings that name a Cassandra if there is one. Return what was done.
    Raise AssertionError with what differs."""
    dice = random.Random(f"limits {seed}")
    small = {"READ_POINTS": dice.choice([64, 320, 40_000]), "SERIES_AT_ONCE": dice.choice([2, 128])}
    if cassandra is not None:
        with patch.multiple(reader, **small):
            return trio.run(_play, folder, seed, steps, cassandra)
    start_s = (now_ms() // HOUR_MS + 2) * 3600 + dice.choice([0, 1800, 3300])
    timeline = Timeline(dice.choice(SPEEDS), time.monotonic(), start_s)
    fast = {"time": timeline.now_s, "time_ns": lambda: int(timeline.now_s() * 1e9)}
    with patch.multiple(time, **fast):
        return trio.run(_play, folder, seed, steps, None, clock=ScaledClock(timeline))
