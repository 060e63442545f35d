"""Compares this machine's clock with those of Cassandra's nodes before a write.

Write timestamps come from this machine's clock. A compaction deletes all cells of a row that are older than its newest
one, also those that it has not read (see `CassandraStamped.delete_spans`). A point with a timestamp that is minutes
late would be among them. A compaction whose clock is minutes ahead would take a young row for an old one.

The nodes' clocks are read before the first write and every CHECK_MS from then on. This detects a clock that stood
still, such as that of a paused virtual machine. In between, the time that has passed by the monotonic clock is added to
the last reading. So each write sees at once that the wall clock was set.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import trio

from tsd.errors import StoreDown, StoreError, WrongClock

CHECK_MS = 30_000  # between two readings


class NodeTime(NamedTuple):
    """The time of a node, and the times by the monotonic clock at which it was asked for and arrived."""

    time_ms: int
    asked_ms: float
    answered_ms: float

    @property
    def offset_ms(self) -> float:
        """How far the node's clock is ahead of the monotonic one, to within half of the round trip."""
        return self.time_ms - (self.asked_ms + self.answered_ms) / 2


class ClockCheck:
    """The clocks of a process and of the nodes."""

    def __init__(
        self,
        limit_ms: int,
        clock_ms: Callable[[], int],
        elapsed_ms: Callable[[], float],
        times: Callable[[], Awaitable[Sequence[NodeTime]]],
    ) -> None:
        """`limit_ms` is the largest difference that is allowed; 0: all are, and nothing is read. `clock_ms` is the wall
        clock in Unix milliseconds, `elapsed_ms` the monotonic one. `times` reads the clock of one node or more."""
        self._limit_ms = limit_ms
        self._clock_ms = clock_ms
        self._elapsed_ms = elapsed_ms
        self._times = times
        self._nodes_ms = 0.0  # offset of the nodes' clocks from the monotonic one
        self._read_ms: float | None = None  # when they were read, by the monotonic clock
        self._attempts = 0  # to read them
        self._failure = ""  # of the last attempt
        self._reading = trio.Lock()

    @property
    def ahead_ms(self) -> int | None:
        """How far this machine's clock is ahead of the nodes'. None: they have not been read."""
        return None if self._read_ms is None else round(self._ahead_ms(self._clock_ms(), self._nodes_ms))

    async def checked_ms(self) -> int:
        """Return the wall clock. Raise WrongClock if it differs from the nodes' by more than the limit, StoreError if
        these do not answer."""
        now_ms = self._clock_ms()
        if not self._limit_ms or (self._is_fresh() and not self._differs(now_ms)):
            return now_ms
        attempts = self._attempts
        async with self._reading:
            if self._attempts == attempts:  # no other task has tried meanwhile
                await self._read()
            elif self._failure:  # this task has waited for as long as another attempt would take
                raise StoreDown(self._failure)
        now_ms = self._clock_ms()
        if self._differs(now_ms):
            raise WrongClock(self._difference(now_ms))
        return now_ms

    async def _read(self) -> None:
        """Read the nodes' clocks. Raise StoreError."""
        try:
            self._nodes_ms = self._offset_ms(await self._times())
        except StoreError as exc:
            self._failure = str(exc)
            self._attempts += 1
            raise
        self._read_ms, self._failure = self._elapsed_ms(), ""
        self._attempts += 1

    def _is_fresh(self) -> bool:
        """Return whether the nodes' clocks were read a short time ago."""
        return self._read_ms is not None and self._elapsed_ms() - self._read_ms < CHECK_MS

    def _differs(self, now_ms: int) -> bool:
        return abs(self._ahead_ms(now_ms, self._nodes_ms)) > self._limit_ms

    def _ahead_ms(self, now_ms: int, offset_ms: float) -> float:
        return now_ms - (self._elapsed_ms() + offset_ms)

    def _offset_ms(self, times: Sequence[NodeTime]) -> float:
        """Return the median offset, so that one clock of three may be wrong; of two middle ones the one that differs
        more from this machine's."""
        offsets = sorted(time.offset_ms for time in times)
        middle = {offsets[(len(offsets) - 1) // 2], offsets[len(offsets) // 2]}
        now_ms = self._clock_ms()
        return max(middle, key=lambda offset_ms: abs(self._ahead_ms(now_ms, offset_ms)))

    def _difference(self, now_ms: int) -> str:
        """Return what both clocks say, and what to do."""
        ahead_ms = self._ahead_ms(now_ms, self._nodes_ms)
        return (
            f"this machine's clock says {_text(now_ms)}, those of Cassandra's nodes {_text(now_ms - ahead_ms)}: "
            f"it is {abs(ahead_ms) / 1000:.1f} s {'ahead' if ahead_ms > 0 else 'late'}, and nothing is written while "
            f"that is more than {self._limit_ms / 1000:g} s (tsd.storage.cassandra.clock_limit): synchronise the clocks"
        )


def _text(time_ms: float) -> str:
    """Return a time for a message.

    >>> _text(1_700_000_000_000)
    '2023-11-14 22:13:20 UTC'
    """
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
