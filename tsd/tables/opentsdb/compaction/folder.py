"""Folding of a daemon: it moves the cells of hours that are over to the store's blocks, a metric and hour at a time.

The folder records the hours that this daemon writes, in memory. Cells of an hour that was over but not folded when the
daemon stopped stay as they are until the daemon writes to the hour again.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from tsd.codec.opentsdb.rowkey import BASE_BYTES, Layout
from tsd.codec.putline import HOUR_S
from tsd.errors import DamagedBlock
from tsd.store import ColumnBlocks, Put

log = structlog.get_logger(__name__)

LATE_S = 600  # after the first late point of an hour, for more of them


@dataclass
class FoldStats:
    """Counters since the start."""

    cells: int = 0  # moved to blocks
    points: int = 0  # of these cells
    dropped: int = 0  # hours of metrics that did not fit into memory
    damaged: int = 0  # hours of metrics with a damaged block


class BlockFolder:
    """Hours of metrics to fold."""

    def __init__(self, blocks: ColumnBlocks, table: str, layout: Layout, limit: int) -> None:
        """At most `limit` hours of metrics wait."""
        self.stats = FoldStats()
        self._blocks = blocks
        self._table = table
        self._width = layout.pairs_start
        self._salt = layout.salt_width
        self._limit = limit
        self._waiting = 0
        self._hours: dict[bytes, set[bytes]] = {}  # prefixes of written rows, by base time
        self._queue: list[tuple[int, bytes]] = []  # heap: when each of these hours is due

    def record(self, puts: Sequence[Put], now_s: int, delay_s: int) -> None:
        """Record cells that were written. An hour is due `delay_s` after its end."""
        width = self._width
        for prefix in {put.row[:width] for put in puts}:
            base = prefix[width - BASE_BYTES :]
            hour = self._hours.get(base)
            if hour is None:
                hour = self._hours[base] = set()
                end_s = int.from_bytes(base, "big") + HOUR_S
                heapq.heappush(self._queue, (max(end_s + delay_s, now_s + LATE_S), base))
            if prefix in hour:
                continue
            if self._waiting >= self._limit:
                self.stats.dropped += 1
                continue
            hour.add(prefix)
            self._waiting += 1

    def is_due(self, now_s: int) -> bool:
        """Return whether an hour can be folded."""
        return bool(self._queue) and self._queue[0][0] <= now_s

    async def step(self) -> None:
        """Fold the rows of one metric in the hour that is due first. Raise StoreError: the step may be repeated."""
        hour = self._hours[self._queue[0][1]]
        if hour:
            prefix = next(iter(hour))
            try:
                folded = await self._blocks.fold(self._table, prefix)
            except DamagedBlock as exc:
                self.stats.damaged += 1
                base_s = int.from_bytes(exc.prefix[-BASE_BYTES:], "big")
                log.error("compaction.block_damaged", error=str(exc), metric=self._metric(prefix), hour=base_s)
            else:
                self.stats.cells += folded.cells
                self.stats.points += folded.points
            hour.discard(prefix)
            self._waiting -= 1
        if not hour:
            del self._hours[heapq.heappop(self._queue)[1]]

    def _metric(self, prefix: bytes) -> str:
        """Return the UID of a prefix's metric."""
        return prefix[self._salt : -BASE_BYTES].hex()
