"""One pass over the rows of closed hours, in order of their keys: where it is can be written down, and gone on from.

It reads what the pass is about and jumps over the rest: of each metric (of each salt) the hours between two times.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import trio

from tsd.codec.rowkey import Layout, after, base_bytes, salts
from tsd.compaction.step import REST_MS, RowCompactor
from tsd.errors import StoreError
from tsd.store import Page, Row, Store
from tsd.store.pauses import pauses

T = TypeVar("T")

PAGE_CELLS = 4000  # read and compacted together: a daemon that owns the store serves its agents between
FIRST_ROWS, LEAST_ROWS, MOST_ROWS = 16, 4, 512  # of a page: as many as had so many cells before
FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIES = 0.5, 30.0, 8  # for a store in trouble: a minute or so


class Stretch(NamedTuple):
    """What a pass is about: rows of hours that begin between two times."""

    since_s: int
    until_s: int  # not included
    metrics: tuple[bytes, ...] = ()  # UIDs, in order; all where none is named


class Sweep:
    """Walks a table and has its rows compacted."""

    def __init__(
        self,
        store: Store,
        table: str,
        layout: Layout,
        compactor: RowCompactor,
        now_ms: Callable[[], int],
        *,
        rate: float | None = None,
        rest: float = 0.0,
        on_trouble: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        """`rate` is rows a second at most. After each part the store is left alone for `rest` times as long as that
        took. `now_ms` is the wall clock; `on_trouble` is told when the store fails and is asked again."""
        self._store = store
        self._table = table
        self._layout = layout
        self._compactor = compactor
        self._now_ms = now_ms
        self._rate = rate
        self._rest = rest
        self._on_trouble = on_trouble

    async def run(self, stretch: Stretch, position: bytes = b"") -> AsyncIterator[tuple[int, bytes]]:
        """Compact the rows from `position` on; for each part that is done, how many rows it had and where the rest
        begins. Raises StoreError where the store fails again and again."""
        due = trio.current_time()
        most = MOST_ROWS if self._rate is None else max(min(int(self._rate), MOST_ROWS), 1)
        limit = min(FIRST_ROWS, most)
        async with aclosing(self._prefixes(stretch, position)) as prefixes:
            async for prefix in prefixes:
                at: bytes | None = max(prefix + base_bytes(stretch.since_s), position)
                stop = prefix + base_bytes(stretch.until_s)
                while at is not None and at < stop:
                    begun = trio.current_time()
                    page, read_ms = await self._page(at, stop, limit)
                    if cells := sum(len(row.cells) for row in page.rows):
                        limit = min(max(PAGE_CELLS * len(page.rows) // cells, LEAST_ROWS), most)
                    await self._compact(page.rows, read_ms)
                    rest_s = (trio.current_time() - begun) * self._rest
                    at = page.next_start
                    yield len(page.rows), at or stop
                    await trio.sleep(rest_s)
                    if self._rate is not None:
                        due = max(due, trio.current_time() - 1) + len(page.rows) / self._rate
                        await trio.sleep_until(due)

    async def _prefixes(self, stretch: Stretch, position: bytes) -> AsyncGenerator[bytes, None]:
        """What the rows of each metric and salt start with, in order, from `position` on."""
        end = self._layout.metric_end
        if stretch.metrics:
            for salt in salts(self._layout):
                for metric in stretch.metrics:
                    if salt + metric >= position[:end]:
                        yield salt + metric
            return
        at: bytes | None = position[:end]
        while at is not None:
            page, _ = await self._page(at, None, 1)
            if not page.rows:
                return
            key = page.rows[0].key
            if len(key) < end:  # none of ours
                at = key + b"\0"
                continue
            yield key[:end]
            at = after(key[:end])

    async def _page(self, start: bytes, stop: bytes | None, limit: int) -> tuple[Page, int]:
        """A page, and when reading it began."""
        read_ms = self._now_ms()
        return await self._patiently(lambda: self._store.page(self._table, start, stop, limit=limit)), read_ms

    async def _compact(self, rows: Collection[Row], read_ms: int) -> None:
        """Compact rows; those that were written to a moment ago, a moment later."""
        # What was read stays good, however often it is put and deleted.
        young = await self._patiently(lambda: self._compactor.compact(list(rows), read_ms=read_ms))
        if young:
            await trio.sleep(REST_MS / 1000)
            self._compactor.tally.young += len(await self._patiently(lambda: self._compactor.compact_keys(young)))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` answers, asked again for a while where the store fails."""
        for pause in pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIES):
            try:
                return await ask()
            except StoreError as error:
                self._on_trouble(error)
            await trio.sleep(pause)
        return await ask()
