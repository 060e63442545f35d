"""Rows of one table into another, cell for cell: only what is not there yet is put, and what was put is read back.

A cell that the target has with a later time stays, so whatever is copied, and however often, of two values the newer
one counts in the end. Nothing is deleted: what the source has lost since an earlier copy is still in the target.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import trio

from tsd.codec.merge import MergeRules
from tsd.codec.row import data_cells, points
from tsd.errors import CorruptRow, TsdError
from tsd.store import Cell, Page, Put, Row, Store
from tsd.store.together import together

PAGE_ROWS = 1000  # of a cell a point they may be 360,000 cells, and three pages are held at once
IN_FLIGHT = 4  # puts of different write times
EXAMPLES = 10
NEWEST = MergeRules(fix_duplicates=True)

There: TypeAlias = Mapping[bytes, Sequence[Cell]]  # what a table has of some rows


class Copied(NamedTuple):
    """What became of some rows."""

    rows: int = 0
    cells: int = 0
    put: int = 0  # cells that were not there yet
    hidden: int = 0  # rows of which the target does not show what was put
    examples: tuple[bytes, ...] = ()  # the first of them

    def plus(self, more: "Copied") -> "Copied":
        """Both together."""
        return Copied(
            self.rows + more.rows,
            self.cells + more.cells,
            self.put + more.put,
            self.hidden + more.hidden,
            (self.examples + more.examples)[:EXAMPLES],
        )


class Place(NamedTuple):
    """A table of a store."""

    store: Store
    table: str


async def copy_rows(rows: Sequence[Row], there: There, target: Place) -> Copied:
    """Put what the target lacks of `rows`, given what it has of them, and read it back. Raises StoreError."""
    by_time: dict[int, list[Put]] = {}
    changed: list[Row] = []
    for row in rows:
        if lacking := _lacking(row.cells, there.get(row.key, ())):
            changed.append(Row(row.key, lacking))
            for cell in lacking:
                by_time.setdefault(cell.time_ms, []).append(Put(row.key, cell.column, cell.value))

    async def put(part: tuple[int, list[Put]]) -> None:
        await target.store.put(target.table, part[1], time_ms=part[0])

    await together(by_time.items(), put, at_once=IN_FLIGHT)
    shown = await target.store.get(target.table, [row.key for row in changed]) if changed else {}
    hidden = [row.key for row in changed if not _shows(row, shown.get(row.key, ()))]
    return Copied(
        rows=len(rows),
        cells=sum(len(row.cells) for row in rows),
        put=sum(len(row.cells) for row in changed),
        hidden=len(hidden),
        examples=tuple(hidden[:EXAMPLES]),
    )


def _lacking(cells: Sequence[Cell], there: Sequence[Cell]) -> list[Cell]:
    """Those that the target has not, or only as they were before."""
    if not there:
        return list(cells)
    held = {cell.column: cell for cell in there}
    return [cell for cell in cells if (old := held.get(cell.column)) is None or _is_older(old, cell)]


def _is_older(old: Cell, new: Cell) -> bool:
    return old.time_ms < new.time_ms or (old.time_ms == new.time_ms and old.value != new.value)


def _shows(put: Row, there: Sequence[Cell]) -> bool:
    """Whether a reader of the target finds what was put, or something newer.

    In HBase the mark of a delete may hide a cell: the target has compacted the row since it was copied first, say. That
    does no harm where the row says the same without it.
    """
    hidden = _lacking(put.cells, there)
    if not hidden:
        return True
    shown = {cell.column: cell for cell in there}
    try:
        return points(put.key, data_cells({**shown, **{cell.column: cell for cell in hidden}}.values()), NEWEST) == (
            points(put.key, data_cells(there), NEWEST)
        ) and all(_holds_points(put.key, cell) for cell in hidden)
    except CorruptRow:
        return False


def _holds_points(key: bytes, cell: Cell) -> bool:
    return bool(points(key, data_cells([cell]), NEWEST))


async def copy_table(
    source: Place, target: Place, start: bytes, stop: bytes | None, on_page: Callable[[Copied, Page], Awaitable[None]]
) -> None:
    """Copy the rows from `start` to before `stop` (None: all of them); `on_page` is told of each page that is done,
    while the next one is read. Rows that come in before that place are not copied. Raises TsdError."""
    send, receive = trio.open_memory_channel[Page | TsdError](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read, source, start, stop, send)
        error = await _write(receive, target, on_page)
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


async def _read(
    source: Place, start: bytes, stop: bytes | None, pages: trio.MemorySendChannel[Page | TsdError]
) -> None:
    async with pages:
        at: bytes | None = start
        while at is not None:
            try:
                page = await source.store.page(source.table, at, stop, limit=PAGE_ROWS)
            except TsdError as exc:
                await pages.send(exc)
                return
            await pages.send(page)
            at = page.next_start


async def _write(
    pages: trio.MemoryReceiveChannel[Page | TsdError],
    target: Place,
    on_page: Callable[[Copied, Page], Awaitable[None]],
) -> TsdError | None:
    """Copy pages as they come; what ended it, if it did not come to its end."""
    async for page in pages:
        if isinstance(page, TsdError):
            return page
        try:
            there = await target.store.get(target.table, [row.key for row in page.rows]) if page.rows else {}
            await on_page(await copy_rows(page.rows, there, target), page)
        except TsdError as exc:
            return exc
    return None
