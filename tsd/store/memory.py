"""A store in memory: what the other engines are held against, and what tests run on. Nothing outlives the process."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import trio
from sortedcontainers import SortedDict

from tsd.errors import NoTable, StoreError
from tsd.store import Cell, Page, Put, Row, Table
from tsd.store.changes import Told
from tsd.store.counters import add, bytes_of
from tsd.store.limits import check_column, check_row

PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it


class MemoryStore:
    """Store on sorted dictionaries. Every call lets other tasks run first, and then happens in one go."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """`clock_ms` is the wall clock in Unix milliseconds; stamps never go back, and those of puts rise."""
        self._clock_ms = clock_ms
        self._last_ms = 0
        self._tables: dict[str, _Table] = {}
        self._count: Counter[str] = Counter()
        self._told: dict[str, Told] = {}

    def on_write(self, table: str, told: Told) -> None:
        """See TellsWrites."""
        self._told[table] = told

    def _tell(self, table: str, rows: Iterable[bytes]) -> None:
        if told := self._told.get(table):
            told(rows)

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:  # noqa: ARG002
        """See Store."""
        await self._enter("create_tables")
        made = [table for table in tables if table.name not in self._tables]
        self._tables.update((table.name, _Table(table)) for table in made)
        return [table.name for table in made]

    async def tables(self) -> list[str]:
        """See Store."""
        await self._enter("tables")
        return sorted(self._tables)

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        await self._enter("get")
        held = self._table(table)
        found = {row: held.cells(row, columns) for row in rows}
        return {row: cells for row, cells in found.items() if cells}

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        await self._enter("put")
        held = self._table(table)
        for row, column, _ in cells:
            held.check(row, column)
        stamp = self._stamp(rising=bool(cells)) if time_ms is None else time_ms
        self._tell(table, (cell.row for cell in cells))
        for row, column, value in cells:
            held.put(row, Cell(column, value, stamp))
        self._count["cells_put"] += len(cells)

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        await self._enter("delete")
        held = self._table(table)
        for row, names in columns.items():
            for column in names:
                held.check(row, column)
        self._tell(table, columns)
        for row, names in columns.items():
            for column in names:
                held.delete(row, column, self._stamp() if up_to_ms is None else up_to_ms)

    async def page(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        columns: Collection[bytes] | None = None,
    ) -> Page:
        """See Store."""
        await self._enter("page")
        held = self._table(table)
        rows: list[Row] = []
        size = 0
        for row in held.keys_between(start, stop):
            if len(rows) >= limit or size >= PAGE_BYTES:
                return Page(rows, row)
            if cells := held.cells(row, columns):
                rows.append(Row(row, cells))
                size += sum(len(cell.value) for cell in cells)
        return Page(rows, None)

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store."""
        await self._enter("check_and_put")
        self._tell(table, [row])
        return self._check_and_put(self._table(table), Put(row, column, value), expected)

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        await self._enter("create")
        held = self._table(table)
        self._tell(table, (cell.row for cell in cells))
        return [self._check_and_put(held, cell, None) for cell in cells]

    def _check_and_put(self, held: "_Table", cell: Put, expected: bytes | None) -> bool:
        held.check(cell.row, cell.column)
        stamp = self._stamp()
        before = held.cell(cell.row, cell.column)
        if before.value != (expected or b""):
            return False
        held.put(cell.row, Cell(cell.column, cell.value, max(stamp, before.time_ms)))
        self._count["cells_put"] += 1
        return True

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        await self._enter("increment")
        held = self._table(table)
        held.check(row, column)
        self._tell(table, [row])
        before = held.cell(row, column)
        total = add(before.value if before.time_ms >= 0 else None, by)
        held.put(row, Cell(column, bytes_of(total), max(self._stamp(), before.time_ms)))
        return total

    async def sync(self) -> None:
        """See Store."""
        await self._enter("sync")

    async def aclose(self) -> None:
        """See Store."""
        await trio.lowlevel.checkpoint()
        self._tables.clear()

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        return MappingProxyType(dict(self._count))

    async def _enter(self, call: str) -> None:
        self._count[call] += 1
        await trio.lowlevel.checkpoint()

    def _table(self, name: str) -> "_Table":
        if name not in self._tables:
            raise NoTable(f"there is no table {name}")
        return self._tables[name]

    def _stamp(self, *, rising: bool = False) -> int:
        self._last_ms = max(self._last_ms + rising, self._clock_ms())
        return self._last_ms


class _Table:
    """Rows in order, each a dictionary of its cells by column, none empty."""

    def __init__(self, table: Table) -> None:
        self._name = table.name
        self._families = {family.name for family in table.families}
        self._rows: SortedDict = SortedDict()

    def check(self, row: bytes, column: bytes) -> None:
        """Raise StoreError for a cell that the table cannot hold."""
        check_row(row)
        check_column(column)
        if column.partition(b":")[0] not in self._families:
            raise StoreError(f"table {self._name} has no family for column {column!r}")

    def cell(self, row: bytes, column: bytes) -> Cell:
        """A cell, or one that is older than any."""
        cells: dict[bytes, Cell] = self._rows.get(row, {})
        return cells.get(column, Cell(column, b"", -1))

    def cells(self, row: bytes, columns: Collection[bytes] | None) -> list[Cell]:
        """The cells of a row, in order."""
        cells: dict[bytes, Cell] = self._rows.get(row, {})
        return [cells[column] for column in sorted(cells) if columns is None or column in columns]

    def put(self, row: bytes, cell: Cell) -> None:
        """Write a cell unless the one that is there is newer."""
        if cell.time_ms >= self.cell(row, cell.column).time_ms:
            self._rows.setdefault(row, {})[cell.column] = cell

    def delete(self, row: bytes, column: bytes, up_to_ms: int) -> None:
        """Remove a cell that is no newer than that, and the row with its last one."""
        if 0 <= self.cell(row, column).time_ms <= up_to_ms:
            del self._rows[row][column]
            if not self._rows[row]:
                del self._rows[row]

    def keys_between(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """The rows from `start` to before `stop`, in order."""
        yield from self._rows.irange(start, stop, inclusive=(True, False))
