"""Wraps a store of any engine, and counts its load by range of row keys.

Not counted are deletes, signatures, derived values, versions of cells, and statements of layouts with tables of their
own.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import TYPE_CHECKING

from tsd.store import (
    AtomicRewrites,
    Capabilities,
    Cell,
    CellGets,
    CellMatrix,
    CellPage,
    CellReader,
    CellSignatures,
    ChangeFeed,
    ColumnBlocks,
    ColumnPart,
    Cursor,
    DerivedValues,
    Folded,
    JoinCells,
    Page,
    Put,
    RangeDeletes,
    RangeOf,
    Rewrite,
    Snapshots,
    StampedCells,
    StampedDelete,
    StampedPut,
    StampedSpan,
    StepLimit,
    Store,
    Table,
    VersionedCells,
    WideRows,
)
from tsd.store.key_load import KeyLoad
from tsd.store.timing import Latency

if TYPE_CHECKING:  # types of an engine's driver
    from tsd.store.cassandra.session import Connector

_MATRIX_VALUE_BYTES = 8  # of a value in a CellMatrix


class CountedStore:
    """A store whose puts and reads are counted. It behaves like the store that it wraps."""

    def __init__(self, store: Store, load: KeyLoad) -> None:
        self._store = store
        self._load = load

    @property
    def capabilities(self) -> Capabilities:
        """See Store."""
        return self._store.capabilities

    @property
    def cell_reader(self) -> CellReader | None:
        """See Store."""
        reader = self._store.cell_reader
        return None if reader is None else _CountedReader(reader, self._load)

    @property
    def cell_gets(self) -> CellGets | None:
        """See Store."""
        gets = self._store.cell_gets
        return None if gets is None else _CountedGets(gets, self._load)

    @property
    def change_feed(self) -> ChangeFeed | None:
        """See Store."""
        return self._store.change_feed

    @property
    def cell_signatures(self) -> CellSignatures | None:
        """See Store."""
        return self._store.cell_signatures

    @property
    def range_deletes(self) -> RangeDeletes | None:
        """See Store."""
        return self._store.range_deletes

    @property
    def snapshots(self) -> Snapshots | None:
        """See Store."""
        return self._store.snapshots

    @property
    def column_blocks(self) -> ColumnBlocks | None:
        """See Store."""
        blocks = self._store.column_blocks
        return None if blocks is None else _CountedBlocks(blocks, self._load)

    @property
    def versioned_cells(self) -> VersionedCells | None:
        """See Store."""
        return self._store.versioned_cells

    @property
    def wide_rows(self) -> WideRows | None:
        """See Store."""
        wide = self._store.wide_rows
        return None if wide is None else _CountedWideRows(wide, self._load)

    @property
    def atomic_rewrites(self) -> AtomicRewrites | None:
        """See Store."""
        rewrites = self._store.atomic_rewrites
        return None if rewrites is None else _CountedRewrites(rewrites, self._load)

    @property
    def stamped_cells(self) -> StampedCells | None:
        """See Store."""
        stamped = self._store.stamped_cells
        return None if stamped is None else _CountedStamped(stamped, self._load)

    @property
    def derived_values(self) -> DerivedValues | None:
        """See Store."""
        derived = self._store.derived_values
        return None if derived is None else _CountedDerived(derived, self._load)

    @property
    def cql(self) -> "Connector | None":
        """See Store."""
        return self._store.cql

    @property
    def latencies(self) -> Mapping[str, Latency]:
        """See Store."""
        return self._store.latencies

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """See Store."""
        return await self._store.create_tables(tables, compression=compression)

    async def tables(self) -> list[str]:
        """See Store."""
        return await self._store.tables()

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        found = await self._store.get(table, rows, columns=columns)
        self._load.read_rows(table, list(found.items()))
        return found

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        await self._store.put(table, cells, time_ms=time_ms)
        self._load.wrote(table, cells)

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        await self._store.delete(table, columns, up_to_ms=up_to_ms)

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
        page = await self._store.page(table, start, stop, limit=limit, columns=columns)
        self._load.read_rows(table, page.rows)
        return page

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store."""
        is_written = await self._store.check_and_put(table, row, column, value, expected=expected)
        if is_written:
            self._load.wrote(table, [Put(row, column, value)])
        return is_written

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        created = await self._store.create(table, cells)
        self._load.wrote(table, [cell for cell, is_new in zip(cells, created, strict=True) if is_new])
        return created

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        number = await self._store.increment(table, row, column, by)
        self._load.wrote(table, [Put(row, column, bytes(8))])
        return number

    async def sync(self) -> None:
        """See Store."""
        await self._store.sync()

    async def aclose(self) -> None:
        """See Store."""
        await self._store.aclose()

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        return self._store.statistics()


class _CountedReader:
    def __init__(self, reader: CellReader, load: KeyLoad) -> None:
        self._reader = reader
        self._load = load

    async def read_cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        page = await self._reader.read_cells(table, start, stop, limit_bytes=limit_bytes, cursor=cursor)
        self._load.read_keys(table, page.keys)
        return page

    async def close_cursor(self, table: str, cursor: Cursor) -> None:
        await self._reader.close_cursor(table, cursor)


class _CountedGets:
    def __init__(self, gets: CellGets, load: KeyLoad) -> None:
        self._gets = gets
        self._load = load

    async def get_cells(self, table: str, rows: Sequence[bytes]) -> CellPage:
        page = await self._gets.get_cells(table, rows)
        self._load.read_keys(table, page.keys)
        return page


class _CountedWideRows:
    def __init__(self, wide: WideRows, load: KeyLoad) -> None:
        self._wide = wide
        self._load = load

    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        found = await self._wide.get_between(table, rows, first, last)
        self._load.read_rows(table, list(found.items()))
        return found

    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        keys = await self._wide.row_keys(table, start, stop, limit=limit)
        self._load.read_keys(table, keys)
        return keys

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        await self._wide.replace(table, cells)
        self._load.wrote(table, cells)


class _CountedRewrites:
    def __init__(self, rewrites: AtomicRewrites, load: KeyLoad) -> None:
        self._rewrites = rewrites
        self._load = load

    def watching(self, table: str, rows: Collection[bytes]) -> AbstractContextManager[Collection[bytes]]:
        return self._rewrites.watching(table, rows)

    async def rewrite(
        self, table: str, changes: Sequence[Rewrite], *, written: Collection[bytes] | None = None
    ) -> list[bool]:
        changed = await self._rewrites.rewrite(table, changes, written=written)
        puts = [put for change, is_done in zip(changes, changed, strict=True) if is_done for put in change.puts]
        self._load.wrote(table, puts)
        return changed

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:
        read: dict[bytes, Sequence[tuple[bytes, bytes, int]]] = {}
        puts: dict[bytes, Put] = {}

        def counted(row: bytes, cells: Sequence[tuple[bytes, bytes, int]]) -> tuple[bytes, bytes] | None:
            made = join(row, cells)
            read[row] = cells
            if made is not None:
                puts[row] = Put(row, *made)
            return made

        changed = await self._rewrites.join(table, rows, counted)
        self._load.read_rows(table, list(read.items()))
        self._load.wrote(table, [puts[row] for row in changed])
        return changed


class _CountedStamped:
    def __init__(self, stamped: StampedCells, load: KeyLoad) -> None:
        self._stamped = stamped
        self._load = load

    async def put(self, table: str, cells: Sequence[StampedPut]) -> None:
        await self._stamped.put(table, cells)
        self._load.wrote(table, [Put(*cell[:3]) for cell in cells])

    async def get(
        self, table: str, places: Collection[tuple[bytes, bytes]], *, row_cells: int = 0
    ) -> dict[bytes, list[Cell]]:
        found = await self._stamped.get(table, places, row_cells=row_cells)
        self._load.read_rows(table, list(found.items()))
        return found

    async def delete(self, table: str, cells: Sequence[StampedDelete]) -> None:
        await self._stamped.delete(table, cells)

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        await self._stamped.delete_spans(table, spans)

    async def delete_rows(self, table: str, start: bytes, stop: bytes, *, up_to_ms: int) -> None:
        await self._stamped.delete_rows(table, start, stop, up_to_ms=up_to_ms)


class _CountedDerived:
    """Cells that are put with derived values are counted, these values are not."""

    def __init__(self, derived: DerivedValues, load: KeyLoad) -> None:
        self._derived = derived
        self._load = load

    async def derive(
        self, table: str, prefix: bytes, compute: Callable[[], Awaitable[Mapping[bytes, bytes] | None]]
    ) -> bool:
        return await self._derived.derive(table, prefix, compute)

    async def put_new(
        self, table: str, prefix: bytes, parts: Iterator[CellMatrix], values: Mapping[bytes, bytes] | None
    ) -> bool:
        cells = 0

        def counted() -> Iterator[CellMatrix]:
            nonlocal cells
            for part in parts:
                cells += part.cells
                yield part

        with_values = await self._derived.put_new(table, prefix, counted(), values)
        self._load.wrote_range(table, prefix, cells, cells * _MATRIX_VALUE_BYTES)
        return with_values

    async def derived(self, table: str, prefixes: Sequence[bytes], kinds: bytes) -> dict[bytes, dict[bytes, bytes]]:
        return await self._derived.derived(table, prefixes, kinds)


class _CountedBlocks:
    """Reads of blocks and what is written to them are counted; folding moves cells and is not."""

    def __init__(self, blocks: ColumnBlocks, load: KeyLoad) -> None:
        self._blocks = blocks
        self._load = load

    async def fold(self, table: str, prefix: bytes, *, least_rows: int = 1) -> Folded:
        return await self._blocks.fold(table, prefix, least_rows=least_rows)

    async def remove_damaged(self, table: str, prefix: bytes) -> int:
        return await self._blocks.remove_damaged(table, prefix)

    async def write(self, table: str, puts: Sequence[Put], *, width: int, least_rows: int = 1) -> list[Put]:
        left = await self._blocks.write(table, puts, width=width, least_rows=least_rows)
        if len(left) < len(puts):
            rest = {id(put) for put in left}
            self._load.wrote(table, [put for put in puts if id(put) not in rest])
        return left

    async def next_unfolded(self, table: str, start: bytes, stop: bytes | None) -> bytes | None:
        return await self._blocks.next_unfolded(table, start, stop)

    async def get_columns(self, table: str, rows: Sequence[bytes]) -> list[ColumnPart]:
        parts = await self._blocks.get_columns(table, rows)
        self._count(table, parts)
        return parts

    def get_columns_now(self, table: str, rows: Sequence[bytes], limit: StepLimit) -> list[ColumnPart] | None:
        parts = self._blocks.get_columns_now(table, rows, limit)
        self._count(table, parts or ())
        return parts

    def read_columns_now(
        self, table: str, start: bytes, stop: bytes | None, limit: StepLimit
    ) -> list[ColumnPart] | None:
        parts = self._blocks.read_columns_now(table, start, stop, limit)
        self._count(table, parts or ())
        return parts

    def kept_read(self, parts: list[ColumnPart]) -> object | None:
        return self._blocks.kept_read(parts)

    def read_again(self, table: str, read: object, limit: StepLimit) -> list[ColumnPart] | None:
        parts = self._blocks.read_again(table, read, limit)
        if parts:
            self._count(table, parts)
        return parts

    async def read_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, range_of: RangeOf | None = None
    ) -> AsyncGenerator[list[ColumnPart], None]:
        read = self._blocks.read_columns(table, start, stop, limit_bytes=limit_bytes, range_of=range_of)
        async with aclosing(read) as pages:
            async for parts in pages:
                self._count(table, parts)
                yield parts

    def forget(self) -> None:
        self._blocks.forget()

    def _count(self, table: str, parts: Sequence[ColumnPart]) -> None:
        for part in parts:
            if part.cells is not None:
                self._load.read_keys(table, part.cells.keys)
            if part.rows is not None:
                self._load.read_range(table, part.rows.prefix, len(part.rows.sizes()))
            if part.packed is not None:
                self._load.read_keys(table, part.packed.keys)
