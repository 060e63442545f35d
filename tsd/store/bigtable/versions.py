"""Tables of Bigtable whose cells keep versions.

Bigtable has versions and ranges of times natively. It removes versions above a family's limit late, or never: reads
select the newest ones themselves, before they look at times. A delete leaves no marker.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

import trio

from tsd.codec.opentsdb.rowkey import LONGEST_BIGTABLE_KEY
from tsd.errors import InvalidCell, NoTable
from tsd.store.bigtable import messages
from tsd.store.cells import Cell, Page, Row, Table
from tsd.store.retry import run_bounded
from tsd.store.rules import check_version
from tsd.store.versions import ALL, END_MS, UNBOUNDED, CellwiseColumns, VersionPut, Wanted

LONGEST_QUALIFIER = 16 << 10
MOST_FILTER = 20_000  # bytes
BATCH_CELLS = 1000  # of one request
CONCURRENT_PARTS = 4  # of one call
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it


class Calls(Protocol):
    """The calls of the engine that versions are made of. They raise StoreError."""

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """Create the missing tables and return their names."""
        ...

    async def family_limits(self, table: str) -> dict[bytes, int]:
        """Return how many versions each family keeps, 0: all, or by another rule."""
        ...

    async def read_rows(self, table: str, rows: Collection[bytes], filters: Sequence[bytes]) -> dict[bytes, list[Cell]]:
        """Return what each of some filters leaves of rows."""
        ...

    async def read_page(
        self, table: str, start: bytes, stop: bytes | None, limit: int, filter_: bytes, most_bytes: int
    ) -> Page:
        """Return a page of what a filter leaves of rows."""
        ...

    async def mutate(self, table: str, entries: Sequence[bytes]) -> None:
        """Apply the mutations of rows."""
        ...


class BigtableVersions(CellwiseColumns):
    """VersionedCells of the engine."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._families: dict[str, dict[bytes, int]] = {}

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells. Raise StoreError if an existing table lacks a family."""
        return await self._calls.create_tables(tables)

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells. They are read again: the table may have been altered."""
        self._families.pop(table, None)
        return await self._limits(table)

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells. Cells are written in parallel, in any order."""
        families = await self._limits(table)
        for cell in cells:
            check_version(families, cell)
            if len(cell.row) > LONGEST_BIGTABLE_KEY or len(cell.column) > LONGEST_QUALIFIER:
                wanted = f"wanted {LONGEST_BIGTABLE_KEY} and {LONGEST_QUALIFIER} at most on Bigtable"
                raise InvalidCell(f"got a row key of {len(cell.row)} bytes, a column of {len(cell.column)}, {wanted}")
        last = {(cell.row, cell.column, cell.time_ms): cell for cell in cells}
        kept = sorted(last.values(), key=attrgetter("row"))

        async def write(at: int) -> None:
            await self._calls.mutate(table, messages.version_entries(kept[at : at + BATCH_CELLS]))

        await run_bounded(range(0, len(kept), BATCH_CELLS), write, limit=CONCURRENT_PARTS)

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        filters = _filters(await self._limits(table), wanted)
        keys = [row for row in dict.fromkeys(rows) if 0 < len(row) <= LONGEST_BIGTABLE_KEY]
        if not filters or not keys:
            return {}
        try:
            found = await self._calls.read_rows(table, keys, filters)
        except NoTable:
            self._families.pop(table, None)
            raise
        return {row: _ordered(cells) for row, cells in found.items()}

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        families = await self._limits(table)
        filters = _filters(families, wanted)
        if not filters or (stop is not None and start >= stop):
            return Page([], None)
        if len(filters) > 1:  # more columns than a filter may name
            filters = _filters(families, wanted._replace(columns=None))
        try:
            page = await self._calls.read_page(table, start, stop, limit, filters[0], PAGE_BYTES)
        except NoTable:
            self._families.pop(table, None)
            raise
        columns = wanted.columns
        rows = [
            Row(row.key, _ordered(cell for cell in row.cells if columns is None or cell.column in columns))
            for row in page.rows
        ]
        return Page([row for row in rows if row.cells], page.next_start)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells."""
        families = await self._limits(table)
        known = [column for column in columns if b":" in column and _family(column) in families]
        if known and since_ms < until_ms and row:
            await self._calls.mutate(table, [messages.delete_entry(row, known, until_ms - 1, since_ms)])

    async def _limits(self, table: str) -> dict[bytes, int]:
        """Return how many versions each family of a table keeps."""
        limits = self._families.get(table)
        if limits is not None:
            await trio.lowlevel.checkpoint()
            return limits
        found = await self._calls.family_limits(table)
        limits = self._families[table] = {family: versions or UNBOUNDED for family, versions in found.items()}
        return limits


def _family(column: bytes) -> bytes:
    return column.partition(b":")[0]


def _ordered(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells in the order of a read."""
    return sorted(cells, key=lambda cell: (cell.column, -cell.time_ms))


def _filters(families: Mapping[bytes, int], wanted: Wanted) -> list[bytes]:
    """Return filters whose answers together are the wanted versions: one, unless columns are too many for it."""
    if wanted.since_ms >= min(wanted.until_ms, END_MS):
        return []
    if wanted.columns is None:
        return [messages.either([_of_columns(None, family, kept, wanted) for family, kept in families.items()])]
    found: list[bytes] = []
    for family, kept in families.items():
        some: list[bytes] = []
        size = 0
        for column in sorted(column for column in wanted.columns if b":" in column and _family(column) == family):
            wide = 2 * len(column) + 24  # a range has the qualifier twice
            if some and size + wide > MOST_FILTER:
                found.append(_of_columns(some, family, kept, wanted))
                some, size = [], 0
            some.append(column)
            size += wide
        if some:
            found.append(_of_columns(some, family, kept, wanted))
    whole = sum(map(len, found))
    return [messages.either(found)] if found and whole <= MOST_FILTER else found


def _of_columns(columns: Sequence[bytes] | None, family: bytes, kept: int, wanted: Wanted) -> bytes:
    """Return a filter for the wanted versions of columns of a family, None: of all."""
    newest = None if kept >= UNBOUNDED else kept
    span = wanted.since_ms, min(wanted.until_ms, END_MS)
    return messages.versions_of(columns, family, newest, span if span != (0, END_MS) else None, wanted.versions)
