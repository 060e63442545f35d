"""The table of entities has a row that says with which salt and period its row keys were made.

Under other settings these rows would not be found, and points would go to other ones. So every call is refused then.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tsd.codec.entity.records import FORM_ROW, form_columns, metadata_time
from tsd.errors import WrongTable
from tsd.store.cells import Cell, Page, Table
from tsd.store.versions import (
    ALL,
    END_MS,
    VersionColumns,
    VersionedCells,
    VersionPage,
    VersionPut,
    Wanted,
    columns_of,
)
from tsd.tables.entity.rows import keyed
from tsd.tables.entity.tables import ENTITIES


class RowForm(NamedTuple):
    """How row keys are made."""

    period_s: int  # of a row, 0: all times
    salts: int  # 0: no prefix


class FormedRows:
    """The tables of entities with the configured row keys. Calls raise WrongTable if the rows have others.

    The first write to a table that has no form sets it.
    """

    def __init__(self, cells: VersionedCells, form: RowForm) -> None:
        self._cells = cells
        self._rows = keyed(cells, form.period_s * 1000, form.salts)
        self._form = form
        self._is_checked = False

    async def check(self, *, sets: bool = False) -> None:
        """Raise WrongTable for another form than the configured one. `sets`: write the form if there is none."""
        if self._is_checked:
            return
        wanted = form_columns(self._form.period_s, self._form.salts)
        stored = {
            cell.column: cell.value for cell in (await self._cells.get(ENTITIES.name, [FORM_ROW])).get(FORM_ROW, [])
        }
        if not stored and not sets:
            return
        if not stored:
            time_ms = metadata_time(0)
            puts = [VersionPut(FORM_ROW, column, value, time_ms) for column, (value, _) in wanted.items()]
            await self._cells.put(ENTITIES.name, puts)
        for column, value in stored.items():
            configured, key = wanted.get(column, (b"", column.decode("latin-1")))
            if value != configured:
                got, kept = configured.decode("latin-1"), value.decode("latin-1")
                raise WrongTable(
                    f"{key}: got {got!r}, wanted {kept!r}, with which the rows of {ENTITIES.name} were made"
                )
        self._is_checked = True

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        made = await self._rows.create_tables(tables)
        if any(table.name == ENTITIES.name for table in tables):
            await self.check(sets=True)
        return made

    async def families(self, table: str) -> Mapping[bytes, int]:
        """See VersionedCells."""
        found = await self._rows.families(table)
        await self.check()
        return found

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        await self.check(sets=True)
        await self._rows.put(table, cells)

    async def put_columns(self, table: str, columns: VersionColumns) -> None:
        """See VersionedCells."""
        await self.check(sets=True)
        await self._rows.put_columns(table, columns)

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        await self.check()
        return await self._rows.get(table, rows, wanted)

    async def get_columns(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> VersionColumns:
        """See VersionedCells."""
        await self.check()
        names = [row for row in rows if row != FORM_ROW]  # a client may ask for any name
        return await self._rows.get_columns(table, names, wanted) if names else columns_of([])

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        await self.check()
        return await self._rows.page(table, start, stop, limit=limit, wanted=wanted)

    async def page_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL
    ) -> VersionPage:
        """See VersionedCells."""
        await self.check()
        return await self._rows.page_columns(table, start, stop, limit=limit, wanted=wanted)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells."""
        await self.check()
        await self._rows.delete(table, row, columns, since_ms=since_ms, until_ms=until_ms)
