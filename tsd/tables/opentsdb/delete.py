"""Rows, or a span of time out of them, taken out of the data table: exactly what was read, so that a point that comes
meanwhile stays."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tsd.codec.cell import COLUMN
from tsd.codec.merge import StoredCell
from tsd.codec.removal import Removal
from tsd.store import Cell, Put, Row, Store
from tsd.store.together import together

IN_FLIGHT = 4  # calls of different times
# What was written to a row later than so long before it was read may be as new as what comes after the read: HBase
# stamps cells with its servers' milliseconds, and the reader's clock is another.
BUSY_MS = 2000


class Part(NamedTuple):
    """A row, and what is to be done to it."""

    row: Row
    removal: Removal


class _Doomed(NamedTuple):
    """Columns of a row, to go where they are no newer than `time_ms`."""

    key: bytes
    time_ms: int
    columns: Sequence[bytes]


async def remove_rows(store: Store, table: str, rows: Iterable[Row], *, read_ms: int) -> None:
    """Delete the cells of these rows, each where it is no newer than it was read; to read them was begun at `read_ms`.
    Raises StoreError."""
    await _delete(store, table, [one for row in rows for one in _doomed(row, row.cells, read_ms)])


async def remove_parts(store: Store, table: str, parts: Sequence[Part], *, read_ms: int) -> set[bytes]:
    """Do to some rows what their removals say; the rows of which nothing was deleted, as what is to stay in them would
    not show. Raises StoreError."""
    for row, removal in parts:
        if removal.append is not None:
            cell, value = removal.append  # grows at any time: only as it was read is it replaced
            await store.check_and_put(table, row.key, COLUMN + cell.qualifier, value, expected=cell.value)
    left = await _put_what_stays(store, table, parts, read_ms)
    await store.sync()
    doomed = [
        one
        for row, removal in parts
        if row.key not in left
        for one in _doomed(row, map(_column, removal.obsolete), read_ms)
    ]
    await _delete(store, table, doomed)
    return left


async def _put_what_stays(store: Store, table: str, parts: Sequence[Part], read_ms: int) -> set[bytes]:
    """Put what is left of cells that are cut; the rows where it does not show."""
    puts = [(row.key, cell) for row, removal in parts for cell in removal.puts or ()]
    await _put(store, table, puts)
    again = await _hidden(store, table, puts) | {row.key for row, removal in parts if removal.puts is None}
    # An earlier delete, of a compaction say, left a mark in HBase that is newer than the cells' times. What is put as
    # the newest shows, and as it says what the row says, it may be that; but not newer than what came after the read.
    spare_ms = read_ms - BUSY_MS
    busy = {row.key for row, _ in parts if row.key in again and _newest_ms(row) >= spare_ms}
    spare = [
        (row.key, StoredCell(*point, spare_ms))
        for row, removal in parts
        if row.key in again - busy
        for point in removal.spare
    ]
    await _put(store, table, spare)
    return busy | await _hidden(store, table, spare)


async def _put(store: Store, table: str, cells: Iterable[tuple[bytes, StoredCell]]) -> None:
    by_time: dict[int, list[Put]] = {}
    for key, cell in cells:
        by_time.setdefault(cell.time_ms, []).append(Put(key, COLUMN + cell.qualifier, cell.value))

    async def put(part: tuple[int, list[Put]]) -> None:
        await store.put(table, part[1], time_ms=part[0])

    await together(by_time.items(), put, at_once=IN_FLIGHT)


async def _hidden(store: Store, table: str, puts: Sequence[tuple[bytes, StoredCell]]) -> set[bytes]:
    """The rows where the store shows neither what was put nor anything newer in its place."""
    if not puts:
        return set()
    rows = await store.get(table, list({key for key, _ in puts}))
    there = {(key, cell.column): cell for key, cells in rows.items() for cell in cells}
    return {
        key for key, cell in puts
        if (shown := there.get((key, COLUMN + cell.qualifier))) is None
        or (shown.value != cell.value and shown.time_ms < cell.time_ms)
    }  # fmt: skip


def _column(cell: StoredCell) -> Cell:
    return Cell(COLUMN + cell.qualifier, cell.value, cell.time_ms)


def _newest_ms(row: Row) -> int:
    return max(cell.time_ms for cell in row.cells)


def _doomed(row: Row, cells: Iterable[Cell], read_ms: int) -> list[_Doomed]:
    """Cells of a row, by the time up to which they go. The store takes one time a call: where nobody can have written
    as early as the row's newest cell since it was read, that time does for all of it."""
    newest_ms = _newest_ms(row)
    by_time: dict[int, list[bytes]] = {}
    for cell in cells:
        time_ms = newest_ms if newest_ms < read_ms - BUSY_MS else cell.time_ms
        by_time.setdefault(time_ms, []).append(cell.column)
    return [_Doomed(row.key, time_ms, columns) for time_ms, columns in by_time.items()]


async def _delete(store: Store, table: str, doomed: Iterable[_Doomed]) -> None:
    by_time: dict[int, dict[bytes, Sequence[bytes]]] = {}
    for one in doomed:
        by_time.setdefault(one.time_ms, {})[one.key] = one.columns

    async def delete(part: tuple[int, dict[bytes, Sequence[bytes]]]) -> None:
        await store.delete(table, part[1], up_to_ms=part[0])

    await together(by_time.items(), delete, at_once=IN_FLIGHT)
