"""Scans of cells, as parallel lists: a table's partitions are listed once a scan, and several are read at once.

A page ends where a partition has more cells than one answer, or when it has enough of them. Answers of later
partitions, which were read meanwhile, are kept for the next page.

The first partitions of a scan are cached by the scan's start. The next scan from there reads them while it lists them
again, and waits for one round trip instead of two: partitions are never removed from their list.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import trio
from cachetools import FIFOCache

from tsd.store.cassandra.cells import take_cells
from tsd.store.cassandra.directory import Directory
from tsd.store.cassandra.keys import Shape, bounds
from tsd.store.cassandra.ranges import read_range
from tsd.store.cassandra.schema import Statements
from tsd.store.cassandra.session import Parameters
from tsd.store.cassandra.wire import RawRows
from tsd.store.cells import CellPage, Cursor
from tsd.store.retry import run_bounded
from tsd.store.timing import Latency, timed

FIRST_CELLS = 1000  # of a scan's first answers, when the size of cells is not known
LEAST_CELLS, MOST_CELLS = 8, 4000  # of later ones; more would occupy the event loop too long
PAGE_CELLS = 1000  # a page with this many cells reads no further partition
FIRST_AHEAD, MOST_AHEAD = 4, 8  # partitions that are read at once
KEPT_BEGINS = 2000  # scans whose first partitions are cached


class _Answer(NamedTuple):
    """The first cells of a partition."""

    raw: RawRows
    limit: int  # most cells that were asked for


class _Scan:
    """What a scan keeps between two pages."""

    def __init__(self, partitions: AsyncGenerator[bytes, None]) -> None:
        self.next_start: bytes | None = None
        self.partitions = partitions  # those that are not in `waiting` yet
        self.waiting: deque[bytes] = deque()  # the next ones to read
        self.answers: dict[bytes, _Answer] = {}  # of partitions that wait
        self.ahead = FIRST_AHEAD
        self._cell_bytes = 0  # of an average cell; 0: not known

    async def look_ahead(self, count: int) -> list[bytes]:
        """Return the next partitions, up to `count`."""
        while len(self.waiting) < count:
            partition = await anext(self.partitions, None)
            if partition is None:
                break
            self.waiting.append(partition)
        return [*self.waiting][:count]

    def cells(self, limit_bytes: int) -> int:
        """Return how many cells have about `limit_bytes`."""
        if not self._cell_bytes:
            return FIRST_CELLS
        return max(LEAST_CELLS, min(limit_bytes // self._cell_bytes, MOST_CELLS))

    def learn(self, raw: RawRows) -> None:
        """Learn the size of cells from an answer."""
        if raw.rows:
            self._cell_bytes = max(len(raw.body) // raw.rows, 1)


class CassandraScans:
    """CellReader of the engine."""

    def __init__(
        self,
        table: Callable[[str], Awaitable[tuple[Shape, Statements]]],
        directory: Directory,
        ask: Callable[[str, Parameters], Awaitable[RawRows]],
        latencies: Mapping[str, Latency],
    ) -> None:
        """`table` returns what a table is. `ask` executes a statement that may be repeated."""
        self._table = table
        self._directory = directory
        self._ask = ask
        self.latencies = latencies
        self._scans: WeakKeyDictionary[Cursor, _Scan] = WeakKeyDictionary()
        self._begins: FIFOCache[tuple[str, bytes], list[bytes]] = FIFOCache(KEPT_BEGINS)  # by table and start

    @timed
    async def read_cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """See CellReader."""
        shape, cql = await self._table(table)
        page = CellPage([], [], [], 0, [], None)
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return page
        scan = self._scans.pop(cursor, None)
        if scan is not None and scan.next_start != start:
            await scan.partitions.aclose()
            scan = None
        is_new = scan is None
        scan = scan or _Scan(self._directory.partitions(shape, start, stop))
        try:
            if is_new:
                await self._begin(scan, shape, cql, (start, stop), limit_bytes)
            scan.next_start = await self._fill(page, scan, cql, (start, stop), limit_bytes)
        except BaseException:
            await scan.partitions.aclose()
            raise
        if scan.next_start is not None:
            self._scans[cursor] = scan
        return page._replace(next_start=scan.next_start)

    async def close_cursor(self, table: str, cursor: Cursor) -> None:  # noqa: ARG002 - see CellReader
        """See CellReader."""
        scan = self._scans.pop(cursor, None)
        if scan is not None:
            await scan.partitions.aclose()
        await trio.lowlevel.checkpoint()

    async def _begin(
        self, scan: _Scan, shape: Shape, cql: Statements, span: tuple[bytes, bytes | None], limit_bytes: int
    ) -> None:
        """List the first partitions, and read those that are known meanwhile."""
        start, stop = span
        place = shape.name, shape.partition(start)
        known = [part for part in self._begins.pop(place, ()) if stop is None or part < stop]

        async def look() -> None:
            self._begins[place] = await scan.look_ahead(FIRST_AHEAD)

        async def read() -> None:
            await self._read(scan, cql, known, span, limit_bytes)

        await run_bounded([look, read] if known else [look], lambda call: call(), limit=2)

    async def _fill(
        self, page: CellPage, scan: _Scan, cql: Statements, span: tuple[bytes, bytes | None], limit_bytes: int
    ) -> bytes | None:
        """Add the next rows to a page. Return the first row key that may follow, None at the end."""
        size = 0
        while parts := await scan.look_ahead(scan.ahead):
            await self._read(scan, cql, [part for part in parts if part not in scan.answers], span, limit_bytes)
            for partition in parts:
                answer = scan.answers.pop(partition)
                scan.learn(answer.raw)
                size += take_cells(partition, answer.raw, page)
                if answer.raw.rows >= answer.limit:
                    scan.ahead = 1
                    return await self._end_with_whole_row(page, cql, partition)
                scan.waiting.popleft()
                if size >= limit_bytes or len(page.keys) >= PAGE_CELLS:
                    following = await scan.look_ahead(1)
                    return following[0] if following else None
            scan.ahead = min(2 * scan.ahead, MOST_AHEAD)
        return None

    async def _read(
        self,
        scan: _Scan,
        cql: Statements,
        partitions: list[bytes],
        span: tuple[bytes, bytes | None],
        limit_bytes: int,
    ) -> None:
        """Read the first cells of partitions."""
        cells = scan.cells(limit_bytes)

        async def read(partition: bytes) -> None:
            raw = await read_range(self._ask, cql, partition, bounds(partition, *span), cells)
            scan.answers[partition] = _Answer(raw, cells)

        await run_bounded(partitions, read, limit=MOST_AHEAD)

    async def _end_with_whole_row(self, page: CellPage, cql: Statements, partition: bytes) -> bytes:
        """End a page with a partition that has more cells: the last row may be incomplete, and is read with the next
        page, or now if it is the page's first one. Return the row key to read next."""
        lists = page.keys, page.columns, page.values, page.times_ms
        last = page.keys[-1]
        rest = len(page.keys)
        while rest and page.keys[rest - 1] == last:
            rest -= 1
        for one in lists:
            del one[rest:]
        if rest:
            return last
        take_cells(partition, await self._ask(cql.rows, (partition, [last[len(partition) :]])), page)
        return last + b"\0"
