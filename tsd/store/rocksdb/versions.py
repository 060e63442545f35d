"""Tables of the embedded store whose cells keep versions: the time is a part of the key, the newest version first.

A key is a row, a column and a time. Row and column are escaped and end with a mark, so that keys sort as (row, column);
the time is subtracted from the highest one, so that it descends. Families that keep a few versions have an entry for
each of them, with the cell's value. Those that keep all have chunks: see `tsd.store.rocksdb.version_chunks`.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.putline import HOUR_MS
from tsd.store.cells import Cell, Page, Table
from tsd.store.rocksdb.access import BATCH_CELLS, DatabaseAccess
from tsd.store.rocksdb.database import VERSIONS, Database
from tsd.store.rocksdb.version_chunks import Versions, decode_chunk, encode_chunk, hour_of, joined, merged, split_chunk
from tsd.store.rocksdb.version_reads import Gathered, VersionView, column_prefix, has_chunks, time_in, time_suffix
from tsd.store.rules import check_place, check_times
from tsd.store.versions import ALL, END_MS, UNBOUNDED, VersionColumns, VersionPage, VersionPut, Wanted, rows_of

BATCH_BYTES = 256 << 10  # of chunks written at once, or read to be merged
SLICE_HOURS = 4096  # of columns that are encoded at once


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

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        await self._access.enter_writing("create_versioned")
        with self._access.opened.writing():
            return self._access.database.create_versioned(tables)

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells."""
        return await self._access.read_in_steps(lambda database: _families(database, table))

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        await self.put_columns(table, _columns_of_puts(cells))

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """See VersionedCells."""
        families = await self._access.read_in_steps(lambda database: _families(database, table))
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
            await self._write(table, partial(_changes, table, cells[at : at + BATCH_CELLS]))
            await trio.lowlevel.checkpoint()

    async def _put_hours(self, table: str, hours: Sequence[_Hour]) -> None:
        """Put columns of families that keep all versions."""
        at = 0
        while at < len(hours):
            part = hours[at : at + BATCH_CELLS]
            at += (await self._write(table, partial(_hour_changes, table, part))).hours
            await trio.lowlevel.checkpoint()

    async def _write(self, table: str, changes: Callable[[Database], Changes]) -> Changes:
        """Write changes in one atomic step with what they read, and return them."""
        await self._access.enter_writing("write_versions")
        return await self._access.retried(partial(self._write_now, table, changes))

    def _write_now(self, table: str, changes: Callable[[Database], Changes]) -> Changes:
        database = self._access.database
        found = changes(database)
        batch = database.batch(table + VERSIONS)
        for key in found.deletes:
            batch.delete(key)
        for key, value in found.puts.items():
            batch.put(key, value)
        self._access.write(batch, table + VERSIONS, ())
        return found

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """See VersionedCells."""
        return await self._access.read_in_steps(lambda database: database.version_view(table).get(rows, wanted))

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
            return VersionPage(Gathered().columns(), None)
        return await self._access.read_in_steps(
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

        def changes(database: Database) -> Changes:
            found, view, families = Changes(), database.version_view(table), database.families(table)
            for column in columns:
                if has_chunks(families, column):
                    _delete_chunks(view, column_prefix(row, column), since_ms, until_ms, found)
                else:
                    keys = view.keys(row, column, until_ms=until_ms)
                    found.deletes += (key for key in keys if time_in(key) >= since_ms)
            return found

        await self._write(table, changes)


def _families(database: Database, table: str) -> Generator[None, None, Mapping[bytes, int]]:
    yield from ()
    return database.families(table)


def _columns_of_puts(cells: Sequence[VersionPut]) -> VersionColumns:
    """Return versions in arrays. Of equal ones the last counts."""
    last = {(cell.row, cell.column, cell.time_ms): cell for cell in cells}
    ordered = sorted(last.values(), key=attrgetter("row", "column", "time_ms"))
    found = Gathered()
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


def _hour_changes(table: str, hours: Sequence[_Hour], database: Database) -> Changes:
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


def _changes(table: str, cells: Sequence[VersionPut], database: Database) -> Changes:
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
