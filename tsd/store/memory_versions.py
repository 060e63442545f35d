"""Tables in memory whose cells keep versions."""

from collections.abc import Collection, Mapping, Sequence

import trio
from sortedcontainers import SortedDict

from tsd.errors import NoTable
from tsd.store.cells import Cell, Page, Row, Table
from tsd.store.rules import check_version
from tsd.store.versions import ALL, END_MS, CellwiseColumns, VersionPut, Wanted


class MemoryVersions(CellwiseColumns):
    """VersionedCells on dictionaries. Every call starts with a checkpoint and is atomic after it."""

    def __init__(self) -> None:
        self._tables: dict[str, _VersionTable] = {}

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        await trio.lowlevel.checkpoint()
        made = [table for table in tables if table.name not in self._tables]
        self._tables.update((table.name, _VersionTable(table)) for table in made)
        return [table.name for table in made]

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells."""
        return (await self._table(table)).families

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        stored = await self._table(table)
        for cell in cells:
            check_version(stored.families, cell)
        for cell in cells:
            stored.put(cell)

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        stored = await self._table(table)
        return {row: cells for row in rows if (cells := stored.cells(row, wanted))}

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        stored = await self._table(table)
        rows: list[Row] = []
        for row in stored.rows.irange(start, stop, inclusive=(True, False)):
            if len(rows) >= limit:
                return Page(rows, row)
            if cells := stored.cells(row, wanted):
                rows.append(Row(row, cells))
        return Page(rows, None)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells."""
        stored = await self._table(table)
        for column in columns:
            stored.delete(row, column, since_ms, until_ms)

    async def _table(self, name: str) -> "_VersionTable":
        await trio.lowlevel.checkpoint()
        if name not in self._tables:
            raise NoTable(f"there is no table {name} with versions")
        return self._tables[name]


class _VersionTable:
    """Rows in order, each a dictionary from column to values by time."""

    def __init__(self, table: Table) -> None:
        self.families = {family.name: family.versions for family in table.families}
        self.rows: SortedDict = SortedDict()

    def put(self, cell: VersionPut) -> None:
        """Write one version, and forget those that the family does not keep."""
        versions: dict[int, bytes] = self.rows.setdefault(cell.row, {}).setdefault(cell.column, {})
        versions[cell.time_ms] = cell.value
        for time_ms in sorted(versions, reverse=True)[self.families[cell.column.partition(b":")[0]] :]:
            del versions[time_ms]

    def cells(self, row: bytes, wanted: Wanted) -> list[Cell]:
        """Return the wanted cells of a row, in order."""
        found: list[Cell] = []
        columns: dict[bytes, dict[int, bytes]] = self.rows.get(row, {})
        for column in sorted(columns):
            if wanted.columns is None or column in wanted.columns:
                versions = columns[column]
                times = [each for each in sorted(versions, reverse=True) if wanted.since_ms <= each < wanted.until_ms]
                found += [Cell(column, versions[time_ms], time_ms) for time_ms in times[: wanted.versions]]
        return found

    def delete(self, row: bytes, column: bytes, since_ms: int, until_ms: int) -> None:
        """Delete the versions of a column from one time to before another."""
        versions: dict[int, bytes] = self.rows.get(row, {}).get(column, {})
        for time_ms in [each for each in versions if since_ms <= each < until_ms]:
            del versions[time_ms]
