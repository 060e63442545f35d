"""Encode the cells of many points at once, in numpy: the same bytes as those of `tsd.codec.opentsdb.cell`.

A window's points are four parallel arrays. No Python code runs for each point, so ingest is fast without a C compiler.
Property tests compare the results with the functions for single points.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.opentsdb.cell import MS_MARK
from tsd.codec.points import Columns, Int32, Int64, starts_of
from tsd.codec.putline import HOUR
from tsd.codec.text import LENGTH

CELL_POINTS = 4096  # a joined cell holds no more; HBase takes far larger ones, but each is rewritten whole
# Row k: which of the 8 bytes, right-aligned, a value of length code k takes.
_VALUE_BYTES = np.array([[at >= 7 - length for at in range(8)] for length in range(8)])


class RowCell(NamedTuple):
    """One cell to be written into the row of `series` and `base`."""

    series: int
    base: int
    qualifier: bytes
    value: bytes


def encode_cells(columns: Columns, *, join: bool, cell_points: int = CELL_POINTS) -> Iterator[RowCell]:
    """Yield the cells of sorted points: one for each row and at most `cell_points` points, or one a point.

    >>> one = Columns(np.array([0, 0], np.int32), np.array([0, 2000]), np.array([0, 0], np.uint8), np.array([42, 43]))
    >>> [(c.qualifier.hex(), c.value.hex()) for c in encode_cells(one, join=True)]
    [('00000010', '2a2b00')]
    """
    count = len(columns.series)
    if not count:
        return
    hours = columns.instants // HOUR
    ends = _cell_ends(columns.series, hours, cell_points) if join else np.arange(1, count + 1)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    in_ms = (columns.instants & 1).astype(np.bool_)
    qualifiers, qualifier_ends = _qualifiers(columns, hours, in_ms, ends)
    values, value_ends = _values(columns, in_ms, starts, ends)
    at = value_at = 0
    for number, hour, end, value_end in zip(
        columns.series[starts].tolist(), hours[starts].tolist(), qualifier_ends, value_ends, strict=True
    ):
        yield RowCell(number, hour * (HOUR // 2000), qualifiers[at:end], values[value_at:value_end])
        at, value_at = end, value_end


def _cell_ends(series: Int32, hours: Int64, cell_points: int) -> Int64:
    """Return the index after each cell's last point."""
    breaks = np.flatnonzero((series[1:] != series[:-1]) | (hours[1:] != hours[:-1])) + 1
    ends = np.append(breaks, len(series))
    if len(ends) * cell_points >= len(series) and int(np.diff(ends, prepend=0).max()) <= cell_points:
        return ends
    cut = [np.arange(a + cell_points, b, cell_points) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return np.sort(np.concatenate((ends, *cut)))


def _qualifiers(columns: Columns, hours: Int64, in_ms: NDArray[np.bool_], ends: Int64) -> tuple[bytes, list[int]]:
    """Return all qualifiers in one string, and where each cell's end."""
    offsets = (columns.instants - hours * HOUR) >> 1
    if not in_ms.any():
        return ((offsets // 1000 << 4) | columns.flags).astype(">u2").tobytes(), (ends * 2).tolist()
    long = (MS_MARK << 24 | offsets << 6) | columns.flags
    short = (offsets // 1000 << 4) | columns.flags
    all_bytes = np.where(in_ms, long, short).astype(">u4").view(np.uint8).reshape(-1, 4)
    if in_ms.all():
        return all_bytes.tobytes(), (ends * 4).tolist()
    taken = np.ones((len(in_ms), 4), np.bool_)
    taken[:, :2] = in_ms[:, None]
    sizes = np.cumsum(np.where(in_ms, 4, 2))
    return all_bytes[taken].tobytes(), sizes[ends - 1].tolist()


def _values(columns: Columns, in_ms: NDArray[np.bool_], starts: Int64, ends: Int64) -> tuple[bytes, list[int]]:
    """Return all values in one string, joined cells with their last byte, and where each cell's end."""
    lengths = columns.flags & LENGTH
    joined = ends - starts > 1
    last = ends[joined] - 1
    all_bytes = np.zeros((len(lengths), 9), np.uint8)
    all_bytes[:, :8] = columns.bits.astype(">i8").view(np.uint8).reshape(-1, 8)
    taken = np.zeros((len(lengths), 9), np.bool_)
    taken[:, :8] = _VALUE_BYTES[lengths]
    taken[last, 8] = True
    if in_ms.any() and not in_ms.all():
        ms_before = starts_of(in_ms)
        ms_points = ms_before[ends[joined]] - ms_before[starts[joined]]
        all_bytes[last, 8] = (ms_points > 0) & (ms_points < (ends - starts)[joined])
    sizes = lengths + np.int64(1)
    sizes[last] += 1
    sizes = np.cumsum(sizes)
    return all_bytes[taken].tobytes(), sizes[ends - 1].tolist()
