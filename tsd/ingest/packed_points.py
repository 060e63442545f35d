"""Points of an open hour, packed without loss: some 2 bytes a point instead of 21.

Points are sorted by metric, series and arrival, and cut into chunks. A reader of one metric unpacks its chunks only.
Points that are packed later are cut at the same series. So a caller that takes the points of all series, some series at
a time, unpacks each chunk once.

With a million series, the points of some seconds are packed at a time: a point or less of each series. `merge` packs
several of these together, because a series' values differ less from each other than from those of other series.

A chunk has columns (`tsd.codec.number_columns`): series, numbers of points, times, and values by form.
The flags of a value follow from the value, because the parser gives integers and doubles the shortest form. If they do
not for some value of a chunk, the chunk stores the flags too.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from itertools import pairwise
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import NamedTuple, TypeAlias

import numpy as np

from tsd.codec.number_columns import INTEGERS, choose_forms, cuts, decode_numbers, encode_numbers
from tsd.codec.points import (
    NO_COLUMNS,
    Bool,
    Columns,
    Int32,
    Int64,
    UInt8,
    counted_order,
    joined_columns,
    picked,
    place_rows,
    shortest,
    spread,
    wide_values,
)
from tsd.codec.putline import HOUR, HOUR_S
from tsd.codec.text import FLOAT

CHUNK_POINTS = 1 << 14  # about; a chunk that is cut at given series has up to twice as many
MERGED_POINTS = 1 << 15  # the same of merged points
SHORT = 32  # points a row, on average: with fewer, all rows are stored in the same way
STEPS_FROM = 3  # points a row, on average: short rows with this many are stored as differences
SECOND = 2000  # as a difference of instants
SINGLE, DOUBLE = FLOAT | 3, FLOAT | 7
_LEVEL = 1  # of zlib
_OBJECT_BYTES = 2000  # of a chunk, without its columns

Stored: TypeAlias = bytes | memoryview


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
    stored: Stored


class _Chunk(NamedTuple):
    """Points of some series, all of these that were packed together."""

    first: Place
    last: Place  # or the series at which all chunks are cut
    rows: int
    points: int
    series: Stored
    counts: Stored
    scale: int  # of the stored times
    times: Stored
    floats: Stored  # bits, compressed; empty if all points have `is_float`
    is_float: bool
    flags: Stored  # compressed; empty if they follow from the values
    kinds: Stored  # of each row: index in `values`, compressed; empty for one kind
    values: tuple[_Values, ...]

    @property
    def columns(self) -> list[Stored]:
        """All columns, those of values last."""
        others = [self.series, self.counts, self.times, self.floats, self.flags, self.kinds]
        return [*others, *(values.stored for values in self.values)]

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return _OBJECT_BYTES + sum(map(len, self.columns))

    def numbers_of(self, metric: int) -> slice:
        """Return which numbers of a metric's series it may have."""
        if not self.first.metric <= metric <= self.last.metric:
            return slice(0, 0)
        is_first, is_last = self.first.metric == metric, self.last.metric == metric
        return slice(self.first.series if is_first else 0, self.last.series + 1 if is_last else None)

    def with_columns(self, columns: Sequence[Stored]) -> "_Chunk":
        """Return the chunk with equal columns elsewhere, in the order of `columns`."""
        series, counts, times, floats, flags, kinds, *stored = columns
        values = tuple(one._replace(stored=place) for one, place in zip(self.values, stored, strict=True))
        return self._replace(
            series=series, counts=counts, times=times, floats=floats, flags=flags, kinds=kinds, values=values
        )

    def unpack(self) -> Columns:
        """Return the points, series after series, those of a series in order of arrival."""
        numbers, counts = _decoded(self.series, self.rows), _decoded(self.counts, self.rows)
        bits = np.empty(self.points, np.int64)
        kinds = np.frombuffer(zlib.decompress(self.kinds), np.uint8) if self.kinds else np.zeros(self.rows, np.uint8)
        for kind, values in enumerate(self.values):
            some = np.empty(values.points, np.int64)
            decode_numbers(bytes(values.stored), values.form, values.decimals, some)
            if len(self.values) == 1:
                bits = some
            else:
                place_rows(some, kinds == kind, counts, bits)
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

    def __init__(self, chunks: Sequence[_Chunk], base_s: int, merges: int = 0) -> None:
        """The chunks are in order of their places. `base_s`: the hour of all points. `merges`: how often the points
        were packed again."""
        self._chunks = chunks
        self.base_s = base_s
        self.merges = merges
        self.series = sum(chunk.rows for chunk in chunks)  # number
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

    def after(self, place: Place) -> "PackedPoints":
        """Return the chunks that have series after `place`."""
        left = copy(self)
        left._chunks = [chunk for chunk in self._chunks if chunk.last > place]
        left.points = sum(chunk.points for chunk in left._chunks)
        left.size = sum(chunk.size for chunk in left._chunks)
        return left

    def has_metric(self, metric: int) -> bool:
        """Return whether there may be points of a metric."""
        return any(chunk.first.metric <= metric <= chunk.last.metric for chunk in self._chunks)

    def counts_of(self, metric: int) -> Iterator[tuple[Place, Int64, Int64]]:
        """Yield for each chunk with points of a metric: its last place, the numbers of its series, and how many points
        each of these has. A chunk may have series of other metrics, too."""
        for chunk in self._chunks:
            if chunk.first.metric <= metric <= chunk.last.metric:
                yield chunk.last, _decoded(chunk.series, chunk.rows), _decoded(chunk.counts, chunk.rows)

    def near(self, metric: int, after: int, last: int) -> list[Columns]:
        """Return the points of a metric's series with numbers above `after` up to `last`, and of some others."""
        low, high = Place(metric, after), Place(metric, last)
        return [chunk.unpack() for chunk in self._chunks if chunk.last > low and chunk.first <= high]

    def of_series(self, wanted: Bool, metric: int | None = None) -> Columns:
        """Return the points of series, those of each in order of arrival. `wanted` is a mask by number. With `metric`
        all of them are of this one."""
        found = []
        for chunk in self._chunks:
            if metric is not None and not wanted[chunk.numbers_of(metric)].any():
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
        return NO_COLUMNS

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
    """Pack points of one hour in order of arrival. `metric_of`: the number of the metric, by the number of the series.
    `bounds`: those of points that are already packed."""
    base_s = int(columns.instants[0]) // HOUR * HOUR_S
    return PackedPoints(_chunks_of(columns, metric_of, bounds, CHUNK_POINTS), base_s)


def merge(packed: Sequence[PackedPoints], metric_of: Int32, bounds: Sequence[Place] = ()) -> PackedPoints:
    """Pack points again that were packed one after the other. Few of them are unpacked at once: those between series at
    which all of them are cut. `bounds`: those of points that are already merged."""
    common = sorted(set.intersection(*(set(one.bounds) for one in packed)))
    chunks: list[_Chunk] = []
    for after, last in pairwise([None, *common, None]):
        columns = joined_columns([part for one in packed for part in one.between(after, last, metric_of)])
        inner = [bound for bound in bounds if (after is None or bound > after) and (last is None or bound < last)]
        if len(columns.series):
            chunks += _chunks_of(columns, metric_of, inner if last is None else [*inner, last], MERGED_POINTS)
    return PackedPoints(chunks, packed[0].base_s, packed[0].merges + 1)


def _chunks_of(columns: Columns, metric_of: Int32, bounds: Sequence[Place], most: int) -> list[_Chunk]:
    """Pack points in order of arrival into chunks of about `most` points, cut at `bounds`."""
    known = np.zeros(int(columns.series.max()) + 1, np.bool_)
    known[columns.series] = True
    numbers = np.flatnonzero(known).astype(np.int32)
    numbers = numbers[counted_order(metric_of[numbers])]
    ranks = np.zeros(len(known), np.int32)
    ranks[numbers] = np.arange(len(numbers), dtype=np.int32)
    rank = ranks[columns.series]
    counts, order = np.bincount(rank), counted_order(rank)
    del known, ranks, rank
    columns = Columns(*map(np.ascontiguousarray, columns))
    chunks = []
    at = 0
    for start, end, bound in _cut(numbers, metric_of, counts, bounds, most):
        # Memory for one chunk is reused by malloc; the kernel would zero new memory for all of them.
        points = int(counts[start:end].sum())
        part = picked(columns, order[at : at + points])
        at += points
        some = numbers[start:end]
        first, last = (_place(metric_of, number) for number in (some[0], some[-1]))
        chunks.append(_mapped(_packed(part, some, counts[start:end], first, bound or last)))
    return chunks


def _mapped(chunk: _Chunk) -> _Chunk:
    """Move the columns of a chunk to memory that is mapped for them alone. They are kept for an hour. In a heap they
    would lie between arrays that are soon freed, and keep the memory of these from the kernel."""
    memory = memoryview(mmap(-1, sum(map(len, chunk.columns)), flags=MAP_PRIVATE | MAP_ANONYMOUS))
    places: list[Stored] = []
    at = 0
    for column in chunk.columns:
        memory[at : at + len(column)] = column
        places.append(memory[at : at + len(column)])
        at += len(column)
    return chunk.with_columns(places)


def _cut(
    numbers: Int32, metric_of: Int32, counts: Int64, bounds: Sequence[Place], most: int
) -> Iterator[tuple[int, int, Place | None]]:
    """Cut series, sorted by place, into runs of about `most` points. Yield start and end of each, and the bound at
    which it ends."""
    start = 0
    for bound in (*bounds, None):
        end = len(numbers)
        if bound is not None:
            end = bisect_right(numbers, bound, start, key=partial(_place, metric_of))
        points = int(counts[start:end].sum())
        inner = cuts(counts[start:end], most) if points > 2 * most else [(0, end - start)]
        for first, last in inner if end > start else ():
            yield start + first, start + last, bound if start + last == end else None
        start = end


def _place(metric_of: Int32, number: np.int32) -> Place:
    return Place(int(metric_of[number]), int(number))


def _packed(columns: Columns, numbers: Int32, counts: Int64, first: Place, last: Place) -> _Chunk:
    """Pack points that are sorted by series."""
    scale = 1 if (columns.instants % SECOND).any() else SECOND
    bits, floats = wide_values(columns)
    is_shortest = np.array_equal(shortest(bits.copy(), floats)[0], columns.flags)
    is_float = bool(floats[0])
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    kinds, values = _packed_values(bits, floats, starts)
    return _Chunk(
        first=first,
        last=last,
        rows=len(numbers),
        points=len(floats),
        series=encode_numbers(numbers.astype(np.int64), INTEGERS, steps=True),
        counts=encode_numbers(counts, INTEGERS, steps=False),
        scale=scale,
        times=encode_numbers(columns.instants // scale, INTEGERS, steps=True),
        floats=b"" if (floats == is_float).all() else zlib.compress(np.packbits(floats).tobytes(), _LEVEL),
        is_float=is_float,
        flags=b"" if is_shortest else zlib.compress(columns.flags.tobytes(), _LEVEL),
        kinds=b"" if len(values) == 1 else zlib.compress(kinds.tobytes(), _LEVEL),
        values=values,
    )


def _packed_values(bits: Int64, floats: Bool, starts: Int64) -> tuple[UInt8, tuple[_Values, ...]]:
    """Return the kind of each row, and the values of each kind."""
    forms = choose_forms(bits, floats, starts)
    counts = np.diff(starts)
    if len(bits) < SHORT * len(counts):  # a few points do not say which rows have small steps
        forms = forms._replace(steps=np.full(len(counts), len(bits) >= STEPS_FROM * len(counts)))
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


def _decoded(stored: Stored, count: int) -> Int64:
    numbers = np.empty(count, np.int64)
    decode_numbers(bytes(stored), INTEGERS, 0, numbers)
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
