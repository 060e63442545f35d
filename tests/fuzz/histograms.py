"""Histograms of a fuzzed daemon: sent by telnet and over HTTP, and compared in answers of buckets and percentiles."""

import itertools
import json
import random
from collections import Counter
from typing import Any, NamedTuple

from tests.fuzz.forms import points_of
from tests.fuzz.process import Client
from tests.fuzz.questions import Question, Series, is_close
from tests.fuzz.world import HOUR_S, PAST_S, Buckets, World
from tests.query_vectors import Value

CONFIG = '{"net.opentsdb.core.SimpleHistogramDecoder": 42}'
BOUNDS = [0.0, 1.0, 1.75, 3.5, 10.0]
PERCENTILES = [50.0, 95.0, 99.9]
DOWNSAMPLES = ["", "", "10m-sum", "1h-sum", "1d-sum"]
LONGEST_DELETED_MS = 4 * HOUR_S * 1000


class _Member(NamedTuple):
    """One of the series that an answer has for a group."""

    suffix: str  # of the metric's name
    tsuids: tuple[str, ...]


_Answers = dict[_Member, dict[int, Value]]


class Histograms:
    """Sends histograms and asks for them."""

    def __init__(self, dice: random.Random, world: World) -> None:
        self._dice, self._world = dice, world

    def send(self, daemon: Client) -> None:
        """Send some, by telnet or over HTTP. Raise AssertionError for another answer."""
        found = [self._one() for _ in range(self._dice.choice([1, 3, 40]))]
        by_telnet = self._dice.random() < 0.5
        if by_telnet:
            daemon.send_lines("".join(_line(*one) for one in found))
            return
        status, text = daemon.request("/api/histogram", [_body(*one) for one in found])
        assert status == 204, (status, text)

    def _one(self) -> tuple[Series, int, Buckets]:
        """Return a new histogram, mostly near points, and record it."""
        dice, world = self._dice, self._world
        series = world.any()
        own = [*world.stored[series], *world.histograms.get(series.tsuid, {})]
        time_ms = dice.choice(own) if own and dice.random() < 0.8 else world.now_ms() - dice.randrange(PAST_S) * 1000
        time_ms += dice.choice([0, 0, 1000, 60_000, 500])
        time_ms = max(time_ms, world.uncertain_ms())
        bounds = sorted(dice.sample(BOUNDS, dice.choice([2, 3, 5])))
        counts = {pair: dice.randrange(1000) for pair in itertools.pairwise(bounds)}
        histogram = Buckets(counts, dice.randrange(5), dice.randrange(300))
        world.histograms.setdefault(series.tsuid, {})[time_ms] = histogram
        return series, time_ms, histogram

    def ask(self, daemon: Client, one: Question, span_ms: tuple[int, int]) -> bool:
        """Ask for the histograms of a question's series, unless they may expire, and return whether it was asked. Raise
        AssertionError if they differ."""
        asked = self._asked(one)
        if asked.scan(span_ms).start_ms < self._world.uncertain_ms() or self._world.names.lack(asked):
            return False
        body = asked.body() | {"percentiles": PERCENTILES, "showHistogramBuckets": True}
        deletes = self._dice.random() < 0.1 and span_ms[1] - span_ms[0] <= LONGEST_DELETED_MS
        request = {"start": span_ms[0], "end": span_ms[1], "queries": [body], "msResolution": True, "showTSUIDs": True}
        request["delete"] = deletes
        status, text = daemon.request("/api/query", request)
        assert status == 200, (status, text, request)
        found: _Answers = {}
        for each in json.loads(text):
            if points := points_of(each["dps"]):
                member = _Member(each["metric"].removeprefix(asked.metric), tuple(sorted(each["tsuids"])))
                assert member not in found, (member, request)
                found[member] = points
        expected = self._answers(asked, span_ms)
        odd = [
            (member, at, found.get(member, {}).get(at), expected.get(member, {}).get(at))
            for member in found.keys() | expected.keys()
            for at in found.get(member, {}).keys() | expected.get(member, {}).keys()
            if not is_close(found.get(member, {}).get(at), expected.get(member, {}).get(at))
        ]
        assert not odd, (sorted(odd, key=repr)[:4], len(odd), request, self._world.now_ms())
        if deletes:
            scan = asked.scan(span_ms)
            for series in asked.chosen(self._world.stored):
                self._world.forget(series, scan.start_ms, scan.stop_ms)
        return True

    def _asked(self, one: Question) -> Question:
        """Return a question that can be asked for histograms."""
        aggregator, downsample = self._dice.choice(["sum", "none"]), self._dice.choice(DOWNSAMPLES)
        return Question(one.metric, aggregator, downsample, filters=one.filters)

    def _answers(self, asked: Question, span_ms: tuple[int, int]) -> _Answers:
        """Return the answer of the reference: counts are added as points are."""
        scan = asked.scan(span_ms)
        counts: dict[str, dict[Series, dict[int, Value]]] = {}  # by suffix
        for series in asked.chosen(self._world.stored):
            for at, one in self._world.histograms.get(series.tsuid, {}).items():
                if scan.start_ms <= at < scan.stop_ms:
                    for suffix, count in one.counts().items():
                        counts.setdefault(suffix, {}).setdefault(series, {})[at] = count
        adding = Question(
            asked.metric, "none" if asked.aggregator == "none" else "zimsum", asked.downsample, filters=asked.filters
        )
        found: _Answers = {}
        groups: dict[tuple[str, ...], dict[int, Counter[tuple[float, float]]]] = {}
        for suffix, stored in counts.items():
            for group, points in adding.answer(stored, span_ms).items():
                members = next(each for each in self._groups(asked, counts) if set(group.tsuids) <= set(each))
                if points:
                    found[_Member(suffix, members)] = points
                for at, count in points.items():
                    if "FLOW" not in suffix:
                        lower, upper = map(float, suffix.split("_")[1:])
                        groups.setdefault(members, {}).setdefault(at, Counter())[lower, upper] += int(count)
        for members, by_time in groups.items():
            for wanted in PERCENTILES:
                found[_Member(f"_pct_{wanted}", members)] = {
                    at: _percentile(all_, wanted) for at, all_ in by_time.items()
                }
        return found

    def _groups(self, asked: Question, counts: dict[str, dict[Series, dict[int, Value]]]) -> list[tuple[str, ...]]:
        """Return the TSUIDs of each group: those of all series with histograms, whatever their buckets."""
        all_series = {series: own for stored in counts.values() for series, own in stored.items()}
        keys = sorted({one.key for one in asked.filters if one.groups})
        found: dict[object, list[str]] = {}
        for series in all_series:
            tags = dict(series.tags)
            group = series if asked.aggregator == "none" else tuple(tags[key] for key in keys)
            found.setdefault(group, []).append(series.tsuid)
        return [tuple(sorted(tsuids)) for tsuids in found.values()]


def _percentile(counts: Counter[tuple[float, float]], wanted: float) -> float:
    total, passed = sum(counts.values()), 0
    for lower, upper in sorted(counts):
        passed += counts[lower, upper]
        if total and 100.0 * passed / total >= wanted:
            return (lower + upper) / 2
    return 0.0


def _time(time_ms: int) -> int:
    return time_ms if time_ms % 1000 else time_ms // 1000


def _line(series: Series, time_ms: int, histogram: Buckets) -> str:
    counts = ":".join(f"{lower},{upper}={count}" for (lower, upper), count in histogram.buckets.items())
    tags = " ".join(f"{key}={value}" for key, value in series.tags)
    flows = f"u={histogram.underflow}:o={histogram.overflow}"
    return f"histogram {series.metric} {_time(time_ms)} {counts}:{flows} {tags}\n"


def _body(series: Series, time_ms: int, histogram: Buckets) -> dict[str, Any]:
    return {
        "metric": series.metric, "timestamp": _time(time_ms), "tags": dict(series.tags),
        "buckets": {f"{lower},{upper}": count for (lower, upper), count in histogram.buckets.items()},
        "underflow": histogram.underflow, "overflow": histogram.overflow,
    }  # fmt: skip
