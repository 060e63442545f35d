"""HBase through its Thrift gateways, in worker threads: a thread, a connection and an answer for each call.

trio waits for a thread whatever happens to the call that started it, so a connection is never given back in the middle
of an answer; the socket timeout bounds the wait. Cells carry the time of the region server's clock.

A call that may be repeated is repeated here, a few times: on a new connection where the one it used had been dropped
while idle, and after a pause where HBase is busy. check_and_put, create and increment are sent once; only where that
was not possible do they go to another gateway.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar

import trio

from tsd.errors import StoreBusy, StoreDown, StoreError, bare
from tsd.store import Cell, Page, Put, Table
from tsd.store.batches import whole_rows
from tsd.store.cells import CellPage, Cursor
from tsd.store.gateways import Address, Gateways, Lease, NoAnswer
from tsd.store.pauses import pauses
from tsd.store.thrift import NEXT_MS_S, Connection
from tsd.store.timing import none_yet, timed

T = TypeVar("T")
P = ParamSpec("P")

BATCH_CELLS = 1000  # of one mutateRows; 140,000 cells/s, more is not faster
BATCH_BYTES = 1 << 20  # of values: with a framed transport a gateway takes 2 MiB at once
GET_ROWS = 100  # asked for with one call, with all their columns
GET_CELLS = 1000  # the same, where columns are named
CREATE_CELLS = 50  # created over a connection before it is given back
IN_FLIGHT = 4  # parts of one call
CREATES_IN_FLIGHT = 8  # each is one row's, and waits for HBase's log: it syncs for all that wait at once
ONCE = {Connection.check_and_put, Connection.create, Connection.increment}  # what a repetition would do again
FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIES = 0.1, 2.0, 5  # for a busy HBase: 3 to 5 s in all


class HBaseStore:
    """Store on HBase. It can be made while HBase is away: connections are opened by the calls that need them.

    What a delete leaves in HBase hides a later put with a time that is not newer than the delete's, until a major
    compaction removes both.
    """

    def __init__(
        self,
        gateways: Sequence[Address],
        *,
        connections: int = 8,
        timeout_s: float = 15.0,
        transport: str = "buffered",
        protocol: str = "binary",
    ) -> None:
        """`gateways` are (host, port); `connections` is for all of them together. `timeout_s` bounds how long a gateway
        may be silent, `transport` ("buffered", "framed") and `protocol` ("binary", "compact") are as it was started."""
        self._connect = partial(Connection, timeout_s=timeout_s, transport=transport, protocol=protocol)
        self._gateways: Gateways[Connection] = Gateways(gateways, trio.current_time)
        self._connections = connections
        self._slots = trio.Semaphore(connections, max_value=connections)
        self._threads = trio.CapacityLimiter(connections)  # a thread for each slot: nobody waits here
        self._count: Counter[str] = Counter()
        self.took = none_yet()
        self._stamps_rise_at = 0.0  # by the monotonic clock

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """See Store. StoreError if one is there but disabled."""
        there = await self.tables()
        absent = [table for table in tables if table.name not in there]
        made = [table.name for table in absent if await self._ask(Connection.create_table, table, compression)]
        for table in tables:
            await self._wait_for(table.name)
        return made

    async def _wait_for(self, table: str) -> None:
        """Return when a table can be used: while another process makes it, it is there before that."""
        for pause in pauses(0.05, 1.0, 20):
            if await self._ask(Connection.is_enabled, table):
                return
            await trio.sleep(pause)
        raise StoreError(f"table {table} is there, but is not enabled")

    async def drop_tables(self, tables: Iterable[str]) -> None:
        """Delete these tables and all that is in them. Not part of Store: it is for who makes tables for a while."""
        for table in tables:
            await self._ask(Connection.drop_table, table)

    async def tables(self) -> list[str]:
        """See Store."""
        return await self._ask(Connection.tables)

    @timed
    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        if columns is not None and not columns:
            return {}
        size = GET_ROWS if columns is None else max(GET_CELLS // len(columns), 1)
        keys = [row for row in dict.fromkeys(rows) if row]  # HBase refuses to look for an empty one
        parts = (keys[at : at + size] for at in range(0, len(keys), size))
        wanted = None if columns is None else frozenset(columns)
        found = await self._spread(Connection.get, ((table, part, wanted) for part in parts))
        return {row: cells for part in found for row, cells in part.items()}

    @timed
    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store. Rows are written in parallel and in no order."""
        if time_ms is None and (wait_s := self._stamps_rise_at - time.monotonic()) > 0:
            await trio.to_thread.run_sync(threading.Event().wait, wait_s)  # not on trio's clock, which tests stop
        parts = whole_rows(cells, most_cells=BATCH_CELLS, most_bytes=BATCH_BYTES)
        try:
            await self._spread(Connection.put, ((table, part, time_ms) for part in parts))
        finally:
            self._stamps_rise_at = time.monotonic() + NEXT_MS_S
        self._count["cells_put"] += len(cells)

    @timed
    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        rows = iter(columns.items())
        parts = iter(lambda: dict(islice(rows, GET_ROWS)), {})
        await self._spread(Connection.delete, ((table, part, up_to_ms) for part in parts))

    @timed
    async def page(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        columns: Collection[bytes] | None = None,
    ) -> Page:
        """See Store. A scanner is opened, read and closed with each page."""
        if (stop is not None and start >= stop) or (columns is not None and not columns):
            await trio.lowlevel.checkpoint()
            return Page([], None)  # HBase takes an empty range from a row to itself for that row
        wanted = None if columns is None else frozenset(columns)
        return await self._ask(Connection.page, table, start, stop, limit, wanted)

    @timed
    async def cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """See CellReader. One scanner serves all pages, unless something goes wrong with it."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return CellPage([], [], [], 0, [], None)
        return await self._ask_at(cursor.address, Connection.cells, table, start, stop, limit_bytes, cursor)

    async def signatures(
        self, table: str, start: bytes, stop: bytes | None, *, width: int, rows: int
    ) -> dict[bytes, bytes]:
        """See Signs. It is one call: whoever asks bounds how much there is."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return {}
        return await self._ask(Connection.signatures, table, start, stop, width, rows)

    async def let_go(self, table: str, cursor: Cursor) -> None:
        """See CellReader. A scanner that is not closed is one that the region server keeps for a minute."""
        if cursor.scanner is not None:
            with suppress(StoreError):
                await self._ask_at(cursor.address, Connection.close_scan, table, cursor)

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store. False may also mean that it is done: HBase's client in the gateway may have sent it twice."""
        return await self._ask(Connection.check_and_put, table, Put(row, column, value), expected)

    @timed
    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        parts = (cells[at : at + CREATE_CELLS] for at in range(0, len(cells), CREATE_CELLS))
        done = await self._spread(Connection.create, ((table, part) for part in parts), at_once=CREATES_IN_FLIGHT)
        return [new for part in done for new in part]

    @timed
    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        return await self._ask(Connection.increment, table, row, column, by)

    @timed
    async def sync(self) -> None:
        """See Store. There is nothing to wait for: HBase answers a put when its region servers' log has it."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See Store."""
        self._gateways.close()
        await trio.lowlevel.checkpoint()

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        gateways = {"connections_opened": self._gateways.opened, "gateways_down": self._gateways.down}
        return MappingProxyType({**self._count, **gateways})

    async def _spread(
        self, method: Callable[..., T], parts: Iterable[tuple[object, ...]], *, at_once: int = IN_FLIGHT
    ) -> list[T]:
        """What `method` answers for each of `parts`, in their order; a few are asked at once. Raises the first error,
        when the others in flight have ended; no more are begun."""
        answers: dict[int, T] = {}
        errors: list[StoreError] = []
        numbered = enumerate(parts)

        async def work() -> None:
            for number, part in numbered:
                try:
                    answers[number] = await self._ask(method, *part)
                except StoreError as exc:
                    errors.append(exc)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(min(at_once, self._connections)):
                nursery.start_soon(work)
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()  # or the error and this frame would hold each other, and all cells of the call
        return [answers[number] for number in sorted(answers)]

    async def _ask(self, method: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a gateway answers to a call; StoreDown where it is not known whether one that may be sent once only was
        done."""
        return await self._ask_at(None, method, *args, **kwargs)

    async def _ask_at(
        self, near: Address | None, method: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same of the gateway `near`, if that can be asked."""
        self._count[method.__name__] += 1
        once = method in ONCE

        def ask(connection: Connection) -> T:
            return method(connection, *args, **kwargs)

        for pause in pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIES):
            try:
                return await self._send(ask, once=once, near=near)
            except StoreBusy as exc:
                self._count["errors"] += 1
                if once:
                    raise StoreDown(f"whether {method.__name__} was done is not known: {exc}") from bare(exc)
            self._count["retries"] += 1
            await trio.sleep(pause)
        return await self._send(ask, once=once, near=near)

    async def _send(self, ask: Callable[[Connection], T], *, once: bool, near: Address | None) -> T:
        """Send a call to one gateway after the other until it is sent, and once more where a connection was dropped
        while it was idle. A gateway that was silent for too long is slow, not gone: it is not asked twice."""
        fresh = False
        for _ in range(len(self._gateways) + 1):
            try:
                async with self._slots:
                    with self._gateways.lease(fresh=fresh, near=near) as lease:
                        return await trio.to_thread.run_sync(self._hop, lease, ask, limiter=self._threads)
            except NoAnswer as exc:
                self._count["errors"] += 1
                lost = exc.with_traceback(None)  # or it and this frame would hold each other
                if exc.sent and (once or fresh or exc.timed_out or not lease.reused):
                    break
                fresh = fresh or exc.sent
                self._count["retries"] += 1
        raise StoreDown(str(lost)) from lost

    def _hop(self, lease: Lease[Connection], ask: Callable[[Connection], T]) -> T:
        """In a thread: one answer over the leased connection."""
        if lease.connection is None:
            lease.connection = self._connect(lease.address)
        return ask(lease.connection)
