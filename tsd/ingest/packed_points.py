"""Points of an open hour, packed: some 2 bytes a point instead of 21, each bit kept.

Points are sorted by metric, series and arrival, and cut into chunks. A reader of one metric unpacks its chunks only.
Points that are packed later are cut at the same series. So a caller that takes the points of all series, some series at
a time, unpacks each chunk once.

A chunk has columns, as blocks have (`tsd.codec.blocks.numbers`): series, numbers of points, times, and values by form.
The flags of a value follow from the value, because the parser gives integers and doubles the shortest form. A chunk in
which they do not stores them.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tsd.codec.blocks.numbers import INTEGERS, choose_forms, cuts, decode_numbers, encode_numbers, spread
from tsd.codec.points import (
    Bool,
    Columns,
    Int32,
    Int64,
    UInt8,
    counted_order,
    joined_columns,
    no_columns,
    picked,
    shortest,
    wide_values,
)
from tsd.codec.text import FLOAT

CHUNK_POINTS = 1 << 15  # about; a chunk that is cut at given series has up to twice as many
SECOND = 2000  # as a difference of instants
SINGLE, DOUBLE = FLOAT | 3, FLOAT | 7
_LEVEL = 1  # of zlib
_OBJECT_BYTES = 1000  # of a chunk, without its columns


class Place(NamedTuple):
    """A series in the order of packed points."""

    metric: int
    series: int

    @property
    def key(self) -> int:
        """A number that has the same order."""
        return self.metric << 32 | self.series


class _Values(NamedTuple):
    """Values of rows of one form; a row has the points of one series."""

    form: int
    decimals: int
    points: int
    stored: bytes


class _Chunk(NamedTuple):
    """Points of some series, all of these that were packed together."""

    first: Place
    last: Place  # or the series at which all chunks are cut
    rows: int
    points: int
    series: bytes
    counts: bytes
    scale: int  # of the stored times
    times: bytes
    floats: bytes  # bits, compressed; empty if all points have `is_float`
    is_float: bool
    flags: bytes  # compressed; empty if they follow from the values
    kinds: bytes  # of each row: index in `values`, compressed; empty for one kind
    values: tuple[_Values, ...]

    @property
    def size(self) -> int:
        """Bytes of memory."""
        columns = (self.series, self.counts, self.times, self.floats, self.flags, self.kinds)
        return _OBJECT_BYTES + sum(map(len, columns)) + sum(len(values.stored) for values in self.values)

    def unpack(self) -> Columns:
        """Return the points, series after series, those of a series in order of arrival."""
        numbers, counts = _decoded(self.series, self.rows), _decoded(self.counts, self.rows)
        ends = np.cumsum(counts)
        bits = np.empty(self.points, np.int64)
        kinds = np.frombuffer(zlib.decompress(self.kinds), np.uint8) if self.kinds else np.zeros(self.rows, np.uint8)
        for kind, values in enumerate(self.values):
            some = np.empty(values.points, np.int64)
            decode_numbers(values.stored, values.form, values.decimals, some)
            if len(self.values) == 1:
                bits = some
            else:
                chosen = kinds == kind
                bits[spread((ends - counts)[chosen], counts[chosen])] = some
        if self.flags:
            flags = np.frombuffer(zlib.decompress(self.flags), np.uint8)
            bits = _narrowed(bits, flags)
        else:
            floats = np.full(self.points, self.is_float)
            if self.floats:
                packed = np.frombuffer(zlib.decompress(self.floats), np.uint8)
                floats = np.unpackbits(packed, count=self.points).view(np.bool_)
            flags, bits = shortest(bits, floats)
        times = _decoded(self.times, self.points)
        times *= self.scale
        return Columns(np.repeat(numbers.astype(np.int32), counts), times, flags, bits)


class PackedPoints:
    """Points that were packed together."""

    def __init__(self, chunks: Sequence[_Chunk]) -> None:
        """The chunks are in order of their places."""
        self._chunks = chunks
        self.points = sum(chunk.points for chunk in chunks)
        self.size = sum(chunk.size for chunk in chunks)  # bytes of memory
        self.highest_series = max(int(_decoded(chunk.series, chunk.rows).max()) for chunk in chunks)

    @property
    def ends(self) -> list[tuple[Place, int]]:
        """The last place of each chunk, and its number of points."""
        return [(chunk.last, chunk.points) for chunk in self._chunks]

    @property
    def bounds(self) -> list[Place]:
        """The places at which other points of these series are cut."""
        return [chunk.last for chunk in self._chunks[:-1]]

    def has_metric(self, metric: int) -> bool:
        """Return whether there may be points of a metric."""
        return any(chunk.first.metric <= metric <= chunk.last.metric for chunk in self._chunks)

    def of_metric(self, metric: int) -> Columns:
        """Return all points of a metric, and some of other metrics."""
        return joined_columns(
            [chunk.unpack() for chunk in self._chunks if chunk.first.metric <= metric <= chunk.last.metric]
        )

    def of_series(self, wanted: Bool, metric: int | None = None) -> Columns:
        """Return the points of series, those of each in order of arrival. `wanted` is a mask by number. With `metric`
        all of them are of this one."""
        found = []
        for chunk in self._chunks:
            if metric is not None and not chunk.first.metric <= metric <= chunk.last.metric:
                continue
            if wanted[_decoded(chunk.series, chunk.rows)].any():
                columns = chunk.unpack()
                found.append(columns.at(wanted[columns.series]))
        return joined_columns(found)

    def of_place(self, place: Place) -> Columns:
        """Return the points of one series in order of arrival."""
        for chunk in self._chunks:
            if chunk.first <= place <= chunk.last:  # no other chunk has it
                columns = chunk.unpack()
                return columns.at((columns.series == place.series).nonzero()[0])
        return no_columns()

    def between(self, after: Place | None, last: Place | None, metric_of: Int32) -> list[Columns]:
        """Return the points of series after `after` up to `last`, in parts. None: without a bound."""
        found = []
        for chunk in self._chunks:
            if (after is None or chunk.last > after) and (last is None or chunk.first <= last):
                is_inside = (after is None or chunk.first > after) and (last is None or chunk.last <= last)
                columns = chunk.unpack()
                found.append(columns if is_inside else between(columns, after, last, metric_of))
        return found


def between(columns: Columns, after: Place | None, last: Place | None, metric_of: Int32) -> Columns:
    """Return the points of series after `after` up to `last`. None: without a bound."""
    keys = metric_of[columns.series].astype(np.int64) << 32 | columns.series
    chosen = np.ones(len(keys), np.bool_)
    if after is not None:
        chosen &= keys > after.key
    if last is not None:
        chosen &= keys <= last.key
    return columns if chosen.all() else columns.at(chosen)


def pack(columns: Columns, metric_of: Int32, bounds: Sequence[Place] = ()) -> PackedPoints:
    """Pack points in order of arrival. `metric_of`: the number of the metric, by the number of the series. `bounds`:
    those of points that are already packed."""
    numbers = np.flatnonzero(np.bincount(columns.series))
    by_rank = numbers[np.argsort(metric_of[numbers], kind="stable")]
    ranks = np.zeros(int(numbers[-1]) + 1, np.int32)
    ranks[by_rank] = np.arange(len(by_rank), dtype=np.int32)
    rank = ranks[columns.series]
    counts = np.bincount(rank)
    order = counted_order(rank)
    columns = Columns(*map(np.ascontiguousarray, columns))
    ends = np.cumsum(counts)
    chunks = []
    for start, end, bound in _cut(by_rank, metric_of, counts, bounds):
        # Memory for one chunk is reused by malloc; the kernel would zero new memory for all of them.
        part = picked(columns, order[int(ends[start] - counts[start]) : int(ends[end - 1])])
        some = by_rank[start:end]
        first, last = (Place(int(metric_of[number]), int(number)) for number in (some[0], some[-1]))
        chunks.append(_packed(part, some, counts[start:end], first, bound or last))
    return PackedPoints(chunks)


def _cut(
    numbers: Int64, metric_of: Int32, counts: Int64, bounds: Sequence[Place]
) -> Iterator[tuple[int, int, Place | None]]:
    """Cut series, sorted by place, into runs. Yield start and end of each, and the bound at which it ends."""
    keys = metric_of[numbers].astype(np.int64) << 32 | numbers
    start = 0
    for bound in (*bounds, None):
        end = len(keys) if bound is None else int(keys.searchsorted(bound.key, "right"))
        points = int(counts[start:end].sum())
        inner = cuts(counts[start:end], CHUNK_POINTS) if points > 2 * CHUNK_POINTS else [(0, end - start)]
        for first, last in inner if end > start else ():
            yield start + first, start + last, bound if start + last == end else None
        start = end


def _packed(columns: Columns, numbers: Int64, counts: Int64, first: Place, last: Place) -> _Chunk:
    """Pack points that are sorted by series."""
    scale = 1 if (columns.instants % SECOND).any() else SECOND
    bits, floats = wide_values(columns)
    is_shortest = np.array_equal(shortest(bits.copy(), floats)[0], columns.flags)
    is_float = bool(floats[0])
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    kinds, values = _packed_values(bits, floats, starts)
    return _Chunk(
        first,
        last,
        len(numbers),
        len(floats),
        encode_numbers(numbers.astype(np.int64), INTEGERS, steps=True),
        encode_numbers(counts.astype(np.int64), INTEGERS, steps=False),
        scale,
        encode_numbers(columns.instants // scale, INTEGERS, steps=True),
        b"" if (floats == is_float).all() else zlib.compress(np.packbits(floats).tobytes(), _LEVEL),
        is_float,
        b"" if is_shortest else zlib.compress(columns.flags.tobytes(), _LEVEL),
        b"" if len(values) == 1 else zlib.compress(kinds.tobytes(), _LEVEL),
        values,
    )


def _packed_values(bits: Int64, floats: Bool, starts: Int64) -> tuple[UInt8, tuple[_Values, ...]]:
    """Return the kind of each row, and the values of each kind."""
    forms = choose_forms(bits, floats, starts)
    counts = np.diff(starts)
    keys = forms.form.astype(np.int64) << 9 | forms.decimals.astype(np.int64) << 1 | forms.steps
    found = np.flatnonzero(np.bincount(keys))
    kind_of = np.zeros(int(found[-1]) + 1, np.uint8)
    kind_of[found] = np.arange(len(found))
    kinds = kind_of[keys]
    values = []
    for kind, key in enumerate(found.tolist()):
        chosen = kinds == kind
        numbers = forms.numbers if len(found) == 1 else forms.numbers[spread(starts[:-1][chosen], counts[chosen])]
        form = key >> 9
        stored = encode_numbers(numbers, form, steps=bool(key & 1))
        values.append(_Values(form, key >> 1 & 0xFF, len(numbers), stored))
    return kinds, tuple(values)


def _decoded(stored: bytes, count: int) -> Int64:
    numbers = np.empty(count, np.int64)
    decode_numbers(stored, INTEGERS, 0, numbers)
    return numbers


def _narrowed(bits: Int64, flags: UInt8) -> Int64:
    """Return the bits of points from those in which each 4-byte float is a double."""
    single = flags == SINGLE
    if not single.any():
        return bits
    found = bits.copy()
    found[single] = found[single].view(np.float64).astype(np.float32).view(np.uint32)
    return found


def slices(packed: Sequence[PackedPoints], most: int) -> Iterator[tuple[Place | None, Place | None]]:
    """Yield bounds for `between` that give about `most` points each; together they give every series once."""
    after, points = None, 0
    ends = sorted(end for one in packed for end in one.ends)
    for last, count in ends[:-1]:
        points += count
        if points >= most:
            yield after, last
            after, points = last, 0
    yield after, None
