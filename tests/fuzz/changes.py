"""Deletes, imports, rollups, kills, late points and queries of all kinds: each answer is that of a slow reference.

The daemon is a process of its own on a fast clock (`bench.scaled`), so that it can be killed. Commands run on the same
clock. Nothing is written while a query runs: each acknowledged change counts.
"""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from bench.scaled import Timeline
from tests.fuzz.answers import settings_of
from tests.fuzz.entities import Entities
from tests.fuzz.forms import ask_otherwise, group_of, points_of
from tests.fuzz.histograms import CONFIG, Histograms
from tests.fuzz.notes import Notes
from tests.fuzz.passing import PREFIX, Passing
from tests.fuzz.process import Client, Daemon
from tests.fuzz.questions import (
    KEYS,
    METRICS,
    VALUES,
    Question,
    Tags,
    differing,
    question,
)
from tests.fuzz.world import DAY_S, HOUR_S, PAST_S, World
from tsd.config.retention import expired_until_ms

SPEEDS = (60.0, 120.0)  # times as fast as real time; beyond that, the daemon's timeouts of seconds are too short
LONGEST_S = 15.0  # a wait, in real time
POOL = 14  # questions that are asked for again and again
BUSY = {
    "due": 40, "late": 31, "die": 1, "drop": 2, "wait": 4, "none": 12, "import": 3, "delete": 6, "delete_span": 3,
    "restart": 1, "kill": 2, "compact": 1, "rename": 3, "expire": 2, "note": 5,
    "histogram": 6, "passing": 3, "interrupt": 2,
    "entities": 3, "move": 2, "fsck": 2,
}  # fmt: skip
CALM = {  # rollups are used where no late points came
    "due": 6, "late": 6, "drop": 1, "wait": 8, "none": 60, "import": 2, "delete": 2, "delete_span": 2, "restart": 1,
    "kill": 2, "compact": 1, "rename": 2, "expire": 2, "note": 4, "entities": 3, "move": 2,
    "fsck": 2, "histogram": 4, "passing": 2, "interrupt": 2,
}  # fmt: skip
OUTSIDE = {"import", "delete_span", "expire", "interrupt"}  # commands that change a shared table themselves
OUTSIDE_S = 90  # by when the newest points of the daemon agree
KINDS = {"metric": "metrics", "tagk": "tagk", "tagv": "tagv"}  # of names, as the API and commands call them
NewTables = Callable[[], Mapping[str, str]]


class Found(NamedTuple):
    """A series that a lookup finds."""

    tsuid: str
    metric: str
    tags: Tags


class Judge:
    """Asks questions and compares the answers."""

    def __init__(self, dice: random.Random, world: World, now_s: Callable[[], int], *, for_rollups: bool) -> None:
        self.dice, self._world, self._now_s, self._for_rollups = dice, world, now_s, for_rollups
        self._pool = [self.question() for _ in range(POOL)]
        self.log: list[str] = []  # what was done
        self.notes = Notes(dice, world, self.log.append)
        self.entities = Entities(dice, world)
        self.histograms = Histograms(dice, world)
        self.passing = Passing(dice, now_s)
        self.done: Counter[str] = Counter()
        self.outside_s = 0  # when a command last changed points without the daemon

    def question(self) -> Question:
        """Return a new one."""
        world = self._world
        return question(self.dice, world.stored, for_rollups=self._for_rollups)

    def span_ms(self, metric: str) -> tuple[int, int]:
        """Return start and end of a query."""
        dice, now_s = self.dice, self._now_s()
        hour, day = now_s // HOUR_S * HOUR_S, now_s // DAY_S * DAY_S
        if metric == "days" and dice.random() < 0.8:
            starts = [now_s - 4 * DAY_S, day - 3 * DAY_S, day - DAY_S, day - DAY_S + 5 * HOUR_S, hour - 30 * HOUR_S]
        else:
            starts = [hour, hour - HOUR_S, hour - 2 * HOUR_S, hour - PAST_S, now_s - 4000, now_s - 1800]
        if metric == "days" and self._world.keep_s and dice.random() < 0.7:
            starts = [hour - self._world.keep_s + more_s for more_s in (HOUR_S, HOUR_S, HOUR_S + 60, 5 * HOUR_S)]
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

    def ask(self, daemon: Client) -> None:
        """Ask three questions, one after the other or at once, and several by one request, and for newest points. Raise
        AssertionError for another answer."""
        lacking = [at for at, one in enumerate(self._pool) if self._world.names.lack(self._world.names.spoken(one))]
        if self.dice.random() < (0.3 if lacking else 0.1):
            self._pool[self.dice.choice(lacking or range(POOL))] = self.question()
        requests = [([one], self.span_ms(one.metric)) for one in self.dice.sample(self._pool, 3)]
        several: list[Question] = []
        for one in self.dice.sample([one for one in self._pool if not one.zone], self.dice.choice([2, 3, 5])):
            if not any(map(one.is_like, several)):
                several.append(one)
        requests.append((several, self.span_ms(several[0].metric)))
        with ThreadPoolExecutor(self.dice.choice([1, len(requests)])) as pool:
            requests = [(list(map(self._spoken, asked)), span_ms) for asked, span_ms in requests]
            list(pool.map(lambda request: self.compare(daemon, *request), [*requests, requests[0]]))
        self._ask_last(daemon)
        if self._world.notes and self.dice.random() < 0.4:
            self.notes.ask(daemon, self.span_ms(self.dice.choice(METRICS)))
        if self._world.histograms and self.dice.random() < 0.4:
            one = self._world.names.spoken(self.dice.choice(self._pool))
            self.done["histograms asked"] += self.histograms.ask(daemon, one, self.span_ms(one.metric))
        if self.dice.random() < 0.2:
            self.passing.ask(daemon)
        if self.dice.random() < 0.5:
            one = self._world.names.spoken(self.dice.choice(self._pool))
            self.done[ask_otherwise(daemon, self.dice, self._world, one, self.span_ms(self.dice.choice(METRICS)))] += 1
        if self._world.has_entities and self.dice.random() < 0.5:
            self.entities.ask(daemon)

    def _spoken(self, one: Question) -> Question:
        """Return a question with the present names of metric and keys, or rarely the first names."""
        return one if self.dice.random() < 0.05 else self._world.names.spoken(one)

    def compare(
        self,
        daemon: Client,
        asked: list[Question],
        span_ms: tuple[int, int],
        *,
        delete: bool = False,
        is_certain: bool = False,
    ) -> None:
        """Ask questions by one request, unless what they read may expire. Raise AssertionError for another answer."""
        asked = [one for one in asked if is_certain or self._world.is_certain(one, span_ms)]
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
        if any(map(self._world.names.lack, asked)):
            assert status == 400, (status, text[:500], where)
            assert b"No such name for" in text, (text[:500], where)
            self.done["unknown names"] += 1
            return
        assert status == 200, (status, text[:500], where)
        answers = json.loads(text)
        self.done["queries"] += 1
        for one in asked:
            expected = one.answer(self._world.stored, span_ms)
            found = {group_of(each): points_of(each["dps"]) for each in answers[: len(expected)]}
            differences = differing(found, expected)
            assert not differences, (differences[:4], len(differences), where)
            self.done.update(f"table {each['query']['rollupTable']}" for each in answers[:1] if "query" in each)
            answers = answers[len(expected) :]
        assert not answers, (answers[0], where)

    def check_names(self, daemon: Client) -> None:
        """Look for all names and series. Raise AssertionError if one is not found or has another name."""
        for kind, word in KINDS.items():
            status, text = daemon.request(f"/api/suggest?type={word}&max=10000")
            found_names = [name for name in json.loads(text) if not name.startswith(PREFIX)]
            assert (status, found_names) == (200, sorted(self._world.names.now[kind])), (text, self.log[-9:])
        one = self._world.any()
        status, text = daemon.request(f"/api/search/lookup?m={one.metric}&limit=0")
        assert status == 200, (text, self.log[-9:])
        found = {
            Found(each["tsuid"], each["metric"], tuple(sorted(each["tags"].items())))
            for each in json.loads(text)["results"]
        }
        known = {Found(own.tsuid, own.metric, own.tags): points for own, points in self._world.stored.items()}
        lost = {own for own, points in known.items() if points and own.metric == one.metric} - found
        assert not lost, (lost, self.log[-9:])
        assert found <= known.keys(), (found - known.keys(), self.log[-9:])

    def _ask_last(self, daemon: Client) -> None:
        """Ask for the newest points of series, or of one series and more hours. A series without points in these hours
        may be left out, or have an older point that was sent last."""
        now_s, one, back_h = self._now_s(), self._world.any(), self.dice.choice([0, 0, 6, 90])
        if now_s < self.outside_s + OUTSIDE_S:
            return
        tags = dict(self.dice.sample(one.tags, len(one.tags) if back_h else self.dice.randrange(len(one.tags) + 1)))
        named = "{" + ",".join(f"{key}={value}" for key, value in tags.items()) + "}" if tags else ""
        path = f"/api/query/last?resolve&timeseries={one.metric}{quote(named)}" + f"&back_scan={back_h}" * bool(back_h)
        status, text = daemon.request(path)
        assert status == 200, (status, text)
        found = {each["tsuid"]: each for each in json.loads(text)}
        for series, points in self._world.stored.items():
            if series.metric != one.metric or not tags.items() <= dict(series.tags).items():
                continue
            if back_h and tags.keys() != dict(series.tags).keys():
                continue
            newest_ms = max((at for at in points if at <= now_s * 1000), default=0)
            expected = [(newest_ms, float(points[newest_ms])) if newest_ms else None]
            certain_ms = max((now_s // HOUR_S - max(back_h, 1)) * HOUR_S * 1000, self._world.uncertain_ms())
            if newest_ms < certain_ms:
                expected += [None, *((at, float(value)) for at, value in points.items())]
            ahead = {at: own for at, own in points.items() if now_s * 1000 < at <= self._now_s() * 1000 + 1000}
            expected += [(at, float(own)) for at, own in ahead.items()]  # the second was not over
            ours = found.get(series.tsuid)
            shown = (ours["timestamp"], float(ours["value"])) if ours else None
            assert shown in expected, (series, shown, expected[0], now_s, path, self.log[-9:])
            assert not ours or (ours["metric"], ours["tags"]) == (series.metric, dict(series.tags)), (ours, series)


class Changes:
    """What happens between the questions."""

    def __init__(
        self,
        folder: Path,
        world: World,
        daemon: Daemon,
        judge: Judge,
        shared: NewTables | None = None,
        *,
        has_rollups: bool,
    ) -> None:
        self._folder, self._world, self._daemon, self._judge = folder, world, daemon, judge
        self._shared, self._has_rollups = shared, has_rollups

    def step(self, weights: Mapping[str, int]) -> None:
        """Do one thing."""
        dice, daemon, log = self._judge.dice, self._daemon, self._judge.log
        [name] = dice.choices(list(weights), list(weights.values()))
        log.append(f"{name} {int(daemon.timeline.now_s())}")
        self._judge.done[name] += 1
        self._step(name)
        if name in OUTSIDE and self._shared is not None:
            self._judge.outside_s = int(daemon.timeline.now_s())

    def _step(self, name: str) -> None:
        dice, world, daemon, log = self._judge.dice, self._world, self._daemon, self._judge.log
        match name:
            case "due" | "late":
                daemon.send(world.due() if name == "due" else world.late())
            case "die":
                world.end_one()
            case "drop":
                daemon.request("/api/dropcaches")
            case "wait":
                daemon.run_on(min(dice.choice([60, 300, 900]) / daemon.timeline.speed, LONGEST_S))
            case "import":
                file = self._folder / "lines"
                file.write_text("".join(point.line() for point in world.late()), "utf-8")
                daemon.run("import", str(file))
                if world.has_entities:
                    daemon.run("entity", "build")
            case "compact":
                daemon.run("compact")
            case "entities" if world.has_entities:
                self._judge.entities.check(daemon)
            case "rename" if not world.has_entities:  # which are known by their names
                self._rename()
            case "note":
                self._judge.notes.change(daemon)
            case "histogram":
                self._judge.histograms.send(daemon)
            case "passing":
                log.append(self._judge.passing.step(daemon))
            case "expire" if world.keep_s:
                self._expire()
            case "delete":
                self._delete_rows()
            case "delete_span":
                self._delete_span()
            case "move" if self._shared is None:
                daemon.move()
            case "move" if self._shared is not None:
                daemon.copy(self._folder / "target", self._shared(), dice.choice([0, 2, 9]))
            case "fsck":
                self._find_damage()
            case "interrupt":
                self._interrupt()
            case "restart" | "kill":
                daemon.end(signal.SIGTERM if name == "restart" else signal.SIGKILL)
                if self._shared is None:
                    changed = {**settings_of(dice), **local_settings_of(dice)}
                    log.append(str(changed))
                    daemon.change(changed)
                daemon.start()

    def _expire(self) -> None:
        """Delete expired points by a command, after a dry run: what that counts is deleted, and no other points."""
        keep_s, now_s = self._world.keep_s, self._daemon.timeline.now_s
        stop_ms = expired_until_ms(keep_s, int(now_s()))
        self._daemon.send(self._world.expired(stop_ms))
        merged = self._merged_rows()
        counted, deleted = (
            json.loads(self._daemon.run("retention", *words, "--json"))["rules"]
            for words in (["--dry-run", "--exact"], ["--trust-clock"])
        )
        is_same_hour = stop_ms == expired_until_ms(keep_s, int(now_s()) + 120)
        if deleted and is_same_hour:  # the daemon has not deleted them meanwhile
            # A merged row has fewer bytes, and points that were sent twice only once.
            is_same = deleted == counted or self._merged_rows() > merged
            assert is_same, (deleted, counted, self._judge.log[-9:])
            self._judge.done["points expired"] += sum(amount["points"] for amount in deleted.values())
        for series in self._world.stored:
            self._world.forget(series, 0, stop_ms)
        names = self._world.names.now["metric"]
        found = self._daemon.request(
            "/api/query",
            {
                "start": 1,
                "end": stop_ms // 1000 - 2,
                "queries": [{"aggregator": "none", "metric": name} for name in names],
            },
        )
        assert found == (200, b"[]"), (found, self._judge.log[-9:])
        if is_same_hour:
            asked = [Question(name, "none", usage="ROLLUP_RAW") for name in names]
            self._judge.compare(self._daemon, asked, (stop_ms, int(now_s()) * 1000), is_certain=True)

    def _merged_rows(self) -> int:
        """Return how many rows the daemon has merged since its start."""
        _, stats = self._daemon.request("/api/stats")
        return sum(int(stat["value"]) for stat in json.loads(stats) if stat["metric"] == "tsd.compaction.count")

    def _find_damage(self) -> None:
        """Look for broken rows and names. A point that was sent again is not one."""
        self._daemon.run("uid", "fsck")
        found = self._daemon.run("fsck", "--full-scan", fails=True)
        errors = [line for line in found.splitlines() if line.startswith("ERROR") and "repeated point" not in line]
        assert not errors, (errors, self._judge.log[-9:])

    def _interrupt(self) -> None:
        """Run a command that is killed at one of its changes, several times and next to a daemon or not, and then to
        its end: as if it had run once. It may refuse to run while lines wait for a daemon."""
        dice, daemon, world = self._judge.dice, self._daemon, self._world
        commands = [["compact"], ["fsck", "--full-scan", "--fix-all"], ["delete"]]
        commands += [["retention", "--trust-clock"]] * bool(world.keep_s) + [["rollup", "build"]] * self._has_rollups
        words = dice.choice(commands)
        span = self._span() if words == ["delete"] else None
        words = [*words, *span.words()] if span else words
        stopped_by = dice.choice([None, None, signal.SIGTERM, signal.SIGKILL])
        if stopped_by:
            daemon.end(stopped_by)
        for _ in range(dice.choice([1, 1, 2, 3])):
            change, when = int(2 ** dice.uniform(0, 5)), dice.choice(["before", "after"])
            is_killed = daemon.interrupt(change, when, *words)
            self._judge.log.append(f"{words} {change} {when} {is_killed} {stopped_by}")
            self._judge.done[f"{words[0]} killed"] += is_killed
            if not is_killed:
                break
            if not (stopped_by or span):
                self._judge.ask(daemon)
        if stopped_by == signal.SIGKILL or (stopped_by and dice.random() < 0.5):
            daemon.start()
            stopped_by = None
        daemon.run(*words, tries=4, fails=words[0] == "fsck")
        if stopped_by:
            daemon.start()
        if span:
            span.forget(world)

    def _rename(self) -> None:
        """Rename a UID over HTTP or by a command, and look for all names and series."""
        kind, old, new = self._world.rename()
        self._judge.log.append(f"{kind} {old} {new}")
        if self._judge.dice.random() < 0.5:
            status, text = self._daemon.request("/api/uid/rename", {kind: old, "name": new})
            assert (status, text) == (200, b'{"result":"true"}'), (status, text)
        else:
            self._daemon.run("uid", "rename", KINDS[kind], old, new)
        self._judge.check_names(self._daemon)

    def _delete_rows(self) -> None:
        """Delete whole hours of one metric or several over HTTP, by one request."""
        asked: dict[str, Question] = {}  # by metric: otherwise one would delete what another reads
        count = self._judge.dice.choice([1, 1, 2, 4])
        for _ in range(count):
            drawn = self._judge.question()
            one = self._world.names.spoken(drawn)
            if not (one.explicit or (one.zone and count > 1) or self._world.names.lack(one)):
                asked[one.metric] = one
        span_ms = self._judge.past_span_ms(drawn.metric)
        asked = {metric: one for metric, one in asked.items() if self._world.is_certain(one, span_ms)}
        self._judge.log.append(f"{asked} {span_ms}")
        self._judge.compare(self._daemon, list(asked.values()), span_ms, delete=True, is_certain=True)
        for one in asked.values():
            scan = one.scan(span_ms)
            for series in one.chosen(self._world.stored):
                self._world.forget(series, scan.start_ms, scan.stop_ms)
        for metric in asked:
            self._judge.compare(self._daemon, [Question(metric, "none", usage="ROLLUP_RAW")], span_ms)

    def _delete_span(self) -> None:
        """Delete the points of a span to the second by a command."""
        span = self._span()
        self._daemon.run("delete", *span.words(), tries=4)
        span.forget(self._world)

    def _span(self) -> "_Span":
        """Return points to delete."""
        one = self._world.any()
        tags = dict(self._judge.dice.sample(one.tags, self._judge.dice.randrange(len(one.tags) + 1)))
        first_s, stop_s = (time_ms // 1000 for time_ms in self._judge.past_span_ms(one.family))
        self._judge.log.append(f"{one.metric} {tags} {first_s} {stop_s}")
        return _Span(one.metric, tags, first_s, stop_s)


class _Span(NamedTuple):
    """Points of some series, to the second."""

    metric: str
    tags: dict[str, str]
    first_s: int
    stop_s: int

    def words(self) -> list[str]:
        """Return the arguments of the command that deletes them."""
        tags = [f"{key}={value}" for key, value in self.tags.items()]
        return [self.metric, *tags, "--since", str(self.first_s), "--until", str(self.stop_s), "--yes"]

    def forget(self, world: World) -> None:
        """Delete them from the reference."""
        for series in world.stored:
            if series.metric == self.metric and self.tags.items() <= dict(series.tags).items():
                world.forget(series, self.first_s * 1000, self.stop_s * 1000)


def local_settings_of(dice: random.Random) -> dict[str, str]:
    """Return further settings of an embedded store that may change at any start."""
    return {
        "tsd.query.series_index": dice.choice(["true", "true", "false"]),
        "tsd.storage.join_points": dice.choice(["true", "true", "false"]),
        "tsd.storage.enable_compaction": dice.choice(["true", "true", "false"]),
    }


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


def play_changes(folder: Path, seed: int, steps: int, shared: NewTables | None = None) -> Counter[str]:
    """Change and ask `steps` times. Return what was done. Raise AssertionError with what differs. `shared` returns the
    settings of new tables of HBase, which has no fast clock: the daemon runs in real time then."""
    dice = random.Random(seed)
    hours = int(time.time()) // HOUR_S + 2  # noqa: TID251 (a test's own)
    start_s = (hours + dice.choice([0, 6, 11])) * HOUR_S + dice.choice([0, 1800, 3300])
    timeline = Timeline(dice.choice(SPEEDS), time.monotonic(), start_s)
    if shared is not None:
        timeline = Timeline(1.0, time.monotonic(), time.time())  # noqa: TID251
    is_calm, has_rollups = dice.random() < 0.5, dice.random() < 0.8

    def now_s() -> int:
        return int(timeline.now_s())

    world = World(dice, now_s, may_have_entities=shared is None)
    settings = settings_of(dice) | {
        "tsd.http.query.allow_delete": "true",
        "tsd.core.histograms.config": CONFIG,
        "tsd.rollups.build": str(has_rollups).lower(),
        "tsd.storage.salt.width": str(world.salt_width),
        "tsd.entity.enabled": str(world.has_entities).lower(),
    }
    judge = Judge(dice, world, now_s, for_rollups=is_calm)
    if world.keep_s:
        settings["tsd.retention.rules"] = f"*={world.keep_s // HOUR_S}h"
    if shared is not None:
        settings["tsd.storage.flush_interval"] = dice.choice(["100", "2000", "10000", "30000"])
        settings |= {"tsd.storage.compaction.span_age": dice.choice(["3", "10", "240"]), **shared()}
        settings["tsd.query.series_index"] = dice.choice(["true", "false"])
    with _running(folder, timeline, settings) as daemon:
        changes = Changes(folder, world, daemon, judge, shared, has_rollups=has_rollups)
        daemon.send(world.past(dice.choice([0.3, 2, 4])))
        for _ in range(steps):
            changes.step(CALM if is_calm else BUSY)
            judge.ask(daemon)
    judge.done["points"] = sum(map(len, world.stored.values()))
    return judge.done
