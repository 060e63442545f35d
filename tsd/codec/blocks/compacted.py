"""Rows of a block ↔ compacted cells of OpenTSDB (FORMATS.md §4 of `tsd.codec.opentsdb`).

A block has only rows that give back their cell byte for byte: one cell, all times in seconds or all in milliseconds,
each value as short as its kind allows. Other rows stay cells.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.blocks.block import BlockPoints
from tsd.codec.blocks.numbers import UInt8
from tsd.codec.opentsdb.cell import MS_MARK
from tsd.codec.opentsdb.columns import CELL_POINTS, RowCell, encode_cells
from tsd.codec.points import Bool, Columns, Int64, spread, starts_of
from tsd.codec.putline import HOUR_MS
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


class CellRows(NamedTuple):
    """The points of those of some cells that have a form in a block, cell after cell."""

    cells: NDArray[np.intp]  # their indexes, ascending
    in_ms: Bool
    starts: Int64  # (cells + 1,): index of each cell's first point, then the number of points
    offsets: Int64
    bits: Int64
    floats: Bool


_NO_INTEGERS, _NO_FLAGS = np.empty(0, np.int64), np.empty(0, np.bool_)
_NO_ROWS = CellRows(_NO_INTEGERS, _NO_FLAGS, np.zeros(1, np.int64), _NO_INTEGERS, _NO_INTEGERS, _NO_FLAGS)


def read_cell(qualifier: bytes, value: bytes) -> CellPoints | None:
    """Return the points of a cell that `cells_of` gives back byte for byte; None for every other cell."""
    found = read_cells([qualifier], [value])
    return CellPoints(bool(found.in_ms[0]), found.offsets, found.bits, found.floats) if len(found.cells) else None


def read_cells(qualifiers: Sequence[bytes], values: Sequence[bytes]) -> CellRows:
    """Return the points of those cells that `cells_of` gives back byte for byte."""
    by_width: dict[int, list[int]] = {2: [], 4: []}
    for at, qualifier in enumerate(qualifiers):
        width = 4 if qualifier[:1] >= bytes((MS_MARK,)) else 2
        if qualifier and not len(qualifier) % width and len(qualifier) // width <= CELL_POINTS:
            by_width[width].append(at)
    parts = [_read_width(np.array(cells), qualifiers, values, width) for width, cells in by_width.items() if cells]
    if not parts:
        return _NO_ROWS
    if len(parts) == 1:
        return parts[0]
    one, other = parts
    both = CellRows(
        np.concatenate((one.cells, other.cells)),
        np.concatenate((one.in_ms, other.in_ms)),
        np.concatenate((one.starts, one.starts[-1] + other.starts[1:])),
        np.concatenate((one.offsets, other.offsets)),
        np.concatenate((one.bits, other.bits)),
        np.concatenate((one.floats, other.floats)),
    )
    return _chosen(both, np.argsort(both.cells))


def _read_width(cells: NDArray[np.intp], qualifiers: Sequence[bytes], values: Sequence[bytes], width: int) -> CellRows:
    """Read cells whose qualifiers have `width` bytes for each point."""
    while len(cells):
        texts = [qualifiers[at] for at in cells.tolist()]
        words = np.frombuffer(b"".join(texts), f">u{width}").astype(np.int64)
        starts = np.zeros(len(cells) + 1, np.int64)
        np.cumsum([len(text) // width for text in texts], out=starts[1:])
        flags = words & (FLOAT | LENGTH)
        lengths = (flags & LENGTH) + 1
        offsets = (words & 0x0FFFFFC0) >> 6 if width == 4 else (words >> 4) * 1000
        sizes = np.add.reduceat(lengths, starts[:-1])
        stored = [values[at] for at in cells.tolist()]
        steps = np.diff(offsets, prepend=-1)
        steps[starts[:-1]] = 1
        good = np.logical_and.reduceat(_WHOLE_LENGTHS[flags] & (steps > 0) & (offsets < HOUR_MS), starts[:-1])
        good &= sizes <= np.fromiter(map(len, stored), np.int64, len(stored))
        if good.all():
            joined = b"".join([value[:size] for value, size in zip(stored, sizes.tolist(), strict=True)])
            floats = flags >= FLOAT
            in_ms = np.full(len(cells), width == 4)
            found = CellRows(cells, in_ms, starts, offsets, _bits_of(joined, lengths, floats), floats)
            return _restorable(found, texts, stored)
        cells = cells[good]
    return _NO_ROWS


def _restorable(found: CellRows, qualifiers: Sequence[bytes], values: Sequence[bytes]) -> CellRows:
    """Return the rows of cells that are the same when they are encoded again."""
    points = BlockPoints(np.arange(len(found.cells)), *found[2:])
    same = [
        (cell.qualifier, cell.value) == stored
        for cell, stored in zip(cells_of(points, found.in_ms), zip(qualifiers, values, strict=True), strict=True)
    ]
    return found if all(same) else _chosen(found, np.flatnonzero(same))


def _chosen(rows: CellRows, order: NDArray[np.intp]) -> CellRows:
    """Return some rows, in another order."""
    counts = np.diff(rows.starts)[order]
    points = spread(rows.starts[order], counts)
    starts = starts_of(counts)
    return CellRows(
        rows.cells[order], rows.in_ms[order], starts, rows.offsets[points], rows.bits[points], rows.floats[points]
    )


def _bits_of(values: bytes, lengths: Int64, floats: Bool) -> Int64:
    """Return integers, and the raw bits of doubles, of values that follow each other."""
    padded = np.frombuffer(bytes(8) + values, np.uint8)
    at_each_byte = np.ndarray((len(values) + 1,), ">u8", padded, strides=(1,))
    words = at_each_byte[np.cumsum(lengths)].astype(np.uint64)
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
