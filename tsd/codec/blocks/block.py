"""A block: points of many series of one metric and hour as columns, and back (FORMATS.md in this folder).

A block consists of a directory and chunks. A chunk has the values of some rows, or some of the times; it is decoded
alone, so a reader of few series decodes few chunks. Directory and chunks have checksums. The directory's includes the
place of the block: a block under the key of another one is damaged.
"""

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.blocks.numbers import (
    DECIMALS,
    DOUBLES,
    INTEGERS,
    MIXED,
    UInt8,
    choose_forms,
    decode_numbers,
    encode_numbers,
    fill,
    have_own_levels,
    to_doubles,
)
from tsd.codec.blocks.times import TIMES, distinct_times, offsets_of, offsets_of_one, time_chunks
from tsd.codec.points import AlikePoints, Bool, Float64, Int64, place_rows, spread, starts_of
from tsd.errors import CorruptRow

FORMAT = 2
FORMATS = 1, FORMAT  # that are read; the first one has no times as distances
MOST_ROWS = 1 << 16
CHUNK_POINTS = 8192  # about; a chunk has whole rows
LEAST_POINTS = 2048  # of a chunk without rows of another scale
SCALES = 3.0  # at most: the largest scale of the rows of such a chunk to the smallest one
FEW_ROWS = 8  # looked up one by one
_HEAD = struct.Struct("<BHIIIqII")
_CHUNK = np.dtype(
    [("form", "u1"), ("decimals", "u1"), ("rows", "<u4"), ("points", "<u4"), ("size", "<u4"), ("crc", "<u4")]
)


class Rows(NamedTuple):
    """Rows of one metric and hour, ascending by their pairs. Each has at least one point, in ascending order of times,
    each time once."""

    series_pairs: Sequence[bytes]  # joined tag pairs of each row's series
    in_ms: Bool  # of each row: its times have milliseconds
    stamps: Int64  # write timestamp of each row's cell, in ms
    starts: Int64  # (rows + 1,): index of each row's first point, then the number of points
    offsets: Int64  # of each point: ms after the base time
    bits: Int64  # of each point: the integer, or the raw bits of a double
    floats: Bool  # of each point


class BlockPoints(NamedTuple):
    """Points of chosen rows, row after row."""

    rows: NDArray[np.intp]  # their indexes in the block, ascending
    starts: Int64
    offsets: Int64
    bits: Int64
    floats: Bool


class _Head(NamedTuple):
    """The fixed part of a block."""

    format: int
    width: int  # of all pairs; 0 if they differ
    rows: int
    vectors: int
    chunks: int
    first_stamp: int
    size: int  # of the packed directory
    crc: int


def encode_block(rows: Rows, place: bytes) -> bytes:
    """Return the block of 1 to MOST_ROWS rows. `place` identifies the block, such as its key: reading needs it too."""
    assert 0 < len(rows.series_pairs) <= MOST_ROWS, len(rows.series_pairs)
    assert (np.diff(rows.starts) > 0).all(), "a row without points"
    times = distinct_times(rows.offsets, rows.starts)
    table: list[tuple[int, int, int, int, int, int]] = []
    parts: list[bytes] = []

    def add(form: int, decimals: int, count: int, points: int, stored: bytes) -> None:
        table.append((form, decimals, count, points, len(stored), zlib.crc32(stored)))
        parts.append(stored)

    for form, count, some in time_chunks(times, CHUNK_POINTS):
        add(form, 0, count, len(some), encode_numbers(some, INTEGERS, steps=False))
    chunk_of = np.zeros(len(rows.series_pairs), np.uint16)
    for form, decimals, steps, members, numbers in _value_chunks(rows):
        chunk_of[members] = len(table)
        stored = encode_numbers(numbers, form, steps=steps, small=True)
        if form == MIXED:
            flags = np.packbits(rows.floats[_points_of(rows.starts, members)]).tobytes()
            stored = flags + stored
        add(form, decimals, len(members), len(numbers), stored)
    width = len(rows.series_pairs[0]) if len(set(map(len, rows.series_pairs))) == 1 else 0
    first_stamp = int(rows.stamps.min())
    directory = zlib.compress(
        b"".join(
            (
                _transposed(np.frombuffer(b"".join(rows.series_pairs), np.uint8).reshape(-1, width))
                if width
                else _column(np.fromiter(map(len, rows.series_pairs), np.uint16, len(rows.series_pairs)))
                + b"".join(rows.series_pairs),
                np.packbits(rows.in_ms).tobytes(),
                _column(rows.stamps - first_stamp),
                _column(chunk_of),
                _column(times.vector_of.astype(np.uint32)),
                _column(times.counts.astype(np.uint32)),
                np.array(table, _CHUNK).tobytes(),
            )
        )
    )
    head = _Head(FORMAT, width, len(rows.series_pairs), len(times.counts), len(table), first_stamp, len(directory), 0)
    head = head._replace(crc=_directory_crc(head, directory, place))
    return b"".join((_HEAD.pack(*head), directory, *parts))


def _directory_crc(head: _Head, directory: bytes, place: bytes) -> int:
    return zlib.crc32(directory, zlib.crc32(_HEAD.pack(*head._replace(crc=0)), zlib.crc32(place)))


def _column(numbers: NDArray[np.generic]) -> bytes:
    """Return numbers with all their lowest bytes first, then all second bytes, and so on."""
    little = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<")))
    return _transposed(little.view(np.uint8).reshape(len(numbers), -1))


def _transposed(table: UInt8) -> bytes:
    return table.T.tobytes()


def _are_neighbours(members: NDArray[np.intp]) -> bool:
    return len(members) == int(members[-1] - members[0]) + 1


def _points_of(starts: Int64, members: NDArray[np.intp]) -> slice | Int64:
    """Return the index of the points of ascending rows."""
    if _are_neighbours(members):
        return slice(int(starts[members[0]]), int(starts[members[-1] + 1]))
    return spread(starts[members], starts[members + 1] - starts[members])


def _value_chunks(rows: Rows) -> Iterator[tuple[int, int, bool, NDArray[np.intp], Int64]]:
    """Yield form, decimals, whether steps are small, rows and numbers of each chunk."""
    forms = choose_forms(rows.bits, rows.floats, rows.starts)
    counts = np.diff(rows.starts)
    kinds = forms.form.astype(np.int64) << 16 | forms.decimals.astype(np.int64) << 8 | forms.steps
    for kind in np.unique(kinds).tolist():
        members = np.flatnonzero(kinds == kind)
        for group in _groups(forms.scale[members], counts[members]):
            some = members[group]
            steps = bool(kind & 1) or have_own_levels(forms.numbers[rows.starts[some]], forms.scale[some])
            yield kind >> 16, kind >> 8 & 0xFF, steps, some, _numbers_of(forms.numbers, rows.starts, some)


def _numbers_of(numbers: Int64, starts: Int64, members: NDArray[np.intp]) -> Int64:
    """Return the numbers of ascending rows."""
    if _are_neighbours(members):
        return numbers[_points_of(starts, members)]
    bounds = zip(starts[members].tolist(), starts[members + 1].tolist(), strict=True)
    return np.concatenate([numbers[at:to] for at, to in bounds])


def _groups(scale: Float64, counts: Int64) -> Iterator[NDArray[np.intp]]:
    """Yield the indexes of the rows of each chunk, ascending. Rows of one scale share a chunk: their numbers take fewer
    bytes. They stay in their order, and are read faster, if all have one scale."""
    order = np.argsort(scale, kind="stable")
    scale = scale[order]
    if scale[-1] <= SCALES * scale[0]:
        order = np.arange(len(order))
    ends = np.cumsum(counts[order])
    start = before = 0
    while start < len(order):
        alike = int(np.searchsorted(scale, SCALES * scale[start], "right"))
        least, most = np.searchsorted(ends, (before + LEAST_POINTS, before + CHUNK_POINTS + 1)).tolist()
        end = max(start + 1, min(max(alike, least + 1), most))
        yield np.sort(order[start:end])
        start, before = end, int(ends[end - 1])


class Block:
    """A block that was read: its directory is decoded, its points are decoded on demand. Safe to use in threads."""

    def __init__(self, stored: bytes, place: bytes) -> None:
        """`place` is that given to `encode_block`. Raise CorruptRow for damage, or a format that is unknown."""
        if len(stored) < _HEAD.size:
            raise CorruptRow(f"a block has {_HEAD.size} bytes or more, this one {len(stored)}")
        if stored[0] not in FORMATS:
            raise CorruptRow(f"a block of format {stored[0]}; this version reads formats 1 and {FORMAT}")
        head = _Head(*_HEAD.unpack_from(stored))
        end = _HEAD.size + head.size
        directory = stored[_HEAD.size : end]
        if len(directory) != head.size or _directory_crc(head, directory, place) != head.crc:
            raise CorruptRow(f"the directory of a block is damaged: {len(stored)} bytes, {stored[:40].hex()}")
        self._stored = stored
        self._read_directory(head, _Fields(zlib.decompress(directory)))
        sizes = self._table["size"].astype(np.int64)
        self._ends = (end + np.cumsum(sizes)).tolist()
        self._starts = [end, *self._ends[:-1]]
        if self._ends[-1] != len(stored):
            raise CorruptRow(f"a block has {self._ends[-1]} bytes, this one {len(stored)}")

    def _read_directory(self, head: _Head, fields: "_Fields") -> None:
        rows = head.rows
        self.rows = rows
        self.pair_array: UInt8 | None = None  # (rows, width), if all pairs have one width
        self._series_pairs: list[bytes] = []
        if head.width:
            self.pair_array = np.ascontiguousarray(fields.take(rows * head.width).reshape(head.width, rows).T)
        else:
            ends = np.cumsum(fields.column(np.uint16, rows), dtype=np.int64)
            joined = fields.take(int(ends[-1])).tobytes()
            bounds = [0, *ends.tolist()]
            self._series_pairs = [joined[at:to] for at, to in pairwise(bounds)]
        self.in_ms: Bool = np.unpackbits(fields.take((rows + 7) // 8), count=rows).view(np.bool_)
        self.stamps: Int64 = fields.column(np.int64, rows) + head.first_stamp
        self._chunk_of = fields.column(np.uint16, rows)
        self._vector_of = fields.column(np.uint32, rows).astype(np.int64)
        self._vector_counts = fields.column(np.uint32, head.vectors).astype(np.int64)
        self._table = fields.take(head.chunks * _CHUNK.itemsize).view(_CHUNK)
        self.counts: Int64 = self._vector_counts[self._vector_of]  # points of each row
        self.points = int(self.counts.sum())
        self._joined = b""  # pairs of one width, when one was looked up
        self._only_times: Int64 | None = None  # of all rows, if they share their times and these were read

    def series_pairs(self) -> list[bytes]:
        """Return the joined tag pairs of each row, ascending."""
        if self.pair_array is not None and not self._series_pairs:
            width, joined = self.pair_array.shape[1], self.pair_array.tobytes()
            self._series_pairs = [joined[at : at + width] for at in range(0, len(joined), width)]
        return self._series_pairs

    def find(self, series_pairs: Sequence[bytes]) -> NDArray[np.intp]:
        """Return the index of the row of each of some joined tag pairs, -1 for pairs without a row."""
        found = np.full(len(series_pairs), -1, np.intp)
        if len(series_pairs) <= FEW_ROWS and self.pair_array is not None:
            for at, one in enumerate(series_pairs):
                found[at] = self._find_one(one, self.pair_array.shape[1])
            return found
        if self.pair_array is None:
            for at, one in enumerate(series_pairs):
                row = bisect_left(self._series_pairs, one)
                found[at] = row if row < self.rows and self._series_pairs[row] == one else -1
            return found
        width = self.pair_array.shape[1]
        alike = [at for at, one in enumerate(series_pairs) if len(one) == width]
        wanted = np.array([series_pairs[at] for at in alike], f"S{width}")
        own = self.pair_array.view(f"S{width}").reshape(-1)
        rows = np.minimum(np.searchsorted(own, wanted), self.rows - 1)
        found[alike] = np.where(own[rows] == wanted, rows, -1)
        return found

    def _find_one(self, pairs: bytes, width: int) -> int:
        assert self.pair_array is not None
        joined = self._joined = self._joined or self.pair_array.tobytes()
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if joined[middle * width : (middle + 1) * width] < pairs:
                low = middle + 1
            else:
                high = middle
        return low if low < self.rows and joined[low * width : (low + 1) * width] == pairs else -1

    def decode_row(self, row: int) -> BlockPoints:
        """Return the points of one row. Raise CorruptRow as `decode` does."""
        chunk = int(self._chunk_of[row])
        form, decimals, _, points, _, _ = self._table[chunk].item()
        if form == MIXED:
            wanted = np.zeros(self.rows, np.bool_)
            wanted[row] = True
            return self.decode(wanted)
        times = self._row_times(row)
        first, count = int(self.counts[:row][self._chunk_of[:row] == chunk].sum()), len(times)
        numbers = np.empty(points, np.float64 if form == DOUBLES else np.int64)
        fill(self._chunk(chunk), numbers)
        some = numbers[first : first + count]
        bits = some.view(np.int64) if form != DECIMALS else to_doubles(some, decimals).view(np.int64)
        floats = np.full(count, form != INTEGERS)
        return BlockPoints(np.array([row]), np.array([0, count]), times, bits, floats)

    def _row_times(self, row: int) -> Int64:
        """Return the offsets of one row. Raise CorruptRow as `decode` does."""
        if self._only_times is not None:
            return self._only_times
        vector = first = int(self._vector_of[row])
        for chunk, (form, _, count, numbers, _, _) in enumerate(self._table.tolist()):
            if form in TIMES and vector < count:
                counts = self._vector_counts[first - vector : first - vector + count]
                found = offsets_of_one(form, self._numbers(chunk, numbers), counts, vector)
                if len(self._vector_counts) == 1:
                    self._only_times = found
                return found
            vector -= count * (form in TIMES)
        raise CorruptRow(f"a block of {len(self._vector_counts)} sequences of times lacks number {first}")

    def decode(self, wanted: Bool | None = None) -> BlockPoints:
        """Return the points of the rows that are `wanted`, of all rows without it. Raise CorruptRow if one of their
        chunks is damaged."""
        rows = np.arange(self.rows) if wanted is None else np.flatnonzero(wanted)
        starts, bits, floats = self._values_of(rows)
        return BlockPoints(rows, starts, self._offsets(rows, self.counts[rows]), bits, floats)

    def decode_alike(self, wanted: Bool | None = None) -> AlikePoints | None:
        """Return the points of the rows that are `wanted`, of all rows without it; one or more. None if their times
        differ. Raise CorruptRow as `decode` does."""
        rows = np.arange(self.rows) if wanted is None else np.flatnonzero(wanted)
        vector = self._vector_of[rows[0]]
        if (self._vector_of[rows] != vector).any():
            return None
        needed = np.zeros(len(self._vector_counts), np.bool_)
        needed[vector] = True
        offsets, _ = self._time_vectors(needed)
        _, bits, floats = self._values_of(rows)
        return AlikePoints(offsets, bits.reshape(len(rows), -1), floats.reshape(len(rows), -1))

    def _values_of(self, rows: NDArray[np.intp]) -> tuple[Int64, Int64, Bool]:
        """Return the index of the first point of each of some rows, and the values of all."""
        counts, chosen = self.counts[rows], self._chunk_of[rows]
        starts = starts_of(counts)
        bits = np.empty(starts[-1], np.int64)
        floats = np.repeat(self._table["form"][chosen] != INTEGERS, counts)
        for chunk in np.unique(chosen).tolist():
            self._decode_values(chunk, rows, chosen == chunk, starts, bits, floats)
        return starts, bits, floats

    def _decode_values(
        self, chunk: int, rows: NDArray[np.intp], own: Bool, starts: Int64, bits: Int64, floats: Bool
    ) -> None:
        """Decode the values of a chunk for those of the chosen rows that are its `own`."""
        form, _, count, points, _, _ = self._table[chunk].item()
        places = np.flatnonzero(own)
        if count == len(places) and _are_neighbours(places):
            to = _points_of(starts, places)
            self._decode_chunk(chunk, bits[to], floats[to])
            return
        numbers, are_floats = np.empty(points, np.int64), np.empty(points, np.bool_)
        self._decode_chunk(chunk, numbers, are_floats)
        members = np.flatnonzero(self._chunk_of == chunk)
        counts = self.counts[members]
        if int(counts.sum()) != points:
            raise CorruptRow(f"chunk {chunk} of a block has {points} points, its rows have {int(counts.sum())}")
        if len(members) > len(places):
            at = np.searchsorted(members, rows[places])
            source = spread(starts_of(counts)[at], counts[at])
            numbers, are_floats = numbers[source], are_floats[source]
        place_rows(numbers, own, np.diff(starts), bits)
        if form == MIXED:
            floats[_points_of(starts, places)] = are_floats

    def _decode_chunk(self, chunk: int, bits: Int64, floats: Bool) -> None:
        """Fill `bits` with the values of a chunk, and `floats` if it is mixed."""
        form, decimals, _, _, _, _ = self._table[chunk].item()
        stored = self._chunk(chunk)
        if form == MIXED:
            size = (len(bits) + 7) // 8
            floats[:] = np.unpackbits(np.frombuffer(stored[:size], np.uint8), count=len(bits)).view(np.bool_)
            stored = stored[size:]
        decode_numbers(stored, form, decimals, bits)

    def _chunk(self, chunk: int) -> bytes:
        """Return the bytes of a chunk. Raise CorruptRow if they are damaged."""
        stored = self._stored[self._starts[chunk] : self._ends[chunk]]
        if zlib.crc32(stored) != int(self._table["crc"][chunk]):
            raise CorruptRow(f"chunk {chunk} of a block of {self.rows} rows is damaged: {stored[:40].hex()}")
        return stored

    def _offsets(self, rows: NDArray[np.intp], counts: Int64) -> Int64:
        """Return the offsets of the points of rows."""
        if not len(rows):
            return np.empty(0, np.int64)
        vectors = self._vector_of[rows]
        needed = np.zeros(len(self._vector_counts), np.bool_)
        needed[vectors] = True
        if needed.sum() == 1:
            some, _ = self._time_vectors(needed)
            return np.tile(some, len(rows))
        offsets, firsts = self._time_vectors(needed)
        if len(vectors) == len(firsts) and (np.diff(vectors) == 1).all():
            return offsets
        return offsets[spread(firsts[vectors], counts)]

    def _time_vectors(self, needed: Bool) -> tuple[Int64, Int64]:
        """Return the offsets of the chunks with needed vectors, and the index of each vector's first offset. If only
        one vector is needed, return its offsets alone."""
        firsts = np.zeros(len(needed), np.int64)
        found: list[Int64] = []
        size = vector = 0
        for chunk in np.flatnonzero(self._table["form"] >= TIMES[0]).tolist():
            part = slice(vector, vector + int(self._table["rows"][chunk]))
            vector = part.stop
            if needed[part].any():
                starts = starts_of(self._vector_counts[part])
                firsts[part] = size + starts[:-1]
                size += int(starts[-1])
                found.append(self._times(chunk, self._vector_counts[part]))
        offsets = found[0] if len(found) == 1 else np.concatenate(found)
        if needed.sum() == 1:
            [one] = np.flatnonzero(needed).tolist()
            offsets = offsets[int(firsts[one]) : int(firsts[one] + self._vector_counts[one])]
        return offsets, firsts

    def _times(self, chunk: int, counts: Int64) -> Int64:
        """Return the offsets of a chunk of times. `counts`: of each of its vectors."""
        form, _, _, count, _, _ = self._table[chunk].item()
        return offsets_of(form, self._numbers(chunk, count), counts)

    def _numbers(self, chunk: int, count: int) -> Int64:
        """Return the numbers of a chunk of times."""
        numbers = np.empty(count, np.int64)
        decode_numbers(self._chunk(chunk), INTEGERS, 0, numbers)
        return numbers


class _Fields:
    """Reads the columns of a directory one after the other."""

    def __init__(self, directory: bytes) -> None:
        self._bytes = np.frombuffer(directory, np.uint8)
        self._at = 0

    def take(self, size: int) -> UInt8:
        """Return the next bytes. Raise CorruptRow if there are fewer."""
        found = self._bytes[self._at : self._at + size]
        if len(found) != size:
            raise CorruptRow(f"the directory of a block has {len(self._bytes)} bytes, wanted {self._at + size}")
        self._at += size
        return found

    def column(self, kind: type[np.generic], count: int) -> NDArray[np.int64]:
        """Return the next column of numbers."""
        dtype = np.dtype(kind).newbyteorder("<")
        table = self.take(count * dtype.itemsize).reshape(dtype.itemsize, count)
        return np.ascontiguousarray(table.T).reshape(-1).view(dtype).astype(np.int64)
