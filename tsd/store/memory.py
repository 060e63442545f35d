"""A store in memory: the reference for the other engines, and the store of unit tests. It is not persistent."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import MappingProxyType

import trio
from sortedcontainers import SortedDict

from tsd.errors import InvalidCell, NoTable
from tsd.store import (
    AtomicRewrites,
    Capabilities,
    Cell,
    JoinCells,
    OnWrite,
    OptionalParts,
    Page,
    Put,
    Rewrite,
    Row,
    Table,
)
from tsd.store.memory_versions import MemoryVersions
from tsd.store.rules import add, bytes_of, check_column, check_row
from tsd.store.timing import Latency

PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it


class MemoryStore(OptionalParts):
    """Store on sorted dictionaries. Every call starts with a checkpoint and is atomic after it."""

    capabilities = Capabilities(ascending_timestamps=True, shared=False, filters_rows=False, parallel_scans=1)
    latencies: Mapping[str, Latency] = MappingProxyType({})

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """`clock_ms` is the wall clock in Unix milliseconds. Timestamps never fall, and each put gets a higher one than
        all calls before."""
        self._clock_ms = clock_ms
        self._versions = MemoryVersions()
        self._last_ms = 0
        self._tables: dict[str, _Table] = {}
        self._count: Counter[str] = Counter()
        self._subscribers: dict[str, OnWrite] = {}

    @property
    def versioned_cells(self) -> MemoryVersions:
        """See Store."""
        return self._versions

    @property
    def change_feed(self) -> "MemoryStore":
        """See Store."""
        return self

    def subscribe(self, table: str, on_write: OnWrite) -> None:
        """See ChangeFeed."""
        self._subscribers[table] = on_write

    def _notify(self, table: str, rows: Iterable[bytes]) -> None:
        if on_write := self._subscribers.get(table):
            on_write(rows)

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
        stored = self._table(table)
        found = {row: stored.cells(row, columns) for row in rows}
        return {row: cells for row, cells in found.items() if cells}

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        await self._enter("put")
        stored = self._table(table)
        for row, column, _ in cells:
            stored.check(row, column)
        if not cells:
            return
        stamp = self._stamp(rising=True) if time_ms is None else time_ms
        self._notify(table, (cell.row for cell in cells))
        for row, column, value in cells:
            stored.put(row, Cell(column, value, stamp))
        self._count["cells_put"] += len(cells)

    @property
    def wide_rows(self) -> "MemoryStore":
        """See Store."""
        return self

    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """See WideRows."""
        found = await self.get(table, rows)
        kept = {row: [cell for cell in cells if first <= cell.column <= last] for row, cells in found.items()}
        return {row: cells for row, cells in kept.items() if cells}

    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """See WideRows."""
        await self._enter("row_keys")
        return list(islice(self._table(table).keys_between(start, stop), limit))

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """See WideRows."""
        await self.put(table, cells)

    @property
    def atomic_rewrites(self) -> "AtomicRewrites | None":
        """See Store."""
        return self

    @contextmanager
    def watching(self, table: str, rows: Collection[bytes]) -> Iterator[Collection[bytes]]:
        """See AtomicRewrites. `rewrite` checks every row."""
        self._table(table)
        yield rows

    async def rewrite(
        self,
        table: str,
        changes: Sequence[Rewrite],
        *,
        written: Collection[bytes] | None = None,  # noqa: ARG002
    ) -> list[bool]:
        """See AtomicRewrites."""
        await self._enter("rewrite")
        stored = self._table(table)
        for change in changes:
            for place in change.places:
                stored.check(*place)
        done = [stored.permits(change) for change in changes]
        self._notify(table, [change.row for change, is_done in zip(changes, done, strict=True) if is_done])
        for change, is_done in zip(changes, done, strict=True):
            if is_done:
                for _, column, value in change.puts:
                    stored.put(change.row, Cell(column, value, change.time_ms))
                for column, up_to_ms in change.deletes:
                    stored.delete(change.row, column, up_to_ms)
        return done

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:
        """See AtomicRewrites."""
        await self._enter("join")
        stored = self._table(table)
        cells = {row: found for row in rows if (found := stored.cells(row, None))}
        joined = {row: made for row, found in cells.items() if (made := join(row, found)) is not None}
        self._notify(table, joined)
        for row, (column, value) in joined.items():
            for cell in cells[row]:
                stored.delete(row, cell.column, cell.time_ms)
            stored.put(row, Cell(column, value, max(cell.time_ms for cell in cells[row])))
        return list(joined)

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        await self._enter("delete")
        stored = self._table(table)
        for row, names in columns.items():
            for column in names:
                stored.check(row, column)
        self._notify(table, columns)
        for row, names in columns.items():
            for column in names:
                stored.delete(row, column, self._stamp() if up_to_ms is None else up_to_ms)

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
        stored = self._table(table)
        rows: list[Row] = []
        size = 0
        for row in stored.keys_between(start, stop):
            if len(rows) >= limit or size >= PAGE_BYTES:
                return Page(rows, row)
            if cells := stored.cells(row, columns):
                rows.append(Row(row, cells))
                size += sum(len(cell.value) for cell in cells)
        return Page(rows, None)

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store."""
        await self._enter("check_and_put")
        self._notify(table, [row])
        return self._check_and_put(self._table(table), Put(row, column, value), expected)

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        await self._enter("create")
        stored = self._table(table)
        self._notify(table, (cell.row for cell in cells))
        return [self._check_and_put(stored, cell, None) for cell in cells]

    def _check_and_put(self, stored: "_Table", cell: Put, expected: bytes | None) -> bool:
        stored.check(cell.row, cell.column)
        stamp = self._stamp()
        before = stored.cell(cell.row, cell.column)
        if before.value != (expected or b""):
            return False
        stored.put(cell.row, Cell(cell.column, cell.value, max(stamp, before.time_ms)))
        self._count["cells_put"] += 1
        return True

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        await self._enter("increment")
        stored = self._table(table)
        stored.check(row, column)
        self._notify(table, [row])
        before = stored.cell(row, column)
        total = add(before.value if before.time_ms >= 0 else None, by)
        stored.put(row, Cell(column, bytes_of(total), max(self._stamp(), before.time_ms)))
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
    """Rows in order, each a dictionary of one or more cells by column."""

    def __init__(self, table: Table) -> None:
        self._name = table.name
        self._families = {family.name for family in table.families}
        self._rows: SortedDict = SortedDict()

    def check(self, row: bytes, column: bytes) -> None:
        """Raise InvalidCell for an invalid row key, or a column without a family of the table."""
        check_row(row)
        check_column(column)
        if column.partition(b":")[0] not in self._families:
            raise InvalidCell(f"table {self._name} has no family for column {column!r}")

    def cell(self, row: bytes, column: bytes) -> Cell:
        """Return a cell. If it is absent, return an empty one with the timestamp -1."""
        cells: dict[bytes, Cell] = self._rows.get(row, {})
        return cells.get(column, Cell(column, b"", -1))

    def cells(self, row: bytes, columns: Collection[bytes] | None) -> list[Cell]:
        """Return the cells of a row, in order."""
        cells: dict[bytes, Cell] = self._rows.get(row, {})
        return [cells[column] for column in sorted(cells) if columns is None or column in columns]

    def permits(self, change: Rewrite) -> bool:
        """Return whether no cell to write is stored with a later timestamp and another value, and those to keep are
        stored."""
        if any(self.cell(change.row, column).time_ms < time_ms for column, time_ms in change.kept):
            return False
        stored = [(put.value, self.cell(change.row, put.column)) for put in change.puts]
        return not any(cell.time_ms > change.time_ms and cell.value != value for value, cell in stored)

    def put(self, row: bytes, cell: Cell) -> None:
        """Write a cell unless the stored one is newer."""
        if cell.time_ms >= self.cell(row, cell.column).time_ms:
            self._rows.setdefault(row, {})[cell.column] = cell

    def delete(self, row: bytes, column: bytes, up_to_ms: int) -> None:
        """Delete a cell if its timestamp is at most `up_to_ms`, and the row with its last cell."""
        if 0 <= self.cell(row, column).time_ms <= up_to_ms:
            del self._rows[row][column]
            if not self._rows[row]:
                del self._rows[row]

    def keys_between(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the row keys from `start` to before `stop`, in order."""
        yield from self._rows.irange(start, stop, inclusive=(True, False))
