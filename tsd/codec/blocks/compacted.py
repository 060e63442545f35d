"""Rows of a block ↔ compacted cells of OpenTSDB (FORMATS.md §4 of `tsd.codec.opentsdb`).

A block has only rows that give back their cell byte for byte: one cell, all times in seconds or all in milliseconds,
each value as short as its kind allows. Other rows stay cells.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.blocks.block import HOUR_MS, BlockPoints
from tsd.codec.blocks.numbers import UInt8
from tsd.codec.opentsdb.cell import MS_MARK
from tsd.codec.opentsdb.columns import CELL_POINTS, RowCell, encode_cells
from tsd.codec.points import Bool, Columns, Int64
from tsd.codec.text import FLOAT, LENGTH

_SINGLE, _DOUBLE = FLOAT | 3, FLOAT | 7
_WHOLE_LENGTHS = np.array([1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1], np.bool_)  # by flags: FORMATS.md §4


class CellPoints(NamedTuple):
    """The points of one cell."""

    in_ms: bool
    offsets: Int64  # ms after the base time, ascending
    bits: Int64
    floats: Bool


def cells_of(points: BlockPoints, in_ms: Bool) -> Iterator[RowCell]:
    """Yield the cell of each row: `series` is the row's index in the block, `base` is 0. `in_ms` says for each row of
    the block whether its times have milliseconds."""
    counts = np.diff(points.starts)
    flags, bits = _flags_and_bits(points.bits, points.floats)
    series = np.repeat(points.rows, counts).astype(np.int32)
    instants = points.offsets << 1 | np.repeat(in_ms[points.rows], counts)
    yield from encode_cells(Columns(series, instants, flags, bits), join=True)


def read_cell(qualifier: bytes, value: bytes) -> CellPoints | None:
    """Return the points of a cell that `cells_of` gives back byte for byte; None for every other cell."""
    in_ms = qualifier[:1] >= bytes((MS_MARK,))
    width = 4 if in_ms else 2
    if not qualifier or len(qualifier) % width or len(qualifier) // width > CELL_POINTS:
        return None
    words = np.frombuffer(qualifier, ">u4" if in_ms else ">u2").astype(np.int64)
    flags = words & (FLOAT | LENGTH)
    lengths = (flags & LENGTH) + 1
    offsets = (words & 0x0FFFFFC0) >> 6 if in_ms else (words >> 4) * 1000
    size = int(lengths.sum())
    if len(value) < size or not _WHOLE_LENGTHS[flags].all():
        return None
    if offsets[-1] >= HOUR_MS or (np.diff(offsets) <= 0).any():
        return None
    floats = flags >= FLOAT
    found = CellPoints(in_ms, offsets, _bits_of(value[:size], lengths, floats), floats)
    one = BlockPoints(np.zeros(1, np.intp), np.array([0, len(words)]), *found[1:])
    [cell] = cells_of(one, np.array([in_ms]))
    return found if (cell.qualifier, cell.value) == (qualifier, value) else None


def _bits_of(values: bytes, lengths: Int64, floats: Bool) -> Int64:
    """Return integers, and the raw bits of doubles, of values that follow each other."""
    padded = np.frombuffer(bytes(8) + values, np.uint8)
    ends = np.cumsum(lengths)
    words = padded[ends[:, None] + np.arange(8)].view(">u8").reshape(-1).astype(np.uint64)
    unused = (64 - 8 * lengths).astype(np.uint64)
    bits: Int64 = (words << unused).view(np.int64) >> unused.view(np.int64)
    singles = floats & (lengths == 4)
    if singles.any():
        with np.errstate(invalid="ignore"):  # a signalling NaN
            bits[singles] = bits[singles].astype(np.int32).view(np.float32).astype(np.float64).view(np.int64)
    return bits


def _flags_and_bits(bits: Int64, floats: Bool) -> tuple[UInt8, Int64]:
    """Return the flags of the shortest values, and their bytes, right-aligned."""
    flags: NDArray[np.uint8] = np.full(len(bits), 7, np.uint8)
    for size in (np.int32, np.int16, np.int8):
        flags[bits.astype(size) == bits] = np.dtype(size).itemsize - 1
    if not floats.any():
        return flags, bits
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        singles = bits.view(np.float64).astype(np.float32)
        short = singles.astype(np.float64).view(np.int64) == bits
    flags[floats] = np.where(short[floats], _SINGLE, _DOUBLE)
    return flags, np.where(floats & short, singles.view(np.uint32).astype(np.int64), bits)
