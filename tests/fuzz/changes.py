"""Deletes, imports, rollups, kills, late points and queries of all kinds: each answer is that of a slow reference.

The daemon is a process of its own on a fast clock (`bench.scaled`), so that it can be killed. Commands run on the same
clock. Nothing is written while a query runs: each acknowledged change counts.
"""

import http.client
import json
import math
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from bench.scaled import Timeline, words_of
from tests.fuzz.answers import settings_of
from tests.fuzz.questions import (
    HOSTS,
    KEYS,
    METRICS,
    VALUES,
    Group,
    Question,
    Series,
    differing,
    question,
)
from tests.query_vectors import Value

HOUR_S, DAY_S = 3600, 86400
SPEEDS = (60.0, 120.0)  # times as fast as real time; beyond that, the daemon's timeouts of seconds are too short
PERIODS_S = {"days": 600, "fast": 7, "few": 10, "many": 300, "mid": 60}
PAST_S = 3 * HOUR_S  # of points at the start, but for the metric `days`
POOL = 14  # questions that are asked for again and again
BUSY = {
    "due": 40, "late": 31, "die": 1, "drop": 2, "wait": 4, "none": 12, "import": 3, "delete": 6, "delete_span": 3,
    "restart": 1, "kill": 2, "compact": 1,
}  # fmt: skip
CALM = {  # rollups are used where no late points came
    "due": 6, "late": 6, "drop": 1, "wait": 8, "none": 60, "import": 2, "delete": 2, "delete_span": 2, "restart": 1,
    "kill": 2, "compact": 1,
}  # fmt: skip
COMMAND = (  # its arguments are a timeline and the words of a command
    "import sys, time; from bench.scaled import Timeline; line = Timeline(*map(float, sys.argv[1:4]));"
    "del sys.argv[1:4]; time.time = line.now_s; time.time_ns = lambda: int(line.now_s() * 1e9);"
    "from tsd.__main__ import main; main()"
)
DEADLINE_S = 60.0
LOG_CHARS = 5000  # of the daemon's log that are shown


class Sent(NamedTuple):
    """A point to send."""

    series: Series
    time_ms: int
    value: Value

    def line(self) -> str:
        """Return the line of a file to import."""
        at = self.time_ms if self.time_ms % 1000 else self.time_ms // 1000
        tags = " ".join(f"{key}={value}" for key, value in self.series.tags)
        return f"{self.series.metric} {at} {self.value} {tags}\n"


class World:
    """The points that are stored."""

    def __init__(self, dice: random.Random, now_s: Callable[[], int]) -> None:
        self._dice, self._now_s = dice, now_s
        self.stored: dict[Series, dict[int, Value]] = {}
        self._last_s: dict[Series, int] = {}
        self._dead: set[Series] = set()
        for number in range(dice.choice([12, 20, 280])):
            self._add("many", dc="xyz"[number % 3], host=HOSTS[number])
        for number in range(12):
            self._add("mid", cpu=str(number % 2), host=HOSTS[number])
        for metric in ("few", "days"):
            for number in range(6):
                self._add(metric, **({"dc": "xy"[number % 2]} if number % 3 else {}), host=HOSTS[number])
        for number in range(3):
            self._add("fast", host=HOSTS[number])

    def _add(self, metric: str, **tags: str) -> None:
        series = Series(metric, tuple(sorted(tags.items())))
        self.stored[series] = {}
        self._last_s[series] = self._now_s()

    def any(self) -> Series:
        """Return a series."""
        metric = self._dice.choice(["days", *METRICS])
        return self._dice.choice([series for series in self.stored if series.metric == metric])

    def past(self, days: float) -> list[Sent]:
        """Return the points of some days of one metric, and of some hours of the others."""
        found = []
        for series in self.stored:
            period_s, ago_s = PERIODS_S[series.metric], int(days * DAY_S) if series.metric == "days" else PAST_S
            first_s = self._now_s() - ago_s + self._dice.randrange(period_s)
            times = [at for at in range(first_s, self._now_s() - 60, period_s) if self._dice.random() < 0.97]
            found += [self._point(series, time_s * 1000) for time_s in times]
        return found

    def due(self) -> list[Sent]:
        """Return what agents have sent by now, in order of time."""
        found = []
        for series in self.stored.keys() - self._dead:
            period_s = PERIODS_S[series.metric]
            for time_s in range(self._last_s[series] + period_s, self._now_s() + 1, period_s):
                found.append(self._point(series, time_s * 1000))
                self._last_s[series] = time_s
        return sorted(found, key=lambda point: point.time_ms)

    def late(self) -> list[Sent]:
        """Return points of earlier times, some of which replace others."""
        found = []
        for _ in range(self._dice.choice([1, 1, 5, 40])):
            series = self.any()
            days = [DAY_S, 2 * DAY_S, 3 * DAY_S] if series.metric == "days" else [600, HOUR_S]
            ago_s = self._dice.choice([30, PAST_S, *days]) + self._dice.randrange(3000)
            time_ms = (self._now_s() - ago_s) * 1000
            if self._dice.random() < 0.5 and self.stored[series]:
                time_ms = self._dice.choice(list(self.stored[series]))
            found.append(self._point(series, time_ms))
        return found

    def end_one(self) -> None:
        """End a series: no more points are due."""
        self._dead.add(self.any())

    def forget(self, series: Series, first_ms: int, stop_ms: int) -> None:
        """Delete points."""
        own = self.stored[series]
        for at in [at for at in own if first_ms <= at < stop_ms]:
            del own[at]

    def _point(self, series: Series, time_ms: int) -> Sent:
        """Return a new point: an integer, a double, or either, as the series has them."""
        if series.metric == "fast":
            time_ms = time_ms // 1000 * 1000 + self._dice.randrange(1, 1000)
        kind = len(series.metric) * int(series.tags[-1][1][1:]) % 3 if self._dice.random() < 0.9 else 2
        is_whole = kind == 0 or (kind == 2 and self._dice.random() < 0.5)
        value = self._dice.randrange(-5, 1000) + (0 if is_whole else self._dice.choice([0.25, 0.5, 0.1]))
        self.stored[series][time_ms] = value
        return Sent(series, time_ms, value)


class Daemon:
    """A daemon in a process of its own, and a telnet connection to it."""

    def __init__(self, folder: Path, timeline: Timeline, settings: Mapping[str, str]) -> None:
        self._folder, self.timeline = folder, timeline
        with socket.create_server(("127.0.0.1", 0)) as chosen:
            self._port = chosen.getsockname()[1]
        self._settings = {
            "tsd.network.port": str(self._port), "tsd.network.bind": "127.0.0.1", "tsd.log.level": "warning",
            "tsd.storage.path": str(folder / "state"), "tsd.access.anonymous": "read,write,admin", **settings,
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words_of(self.timeline, self._settings), stdout=log, stderr=log)
        deadline_s = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert time.monotonic() < deadline_s, "the daemon does not start"
            self.run_on(0.05)
        self._telnet = socket.create_connection(("127.0.0.1", self._port), DEADLINE_S)

    def run_on(self, real_s: float) -> None:
        """Let it run for a time. Raise AssertionError if it ends."""
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(real_s)
            raise AssertionError(f"the daemon has ended with status {status}")

    def _answers(self) -> bool:
        with suppress(OSError):
            return self.request("/api/version")[0] == 200
        return False

    def end(self, number: signal.Signals) -> None:
        """End it by a signal. Raise AssertionError for tracebacks in its log."""
        self._telnet.close()
        self._process.send_signal(number)
        status, log = self._process.wait(DEADLINE_S), (self._folder / "log").read_text("utf-8", "replace")
        assert status in (0, -number), (status, log[-LOG_CHARS:])
        assert "Traceback" not in log, log[-LOG_CHARS:]

    def request(self, path: str, body: object = None, method: str = "") -> tuple[int, bytes]:
        """Return status and body of the answer to a request, by default a GET or POST."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, data)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def send(self, points: list[Sent]) -> None:
        """Send lines, and return once they are on disk."""
        self._telnet.sendall("".join(f"put {point.line()}" for point in points).encode() + b"sync\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += (data := self._telnet.recv(1 << 16))
            assert data, answer
        assert re.fullmatch(rb"synced \d+\n", answer), answer

    def run(self, *words: str, tries: int = 1) -> None:
        """Run a command; several times, as `tsd delete` asks for if points remain."""
        given = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        line = [sys.executable, "-c", COMMAND, *map(repr, self.timeline), *words, *given]
        for _ in range(tries):
            done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            if done.returncode == 0:
                break
        assert done.returncode == 0, (words, done.stdout, done.stderr)


class Judge:
    """Asks questions and compares the answers."""

    def __init__(self, dice: random.Random, world: World, now_s: Callable[[], int], *, for_rollups: bool) -> None:
        self.dice, self._world, self._now_s, self._for_rollups = dice, world, now_s, for_rollups
        self._pool = [self.question() for _ in range(POOL)]
        self.log: list[str] = []  # what was done
        self.done: Counter[str] = Counter()

    def question(self) -> Question:
        """Return a new one."""
        return question(self.dice, self._world.stored, for_rollups=self._for_rollups)

    def span_ms(self, metric: str) -> tuple[int, int]:
        """Return start and end of a query."""
        dice, now_s = self.dice, self._now_s()
        hour, day = now_s // HOUR_S * HOUR_S, now_s // DAY_S * DAY_S
        if metric == "days" and dice.random() < 0.8:
            starts = [now_s - 4 * DAY_S, day - 3 * DAY_S, day - DAY_S, day - DAY_S + 5 * HOUR_S, hour - 30 * HOUR_S]
        else:
            starts = [hour, hour - HOUR_S, hour - 2 * HOUR_S, hour - PAST_S, now_s - 4000, now_s - 1800]
        start_s = dice.choice(starts)
        ends = [now_s, now_s, hour - 1, hour + HOUR_S - 1, hour - 1200, start_s + 7 * HOUR_S]
        end_s = dice.choice([end_s for end_s in ends if end_s > start_s])
        more_ms = dice.randrange(1000) if dice.random() < 0.1 else 0
        return start_s * 1000 + more_ms, end_s * 1000 + more_ms

    def past_span_ms(self, metric: str) -> tuple[int, int]:
        """Return a span to delete, mostly a short one."""
        if self.dice.random() < 0.15:
            return self.span_ms(metric)
        start_s = self._now_s() - self.dice.randrange(3 * DAY_S if metric == "days" else PAST_S)
        return start_s * 1000, (start_s + self.dice.choice([60, 600, 3600])) * 1000

    def ask(self, daemon: Daemon) -> None:
        """Ask three questions, one after the other or at once, and several by one request, and for newest points. Raise
        AssertionError for another answer."""
        if self.dice.random() < 0.1:
            self._pool[self.dice.randrange(POOL)] = self.question()
        requests = [([one], self.span_ms(one.metric)) for one in self.dice.sample(self._pool, 3)]
        several: list[Question] = []
        for one in self.dice.sample([one for one in self._pool if not one.zone], self.dice.choice([2, 3, 5])):
            if not any(map(one.is_like, several)):
                several.append(one)
        requests.append((several, self.span_ms(several[0].metric)))
        with ThreadPoolExecutor(self.dice.choice([1, len(requests)])) as pool:
            list(pool.map(lambda request: self.compare(daemon, *request), [*requests, requests[0]]))
        self._ask_last(daemon)

    def compare(self, daemon: Daemon, asked: list[Question], span_ms: tuple[int, int], *, delete: bool = False) -> None:
        """Ask questions by one request. Raise AssertionError for another answer."""
        # Explicit tags also read the hour after the range.
        asked = [one for one in asked if not one.explicit or span_ms[1] >= self._now_s() * 1000]
        if not asked:
            return
        start, end = (str(time_ms) if time_ms % 1000 else str(time_ms // 1000) for time_ms in span_ms)
        has_arrays = self.dice.random() < 0.2
        if len(asked) > 1 or asked[0].zone or asked[0].usage or self.dice.random() < 0.5:
            body: dict[str, Any] = {"start": start, "end": end, "queries": [one.body() for one in asked]}
            body |= {"msResolution": True, "showTSUIDs": True, "showQuery": True, "delete": delete}
            body |= {"useCalendar": True, "timezone": asked[0].zone} if asked[0].zone else {}
            path, method = "/api/query" + "?arrays" * has_arrays, "POST"
        else:
            kind = "tsuid" if asked[0].tsuids else "m"
            path = f"/api/query?ms&show_tsuids&start={start}&end={end}&{kind}={quote(asked[0].uri())}"
            path, body, method = path + "&arrays" * has_arrays, {}, "DELETE" if delete else "GET"
        status, text = daemon.request(path, body or None, method)
        where = path, body, self._now_s(), self.log[-9:]
        assert status == 200, (status, text[:500], where)
        answers = json.loads(text)
        self.done["queries"] += 1
        for one in asked:
            expected = one.answer(self._world.stored, span_ms)
            found = {_group(each): _points(each["dps"]) for each in answers[: len(expected)]}
            differences = differing(found, expected)
            assert not differences, (differences[:4], len(differences), where)
            self.done.update(f"table {each['query']['rollupTable']}" for each in answers[:1] if "query" in each)
            answers = answers[len(expected) :]
        assert not answers, (answers[0], where)

    def _ask_last(self, daemon: Daemon) -> None:
        """Ask for the newest points of series. A series without points in the last two hours may be left out, or have
        an older point that was sent last."""
        now_s, one = self._now_s(), self._world.any()
        tags = dict(self.dice.sample(one.tags, self.dice.randrange(len(one.tags) + 1)))
        named = "{" + ",".join(f"{key}={value}" for key, value in tags.items()) + "}" if tags else ""
        status, text = daemon.request(f"/api/query/last?timeseries={one.metric}{quote(named)}")
        assert status == 200, (status, text)
        found = {each["tsuid"]: (each["timestamp"], float(each["value"])) for each in json.loads(text)}
        for series, points in self._world.stored.items():
            if series.metric != one.metric or not tags.items() <= dict(series.tags).items():
                continue
            newest_ms = max((at for at in points if at <= now_s * 1000), default=0)
            expected = [(newest_ms, float(points[newest_ms])) if newest_ms else None]
            if newest_ms < (now_s // HOUR_S - 1) * HOUR_S * 1000:
                expected += [None, *((at, float(value)) for at, value in points.items())]
            ours = found.get(series.tsuid)
            assert ours in expected, (series, ours, expected[0], now_s, self.log[-9:])


def _group(answer: Mapping[str, Any]) -> Group:
    return Group(*(tuple(sorted(own)) for own in (answer["tags"].items(), answer["aggregateTags"], answer["tsuids"])))


def _points(dps: Mapping[str, Any] | list[tuple[int, Any]]) -> dict[int, Value]:
    pairs = dps.items() if isinstance(dps, Mapping) else dps
    return {int(at): math.nan if value in (None, "NaN") else value for at, value in pairs}


class Changes:
    """What happens between the questions."""

    def __init__(self, folder: Path, world: World, daemon: Daemon, judge: Judge) -> None:
        self._folder, self._world, self._daemon, self._judge = folder, world, daemon, judge

    def step(self, weights: Mapping[str, int]) -> None:
        """Do one thing."""
        dice, world, daemon, log = self._judge.dice, self._world, self._daemon, self._judge.log
        [name] = dice.choices(list(weights), list(weights.values()))
        log.append(f"{name} {int(daemon.timeline.now_s())}")
        self._judge.done[name] += 1
        match name:
            case "due" | "late":
                daemon.send(world.due() if name == "due" else world.late())
            case "die":
                world.end_one()
            case "drop":
                daemon.request("/api/dropcaches")
            case "wait":
                daemon.run_on(dice.choice([60, 300, 900]) / daemon.timeline.speed)
            case "import":
                file = self._folder / "lines"
                file.write_text("".join(point.line() for point in world.late()), "utf-8")
                daemon.run("import", str(file))
            case "compact":
                daemon.run("compact")
            case "delete":
                self._delete_rows()
            case "delete_span":
                self._delete_span()
            case "restart" | "kill":
                daemon.end(signal.SIGTERM if name == "restart" else signal.SIGKILL)
                daemon.start()

    def _delete_rows(self) -> None:
        """Delete whole hours over HTTP."""
        asked = self._judge.question()
        if asked.explicit:
            return
        span_ms = self._judge.past_span_ms(asked.metric)
        self._judge.log.append(f"{asked} {span_ms}")
        self._judge.compare(self._daemon, [asked], span_ms, delete=True)
        scan = asked.scan(span_ms)
        for series in asked.chosen(self._world.stored):
            self._world.forget(series, scan.start_ms, scan.stop_ms)
        self._judge.compare(self._daemon, [Question(asked.metric, "none", usage="ROLLUP_RAW")], span_ms)

    def _delete_span(self) -> None:
        """Delete the points of a span to the second by a command."""
        one = self._world.any()
        tags = dict(self._judge.dice.sample(one.tags, self._judge.dice.randrange(len(one.tags) + 1)))
        first_s, stop_s = (time_ms // 1000 for time_ms in self._judge.past_span_ms(one.metric))
        self._judge.log.append(f"{one.metric} {tags} {first_s} {stop_s}")
        words = [f"{key}={value}" for key, value in tags.items()]
        span = ["--since", str(first_s), "--until", str(stop_s)]
        self._daemon.run("delete", one.metric, *words, *span, "--yes", tries=4)
        for series in self._world.stored:
            if series.metric == one.metric and tags.items() <= dict(series.tags).items():
                self._world.forget(series, first_s * 1000, stop_s * 1000)


@contextmanager
def _running(folder: Path, timeline: Timeline, settings: Mapping[str, str]) -> Iterator[Daemon]:
    daemon = Daemon(folder, timeline, settings)
    try:
        names = {"metric": METRICS, "tagk": KEYS, "tagv": VALUES}
        status, text = daemon.request("/api/uid/assign", names)
        assert status == 200, text
        assert [int(uid, 16) for uid in json.loads(text)["tagv"].values()] == list(range(1, len(VALUES) + 1))
        yield daemon
    finally:
        daemon.end(signal.SIGKILL)


def play_changes(folder: Path, seed: int, steps: int) -> Counter[str]:
    """Change and ask `steps` times. Return what was done. Raise AssertionError with what differs."""
    dice = random.Random(seed)
    hours = int(time.time()) // HOUR_S + 2  # noqa: TID251 (a test's own)
    start_s = (hours + dice.choice([0, 6, 11])) * HOUR_S + dice.choice([0, 1800, 3300])
    timeline = Timeline(dice.choice(SPEEDS), time.monotonic(), start_s)
    is_calm, has_rollups = dice.random() < 0.5, dice.random() < 0.8
    settings = settings_of(dice) | {
        "tsd.http.query.allow_delete": "true",
        "tsd.rollups.build": str(has_rollups).lower(),
    }

    def now_s() -> int:
        return int(timeline.now_s())

    world = World(dice, now_s)
    judge = Judge(dice, world, now_s, for_rollups=is_calm)
    with _running(folder, timeline, settings) as daemon:
        changes = Changes(folder, world, daemon, judge)
        daemon.send(world.past(dice.choice([0.3, 2, 4])))
        for _ in range(steps):
            changes.step(CALM if is_calm else BUSY)
            judge.ask(daemon)
    judge.done["points"] = sum(map(len, world.stored.values()))
    return judge.done
