"""The embedded engine, the default: RocksDB in a folder, which one process can open at a time.

rocksdict keeps the interpreter's lock while it writes, so a thread would not help. Writes run on the event loop, in
batches that take about half a millisecond. Each batch is one function without an await, which makes check_and_put,
increment and the cells of a row atomic. Calls that release the lock (syncs, and reads of named cells) run in a thread.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice, product
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

import trio

from tsd.errors import StoreBusy
from tsd.store import (
    Capabilities,
    Cell,
    CellPage,
    Cursor,
    OnWrite,
    OptionalParts,
    Page,
    Put,
    Table,
    WatchedRange,
)
from tsd.store.retry import backoff
from tsd.store.rocksdb.column_blocks import EmbeddedBlocks
from tsd.store.rocksdb.database import VERSIONS, Batch, Database, Place
from tsd.store.rocksdb.derived import EmbeddedDerived, drop
from tsd.store.rocksdb.keys import ABSENT, TIME_BYTES, decode_cell, time_of
from tsd.store.rocksdb.options import options
from tsd.store.rocksdb.reopening import ReopenedDatabase
from tsd.store.rocksdb.rewriting import EmbeddedRewrites
from tsd.store.rocksdb.row_cache import LEAST_ROWS, RowCache
from tsd.store.rocksdb.versions import BATCH_CELLS, Changes, EmbeddedVersions, VersionDatabase
from tsd.store.rocksdb.watches import PrefixWatch, Watches
from tsd.store.rocksdb.wide import EmbeddedWideRows
from tsd.store.rules import add, bytes_of, check_row, whole_rows
from tsd.store.scheduling import IngestLoad, Throttle, with_breaks
from tsd.store.timing import new_latencies, timed

T = TypeVar("T")
_row = itemgetter(0)
_place = itemgetter(0, 1)

BATCH_BYTES = 256 << 10  # of values in one write
GET_CELLS = 4000  # named cells read by one call
FEW_CELLS = 16  # that are read in the event loop, as other short reads are: a thread takes several times as long
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it
FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES = 0.01, 0.5, 12  # while RocksDB is stalled: 2 to 4 s in all


class EmbeddedStore(OptionalParts):
    """Store on RocksDB, for one event loop. Open it with `open`.

    After an I/O error the next write reopens the database, see `ReopenedDatabase`.
    """

    capabilities = Capabilities(ascending_timestamps=True, shared=False, filters_rows=False, parallel_scans=1)

    def __init__(
        self, reopen: Callable[[], Database], on_loss: Callable[[str], None], load: IngestLoad, cache: RowCache
    ) -> None:
        self._count: Counter[str] = Counter()
        self._opened = ReopenedDatabase(reopen, on_loss, self._count)
        self.latencies = new_latencies()
        self._written = self._synced = 0  # numbers of batches: all since the start, and those covered by a sync
        self._throttle = Throttle(load)
        self._syncing = trio.Lock()
        self._subscribers: dict[str, OnWrite] = {}
        self._watches = Watches(cache)
        self._folding = trio.Lock()

    @property
    def _database(self) -> Database:
        return self._opened.current

    @property
    def may_lack_writes(self) -> bool:
        """Return whether writes may be missing: the last opening had no record of the last sync to check against."""
        return self._database.may_lack_writes

    @classmethod
    async def open(
        cls,
        path: Path | str,
        clock_ms: Callable[[], int],
        *,
        cache_bytes: int = 256 << 20,
        row_cache_bytes: int = 64 << 20,
        row_cache_least: int = LEAST_ROWS,
        memtable_bytes: int = 16 << 20,
        on_loss: Callable[[str], None] = lambda _: None,
        load: IngestLoad | None = None,
    ) -> "EmbeddedStore":
        """Open the store in the folder `path`, which is created if missing. Raise DaemonRuns if another process has it
        open, and StoreError for other failures. `clock_ms` is the wall clock in Unix milliseconds.

        `cache_bytes` limits the memory of blocks that were read. `row_cache_bytes` limits that of ranges which are read
        often: those of `row_cache_least` rows or more; fewer rows get an eighth of it more. Writes take at most four
        times `memtable_bytes`. If writes were lost, `on_loss` is called and all later writes fail. A high ingest `load`
        slows scans down.
        """
        settings = options(cache_bytes, memtable_bytes)
        reopen = partial(Database, Path(path), clock_ms, settings, cache_bytes=cache_bytes)
        cache = RowCache(row_cache_bytes, row_cache_least)
        return await trio.to_thread.run_sync(cls, reopen, on_loss, load or IngestLoad(), cache)

    @property
    def cell_reader(self) -> "EmbeddedStore":
        """See Store."""
        return self

    @property
    def change_feed(self) -> "EmbeddedStore":
        """See Store."""
        return self

    def subscribe(self, table: str, on_write: OnWrite) -> None:
        """See ChangeFeed."""
        self._subscribers[table] = on_write

    @property
    def range_deletes(self) -> "EmbeddedStore":
        """See Store."""
        return self

    async def delete_range(
        self, table: str, start: bytes, stop: bytes, *,
        changed: Iterable[bytes], keep: Sequence[Put] = (), unless: WatchedRange | None = None,
    ) -> bool:  # fmt: skip
        """See RangeDeletes. `keep` get a new timestamp."""
        await self._enter_writing("delete_range")
        delete = partial(self._delete_range_now, table, start, stop, list(changed), keep, unless)
        return start >= stop or await self._retried(delete)  # RocksDB refuses an empty range, and every later write

    def _delete_range_now(
        self, table: str, start: bytes, stop: bytes, changed: Sequence[bytes], keep: Sequence[Put],
        unless: WatchedRange | None,
    ) -> bool:  # fmt: skip
        if unless is not None and unless.changed:
            return False
        self._watches.note_range(table, start, stop, unless)
        batch = self._database.batch(table)
        self._database.add_range_delete(batch, table, start, stop)
        if keep:
            self._database.add_puts(batch, keep, self._database.clock.next())
        self._write(batch, table, changed)
        return True

    async def reclaim(self, table: str, start: bytes, stop: bytes) -> None:
        """See RangeDeletes."""
        await self._enter("reclaim")
        await trio.to_thread.run_sync(self._database.reclaim, table, start, stop)

    def stored_bytes(self, table: str) -> int:
        """See RangeDeletes."""
        return self._database.stored_bytes(table)

    @property
    def snapshots(self) -> "EmbeddedStore":
        """See Store."""
        return self

    async def snapshot(self, folder: Path) -> None:
        """See Snapshots."""
        await self._enter_writing("snapshot")
        async with self._syncing:
            await trio.to_thread.run_sync(self._database.snapshot, folder)

    @property
    def column_blocks(self) -> EmbeddedBlocks:
        """See Store."""
        return EmbeddedBlocks(self, self._folding, self._watches.cache)

    @property
    def versioned_cells(self) -> EmbeddedVersions:
        """See Store."""
        return EmbeddedVersions(self)

    @property
    def wide_rows(self) -> EmbeddedWideRows:
        """See Store."""
        return EmbeddedWideRows(self)

    @property
    def derived_values(self) -> EmbeddedDerived:
        """See Store."""
        return EmbeddedDerived(self)

    def watching(self, table: str, prefix: bytes) -> AbstractContextManager[PrefixWatch]:
        """Notice writes to rows with a prefix during the block."""
        return self._watches.of_prefix(table, prefix)

    def watching_range(self, table: str, start: bytes, stop: bytes) -> AbstractContextManager[WatchedRange]:
        """See RangeDeletes."""
        return self._watches.of_range(table, start, stop)

    def watching_rows(self, table: str, rows: Collection[bytes]) -> AbstractContextManager[Collection[bytes]]:
        """See EmbeddedRewrites."""
        return self._watches.of_rows(table, rows)

    async def read_in_thread(self, read: Callable[[Database], T]) -> T:
        """See EmbeddedDerived."""
        await self._enter("read_in_thread")
        database = self._database

        def run() -> T:
            with database.translated():
                return read(database)

        return await trio.to_thread.run_sync(run)

    @property
    def atomic_rewrites(self) -> EmbeddedRewrites:
        """See Store."""
        return EmbeddedRewrites(self)

    async def write_step(
        self,
        call: str,
        table: str,
        change: Callable[[Database, Batch], tuple[list[bytes], T]],
        by: PrefixWatch | None = None,
    ) -> T:
        """See EmbeddedRewrites. The watch `by` does not notice the write."""
        await self._enter_writing(call)
        return await self._retried(partial(self._write_step_now, table, change, by))

    def _write_step_now(
        self, table: str, change: Callable[[Database, Batch], tuple[list[bytes], T]], by: PrefixWatch | None
    ) -> T:
        batch = self._database.batch(table)
        rows, result = change(self._database, batch)
        if rows or not batch.is_empty():
            self._write(batch, table, rows, by)
        return result

    def count_puts(self, cells: int) -> None:
        """Count cells that a write step has put."""
        self._count["cells_put"] += cells

    async def read_in_steps(self, steps: Callable[[Database], Generator[None, None, T]]) -> T:
        """Run a generator on the database, with other tasks between its steps. Raise StoreError."""
        await self._enter("read_in_steps")
        return await with_breaks(steps(self._database))

    def read_now(self, call: str, read: Callable[[Database], T]) -> T:
        """See EmbeddedBlocks."""
        self._count[call] += 1
        started = time.monotonic()
        try:
            return read(self._database)
        finally:
            self.latencies[call].record(time.monotonic() - started)

    async def create_versioned(self, tables: Sequence[Table]) -> list[str]:
        """See `Engine` in tsd.store.rocksdb.versions."""
        await self._enter_writing("create_versioned")
        with self._opened.writing():
            return self._database.create_versioned(tables)

    async def write_versions(self, table: str, changes: Callable[[VersionDatabase], Changes]) -> Changes:
        """See `Engine` in tsd.store.rocksdb.versions."""
        await self._enter_writing("write_versions")
        return await self._retried(partial(self._write_versions_now, table, changes))

    def _write_versions_now(self, table: str, changes: Callable[[VersionDatabase], Changes]) -> Changes:
        found = changes(self._database)
        batch = self._database.batch(table + VERSIONS)
        for key in found.deletes:
            batch.delete(key)
        for key, value in found.puts.items():
            batch.put(key, value)
        self._write(batch, table + VERSIONS, ())
        return found

    async def scan(self, call: str, start: Callable[[Database], Iterator[T]]) -> Callable[[], Awaitable[T]]:
        """See EmbeddedBlocks."""
        await self._enter(call)
        return partial(self._throttle.step, start(self._database))

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:  # noqa: ARG002
        """See Store. `compression` is ignored: all tables have the same."""
        await self._enter_writing("create_tables")
        made = [table.name for table in tables if table.name not in self._database.tables()]
        with self._opened.writing():
            for name in made:
                self._database.create(name)
        return made

    async def tables(self) -> list[str]:
        """See Store."""
        await self._enter("tables")
        return self._database.tables()

    @timed
    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        await self._enter("get")
        self._database.require(table)
        if columns is None:
            return await with_breaks(self._database.view(table).get(rows))
        found: dict[bytes, list[Cell]] = {}
        places = product(dict.fromkeys(rows), sorted(set(columns)))
        while part := list(islice(places, GET_CELLS)):
            if len(part) <= FEW_CELLS and self._database.blocks(table) is None:  # a block may take long to unpack
                values = self._database.read(table, part)
            else:
                values = await trio.to_thread.run_sync(self._database.read, table, part)
            for at in [at for at, value in enumerate(values) if value is not None]:  # often all are absent
                (row, column), value = part[at], values[at]
                found.setdefault(row, []).append(decode_cell(column, cast(bytes, value)))
        return found

    @timed
    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        await self._put(table, cells, time_ms)

    async def put_unnoticed(self, table: str, cells: Sequence[Put], watch: PrefixWatch) -> None:
        """Write cells as `put` does, unnoticed by a watch of the caller."""
        await self._put(table, cells, None, watch)

    async def _put(
        self, table: str, cells: Sequence[Put], time_ms: int | None, watch: PrefixWatch | None = None
    ) -> None:
        await self._enter_writing("put")
        self._database.require(table)
        stamp: int | None = None  # of the previous batch, reused: new ones could run ahead of the clock
        for part in whole_rows(cells, most_cells=BATCH_CELLS, most_bytes=BATCH_BYTES):
            stamp = await self._retried(partial(self._put_now, table, part, time_ms, stamp, watch))
            self._count["cells_put"] += len(part)
            await trio.lowlevel.checkpoint()

    def _put_now(
        self, table: str, cells: Sequence[Put], time_ms: int | None, before: int | None, watch: PrefixWatch | None
    ) -> int:
        """Write a batch and return its timestamp; `before` is the timestamp of the previous batch of the same call."""
        clock = self._database.clock
        stamp = time_ms
        if stamp is None:
            stamp = clock.next() if before is None else clock.now_or_next(before)
        if not clock.is_newest(stamp):
            stored = self._database.read(table, list(map(_place, cells)))
            cells = [cell for cell, value in zip(cells, stored, strict=True) if time_of(value or ABSENT) <= stamp]
        if time_ms is not None:
            clock.observe(time_ms)
        batch = self._database.batch(table)
        self._database.add_puts(batch, cells, stamp)
        self._write(batch, table, map(_row, cells), watch)
        return stamp

    @timed
    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        await self._enter_writing("delete")
        self._database.require(table)
        places = ((row, column) for row, names in columns.items() for column in names)
        while part := list(islice(places, BATCH_CELLS)):
            await self._retried(partial(self._delete_now, table, part, up_to_ms))
            await trio.lowlevel.checkpoint()

    def _delete_now(self, table: str, places: list[Place], up_to_ms: int | None) -> None:
        clock = self._database.clock
        bound = clock.now() if up_to_ms is None else up_to_ms
        if not clock.is_newest(bound):
            stored = self._database.read(table, places)
            places = [place for place, value in zip(places, stored, strict=True) if value and time_of(value) <= bound]
        batch = self._database.batch(table)
        self._database.add_deletes(batch, table, places)
        self._write(batch, table, map(_row, places))

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
        """See Store. All rows of a page are from one snapshot."""
        await self._enter("page")
        if stop is not None and start >= stop:
            return Page([], None)
        view = self._database.view(table, stop)
        return await with_breaks(view.page(start, limit, PAGE_BYTES, columns))

    @timed
    async def read_cells(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit_bytes: int,
        cursor: Cursor,
    ) -> CellPage:
        """See CellReader. Each row is from one snapshot. A scan beyond its share of the cache continues on a newer
        one."""
        await self._enter("read_cells")
        if stop is not None and start >= stop:
            return CellPage([], [], [], 0, [], None)
        pages, cursor.pages = cursor.pages if cursor.next_start == start else None, None
        if pages is None:
            pages = self._database.view(table, stop).cells(start, limit_bytes)
        while (page := await self._throttle.step(pages)) is None:
            pass
        cursor.pages, cursor.next_start = pages, page.next_start
        return page

    async def close_cursor(self, table: str, cursor: Cursor) -> None:  # noqa: ARG002
        """See CellReader."""
        cursor.pages = None
        await trio.lowlevel.checkpoint()

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store. Durable on return."""
        await self._enter_writing("check_and_put")
        [done] = await self._retried(partial(self._check_now, table, [Put(row, column, value)], expected or b""))
        await self.sync()
        return done

    @timed
    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        await self._enter_writing("create")
        self._database.require(table)
        done: list[bool] = []
        for at in range(0, len(cells), BATCH_CELLS):
            done += await self._retried(partial(self._check_now, table, cells[at : at + BATCH_CELLS], b""))
            await trio.lowlevel.checkpoint()
        await self.sync()
        return done

    def _check_now(self, table: str, cells: Sequence[Put], expected: bytes) -> list[bool]:
        """Write each cell whose stored value is `expected` (an absent cell is empty). No two cells share a row. Return
        for each whether it was written."""
        stamp = self._database.clock.now()
        batch = self._database.batch(table)
        done, at_stamp = [], []
        for cell, value in zip(cells, self._database.read(table, list(map(_place, cells))), strict=True):
            check_row(cell.row)
            stored = value or ABSENT
            done.append(stored[TIME_BYTES:] == expected)
            if done[-1] and time_of(stored) <= stamp:
                at_stamp.append(cell)
            elif done[-1]:
                self._database.add_puts(batch, [cell], time_of(stored))
        self._database.add_puts(batch, at_stamp, stamp)
        if any(done):
            self._write(batch, table, map(_row, cells))
            self._count["cells_put"] += sum(done)
        return done

    @timed
    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store. Durable on return."""
        await self._enter_writing("increment")
        check_row(row)
        total = await self._retried(partial(self._increment_now, table, row, column, by))
        await self.sync()
        return total

    def _increment_now(self, table: str, row: bytes, column: bytes, by: int) -> int:
        [value] = self._database.read(table, [(row, column)])
        total = add(None if value is None else value[TIME_BYTES:], by)
        batch = self._database.batch(table)
        stamp = max(self._database.clock.now(), time_of(value or ABSENT))
        self._database.add_puts(batch, [Put(row, column, bytes_of(total))], stamp)
        self._write(batch, table, [row])
        return total

    @timed
    async def sync(self) -> None:
        """See Store. Calls during a sync share the next one."""
        await self._enter_writing("sync")
        wanted = self._written
        async with self._syncing:
            if self._synced < wanted:
                written = self._written
                with self._opened.writing():
                    await trio.to_thread.run_sync(self._database.sync)
                self._synced = written

    async def aclose(self) -> None:
        """See Store. The database is closed even if StoreError is raised."""
        async with self._opened.changing, self._syncing:  # a sync that reopens the database ends first
            await trio.to_thread.run_sync(self._database.close)

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        rows = {f"row_cache.{name}": number for name, number in self._watches.cache.statistics().items()}
        return MappingProxyType({**self._count, **rows})

    async def _enter(self, call: str) -> None:
        """Count a call and do a checkpoint."""
        self._count[call] += 1
        await trio.lowlevel.checkpoint()

    async def _enter_writing(self, call: str) -> None:
        """Count a call that writes, do a checkpoint, and reopen the database if it failed. Raise StoreError."""
        await self._enter(call)
        if self._opened.is_broken:
            await self._opened.reopen(self._note_all)

    def _note_all(self) -> None:
        """Note that any row may have changed: a failed write may still have been applied."""
        self._watches.note_all()
        for on_write in self._subscribers.values():
            on_write(None)

    async def _retried(self, write: Callable[[], T]) -> T:
        """Return the result of `write`, retried while RocksDB is stalled."""
        for wait_s in backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES):
            try:
                return write()
            except StoreBusy:
                self._count["stalls"] += 1
            await trio.sleep(wait_s)
        return write()

    def _write(self, batch: Batch, table: str, rows: Iterable[bytes], by: PrefixWatch | None = None) -> None:
        """Write a batch for some rows, unnoticed by the watch `by`. Subscribers are called first: a failed write may
        have been applied."""
        derived = self._database.derived(table)
        if self._watches or derived:
            rows = list(rows)
            self._watches.note(table, rows, by)
        if derived:
            drop(batch, derived, rows)
        if on_write := self._subscribers.get(table):
            on_write(rows)
        with self._opened.writing():
            self._database.write(batch)
        self._written += 1
