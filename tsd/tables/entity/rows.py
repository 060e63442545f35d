"""Row keys of the tables of entities: the name, with a salt before it and a period after it if these are configured.

`tsd.entity.salt` spreads names that follow each other: two digits of a hash of the name and `#` come first.
`tsd.entity.period` bounds rows: `#` and five digits of the number of the period come last, and metadata stands in a row
without them. Each is a view of the tables whose rows are whole entities under their names.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from zlib import crc32

import numpy as np
import trio

from tsd.codec.entity.records import is_metadata
from tsd.errors import ILLEGAL_ARGUMENT, BadLine
from tsd.store.cells import Cell, Page, Table
from tsd.store.retry import run_bounded
from tsd.store.versions import (
    ALL,
    END_MS,
    VersionColumns,
    VersionedCells,
    VersionPage,
    VersionPut,
    Wanted,
    check_size,
    gather,
    rows_of,
    select,
)
from tsd.tables.entity.tables import ENTITIES

MARK = b"#"
AFTER_MARK = b"$"  # follows the mark
PERIOD_DIGITS = 5
LAST_PERIOD = 99_999  # it has no end
SUFFIX = len(MARK) + PERIOD_DIGITS
CONCURRENT = 8  # calls of the store
PAGE_ROWS = 1000


def check_name(name: bytes) -> None:
    """Raise BadLine for a name that cannot be told from a salt or a period."""
    if any(byte < AFTER_MARK[0] for byte in name):
        shown = name.decode("latin-1")
        wanted = "wanted one without ! and # with tsd.entity.salt or tsd.entity.period"
        raise BadLine(ILLEGAL_ARGUMENT, f"got the entity {shown!r}, {wanted}")


class SaltedRows:
    """A table of entities whose rows have a salt, as one without."""

    def __init__(self, cells: VersionedCells, salts: int) -> None:
        self._cells = cells
        self._prefixes = [b"%02d#" % salt for salt in range(salts)]

    def _key(self, row: bytes) -> bytes:
        """Return the stored key of a row. Periods do not count."""
        return self._prefixes[crc32(row.partition(MARK)[0]) % len(self._prefixes)] + row

    def _cut(self, columns: VersionColumns) -> VersionColumns:
        cut = len(self._prefixes[0])
        return columns._replace(places=[(row[cut:], column) for row, column in columns.places])

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        return await self._cells.create_tables(tables)

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells."""
        return await self._cells.families(table)

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        await self._cells.put(table, [cell._replace(row=self._key(cell.row)) for cell in cells])

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """See VersionedCells."""
        places = [(self._key(row), column) for row, column in columns.places]
        await self._cells.put_columns(table, columns._replace(places=places))

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        keys = {self._key(row): row for row in rows}
        return {keys[key]: cells for key, cells in (await self._cells.get(table, list(keys), wanted)).items()}

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """See VersionedCells."""
        return self._cut(await self._cells.get_columns(table, [self._key(row) for row in rows], wanted))

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        page = await self.page_columns(table, start, stop, limit=limit, wanted=wanted)
        return Page(await trio.to_thread.run_sync(rows_of, page.columns), page.next_start)

    async def page_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL
    ) -> VersionPage:
        """See VersionedCells. The page ends where the first of the salts' pages does."""
        pages: list[VersionPage] = []

        async def read(prefix: bytes) -> None:
            end = prefix[:-1] + AFTER_MARK if stop is None else prefix + stop
            pages.append(await self._cells.page_columns(table, prefix + start, end, limit=limit, wanted=wanted))

        await run_bounded(self._prefixes, read, limit=CONCURRENT)
        cut = len(self._prefixes[0])
        ends = [page.next_start[cut:] for page in pages if page.next_start is not None]
        next_start = min(ends, default=None)
        return await trio.to_thread.run_sync(_merged, [self._cut(page.columns) for page in pages], next_start, limit)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells."""
        await self._cells.delete(table, self._key(row), columns, since_ms=since_ms, until_ms=until_ms)


def _merged(parts: Sequence[VersionColumns], next_start: bytes | None, limit: int) -> VersionPage:
    """Return the first rows of several pages, up to `limit` and before `next_start`."""
    rows = sorted({row for part in parts for row, _ in part.places if next_start is None or row < next_start})
    if len(rows) > limit:
        next_start, rows = rows[limit], rows[:limit]
    wanted = set(rows)
    chosen = [(place, part, at) for part in parts for at, place in enumerate(part.places) if place[0] in wanted]
    return VersionPage(gather(sorted(chosen, key=lambda one: one[0])), next_start)


class PeriodRows:
    """The table of entities with a row for each period of an entity, as one with a row for each entity."""

    def __init__(self, cells: VersionedCells, period_ms: int) -> None:
        self._cells = cells
        self._period_ms = period_ms

    def _number(self, time_ms: int) -> int:
        return min(time_ms // self._period_ms, LAST_PERIOD)

    def _key(self, name: bytes, column: bytes, time_ms: int) -> bytes:
        """Return the row of a version."""
        return name if is_metadata(column) else b"%b#%05d" % (name, self._number(time_ms))

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        return await self._cells.create_tables(tables)

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells."""
        return await self._cells.families(table)

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        if table != ENTITIES.name:
            await self._cells.put(table, cells)
            return
        await self._cells.put(
            table, [cell._replace(row=self._key(cell.row, cell.column, cell.time_ms)) for cell in cells]
        )

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """See VersionedCells."""
        if table != ENTITIES.name:
            await self._cells.put_columns(table, columns)
            return
        await self._cells.put_columns(table, await trio.to_thread.run_sync(self._split, columns))

    def _split(self, columns: VersionColumns) -> VersionColumns:
        """Return columns of each period."""
        numbers = columns.times_ms // self._period_ms
        places: list[tuple[bytes, bytes]] = []
        bounds: list[int] = []
        for at, (name, column) in enumerate(columns.places):
            first, last = columns.bounds[at : at + 2].tolist()
            cuts = [] if is_metadata(column) else (np.flatnonzero(np.diff(numbers[first:last])) + 1 + first).tolist()
            for cut in (first, *cuts):
                places.append((self._key(name, column, int(columns.times_ms[cut])), column))
                bounds.append(cut)
        return columns._replace(places=places, bounds=np.array([*bounds, len(columns.times_ms)], np.int64))

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        if table != ENTITIES.name:
            return await self._cells.get(table, rows, wanted)
        columns = await self.get_columns(table, list(dict.fromkeys(rows)), wanted)
        return {row.key: row.cells for row in await trio.to_thread.run_sync(rows_of, columns)}

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """See VersionedCells. Of each entity, metadata and points are read at the same time."""
        if table != ENTITIES.name:
            return await self._cells.get_columns(table, rows, wanted)
        names = [name for name in dict.fromkeys(rows) if MARK not in name]
        found: dict[bytes, list[VersionColumns]] = {}

        async def read(name: bytes) -> None:
            found[name] = await self._parts(table, name, wanted)

        await run_bounded(names, read, limit=CONCURRENT)
        ordered = [part for name in names for part in found[name]]
        check_size(sum(part.size for part in ordered), wanted.limit_bytes)
        return await trio.to_thread.run_sync(self._whole, ordered, wanted.versions)

    async def _parts(self, table: str, name: bytes, wanted: Wanted) -> list[VersionColumns]:
        """Return the rows of an entity."""
        parts: list[VersionColumns] = []
        metadata: list[VersionColumns] = []

        async def read_metadata() -> None:
            metadata.append(await self._cells.get_columns(table, [name], wanted))

        async def read_points() -> None:
            at: bytes | None = b"%b#%05d" % (name, self._number(wanted.since_ms))
            stop = b"%b#%05d\0" % (name, self._number(max(wanted.until_ms - 1, 0)))
            while at is not None:
                page = await self._cells.page_columns(table, at, stop, limit=PAGE_ROWS, wanted=wanted)
                parts.append(page.columns)
                check_size(sum(part.size for part in parts), wanted.limit_bytes)
                at = page.next_start

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_metadata)
            nursery.start_soon(read_points)
        return metadata + parts

    def _whole(self, parts: Iterable[VersionColumns], versions: int | None) -> VersionColumns:
        """Return the rows of periods as rows of entities, with the newest `versions` of each column."""
        chosen = [
            ((_name_of(row), column), row, part, at) for part in parts for at, (row, column) in enumerate(part.places)
        ]
        chosen.sort(key=lambda one: one[:2])
        whole = gather([(place, part, at) for place, _, part, at in chosen])
        return select(whole, END_MS, versions)

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        if table != ENTITIES.name:
            return await self._cells.page(table, start, stop, limit=limit, wanted=wanted)
        page = await self.page_columns(table, start, stop, limit=limit, wanted=wanted)
        return Page(await trio.to_thread.run_sync(rows_of, page.columns), page.next_start)

    async def page_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL
    ) -> VersionPage:
        """See VersionedCells. Pages of rows are read until they have whole entities."""
        if table != ENTITIES.name:
            return await self._cells.page_columns(table, start, stop, limit=limit, wanted=wanted)
        parts: list[VersionColumns] = []
        names: set[bytes] = set()
        at: bytes | None = start
        if stop is not None and stop.endswith(b"\0"):  # what follows a name follows its periods
            stop = stop[:-1] + AFTER_MARK
        while at is not None and len(names) <= limit:
            page = await self._cells.page_columns(table, at, stop, limit=max(limit, PAGE_ROWS), wanted=wanted)
            parts.append(page.columns)
            check_size(sum(part.size for part in parts), wanted.limit_bytes)
            names.update(_name_of(row) for row, _ in page.columns.places)
            at = page.next_start
        whole = await trio.to_thread.run_sync(self._whole, parts, wanted.versions)
        ordered = sorted(names)
        if len(ordered) <= limit:
            return VersionPage(whole, None)
        next_start = ordered[limit]
        count = sum(1 for row, _ in whole.places if row < next_start)
        chosen = [(place, whole, index) for index, place in enumerate(whole.places[:count])]
        return VersionPage(await trio.to_thread.run_sync(gather, chosen), next_start)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells. The oldest rows are first."""
        if table != ENTITIES.name:
            await self._cells.delete(table, row, columns, since_ms=since_ms, until_ms=until_ms)
            return
        if texts := [column for column in columns if is_metadata(column)]:
            await self._cells.delete(table, row, texts, since_ms=since_ms, until_ms=until_ms)
        points = [column for column in columns if not is_metadata(column)]
        at: bytes | None = row + MARK
        while points and at is not None:
            wanted = Wanted(since_ms, until_ms, versions=1, columns=frozenset(points))
            page = await self._cells.page_columns(table, at, row + AFTER_MARK, limit=PAGE_ROWS, wanted=wanted)
            for key in dict.fromkeys(key for key, _ in page.columns.places):
                await self._cells.delete(table, key, points, since_ms=since_ms, until_ms=until_ms)
            at = page.next_start


def _name_of(row: bytes) -> bytes:
    return row[:-SUFFIX] if row[-SUFFIX:-PERIOD_DIGITS] == MARK else row


def keyed(cells: VersionedCells, period_ms: int, salts: int) -> VersionedCells:
    """Return the tables of entities with the configured row keys, 0: neither salt nor period."""
    if salts:
        cells = SaltedRows(cells, salts)
    return PeriodRows(cells, period_ms) if period_ms else cells
