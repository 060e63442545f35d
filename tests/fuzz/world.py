"""The points that are stored in a fuzzed daemon, by series whose names change."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.fuzz.questions import HOSTS, METRICS, Names, Question, Series
from tests.query_vectors import Value

HOUR_S, DAY_S = 3600, 86400
PERIODS_S = {"days": 600, "fast": 7, "few": 10, "many": 300, "mid": 60}
PAST_S = 3 * HOUR_S  # of points at the start, but for the metric `days`


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


class Buckets(NamedTuple):
    """A histogram."""

    buckets: dict[tuple[float, float], int]  # counts by bounds
    underflow: int
    overflow: int

    def counts(self) -> dict[str, int]:
        """Return all counts by the suffixes of the series that answer them."""
        found = {f"_{lower}_{upper}": count for (lower, upper), count in self.buckets.items()}
        return found | {"_UNDERFLOW": self.underflow, "_OVERFLOW": self.overflow}


def note_ms(start: int) -> int:
    """Return the start of an annotation, which is in s or ms, in ms."""
    return start if start >= 1 << 32 else start * 1000


class World:
    """The points that are stored."""

    def __init__(self, dice: random.Random, now_s: Callable[[], int], *, may_have_entities: bool = True) -> None:
        self._dice, self._now_s = dice, now_s
        self.stored: dict[Series, dict[int, Value]] = {}
        self.names = Names()
        self.sent_ms: dict[tuple[str, int], int] = {}  # when points of a TSUID and time were sent
        self.salt_width = dice.choice([0, 0, 0, 1])
        self.has_ms = dice.random() < 0.3  # whether some points of all metrics are in ms
        self.has_entities = dice.random() < 0.35 and may_have_entities
        self.notes: dict[tuple[str, int], dict[str, Any]] = {}  # annotations by TSUID and start
        self.histograms: dict[str, dict[int, Buckets]] = {}  # by TSUID and time in ms
        self.keep_s = dice.choice([0, 0, 26 * HOUR_S, 50 * HOUR_S])  # of retention; 0: forever
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
        series = Series.new(metric, self.salt_width, **tags)
        self.stored[series] = {}
        self._last_s[series] = self._now_s()

    def any(self) -> Series:
        """Return a series."""
        metric = self._dice.choice(["days", *METRICS])
        return self._dice.choice([series for series in self.stored if series.family == metric])

    def past(self, days: float) -> list[Sent]:
        """Return the points of some days of one metric, and of some hours of the others."""
        found = []
        for series in self.stored:
            period_s, ago_s = PERIODS_S[series.family], int(days * DAY_S) if series.family == "days" else PAST_S
            first_s = self._now_s() - ago_s + self._dice.randrange(period_s)
            times = [at for at in range(first_s, self._now_s() - 60, period_s) if self._dice.random() < 0.97]
            found += [self.point(series, time_s * 1000) for time_s in times]
        return found

    def due(self) -> list[Sent]:
        """Return what agents have sent by now, in order of time."""
        found = []
        for series in self.stored.keys() - self._dead:
            period_s = PERIODS_S[series.family]
            for time_s in range(self._last_s[series] + period_s, self._now_s() + 1, period_s):
                found.append(self.point(series, time_s * 1000))
                self._last_s[series] = time_s
        return sorted(found, key=lambda point: point.time_ms)

    def late(self) -> list[Sent]:
        """Return points of earlier times, some of which replace others."""
        found = []
        for _ in range(self._dice.choice([1, 1, 5, 40])):
            series = self.any()
            days = [DAY_S, 2 * DAY_S, 3 * DAY_S] if series.family == "days" else [600, HOUR_S]
            ago_s = self._dice.choice([30, PAST_S, *days]) + self._dice.randrange(3000)
            time_ms = (self._now_s() - ago_s) * 1000
            if self._dice.random() < 0.5 and self.stored[series]:
                time_ms = self._dice.choice(list(self.stored[series]))
            found.append(self.point(series, time_ms))
        return found

    def expired(self, stop_ms: int) -> list[Sent]:
        """Return points that have expired when they are sent."""
        times = [stop_ms // 1000 - self._dice.choice([1, 60, HOUR_S, 90_000]) - at for at in range(0, 9000, 600)]
        return [self.point(series, at * 1000) for series in (self.any(), self.any()) for at in times]

    def start_one(self) -> Sent:
        """Return the first point of a new series, whose names have not changed."""
        metric, host = self._dice.choice(["few", "many", "mid"]), HOSTS[len(self.stored)]
        if metric == "mid":
            self._add(metric, cpu="01"[len(host) % 2], host=host)
        else:
            self._add(metric, dc=self._dice.choice("xyz"), host=host)
        return self.point(next(reversed(self.stored)), self.now_ms() - self._dice.choice([1000, 60_000]))

    def end_one(self) -> None:
        """End a series: no more points are due."""
        self._dead.add(self.any())

    def rename(self) -> tuple[str, str, str]:
        """Rename the metric, a key or a value of a series. Return the kind and both names."""
        one = self.any()
        key, value = self._dice.choice(one.tags)
        kind, old = self._dice.choice([("metric", one.metric), ("tagk", key), ("tagv", value), ("tagv", value)])
        new = self.names.rename(kind, old, self._dice)
        renamed = {series: series.renamed(kind, old, new) for series in self.stored}
        self.stored = {renamed[series]: own for series, own in self.stored.items()}
        self._last_s = {renamed[series]: own for series, own in self._last_s.items()}
        self._dead = {renamed[series] for series in self._dead}
        return kind, old, new

    def uncertain_ms(self) -> int:
        """Return until when points may have expired by the end of a query: a daemon deletes them at any time. Rollups
        of an interval that begins before are not built again."""
        return (self._now_s() + 600 - self.keep_s) * 1000 if self.keep_s else 0

    def now_ms(self) -> int:
        """Return the time."""
        return self._now_s() * 1000

    def notes_of(self, tsuid: str, first_ms: int, last_ms: int) -> list[dict[str, Any]]:
        """Return the annotations of a series, or global ones, in OpenTSDB's order: those in ms are last."""
        places = [(own, start) for own, start in self.notes if own == tsuid and first_ms <= note_ms(start) <= last_ms]
        return [self.notes[place] for place in sorted(places)]

    def is_certain(self, one: Question, span_ms: tuple[int, int]) -> bool:
        """Return whether the answer to a question is known: nothing that is read may expire, and no series has
        annotations and no points. Such a series is a member of its group unless rollups answer."""
        scan = one.scan(span_ms)
        return scan.start_ms >= self.uncertain_ms() and not any(
            self.notes_of(each.tsuid, scan.start_ms, scan.stop_ms - 1)
            and not any(scan.start_ms <= at < scan.stop_ms for at in self.stored[each])
            for each in one.chosen(self.stored)
        )

    def forget(self, series: Series, first_ms: int, stop_ms: int) -> None:
        """Delete points and annotations, and the histograms of hours that are deleted as a whole."""
        for note in self.notes_of(series.tsuid, first_ms, stop_ms - 1):
            del self.notes[series.tsuid, note["startTime"]]
        own = self.stored[series]
        for at in [at for at in own if first_ms <= at < stop_ms]:
            del own[at]
        hours = self.histograms.get(series.tsuid, {})
        for at in list(hours):
            hour_ms = at // (HOUR_S * 1000) * HOUR_S * 1000
            if first_ms <= hour_ms and hour_ms + HOUR_S * 1000 <= stop_ms:
                del hours[at]

    def point(self, series: Series, time_ms: int) -> Sent:
        """Return a new point: an integer, a double, or either, as the series has them."""
        if series.family == "fast" or (self.has_ms and self._dice.random() < 0.05):
            time_ms = time_ms // 1000 * 1000 + self._dice.randrange(1, 1000)
        kind = len(series.family) * series.uids[-1] % 3 if self._dice.random() < 0.9 else 2
        is_whole = kind == 0 or (kind == 2 and self._dice.random() < 0.5)
        value = self._dice.randrange(-5, 1000) + (0 if is_whole else self._dice.choice([0.25, 0.5, 0.1]))
        self.stored[series][time_ms] = value
        self.sent_ms[series.tsuid, time_ms] = self.now_ms()
        return Sent(series, time_ms, value)
