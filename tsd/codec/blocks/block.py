"""A block: packed cells of many series of one metric and hour in one value, and back (FORMATS.md in this folder).

A cell has the packed form of `tsd.codec.packing.cell`. What alike cells have in common is in their first bytes, which a
block stores by column and compressed. One checksum covers the whole block and its place: a block under the key of
another one is damaged.
"""

import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from operator import lt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.packing.cell import CHECKSUM_BYTES, with_checksum
from tsd.codec.points import Int64
from tsd.errors import CorruptRow

try:
    from tsd.codec.blocks import _block
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

FORMAT = 3
MOST_ROWS = 1 << 16
MOST_DIRECTORY_BYTES = 16 << 20  # decompressed: a damaged block must not take all memory
FEW_ROWS = 8  # looked up one by one
HEAD_BYTES = 16  # of a cell, stored by column: its head, and that of its times
_HEAD = struct.Struct("<BHIqII")
_LENGTH_BYTES, _STAMP_BYTES, _SIZE_BYTES = 2, 8, 4

UInt8 = NDArray[np.uint8]


class UnknownFormat(CorruptRow):
    """A block of another version, which may be whole."""


class Rows(NamedTuple):
    """Rows of one metric and hour, ascending by their pairs, each with one cell."""

    series_pairs: Sequence[bytes]  # joined tag pairs of each row's series
    stamps: Int64  # write timestamp of each row's cell, in ms
    cells: Sequence[bytes]  # packed, without their checksums


class _Head(NamedTuple):
    """The fixed part of a block."""

    format: int
    width: int  # of all pairs; 0 if they differ
    rows: int
    first_stamp: int
    size: int  # of the directory as stored
    crc: int


def encode_block(rows: Rows, place: bytes) -> bytes:
    """Return the block of 1 to MOST_ROWS rows. `place` identifies the block, such as its key: reading needs it too."""
    count = len(rows.series_pairs)
    assert 0 < count <= MOST_ROWS, count
    sizes = np.fromiter(map(len, rows.cells), np.int32, count)
    ahead = min(HEAD_BYTES, int(sizes.min()))
    heads = np.frombuffer(b"".join([cell[:ahead] for cell in rows.cells]), np.uint8).reshape(count, ahead)
    width = len(rows.series_pairs[0]) if len(set(map(len, rows.series_pairs))) == 1 else 0
    first_stamp = int(rows.stamps.min())
    columns = b"".join(
        (
            _transposed(np.frombuffer(b"".join(rows.series_pairs), np.uint8).reshape(-1, width))
            if width
            else _column(np.fromiter(map(len, rows.series_pairs), np.uint16, count)) + b"".join(rows.series_pairs),
            _column(rows.stamps - first_stamp),
            _column(sizes),
            _transposed(heads),
        )
    )
    assert len(columns) <= MOST_DIRECTORY_BYTES, len(columns)
    directory = zlib.compress(columns)
    head = _Head(FORMAT, width, count, first_stamp, len(directory), 0)
    rests = b"".join([directory, *[cell[ahead:] for cell in rows.cells]])
    return _HEAD.pack(*head._replace(crc=_crc(head, rests, place))) + rests


def _crc(head: _Head, rest: bytes, place: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(_HEAD.pack(*head._replace(crc=0)), zlib.crc32(place)))


def _column(numbers: NDArray[np.generic]) -> bytes:
    """Return numbers with all their lowest bytes first, then all second bytes, and so on."""
    little = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    return _transposed(little.view(np.uint8).reshape(len(numbers), -1))


def _transposed(table: UInt8) -> bytes:
    return table.T.tobytes()


def _decompressed(stored: bytes, head: _Head) -> bytes:
    """Return the directory. Raise CorruptRow if it is no text of zlib, or longer than that of a block can be."""
    row_bytes = _STAMP_BYTES + _SIZE_BYTES + HEAD_BYTES
    most = min(head.rows * (head.width + row_bytes), MOST_DIRECTORY_BYTES) if head.width else MOST_DIRECTORY_BYTES
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(stored, most + 1)  # one more: the stream's end is read, too
    except zlib.error as exc:
        raise CorruptRow(f"the directory of a block is damaged: {exc}") from exc
    if len(stored) != head.size or len(found) > most or not stream.eof or stream.unused_data:
        raise CorruptRow(f"the directory of a block has not {head.size} bytes of zlib, or more than {most} bytes")
    return found


class Block:
    """A block that was read. Safe to use in threads."""

    def __init__(self, stored: bytes, place: bytes, *, compiled: bool = HAS_LOOP) -> None:
        """`place` is that given to `encode_block`. Raise CorruptRow for damage, or a format that is unknown."""
        if len(stored) < _HEAD.size:
            raise CorruptRow(f"a block has {_HEAD.size} bytes or more, this one {len(stored)}")
        if stored[0] != FORMAT:
            raise UnknownFormat(f"a block of format {stored[0]}; this version reads format {FORMAT}")
        head, rest = _Head(*_HEAD.unpack_from(stored)), stored[_HEAD.size :]
        if _crc(head, rest, place) != head.crc:
            raise CorruptRow(f"a block of {len(stored)} bytes is damaged: {stored[:40].hex()}")
        self.rows = rows = head.rows
        if not 0 < rows <= MOST_ROWS:
            raise CorruptRow(f"a block has 1 to {MOST_ROWS} rows, this one {rows}")
        self._compiled = compiled
        self._directory = _decompressed(rest[: head.size], head)
        self._width = head.width
        self._pairs = b""  # joined, if all have one width
        self._series_pairs: list[bytes] = []
        at = self._read_pairs()
        stamps = rows_of(self._directory, at, rows, _STAMP_BYTES, compiled=compiled)
        self.stamps: Int64 = np.frombuffer(stamps, "<i8") + head.first_stamp  # of each row's cell, in ms
        if (first := int(self.stamps.min())) < head.first_stamp or first < 0:  # less if a sum has more than 63 bits
            raise CorruptRow(f"write timestamps of a block start at {head.first_stamp}, not at {first}")
        at += rows * _STAMP_BYTES
        sizes = rows_of(self._directory, at, rows, _SIZE_BYTES, compiled=compiled)
        self._ends = np.empty(rows + 1, np.int32)  # of each cell, after 0
        self._ahead = min(HEAD_BYTES, ends_of(sizes, self._ends, compiled=compiled))
        if not self._ahead:
            raise CorruptRow("a cell of a block is empty")
        at += rows * _SIZE_BYTES
        self._heads = rows_of(self._directory, at, rows, self._ahead, compiled=compiled)
        if (end := at + len(self._heads)) != len(self._directory):
            raise CorruptRow(f"the directory of a block has {len(self._directory)} bytes, wanted {end}")
        self._rests = rest[head.size :]
        if len(self._rests) != int(self._ends[-1]) - rows * self._ahead:
            raise CorruptRow(f"the cells of a block have {self._ends[-1]} bytes, not {len(self._rests)}")

    def _read_pairs(self) -> int:
        """Read the pairs. Return where they end in the directory. Raise CorruptRow if they do not ascend."""
        if self._width:
            self._pairs = rows_of(self._directory, 0, self.rows, self._width, compiled=self._compiled)
            if not ascends(self._pairs, self._width, compiled=self._compiled):
                raise CorruptRow("the rows of a block do not ascend")
            return len(self._pairs)
        lengths = rows_of(self._directory, 0, self.rows, _LENGTH_BYTES, compiled=self._compiled)
        ends = len(lengths) + np.cumsum(np.frombuffer(lengths, "<u2"), dtype=np.int64)
        bounds: list[int] = [len(lengths), *ends.tolist()]
        if bounds[-1] > len(self._directory):
            raise CorruptRow(f"the directory of a block has {len(self._directory)} bytes, wanted {bounds[-1]}")
        self._series_pairs = [self._directory[at:to] for at, to in pairwise(bounds)]
        if not all(map(lt, self._series_pairs, self._series_pairs[1:])):
            raise CorruptRow("the rows of a block do not ascend")
        return bounds[-1]

    @property
    def sizes(self) -> Int64:
        """The bytes of each row's cell."""
        return np.diff(self._ends).astype(np.int64)

    def series_pairs(self) -> list[bytes]:
        """Return the joined tag pairs of each row, ascending."""
        if not self._series_pairs:
            pairs, width = self._pairs, self._width
            self._series_pairs = [pairs[at : at + width] for at in range(0, len(pairs), width)]
        return self._series_pairs

    def find(self, series_pairs: Sequence[bytes]) -> NDArray[np.intp]:
        """Return the index of the row of each of some joined tag pairs, -1 for pairs without a row."""
        found = np.full(len(series_pairs), -1, np.intp)
        if not self._width:
            for at, one in enumerate(series_pairs):
                row = bisect_left(self._series_pairs, one)
                found[at] = row if row < self.rows and self._series_pairs[row] == one else -1
            return found
        if len(series_pairs) <= FEW_ROWS:
            for at, one in enumerate(series_pairs):
                found[at] = self._find_one(one)
            return found
        alike = [at for at, one in enumerate(series_pairs) if len(one) == self._width]
        wanted = np.array([series_pairs[at] for at in alike], f"S{self._width}")
        own = np.frombuffer(self._pairs, f"S{self._width}")
        rows = np.minimum(np.searchsorted(own, wanted), self.rows - 1)
        found[alike] = np.where(own[rows] == wanted, rows, -1)
        return found

    def _find_one(self, wanted: bytes) -> int:
        pairs, width, low, high = self._pairs, self._width, 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if pairs[middle * width : (middle + 1) * width] < wanted:
                low = middle + 1
            else:
                high = middle
        return low if low < self.rows and pairs[low * width : (low + 1) * width] == wanted else -1

    def cells(self, rows: NDArray[np.intp]) -> list[bytes]:
        """Return the packed cells of some rows, without their checksums."""
        return [stored[_STAMP_BYTES:-CHECKSUM_BYTES] for stored in self.stored_cells(rows)]

    def stored_cells(self, rows: NDArray[np.intp]) -> list[bytes]:
        """Return the cells of some rows, each as its write timestamp, big-endian, and the packed cell with its
        checksum."""
        parts = self._heads, self._ahead, self._rests, self._ends
        return stored_cells(*parts, self.stamps, rows, compiled=self._compiled)


def rows_of(columns: bytes, at: int, rows: int, width: int, *, compiled: bool = HAS_LOOP) -> bytes:
    """Return the rows of a table of bytes that is stored column by column, after `at` bytes. Raise CorruptRow if it
    does not end in `columns`."""
    if compiled:
        return _block.rows_of(columns, at, rows, width)
    if at + rows * width > len(columns):
        raise CorruptRow(f"the directory of a block has {len(columns)} bytes, wanted {at + rows * width}")
    return _transposed(np.frombuffer(columns, np.uint8, rows * width, at).reshape(width, rows))


def ascends(rows: bytes, width: int, *, compiled: bool = HAS_LOOP) -> bool:
    """Return whether each row of a table of bytes comes after the one before it.

    >>> ascends(b"aaabba", 2), ascends(b"aaaaba", 2)
    (True, False)
    """
    if compiled:
        return _block.ascends(rows, width)
    own = np.frombuffer(rows, f"S{width}")
    return bool((own[:-1] < own[1:]).all())


def ends_of(sizes: bytes, ends: NDArray[np.int32], *, compiled: bool = HAS_LOOP) -> int:
    """Write where each text starts if texts of these sizes are joined, and then the length of all. Return the least
    size. Raise CorruptRow for more than 2 GiB."""
    if compiled:
        return _block.ends_of(sizes, ends)
    numbers = np.frombuffer(sizes, "<u4").astype(np.int64)
    if (total := int(numbers.sum())) > np.iinfo(np.int32).max:
        raise CorruptRow(f"the cells of a block have {total} bytes")
    ends[0] = 0
    np.cumsum(numbers, out=ends[1:])
    return int(numbers.min())


def stored_cells(
    heads: bytes,
    ahead: int,
    rests: bytes,
    ends: NDArray[np.int32],
    stamps: Int64,
    rows: NDArray[np.intp],
    *,
    compiled: bool = HAS_LOOP,
) -> list[bytes]:
    """Return some of the cells that are given by the first `ahead` bytes and the rests of all, see
    `Block.stored_cells`. `ends` has where each cell ends, after 0."""
    if compiled:
        return _block.stored_cells(heads, ahead, rests, ends, stamps, rows)
    found = []
    for row in rows.tolist():
        cell = _cell_of(heads, ahead, rests, ends, row)
        found.append(int(stamps[row]).to_bytes(_STAMP_BYTES, "big") + with_checksum(cell))
    return found


def _cell_of(heads: bytes, ahead: int, rests: bytes, ends: NDArray[np.int32], row: int) -> bytes:
    start, end = ends[row : row + 2].tolist()
    return heads[row * ahead : (row + 1) * ahead] + rests[start - row * ahead : end - (row + 1) * ahead]
