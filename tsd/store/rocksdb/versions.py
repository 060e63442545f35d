"""Tables of the embedded store whose cells keep versions: the time is a part of the key, the newest version first.

The key of a version is the row, the column and the time. Row and column are escaped and end with a mark, so that keys
sort as (row, column); the time is subtracted from the highest one, so that it descends. The value is the cell's.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

import trio
from rocksdict import Rdict, ReadOptions

from tsd.store.cells import Cell, Page, Row, Table
from tsd.store.rocksdb.keys import ESCAPED_ZERO, ROW_END, TIME_BYTES, row_prefix, split_key
from tsd.store.rules import check_version
from tsd.store.versions import ALL, END_MS, UNBOUNDED, VersionPut, Wanted

T = TypeVar("T")

BATCH_CELLS = 512  # written at once
CHUNK_CELLS = 1000  # read between two checkpoints: about a millisecond
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it
AFTER = b"\xff"  # instead of a time: sorts after all versions of a column


def column_prefix(row: bytes, column: bytes) -> bytes:
    """Return the key prefix of a column's versions. No other column's keys start with it.

    >>> column_prefix(b"a", b"t:m").hex()
    '610001743a6d0001'
    """
    return row_prefix(row) + row_prefix(column)


def time_suffix(time_ms: int) -> bytes:
    """Return the end of the key of a version: a later time sorts before an earlier one.

    >>> time_suffix(1) < time_suffix(0), time_suffix(0).hex()
    (True, '001ff973cafa7fff')
    """
    return (END_MS - 1 - time_ms).to_bytes(TIME_BYTES, "big")


def time_in(key: bytes) -> int:
    """Return the time in the key of a version, in ms."""
    return END_MS - 1 - int.from_bytes(key[-TIME_BYTES:], "big")


class VersionView:
    """Snapshot of a table. Its generators yield each CHUNK_CELLS cells, so that the caller can let other tasks run."""

    def __init__(self, rows: Rdict, stop: bytes | None, translated: Callable[[], AbstractContextManager[None]]) -> None:
        self._options = ReadOptions()  # must outlive the iterator, which points to its bound
        self._options.set_background_purge_on_iterator_cleanup(True)
        if stop is not None:
            self._options.set_iterate_upper_bound(row_prefix(stop))
        self._translated = translated
        self._at = rows.iter(self._options)

    def times(self, row: bytes, column: bytes) -> list[int]:
        """Return the times of a column's versions, the newest first."""
        return [time_in(key) for key in self.keys(row, column)]

    def keys(self, row: bytes, column: bytes, *, until_ms: int = END_MS) -> Iterator[bytes]:
        """Yield the keys of a column's versions before a time, the newest first."""
        prefix = column_prefix(row, column)
        self._at.seek(prefix + time_suffix(until_ms - 1) if until_ms else prefix + AFTER)
        while self._at.valid() and (key := self._at.key()).startswith(prefix):
            yield key
            self._at.next()
        self._check()

    def get(self, rows: Collection[bytes], wanted: Wanted) -> Generator[None, None, dict[bytes, list[Cell]]]:
        """Return the wanted cells of each row that has any."""
        found: dict[bytes, list[Cell]] = {}
        for row in rows:
            prefix = row_prefix(row)
            self._at.seek(prefix)
            if cells := (yield from self._cells(prefix, wanted)):
                found[row] = cells
        return found

    def page(self, start: bytes, limit: int, wanted: Wanted) -> Generator[None, None, Page]:
        """Return up to `limit` rows with wanted cells from `start` on. The page ends early with the row that brings its
        values to PAGE_BYTES."""
        rows: list[Row] = []
        size = 0
        self._at.seek(row_prefix(start))
        while self._at.valid():
            row, prefix = split_key(self._at.key())
            if len(rows) >= limit or size >= PAGE_BYTES:
                return Page(rows, row)
            if cells := (yield from self._cells(prefix, wanted)):
                rows.append(Row(row, cells))
                size += sum(len(cell.value) for cell in cells)
        self._check()
        return Page(rows, None)

    def _cells(self, prefix: bytes, wanted: Wanted) -> Generator[None, None, list[Cell]]:
        """Return the wanted cells of the row whose keys start with `prefix`. The iterator is at its first key, and
        then after its last one. Versions outside the range are skipped, not read."""
        at, cells, read = self._at, [], 0
        earliest = wanted.until_ms - 1
        while at.valid() and (key := at.key()).startswith(prefix):
            head = key[:-TIME_BYTES]
            column = head[len(prefix) : -len(ROW_END)].replace(ESCAPED_ZERO, b"\0")
            if wanted.columns is not None and column not in wanted.columns:
                at.seek(head + AFTER)
                continue
            if time_in(key) > earliest:
                at.seek(head + time_suffix(earliest) if earliest >= 0 else head + AFTER)
            left = wanted.versions
            while at.valid() and (key := at.key()).startswith(head):
                time_ms = time_in(key)
                if time_ms < wanted.since_ms or left == 0:
                    at.seek(head + AFTER)
                    break
                cells.append(Cell(column, at.value(), time_ms))
                left = None if left is None else left - 1
                at.next()
                read += 1
                if read % CHUNK_CELLS == 0:
                    yield
        self._check()
        return cells

    def _check(self) -> None:
        """Raise StoreError if the iterator ended at a damaged block instead of the end."""
        if not self._at.valid():
            with self._translated():
                self._at.status()


class VersionDatabase(Protocol):
    """The part of the engine's database that has tables with versions. Calls raise StoreError."""

    def families(self, table: str) -> Mapping[bytes, int]:
        """Return how many versions each family of a table keeps. Raise NoTable."""
        ...

    def version_view(self, table: str, stop: bytes | None = None) -> VersionView:
        """Return a snapshot of a table, up to before the row `stop`."""
        ...


class Guarded(Protocol):
    """How the engine runs calls: it counts them, and reopens its database after an error."""

    async def read_in_steps(self, steps: Callable[[VersionDatabase], Generator[None, None, T]]) -> T:
        """Run a read with checkpoints."""
        ...

    async def create_versioned(self, tables: Sequence[Table]) -> list[str]:
        """Create the missing tables and return their names."""
        ...

    async def write_versions(self, table: str, changes: Callable[[VersionDatabase], "Changes"]) -> None:
        """Write changes atomically."""
        ...


class Changes:
    """Keys to put with their values, and keys to delete."""

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: list[bytes] = []


class EmbeddedVersions:
    """VersionedCells of the embedded store."""

    def __init__(self, engine: Guarded) -> None:
        self._engine = engine

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        return await self._engine.create_versioned(tables)

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        families = await self._engine.read_in_steps(lambda database: _families(database, table))
        for cell in cells:
            check_version(families, cell)
        for at in range(0, len(cells), BATCH_CELLS):
            part = cells[at : at + BATCH_CELLS]
            await self._engine.write_versions(table, partial(_changes, table, part))
            await trio.lowlevel.checkpoint()

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        return await self._engine.read_in_steps(lambda database: database.version_view(table).get(rows, wanted))

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells. All rows of a page are from one snapshot."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return Page([], None)
        return await self._engine.read_in_steps(
            lambda database: database.version_view(table, stop).page(start, limit, wanted)
        )

    async def delete(self, table: str, row: bytes, columns: Collection[bytes], *, until_ms: int = END_MS) -> None:
        """See VersionedCells."""

        def changes(database: VersionDatabase) -> Changes:
            found, view = Changes(), database.version_view(table)
            for column in columns:
                found.deletes += view.keys(row, column, until_ms=until_ms)
            return found

        await self._engine.write_versions(table, changes)


def _families(database: VersionDatabase, table: str) -> Generator[None, None, Mapping[bytes, int]]:
    yield from ()
    return database.families(table)


def _changes(table: str, cells: Sequence[VersionPut], database: VersionDatabase) -> Changes:
    """Return the changes that write versions. Families that keep all are not read."""
    families, found = database.families(table), Changes()
    bounded: dict[tuple[bytes, bytes], dict[int, bytes]] = {}
    for row, column, value, time_ms in cells:
        if families[column.partition(b":")[0]] < UNBOUNDED:
            bounded.setdefault((row, column), {})[time_ms] = value
        else:
            found.puts[column_prefix(row, column) + time_suffix(time_ms)] = value
    if not bounded:
        return found
    view = database.version_view(table)
    for (row, column), values in bounded.items():
        prefix, stored = column_prefix(row, column), view.times(row, column)
        newest = sorted({*stored, *values}, reverse=True)[: families[column.partition(b":")[0]]]
        found.puts |= {prefix + time_suffix(each): values[each] for each in newest if each in values}
        found.deletes += [prefix + time_suffix(each) for each in stored if each not in newest]
    return found
