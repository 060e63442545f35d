"""Tables of HBase whose cells keep versions, through gateways of Thrift API version 2.

HBase removes versions above a family's limit when it compacts, and a range of times that ends before now would show
them until then: of such families, reads select by the end of the range themselves.

A delete leaves markers, which hide what is written later until a major compaction: one without a start has a marker at
the newest version it deletes, for versions of that time and older ones; one of a range has a marker for each version,
for those of that time.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

import trio

from tsd.codec.opentsdb.rowkey import LONGEST_KEY
from tsd.errors import NoTable
from tsd.store.cells import Cell, Page, Row, Table
from tsd.store.hbase.calls import CONCURRENT_PARTS, GatewayCalls
from tsd.store.hbase.thrift2 import ALL_VERSIONS, LATEST, Selection, VersionsConnection
from tsd.store.retry import run_bounded
from tsd.store.rules import check_version
from tsd.store.versions import ALL, END_MS, UNBOUNDED, CellwiseColumns, VersionPut, Wanted

T = TypeVar("T")

BATCH_CELLS = 1000  # per putMultiple
GET_ROWS = 100  # per getMultiple
RANGE_VERSIONS = 1000  # of a column, that are deleted at once


class HBaseVersions(CellwiseColumns):
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

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        selections = _selections(await self._limits(table), wanted)
        found: dict[bytes, list[Cell]] = {}
        if not selections:
            return found

        async def read(part: Sequence[bytes]) -> None:
            found.update(await self._calls.call(VersionsConnection.get_versions, table, part, selections))

        keys = [row for row in dict.fromkeys(rows) if 0 < len(row) <= LONGEST_KEY]
        await self._spread(table, read, (keys[at : at + GET_ROWS] for at in range(0, len(keys), GET_ROWS)))
        return {row: cells for row, all_cells in found.items() if (cells := _within(all_cells, wanted))}

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells. Each page opens, reads and closes a scanner."""
        selections = _selections(await self._limits(table), wanted)
        if not selections or (stop is not None and start >= stop):
            return Page([], None)
        read: list[tuple[list[Row], bytes | None]] = []

        async def scan(chosen: Selection) -> None:
            call = VersionsConnection.page_versions
            read.append(await self._calls.call(call, table, start, stop, limit, chosen))

        await self._spread(table, scan, [_joined(selections)])
        [(rows, next_start)] = read
        return Page([Row(row.key, cells) for row in rows if (cells := _within(row.cells, wanted))], next_start)

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
            if times := {cell.column: cell.time_ms for cell in found.get(row, [])}:
                await self._calls.call(VersionsConnection.delete_versions, table, row, times)

        await self._spread(table, remove, [Selection(known, 0, until_ms, 1)])

    async def _delete_range(self, table: str, row: bytes, chosen: Selection) -> None:
        """Delete versions one by one, until none is left: below one that is gone, HBase may still have an older one
        that its family does not keep."""
        while found := await self._calls.call(VersionsConnection.get_versions, table, [row], [chosen]):
            places = [(cell.column, cell.time_ms) for cell in found[row]]
            await self._calls.call(VersionsConnection.delete_exact, table, row, places)

    async def _limits(self, table: str) -> dict[bytes, int]:
        """Return how many versions each family of a table keeps."""
        if table not in self._families:
            self._families[table] = await self._calls.call(VersionsConnection.family_versions, table)
        else:
            await trio.lowlevel.checkpoint()
        return self._families[table]

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


def _within(cells: Sequence[Cell], wanted: Wanted) -> list[Cell]:
    """Return the wanted cells of a selection's."""
    if wanted.until_ms >= END_MS:
        return list(cells)
    kept = [cell for cell in cells if cell.time_ms < wanted.until_ms]
    if wanted.versions is None:
        return kept
    return [cell for _, of_column in groupby(kept, attrgetter("column")) for cell in list(of_column)[: wanted.versions]]
