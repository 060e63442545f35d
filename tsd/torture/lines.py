"""Numbered put lines: everything about the n-th line of a connection follows from n, which is also in its value.

So nothing need be remembered of millions of lines, and a stored point that was never sent, or that stands under another
series or time, gives itself away. Of every eight points of a series the last one gives the fifth's time another value.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BASE_S = 1_500_000_000
HIDDEN, BY = 4, 7  # of eight points of a series: the one whose time is given again, and the one that does
LIFE = 40  # points of a series until one with new names takes its place
METRIC_LIVES = 2  # after so many, the metric is new too
ODD_MS = 250  # every other series has its points so long after the full second

Numbers = NDArray[np.int64]
Values = NDArray[np.float64]


class Line(NamedTuple):
    """What a line says, but for its value."""

    metric: str
    tags: tuple[tuple[str, str], ...]  # in order of their names
    time: int  # in seconds, or in ms for every other series


class Series(NamedTuple):
    """The names of one."""

    metric: str
    tags: tuple[tuple[str, str], ...]


class Lines(NamedTuple):
    """The lines of one connection."""

    place: str  # what the metrics' names begin with
    connection: int
    slots: int = 6  # series that take turns
    life: int = LIFE  # a multiple of 8; 0: series stay

    def line(self, n: int) -> Line:
        """The n-th."""
        turn, slot = divmod(n, self.slots)
        age = turn // self.life if self.life else 0
        tags = ("connection", f"c{self.connection}"), ("host", f"h{slot}.{age}")
        time = BASE_S + turn - (BY - HIDDEN) * (turn % 8 == BY)
        return Line(f"{self.place}.{slot}.{age // METRIC_LIVES}", tags, time * 1000 + ODD_MS if slot % 2 else time)

    def value(self, n: int) -> int | float:
        """Of the n-th: an integer, or in every third series one and a half."""
        return n + 0.5 if n % self.slots % 3 == 2 else n

    def metrics(self, count: int) -> list[str]:
        """Those of the first `count` lines."""
        ages = ((count - 1) // self.slots // self.life if self.life else 0) + 1 if count else 0
        return [f"{self.place}.{slot}.{at}" for slot in range(self.slots) for at in range(-(-ages // METRIC_LIVES))]

    def numbers(self, series: "Series", times: Numbers, values: Values) -> Numbers:
        """Which line each of a series' points is of; -1 where none of them said it."""
        n = np.floor(np.where(np.abs(values) < 1 << 53, values, -1.0)).astype(np.int64)  # others are no line's
        turn, slot = n // self.slots, n % self.slots
        said = BASE_S + turn - (BY - HIDDEN) * (turn % 8 == BY)
        said = np.where(slot % 2, said * 1000 + ODD_MS, said)
        right = (n >= 0) & (said == times) & (values == np.where(slot % 3 == 2, n + 0.5, n))
        for at in {int(first) for first in np.unique(n[right] // (self.slots * (self.life or 1 << 40)))}:
            first = at * self.slots * self.life
            for one in range(self.slots):
                line = self.line(first + one)
                if (line.metric, line.tags) != series:
                    right &= ~((slot == one) & (turn // (self.life or 1 << 40) == at))
        return np.where(right, n, -1)

    def later(self, numbers: Numbers) -> Numbers:
        """For each line the one that gives its time another value; itself where there is none."""
        hidden = numbers // self.slots % 8 == HIDDEN
        found: Numbers = numbers + hidden * ((BY - HIDDEN) * self.slots)
        return found

    def shown(self, n: int) -> str:
        """The n-th, for people."""
        line = self.line(n)
        return f"put {line.metric} {line.time} {self.value(n)} {spelt(line.tags)}"

    def text(self, start: int, stop: int) -> bytes:
        """The lines from the `start`-th to before the `stop`-th."""
        return "".join(f"{self.shown(n)}\n" for n in range(start, stop)).encode()

    def json(self, start: int, stop: int) -> bytes:
        """The same as a body of /api/put."""
        return json.dumps(list(self._points(start, stop))).encode()

    def _points(self, start: int, stop: int) -> Iterator[dict[str, object]]:
        for n in range(start, stop):
            line = self.line(n)
            yield {"metric": line.metric, "timestamp": line.time, "value": self.value(n), "tags": dict(line.tags)}


def spelt(tags: tuple[tuple[str, str], ...]) -> str:
    """Tags as a line has them."""
    return " ".join(f"{name}={value}" for name, value in tags)
