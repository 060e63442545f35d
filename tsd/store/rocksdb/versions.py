"""Tables of the embedded store whose cells keep versions: the time is a part of the key, the newest version first.

A key is a row, a column and a time. Row and column are escaped and end with a mark, so that keys sort as (row, column);
the time is subtracted from the highest one, so that it descends. Families that keep a few versions have an entry for
each of them, with the cell's value. Those that keep all have chunks: see `tsd.store.rocksdb.version_chunks`.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby, islice, pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import trio
from rocksdict import Rdict, ReadOptions

from tsd.codec.points import Int64
from tsd.store.cells import Cell, Page, Table
from tsd.store.rocksdb.keys import ESCAPED_ZERO, ROW_END, TIME_BYTES, row_prefix, split_key
from tsd.store.rocksdb.version_chunks import (
    HOUR_MS,
    Versions,
    decode_chunk,
    encode_chunk,
    hour_of,
    joined,
    merged,
    split_chunk,
)
from tsd.store.rules import check_place, check_times
from tsd.store.versions import (
    ALL,
    END_MS,
    UNBOUNDED,
    VERSION_BYTES,
    VersionColumns,
    VersionPage,
    VersionPut,
    Wanted,
    check_size,
    rows_of,
)

T = TypeVar("T")

BATCH_CELLS = 512  # written at once
BATCH_BYTES = 256 << 10  # of chunks written at once, or read to be merged
SLICE_HOURS = 4096  # of columns that are encoded at once
CHUNK_CELLS = 1000  # read between two checkpoints: about a millisecond
CELLS_OF_CHUNK = 10  # a chunk takes the time of so many cells
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it
COLUMN_END = len(ROW_END) + TIME_BYTES  # bytes of a key after the column
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


def has_chunks(families: Mapping[bytes, int], column: bytes) -> bool:
    """Return whether the versions of a column are in chunks."""
    return families.get(column.partition(b":")[0], 0) >= UNBOUNDED


class _Gathered:
    """Versions that a read has found so far."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.places: list[tuple[bytes, bytes]] = []
        self.size = 0  # bytes
        self._limit_bytes = limit_bytes
        self._counts: list[int] = []
        self._times: list[Int64] = []
        self._lengths: list[Int64] = []
        self._values: list[bytes] = []
        self._some: tuple[list[int], list[int]] = [], []  # times and lengths of versions after those of the arrays

    def grow(self, size: int) -> None:
        """Count bytes. Raise TooManyVersions."""
        self.size += size
        check_size(self.size, self._limit_bytes)

    def add(self, row: bytes, column: bytes, versions: Sequence[tuple[int, bytes]]) -> None:
        """Add a column with a few versions, the newest first."""
        if not versions:
            return
        self.places.append((row, column))
        self._counts.append(len(versions))
        for time_ms, value in reversed(versions):
            self._some[0].append(time_ms)
            self._some[1].append(len(value))
            self._values.append(value)

    def add_chunks(self, row: bytes, column: bytes, chunks: Sequence[Versions]) -> None:
        """Add a column with the parts of its chunks, the newest first."""
        if not chunks:
            return
        self._end_some()
        self.places.append((row, column))
        self._counts.append(sum(len(chunk.times_ms) for chunk in chunks))
        for times, lengths, values in reversed(chunks):
            self._times.append(times)
            self._lengths.append(lengths)
            self._values.append(values)

    def add_entries(self, places: Sequence[tuple[bytes, bytes]], entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Add columns with one version each. `entries` are keys and values, those of the places first."""
        self._end_some()
        count = len(places)
        self.places += places
        self._counts += [1] * count
        times = np.frombuffer(b"".join([key[-TIME_BYTES:] for key, _ in entries[:count]]), ">i8")
        values = [value for _, value in entries[:count]]
        self._times.append(END_MS - 1 - times.astype(np.int64))
        self._lengths.append(np.array(list(map(len, values)), np.int64))
        self._values += values
        self.grow(VERSION_BYTES * count + sum(map(len, values)))

    def _end_some(self) -> None:
        times, lengths = self._some
        if times:
            self._times.append(np.array(times, np.int64))
            self._lengths.append(np.array(lengths, np.int64))
            self._some = [], []

    def columns(self) -> VersionColumns:
        """Return all versions."""
        self._end_some()
        none = [np.zeros(0, np.int64)]
        bounds = np.zeros(len(self.places) + 1, np.int64)
        np.cumsum(np.array(self._counts, np.int64), out=bounds[1:])
        times, lengths = np.concatenate(self._times or none), np.concatenate(self._lengths or none)
        return VersionColumns(self.places, bounds, times, np.cumsum(lengths), b"".join(self._values))


class VersionView:
    """Snapshot of a table. Its generators yield each CHUNK_CELLS cells, so that the caller can let other tasks run."""

    def __init__(
        self,
        rows: Rdict,
        stop: bytes | None,
        translated: Callable[[], AbstractContextManager[None]],
        families: Mapping[bytes, int],
    ) -> None:
        self._options = ReadOptions()  # must outlive the iterator, which points to its bound
        self._options.set_background_purge_on_iterator_cleanup(True)
        if stop is not None:
            self._options.set_iterate_upper_bound(row_prefix(stop))
        self._translated = translated
        self._families = families
        self._read = 0  # cells, since the start
        self._rows = rows
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

    def chunks(self, prefix: bytes, until_ms: int, since_ms: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the times and the stored forms of a column's chunks that may have versions from one time to before
        another, the newest first. The iterator is then at the first key after them, or at an older chunk."""
        self._at.seek(prefix + time_suffix(until_ms - 1) if until_ms else prefix + AFTER)
        while self._at.valid() and (key := self._at.key()).startswith(prefix):
            start_ms = time_in(key)
            if start_ms + HOUR_MS <= since_ms:
                break
            yield start_ms, self._at.value()
            self._at.next()
            if start_ms <= since_ms:
                break
        self._check()

    def get(self, rows: Collection[bytes], wanted: Wanted) -> Generator[None, None, VersionColumns]:
        """Return the wanted versions of rows."""
        found = _Gathered(wanted.limit_bytes)
        for row in rows:
            prefix = row_prefix(row)
            self._at.seek(prefix)
            yield from self._row(row, prefix, wanted, found)
        return found.columns()

    def page(self, start: bytes, limit: int, wanted: Wanted) -> Generator[None, None, VersionPage]:
        """Return up to `limit` rows with wanted versions from `start` on. The page ends early with the row that brings
        it to PAGE_BYTES."""
        found = _Gathered(wanted.limit_bytes)
        if wanted._replace(limit_bytes=None) == ALL and set(self._families.values()) == {1}:
            return (yield from self._page_of_newest(start, limit, found))
        rows = 0
        self._at.seek(row_prefix(start))
        while self._at.valid():
            row, prefix = split_key(self._at.key())
            if rows >= limit or found.size >= PAGE_BYTES:
                return VersionPage(found.columns(), row)
            before = len(found.places)
            yield from self._row(row, prefix, wanted, found)
            rows += len(found.places) > before
        self._check()
        return VersionPage(found.columns(), None)

    def _page_of_newest(self, start: bytes, limit: int, found: _Gathered) -> Generator[None, None, VersionPage]:
        """Do the same for a table that keeps one version of each column. Each entry is one place."""
        with self._translated():
            entries = self._rows.items(from_key=row_prefix(start), read_opt=self._options)
        rows, cut, row, prefix, key = 0, 0, b"", row_prefix(b""), row_prefix(start)  # no key starts with the prefix
        while True:
            with self._translated():
                part = cast(list[tuple[bytes, bytes]], list(islice(entries, CHUNK_CELLS)))
            if not part:
                self._at.seek(key + b"\0")  # `items` ends without an error at a damaged block
                self._check()
                return VersionPage(found.columns(), None)
            places: list[tuple[bytes, bytes]] = []
            for key, _ in part:
                if not key.startswith(prefix):
                    row, prefix = split_key(key)
                    if rows >= limit or found.size >= PAGE_BYTES:
                        found.add_entries(places, part)
                        return VersionPage(found.columns(), row)
                    rows, cut = rows + 1, len(prefix)
                places.append((row, key[cut:-COLUMN_END].replace(ESCAPED_ZERO, b"\0")))
            found.add_entries(places, part)
            yield

    def _row(self, row: bytes, prefix: bytes, wanted: Wanted, found: _Gathered) -> Generator[None, None, None]:
        """Add the wanted versions of the row whose keys start with `prefix`. The iterator is at its first key, and
        then after its last one."""
        at, cut = self._at, len(prefix)
        while at.valid() and (key := at.key()).startswith(prefix):
            head = key[:-TIME_BYTES]
            column = head[cut : -len(ROW_END)].replace(ESCAPED_ZERO, b"\0")
            if wanted.columns is not None and column not in wanted.columns:
                at.seek(head + AFTER)
            elif has_chunks(self._families, column):
                found.add_chunks(row, column, self._column_chunks(head, wanted, found))
            else:
                found.add(row, column, self._column_versions(key, head, wanted, found))
            if self._read >= CHUNK_CELLS:
                self._read = 0
                yield
        self._check()

    def _column_chunks(self, head: bytes, wanted: Wanted, found: _Gathered) -> list[Versions]:
        """Return the wanted parts of a column's chunks. The iterator is at its first key, and then after its last."""
        parts: list[Versions] = []
        left = wanted.versions
        for start_ms, stored in self.chunks(head, wanted.until_ms, wanted.since_ms):
            self._read += CELLS_OF_CHUNK
            part = decode_chunk(start_ms, stored).between(wanted.since_ms, wanted.until_ms)
            count = len(part.times_ms)
            if left is not None:
                part = part.at(max(count - left, 0), count)
                left -= len(part.times_ms)
            if count:
                found.grow(VERSION_BYTES * len(part.times_ms) + len(part.values))
                parts.append(part)
            if left == 0:
                break
        if self._at.valid() and self._at.key().startswith(head):
            self._at.seek(head + AFTER)
        return parts

    def _column_versions(self, key: bytes, head: bytes, wanted: Wanted, found: _Gathered) -> list[tuple[int, bytes]]:
        """Return the wanted versions of a column without chunks. The iterator is at its first key, which is `key`, and
        then after its last."""
        at, versions, earliest = self._at, list[tuple[int, bytes]](), wanted.until_ms - 1
        if time_in(key) > earliest:
            at.seek(head + time_suffix(earliest) if earliest >= 0 else head + AFTER)
        while at.valid() and (key := at.key()).startswith(head):
            time_ms = time_in(key)
            if time_ms < wanted.since_ms or len(versions) == wanted.versions:
                at.seek(head + AFTER)
                break
            value = at.value()
            versions.append((time_ms, value))
            found.grow(VERSION_BYTES + len(value))
            at.next()
            self._read += 1
        return versions

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

    def read_versions(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values under keys, None for an absent one."""
        ...


class Guarded(Protocol):
    """How the engine runs calls: it counts them, and reopens its database after an error."""

    async def read_in_steps(self, steps: Callable[[VersionDatabase], Generator[None, None, T]]) -> T:
        """Run a read with checkpoints."""
        ...

    async def create_versioned(self, tables: Sequence[Table]) -> list[str]:
        """Create the missing tables and return their names."""
        ...

    async def write_versions(self, table: str, changes: Callable[[VersionDatabase], "Changes"]) -> "Changes":
        """Write changes atomically, and return them."""
        ...


class Changes:
    """Keys to put with their values, and keys to delete."""

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: list[bytes] = []
        self.hours = 0  # of columns, that the changes write


class _Hour(NamedTuple):
    """Versions of a column within an hour, and the chunks of them alone."""

    prefix: bytes
    start_ms: int
    versions: Versions
    chunks: list[tuple[bytes, bytes]]  # keys and values


class EmbeddedVersions:
    """VersionedCells of the embedded store."""

    def __init__(self, engine: Guarded) -> None:
        self._engine = engine

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        return await self._engine.create_versioned(tables)

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells."""
        return await self._engine.read_in_steps(lambda database: _families(database, table))

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        await self.put_columns(table, _columns_of_puts(cells))

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """See VersionedCells."""
        families = await self._engine.read_in_steps(lambda database: _families(database, table))
        for row, column in columns.places:
            check_place(families, row, column)
        check_times(columns.times_ms)
        for start in range(0, len(columns.places), SLICE_HOURS):
            some = range(start, min(start + SLICE_HOURS, len(columns.places)))
            few = [at for at in some if not has_chunks(families, columns.places[at][1])]
            if few:
                await self._put_few(table, columns, few)
            if len(few) < len(some):
                chosen = [at for at in some if has_chunks(families, columns.places[at][1])] if few else some
                await self._put_hours(table, await trio.to_thread.run_sync(_hours, columns, chosen))

    async def _put_few(self, table: str, columns: VersionColumns, places: Sequence[int]) -> None:
        """Put columns of families that keep a few versions."""
        cells = await trio.to_thread.run_sync(columns.puts, places)
        for at in range(0, len(cells), BATCH_CELLS):
            await self._engine.write_versions(table, partial(_changes, table, cells[at : at + BATCH_CELLS]))
            await trio.lowlevel.checkpoint()

    async def _put_hours(self, table: str, hours: Sequence[_Hour]) -> None:
        """Put columns of families that keep all versions."""
        at = 0
        while at < len(hours):
            part = hours[at : at + BATCH_CELLS]
            at += (await self._engine.write_versions(table, partial(_hour_changes, table, part))).hours
            await trio.lowlevel.checkpoint()

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """See VersionedCells."""
        return await self._engine.read_in_steps(lambda database: database.version_view(table).get(rows, wanted))

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        columns = await self.get_columns(table, dict.fromkeys(rows), wanted)
        return {row.key: row.cells for row in await trio.to_thread.run_sync(rows_of, columns)}

    async def page_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL
    ) -> VersionPage:
        """See VersionedCells. All rows of a page are from one snapshot."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return VersionPage(_Gathered().columns(), None)
        return await self._engine.read_in_steps(
            lambda database: database.version_view(table, stop).page(start, limit, wanted)
        )

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells. All rows of a page are from one snapshot."""
        page = await self.page_columns(table, start, stop, limit=limit, wanted=wanted)
        return Page(await trio.to_thread.run_sync(rows_of, page.columns), page.next_start)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells."""

        def changes(database: VersionDatabase) -> Changes:
            found, view, families = Changes(), database.version_view(table), database.families(table)
            for column in columns:
                if has_chunks(families, column):
                    _delete_chunks(view, column_prefix(row, column), since_ms, until_ms, found)
                else:
                    keys = view.keys(row, column, until_ms=until_ms)
                    found.deletes += (key for key in keys if time_in(key) >= since_ms)
            return found

        await self._engine.write_versions(table, changes)


def _families(database: VersionDatabase, table: str) -> Generator[None, None, Mapping[bytes, int]]:
    yield from ()
    return database.families(table)


def _columns_of_puts(cells: Sequence[VersionPut]) -> VersionColumns:
    """Return versions in arrays. Of equal ones the last counts."""
    last = {(cell.row, cell.column, cell.time_ms): cell for cell in cells}
    ordered = sorted(last.values(), key=attrgetter("row", "column", "time_ms"))
    found = _Gathered()
    for (row, column), of_column in groupby(ordered, attrgetter("row", "column")):
        found.add(row, column, [(cell.time_ms, cell.value) for cell in of_column][::-1])
    return found.columns()


def _hours(columns: VersionColumns, places: Sequence[int]) -> list[_Hour]:
    """Return the versions of some columns by hour."""
    hours = columns.times_ms // HOUR_MS
    lengths = np.diff(columns.ends, prepend=0)
    found = []
    for at in places:
        prefix = column_prefix(*columns.places[at])
        start, end = columns.bounds[at : at + 2].tolist()
        cuts = [start, end]
        if end - start > 1 and hours[start] != hours[end - 1]:
            cuts[1:1] = (np.flatnonzero(np.diff(hours[start:end])) + start + 1).tolist()
        for first, last in pairwise(cuts):
            begin = int(columns.ends[first]) - int(lengths[first])
            versions = Versions(
                columns.times_ms[first:last], lengths[first:last], columns.values[begin : int(columns.ends[last - 1])]
            )
            start_ms = int(hours[first]) * HOUR_MS
            chunks = [(prefix + time_suffix(time_ms), value) for time_ms, value in split_chunk(start_ms, versions)]
            found.append(_Hour(prefix, start_ms, versions, chunks))
    return found


def _hour_changes(table: str, hours: Sequence[_Hour], database: VersionDatabase) -> Changes:
    """Return the changes that write the first ones of some hours."""
    found, size = Changes(), 0
    stored = database.read_versions(table, [hour.prefix + time_suffix(hour.start_ms) for hour in hours])
    view: VersionView | None = None
    for hour, first in zip(hours, stored, strict=True):
        if first is None:
            found.puts.update(hour.chunks)
            size += sum(len(value) for _, value in hour.chunks)
        else:
            view = database.version_view(table) if view is None else view
            size += _merge_hour(view, hour, found)
        found.hours += 1
        if size >= BATCH_BYTES:
            break
    return found


def _merge_hour(view: VersionView, hour: _Hour, found: Changes) -> int:
    """Add the changes that write versions of an hour that has chunks. Return the bytes of the changed ones."""
    left, size = hour.versions, 0
    for start_ms, stored in view.chunks(hour.prefix, hour.start_ms + HOUR_MS, hour.start_ms):
        first = int(left.times_ms.searchsorted(start_ms))
        count = len(left.times_ms)
        if first < count:
            versions = merged(decode_chunk(start_ms, stored), left.at(first, count))
            for time_ms, value in split_chunk(start_ms, versions):
                found.puts[hour.prefix + time_suffix(time_ms)] = value
            size += len(stored)
            left = left.at(0, first)
        if not first:
            break
    return size


def _delete_chunks(view: VersionView, prefix: bytes, since_ms: int, until_ms: int, found: Changes) -> None:
    """Add the changes that delete the versions of a column from one time to before another."""
    if since_ms >= until_ms:
        return
    end_ms = min(hour_of(until_ms - 1) + HOUR_MS, END_MS)
    chunks = view.chunks(prefix, end_ms, hour_of(since_ms))
    for hour_ms, of_hour in groupby(chunks, lambda chunk: hour_of(chunk[0])):
        stored = list(of_hour)
        if since_ms <= hour_ms and hour_ms + HOUR_MS <= until_ms:
            found.deletes += [prefix + time_suffix(start_ms) for start_ms, _ in stored]
            continue
        kept = {start_ms: _without(decode_chunk(start_ms, value), since_ms, until_ms) for start_ms, value in stored}
        is_empty = not any(len(left.times_ms) for left in kept.values())
        for start_ms, left in kept.items():
            key = prefix + time_suffix(start_ms)
            if is_empty or (start_ms != hour_ms and not len(left.times_ms)):
                found.deletes.append(key)
            else:
                found.puts[key] = encode_chunk(start_ms, left)


def _without(versions: Versions, since_ms: int, until_ms: int) -> Versions:
    """Return the versions before one time and those from another on."""
    start, end = versions.times_ms.searchsorted((since_ms, until_ms)).tolist()
    return joined([versions.at(0, start), versions.at(end, len(versions.times_ms))])


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
