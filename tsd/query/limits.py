"""Limits of queries: how much each may read, how long it may take, and how much memory all use (docs/compat/query.md
§16)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from tsd.errors import BadConfig, BadQuery
from tsd.query.workers import WorkerPool

MB = 1 << 20


class Bounds(NamedTuple):
    """The most that a sub query may read; 0: unlimited."""

    size: int = 0  # bytes
    points: int = 0


UNBOUNDED = Bounds()


class QueryBudget(NamedTuple):
    """The limits of a sub query, and its workers."""

    bounds: Bounds
    set_memory: Callable[[int], None]  # called with all bytes in use; may raise BadQuery
    workers: WorkerPool


class Override(NamedTuple):
    """Bounds for metrics whose name matches."""

    metric: re.Pattern[str]
    bounds: Bounds


@dataclass(frozen=True)
class Limits:
    """The bounds as configured."""

    default: Bounds = UNBOUNDED
    overrides: tuple[Override, ...] = ()
    size_override: bool = False  # whether a request may lift the bound on bytes
    points_override: bool = False
    timeout_ms: int = 0

    def bounds(self, metric: str, *, override_size: bool, override_points: bool) -> Bounds:
        """Return the bounds of a metric.

        >>> Limits(Bounds(points=5), points_override=True).bounds("m", override_size=True, override_points=True)
        Bounds(size=0, points=0)
        """
        chosen = self.default
        if self.overrides:
            chosen = next((one.bounds for one in self.overrides if one.metric.search(metric)), chosen)
        return Bounds(
            0 if override_size and self.size_override else chosen.size,
            0 if override_points and self.points_override else chosen.points,
        )


class _Entry(msgspec.Struct):
    """One entry of the file of overrides."""

    metric: str
    size: int = msgspec.field(default=0, name="byteLimit")
    points: int = msgspec.field(default=0, name="dataPointsLimit")


def read_overrides(path: Path) -> tuple[Override, ...]:
    """Read bounds by metric from OpenTSDB's file, a list of `{"metric": regex, "byteLimit": n, "dataPointsLimit": n}`.
    Raise BadConfig."""
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[_Entry], strict=False)  # numbers may be texts
        return tuple(Override(re.compile(entry.metric), Bounds(entry.size, entry.points)) for entry in entries)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, re.error) as exc:
        reason = (exc.strerror if isinstance(exc, OSError) else "") or str(exc)
        raise BadConfig([f"tsd.query.limits.overrides.config: {path} cannot be used: {reason}"]) from exc


def check_fetched(bounds: Bounds, *, size: int, points: int) -> None:
    """Raise BadQuery in OpenTSDB's words if more was read than allowed."""
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


def timeout_error(timeout_ms: int, spent_ms: float) -> BadQuery:
    """Return the response to a query that took too long."""
    return BadQuery(
        f"Sorry, your query timed out. Time limit: {timeout_ms} ms, fetch time: {spent_ms:.0f} ms. "
        "Please try filtering using more tags or decrease your time range.",
        status=408,
    )


class QueryMemory:
    """The memory that all running queries use for points."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.refused = 0  # queries

    def share(self) -> "MemoryShare":
        """Return the share of a new query."""
        return MemoryShare(self)


class MemoryShare:
    """The memory that one query uses; released at its end."""

    def __init__(self, memory: QueryMemory) -> None:
        self._memory = memory
        self.held = 0  # bytes

    def resize(self, size: int) -> None:
        """Set how many bytes the query uses. Raise BadQuery if all queries together would hold too much."""
        others = self._memory.held - self.held
        if others + size > self._memory.limit:
            self._memory.refused += 1
            raise BadQuery(
                f"Sorry, the answer needs more memory than all queries may hold ({self._memory.limit // MB}MB, "
                f"tsd.query.memory_limit); others hold {others // MB}MB. Please try filtering using more "
                "tags, downsampling, or decrease your time range.",
                status=413,
            )
        self._memory.held = others + size
        self.held = size

    def add(self, size: int) -> None:
        """Add bytes. Raise BadQuery as `resize` does."""
        self.resize(self.held + size)

    def release(self) -> None:
        """Release everything."""
        self._memory.held -= self.held
        self.held = 0
