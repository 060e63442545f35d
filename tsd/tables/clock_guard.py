"""Decides whether the wall clock may be trusted to delete old points.

A clock that jumps ahead makes young points look old. So nothing expires while the clock is more than a day ahead of
what is expected. That is the time of the last check, plus the time that has passed since by the monotonic clock. After
a start, or without an earlier check, it is unknown. Then incoming points decide: the median time of a window must be
within a day of the clock, so one late or early sender does not count. Old points, such as those of a backfill, show
nothing: any window since the start will do.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tsd.config.state_dir import write_atomically
from tsd.errors import StoreError

TOLERANCE_MS = 86_400_000


class Doubt(NamedTuple):
    """Why the clock is not trusted."""

    reason: str
    is_contradicted: bool  # by an earlier reading or by points; otherwise there is nothing to compare it with yet


class ClockGuard:
    """Compares the wall clock with its earlier readings, which a file keeps, and with incoming points."""

    def __init__(self, file: Path, monotonic_ms: Callable[[], float]) -> None:
        self._file = file
        self._monotonic_ms = monotonic_ms
        self._offset_ms: float | None = None  # of the wall clock from the monotonic one, when it was last trusted
        self._points_ms: float | None = None  # highest offset of incoming points from the monotonic clock

    def observe(self, median_ms: float) -> None:
        """Record the median time of a window of points that has just come in."""
        offset_ms = median_ms - self._monotonic_ms()
        self._points_ms = offset_ms if self._points_ms is None else max(self._points_ms, offset_ms)

    def doubt(self, now_ms: int) -> Doubt | None:
        """Return why the clock is not trusted, None if it is."""
        ahead_ms = self._ahead_ms(now_ms)
        if ahead_ms is None:
            return self._doubt_of_points(now_ms)
        if ahead_ms > TOLERANCE_MS:
            return Doubt(f"the clock is {_days(ahead_ms)} ahead of the time that is expected", is_contradicted=True)
        return None

    def _doubt_of_points(self, now_ms: int) -> Doubt | None:
        """Return why incoming points do not confirm the clock, None if they do."""
        if self._points_ms is not None:
            older_ms = now_ms - (self._monotonic_ms() + self._points_ms)
            if older_ms <= TOLERANCE_MS:
                return None
            came = f"the points that have come in since the start are {_days(older_ms)} older"
        else:
            came = "no points have come in since the start that could confirm it"
        saved_ms = self._saved_ms()
        if saved_ms is None:
            checked = "the clock has not been checked before"
        else:
            checked = f"the last check of the clock was {_days(now_ms - saved_ms)} ago"
        return Doubt(f"{checked}, and {came}", is_contradicted=self._points_ms is not None)

    def trust(self, now_ms: int) -> None:
        """Record that the clock is right. Raise StoreError if the file cannot be written. It is synced: call this in a
        thread."""
        self._offset_ms = now_ms - self._monotonic_ms()
        folder = self._file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)  # a command may be the first to use it
            write_atomically(self._file, json.dumps({"checked_ms": now_ms}).encode())
        except OSError as exc:
            raise StoreError(f"{self._file}: {exc.strerror}") from exc

    def _ahead_ms(self, now_ms: int) -> float | None:
        """Return how far the clock is ahead of its earlier readings, None if there are none or they are too old."""
        if self._offset_ms is not None:
            return now_ms - (self._monotonic_ms() + self._offset_ms)
        saved_ms = self._saved_ms()
        if saved_ms is not None and now_ms - saved_ms <= TOLERANCE_MS:
            return now_ms - saved_ms
        return None

    def _saved_ms(self) -> int | None:
        try:
            saved = json.loads(self._file.read_bytes())["checked_ms"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return saved if isinstance(saved, int) else None


def _days(ms: float) -> str:
    return f"{ms / TOLERANCE_MS:.1f} days"
