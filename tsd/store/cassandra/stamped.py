"""Writes and reads of cells of many rows, each with a write timestamp of its own, with few requests a partition.

A batch has cells of one partition, and Cassandra writes it in one atomic step. Rows stay whole in it.

Cassandra keeps a tombstone of each delete for ten days, and refuses a read that meets over 100,000 of them
(`tombstone_failure_threshold`). A span of a row or a range of rows has one tombstone, whatever it deletes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from tsd.errors import StoreError
from tsd.store.capabilities import StampedDelete, StampedPut, StampedSpan
from tsd.store.cassandra.cells import (
    BATCH_BYTES,
    BATCH_CELLS,
    LAST_US,
    LATEST_MS,
    MS,
    encode_places,
    encode_stamp,
    grouped,
    rows_of,
    sliced,
)
from tsd.store.cassandra.directory import Directory
from tsd.store.cassandra.keys import Shape, bounds
from tsd.store.cassandra.schema import Statements
from tsd.store.cassandra.session import Parameters
from tsd.store.cassandra.wire import RawRows, encode_value
from tsd.store.cells import Cell
from tsd.store.retry import run_bounded

T = TypeVar("T", StampedPut, StampedDelete)

CONCURRENT = 16  # requests of one call
GET_CELLS = 100  # per request


class CassandraStamped:
    """StampedCells of the engine."""

    def __init__(
        self,
        checked: Callable[[str, Iterable[tuple[bytes, bytes]]], Awaitable[tuple[Shape, Statements]]],
        checked_ms: Callable[[], Awaitable[int]],
        directory: Directory,
        ask: Callable[[str, Parameters], Awaitable[RawRows]],
        batch: Callable[[str, Sequence[bytes], bytes], Awaitable[None]],
    ) -> None:
        """`checked` returns what a table is, and raises StoreError for (row, column) that it cannot hold.
        `checked_ms` raises StoreError if nothing may be written. `ask` and `batch` execute statements."""
        self._checked = checked
        self._checked_ms = checked_ms
        self._directory = directory
        self._ask = ask
        self._batch = batch

    async def put(self, table: str, cells: Sequence[StampedPut]) -> None:
        """See StampedCells."""
        await self._checked_ms()
        shape, cql = await self._checked(table, ((cell.row, cell.column) for cell in cells))
        _check_times([cell.time_ms for cell in cells])
        groups = grouped((shape.partition(cell.row), cell) for cell in cells)
        await self._directory.enter(shape, groups)

        async def write(part: tuple[bytes, Sequence[StampedPut]]) -> None:
            partition, puts = part
            ends, part_key = len(partition), encode_value(partition)
            rows = [
                encode_stamp(time_ms * MS) + encode_value(value)
                + part_key + encode_value(row[ends:]) + encode_value(column)
                for row, column, value, time_ms in puts
            ]  # fmt: skip
            await self._batch(cql.put, rows, partition)

        parts = [(name, part) for name, some in groups.items() for part in _batches(some, lambda put: len(put.value))]
        await run_bounded(parts, write, limit=CONCURRENT)

    async def get(
        self,
        table: str,
        places: Collection[tuple[bytes, bytes]],
        *,
        row_cells: int = 0,  # noqa: ARG002
    ) -> dict[bytes, list[Cell]]:
        """See StampedCells."""
        shape, cql = await self._checked(table, places)
        found: dict[bytes, list[Cell]] = {}

        async def read(part: tuple[bytes, list[tuple[bytes, bytes]]]) -> None:
            partition, some = part
            answer = await self._ask(cql.cells, (partition, [(row[len(partition) :], column) for row, column in some]))
            for row in rows_of(partition, answer):
                found.setdefault(row.key, []).extend(row.cells)

        groups = grouped((shape.partition(row), (row, column)) for row, column in places)
        await run_bounded(sliced(groups, GET_CELLS), read, limit=CONCURRENT)
        return found

    async def delete(self, table: str, cells: Sequence[StampedDelete]) -> None:
        """See StampedCells."""
        await self._checked_ms()
        shape, cql = await self._checked(table, ((cell.row, cell.column) for cell in cells))
        _check_times([cell.up_to_ms for cell in cells])
        groups = grouped((shape.partition(cell.row), cell) for cell in cells)

        async def write(part: tuple[bytes, Sequence[StampedDelete]]) -> None:
            partition, some = part
            ends, part_key = len(partition), encode_value(partition)
            bounds = grouped((up_to_ms, (row[ends:], column)) for row, column, up_to_ms in some)
            rows = [
                encode_stamp(up_to_ms * MS + LAST_US) + part_key + encode_value(encode_places(places))
                for up_to_ms, places in bounds.items()
            ]
            await self._batch(cql.delete, rows, partition)

        parts = [
            (name, part) for name, some in groups.items() for part in _batches(some, lambda cell: len(cell.column))
        ]
        await run_bounded(parts, write, limit=CONCURRENT)

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        """See StampedCells."""
        await self._checked_ms()
        shape, cql = await self._checked(table, ((span.row, column) for span in spans for column in span[1:3]))
        _check_times([span.up_to_ms for span in spans])
        groups = grouped((shape.partition(span.row), span) for span in spans)

        async def write(part: tuple[bytes, list[StampedSpan]]) -> None:
            partition, some = part
            ends, part_key = len(partition), encode_value(partition)
            rows = [
                encode_stamp(up_to_ms * MS + LAST_US)
                + part_key + encode_value(row[ends:]) + encode_value(first) + encode_value(last)
                for row, first, last, up_to_ms in some
            ]  # fmt: skip
            await self._batch(cql.delete_span, rows, partition)

        await run_bounded(sliced(groups, BATCH_CELLS), write, limit=CONCURRENT)

    async def delete_rows(self, table: str, start: bytes, stop: bytes, *, up_to_ms: int) -> None:
        """See StampedCells."""
        await self._checked_ms()
        shape, cql = await self._checked(table, ())
        _check_times([up_to_ms])
        stamp = encode_stamp(up_to_ms * MS + LAST_US)

        async def write(partition: bytes) -> None:
            low, high = bounds(partition, start, stop)
            row = stamp + encode_value(partition)
            if high is not None:
                await self._batch(cql.delete_between, [row + encode_value(low) + encode_value(high)], partition)
            elif low:
                await self._batch(cql.delete_from, [row + encode_value(low)], partition)
            else:
                await self._batch(cql.delete_partition, [row], partition)

        async with aclosing(self._directory.partitions(shape, start, stop)) as listed:
            partitions = [partition async for partition in listed]
        await run_bounded(partitions, write, limit=CONCURRENT)


def _check_times(times_ms: Sequence[int]) -> None:
    """Raise StoreError for a write timestamp that Cassandra cannot have."""
    if times_ms and not (min(times_ms) >= 0 and max(times_ms) <= LATEST_MS):
        wrong = next(time_ms for time_ms in times_ms if not 0 <= time_ms <= LATEST_MS)
        raise StoreError(f"write timestamp: got {wrong} ms, wanted 0 to {LATEST_MS}")


def _batches(cells: Sequence[T], size_of: Callable[[T], int]) -> list[list[T]]:
    """Return cells of a partition in batches of whole rows: up to BATCH_CELLS and BATCH_BYTES, or one row."""
    batches: list[list[T]] = []
    bytes_left = 0
    for _, some in groupby(cells, itemgetter(0)):
        row = list(some)
        size = sum(size_of(cell) for cell in row) + len(row) * len(row[0].row)
        if not batches or len(batches[-1]) + len(row) > BATCH_CELLS or size > bytes_left:
            batches.append([])
            bytes_left = BATCH_BYTES
        batches[-1] += row
        bytes_left -= size
    return batches
