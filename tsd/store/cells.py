"""Scans for whoever reads very much: cells as parallel lists of bytes, no object for each, no value copied.

An engine that can read faster than by rows says so by being a CellReader; every other is read by its rows.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import trio

from tsd.store import Cell, Page, Row, Store

PAGE_ROWS = 1000
LET_GO_S = 2  # for an engine to hear that a scan has ended; it finds out by itself, later
PAGE_BYTES = 2 << 20  # fewer would be nearer to the processor, but each waits for its turn among all tasks


class CellPage(NamedTuple):
    """A part of a scan, cell by cell, in order: whole rows only. Where the next part starts is in `next_start` (None:
    there is none)."""

    keys: list[bytes]  # the row of each cell
    columns: list[bytes]
    values: list[bytes]  # each behind `ahead` bytes: its time of writing, big-endian, or nothing
    ahead: int
    times_ms: list[int]  # of writing; empty where the values have it in front
    next_start: bytes | None

    def cell(self, at: int) -> Cell:
        """One cell as everybody else sees it."""
        value = self.values[at]
        time_ms = int.from_bytes(value[: self.ahead], "big") if self.ahead else self.times_ms[at]
        return Cell(self.columns[at], value[self.ahead :], time_ms)


class Cursor:
    """What an engine keeps of a scan from one of its pages to the next: where it is open, and how large its rows are.

    It may be lost at any time: a page is asked for by its first row all the same. An engine that reads far away may
    pass over rows in whose keys the regular expression `sieve` is not found (see tsd.codec.sieve).
    """

    def __init__(self, sieve: str = "") -> None:
        self.sieve = sieve
        self.address: tuple[str, int] | None = None  # of the gateway that has the scanner
        self.scanner: int | None = None
        self.row_bytes = 0  # of values, on average; 0: not known yet
        self.pages: Iterator[CellPage | None] | None = None  # of an engine in this process: those that are to come
        self.next_start: bytes | None = None  # where they begin


@runtime_checkable
class CellReader(Protocol):
    """An engine with a faster way."""

    async def cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """The cells of the first rows from `start` to before `stop`, as `Store.page`: the page ends with a row when it
        has `limit_bytes`, of values at least. `cursor` is the same for all pages of a scan."""
        ...

    async def let_go(self, table: str, cursor: Cursor) -> None:
        """Give back what is held for a scan of which no more pages are wanted. Raises nothing."""
        ...


async def cell_pages(
    store: Store, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int = PAGE_BYTES, sieve: str = ""
) -> AsyncGenerator[CellPage, None]:
    """The cells from `start` to before `stop`, page by page, no page empty; perhaps without those of rows that do not
    pass `sieve` (see Cursor). Raises StoreError."""
    cursor = Cursor(sieve)
    at: bytes | None = start
    try:
        while at is not None:
            page = await cell_page(store, table, at, stop, limit_bytes=limit_bytes, cursor=cursor)
            at = page.next_start
            if page.keys:
                yield page
    finally:
        if at is not None and isinstance(store, CellReader):
            with trio.move_on_after(LET_GO_S, shield=True):
                await store.let_go(table, cursor)


async def cell_page(
    store: Store, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int = PAGE_BYTES, cursor: Cursor
) -> CellPage:
    """The first cells from `start` on, by the fastest way that the engine has. Raises StoreError."""
    if isinstance(store, CellReader):
        return await store.cells(table, start, stop, limit_bytes=limit_bytes, cursor=cursor)
    return cells_of(await store.page(table, start, stop, limit=PAGE_ROWS))


def cells_of(page: Page) -> CellPage:
    """A page of rows, cell by cell.

    >>> cells_of(Page([Row(b"r", [Cell(b"t:a", b"1", 7), Cell(b"t:b", b"2", 8)])], None)).keys
    [b'r', b'r']
    """
    return cells_of_rows(page.rows, page.next_start)


def cells_of_rows(rows: Iterable[Row], next_start: bytes | None = None) -> CellPage:
    """Rows, cell by cell."""
    keys: list[bytes] = []
    columns: list[bytes] = []
    values: list[bytes] = []
    times_ms: list[int] = []
    for key, cells in rows:
        for column, value, time_ms in cells:
            keys.append(key)
            columns.append(column)
            values.append(value)
            times_ms.append(time_ms)
    return CellPage(keys, columns, values, 0, times_ms, next_start)
