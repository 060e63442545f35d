"""How much a query may read, how long it may take, and what all of them together may hold (query.md §16)."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tsd.errors import BadConfig, BadQuery
from tsd.query.threads import Threads

MB = 1 << 20


class Bounds(NamedTuple):
    """The most that a sub query may fetch; 0 is no bound."""

    size: int = 0  # bytes
    points: int = 0


UNBOUNDED = Bounds()


class Allowance(NamedTuple):
    """What a sub query may fetch and hold, and where its work is done."""

    bounds: Bounds
    hold: Callable[[int], None]  # is told how many bytes are kept, and may raise BadQuery
    threads: Threads
    check: Callable[[], None]  # called in a thread: raises what is to end the work


class Override(NamedTuple):
    """Other bounds for metrics whose name matches."""

    metric: re.Pattern[str]
    bounds: Bounds


@dataclass(frozen=True)
class Limits:
    """The bounds as configured."""

    default: Bounds = UNBOUNDED
    overrides: tuple[Override, ...] = ()
    size_override: bool = False  # whether a request may set itself free of the bytes
    points_override: bool = False
    timeout_ms: int = 0

    def bounds(self, metric: str, *, override_size: bool, override_points: bool) -> Bounds:
        """What holds for a metric.

        >>> Limits(Bounds(points=5), points_override=True).bounds("m", override_size=True, override_points=True)
        Bounds(size=0, points=0)
        """
        chosen = next((one.bounds for one in self.overrides if one.metric.search(metric)), self.default)
        return Bounds(
            0 if override_size and self.size_override else chosen.size,
            0 if override_points and self.points_override else chosen.points,
        )


def read_overrides(path: Path) -> tuple[Override, ...]:
    """The bounds by metric in OpenTSDB's file: a list of `{"metric": regex, "byteLimit": n, "dataPointsLimit": n}`.
    Raises BadConfig."""
    try:
        return tuple(
            Override(
                re.compile(entry["metric"]),
                Bounds(int(entry.get("byteLimit", 0)), int(entry.get("dataPointsLimit", 0))),
            )
            for entry in json.loads(path.read_bytes())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, re.error) as exc:
        raise BadConfig([f"tsd.query.limits.overrides.config: {path} cannot be used: {exc!r}"]) from exc


def check_fetched(bounds: Bounds, *, size: int, points: int) -> None:
    """Raise BadQuery in OpenTSDB's words where more was fetched than may be."""
    hint = "Please try filtering using more tags or decrease your time range."
    if bounds.points and points > bounds.points:
        raise BadQuery(
            f"Sorry, you have attempted to fetch more than our limit of {bounds.points} data points. {hint}", status=413
        )
    if bounds.size and size > bounds.size:
        raise BadQuery(
            f"Sorry, you have attempted to fetch more than our maximum amount of {bounds.size // MB}MB from storage. "
            f"{hint}",
            status=413,
        )


def timed_out(timeout_ms: int, spent_ms: float) -> BadQuery:
    """What a query that took too long is answered with."""
    return BadQuery(
        f"Sorry, your query timed out. Time limit: {timeout_ms} ms, fetch time: {spent_ms:.0f} ms. "
        "Please try filtering using more tags or decrease your time range.",
        status=408,
    )


class Memory:
    """What running queries hold of points, over all of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.refused = 0  # queries

    def share(self) -> "Share":
        """A query's own part."""
        return Share(self)


class Share:
    """What one query holds. To be released at its end."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0

    def hold(self, size: int) -> None:
        """From now on the query holds so many bytes; raises BadQuery where that is too much for all of them."""
        others = self._memory.held - self._held
        if others + size > self._memory.limit:
            self._memory.refused += 1
            raise BadQuery(
                f"Sorry, the answer needs more memory than queries may have together ({self._memory.limit // MB}MB, "
                f"tsd.query.memory_limit), of which others hold {others // MB}MB. Please try filtering using more "
                "tags, downsampling, or decrease your time range.",
                status=413,
            )
        self._memory.held = others + size
        self._held = size

    def add(self, size: int) -> None:
        """The query holds so many bytes more; raises BadQuery as `hold` does."""
        self.hold(self._held + size)

    def release(self) -> None:
        """Hold nothing any more."""
        self._memory.held -= self._held
        self._held = 0
