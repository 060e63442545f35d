"""One pass of compaction over the rows of closed hours, in key order. Its position can be saved to resume later.

The pass reads, for each metric (and salt), the hours between two times, and skips the rest of the table. It leaves out
the hour of a metric from a damaged block on.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import trio

from tsd.codec.opentsdb.rowkey import base_bytes, salts
from tsd.errors import DamagedBlock, StoreError, WrongClock
from tsd.store import Page, Row
from tsd.store.cells import prefix_end
from tsd.store.damage import readable_pages
from tsd.store.retry import backoff
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.opentsdb.compaction.compactor import SETTLE_MS, CompactionStats, ReadStart, RowCompactor
from tsd.tables.opentsdb.data_table import DataTable

T = TypeVar("T")

PAGE_CELLS = 4000  # compacted at a time; a daemon on the same store serves clients between two pages
FIRST_ROWS, MIN_ROWS, MAX_ROWS = 16, 4, 512  # of a page, adapted to the cells of the page before
FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES = 0.5, 30.0, 8  # after a StoreError: about a minute in all


class SweepRange(NamedTuple):
    """What a pass covers: rows whose base times are in a range."""

    since_s: int
    until_s: int  # exclusive
    metrics: tuple[bytes, ...] = ()  # UIDs in order; empty: all metrics


class SweepState(NamedTuple):
    """A pass in progress."""

    range: SweepRange
    position: bytes  # first row that is not done
    stats: CompactionStats


class Sweep:
    """Reads a table and compacts its rows."""

    def __init__(
        self,
        table: DataTable,
        compactor: RowCompactor,
        *,
        rate: float | None = None,
        pause_ratio: float = 0.0,
        on_retry: Callable[[StoreError], None] = lambda _: None,
        on_damage: Callable[[DamagedBlock], None] = lambda _: None,
        fold: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """`rate` limits the rows per second. After each page the pass sleeps for `pause_ratio` times as long as the
        page took. `on_retry` is called with each StoreError that is retried, and `on_damage` with that of each damaged
        block. `fold` is called for each hour of a metric, given by the prefix of its rows, when these are done."""
        self._store, self._table, self._layout = table
        self._compactor = compactor
        self._rate = rate
        self._pause_ratio = pause_ratio
        self._on_retry = on_retry
        self._on_damage = on_damage
        self._fold_hour = fold

    async def run(self, rows: SweepRange, position: bytes = b"") -> AsyncIterator[tuple[int, bytes]]:
        """Compact the rows from `position` on. Yield for each page its number of rows and the position of the next
        page. Raise StoreError if the store fails after all retries."""
        due = trio.current_time()
        most = MAX_ROWS if self._rate is None else max(min(int(self._rate), MAX_ROWS), 1)
        limit = min(FIRST_ROWS, most)
        begun, start = due, self._compactor.start_read()

        async def read(at: bytes, stop: bytes | None) -> Page:
            nonlocal begun, start
            begun = trio.current_time()
            page, start = await self._page(at, stop, limit)
            return page

        async with aclosing(self._prefixes(rows, position)) as prefixes:
            async for prefix in prefixes:
                stop = prefix + base_bytes(rows.until_s)
                first = max(prefix + base_bytes(rows.since_s), position)
                async with aclosing(readable_pages(read, first, stop, self._leave_out)) as pages:
                    async for page in pages:
                        if cells := sum(len(row.cells) for row in page.rows):
                            limit = min(max(PAGE_CELLS * len(page.rows) // cells, MIN_ROWS), most)
                        await self._compact(page.rows, start)
                        await self._fold(page)
                        pause_s = (trio.current_time() - begun) * self._pause_ratio
                        yield len(page.rows), page.next_start or stop
                        await trio.sleep(pause_s)
                        if self._rate is not None:
                            due = max(due, trio.current_time() - 1) + len(page.rows) / self._rate
                            await trio.sleep_until(due)

    async def _leave_out(self, error: DamagedBlock) -> bool:
        """Report a damaged block, which stays."""
        self._compactor.stats.corrupt += 1
        self._on_damage(error)
        await trio.lowlevel.checkpoint()
        return False

    async def _prefixes(self, rows: SweepRange, position: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the row key prefix (salt and metric) of each metric from `position` on, in order."""
        end = self._layout.metric_end
        if rows.metrics:
            for salt in salts(self._layout):
                for metric in rows.metrics:
                    if salt + metric >= position[:end]:
                        yield salt + metric
            return
        at: bytes | None = position[:end]
        while at is not None:
            key = await self._first_key(at)
            if key is None:
                return
            if len(key) < end:  # not a row of points
                at = key + b"\0"
                continue
            yield key[:end]
            at = prefix_end(key[:end])

    async def _first_key(self, at: bytes) -> bytes | None:
        """Return the first row from `at` on, or the prefix of a damaged block before it; None if there is neither."""
        found: list[bytes] = []

        async def read(at: bytes, stop: bytes | None) -> Page:
            return (await self._page(at, stop, 1))[0]

        async def note(error: DamagedBlock) -> bool:
            found.append(error.prefix)
            await trio.lowlevel.checkpoint()
            return False

        async with aclosing(readable_pages(read, at, None, note)) as pages:
            async for page in pages:
                found += [row.key for row in page.rows]
                if found:
                    break
        return found[0] if found else None

    async def _page(self, start: bytes, stop: bytes | None, limit: int) -> tuple[Page, ReadStart]:
        """Return a page, and the time when reading it started."""
        begun = self._compactor.start_read()
        return await self._retried(lambda: self._store.page(self._table, start, stop, limit=limit)), begun

    async def _compact(self, rows: Collection[Row], start: ReadStart) -> None:
        """Compact rows; retry once the rows that are being written to."""
        # The rows as read stay valid for any number of retries of the puts and deletes.
        recent = await self._retried(lambda: self._compactor.compact(list(rows), start))
        if recent:
            await trio.sleep(SETTLE_MS / 1000)
            self._compactor.stats.busy += len(await self._retried(lambda: self._compactor.compact_keys(recent)))

    async def _fold(self, page: Page) -> None:
        """Fold the hours of metrics that end in a page."""
        if self._fold_hour is None:
            return
        width = self._layout.pairs_start
        left = page.next_start[:width] if page.next_start is not None else b""
        for prefix in sorted({row.key[:width] for row in page.rows} - {left}):
            await self._retried(partial(self._fold_hour, prefix))

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `call`, retried with backoff on StoreError."""
        for wait_s in backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES):
            try:
                return await call()
            except (WrongClock, DamagedBlock):
                raise
            except StoreError as error:
                self._on_retry(error)
            await trio.sleep(wait_s)
        return await call()


def save_state(file: Checkpoint, state: SweepState) -> None:
    """Save a pass in progress. Raise TsdError."""
    since_s, until_s, metrics = state.range
    file.save(
        {
            "range": [since_s, until_s, [metric.hex() for metric in metrics]],
            "position": state.position.hex(),
            "stats": vars(state.stats),  # asdict would convert the Counter
        }
    )


def load_state(file: Checkpoint) -> SweepState | None:
    """Return the pass to resume, None if there is none. Raise TsdError."""
    try:
        saved = file.load()
        return None if saved is None else _decode(saved)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _decode(saved: dict[str, Any]) -> SweepState:
    since_s, until_s, metrics = saved["range"]
    counts = dict(saved["stats"])
    errors = Counter(dict(counts.pop("errors")))
    for number in (since_s, until_s, *counts.values(), *errors.values()):
        if not isinstance(number, int):
            raise TypeError(f"got {number!r}, wanted an integer")
    rows = SweepRange(since_s, until_s, tuple(map(bytes.fromhex, metrics)))
    return SweepState(rows, bytes.fromhex(saved["position"]), CompactionStats(**counts, errors=errors))
