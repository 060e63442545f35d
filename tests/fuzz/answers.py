"""Random writes and repeated queries of a real daemon, whose clock runs fast: each answer is that of a slow reference.

Hours end within a minute, so points are open, stored, compacted and folded into blocks between two queries. Every
cache is filled, used and left behind. Queries run while nothing is written: each line that was acknowledged counts.
On HBase, two daemons take turns on the same tables, so each has caches of rows that the other changes.
"""

import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch
from urllib.parse import quote

import trio

from bench.scaled import ScaledClock, Timeline
from tests.peers.tables import FAMILIES, Hbase
from tests.query_reference import reference
from tests.query_vectors import QueryRequest, Value
from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tsd.query.parse.uri import read_uri
from tsd.query.plan import scan_range
from tsd.tables.catalog import Stat

HOUR_S = 3600
SPEEDS = (60.0, 120.0)  # times as fast as real time
FASTEST = max(SPEEDS)
BIG, SMALL = "big", "small"  # metrics of many series at 60 s, and of few at 10 s
PERIODS_S = {BIG: 60, SMALL: 10}
BIG_SERIES, SMALL_SERIES = 300, 8  # a cache keeps hours of 256 rows and more
SHAPES = (
    "sum:1m-avg:big", "zimsum:1m-sum:big{dc=*}", "sum:big{dc=x}", "max:10m-max:big{}{host=wildcard(h01*)}",
    r"sum:big{}{host=regexp(h0[0-4]\d)}", "avg:5m-avg:big{dc=*}{host=not_literal_or(h001)}", "zimsum:1h-count:big",
    "sum:rate:big{host=h001}", "min:10m-min-zero:big{dc=x|y}", "mimmax:big{}{host=wildcard(h00*)}", "sum:small",
    "sum:small{host=h1}", "zimsum:small{host=*}", "sum:10m-sum:small{host=h1|h2}", "avg:1m-avg:small{cpu=*}",
    "max:rate:small{host=*}", "sum:7m-avg:small", "mimmin:1m-min:small{}{host=wildcard(h*)}", "count:small",
    "sum:10m-avg:small{host=h3}", "zimsum:30m-last:small{host=*,cpu=0}", "sum:small{}{host=not_literal_or(h0)}",
    "avg:30m-max:big{host=h007}", "max:5m-sum-zero:small{host=h2}",
)  # fmt: skip
POOL = 12  # shapes that are asked for again and again
STEPS = {"due": 40, "late": 30, "new": 3, "die": 2, "flush": 4, "drop": 2, "wait": 4, "none": 15}  # by weight
SESSION_STEPS = 60  # until the daemon is started again
COUNTED = "query.cache.hits", "store.row_cache.hits", "store.row_cache.reads", "compactor.folded-points"
Tags = tuple[tuple[str, str], ...]
Groups = dict[Tags, dict[int, Value]]  # points of each group, by its tags, and by time in seconds


class Series(NamedTuple):
    """One series."""

    metric: str
    tags: Tags


class Sent:
    """The points that were sent: of several for one time, the last."""

    def __init__(self, dice: random.Random, now_s: Callable[[], int]) -> None:
        self._dice = dice
        self._now_s = now_s
        self._last_s: dict[Series, int] = {}
        self._dead: set[Series] = set()
        self.points: dict[Series, dict[int, Value]] = {}  # by time in ms
        for number in range(BIG_SERIES):
            self._add(BIG, dc="xyz"[number % 3], host=f"h{number:03d}")
        for number in range(SMALL_SERIES):
            self._add(SMALL, cpu=str(number % 2), host=f"h{number}")

    def due(self) -> str:
        """Return the lines that agents have sent by now, in order of time."""
        found: list[tuple[int, str]] = []
        for series in self.points.keys() - self._dead:
            period_s = PERIODS_S[series.metric]
            for time_s in range(self._last_s[series] + period_s, self._now_s() + 1, period_s):
                found.append((time_s, self._line(series, time_s)))
                self._last_s[series] = time_s
        return "".join(line for _, line in sorted(found))

    def late(self) -> str:
        """Return lines of earlier times, some of which replace points."""
        found = []
        for _ in range(self._dice.choice([1, 1, 5, 40])):
            series = self._any()
            time_s = self._now_s() - self._dice.choice([30, 600, HOUR_S, 3 * HOUR_S]) - self._dice.randrange(50)
            if self._dice.random() < 0.5 and self.points[series]:
                time_s = self._dice.choice(list(self.points[series])) // 1000
            found.append(self._line(series, time_s))
        return "".join(found)

    def new(self) -> str:
        """Return the first line of a new series."""
        host = f"h{len(self.points)}"
        is_big = self._dice.random() < 0.3
        series = self._add(BIG, dc="x", host=host) if is_big else self._add(SMALL, cpu="0", host=host)
        return self._line(series, self._now_s())

    def end_one(self) -> None:
        """End a series: no more points are due."""
        self._dead.add(self._any())

    def _any(self) -> Series:
        return self._dice.choice(list(self.points))

    def _add(self, metric: str, **tags: str) -> Series:
        series = Series(metric, tuple(tags.items()))
        self.points[series] = {}
        self._last_s[series] = self._now_s() - self._dice.randrange(60)
        return series

    def _line(self, series: Series, time_s: int) -> str:
        """Return the line of a new value: an integer, a double, or one of both, as the series has them."""
        kind = len(series.tags[1][1] + series.metric) % 3 if self._dice.random() < 0.9 else 2
        is_whole = kind == 0 or (kind == 2 and self._dice.random() < 0.5)
        value = self._dice.randrange(-5, 1000) + (0 if is_whole else 0.25)
        self.points[series][time_s * 1000] = value
        return (
            f"put {series.metric} {time_s} {value} " + " ".join(f"{name}={value}" for name, value in series.tags) + "\n"
        )


class Shape(NamedTuple):
    """A sub query, as far as the reference needs it."""

    metric: str
    group_by: list[str]
    tests: list[tuple[str, Callable[[str], bool]]]  # of tag values

    @classmethod
    def of(cls, m: str) -> "Shape":
        """Read the filters of a sub query."""
        group_by, tests = [], []
        for at, filters in enumerate(re.findall(r"\{([^}]*)\}", m)):
            for each in filter(None, filters.split(",")):
                name, _, expression = each.partition("=")
                tests.append((name, _test_of(expression)))
                if at == 0:
                    group_by.append(name)
        return cls(BIG if re.search(r":big\b", m) else SMALL, group_by, tests)

    def groups(self, points: Mapping[Series, Mapping[int, Value]]) -> dict[Tags, list[Mapping[int, Value]]]:
        """Return the points of the series of each group."""
        found: dict[Tags, list[Mapping[int, Value]]] = {}
        for series, own in points.items():
            tags = dict(series.tags)
            if series.metric == self.metric and all(test(tags[name]) for name, test in self.tests):
                found.setdefault(self.group_of(tags), []).append(own)
        return found

    def group_of(self, tags: Mapping[str, str]) -> Tags:
        """Return the tags that a group has in common by this sub query."""
        return tuple((name, tags[name]) for name in self.group_by)


def _test_of(expression: str) -> Callable[[str], bool]:
    name, _, text = expression.rstrip(")").partition("(")
    match name:
        case "*":
            return lambda _: True
        case "wildcard":
            return re.compile(re.escape(text).replace(r"\*", ".*")).fullmatch  # type: ignore[return-value]
        case "regexp":
            return re.compile(text).search  # type: ignore[return-value]
        case "not_literal_or":
            return lambda value: value not in text.split("|")
        case _:
            return lambda value: value in expression.split("|")


def wanted(sent: Sent, m: str, start_s: int, end_s: int) -> Groups:
    """Return the answer of the reference."""
    [sub] = read_uri({"start": [str(start_s)], "end": [str(end_s)], "m": [m]}, 0).queries
    scan, shape = scan_range(start_s * 1000, end_s * 1000, sub.downsample), Shape.of(m)
    request = QueryRequest(
        shape.metric, sub.aggregator, start_s * 1000, end_s * 1000, sub.downsample,
        sub.rate_options if sub.rate else None, {}, {}, in_ms=False,
    )  # fmt: skip
    found: Groups = {}
    for tags, group in shape.groups(sent.points).items():
        read = [{at: value for at, value in one.items() if scan.start_ms <= at < scan.stop_ms} for one in group]
        if points := reference(list(filter(None, read)), request):
            found[tags] = {at // 1000: value for at, value in points.items()}
    return found


def differing(found: Groups, expected: Groups) -> Iterator[tuple[Tags, int, object, object]]:
    """Yield group, time and both values where two answers differ, other than by the order of additions."""
    for tags in found.keys() | expected.keys():
        ours, theirs = found.get(tags, {}), expected.get(tags, {})
        for at in ours.keys() | theirs.keys():
            our, their = ours.get(at), theirs.get(at)
            if our is None or their is None or not math.isclose(float(our), float(their), rel_tol=1e-9, abs_tol=1e-9):
                yield tags, at, our, their


class Judge:
    """Asks queries and compares the answers."""

    def __init__(self, dice: random.Random, sent: Sent, now_s: Callable[[], int]) -> None:
        self._dice = dice
        self._sent = sent
        self._now_s = now_s
        self._pool = [dice.choice(SHAPES) for _ in range(POOL)]
        self.log: list[str] = []  # what was done
        self.queries = 0

    async def ask(self, daemon: Running) -> None:
        """Ask three queries, one after the other or at once. Raise AssertionError for another answer."""
        if self._dice.random() < 0.05:
            self._pool[self._dice.randrange(POOL)] = self._dice.choice(SHAPES)
        chosen = [(m, *self._span()) for m in self._dice.sample(self._pool, 3)]
        if self._dice.random() < 0.5:
            async with trio.open_nursery() as nursery:
                for one in chosen:
                    nursery.start_soon(self._compare, daemon, *one)
        else:
            for one in (*chosen, chosen[0]):
                await self._compare(daemon, *one)

    def _span(self) -> tuple[int, int]:
        now_s = self._now_s()
        hour = now_s // HOUR_S * HOUR_S
        hours_ago = self._dice.choice([0, 1, 1, 2, 3])
        start_s = self._dice.choice([hour - hours_ago * HOUR_S, now_s - 4000, now_s - 1800, hour - 2 * HOUR_S + 600])
        ends = [now_s, now_s, hour - 1, hour + HOUR_S - 1, hour - 1200]
        return start_s, self._dice.choice([end_s for end_s in ends if end_s > start_s] or [start_s + HOUR_S - 1])

    async def _compare(self, daemon: Running, m: str, start_s: int, end_s: int) -> None:
        answer = await http_request(daemon, f"/api/query?start={start_s}&end={end_s}&m={quote(m)}")
        if answer.status == 400 and b"No such name" in answer.body:
            return
        assert answer.status == 200, (m, start_s, end_s, answer, self.log[-9:])
        shape = Shape.of(m)
        found: Groups = {}
        for one in json.loads(answer.body, object_pairs_hook=_unique):
            if one["dps"]:
                found[shape.group_of(one["tags"])] = {int(at): float(value) for at, value in one["dps"].items()}
        expected = wanted(self._sent, m, start_s, end_s)
        differences = sorted(differing(found, expected), key=repr)
        assert not differences, (m, start_s, end_s, self._now_s(), differences[:4], len(differences), self.log[-9:])
        self.queries += 1


def _unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON whose names are different."""
    found = dict(pairs := list(pairs))
    assert len(found) == len(pairs), pairs
    return found


def settings_of(dice: random.Random) -> dict[str, str]:
    """Return settings with which caches are used, or are too small."""
    return {
        "tsd.core.auto_create_metrics": "true",
        "tsd.quota.new_names_pace": "0",
        "tsd.core.drain_timeout": "10000000",
        "tsd.http.request.timeout": "36000",
        "tsd.storage.compaction.min_flush_threshold": "1",
        "tsd.storage.compaction.flush_speed": "60",
        "tsd.storage.blocks": dice.choice(["false", "true"]),
        "tsd.storage.blocks_delay": "120",
        "tsd.storage.blocks_age": dice.choice(["0", "600"]),
        "tsd.storage.blocks_least_rows": dice.choice(["1", "16"]),
        "tsd.storage.row_cache": dice.choice([str(64 << 20), str(64 << 20), "60000", "0"]),
        "tsd.query.cache_memory": dice.choice([str(64 << 20), str(64 << 20), "30000", "0"]),
        "tsd.storage.hold_open_hours": dice.choice(["true", "true", "false"]),
        "tsd.ingest.memory_limit": dice.choice([str(512 << 20), str(16 << 20)]),  # points of a full hour are packed
        "tsd.storage.flush_interval": dice.choice(["10000", "30000"]),  # on HBase points of the longer one are held
    }


class Daemons:
    """The daemons of one table. One of them has points that are not stored: the last that was written to."""

    def __init__(self, dice: random.Random, running: Sequence[Running]) -> None:
        self._dice = dice
        self._running = running
        self._last = running[0]

    async def send(self, lines: str) -> None:
        """Write to one of them. Points of another are stored before, so that the values sent last count."""
        chosen = await self.chosen()
        self._last = chosen
        answer = await chosen.send_lines(lines.encode())
        assert b"put:" not in answer, answer

    async def chosen(self) -> Running:
        """Return one that finds all points."""
        chosen = self._dice.choice([self._last, *self._running])
        if chosen is not self._last:
            await self.flush()
        return chosen

    async def flush(self) -> None:
        """Store all points."""
        assert await self._last.daemon.flush()

    def drop_caches(self) -> None:
        """Drop the caches of one of them."""
        self._dice.choice(self._running).daemon.drop_caches()

    def statistics(self) -> Iterator[Stat]:
        """Yield the statistics of all."""
        for one in self._running:
            yield from one.daemon.statistics()


async def _step(dice: random.Random, sent: Sent, daemons: Daemons) -> str:
    """Do one thing, and return its name."""
    [name] = dice.choices(list(STEPS), list(STEPS.values()))
    match name:
        case "due" | "late" | "new":
            if lines := getattr(sent, name)():
                await daemons.send(lines)
        case "die":
            sent.end_one()
        case "flush":
            await daemons.flush()
        case "drop":
            daemons.drop_caches()
        case "wait":
            await trio.sleep(dice.choice([60, 300, 900]))
    return str(name)


async def _play(
    folder: Path, seed: int, steps: int, now_s: Callable[[], int], shared: Mapping[str, str] | None
) -> Counter[str]:
    dice = random.Random(seed)
    given, sent = {**settings_of(dice), **(shared or {})}, Sent(dice, now_s)
    judge = Judge(dice, sent, now_s)
    done: Counter[str] = Counter()
    for at in range(0, steps, SESSION_STEPS):
        async with AsyncExitStack() as stack:
            folders = [folder / name for name in (("one",) if shared is None else ("one", "other"))]
            started = [await stack.enter_async_context(running(each, given)) for each in folders]
            daemons = Daemons(dice, started)
            for _ in range(min(SESSION_STEPS, steps - at)):
                judge.log.append(f"{await _step(dice, sent, daemons)} {now_s()}")
                await judge.ask(await daemons.chosen())
            for stat in daemons.statistics():
                if stat.name in COUNTED:
                    done[stat.name] += int(stat.value)
    done["points"], done["queries"] = sum(map(len, sent.points.values())), judge.queries
    return done


def on_hbase(gateway: str, prefix: str, *, creates: bool = True) -> dict[str, str]:
    """Create tables in the HBase of a gateway, unless not `creates`. Return a daemon's settings for them."""
    host, _, port = gateway.rpartition(":")
    hbase, series = Hbase(host, int(port)), f"{prefix}-series"
    names = {kind: f"{prefix}-{kind}" for kind in FAMILIES}
    if creates:
        for kind, name in names.items():
            hbase.create(name, FAMILIES[kind])
        hbase.create(series, ["t"])
    return {
        "tsd.storage.backend": "hbase",
        "tsd.storage.hbase.thrift": gateway,
        "tsd.storage.hbase.thrift.timeout": str(int(FASTEST * 15_000)),  # in ms of the daemon's clock
        **{f"tsd.storage.hbase.{kind}_table": name for kind, name in names.items()},
        "tsd.query.series_index": "true",
        "tsd.query.series_table": series,
    }


def play(folder: Path, seed: int, steps: int, shared: Mapping[str, str] | None = None) -> Counter[str]:
    """Write and ask `steps` times. Return what was done. Raise AssertionError with what differs. `shared`: settings of
    tables that two daemons write to.

    Meanwhile the clocks of the whole process run fast.
    """
    dice = random.Random(f"clock {seed}")
    start_s = (int(time.time()) // HOUR_S + 2) * HOUR_S + dice.choice([0, 1800, 3300])  # noqa: TID251 (a test's own)
    timeline = Timeline(dice.choice(SPEEDS), time.monotonic(), start_s)
    fast = {"time": timeline.now_s, "time_ns": lambda: int(timeline.now_s() * 1e9)}
    with patch.multiple(time, **fast):
        return trio.run(_play, folder, seed, steps, lambda: int(timeline.now_s()), shared, clock=ScaledClock(timeline))
