"""The compactor of a daemon: rows that it wrote in several cells become one cell, spread over the hour that follows.

OpenTSDB's keys say how fast: every interval a share of what waits. A round is done in small steps all over its
interval, none while the writer has trouble or falls behind, and after each the compactor rests as long as the step
took: it never takes more than half of what the store has to give. Daemons differ in when they begin with an hour.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
import trio

from tsd.codec.times import HOUR_S
from tsd.compaction.queue import RowQueue
from tsd.compaction.step import RowCompactor
from tsd.compaction.tally import Tally
from tsd.errors import CorruptRow, StoreError
from tsd.store import Put
from tsd.store.pauses import pauses

log = structlog.get_logger(__name__)

STEP_ROWS = 32  # compacted together
SAFE_S = 300  # after its end an hour's points have come, but for those of agents that were away
JITTER_S = 300  # at most: how much later this daemon begins with an hour than the earliest does
YOUNG_S = 300  # until a row that was written to a moment ago is looked at again
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # after a store that failed


class Pace(NamedTuple):
    """How many rows are compacted, in the words of OpenTSDB's keys (`tsd.storage.compaction.…`)."""

    flush_interval_s: int
    min_flush_threshold: int
    max_concurrent_flushes: int
    flush_speed: int

    def rows(self, waiting: int) -> int:
        """Of one round, while so many wait.

        >>> [Pace(10, 100, 10000, 2).rows(waiting) for waiting in (100, 101, 180_000, 9_000_000)]
        [0, 100, 1000, 10000]
        """
        if waiting <= self.min_flush_threshold:
            return 0
        share = waiting * self.flush_interval_s * self.flush_speed // 3600
        return min(max(share, self.min_flush_threshold, 1), self.max_concurrent_flushes)


class Statistics(NamedTuple):
    """Counters since the start, and what waits."""

    tally: Tally
    queued: int  # rows
    left_out: int  # rows that found the queue full
    oldest_s: int  # since the end of the oldest hour of which a row waits; 0: none does


class PacedCompactor:
    """Queue and compactor of one daemon."""

    def __init__(
        self,
        queue: RowQueue,
        compactor: RowCompactor,
        pace: Pace,
        hindered: Callable[[], bool],
        now_s: Callable[[], int],
    ) -> None:
        """`hindered` says whether the store had better be left alone; `now_s` is the wall clock."""
        self._queue = queue
        self._compactor = compactor
        self._pace = pace
        self._hindered = hindered
        self._now_s = now_s
        self._delay_s = SAFE_S + random.randrange(JITTER_S)  # noqa: S311 - jitter, not a secret
        self._pauses = pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, 10)
        self._young: deque[tuple[float, list[bytes]]] = deque()  # when to look at rows again

    def note(self, puts: Sequence[Put]) -> None:
        """Take note of cells that were written."""
        self._queue.note(puts)

    def statistics(self) -> Statistics:
        """What it did so far."""
        oldest = self._queue.oldest if self._queue.waiting else None
        waits_s = 0 if oldest is None else max(self._now_s() - oldest - HOUR_S, 0)
        return Statistics(self._compactor.tally, self._queue.waiting, self._queue.left_out, waits_s)

    async def run(self) -> None:
        """Compact until cancelled."""
        while True:
            end = trio.current_time() + self._pace.flush_interval_s
            await self.round()
            await trio.sleep_until(end)

    async def round(self) -> None:
        """What one interval has to do; it takes about that long, or longer where the store is slow."""
        while self._young and self._young[0][0] <= trio.current_time():
            self._queue.put_back(self._young.popleft()[1])
        due = self._queue.take(self._pace.rows(self._queue.waiting), self._now_s() - self._delay_s)
        start = trio.current_time()
        for at in range(0, len(due), STEP_ROWS):
            await trio.sleep_until(start + self._pace.flush_interval_s * at / len(due))
            if self._hindered():
                self._queue.put_back(due[at:])
                return
            begun = trio.current_time()
            if not await self._step(due[at : at + STEP_ROWS]):
                self._queue.put_back(due[at:])
                return
            await trio.sleep(trio.current_time() - begun)

    async def _step(self, rows: Sequence[bytes]) -> bool:
        """Compact a few rows; False, after a while, where the store does not do its part."""
        error: StoreError | None = None
        try:
            young = await self._compactor.compact_keys(rows)
        except StoreError as exc:
            error = exc.with_traceback(None)
        if error is None:
            if young:  # not put back at once: those with times in the future would come first for ever
                self._young.append((trio.current_time() + YOUNG_S, young))
            self._pauses = pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, 10)
            return True
        log.warning("rows were not compacted; they will be", error=str(error), rows=len(rows))
        await trio.sleep(next(self._pauses, LONGEST_PAUSE_S))
        return False


def tell(error: CorruptRow) -> None:
    """Say which row is left as it is."""
    log.error("a row cannot be compacted and is left as it is", error=str(error), what_to_do="see tsd fsck")
