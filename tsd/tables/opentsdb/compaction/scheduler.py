"""Background compaction of a daemon: rows that it wrote as several cells become one cell during the next hour.

OpenTSDB's settings define the rate: each interval, a share of the queued rows. Where steps make requests, a round takes
the rows of several intervals: large requests cost less, and processes that were idle work with cold caches. Rows that
get late points while their hour is compacted wait for more of them there. A round's steps are spread over its time. No
step runs while the writer is behind, and after each step the scheduler sleeps as long as the step took: it uses at most
half of the store's capacity. Daemons start an hour's compaction at different times.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from tsd.codec.putline import HOUR_S
from tsd.errors import CorruptRow, StoreError
from tsd.lazy import LazyLogger
from tsd.store import Put
from tsd.store.retry import backoff
from tsd.store.scheduling import next_time
from tsd.tables.opentsdb.compaction.compactor import CompactionStats, RowCompactor
from tsd.tables.opentsdb.compaction.hour_folding import FoldStats, HourFolding
from tsd.tables.opentsdb.compaction.queue import RowQueue

log = LazyLogger(__name__)

LEAST_ROWS, MOST_ROWS = 32, 128  # of one step: a wake-up of the event loop costs as much as ten rows of two cells
REQUEST_ROWS = 500  # of a step that makes requests, at most; a round takes rows of several intervals to have as many
MOST_INTERVALS = 30  # of a round
RUN_ROWS = 64  # taken from a bucket of the queue together, if the engine joins the requests of neighbours
STEP_CELLS = 2048  # of one step, if it has more than the least rows
REQUEST_CELLS = 1 << 14  # the same where a step makes requests, each of which costs as much as hundreds of cells
SAFE_S = 300  # after the end of an hour, for late points
JITTER_S = 300  # largest additional random delay of this daemon
REST_S = 60.0  # at most, while nothing is due: to wake an idle daemon takes milliseconds of CPU
POSTPONED_S = HOUR_S  # later than others rows with late points are compacted, once for all of them
RECENT_S = 300  # delay before rows that are being written to are tried again
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 60.0  # after a StoreError


class CompactionRate(NamedTuple):
    """Number of rows to compact, by OpenTSDB's settings (`tsd.storage.compaction.…`)."""

    flush_interval_s: int
    min_flush_threshold: int
    most_rows: int
    flush_speed: int

    def rows(self, waiting: int) -> int:
        """Return the rows of one round for a number of queued rows.

        >>> [CompactionRate(10, 100, 10000, 2).rows(waiting) for waiting in (100, 101, 180_000, 9_000_000)]
        [0, 100, 1000, 10000]
        """
        if waiting <= self.min_flush_threshold:
            return 0
        share = waiting * self.flush_interval_s * self.flush_speed // 3600
        return min(max(share, self.min_flush_threshold, 1), self.most_rows)


class SchedulerStats(NamedTuple):
    """Counters since the start, and the state of the queue."""

    compaction: CompactionStats
    queued: int  # rows
    dropped: int  # rows dropped because the queue was full
    oldest_s: int  # age of the oldest hour with a queued row, from its end; 0: no rows
    folding: FoldStats | None  # None: no hour is folded into blocks


class CompactionScheduler:
    """Queue and compactor of one daemon."""

    def __init__(
        self,
        queue: RowQueue,
        compactor: RowCompactor,
        rate: CompactionRate,
        is_writer_behind: Callable[[], bool],
        now_s: Callable[[], int],
        folding: HourFolding | None = None,
        *,
        late: RowQueue | None = None,
        recent_s: float = RECENT_S,
    ) -> None:
        """No row is compacted while `is_writer_behind` returns True; `now_s` is the wall clock. `folding` folds hours
        whose rows are compacted. `late` queues rows that get late points, see `POSTPONED_S`; None: they are not apart.
        Rows that are being written to are tried again after `recent_s`."""
        self._folding = folding
        self._queue = queue
        self._late = late
        self._compactor = compactor
        self._rate = rate
        self._is_writer_behind = is_writer_behind
        self._now_s = now_s
        self._recent_s = recent_s
        self._delay_s = SAFE_S + random.randrange(JITTER_S)  # noqa: S311 - jitter, not a secret
        self._backoff = backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, 10)
        self._due = trio.Event()  # rows or hours are due while `run` rests
        self._recent: deque[tuple[float, list[bytes]]] = deque()  # rows to queue again, and when
        self._step_rows = LEAST_ROWS  # of the next step

    def record(self, puts: Sequence[Put], *, whole: bool = False) -> None:
        """Record cells that were written. `whole`: see `RowQueue.record`."""
        self._queue.record(self._record_late(self._late, puts) if self._late else puts, whole=whole)
        if self._folding is not None:
            self._folding.record(puts, self._now_s(), self._delay_s)
        if self._is_due():
            self._due.set()

    def _record_late(self, late: RowQueue, puts: Sequence[Put]) -> Sequence[Put]:
        """Record cells of rows whose hour is being compacted. Return the other cells. These are all cells if the first
        and the last one are of other hours, or if they may not fit: rows beyond the limit are compacted at once."""
        last_s = self._now_s() - self._delay_s - HOUR_S

        def is_late(put: Put) -> bool:
            return last_s - POSTPONED_S < late.base_s(put.row) <= last_s

        if not puts or len(puts) > late.room or not (is_late(puts[0]) or is_late(puts[-1])):
            return puts
        late.record([put for put in puts if is_late(put)])
        return [put for put in puts if not is_late(put)]

    @property
    def _waiting(self) -> int:
        """Rows that need compaction."""
        return self._queue.waiting + (self._late.waiting if self._late else 0)

    def _oldest(self) -> tuple[int | None, int | None]:
        """Return the base time of the oldest row in each queue with rows that need compaction."""
        first, late = self._queue, self._late
        return first.oldest if first.waiting else None, late.oldest if late and late.waiting else None

    def _is_due(self) -> bool:
        """Return whether rows may be compacted or an hour folded now."""
        now_s, (oldest_s, late_s) = self._now_s(), self._oldest()
        last_s = now_s - self._delay_s - HOUR_S
        is_old = oldest_s is not None and oldest_s <= last_s
        is_old |= late_s is not None and late_s <= last_s - POSTPONED_S
        if is_old and self._rate.rows(self._waiting):
            return True
        return self._folding is not None and self._folding.is_due(now_s, self._delay_s, oldest_s)

    def statistics(self) -> SchedulerStats:
        """Return counters since the start."""
        oldest = [base_s for base_s in self._oldest() if base_s is not None]
        age_s = max(self._now_s() - min(oldest) - HOUR_S, 0) if oldest else 0
        folding = self._folding.stats if self._folding else None
        return SchedulerStats(self._compactor.stats, self._waiting, self._queue.dropped, age_s, folding)

    async def run(self) -> None:
        """Compact until cancelled."""
        await self._recover()
        while True:
            begun = trio.current_time()
            length_s = await self.round()
            if not self._is_due():
                self._due = trio.Event()
                again = self._recent[0][0] if self._recent else math.inf
                with trio.move_on_at(min(next_time(begun, REST_S), again)):
                    await self._due.wait()
            await trio.sleep_until(next_time(begun, length_s))

    async def round(self) -> float:
        """Do one round. Return the seconds until the next. It takes about as long, longer if the store is slow."""
        while self._recent and self._recent[0][0] <= trio.current_time():
            self._queue.put_back(self._recent.popleft()[1])
        run = RUN_ROWS if self._compactor.joins_requests else 1  # others spread the load over their regions
        ended_s = self._now_s() - self._delay_s
        for _ in self._queue.close(ended_s):  # a million rows take 60 ms
            await trio.lowlevel.checkpoint()
        count = self._rate.rows(self._waiting)
        intervals = self._intervals(count)
        length_s = self._rate.flush_interval_s * intervals
        due = self._take(min(count * intervals, self._rate.most_rows), ended_s, run)
        due.sort()  # neighbours are read and written faster
        start = ready = trio.current_time()
        at = 0
        while at < len(due):
            if at:
                await trio.sleep_until(max(start + length_s * at / len(due), ready))
            if self._is_writer_behind():
                self._queue.put_back(due[at:])
                return self._rate.flush_interval_s
            begun = trio.current_time()
            rows = due[at : at + self._step_rows]
            if not await self._step(rows):
                self._queue.put_back(due[at:])
                return self._rate.flush_interval_s
            at += len(rows)
            ready = 2 * trio.current_time() - begun  # after a pause as long as the step
        await self._fold(start + length_s)
        return length_s if due else self._rate.flush_interval_s

    def _take(self, count: int, ended_s: int, run: int) -> list[bytes]:
        """Remove and return rows whose hours ended by `ended_s`; those with late points POSTPONED_S after that."""
        due = self._queue.take(count, ended_s, run)
        if self._late is None:
            return due
        due = [row for row in due if not self._late.is_waiting(row)]
        return due + self._late.take(count - len(due), ended_s - POSTPONED_S, run)

    def _intervals(self, count: int) -> int:
        """Return how many intervals a round has, of `count` rows each."""
        if not count or not self._compactor.makes_requests:
            return 1
        return min(-(-min(REQUEST_ROWS, self._rate.most_rows) // count), MOST_INTERVALS)

    async def _recover(self) -> None:
        """Find the hours that an earlier run did not fold."""
        if self._folding is None:
            return
        try:
            await self._folding.recover(self._now_s(), self._delay_s)
        except StoreError as exc:
            log.warning("compaction.folding_delayed", error=str(exc))

    async def _fold(self, end: float) -> None:
        """Fold hours that are due, in at most half of the time: one at least, and others until the time `end`."""
        folding, queue = self._folding, self._queue
        while folding and folding.is_due(self._now_s(), self._delay_s, queue.oldest if queue.waiting else None):
            if self._is_writer_behind():
                return
            begun = trio.current_time()
            error: StoreError | None = None
            try:
                await folding.step(self._now_s(), self._delay_s)
            except StoreError as exc:
                error = exc.with_traceback(None)
            if error is not None:
                log.warning("compaction.folding_delayed", error=str(error))
                await trio.sleep(next(self._backoff, LONGEST_BACKOFF_S))
                return
            await trio.sleep(trio.current_time() - begun)
            if trio.current_time() >= end:
                return

    async def _step(self, rows: Sequence[bytes]) -> bool:
        """Compact a few rows. Return False, after a backoff, if the store failed."""
        error: StoreError | None = None
        stats = self._compactor.stats
        rows_before, cells_before = stats.rows, stats.cells_before
        self._step_rows = LEAST_ROWS
        try:
            recent = await self._compactor.compact_keys(rows)
        except StoreError as exc:
            error = exc.with_traceback(None)
        if error is None:
            if recent:  # not queued at once: rows with timestamps in the future would fill each round
                self._recent.append((trio.current_time() + self._recent_s, recent))
            # Elsewhere every cell of a row is deleted by a call of its own: a large step would be long.
            if self._compactor.joins_requests and stats.rows - rows_before == len(rows):
                asks = self._compactor.makes_requests
                most_cells, most_rows = (REQUEST_CELLS, REQUEST_ROWS) if asks else (STEP_CELLS, MOST_ROWS)
                cells = max(stats.cells_before - cells_before, 1)
                self._step_rows = min(max(most_cells * len(rows) // cells, LEAST_ROWS), most_rows)
            self._backoff = backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, 10)
            return True
        log.warning("compaction.delayed", error=str(error), rows=len(rows))
        await trio.sleep(next(self._backoff, LONGEST_BACKOFF_S))
        return False


def log_corrupt_row(error: CorruptRow) -> None:
    """Log a row that is not compacted."""
    log.error("compaction.row_corrupt", error=str(error), next_step="tsd fsck")
