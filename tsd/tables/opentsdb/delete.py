"""Deletes rows, or parts of rows, from the data table: exactly the cells that were read, so newer points remain.

What remains of a cell is put again before the cell is deleted, with a newer timestamp than all cells that were read. A
compaction of the row may run meanwhile. If it finds both cells, it may take the remaining part for a duplicate of the
old cell. Its merged cell then has the part's timestamp, which the delete of the old cell does not reach. If it has read
the row before, its deletes are no newer than what it read, and do not reach the part. So no remaining point is lost,
though deleted points may reappear.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import trio

from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.merge import StoredCell
from tsd.codec.opentsdb.row import Removal
from tsd.store import Cell, Put, Row, Store
from tsd.store.retry import run_bounded

IN_FLIGHT = 4  # concurrent calls of the store
READ_AGAIN = 200  # rows at once, between which the event loop runs
# A cell written within this time before the read may have the timestamp of a later write: HBase sets timestamps by its
# servers' clocks, which differ from the reader's.
BUSY_MS = 2000
ASCENDING_BUSY_MS = 1  # the same for a store in which a later put always gets a later timestamp


class RowRemoval(NamedTuple):
    """A row and what to remove from it."""

    row: Row
    removal: Removal


class _Deletion(NamedTuple):
    """Columns of a row to delete if they are no newer than `time_ms`."""

    key: bytes
    time_ms: int
    columns: Sequence[bytes]


async def remove_rows(store: Store, table: str, rows: Iterable[Row], *, read_ms: int) -> None:
    """Delete the cells of rows if they are no newer than when read; reading began at `read_ms`. Raise StoreError."""
    await _delete(store, table, [one for row in rows for one in _deletions(row, row.cells, read_ms)])


async def remove_joined(store: Store, table: str, rows: Sequence[Row], *, read_ms: int) -> None:
    """Delete what a compaction has made meanwhile of the cells of rows that `remove_rows` was given: cells that are no
    newer than those. Raise StoreError."""
    ascending = store.capabilities.ascending_timestamps
    for at in range(0, len(rows), READ_AGAIN):
        await trio.lowlevel.checkpoint()
        newest = {
            row.key: newest_ms
            for row in rows[at : at + READ_AGAIN]
            if (newest_ms := _newest_ms(row)) < read_ms - BUSY_MS or ascending  # no later write has such a timestamp
        }
        found = await store.get(table, list(newest))
        joined = [
            Row(key, old)
            for key, cells in found.items()
            if (old := [cell for cell in cells if cell.time_ms <= newest[key]])
        ]
        await remove_rows(store, table, joined, read_ms=read_ms)


async def remove_parts(store: Store, table: str, parts: Sequence[RowRemoval], *, read_ms: int) -> set[bytes]:
    """Apply removals to rows; reading began at `read_ms`. Return the keys of rows that were left unchanged, because
    they are being written to, or their remaining points would not be visible. Raise StoreError."""
    spare_ms = read_ms - busy_ms(store)
    busy = {row.key for row, removal in parts if removal.puts != () and _newest_ms(row) >= spare_ms}
    for row, removal in parts:
        if row.key not in busy and removal.append is not None:
            cell, value = removal.append  # may grow at any time: replace it only if unchanged
            if not await store.check_and_put(table, row.key, COLUMN + cell.qualifier, value, expected=cell.value):
                busy.add(row.key)
    parts = [part for part in parts if part.row.key not in busy]
    hidden = await _put_remaining(store, table, parts, spare_ms)
    await store.sync()
    deletions = [
        one
        for row, removal in parts
        if row.key not in hidden
        for one in _deletions(row, map(_column, removal.obsolete), read_ms)
    ]
    await _delete(store, table, deletions)
    return busy | hidden


def busy_ms(store: Store) -> int:
    """Return how long a row may not have been written to before a part of a cell is deleted."""
    return ASCENDING_BUSY_MS if store.capabilities.ascending_timestamps else BUSY_MS


async def _put_remaining(store: Store, table: str, parts: Sequence[RowRemoval], spare_ms: int) -> set[bytes]:
    """Put the remaining parts of cells. Return the keys of rows where these are not visible. `spare_ms` is later than
    all timestamps of the rows, and earlier than those of later writes."""
    puts = [(row.key, cell) for row, removal in parts for cell in removal.puts or ()]
    await _put(store, table, puts)
    hidden = await _hidden(store, table, puts) | {row.key for row, removal in parts if removal.puts is None}
    # An earlier delete, of a compaction for example, may have left a newer delete marker in HBase. The same cells
    # with a later timestamp are visible.
    spare = [
        (row.key, StoredCell(*point, spare_ms))
        for row, removal in parts
        if row.key in hidden
        for point in removal.spare
    ]
    await _put(store, table, spare)
    return await _hidden(store, table, spare)


async def _put(store: Store, table: str, cells: Iterable[tuple[bytes, StoredCell]]) -> None:
    by_time: dict[int, list[Put]] = {}
    for key, cell in cells:
        by_time.setdefault(cell.time_ms, []).append(Put(key, COLUMN + cell.qualifier, cell.value))

    async def put(part: tuple[int, list[Put]]) -> None:
        await store.put(table, part[1], time_ms=part[0])

    await run_bounded(by_time.items(), put, limit=IN_FLIGHT)


async def _hidden(store: Store, table: str, puts: Sequence[tuple[bytes, StoredCell]]) -> set[bytes]:
    """Return the keys of rows where neither the put cells nor newer ones are visible."""
    if not puts:
        return set()
    rows = await store.get(table, list({key for key, _ in puts}))
    existing = {(key, cell.column): cell for key, cells in rows.items() for cell in cells}
    return {
        key for key, cell in puts
        if (shown := existing.get((key, COLUMN + cell.qualifier))) is None
        or (shown.value != cell.value and shown.time_ms < cell.time_ms)
    }  # fmt: skip


def _column(cell: StoredCell) -> Cell:
    return Cell(COLUMN + cell.qualifier, cell.value, cell.time_ms)


def _newest_ms(row: Row) -> int:
    return max(cell.time_ms for cell in row.cells)


def _deletions(row: Row, cells: Iterable[Cell], read_ms: int) -> list[_Deletion]:
    """Return the deletions of a row's cells. The store takes one timestamp per call, so all cells get that of the
    newest one, unless a later write could have the same timestamp."""
    newest_ms = _newest_ms(row)
    by_time: dict[int, list[bytes]] = {}
    for cell in cells:
        time_ms = newest_ms if newest_ms < read_ms - BUSY_MS else cell.time_ms
        by_time.setdefault(time_ms, []).append(cell.column)
    return [_Deletion(row.key, time_ms, columns) for time_ms, columns in by_time.items()]


async def _delete(store: Store, table: str, deletions: Iterable[_Deletion]) -> None:
    by_time: dict[int, dict[bytes, Sequence[bytes]]] = {}
    for one in deletions:
        by_time.setdefault(one.time_ms, {})[one.key] = one.columns

    async def delete(part: tuple[int, dict[bytes, Sequence[bytes]]]) -> None:
        await store.delete(table, part[1], up_to_ms=part[0])

    await run_bounded(by_time.items(), delete, limit=IN_FLIGHT)
