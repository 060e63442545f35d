"""A store in a folder: RocksDB, one column family a table. The default engine; one process at a time has it open.

Writing holds the interpreter's lock in rocksdict, whichever thread asks, so writes happen on the event loop, in batches
that take about half a millisecond. Each is one function without an await: that is what makes check_and_put, increment
and a row's cells atomic. What lets go of the lock (syncing the log, asking for named cells) runs in a thread.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice, product
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

import trio

from tsd.errors import DaemonRuns, StoreBusy, StoreError
from tsd.store import Cell, Page, Put, Table
from tsd.store.batches import whole_rows
from tsd.store.cells import CellPage, Cursor
from tsd.store.changes import Told
from tsd.store.counters import add, bytes_of
from tsd.store.keyvalue import ABSENT, TIME_BYTES, cell_of, time_of
from tsd.store.limits import check_row
from tsd.store.pauses import pauses
from tsd.store.rocks import Batch, Database, Place
from tsd.store.rocks_options import options
from tsd.store.timing import none_yet, timed
from tsd.store.turns import Turns

T = TypeVar("T")
_row = itemgetter(0)
_place = itemgetter(0, 1)

BATCH_CELLS = 512  # of one write; longer ones cost no less a cell
BATCH_BYTES = 256 << 10  # of values in one write
GET_CELLS = 4000  # named cells asked for with one call
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it
FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIES = 0.01, 0.5, 12  # for a stalled RocksDB: 2 to 4 s in all
MEND_S = 1.0  # from one attempt to reopen a database that failed to the next


class _WritesLost(StoreError):
    """What was taken, and not yet synced, is not there any more."""


class EmbeddedStore:
    """Store on RocksDB, for one event loop. `open` makes one.

    A delete leaves no trace: a put with a time older than the delete's shows, which in HBase it does not. After an I/O
    error the next call opens the database again, once a second at most: a disk that was full needs no restart. Only
    where it comes back without writes that it had taken does it stay shut. Whose they were is not known here, nor who
    would believe them stored after the next sync: this process had better end, as after a crash.
    """

    def __init__(self, reopen: Callable[[], Database], on_loss: Callable[[str], None]) -> None:
        self._reopen = reopen
        self._on_loss = on_loss
        self._database = reopen()
        self._count: Counter[str] = Counter()
        self.took = none_yet()
        self._written = self._synced = 0  # batches: since the start, and up to the last sync
        self._turns = Turns()  # of those who read very much
        self._syncing = trio.Lock()
        self._mending = trio.Lock()
        self._mend_at = 0.0
        self._broken: str | None = None
        self._told: dict[str, Told] = {}

    @property
    def may_lack_writes(self) -> bool:
        """Whether nobody knows if it still has all that was written to it: somebody wanted what there is."""
        return self._database.may_lack_writes

    @classmethod
    async def open(
        cls,
        path: Path | str,
        clock_ms: Callable[[], int],
        *,
        cache_bytes: int = 256 << 20,
        memtable_bytes: int = 32 << 20,
        on_loss: Callable[[str], None] = lambda _: None,
    ) -> "EmbeddedStore":
        """The store in the folder `path`, which is made if need be. DaemonRuns if a process has it open, StoreError if
        it cannot be opened. `clock_ms` is the wall clock in Unix milliseconds.

        It takes `cache_bytes` for blocks that were read, and up to four times `memtable_bytes` for what was written.
        `on_loss` is told when writes were lost; all later ones are refused.
        """
        settings = options(cache_bytes, memtable_bytes)
        reopen = partial(Database, Path(path), clock_ms, settings, cache_bytes=cache_bytes)
        return await trio.to_thread.run_sync(cls, reopen, on_loss)

    def on_write(self, table: str, told: Told) -> None:
        """See TellsWrites."""
        self._told[table] = told

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:  # noqa: ARG002
        """See Store. All tables are compressed alike, whatever `compression` says."""
        await self._enter_writing("create_tables")
        made = [table.name for table in tables if table.name not in self._database.tables()]
        with self._breaking():
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
            return await _with_breaks(self._database.view(table).get(rows))
        found: dict[bytes, list[Cell]] = {}
        places = product(dict.fromkeys(rows), sorted(set(columns)))
        while part := list(islice(places, GET_CELLS)):
            values = await trio.to_thread.run_sync(self._database.read, table, part)
            for at in [at for at, value in enumerate(values) if value is not None]:  # of many that are new none is
                (row, column), value = part[at], values[at]
                found.setdefault(row, []).append(cell_of(column, cast(bytes, value)))
        return found

    @timed
    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        await self._enter_writing("put")
        self._database.require(table)
        stamp: int | None = None  # of the batch before: to rise with each could outrun the clock
        for part in whole_rows(cells, most_cells=BATCH_CELLS, most_bytes=BATCH_BYTES):
            stamp = await self._patiently(partial(self._put_now, table, part, time_ms, stamp))
            self._count["cells_put"] += len(part)
            await trio.lowlevel.checkpoint()

    def _put_now(self, table: str, cells: Sequence[Put], time_ms: int | None, before: int | None) -> int:
        """The stamp of a batch, once it is written; `before` is that of the call's batch before."""
        stamps = self._database.stamps
        stamp = time_ms
        if stamp is None:
            stamp = stamps.next() if before is None else stamps.again(before)
        if not stamps.is_newest(stamp):
            held = self._database.read(table, list(map(_place, cells)))
            cells = [cell for cell, value in zip(cells, held, strict=True) if time_of(value or ABSENT) <= stamp]
        if time_ms is not None:
            stamps.note(time_ms)
        batch = self._database.batch(table)
        self._database.fill(batch, cells, stamp)
        self._write(batch, table, map(_row, cells))
        return stamp

    @timed
    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        await self._enter_writing("delete")
        self._database.require(table)
        places = ((row, column) for row, names in columns.items() for column in names)
        while part := list(islice(places, BATCH_CELLS)):
            await self._patiently(partial(self._delete_now, table, part, up_to_ms))
            await trio.lowlevel.checkpoint()

    def _delete_now(self, table: str, places: list[Place], up_to_ms: int | None) -> None:
        stamps = self._database.stamps
        bound = stamps.now() if up_to_ms is None else up_to_ms
        if not stamps.is_newest(bound):
            held = self._database.read(table, places)
            places = [place for place, value in zip(places, held, strict=True) if value and time_of(value) <= bound]
        batch = self._database.batch(table)
        self._database.remove(batch, places)
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
        """See Store. The rows are those of one moment."""
        await self._enter("page")
        if stop is not None and start >= stop:
            return Page([], None)
        view = self._database.view(table, stop)
        return await _with_breaks(view.page(start, limit, PAGE_BYTES, columns))

    @timed
    async def cells(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit_bytes: int,
        cursor: Cursor,
    ) -> CellPage:
        """See CellReader. The rows of all pages of a scan are those of one moment."""
        await self._enter("cells")
        if stop is not None and start >= stop:
            return CellPage([], [], [], 0, [], None)
        pages, cursor.pages = cursor.pages if cursor.next_start == start else None, None
        if pages is None:
            pages = self._database.view(table, stop).cells(start, limit_bytes)
        while (page := await self._turns.step(pages)) is None:
            pass
        cursor.pages, cursor.next_start = pages, page.next_start
        return page

    async def let_go(self, table: str, cursor: Cursor) -> None:  # noqa: ARG002
        """See CellReader."""
        cursor.pages = None
        await trio.lowlevel.checkpoint()

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store. Durable on return."""
        await self._enter_writing("check_and_put")
        [done] = await self._patiently(partial(self._check_now, table, [Put(row, column, value)], expected or b""))
        await self.sync()
        return done

    @timed
    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        await self._enter_writing("create")
        self._database.require(table)
        done: list[bool] = []
        for at in range(0, len(cells), BATCH_CELLS):
            done += await self._patiently(partial(self._check_now, table, cells[at : at + BATCH_CELLS], b""))
            await trio.lowlevel.checkpoint()
        await self.sync()
        return done

    def _check_now(self, table: str, cells: Sequence[Put], expected: bytes) -> list[bool]:
        """Write those cells, of different rows, that hold `expected` now; which they are. An absent one is empty."""
        stamp = self._database.stamps.now()
        batch = self._database.batch(table)
        done, free = [], []
        for cell, value in zip(cells, self._database.read(table, list(map(_place, cells))), strict=True):
            check_row(cell.row)
            held = value or ABSENT
            done.append(held[TIME_BYTES:] == expected)
            if done[-1] and time_of(held) <= stamp:
                free.append(cell)
            elif done[-1]:
                self._database.fill(batch, [cell], time_of(held))
        self._database.fill(batch, free, stamp)
        if any(done):
            self._write(batch, table, map(_row, cells))
            self._count["cells_put"] += sum(done)
        return done

    @timed
    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store. Durable on return."""
        await self._enter_writing("increment")
        check_row(row)
        total = await self._patiently(partial(self._increment_now, table, row, column, by))
        await self.sync()
        return total

    def _increment_now(self, table: str, row: bytes, column: bytes, by: int) -> int:
        [value] = self._database.read(table, [(row, column)])
        total = add(None if value is None else value[TIME_BYTES:], by)
        batch = self._database.batch(table)
        stamp = max(self._database.stamps.now(), time_of(value or ABSENT))
        self._database.fill(batch, [Put(row, column, bytes_of(total))], stamp)
        self._write(batch, table, [row])
        return total

    @timed
    async def sync(self) -> None:
        """See Store. Those who ask while a sync runs share the next one."""
        await self._enter_writing("sync")
        wanted = self._written
        async with self._syncing:
            if self._synced < wanted:
                reached = self._written
                with self._breaking():
                    await trio.to_thread.run_sync(self._database.sync)
                self._synced = reached

    async def aclose(self) -> None:
        """See Store. Everything is closed, also where StoreError says that something failed on the way."""
        async with self._mending, self._syncing:
            await trio.to_thread.run_sync(self._database.close)

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        return MappingProxyType(dict(self._count))

    async def _enter(self, call: str) -> None:
        """Count a call, and let others run."""
        self._count[call] += 1
        await trio.lowlevel.checkpoint()

    async def _enter_writing(self, call: str) -> None:
        """The same, and open the database again if it failed."""
        await self._enter(call)
        if self._broken is None:
            return
        async with self._mending:
            if self._broken is None:  # another call was faster
                return
            if trio.current_time() < self._mend_at:
                raise StoreError(self._broken)
            self._mend_at = trio.current_time() + MEND_S
            try:
                self._database = await trio.to_thread.run_sync(self._mended)
            except _WritesLost as exc:
                self._on_loss(str(exc))
                raise
            self._broken = None
            self._count["reopened"] += 1
            for told in self._told.values():  # a write that failed may be there all the same
                told(None)

    def _mended(self) -> Database:
        """The database, opened again with all that was ever written to it; else StoreError."""
        self._database.probe()  # while this fails, what is stored can at least be read
        with suppress(StoreError):  # what made it fail makes this fail too
            self._database.close()
        try:
            database = self._reopen()
        except DaemonRuns as exc:  # a page that is being read still holds it: that is us
            raise StoreError(str(self._broken)) from exc
        if database.reached < self._database.reached:
            database.close()
            raise _WritesLost(f"{database.path} came back without its last writes, which must be sent again")
        return database

    async def _patiently(self, write: Callable[[], T]) -> T:
        """What `write` returns. It does all in one go, and again where RocksDB has no room for it yet."""
        for pause in pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIES):
            try:
                return write()
            except StoreBusy:
                self._count["stalls"] += 1
            await trio.sleep(pause)
        return write()

    def _write(self, batch: Batch, table: str, rows: Iterable[bytes]) -> None:
        """Write what a batch has for some rows. Whether or not that works out, they may be others from now on."""
        if told := self._told.get(table):
            told(rows)
        with self._breaking():
            self._database.write(batch)
        self._written += 1

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Around what may leave RocksDB unusable: after a failed write it takes no other until it is opened again."""
        try:
            yield
        except StoreBusy:
            raise
        except StoreError as exc:
            self._count["errors"] += 1
            self._broken = str(exc)
            raise


async def _with_breaks(steps: Generator[None, None, T]) -> T:
    """What `steps` returns; wherever it yields, others run."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await trio.lowlevel.checkpoint()
