"""Access of the embedded store's parts to the database: calls are counted, writes are retried and noticed.

rocksdict keeps the interpreter's lock while it writes, so a thread would not help. Writes run on the event loop, in
batches that take about half a millisecond. Each batch is one function without an await, and so one atomic step with
what it reads. Calls that release the lock (syncs, and reads of named cells) run in a thread.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TypeVar

import trio

from tsd.errors import StoreBusy
from tsd.store import OnWrite, Put
from tsd.store.retry import backoff
from tsd.store.rocksdb.database import Batch, Database
from tsd.store.rocksdb.keys import ABSENT, time_of
from tsd.store.rocksdb.reopening import ReopenedDatabase
from tsd.store.rocksdb.row_cache import RowCache
from tsd.store.rocksdb.watches import PrefixWatch, Watches
from tsd.store.rules import whole_rows
from tsd.store.scheduling import IngestLoad, Throttle, with_breaks
from tsd.store.timing import new_latencies, timed

T = TypeVar("T")
row_of = itemgetter(0)
place_of = itemgetter(0, 1)

BATCH_CELLS = 512  # per write; larger batches cost as much per cell
BATCH_BYTES = 256 << 10  # of values in one write
FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES = 0.01, 0.5, 12  # while RocksDB is stalled: 2 to 4 s in all


class DatabaseAccess:
    """Access to a database that is open, for one event loop. Any call may raise StoreError.

    After an I/O error the next write reopens the database, see `ReopenedDatabase`.
    """

    def __init__(
        self, reopen: Callable[[], Database], on_loss: Callable[[str], None], load: IngestLoad, cache: RowCache
    ) -> None:
        self.count: Counter[str] = Counter()  # of calls and of what they did
        self.opened = ReopenedDatabase(reopen, on_loss, self.count)
        self.latencies = new_latencies()
        self.written = 0  # batches since the start
        self.throttle = Throttle(load)
        self.subscribers: dict[str, OnWrite] = {}  # by table
        self.watches = Watches(cache)

    @property
    def database(self) -> Database:
        """The database that is open now."""
        return self.opened.current

    async def enter(self, call: str) -> None:
        """Count a call and do a checkpoint."""
        self.count[call] += 1
        await trio.lowlevel.checkpoint()
        self.throttle.begin_turn()  # a short step needs no second checkpoint

    async def enter_writing(self, call: str) -> None:
        """Count a call that writes, do a checkpoint, and reopen the database if it failed."""
        await self.enter(call)
        if self.opened.is_broken:
            await self.opened.reopen(self._note_all)

    def _note_all(self) -> None:
        """Note that any row may have changed: a failed write may still have been applied."""
        self.watches.note_all()
        for on_write in self.subscribers.values():
            on_write(None)

    async def retried(self, write: Callable[[], T]) -> T:
        """Return the result of `write`, retried while RocksDB is stalled."""
        for wait_s in backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES):
            try:
                return write()
            except StoreBusy:
                self.count["stalls"] += 1
            await trio.sleep(wait_s)
        return write()

    def write(self, batch: Batch, table: str, rows: Iterable[bytes], by: PrefixWatch | None = None) -> None:
        """Write a batch for some rows, unnoticed by the watch `by`. Subscribers are called first: a failed write may
        have been applied."""
        derived = self.database.derived(table)
        if self.watches or derived:
            rows = list(rows)
            self.watches.note(table, rows, by)
        if derived:
            derived.drop(batch, rows)
        if on_write := self.subscribers.get(table):
            on_write(rows)
        with self.opened.writing():
            self.database.write(batch)
        self.written += 1

    async def write_step(
        self,
        call: str,
        table: str,
        change: Callable[[Database, Batch], tuple[list[bytes], T]],
        by: PrefixWatch | None = None,
    ) -> T:
        """Write the batch that `change` fills, for the rows that it returns, in one step with what it reads. Return its
        other result. The watch `by` does not notice the write."""
        await self.enter_writing(call)
        return await self.retried(partial(self._write_step_now, table, change, by))

    def _write_step_now(
        self, table: str, change: Callable[[Database, Batch], tuple[list[bytes], T]], by: PrefixWatch | None
    ) -> T:
        batch = self.database.batch(table)
        rows, result = change(self.database, batch)
        if rows or not batch.is_empty():
            self.write(batch, table, rows, by)
        return result

    @timed
    async def put(self, table: str, cells: Sequence[Put], time_ms: int | None) -> None:
        """See Store."""
        await self._put(table, cells, time_ms, None)

    async def put_unnoticed(self, table: str, cells: Sequence[Put], watch: PrefixWatch) -> None:
        """Write cells as `put` does, unnoticed by a watch of the caller."""
        await self._put(table, cells, None, watch)

    async def _put(self, table: str, cells: Sequence[Put], time_ms: int | None, watch: PrefixWatch | None) -> None:
        await self.enter_writing("put")
        self.database.require(table)
        stamp: int | None = None  # of the previous batch, reused: new ones could run ahead of the clock
        for part in whole_rows(cells, most_cells=BATCH_CELLS, most_bytes=BATCH_BYTES):
            stamp = await self.retried(partial(self._put_now, table, part, time_ms, stamp, watch))
            self.count["cells_put"] += len(part)
            await trio.lowlevel.checkpoint()

    def _put_now(
        self, table: str, cells: Sequence[Put], time_ms: int | None, before: int | None, watch: PrefixWatch | None
    ) -> int:
        """Write a batch and return its timestamp; `before` is the timestamp of the previous batch of the same call."""
        clock = self.database.clock
        stamp = time_ms
        if stamp is None:
            stamp = clock.next() if before is None else clock.now_or_next(before)
        if not clock.is_newest(stamp):
            stored = self.database.read(table, list(map(place_of, cells)))
            cells = [cell for cell, value in zip(cells, stored, strict=True) if time_of(value or ABSENT) <= stamp]
        if time_ms is not None:
            clock.observe(time_ms)
        batch = self.database.batch(table)
        self.database.add_puts(batch, cells, stamp)
        self.write(batch, table, map(row_of, cells), watch)
        return stamp

    async def read_in_steps(self, steps: Callable[[Database], Generator[None, None, T]]) -> T:
        """Run a generator on the database, with other tasks between its steps."""
        await self.enter("read_in_steps")
        return await with_breaks(steps(self.database))

    async def read_in_thread(self, read: Callable[[Database], T]) -> T:
        """Run a function on the database in a thread."""
        await self.enter("read_in_thread")
        database = self.database

        def run() -> T:
            with database.translated():
                return read(database)

        return await trio.to_thread.run_sync(run)

    def read_now(self, call: str, read: Callable[[Database], T]) -> T:
        """Read few rows in one step."""
        self.count[call] += 1
        started = time.monotonic()
        try:
            return read(self.database)
        finally:
            self.latencies[call].record(time.monotonic() - started)

    async def scan(self, call: str, start: Callable[[Database], Iterator[T]]) -> Callable[[], Awaitable[T]]:
        """Start a scan of the database. Return a function that does the next step, at the pace that ingest leaves."""
        await self.enter(call)
        return partial(self.throttle.step, self.steps(start))

    def steps(self, start: Callable[[Database], Iterator[T]]) -> Iterator[T]:
        """Yield the steps of a scan that begins with the first of them. While the ingest load is high that may be late:
        a snapshot of the table from before would lack the rows that have moved to the first blocks."""
        yield from start(self.database)
