"""Rows of a range of keys in memory, as a scan read them: their packed cells, one after the other."""

from collections.abc import Iterator
from operator import eq

import numpy as np
from numpy.typing import NDArray

from tsd.codec.packing.points import (
    CellBuckets,
    JoinedCells,
    downsample_joined,
    join_cells,
    unpack_joined,
    unpack_joined_alike,
)
from tsd.codec.points import AlikePoints, Bool, Int64
from tsd.store import CellPage, DecodedRows
from tsd.store.rocksdb.keys import TIME_BYTES, find_digests, slices

RANGE_BYTES = 1000  # of the rows of a range, besides their arrays
ROW_BYTES = 12  # of a row's numbers
MOST_BYTES = (1 << 31) - 1  # of texts whose places are numbers of 32 bits
POINT_BYTES = 17  # of a decoded point

Ends = NDArray[np.int32]


class RowPieces:
    """Rows of a range that is being read, piece by piece."""

    def __init__(self, start: bytes, stop: bytes) -> None:
        self.start = start
        self.stop = stop
        self.count = 0
        self.size = 0  # bytes
        self._is_fit = True  # all rows so far have the prefix `start`, and only a packed cell
        self._suffixes: list[bytes] = []  # joined, piece by piece
        self._suffix_sizes: list[Ends] = []
        self._cells: list[bytes] = []
        self._cell_sizes: list[Ends] = []

    def add(self, page: CellPage, first: int, last: int) -> None:
        """Add the rows of a page from index `first` to before `last`."""
        keys, columns, values = page.keys[first:last], page.columns[first:last], page.values[first:last]
        self.count += len(keys)
        self._is_fit &= keys[0].startswith(self.start) and keys[-1].startswith(self.start)
        self._is_fit &= len(find_digests(columns, 0)) == len(columns) and not any(map(eq, keys, keys[1:]))
        if not self._is_fit:
            return
        width = len(self.start)
        self._suffixes.append(b"".join([key[width:] for key in keys]))
        self._suffix_sizes.append(_sizes(keys, width))
        self._cells.append(b"".join([value[TIME_BYTES:] for value in values]))
        self._cell_sizes.append(_sizes(values, TIME_BYTES))
        self.size += len(self._suffixes[-1]) + len(self._cells[-1]) + ROW_BYTES * len(keys)
        self._is_fit &= self.size <= MOST_BYTES

    def joined(self) -> "CachedRows | None":
        """Return the rows; None if they cannot be kept in this form. May be called in a thread."""
        if not self._is_fit:
            return None
        cells = join_cells(self._cells, _ends(self._cell_sizes))
        if cells is None:
            return None
        return CachedRows(self.start, self.stop, b"".join(self._suffixes), _ends(self._suffix_sizes), cells)


def _sizes(texts: list[bytes], ahead: int) -> Ends:
    return np.fromiter(map(len, texts), np.int32, len(texts)) - np.int32(ahead)


def _ends(sizes: list[Ends]) -> Ends:
    """Return where each text starts if all are joined, and then the length of all."""
    return np.cumsum(np.concatenate([np.zeros(1, np.int32), *sizes]), dtype=np.int32)


class CachedRows:
    """The rows from `start` to before `stop`, which all have the prefix `start`."""

    def __init__(self, start: bytes, stop: bytes, suffixes: bytes, ends: Ends, cells: JoinedCells) -> None:
        """`suffixes`: the rests of the rows' keys, joined; `ends` has the start of each, and the end of the last."""
        self.start = start
        self.stop = stop
        self.suffixes = suffixes
        self.ends = ends
        self.cells = cells
        self._points = int(cells.counts.sum(dtype=np.int64))
        self.size = len(suffixes) + len(cells.text) + ROW_BYTES * len(cells.counts) + RANGE_BYTES

    def share_suffixes(self, other: "CachedRows") -> bool:
        """Keep the suffixes once if these are those of other rows. Return whether they are."""
        if self.suffixes is other.suffixes and self.ends is other.ends:
            return True
        if self.suffixes != other.suffixes or not np.array_equal(self.ends, other.ends):
            return False
        self.suffixes, self.ends = other.suffixes, other.ends
        return True

    def parts(self, limit_bytes: int) -> "Iterator[RowsOfRange]":
        """Yield the rows in parts of about `limit_bytes` of decoded points."""
        if self._points * POINT_BYTES <= limit_bytes:
            yield RowsOfRange(self, 0, len(self.cells.counts), self._points)
            return
        points = np.cumsum(self.cells.counts, dtype=np.int64)
        first = 0
        while first < len(points):
            before = int(points[first - 1]) if first else 0
            last = max(int(np.searchsorted(points, before + limit_bytes // POINT_BYTES, side="right")), first + 1)
            yield RowsOfRange(self, first, last, int(points[last - 1]) - before)
            first = last


class RowsOfRange:
    """Some of the rows of a range: ColumnRows."""

    def __init__(self, rows: CachedRows, first: int, last: int, points: int) -> None:
        """`first` and `last` are indexes in `rows`; `last` is exclusive."""
        self.prefix = rows.start
        self.points = points
        self._rows = rows
        self._first, self._last = first, last
        self._suffixes: list[bytes] = []

    def suffixes(self) -> list[bytes]:
        """Return the rest of each row's key."""
        if not self._suffixes:
            self._suffixes = slices(self._rows.suffixes, self._rows.ends, self._first, self._last)
        return self._suffixes

    def share(self, other: "RowsOfRange") -> None:
        """Let `suffixes` return the same list as that of other rows, if it has the same elements."""
        if (self._first, self._last) == (other._first, other._last) and self._rows.share_suffixes(other._rows):
            self._suffixes = other.suffixes()

    def sizes(self) -> Int64:
        """Return the packed bytes of each row."""
        return np.diff(self._rows.cells.ends[self._first : self._last + 1]).astype(np.int64)

    def decode(self, chosen: Bool) -> DecodedRows:
        """See ColumnRows."""
        places = np.flatnonzero(chosen)
        found = unpack_joined(self._rows.cells, places + self._first)
        starts = np.zeros(len(places) + 1, np.int64)
        np.cumsum(found.counts, out=starts[1:])
        return DecodedRows(places, starts, found.times, found.bits, found.floats)

    def decode_alike(self, chosen: Bool | None = None) -> AlikePoints | None:
        """See ColumnRows."""
        places = np.arange(self._last - self._first) if chosen is None else np.flatnonzero(chosen)
        return unpack_joined_alike(self._rows.cells, places + self._first)

    def downsample(self, base_s: int, chosen: Bool | None, interval_ms: int, function: int) -> CellBuckets | None:
        """See ColumnRows."""
        places = np.arange(self._last - self._first) if chosen is None else np.flatnonzero(chosen)
        return downsample_joined(self._rows.cells, places + self._first, base_s, interval_ms, function)
