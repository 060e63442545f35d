"""Cells of several versions: each has a time of its own, and reads select a range of times.

A column of such a table has one value for each time. Times are Unix milliseconds from 0 to before END_MS. They need not
be those of the writes: a table may use the times of its points.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np

from tsd.codec.points import Int64
from tsd.errors import TooManyVersions
from tsd.store.cells import Cell, Page, Row, Table

END_MS = 9 * 10**15  # above every time: a third of a million years; Bigtable has microseconds in 63 bits
VERSION_BYTES = 16  # of memory of a version in arrays, besides its value
UNBOUNDED = 2**31 - 1  # `Family.versions` of a family that keeps all versions


class VersionPut(NamedTuple):
    """One version of a cell to write."""

    row: bytes
    column: bytes
    value: bytes
    time_ms: int


class VersionColumns(NamedTuple):
    """Versions of many columns in arrays, column after column, the oldest version of each first."""

    places: Sequence[tuple[bytes, bytes]]  # row and column of each
    bounds: Int64  # (places + 1,): index of each one's first version, then the number of all
    times_ms: Int64  # (versions,): ascending within a column
    ends: Int64  # (versions,): end of each value in `values`
    values: bytes  # joined

    @property
    def size(self) -> int:
        """Bytes of times and values."""
        return len(self.values) + VERSION_BYTES * len(self.times_ms)

    def puts(self, places: Iterable[int] | None = None) -> list[VersionPut]:
        """Return the versions of some places, None: of all, one by one."""
        ends, times, bounds = self.ends.tolist(), self.times_ms.tolist(), self.bounds.tolist()
        starts = [0, *ends]
        return [
            VersionPut(*self.places[at], self.values[starts[index] : ends[index]], times[index])
            for at in (range(len(self.places)) if places is None else places)
            for index in range(bounds[at], bounds[at + 1])
        ]


class VersionPage(NamedTuple):
    """A part of a scan in arrays, and the first row of the next part (None after the last part)."""

    columns: VersionColumns
    next_start: bytes | None


def columns_of(rows: Iterable[tuple[bytes, Sequence[Cell]]]) -> VersionColumns:
    """Return the cells of rows, which are in the order of a read, as arrays."""
    places: list[tuple[bytes, bytes]] = []
    counts: list[int] = []
    ordered: list[Cell] = []
    for row, cells in rows:
        for column, of_column in groupby(cells, attrgetter("column")):
            versions = list(of_column)[::-1]
            places.append((row, column))
            counts.append(len(versions))
            ordered += versions
    return VersionColumns(
        places,
        np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))]),
        np.array([cell.time_ms for cell in ordered], np.int64),
        np.cumsum(np.array([len(cell.value) for cell in ordered], np.int64)),
        b"".join(cell.value for cell in ordered),
    )


def rows_of(columns: VersionColumns) -> list[Row]:
    """Return the versions of each row as cells, in the order of a read."""
    rows: list[Row] = []
    cells: list[Cell] = []
    ends, times, bounds = columns.ends.tolist(), columns.times_ms.tolist(), columns.bounds.tolist()
    starts = [0, *ends]
    for at, (row, column) in enumerate(columns.places):
        if not rows or rows[-1].key != row:
            cells = []
            rows.append(Row(row, cells))
        for index in range(bounds[at + 1] - 1, bounds[at] - 1, -1):
            cells.append(Cell(column, columns.values[starts[index] : ends[index]], times[index]))
    return rows


def select(columns: VersionColumns, until_ms: int, versions: int | None) -> VersionColumns:
    """Return the newest `versions` of each column before a time (None: all)."""
    if versions is None and (not len(columns.times_ms) or int(columns.times_ms.max()) < until_ms):
        return columns
    counts = np.diff(columns.bounds)
    place = np.repeat(np.arange(len(counts)), counts)
    kept = columns.times_ms < until_ms
    left = np.bincount(place[kept], minlength=len(counts))
    if versions is not None:  # those before the time are the first ones of each column
        kept &= left[place] - (np.arange(len(place)) - columns.bounds[place]) <= versions
        left = np.minimum(left, versions)
    lengths = np.diff(columns.ends, prepend=0)
    values = np.frombuffer(columns.values, np.uint8)[np.repeat(kept, lengths)].tobytes()
    chosen = np.flatnonzero(left)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(left[chosen])])
    places = [columns.places[at] for at in chosen.tolist()]
    return VersionColumns(places, bounds, columns.times_ms[kept], np.cumsum(lengths[kept]), values)


def concatenate(parts: Sequence[VersionColumns]) -> VersionColumns:
    """Return the columns of several arrays one after another. No place is in two of them."""
    if len(parts) == 1:
        return parts[0]
    bounds, ends, versions, size = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)], 0, 0
    for part in parts:
        bounds.append(part.bounds[1:] + versions)
        ends.append(part.ends + size)
        versions += len(part.times_ms)
        size += len(part.values)
    return VersionColumns(
        [place for part in parts for place in part.places],
        np.concatenate(bounds),
        np.concatenate([np.zeros(0, np.int64), *(part.times_ms for part in parts)]),
        np.concatenate(ends),
        b"".join(part.values for part in parts),
    )


def gather(chosen: Sequence[tuple[tuple[bytes, bytes], VersionColumns, int]]) -> VersionColumns:
    """Return columns of several arrays as one, in the given order. Each is given by its place, its arrays, and its
    index in them. Those of one place follow each other, the oldest first, and become one."""
    places: list[tuple[bytes, bytes]] = []
    counts: list[int] = []
    times: list[Int64] = [np.zeros(0, np.int64)]
    lengths: list[Int64] = [np.zeros(0, np.int64)]
    values: list[bytes] = []
    for place, part, at in chosen:
        first, last = int(part.bounds[at]), int(part.bounds[at + 1])
        begin = int(part.ends[first - 1]) if first else 0
        times.append(part.times_ms[first:last])
        lengths.append(np.diff(part.ends[first:last], prepend=begin))
        values.append(part.values[begin : int(part.ends[last - 1]) if last else 0])
        if places and places[-1] == place:
            counts[-1] += last - first
        else:
            places.append(place)
            counts.append(last - first)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])
    return VersionColumns(places, bounds, np.concatenate(times), np.cumsum(np.concatenate(lengths)), b"".join(values))


def take(columns: VersionColumns, places: Int64) -> VersionColumns:
    """Return the versions of the places with these indexes, in the given order."""
    counts = np.diff(columns.bounds)[places]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    index = spans(columns.bounds[:-1][places], counts)
    known = columns.places
    return _taken(columns, index)._replace(places=[known[at] for at in places.tolist()], bounds=bounds)


def merged(old: VersionColumns, new: VersionColumns) -> VersionColumns:
    """Return the versions of both in order of places. Of one place and time the version of `new` counts."""
    both = concatenate([old, new])
    places = both.places
    order = sorted(range(len(places)), key=places.__getitem__)  # stable: a place of `old` is before the same of `new`
    whole = take(both, np.array(order, np.int64))
    places = whole.places
    first = [at for at, place in enumerate(places) if not at or place != places[at - 1]]
    bounds = np.append(whole.bounds[first], whole.bounds[-1])
    return _in_order(whole._replace(places=[places[at] for at in first], bounds=bounds))


def first_rows(columns: VersionColumns, limit: int, next_start: bytes | None) -> VersionPage:
    """Return up to `limit` rows before `next_start` of columns in order of places."""
    places = columns.places
    count = len(places) if next_start is None else bisect_left(places, (next_start,))
    rows, row = 0, None
    for at in range(count):
        if places[at][0] != row:
            if rows == limit:
                count, next_start = at, places[at][0]
                break
            row, rows = places[at][0], rows + 1
    return VersionPage(first_places(columns, count), next_start)


def first_places(columns: VersionColumns, count: int) -> VersionColumns:
    """Return the versions of the first `count` places."""
    if count == len(columns.places):
        return columns
    last = int(columns.bounds[count])
    size = int(columns.ends[last - 1]) if last else 0
    return VersionColumns(
        columns.places[:count],
        columns.bounds[: count + 1],
        columns.times_ms[:last],
        columns.ends[:last],
        columns.values[:size],
    )


def _in_order(columns: VersionColumns) -> VersionColumns:
    """Return the versions of each place in order of time. Of equal times the last one counts."""
    times = columns.times_ms
    ascends = np.append(np.diff(times) > 0, True)
    ascends[columns.bounds[1:-1] - 1] = True
    if ascends.all():
        return columns
    place = np.repeat(np.arange(len(columns.places)), np.diff(columns.bounds))
    order = np.lexsort((times, place))  # stable
    same = (np.diff(times[order]) == 0) & (np.diff(place[order]) == 0)
    order = order[np.append(~same, True)]
    counts = np.bincount(place[order], minlength=len(columns.places))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return _taken(columns, order)._replace(places=columns.places, bounds=bounds)


def _taken(columns: VersionColumns, index: Int64) -> VersionColumns:
    """Return the versions with these indexes, without places and bounds."""
    lengths = np.diff(columns.ends, prepend=0)
    chosen = lengths[index]
    values = np.frombuffer(columns.values, np.uint8)[spans(columns.ends[index] - chosen, chosen)].tobytes()
    return VersionColumns([], np.zeros(1, np.int64), columns.times_ms[index], np.cumsum(chosen), values)


def spans(starts: Int64, lengths: Int64) -> Int64:
    """Return the numbers of several spans, one after another.

    >>> spans(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    found: Int64 = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    return found


class Wanted(NamedTuple):
    """Which versions a read returns."""

    since_ms: int = 0
    until_ms: int = END_MS  # exclusive
    versions: int | None = None  # of each column, the newest in the range; None: all
    columns: Collection[bytes] | None = None  # None: all
    limit_bytes: int | None = None  # above about this size a read with arrays fails


ALL = Wanted()


class VersionedCells(Protocol):
    """Tables whose cells keep versions. They are apart from the other tables of the store, and have other names.

    Every call may be repeated. Cells of a row are in order of columns; those of a column follow each other, the newest
    first. A family keeps the newest `Family.versions` values of a column: writing an older one then changes nothing.
    On HBase a deleted version may hide one of the same time or an older one that is written later. `Store.sync` makes
    earlier puts durable. Any call may raise StoreError.
    """

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """Create the missing tables and return their names. Existing ones are not changed."""
        ...

    async def families(self, table: str) -> Mapping[bytes, int]:
        """Return how many versions each family of a table keeps. Raise NoTable."""
        ...

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """Write versions. One with the column and the time of a stored one replaces it; of several in one call the last
        one is kept. If the call fails, some of them may be written. Raise InvalidCell for a time out of range."""
        ...

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """Return the wanted cells of each row that has any."""
        ...

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """Return up to `limit` rows with wanted cells, from `start` to before `stop` (None: the end of the table). A
        page may end early: only `next_start` shows whether the range has ended."""
        ...

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """Delete the versions of some columns from `since_ms` to before `until_ms`. With a start, HBase and Bigtable
        may show an older one again that its family did not keep."""
        ...

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """Write versions as `put` does, given as columns. No place occurs twice, and no time of a place."""
        ...

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """Return the wanted versions of rows. Raise TooManyVersions above `wanted.limit_bytes`."""
        ...

    async def page_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL
    ) -> VersionPage:
        """Return a page as `page` does, as columns. Raise TooManyVersions as `get_columns` does."""
        ...


class CellwiseColumns:
    """The calls with arrays, for engines that read and write cell by cell."""

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        raise NotImplementedError

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> Mapping[bytes, list[Cell]]:
        """See VersionedCells."""
        raise NotImplementedError

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        raise NotImplementedError

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """See VersionedCells."""
        await self.put(table, columns.puts())

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """See VersionedCells. The limit is checked after the read."""
        columns = columns_of((await self.get(table, rows, wanted)).items())
        check_size(columns.size, wanted.limit_bytes)
        return columns

    async def page_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL
    ) -> VersionPage:
        """See VersionedCells."""
        page = await self.page(table, start, stop, limit=limit, wanted=wanted)
        columns = columns_of(page.rows)
        check_size(columns.size, wanted.limit_bytes)
        return VersionPage(columns, page.next_start)


def check_size(size: int, limit_bytes: int | None) -> None:
    """Raise TooManyVersions if a read has brought more than a limit."""
    if limit_bytes is not None and size > limit_bytes:
        raise TooManyVersions(f"got more than {limit_bytes} bytes of versions, wanted fewer: read a shorter range")
