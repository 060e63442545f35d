"""Folding of a daemon: it moves the cells of hours of some age to the store's blocks, a metric and hour at a time.

`HourFolding` searches the table for metrics with cells in the hours that have reached this age. A start searches some
hours before these, too, which an earlier run may have left; `tsd compact` folds older ones. Late points in older hours
are recorded when they are written, and so are all if hours are folded at once.
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

RECOVERED_H = 26  # hours of the age for blocks that a start searches


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
    age_s: int = 0  # of hours, from their end; 0: each is folded when its rows are compacted


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
        self._searched_s: int | None = None  # hours before this one were searched

    def record(self, puts: Sequence[Put], now_s: int, delay_s: int) -> None:
        """Record cells that were written. An hour is due `delay_s` after its end; one that is too young is left to the
        search."""
        young_s = self._young_s(now_s, delay_s)
        for prefix in {put.row[: self._width] for put in puts}:
            if young_s is None or int.from_bytes(prefix[-BASE_BYTES:], "big") < young_s:
                self._add(prefix, now_s, delay_s)

    def _young_s(self, now_s: int, delay_s: int) -> int | None:
        """Return the base time of the oldest hour that is too young; None if hours have no least age."""
        if not self._rules.age_s:
            return None
        return max((now_s - self._rules.age_s - delay_s) // HOUR_S * HOUR_S, 0)

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
        """Record the hours with cells outside of blocks that an earlier run may have left. Raise StoreError."""
        young_s = self._young_s(now_s, delay_s)
        until_s = now_s if young_s is None else young_s
        await self._search(max(until_s - RECOVERED_H * HOUR_S, 0) // HOUR_S * HOUR_S, young_s, now_s, delay_s)

    async def _search(self, since_s: int, young_s: int | None, now_s: int, delay_s: int) -> None:
        """Record the hours from `since_s` to before `young_s` that have cells outside of blocks. Raise StoreError.

        The next metric is expected to have the next UID: a search from its first hour on would pass all rows that were
        deleted there, since they are in blocks."""
        since = base_bytes(since_s)
        metric_end = self._width - BASE_BYTES
        following: bytes | None = bytes(metric_end - 1) + b"\1" + since
        while following is not None:
            begun = trio.current_time()
            row = await self._blocks.next_unfolded(self._table, following, None)
            await trio.sleep(trio.current_time() - begun)
            if row is None:
                break
            metric, base = row[:metric_end], row[metric_end : self._width]
            if len(row) < self._width:  # not a row of points
                following = row + b"\0"
            elif base < since:
                following = metric + since
            elif young_s is not None and base >= base_bytes(young_s):
                end = prefix_end(metric)
                following = None if end is None else end.ljust(metric_end, b"\0") + since
            else:
                self._add(metric + base, now_s, delay_s)
                following = prefix_end(metric + base)
        self._searched_s = young_s

    def is_due(self, now_s: int, delay_s: int, compacting_s: int | None) -> bool:
        """Return whether an hour can be folded, or hours have reached the age for that. Hours from `compacting_s` on
        have rows that wait for compaction: they are folded `FoldRules.late_s` later."""
        return self._must_search(now_s, delay_s) or self._has_due(now_s, compacting_s)

    def _must_search(self, now_s: int, delay_s: int) -> bool:
        young_s = self._young_s(now_s, delay_s)
        return young_s is not None and young_s != self._searched_s

    def _has_due(self, now_s: int, compacting_s: int | None) -> bool:
        if not self._queue:
            return False
        due_s, base = self._queue[0]
        waits = compacting_s is not None and int.from_bytes(base, "big") >= compacting_s
        return due_s + (self._rules.late_s if waits else 0) <= now_s

    async def step(self, now_s: int, delay_s: int) -> None:
        """Search hours that have reached the age, or fold the rows of one metric in the hour that is due first, if
        `is_due` returns True. Raise StoreError: the step may be repeated."""
        if self._must_search(now_s, delay_s):
            young_s = self._young_s(now_s, delay_s)
            if self._searched_s is None or young_s is None or young_s < self._searched_s:
                await self.recover(now_s, delay_s)  # also for a clock that was ahead when the daemon started
            else:
                await self._search(self._searched_s, young_s, now_s, delay_s)
            return
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

    async def fold_old(self, prefix: bytes, now_s: int) -> None:
        """Fold the rows of one metric and hour unless it is too young. Log a damaged block. Raise StoreError."""
        young_s = self._young_s(now_s, 0)
        if young_s is None or int.from_bytes(prefix[-BASE_BYTES:], "big") < young_s:
            await self.fold(prefix)

    async def fold(self, prefix: bytes) -> None:
        """Fold the rows of one metric and hour. Log a damaged block. Raise StoreError."""
        try:
            folded = await self._blocks.fold(self._table, prefix, least_rows=self._rules.least_rows)
        except DamagedBlock as exc:
            self.stats.damaged += 1
            base_s = int.from_bytes(exc.prefix[-BASE_BYTES:], "big")
            metric, next_step = self._metric(prefix), "tsd fsck"
            log.error("compaction.block_damaged", error=str(exc), metric=metric, hour=base_s, next_step=next_step)
        else:
            self.stats.cells += folded.cells
            self.stats.points += folded.points

    def _metric(self, prefix: bytes) -> str:
        """Return the UID of a prefix's metric."""
        return prefix[self._salt : -BASE_BYTES].hex()
