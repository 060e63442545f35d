"""Limits on new names and series, in total and by the origin of the lines.

Points of known series, and of series whose names all have ids, are never refused.
"""

import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import trio

from tsd.codec.names import Kind
from tsd.errors import NEW_NAMES, TOO_MANY_SERIES, BadLine
from tsd.ingest.series import SeriesTable
from tsd.tables.writing import SeriesText


class TokenBucket:
    """A token bucket: `rate` tokens a second, at most `burst` of them. Times are seconds of a monotonic clock.

    >>> bucket = TokenBucket(10, 20, now_s=0)
    >>> bucket.spend(50, now_s=0)
    >>> bucket.debt_s(now_s=1)
    2.0
    >>> bucket.take(now_s=1), bucket.take(now_s=4)
    (False, True)
    """

    __slots__ = ("_burst", "_filled_s", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, *, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled_s = now_s

    def _fill(self, now_s: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s

    def spend(self, count: float, *, now_s: float) -> None:
        """Take tokens, even more than there are: the work they pay for is already done."""
        self._fill(now_s)
        self._tokens -= count

    def debt_s(self, *, now_s: float) -> float:
        """Return the time until the number of tokens is no longer negative, in seconds."""
        self._fill(now_s)
        return max(0.0, -self._tokens / self._rate)

    def whole(self, *, now_s: float) -> int:
        """Return the number of whole tokens."""
        self._fill(now_s)
        return max(0, int(self._tokens))

    def is_full(self, *, now_s: float) -> bool:
        """Return whether the bucket is full."""
        self._fill(now_s)
        return self._tokens == self._burst

    def has(self, *, now_s: float) -> bool:
        """Return whether there is a whole token."""
        return self.whole(now_s=now_s) > 0

    def take(self, *, now_s: float) -> bool:
        """Take one token if there is one. Return whether it was taken."""
        if not self.has(now_s=now_s):
            return False
        self._tokens -= 1
        return True


class RefusedLine(NamedTuple):
    """A refused line without its LF. Of a line that was not read to its end, `line` is the start."""

    line: bytes
    error: BadLine
    as_sent: bool = False  # in the port's charset and dialect; otherwise already translated


class Origin(Protocol):
    """Source of lines: a connection, a request or a command."""

    @property
    def name(self) -> str:
        """Address and port."""

    @property
    def account(self) -> str:
        """The authenticated account, or empty."""

    @property
    def refused(self) -> "list[RefusedLine] | None":
        """The list that gets the refused lines of this origin. None: the log of refused lines."""

    def check_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Return an error if this origin may not add a new name now, otherwise None."""

    def count_name(self, kind: Kind, name: bytes) -> None:
        """Count a new name."""

    def count_series(self, count: int) -> None:
        """Count new series."""

    def count_lines(self, accepted: int, refused: Sequence[RefusedLine]) -> None:
        """Count lines."""


MINUTE_S = 60


def too_many_names(kind: Kind, name: bytes, per_minute: int, key: str) -> BadLine:
    """Return the error of a line whose new name exceeds the limit of the setting `key`."""
    return BadLine(
        NEW_NAMES,
        f"too many new names: '{name.decode('latin-1')}' of '{kind.value}' is new, and {key} allows {per_minute} a "
        "minute: stop generating names, or send the line again later",
    )


class NewNameLimit:
    """Limits new names and series of all origins together."""

    def __init__(self, table: SeriesTable, *, max_unresolved: int = sys.maxsize) -> None:
        """`max_unresolved` limits the series that are inserted while the store does not answer. Other limits are set by
        `set_limits`."""
        self.table = table
        self._max_unresolved = max_unresolved
        self._max_series = 0
        self._per_minute = 0
        self._bucket: TokenBucket | None = None
        self.new_names = 0
        self.new_series = 0

    def set_limits(self, *, max_series: int, names_per_minute: int) -> None:
        """Change the limits; 0: none."""
        self._max_series, self._per_minute, self._bucket = max_series, names_per_minute, None

    def check_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Return an error if no new name is admitted now, otherwise None."""
        if not self._per_minute:
            return None
        now_s = trio.current_time()
        if self._bucket is None:
            self._bucket = TokenBucket(self._per_minute / MINUTE_S, self._per_minute, now_s=now_s)
        if self._bucket.has(now_s=now_s):
            return None
        return too_many_names(kind, name, self._per_minute, "tsd.uid.new_per_minute")

    def count_name(self) -> None:
        """Count a new name."""
        self.new_names += 1
        if self._bucket is not None:
            self._bucket.take(now_s=trio.current_time())

    @property
    def room(self) -> int:
        """How many series may be inserted."""
        return max(self._max_series - self.table.linked, 0) if self._max_series else sys.maxsize

    @property
    def admits_unresolved(self) -> bool:
        """Whether a series may be inserted without a key."""
        return len(self.table.unresolved) < self._max_unresolved

    def over_limit(self, series: Collection[SeriesText]) -> dict[SeriesText, BadLine]:
        """Return errors for the well-formed unknown series that exceed the limit."""
        if not self._max_series or len(series) <= self.room:
            return {}
        new = [text for text in series if text not in self.table]
        return {text: self._too_many(text) for text in new[self.room :]}

    def _too_many(self, text: SeriesText) -> BadLine:
        return BadLine(
            TOO_MANY_SERIES,
            f"too many series: {text.metric.decode('latin-1')} {text.tags.decode('latin-1')} is new, and "
            f"tsd.ingest.max_series allows {self._max_series}: stop generating series, or raise the limit",
        )


class OriginAdmission:
    """Admits new names and series of one block, and counts them for its origin: an `Admission`."""

    def __init__(self, limit: NewNameLimit, origin: Origin | None) -> None:
        self._limit = limit
        self._origin = origin

    def admit_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Count a name that is about to get an id. Return an error instead if it is refused."""
        error = self._origin and self._origin.check_name(kind, name)
        error = error or self._limit.check_name(kind, name)
        if error is None:
            self._limit.count_name()
            if self._origin is not None:
                self._origin.count_name(kind, name)
        return error

    @property
    def room(self) -> int:
        """How many series may be inserted."""
        return self._limit.room

    @property
    def admits_unresolved(self) -> bool:
        """Whether a series may be inserted without a key."""
        return self._limit.admits_unresolved

    def over_limit(self, series: Collection[SeriesText]) -> dict[SeriesText, BadLine]:
        """Return errors for the unknown series that exceed the limit."""
        return self._limit.over_limit(series)

    def count_series(self, count: int) -> None:
        """Count inserted series."""
        self._limit.new_series += count
        if count and self._origin is not None:
            self._origin.count_series(count)
