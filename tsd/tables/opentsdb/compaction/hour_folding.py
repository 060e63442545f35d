"""Folding of a daemon: it moves the cells of hours that are over to the store's blocks, a metric and hour at a time.

`HourFolding` records in memory the hours that this daemon writes. A start finds those of the last day that an earlier
run left; `tsd compact` folds older ones.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import trio

from tsd.codec.opentsdb.rowkey import BASE_BYTES, KeyLayout, base_bytes
from tsd.codec.putline import HOUR_S
from tsd.errors import DamagedBlock, StoreError
from tsd.lazy import LazyLogger
from tsd.store import ColumnBlocks, Put
from tsd.store.cells import prefix_end

log = LazyLogger(__name__)

RECOVERED_H = 26  # hours before a start in which hours that are not folded are found


@dataclass
class FoldStats:
    """Counters since the start."""

    cells: int = 0  # moved to blocks
    points: int = 0  # of these cells
    dropped: int = 0  # hours of metrics that did not fit into memory
    damaged: int = 0  # hours of metrics with a damaged block


class FoldRules(NamedTuple):
    """What is folded, and when."""

    limit: int  # hours of metrics that wait
    late_s: int  # after a late point of an hour that is over: the time in which more are awaited
    least_rows: int  # fewer rows stay as they are: a reader of one row of a block reads more than that row


class HourFolding:
    """Folds hours of metrics into blocks. Until they are due, it holds the prefixes of their rows."""

    def __init__(self, blocks: ColumnBlocks, table: str, layout: KeyLayout, rules: FoldRules) -> None:
        self.stats = FoldStats()
        self._blocks = blocks
        self._table = table
        self._width = layout.pairs_start
        self._salt = layout.salt_width
        self._rules = rules
        self._waiting = 0
        self._hours: dict[bytes, set[bytes]] = {}  # prefixes of written rows, by base time
        self._queue: list[tuple[int, bytes]] = []  # heap: when each of these hours is due

    def record(self, puts: Sequence[Put], now_s: int, delay_s: int) -> None:
        """Record cells that were written. An hour is due `delay_s` after its end."""
        for prefix in {put.row[: self._width] for put in puts}:
            self._add(prefix, now_s, delay_s)

    def _add(self, prefix: bytes, now_s: int, delay_s: int) -> None:
        base = prefix[-BASE_BYTES:]
        hour = self._hours.get(base)
        if hour is None:
            hour = self._hours[base] = set()
            end_s = int.from_bytes(base, "big") + HOUR_S
            heapq.heappush(self._queue, (max(end_s + delay_s, now_s + self._rules.late_s), base))
        if prefix in hour:
            return
        if self._waiting >= self._rules.limit:
            self.stats.dropped += 1
            return
        hour.add(prefix)
        self._waiting += 1

    async def recover(self, now_s: int, delay_s: int) -> None:
        """Record the hours of the last day that have cells outside of blocks. Raise StoreError."""
        since = base_bytes(max(now_s - RECOVERED_H * HOUR_S, 0) // HOUR_S * HOUR_S)
        metric_end = self._width - BASE_BYTES
        following: bytes | None = b""
        while following is not None:
            begun = trio.current_time()
            row = await self._blocks.next_unfolded(self._table, following, None)
            await trio.sleep(trio.current_time() - begun)
            if row is None:
                return
            metric, base = row[:metric_end], row[metric_end : self._width]
            if len(row) < self._width:  # not a row of points
                following = row + b"\0"
            elif base < since:
                following = metric + since
            else:
                self._add(metric + base, now_s, delay_s)
                following = prefix_end(metric + base)

    def is_due(self, now_s: int, compacting_s: int | None) -> bool:
        """Return whether an hour can be folded. Hours from `compacting_s` on have rows that wait for compaction: they
        are folded `FoldRules.late_s` later."""
        if not self._queue:
            return False
        due_s, base = self._queue[0]
        waits = compacting_s is not None and int.from_bytes(base, "big") >= compacting_s
        return due_s + (self._rules.late_s if waits else 0) <= now_s

    async def step(self) -> None:
        """Fold the rows of one metric in the hour that is due first. Raise StoreError: the step may be repeated."""
        first = self._queue[0]
        hour = self._hours[first[1]]
        if hour:
            prefix = hour.pop()  # first: rows that are written meanwhile are recorded again, and folded later
            self._waiting -= 1
            try:
                await self.fold(prefix)
            except StoreError:
                if prefix not in hour:
                    hour.add(prefix)
                    self._waiting += 1
                raise
        if not hour and self._queue[0] == first:  # not if another hour, which is due before, came meanwhile
            del self._hours[heapq.heappop(self._queue)[1]]

    async def fold(self, prefix: bytes) -> None:
        """Fold the rows of one metric and hour. Log a damaged block. Raise StoreError."""
        try:
            folded = await self._blocks.fold(self._table, prefix, least_rows=self._rules.least_rows)
        except DamagedBlock as exc:
            self.stats.damaged += 1
            base_s = int.from_bytes(exc.prefix[-BASE_BYTES:], "big")
            log.error("compaction.block_damaged", error=str(exc), metric=self._metric(prefix), hour=base_s)
        else:
            self.stats.cells += folded.cells
            self.stats.points += folded.points

    def _metric(self, prefix: bytes) -> str:
        """Return the UID of a prefix's metric."""
        return prefix[self._salt : -BASE_BYTES].hex()
