"""Cells by table, row and column: the interface of every engine.

A cell keeps only its newest value, with the timestamp of that write in Unix milliseconds. No interface knows metrics or
UIDs. `ColumnBlocks` and what it returns know points: the embedded store keeps values of cells packed by their points.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import trio

from tsd.errors import NoTable
from tsd.store.capabilities import (
    AtomicRewrites,
    Capabilities,
    CellGets,
    CellReader,
    CellSignatures,
    ChangeFeed,
    ColumnBlocks,
    ColumnPart,
    ColumnRows,
    DecodedRows,
    DerivedValues,
    Folded,
    JoinCells,
    OnWrite,
    PackedRows,
    RangeDeletes,
    RangeOf,
    Rewrite,
    Snapshots,
    StampedCells,
    StampedDelete,
    StampedPut,
    StampedSpan,
    StepLimit,
    WatchedRange,
    WideRows,
)
from tsd.store.cells import Cell, CellMatrix, CellPage, Cursor, Family, Page, Put, Row, Table, cells_of_rows
from tsd.store.timing import Latency
from tsd.store.versions import VersionedCells

if TYPE_CHECKING:  # types of an engine's driver
    from tsd.store.cassandra.session import Connector

CELL_PAGE_BYTES = 2 << 20  # larger pages block the event loop too long; smaller ones wait too often for the scan lock
PAGE_ROWS = 1000
CLOSE_S = 2  # longest wait for an engine to close a scan, which otherwise expires later

__all__ = [
    "CELL_PAGE_BYTES",
    "AtomicRewrites",
    "Capabilities",
    "Cell",
    "CellGets",
    "CellMatrix",
    "CellPage",
    "CellReader",
    "CellSignatures",
    "ChangeFeed",
    "ColumnBlocks",
    "ColumnPart",
    "ColumnRows",
    "Cursor",
    "DecodedRows",
    "DerivedValues",
    "Family",
    "Folded",
    "JoinCells",
    "OnWrite",
    "OptionalParts",
    "PackedRows",
    "Page",
    "Put",
    "RangeDeletes",
    "RangeOf",
    "Rewrite",
    "Row",
    "Snapshots",
    "StampedCells",
    "StampedDelete",
    "StampedPut",
    "StampedSpan",
    "StepLimit",
    "Store",
    "Table",
    "VersionedCells",
    "WatchedRange",
    "WideRows",
    "cell_pages",
    "cells_of_keys",
    "cells_of_rows",
    "check_tables",
    "scan",
]


class OptionalParts(Protocol):
    """The parts that an engine may lack: None. A store of any kind subclasses this, and overrides those that it has."""

    @property
    def cell_reader(self) -> CellReader | None:
        """Fast scan, if the engine has one. `cell_pages` uses it."""
        return None

    @property
    def cell_gets(self) -> CellGets | None:
        """Fast reads by row key, if the engine has them. `cells_of_keys` uses them."""
        return None

    @property
    def change_feed(self) -> ChangeFeed | None:
        """Write notifications, if the engine has them."""
        return None

    @property
    def cell_signatures(self) -> CellSignatures | None:
        """Signatures of stored cells, if the engine has them."""
        return None

    @property
    def range_deletes(self) -> RangeDeletes | None:
        """Deletes of ranges, if the engine has cheap ones."""
        return None

    @property
    def snapshots(self) -> Snapshots | None:
        """Snapshots in a folder, if the engine keeps its files on this machine."""
        return None

    @property
    def column_blocks(self) -> ColumnBlocks | None:
        """Blocks of cells, if the engine has them."""
        return None

    @property
    def versioned_cells(self) -> VersionedCells | None:
        """Tables whose cells keep versions; None if the engine does not keep them."""
        return None

    @property
    def wide_rows(self) -> WideRows | None:
        """Calls for wide rows, if the engine has them."""
        return None

    @property
    def atomic_rewrites(self) -> AtomicRewrites | None:
        """Atomic changes of rows, if the engine has them."""
        return None

    @property
    def stamped_cells(self) -> StampedCells | None:
        """Calls on cells with timestamps of their own, if they save the engine requests."""
        return None

    @property
    def derived_values(self) -> DerivedValues | None:
        """Values derived from rows, if the engine keeps them up to date."""
        return None

    @property
    def cql(self) -> "Connector | None":
        """Statements on Cassandra, for layouts with tables of another shape; None on other engines."""
        return None


class Store(OptionalParts, Protocol):
    """A store of cells.

    Every call except `increment` may safely be repeated. A `put` writes the cells of one row atomically; there is no
    guarantee across rows. Any call may raise StoreError. Its subclass StoreBusy means that the store is overloaded,
    StoreDown that there was no usable answer. A missing table is a StoreError, and so is a cell that HBase would
    refuse. A row key has 1 to 32767 bytes, and a column starts with a family of its table.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Facts about this engine. They do not change while the store is open."""
        ...

    @property
    def latencies(self) -> Mapping[str, Latency]:
        """Durations of this store's calls by name; empty if they are not timed."""
        ...

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """Create the missing tables and return their names. Existing ones are not changed."""
        ...

    async def tables(self) -> list[str]:
        """Return the names of all tables."""
        ...

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """Return the cells of each row that exists, ordered by column. Without `columns` return all columns."""
        ...

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """Write cells; those of one row follow each other. Without `time_ms` the store sets the timestamp.

        A stored cell with a later timestamp is kept; of two writes with the same timestamp the later one wins. A call
        that starts after another one has ended gets the same or a later timestamp from the store. In HBase this does
        not hold if the clock of the region server is set back. Readers use timestamps to choose the newest of several
        cells with the same point.
        """
        ...

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """Delete the named columns of each row if their timestamps are at most `up_to_ms`. None means the store's
        current time: cells with a timestamp in the future are kept.

        On HBase and Cassandra it also hides later puts with a timestamp up to `up_to_ms`: until a major compaction, or
        for days if `Capabilities.hides_for_days`.
        """
        ...

    async def page(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        columns: Collection[bytes] | None = None,
    ) -> Page:
        """Return up to `limit` rows from `start` to before `stop` (None: the end of the table).

        With `columns`, rows have only those cells, and rows without any are skipped. A page may have fewer rows than
        `limit`, even none, before the end of the range. Only `next_start` shows whether the range has ended.
        """
        ...

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """Write a cell if its value is `expected` (None: if it is absent). Return whether it was written. Atomic, and
        durable on return.

        A cell with an empty value counts as absent, here and in `create`, as in HBase. After StoreDown the cell may or
        may not be written: read it to find out.
        """
        ...

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """Write each cell if it is absent, and return for each whether it was written. No two cells share a row. Each
        is checked and written atomically and is durable on return. After StoreDown any of them may or may not be
        written: read them to find out."""
        ...

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """Add to an 8-byte signed counter (0 if absent) and return the sum, which wraps around. Atomic.

        Raise StoreError if the cell has another length. Do not repeat this call after StoreDown: the addition may have
        been done.
        """
        ...

    async def sync(self) -> None:
        """Return once all earlier puts survive a crash of the machine."""
        ...

    async def aclose(self) -> None:
        """Close the store. No call may follow."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Return counters since the start, by name."""
        ...


async def check_tables(store: Store, names: Iterable[str]) -> None:
    """Raise NoTable if tables are missing, StoreError."""
    existing = await store.tables()
    missing = [name for name in names if name not in existing]
    if len(missing) == 1:
        raise NoTable(f"there is no table {missing[0]}: `tsd create-tables` creates it")
    if missing:
        raise NoTable(f"there are no tables {', '.join(missing)}: `tsd create-tables` creates them")


async def scan(
    store: Store,
    table: str,
    start: bytes = b"",
    stop: bytes | None = None,
    *,
    limit: int = 1000,
    columns: Collection[bytes] | None = None,
) -> AsyncGenerator[list[Row], None]:
    """Yield the rows from `start` to before `stop` in pages, none empty. There is no snapshot: each page has the rows
    as of its own read."""
    at: bytes | None = start
    while at is not None:
        page = await store.page(table, at, stop, limit=limit, columns=columns)
        if page.rows:
            yield page.rows
        at = page.next_start


async def cells_of_keys(store: Store, table: str, rows: Sequence[bytes]) -> CellPage:
    """Return the cells of those of `rows` that exist. The keys ascend. Raise StoreError."""
    if (gets := store.cell_gets) is not None:
        return await gets.get_cells(table, rows)
    found = await store.get(table, rows)
    return cells_of_rows(Row(key, found[key]) for key in rows if key in found)


async def cell_pages(
    store: Store,
    table: str,
    start: bytes,
    stop: bytes | None,
    *,
    limit_bytes: int = CELL_PAGE_BYTES,
    key_pattern: str = "",
    row_bytes: int = 0,
) -> AsyncGenerator[CellPage, None]:
    """Yield the cells from `start` to before `stop` in pages, none empty. Rows that do not match `key_pattern` may be
    missing (see Cursor). `row_bytes`: the average size of a row's values, 0 if it is not known. Raise StoreError."""
    reader = store.cell_reader
    if reader is None:
        async with aclosing(scan(store, table, start, stop, limit=PAGE_ROWS)) as pages:
            async for rows in pages:
                yield cells_of_rows(rows)
        return
    cursor = Cursor(key_pattern)
    cursor.row_bytes = row_bytes
    at: bytes | None = start
    try:
        while at is not None:
            page = await reader.read_cells(table, at, stop, limit_bytes=limit_bytes, cursor=cursor)
            at = page.next_start
            if page.keys:
                yield page
    finally:
        if at is not None:
            with trio.move_on_after(CLOSE_S, shield=True):
                await reader.close_cursor(table, cursor)
