"""Reads of Heroic's rows, which may have millions of cells: a slice of time of some series after another."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tsd.codec.heroic.keys import encode_base
from tsd.codec.heroic.values import OFFSET_BYTES, PERIOD_MS, POINTS_PREFIX, VALUE_BYTES, decode_values
from tsd.codec.points import NO_POINTS, Points, doubles_as_points
from tsd.codec.putline import HOUR_MS
from tsd.store import Cell
from tsd.tables.heroic.index import ListedSeries
from tsd.tables.heroic.tables import HeroicTables
from tsd.tables.writing import SeriesKey

SLICE_CELLS = 50_000  # read at once, roughly
GROWTH = 4
COLUMN_BYTES = len(POINTS_PREFIX) + OFFSET_BYTES


class StoredRow(NamedTuple):
    """A part of a row of points."""

    row: bytes
    base_ms: int
    cells: Sequence[Cell]

    @property
    def size(self) -> int:
        """Stored bytes of columns and values."""
        return sum(len(cell.column) + len(cell.value) for cell in self.cells)


Slice = Mapping[SeriesKey, Sequence[StoredRow]]  # in order of time


def row_key(key: SeriesKey, base_ms: int) -> bytes:
    """Return the key of a row."""
    return key.head + encode_base(base_ms) + key.tail


def base_times(first_ms: int, last_ms: int) -> range:
    """Return the base times of the rows that may have points at some times, both ends included."""
    return range(max(first_ms, 0) // PERIOD_MS * PERIOD_MS, last_ms + 1, PERIOD_MS)


async def read_slice(tables: HeroicTables, series: Iterable[ListedSeries], first_ms: int, last_ms: int) -> Slice:
    """Return the points of series at some times, both ends included. Raise StoreError."""
    found: dict[SeriesKey, list[StoredRow]] = {}
    listed = list(series)
    for base_ms in base_times(first_ms, last_ms):
        rows = {row_key(one.key, base_ms): one.key for one in listed if one.first_ms <= base_ms <= one.last_ms}
        bounds = max(first_ms - base_ms, 0), min(last_ms - base_ms, PERIOD_MS - 1)
        for row, cells in (await tables.read(rows, *bounds)).items():
            found.setdefault(rows[row], []).append(StoredRow(row, base_ms, cells))
    return found


async def slices(
    tables: HeroicTables, series: Sequence[ListedSeries], first_ms: int, last_ms: int
) -> AsyncGenerator[Slice, None]:
    """Yield the points of series at some times, both ends included, in order of time; none is empty. A slice is longer
    than the one before if that had few points. Raise StoreError."""
    if not series:
        return
    at = max(first_ms, min(one.first_ms for one in series))
    end = min(last_ms, max(one.last_ms for one in series) + PERIOD_MS - 1)
    width = HOUR_MS
    while at <= end:
        stop = min(at // HOUR_MS * HOUR_MS + width, end + 1)
        found = await read_slice(tables, series, at, stop - 1)
        count = sum(len(row.cells) for rows in found.values() for row in rows)
        if found:
            yield found
        if count * GROWTH < SLICE_CELLS:
            width *= GROWTH
        elif count > SLICE_CELLS:
            width = max(width // GROWTH, HOUR_MS)
        at = stop


class Decoded(NamedTuple):
    """Points of one series."""

    points: Points
    duplicates: int  # dropped in favour of others with the same time
    wrong: Sequence[str]  # a sentence for each row with cells that cannot be read


def decode_rows(rows: Sequence[StoredRow]) -> Decoded:
    """Return the points of a series' rows in order of time. Of several points at one time, which rows with other
    resources may have, the one written last is kept."""
    parts = []
    wrong: list[str] = []
    for row in rows:
        cells = [cell for cell in row.cells if len(cell.column) == COLUMN_BYTES and len(cell.value) == VALUE_BYTES]
        if len(cells) < len(row.cells):
            wrong.append(f"row {row.row.hex()}: {len(row.cells) - len(cells)} cells are no doubles at 4 bytes of time")
        columns = b"".join([cell.column[-OFFSET_BYTES:] for cell in cells])
        times = np.frombuffer(columns, ">u4").astype(np.int64) + row.base_ms
        stamps = np.array([cell.time_ms for cell in cells], np.int64)
        parts.append((times, decode_values([cell.value for cell in cells]), stamps))
    if not parts:
        return Decoded(NO_POINTS, 0, wrong)
    times, values, stamps = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if (times[1:] <= times[:-1]).any():
        order = np.lexsort((stamps, times))
        times, values = times[order], values[order]
    last = np.ones(len(times), np.bool_)
    last[:-1] = times[1:] != times[:-1]
    return Decoded(doubles_as_points(times[last], values[last]), int(len(last) - last.sum()), wrong)
