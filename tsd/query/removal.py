"""Rows, or a span of time out of them, taken out of the data table: exactly what was read, so that a point that comes
meanwhile stays."""

from collections.abc import Iterable, Sequence

from tsd.codec.cell import COLUMN
from tsd.codec.merge import StoredCell
from tsd.codec.removal import Removal
from tsd.errors import StoreError
from tsd.store import Cell, Put, Row, Store
from tsd.store.together import together

IN_FLIGHT = 4  # deletes of different times; where a row's cells came one by one, there are many


async def remove_rows(store: Store, table: str, rows: Iterable[Row]) -> None:
    """Delete the cells of these rows, each where it is no newer than it was read. Raises StoreError."""
    await _delete(store, table, [(row.key, cell) for row in rows for cell in row.cells])


async def remove_part(store: Store, table: str, key: bytes, removal: Removal) -> None:
    """Do to a row what `removal` says. Raises StoreError, also where what is to stay cannot be read back: then nothing
    was deleted."""
    if removal.append is not None:
        cell, value = removal.append  # grows at any time: only as it was read is it replaced
        await store.check_and_put(table, key, COLUMN + cell.qualifier, value, expected=cell.value)
    await _put_what_stays(store, table, key, removal)
    await _delete(store, table, [(key, _column(cell)) for cell in removal.obsolete])


async def _put_what_stays(store: Store, table: str, key: bytes, removal: Removal) -> None:
    for cell in removal.puts or ():
        await store.put(table, [Put(key, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)
    if removal.puts is None or await _hidden(store, table, key, removal.puts):
        # An earlier delete, of a compaction say, left a mark in HBase that is newer than the cells' times. What is
        # written now shows, and as it says what the row says, it may be the newest.
        await store.put(table, [Put(key, COLUMN + point.qualifier, point.value) for point in removal.spare])
        spare = [StoredCell(*point, 0) for point in removal.spare]
        if hidden := await _hidden(store, table, key, spare):
            raise StoreError(f"row {key.hex()}: put {hidden[0].qualifier.hex()} and cannot read it: nothing deleted")
    await store.sync()


async def _hidden(store: Store, table: str, key: bytes, puts: Sequence[StoredCell]) -> list[StoredCell]:
    """Those that the store does not show, nor anything newer in their place."""
    if not puts:
        return []
    found = await store.get(table, [key], columns=[COLUMN + cell.qualifier for cell in puts])
    there = {cell.column: cell for cell in found.get(key, [])}
    return [
        cell for cell in puts
        if (shown := there.get(COLUMN + cell.qualifier)) is None
        or (shown.value != cell.value and shown.time_ms < cell.time_ms)
    ]  # fmt: skip


def _column(cell: StoredCell) -> Cell:
    return Cell(COLUMN + cell.qualifier, cell.value, cell.time_ms)


async def _delete(store: Store, table: str, cells: Sequence[tuple[bytes, Cell]]) -> None:
    by_time: dict[int, dict[bytes, list[bytes]]] = {}
    for key, cell in cells:
        by_time.setdefault(cell.time_ms, {}).setdefault(key, []).append(cell.column)

    async def delete(part: tuple[int, dict[bytes, list[bytes]]]) -> None:
        await store.delete(table, part[1], up_to_ms=part[0])

    await together(by_time.items(), delete, at_once=IN_FLIGHT)
