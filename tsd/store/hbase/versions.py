"""Tables of HBase whose cells keep versions, through gateways of Thrift API version 2.

HBase removes versions above a family's limit when it compacts. Until then a range of times that ends before now would
show them. So reads of such families apply the end of the range themselves.

A delete leaves markers, which hide what is written later until a major compaction. A delete without a start leaves one
marker, at the newest version that it deletes: it hides versions of that time and older ones. A delete of a range leaves
a marker for each version: it hides versions of the same time.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

import trio

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.errors import NoTable
from tsd.store.cells import Cell, Page, Table
from tsd.store.hbase.calls import CONCURRENT_PARTS, GatewayCalls
from tsd.store.hbase.thrift2 import ALL_VERSIONS, LATEST, Selection, VersionsConnection
from tsd.store.retry import run_bounded
from tsd.store.rules import check_version
from tsd.store.versions import (
    ALL,
    END_MS,
    UNBOUNDED,
    VersionColumns,
    VersionPage,
    VersionPut,
    Wanted,
    check_size,
    columns_of,
    concatenate,
    gather,
    rows_of,
    select,
)

T = TypeVar("T")

BATCH_CELLS = 1000  # per putMultiple
GET_ROWS = 100  # per getMultiple
SMALL_COLUMNS, SMALL_VERSIONS = 256, 16_384  # about 0.3 ms of work
RANGE_VERSIONS = 1000  # of a column, that are deleted at once
NOTHING = columns_of([])


class HBaseVersions:
    """VersionedCells on gateways."""

    def __init__(
        self,
        calls: GatewayCalls[VersionsConnection],
        create_tables: Callable[[Sequence[Table]], Awaitable[list[str]]],
    ) -> None:
        """`create_tables` creates them through Thrift 1."""
        self._calls = calls
        self._create = create_tables
        self._families: dict[str, dict[bytes, int]] = {}

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        return await self._create(tables)

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells. They are read again: the table may have been altered."""
        self._families.pop(table, None)
        return await self._limits(table)

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells. Cells are written in parallel, in any order."""
        families = await self._limits(table)
        for cell in cells:
            check_version(families, cell)
        last = {(cell.row, cell.column, cell.time_ms): cell for cell in cells}
        kept = sorted(last.values(), key=attrgetter("row"))
        parts = (kept[at : at + BATCH_CELLS] for at in range(0, len(kept), BATCH_CELLS))

        async def write(part: Sequence[VersionPut]) -> None:
            await self._calls.call(VersionsConnection.put_versions, table, part)

        await self._spread(table, write, parts)

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """See VersionedCells."""
        await self.put(table, await trio.to_thread.run_sync(columns.puts))

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        columns = await self.get_columns(table, rows, wanted)
        return {row.key: row.cells for row in await trio.to_thread.run_sync(rows_of, columns)}

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """See VersionedCells. What is too much has been read already."""
        selections = _selections(await self._limits(table), wanted)
        keys = [row for row in dict.fromkeys(rows) if 0 < len(row) <= LONGEST_HBASE_KEY] if selections else []
        parts = [keys[at : at + GET_ROWS] for at in range(0, len(keys), GET_ROWS)]
        found: list[VersionColumns] = [NOTHING] * len(parts)

        async def read(number: int) -> None:
            found[number] = await self._calls.call(VersionsConnection.get_versions, table, parts[number], selections)

        await self._spread(table, read, range(len(parts)))
        columns = concatenate(found)
        check_size(columns.size, wanted.limit_bytes)
        if wanted.until_ms >= END_MS and len(selections) < 2:
            return columns
        if len(columns.places) <= SMALL_COLUMNS and len(columns.times_ms) <= SMALL_VERSIONS:
            return _within(columns, keys, wanted)
        return await trio.to_thread.run_sync(_within, columns, keys, wanted)

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        page = await self.page_columns(table, start, stop, limit=limit, wanted=wanted)
        return Page(await trio.to_thread.run_sync(rows_of, page.columns), page.next_start)

    async def page_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL
    ) -> VersionPage:
        """See VersionedCells. Each page opens, reads and closes a scanner."""
        selections = _selections(await self._limits(table), wanted)
        if not selections or (stop is not None and start >= stop):
            return VersionPage(NOTHING, None)
        read: list[VersionPage] = []

        async def scan(chosen: Selection) -> None:
            call = VersionsConnection.page_versions
            read.append(await self._calls.call(call, table, start, stop, limit, chosen))

        await self._spread(table, scan, [_joined(selections)])
        [page] = read
        check_size(page.columns.size, wanted.limit_bytes)
        if wanted.until_ms < END_MS:
            chosen = await trio.to_thread.run_sync(select, page.columns, wanted.until_ms, wanted.versions)
            page = page._replace(columns=chosen)
        return page

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells. Versions that are written meanwhile stay."""
        families = await self._limits(table)
        known = [column for column in columns if column.partition(b":")[0] in families and b":" in column]
        if not known or since_ms >= until_ms or not row:
            return
        if since_ms:
            selection = Selection(known, since_ms, until_ms, RANGE_VERSIONS)
            await self._spread(table, partial(self._delete_range, table, row), [selection])
            return

        async def remove(chosen: Selection) -> None:
            found = await self._calls.call(VersionsConnection.get_versions, table, [row], [chosen])
            if times := {column: int(found.times_ms[at]) for at, (_, column) in enumerate(found.places)}:
                await self._calls.call(VersionsConnection.delete_versions, table, row, times)

        await self._spread(table, remove, [Selection(known, 0, until_ms, 1)])

    async def _delete_range(self, table: str, row: bytes, chosen: Selection) -> None:
        """Delete versions one by one, until none is left: below one that is gone, HBase may still have an older one
        that its family does not keep."""
        while True:
            found = await self._calls.call(VersionsConnection.get_versions, table, [row], [chosen])
            if not found.places:
                return
            places = [(put.column, put.time_ms) for put in found.puts()]
            await self._calls.call(VersionsConnection.delete_exact, table, row, places)

    async def _limits(self, table: str) -> dict[bytes, int]:
        """Return how many versions each family of a table keeps."""
        limits = self._families.get(table)
        if limits is not None:
            await trio.lowlevel.checkpoint()
            return limits
        limits = self._families[table] = await self._calls.call(VersionsConnection.family_versions, table)
        return limits

    async def _spread(self, table: str, call: Callable[[T], Awaitable[None]], parts: Iterable[T]) -> None:
        """Make calls for parts. Forget the families of a table that is gone."""
        try:
            await run_bounded(parts, call, limit=CONCURRENT_PARTS)
        except NoTable:
            self._families.pop(table, None)
            raise


def _selections(families: dict[bytes, int], wanted: Wanted) -> list[Selection]:
    """Return what to ask HBase for: a superset of the wanted versions, and no others of families without a limit."""
    if wanted.since_ms >= min(wanted.until_ms, END_MS):
        return []
    columns = families if wanted.columns is None else [each for each in wanted.columns if _family(each) in families]
    versions = min(wanted.versions or ALL_VERSIONS, ALL_VERSIONS)
    if wanted.until_ms >= END_MS:
        named = None if wanted.columns is None else list(columns)
        return [Selection(named, wanted.since_ms, LATEST, versions)] if columns else []
    free = [each for each in columns if families[_family(each)] >= UNBOUNDED]
    limited = [each for each in columns if families[_family(each)] < UNBOUNDED]
    both = [
        Selection(free, wanted.since_ms, wanted.until_ms, versions),
        Selection(limited, wanted.since_ms, LATEST, ALL_VERSIONS),
    ]
    return [each for each in both if each.columns]


def _joined(selections: Sequence[Selection]) -> Selection:
    """Return one selection of a scan for those of `_selections`."""
    if len(selections) == 1:
        return selections[0]
    free, limited = selections
    endless = {_family(column): limited.since_ms for column in limited.columns or ()}
    columns = [*(free.columns or ()), *(limited.columns or ())]
    return Selection(columns, free.since_ms, free.until_ms, ALL_VERSIONS, endless)


def _family(column: bytes) -> bytes:
    return column.partition(b":")[0]


def _within(columns: VersionColumns, rows: Sequence[bytes], wanted: Wanted) -> VersionColumns:
    """Return the wanted versions of selections, in the order of rows and columns."""
    chosen = select(columns, wanted.until_ms, wanted.versions)
    number = {row: at for at, row in enumerate(rows)}
    keys = [(number[row], column) for row, column in chosen.places]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if order == list(range(len(keys))):
        return chosen
    return gather([(chosen.places[at], chosen, at) for at in order])
