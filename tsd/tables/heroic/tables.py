"""Heroic's table of points, and a table that lists the series: calls of the store, each of which may be repeated."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from itertools import islice

from tsd.codec.heroic.values import DISTRIBUTIONS, EVENTS, OFFSET_BYTES, POINTS
from tsd.store import Cell, Family, Put, StampedSpan, Store, Table, check_tables
from tsd.store.cells import prefix_end

INDEX = b"i"  # family of the index
READ_ROWS = 200  # of one request
KEYS = 1000  # of one request
DELETE_CELLS = 10_000  # of one request


def heroic_tables(points: str, index: str) -> list[Table]:
    """Return the tables. A family of points keeps one version; Heroic's own tables keep all."""
    return [
        Table(points, tuple(map(Family, (POINTS, DISTRIBUTIONS, EVENTS)))),
        Table(index, (Family(INDEX),)),
    ]


class HeroicTables:
    """The two tables in a store."""

    def __init__(self, store: Store, points: str, index: str) -> None:
        self.store = store
        self.points = points
        self.index = index

    async def check(self) -> None:
        """Raise StoreError unless both tables exist."""
        await check_tables(self.store, (self.points, self.index))

    async def read(
        self, rows: Collection[bytes], first: int, last: int, family: bytes = POINTS
    ) -> dict[bytes, list[Cell]]:
        """Return the points of each row from one offset to another, both included. Raise StoreError."""
        start, end = (family + b":" + offset.to_bytes(OFFSET_BYTES, "big") for offset in (first, last))
        wide = self.store.wide_rows
        found: dict[bytes, list[Cell]] = {}
        left = iter(rows)
        while some := list(islice(left, READ_ROWS)):
            if wide is not None:
                found |= await wide.get_between(self.points, some, start, end)
                continue
            for row, cells in (await self.store.get(self.points, some)).items():
                if kept := [cell for cell in cells if start <= cell.column <= end]:
                    found[row] = kept
        return found

    async def keys(self, prefix: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the keys of all rows of points that start with a prefix, in order. Raise StoreError."""
        wide, end = self.store.wide_rows, prefix_end(prefix)
        start: bytes | None = prefix
        while start is not None:
            if wide is None:
                page = await self.store.page(self.points, start, end, limit=READ_ROWS)
                keys, start = [row.key for row in page.rows], page.next_start
            else:
                keys = await wide.row_keys(self.points, start, end, limit=KEYS)
                start = keys[-1] + b"\0" if len(keys) == KEYS else None
            for key in keys:
                yield key

    async def put(self, cells: Sequence[Put], *, index: bool = False) -> None:
        """Put points, or entries of the index, in place of stored ones. Raise StoreError."""
        wide = self.store.wide_rows
        await (self.store.put if wide is None else wide.replace)(self.index if index else self.points, cells)

    async def delete(self, cells: Mapping[bytes, Sequence[Cell]], up_to_ms: int | None) -> None:
        """Delete points, of each row all those that are stored from the first to the last one, that were written by a
        time; None: by now. Raise StoreError."""
        stamped = self.store.stamped_cells if self.store.capabilities.deletes_exact_spans else None
        if stamped is not None:  # a tombstone for each row, not for each point
            await stamped.delete_spans(self.points, [_span_of(row, found, up_to_ms) for row, found in cells.items()])
            return
        for row, found in cells.items():
            for at in range(0, len(found), DELETE_CELLS):
                columns = [cell.column for cell in found[at : at + DELETE_CELLS]]
                await self.store.delete(self.points, {row: columns}, up_to_ms=up_to_ms)


def _span_of(row: bytes, cells: Sequence[Cell], up_to_ms: int | None) -> StampedSpan:
    """Return what deletes the cells of a row, which are in order. Later writes than the newest of them stay."""
    newest_ms = max(cell.time_ms for cell in cells) if up_to_ms is None else up_to_ms
    return StampedSpan(row, cells[0].column, cells[-1].column, newest_ms)
