"""A run: many cells of a table as one value, and back (FORMATS.md in this folder).

The cells of a run have values of 8 bytes and follow each other in the table: a matrix of rows and columns, of which
some places may be empty. A row is any bytes; the key of a cell is its row and then its column. Rows are ascending, and
no key of a row lies between those of another one.
"""

import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Bool, Int64
from tsd.errors import CorruptRow

UInt64: TypeAlias = NDArray[np.uint64]

FORMAT = 1
VALUE_BYTES = 8
_HEAD = struct.Struct("<BIIIII")
_NO_CRC = 0


class Matrix(NamedTuple):
    """Cells by row and column. Both are ascending; the arrays have a row for each row, and each place of a column."""

    rows: Sequence[bytes]
    columns: Sequence[bytes]
    values: UInt64  # in memory as the cells have them
    present: Bool
    stamps: Int64  # write timestamps in ms

    def first_key(self) -> bytes:
        """Return the first key. The first row has a cell."""
        return self.rows[0] + self.columns[int(self.present[0].argmax())]

    def last_key(self) -> bytes:
        """Return the last key. The last row has a cell."""
        return self.rows[-1] + self.columns[-1 - int(self.present[-1, ::-1].argmax())]

    def cell_keys(self) -> list[bytes]:
        """Return the keys of the cells, in order."""
        every = [row + column for row in self.rows for column in self.columns]
        return every if self.present.all() else [*compress(every, self.present.reshape(-1).tolist())]

    def stored_values(self) -> list[bytes]:
        """Return the write timestamp and the value of each cell, 16 bytes, in order of the keys."""
        pairs = np.stack((self.stamps[self.present].astype(">i8").view(np.uint64), self.values[self.present]), axis=1)
        found: list[bytes] = pairs.view(f"V{2 * VALUE_BYTES}").reshape(-1).tolist()
        return found

    def at_rows(self, chosen: slice) -> "Matrix":
        """Return some rows."""
        rows, columns, values, present, stamps = self
        return Matrix(rows[chosen], columns, values[chosen], present[chosen], stamps[chosen])


class _Head(NamedTuple):
    """The fixed part of a run."""

    format: int
    rows: int
    columns: int
    cells: int
    stamps: int  # distinct write timestamps
    crc: int


def encode_run(matrix: Matrix, place: bytes) -> bytes:
    """Return the bytes of one or more cells. `place` identifies the run, such as its key: reading needs it too."""
    rows, columns, values, present, stamps = matrix
    if present.all():
        found, numbers = stamps.reshape(-1), values.reshape(-1)
    else:
        found, numbers = stamps[present], values[present]
    number_of: bytes = b""
    if len(found) and found.min() == found.max():
        distinct = found[:1]
    else:
        distinct, places = np.unique(found, return_inverse=True)
        number_of = _planes(places.astype("<u4"))
    content = b"".join(
        (
            struct.pack(f"<{len(rows)}H", *map(len, rows)),
            struct.pack(f"<{len(columns)}H", *map(len, columns)),
            *rows,
            *columns,
            np.packbits(present).tobytes(),
            distinct.astype("<i8").tobytes(),
            number_of,
            _planes(numbers),
        )
    )
    head = _Head(FORMAT, len(rows), len(columns), len(found), len(distinct), _NO_CRC)
    return _HEAD.pack(*head._replace(crc=_crc(head, content, place))) + content


def _crc(head: _Head, content: bytes, place: bytes) -> int:
    return zlib.crc32(place, zlib.crc32(_HEAD.pack(*head._replace(crc=_NO_CRC)), zlib.crc32(content)))


def _planes(numbers: NDArray[np.generic]) -> bytes:
    """Return numbers with the first bytes of all, then the second ones, and so on: they are compressed better."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1).T.tobytes()


def has_places_of(stored: bytes, other: bytes) -> bool:
    """Return whether two runs have cells of the same rows and columns, without decoding them."""
    one, two = _head(stored), _head(other)
    if one[:4] != two[:4]:
        return False
    sizes = np.frombuffer(stored, "<u2", one.rows + one.columns, _HEAD.size)
    end = _HEAD.size + sizes.nbytes + int(sizes.sum(dtype=np.int64)) + (one.rows * one.columns + 7) // 8
    return stored[_HEAD.size : end] == other[_HEAD.size : end]


def check_run(stored: bytes, place: bytes) -> None:
    """Raise CorruptRow for damage, or a format that is unknown."""
    head = _head(stored)
    if _crc(head, stored[_HEAD.size :], place) != head.crc:
        raise CorruptRow(f"a run of cells is damaged: {len(stored)} bytes, {stored[:40].hex()}")


def cells_of_run(stored: bytes) -> int:
    """Return the number of cells of a run that is not decoded. Raise CorruptRow if it has no head."""
    return _head(stored).cells


def decode_run(stored: bytes, place: bytes) -> Matrix:
    """Return the cells of a run. Raise CorruptRow for damage, or a format that is unknown."""
    check_run(stored, place)
    head, at = _head(stored), _HEAD.size
    sizes = np.frombuffer(stored, "<u2", head.rows + head.columns, at)
    at += sizes.nbytes
    ends = (at + np.cumsum(sizes, dtype=np.int64)).tolist()
    texts = [stored[start:end] for start, end in pairwise([at, *ends])]
    at = ends[-1]
    shape = head.rows, head.columns
    places = head.rows * head.columns
    bits = np.unpackbits(np.frombuffer(stored, np.uint8, (places + 7) // 8, at), count=places)
    present = bits.view(np.bool_).reshape(shape)
    at += (places + 7) // 8
    distinct = np.frombuffer(stored, "<i8", head.stamps, at).astype(np.int64, copy=False)
    at += distinct.nbytes
    stamps = np.full(shape, distinct[0])
    if head.stamps > 1:
        stamps[present] = distinct[_numbers(stored, at, head.cells, "<u4")]
        at += 4 * head.cells
    values = np.zeros(shape, np.uint64)
    values[present] = _numbers(stored, at, head.cells, "=u8")
    return Matrix(texts[: head.rows], texts[head.rows :], values, present, stamps)


def _head(stored: bytes) -> _Head:
    if len(stored) < _HEAD.size:
        raise CorruptRow(f"a run of cells has {_HEAD.size} bytes or more, this one {len(stored)}")
    head = _Head(*_HEAD.unpack_from(stored))
    if head.format != FORMAT:
        raise CorruptRow(f"a run of cells of format {head.format}; this version reads format {FORMAT}")
    return head


def _numbers(stored: bytes, at: int, count: int, form: str) -> NDArray[np.uint64]:
    """Return numbers that `_planes` has stored."""
    width = np.dtype(form).itemsize
    planes = np.frombuffer(stored, np.uint8, width * count, at).reshape(width, count)
    return np.ascontiguousarray(planes.T).view(form).reshape(-1)


def join_runs(parts: Sequence[Matrix]) -> Matrix:
    """Return the cells of all parts. Those of a later part replace equal ones of an earlier part."""
    if all(_replaces(parts[-1], part) for part in parts[:-1]):
        return parts[-1]
    rows = sorted({row for part in parts for row in part.rows})
    columns = sorted({column for part in parts for column in part.columns})
    row_of = {row: at for at, row in enumerate(rows)}
    column_of = {column: at for at, column in enumerate(columns)}
    shape = len(rows), len(columns)
    made = Matrix(rows, columns, np.zeros(shape, np.uint64), np.zeros(shape, np.bool_), np.zeros(shape, np.int64))
    for part in parts:
        own_rows, own_columns = np.nonzero(part.present)
        at = (
            np.fromiter(map(row_of.__getitem__, part.rows), np.intp, len(part.rows))[own_rows],
            np.fromiter(map(column_of.__getitem__, part.columns), np.intp, len(part.columns))[own_columns],
        )
        made.values[at] = part.values[part.present]
        made.stamps[at] = part.stamps[part.present]
        made.present[at] = True
    return made


def _replaces(new: Matrix, old: Matrix) -> bool:
    """Return whether a matrix of the same rows and columns has all cells of another one."""
    return new.rows == old.rows and new.columns == old.columns and bool((new.present | ~old.present).all())


def without_range(matrix: Matrix, start: bytes, stop: bytes) -> list[Matrix]:
    """Return the cells before the key `start`, and those from `stop` on: up to two parts, none of them empty."""
    keys = matrix.cell_keys()
    number = np.cumsum(matrix.present).reshape(matrix.present.shape) - 1
    parts = (number < bisect_left(keys, start), number >= bisect_left(keys, stop))
    return [trimmed(matrix._replace(present=matrix.present & part)) for part in parts if (matrix.present & part).any()]


def without_keys(matrix: Matrix, gone: set[bytes]) -> Matrix | None:
    """Return the cells that do not have some keys; None if there are none."""
    kept = np.fromiter((key not in gone for key in matrix.cell_keys()), np.bool_)
    if not kept.any():
        return None
    present = matrix.present.copy()
    present[present] = kept
    return trimmed(matrix._replace(present=present))


def trimmed(matrix: Matrix) -> Matrix:
    """Return the same cells without empty rows and columns."""
    rows: Bool = np.logical_or.reduce(matrix.present, axis=1)
    columns: Bool = np.logical_or.reduce(matrix.present, axis=0)
    index = np.ix_(rows, columns)
    return Matrix(
        [*compress(matrix.rows, rows.tolist())],
        [*compress(matrix.columns, columns.tolist())],
        matrix.values[index],
        matrix.present[index],
        matrix.stamps[index],
    )
