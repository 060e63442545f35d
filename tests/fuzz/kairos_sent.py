"""Random points for KairosDB's API, and what of them a daemon must hold."""

import random
import time
from collections.abc import Mapping
from typing import Any

from tests.fuzz.kairos_queries import METRICS
from tests.fuzz.kairos_reference import ROW_MS, Key, Tags, Value, passes

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
WINTER_MS = 1_792_890_000_000  # the clocks of Europe go back
SERIES = 8  # of the first metric at the start
ODD = ("a|b", "a.b", "\u00e9", "x/y-z", "(", "h1:2", "*")  # values of tags of KairosDB's tables


def now_ms() -> int:
    """Return the time of the wall clock."""
    return time.time_ns() // 1_000_000


class Sent:
    """What the daemon must hold: of several points for one time, the last."""

    def __init__(self, dice: random.Random, now_ms: int, *, on_cassandra: bool) -> None:
        self._dice = dice
        self._on_cassandra = on_cassandra
        self.points: dict[Key, dict[int, Value]] = {}
        self.ever: set[tuple[str, Tags]] = set()
        limit = now_ms // ROW_MS * ROW_MS - ROW_MS
        self._past = [(limit - HOUR_MS, limit + HOUR_MS), (WINTER_MS - DAY_MS, WINTER_MS + DAY_MS)]
        self._past.append((limit - 2 * ROW_MS - 60_000, limit - 2 * ROW_MS + 60_000))
        self._series: list[tuple[str, Tags]] = []
        for number in range(SERIES):
            self._series.append((METRICS[0], (("dc", "xy"[number % 2]), ("host", f"h{number}"))))
            self._series.append((METRICS[number % 3], (("host", f"h{number % 4}"),)))

    @property
    def areas(self) -> list[tuple[int, int]]:
        """The times with points, the present first."""
        now = now_ms()
        return [(now - 2 * HOUR_MS, now), *self._past]

    def _time(self, key: Key) -> int:
        known = self.points.get(key)
        if known and self._dice.random() < 0.25:
            return self._dice.choice(list(known))
        start, end = self._dice.choice(self.areas)
        grid = self._dice.choice([10_000, 60_000, 60_000, 7])
        return start + self._dice.randrange(end - start) // grid * grid

    def _value(self) -> int | float:
        whole = self._dice.randrange(-50, 1000)
        return whole if self._dice.random() < 0.5 else whole + 0.25

    def put(self) -> list[dict[str, Any]]:
        """Return the body of a put, and note its points."""
        found = []
        for _ in range(self._dice.choice([1, 1, 2, 5])):
            if self._dice.random() < 0.08:
                host = f"h{self._dice.randrange(20)}"
                if self._on_cassandra and self._dice.random() < 0.5:
                    host = self._dice.choice(ODD)
                new: Tags = (("host", host), ("z", str(self._dice.randrange(3))))
                self._series.append((self._dice.choice(METRICS), new))
            metric, tags = self._dice.choice(self._series)
            key = Key(metric, tags, is_text=False)
            pairs: list[tuple[int, Value]] = []
            start = self._time(key)
            for at in range(self._dice.choice([1, 1, 3, 30, 200])):
                time_ms = start if at == 0 else self._time(key) if self._dice.random() < 0.2 else start - at * 10_000
                pairs.append((time_ms, self._value()))
                self.note(key, *pairs[-1])
            found.append({"name": metric, "tags": dict(tags), "datapoints": pairs})
        return found

    def texts(self) -> list[dict[str, Any]]:
        """Return the body of a put of texts; no two series have one at the same time."""
        metric, tags = self._dice.choice(self._series)
        key = Key(metric, tags, is_text=True)
        own = self._series.index((metric, tags))
        pairs: list[tuple[int, Value]] = []
        for _ in range(self._dice.choice([1, 3, 20])):
            time_ms = self._time(key) // 100 * 100 + own % 100
            pairs.append((time_ms, f"text {self._dice.randrange(6)}"))
            self.note(key, *pairs[-1])
        return [{"name": metric, "tags": dict(tags), "datapoints": pairs}]

    def lines(self) -> str:
        """Return lines of telnet."""
        found = ""
        for _ in range(self._dice.choice([1, 5, 50])):
            metric, tags = self._dice.choice(self._series[: 2 * SERIES])
            key = Key(metric, tags, is_text=False)
            time_ms, value = self._time(key), self._value()
            self.note(key, time_ms, value)
            found += f"put {metric} {time_ms} {value} {' '.join(map('='.join, tags))}\n"
        return found

    def note(self, key: Key, time_ms: int, value: Value) -> None:
        """Note a point."""
        self.points.setdefault(key, {})[time_ms] = value
        self.ever.add((key.metric, key.tags))

    def delete(self, metric: str, tags: Mapping[str, Any], start_ms: int, end_ms: int) -> bool:
        """Delete points. Return False if the daemon refuses that."""
        chosen = [points for key, points in self.points.items() if key.metric == metric and passes(key.tags, tags)]
        if not self._on_cassandra:
            first, stop = start_ms // HOUR_MS * HOUR_MS, (end_ms // HOUR_MS + 1) * HOUR_MS
            if any(first <= at < stop and not start_ms <= at <= end_ms for points in chosen for at in points):
                return False
        for points in chosen:
            for at in [at for at in points if start_ms <= at <= end_ms]:
                del points[at]
        return True
