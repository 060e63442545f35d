"""The embedded engine, the default: RocksDB in a folder, which one process can open at a time.

`tsd.store.rocksdb.access` says what runs on the event loop, and what in a thread.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import cast

import trio

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
from tsd.store.rocksdb.access import BATCH_CELLS, DatabaseAccess, place_of, row_of
from tsd.store.rocksdb.column_blocks import EmbeddedBlocks
from tsd.store.rocksdb.database import Database, Place
from tsd.store.rocksdb.derived import EmbeddedDerived
from tsd.store.rocksdb.keys import ABSENT, TIME_BYTES, decode_cell, time_of
from tsd.store.rocksdb.options import options
from tsd.store.rocksdb.rewriting import EmbeddedRewrites
from tsd.store.rocksdb.row_cache import LEAST_ROWS, RowCache
from tsd.store.rocksdb.versions import EmbeddedVersions
from tsd.store.rocksdb.wide import EmbeddedWideRows
from tsd.store.rules import add, bytes_of, check_row
from tsd.store.scheduling import IngestLoad, with_breaks
from tsd.store.timing import timed

GET_CELLS = 4000  # named cells read by one call
FEW_CELLS = 16  # that are read in the event loop, as other short reads are: a thread takes several times as long
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it


class EmbeddedStore(OptionalParts):
    """Store on RocksDB, for one event loop. Open it with `open`.

    After an I/O error the next write reopens the database, see `ReopenedDatabase`.
    """

    capabilities = Capabilities(ascending_timestamps=True, shared=False, filters_rows=False, parallel_scans=1)

    def __init__(self, access: DatabaseAccess) -> None:
        self.access = access
        self.latencies = access.latencies
        self._synced = 0  # batches that a sync covers
        self._syncing = trio.Lock()
        self._folding = trio.Lock()

    @property
    def _database(self) -> Database:
        return self.access.opened.current

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
        access = await trio.to_thread.run_sync(DatabaseAccess, reopen, on_loss, load or IngestLoad(), cache)
        return cls(access)

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
        self.access.subscribers[table] = on_write

    @property
    def range_deletes(self) -> "EmbeddedStore":
        """See Store."""
        return self

    async def delete_range(
        self, table: str, start: bytes, stop: bytes, *,
        changed: Iterable[bytes], keep: Sequence[Put] = (), unless: WatchedRange | None = None,
    ) -> bool:  # fmt: skip
        """See RangeDeletes. `keep` get a new timestamp."""
        await self.access.enter_writing("delete_range")
        if start >= stop:  # RocksDB refuses an empty range, and every later write
            return True
        delete = partial(self._delete_range_now, table, start, stop, list(changed), keep, unless)
        return await self.access.retried(delete)

    def _delete_range_now(
        self, table: str, start: bytes, stop: bytes, changed: Sequence[bytes], keep: Sequence[Put],
        unless: WatchedRange | None,
    ) -> bool:  # fmt: skip
        if unless is not None and unless.changed:
            return False
        self.access.watches.note_range(table, start, stop, unless)
        batch = self._database.batch(table)
        self._database.add_range_delete(batch, table, start, stop)
        if keep:
            self._database.add_puts(batch, keep, self._database.clock.next())
        self.access.write(batch, table, changed)
        return True

    async def reclaim(self, table: str, start: bytes, stop: bytes) -> None:
        """See RangeDeletes."""
        await self.access.enter("reclaim")
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
        await self.access.enter_writing("snapshot")
        async with self._syncing:
            await trio.to_thread.run_sync(self._database.snapshot, folder)

    @property
    def column_blocks(self) -> EmbeddedBlocks:
        """See Store."""
        return EmbeddedBlocks(self.access, self._folding)

    @property
    def versioned_cells(self) -> EmbeddedVersions:
        """See Store."""
        return EmbeddedVersions(self.access)

    @property
    def wide_rows(self) -> EmbeddedWideRows:
        """See Store."""
        return EmbeddedWideRows(self.access)

    @property
    def derived_values(self) -> EmbeddedDerived:
        """See Store."""
        return EmbeddedDerived(self.access)

    def watching_range(self, table: str, start: bytes, stop: bytes) -> AbstractContextManager[WatchedRange]:
        """See RangeDeletes."""
        return self.access.watches.of_range(table, start, stop)

    @property
    def atomic_rewrites(self) -> EmbeddedRewrites:
        """See Store."""
        return EmbeddedRewrites(self.access)

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:  # noqa: ARG002
        """See Store. `compression` is ignored: all tables have the same."""
        await self.access.enter_writing("create_tables")
        made = [table.name for table in tables if table.name not in self._database.tables()]
        with self.access.opened.writing():
            for name in made:
                self._database.create(name)
        return made

    async def tables(self) -> list[str]:
        """See Store."""
        await self.access.enter("tables")
        return self._database.tables()

    @timed
    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        await self.access.enter("get")
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

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        await self.access.put(table, cells, time_ms)

    @timed
    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        await self.access.enter_writing("delete")
        self._database.require(table)
        places = ((row, column) for row, names in columns.items() for column in names)
        while part := list(islice(places, BATCH_CELLS)):
            await self.access.retried(partial(self._delete_now, table, part, up_to_ms))
            await trio.lowlevel.checkpoint()

    def _delete_now(self, table: str, places: list[Place], up_to_ms: int | None) -> None:
        clock = self._database.clock
        bound = clock.now() if up_to_ms is None else up_to_ms
        if not clock.is_newest(bound):
            stored = self._database.read(table, places)
            places = [place for place, value in zip(places, stored, strict=True) if value and time_of(value) <= bound]
        batch = self._database.batch(table)
        self._database.add_deletes(batch, table, places)
        self.access.write(batch, table, map(row_of, places))

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
        await self.access.enter("page")
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
        await self.access.enter("read_cells")
        if stop is not None and start >= stop:
            return CellPage([], [], [], 0, [], None)
        pages, cursor.pages = cursor.pages if cursor.next_start == start else None, None
        if pages is None:
            pages = self.access.steps(lambda database: database.view(table, stop).cells(start, limit_bytes))
        while (page := await self.access.throttle.step(pages)) is None:
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
        await self.access.enter_writing("check_and_put")
        [done] = await self.access.retried(partial(self._check_now, table, [Put(row, column, value)], expected or b""))
        await self.sync()
        return done

    @timed
    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        await self.access.enter_writing("create")
        self._database.require(table)
        done: list[bool] = []
        for at in range(0, len(cells), BATCH_CELLS):
            done += await self.access.retried(partial(self._check_now, table, cells[at : at + BATCH_CELLS], b""))
            await trio.lowlevel.checkpoint()
        await self.sync()
        return done

    def _check_now(self, table: str, cells: Sequence[Put], expected: bytes) -> list[bool]:
        """Write each cell whose stored value is `expected` (an absent cell is empty). No two cells share a row. Return
        for each whether it was written."""
        stamp = self._database.clock.now()
        batch = self._database.batch(table)
        done, at_stamp = [], []
        for cell, value in zip(cells, self._database.read(table, list(map(place_of, cells))), strict=True):
            check_row(cell.row)
            stored = value or ABSENT
            done.append(stored[TIME_BYTES:] == expected)
            if done[-1] and time_of(stored) <= stamp:
                at_stamp.append(cell)
            elif done[-1]:
                self._database.add_puts(batch, [cell], time_of(stored))
        self._database.add_puts(batch, at_stamp, stamp)
        if any(done):
            self.access.write(batch, table, map(row_of, cells))
            self.access.count["cells_put"] += sum(done)
        return done

    @timed
    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store. Durable on return."""
        await self.access.enter_writing("increment")
        check_row(row)
        total = await self.access.retried(partial(self._increment_now, table, row, column, by))
        await self.sync()
        return total

    def _increment_now(self, table: str, row: bytes, column: bytes, by: int) -> int:
        [value] = self._database.read(table, [(row, column)])
        total = add(None if value is None else value[TIME_BYTES:], by)
        batch = self._database.batch(table)
        stamp = max(self._database.clock.now(), time_of(value or ABSENT))
        self._database.add_puts(batch, [Put(row, column, bytes_of(total))], stamp)
        self.access.write(batch, table, [row])
        return total

    @timed
    async def sync(self) -> None:
        """See Store. Calls during a sync share the next one."""
        await self.access.enter_writing("sync")
        wanted = self.access.written
        async with self._syncing:
            if self._synced < wanted:
                written = self.access.written
                with self.access.opened.writing():
                    await trio.to_thread.run_sync(self._database.sync)
                self._synced = written

    async def aclose(self) -> None:
        """See Store. The database is closed even if StoreError is raised."""
        async with self.access.opened.changing, self._syncing:  # a sync that reopens the database ends first
            await trio.to_thread.run_sync(self._database.close)

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        rows = {f"row_cache.{name}": number for name, number in self.access.watches.cache.statistics().items()}
        return MappingProxyType({**self.access.count, **rows})
