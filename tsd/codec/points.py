"""Points as parallel arrays: `Columns` in ingest, `Points` and `Batch` in queries.

Arrays have both integers and doubles; nothing is rounded.

A value's `bits` are the integer itself, or the raw bits of a double; `floats` says which. So `bits.view(float64)` is
the values where all are doubles, and `bits` itself where none is.

`Histogram` counts values by range.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.text import FLOAT, LENGTH, parse_long
from tsd.errors import BadLine

try:
    from tsd.codec import _columns
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

UInt8 = NDArray[np.uint8]
UInt32 = NDArray[np.uint32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Points(NamedTuple):
    """Points of one series or group: arrays of equal length, in strictly ascending order of times."""

    times: Int64  # ms since the epoch
    bits: Int64
    floats: Bool

    def doubles(self) -> Float64:
        """Return all values as doubles. Integers are converted as by Java's (double).

        >>> Points(np.array([0, 1]), np.array([2, 0]), np.array([False, True])).doubles().tolist()
        [2.0, 0.0]
        """
        if np.count_nonzero(self.floats) == len(self.floats):  # a third of what `all` takes for few points
            return self.bits.view(np.float64)
        return np.where(self.floats, self.bits.view(np.float64), self.bits.astype(np.float64))

    def at(self, index: slice | NDArray[np.bool_] | NDArray[np.intp]) -> "Points":
        """Return the points that a numpy index selects."""
        return Points(self.times[index], self.bits[index], self.floats[index])


class Batch(NamedTuple):
    """Points of several rows, row after row. A row is one hour of one series, in time order.

    Series of a sub query are numbered from 0 without gaps, in any order. Rows of one series are in time order, within a
    batch and across batches. A row may have no points: it only introduces its series.
    """

    series: NDArray[np.int32]  # (rows,): number of the row's series
    starts: Int64  # (rows + 1,): index of each row's first point in the arrays below, then their length
    times: Int64  # (points,): ms since the epoch
    bits: Int64
    floats: Bool

    def has_places_of(self, other: "Batch") -> bool:
        """Return whether another batch has points of the same series at the same times."""
        pairs = ((self.times, other.times), (self.starts, other.starts), (self.series, other.series))
        return all(one is two or np.array_equal(one, two) for one, two in pairs)

    def between(self, first: int, stop: int) -> "Batch":
        """Return the rows from `first` to before `stop`. No point is copied."""
        points = slice(int(self.starts[first]), int(self.starts[stop]))
        starts = self.starts[first : stop + 1] - self.starts[first]
        return Batch(self.series[first:stop], starts, self.times[points], self.bits[points], self.floats[points])


class AlikePoints(NamedTuple):
    """Points of several rows of one hour that all have the same times."""

    offsets_ms: Int64  # after the hour, ascending
    bits: Int64  # (rows, times)
    floats: Bool  # (rows, times)


def doubles_as_points(times: Int64, values: Float64) -> Points:
    """Return points with doubles as values."""
    return Points(times, np.ascontiguousarray(values).view(np.int64), np.ones(len(times), np.bool_))


NO_POINTS = Points(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))

EXACT = float(1 << 53)  # integers below it are exact in a double
SINGLE = FLOAT | 3  # flags of a 4-byte float
_PLAIN = b"0123456789.+-eE "
_MOST_DIGITS = 19  # of a 64-bit integer


class Columns(NamedTuple):
    """Points in order of arrival: parallel arrays of equal length."""

    series: Int32  # number of the point's series, assigned by the caller
    instants: Int64  # see tsd.codec.putline
    flags: UInt8  # float bit and length of the value
    bits: Int64  # the value's bytes, right-aligned: a signed integer, or a float's raw bits

    def at(self, index: NDArray[np.bool_] | Int32 | Int64 | slice) -> "Columns":
        """Return the points that a numpy index selects."""
        return Columns(self.series[index], self.instants[index], self.flags[index], self.bits[index])


POINT_BYTES = 21  # of a point in Columns

NO_COLUMNS = Columns(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))


def joined_columns(parts: Sequence[Columns]) -> Columns:
    """Return the points of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return Columns(*map(np.concatenate, zip(NO_COLUMNS, *parts, strict=True)))


def columns_of(buffers: "_columns.Buffers") -> Columns:
    """Return columns over buffers of the compiled code, without a copy."""
    series, instants, flags, bits = buffers
    return Columns(
        np.frombuffer(series, np.int32),
        np.frombuffer(instants, np.int64),
        np.frombuffer(flags, np.uint8),
        np.frombuffer(bits, np.int64),
    )


def wide_values(columns: Columns, *, compiled: bool = HAS_LOOP) -> tuple[Int64, Bool]:
    """Return the bits of all values, singles as doubles, and which values are doubles.

    >>> singles = np.array([0.5], np.float32).view(np.uint32).astype(np.int64)
    >>> flags, zeros = np.array([SINGLE], np.uint8), np.zeros(1, np.int64)
    >>> bits, floats = wide_values(Columns(zeros.astype(np.int32), zeros, flags, singles))
    >>> bits.view(np.float64).tolist(), floats.tolist()
    ([0.5], [True])
    """
    bits, singles = columns.bits, columns.flags == SINGLE
    if not np.count_nonzero(singles):
        return bits, (columns.flags & FLOAT) != 0
    if compiled:
        wide, floats = np.empty(len(bits), np.int64), np.empty(len(bits), np.uint8)
        _columns.widen(np.ascontiguousarray(columns.flags), np.ascontiguousarray(bits), wide, floats)
        return wide, floats.view(np.bool_)
    bits = bits.copy()
    with np.errstate(invalid="ignore"):  # a signaling NaN becomes a quiet one
        bits[singles] = bits[singles].astype(np.uint32).view(np.float32).astype(np.float64).view(np.int64)
    return bits, (columns.flags & FLOAT) != 0


def shortest(bits: Int64, floats: Bool, *, compiled: bool = HAS_LOOP) -> tuple[UInt8, Int64]:
    """Return the flags of the shortest form of each value, and its bits in this form. `bits` may be overwritten. It has
    integers, and doubles where `floats` is set.

    >>> flags, bits = shortest(np.array([300, np.float64(0.5).view(np.int64)]), np.array([False, True]))
    >>> flags.tolist(), hex(bits[1])
    ([1, 11], '0x3f000000')
    """
    flags = np.empty(len(bits), np.uint8)
    if compiled:
        _columns.shorten(bits, floats.view(np.uint8), flags)
        return flags, bits
    flags[:] = 7
    for length in (4, 2, 1):
        bound = 1 << 8 * length - 1
        flags[(bits >= -bound) & (bits < bound)] = length - 1
    doubles = bits[floats].view(np.float64)
    with np.errstate(over="ignore"):
        singles = doubles.astype(np.float32)
    is_single = singles == doubles
    flags[floats] = np.where(is_single, SINGLE, FLOAT | 7)
    bits[floats] = np.where(is_single, singles.view(np.uint32).astype(np.int64), bits[floats])
    return flags, bits


def number_columns(words: Sequence[bytes]) -> tuple[UInt8, Int64] | None:
    """Return flags and bits of plain decimal numbers. Return None if any word needs `tsd.codec.putline.parse_value`.

    >>> flags, bits = number_columns([b"1", b"300", b"42.5", b"0.1"])
    >>> flags.tolist(), bits[:2].tolist()
    ([0, 1, 11, 15], [1, 300])
    """
    text = b" ".join(words)
    if text.translate(None, _PLAIN):
        return None
    try:
        numbers = np.fromiter(map(float, words), np.float64, len(words))
    except ValueError:
        return None
    letters = np.frombuffer(text, np.uint8)
    word_of = np.cumsum(letters == ord(" "), dtype=np.int32)
    is_float = np.zeros(len(words), np.bool_)
    is_float[word_of[(letters == ord(".")) | (letters | 0x20 == ord("e"))]] = True
    if not is_float.any():
        return _integers(numbers, words)
    if is_float.all():
        return _floats(numbers)
    flags = np.empty(len(words), np.uint8)
    bits = np.empty(len(words), np.int64)
    floats = _floats(numbers[is_float])
    integers = _integers(numbers[~is_float], [words[at] for at in np.flatnonzero(~is_float).tolist()])
    if floats is None or integers is None:
        return None
    flags[is_float], bits[is_float] = floats
    flags[~is_float], bits[~is_float] = integers
    return flags, bits


def _integers(numbers: NDArray[np.float64], words: Sequence[bytes]) -> tuple[UInt8, Int64] | None:
    """Return flags and bits of integers; `numbers` are the words as doubles. None if a word is not a 64-bit integer."""
    if max(map(len, words)) > _MOST_DIGITS and any(len(word.lstrip(b"+-")) > _MOST_DIGITS for word in words):
        return None
    inexact = np.abs(numbers) >= EXACT
    if inexact.any():
        numbers = np.where(inexact, 0.0, numbers)
    bits = numbers.astype(np.int64)
    try:
        for at in np.flatnonzero(inexact).tolist():
            bits[at] = parse_long(words[at])
    except BadLine:
        return None
    flags = np.full(len(bits), 7, np.uint8)
    for size in (np.int32, np.int16, np.int8):
        flags[bits.astype(size) == bits] = np.dtype(size).itemsize - 1
    return flags, bits


def _floats(numbers: NDArray[np.float64]) -> tuple[UInt8, Int64] | None:
    if np.isinf(numbers).any():
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        singles = numbers.astype(np.float32)
    short = singles.astype(np.float64) == numbers
    bits = np.where(short, singles.view(np.uint32).astype(np.int64), numbers.view(np.int64))
    return np.where(short, SINGLE, FLOAT | 7).astype(np.uint8), bits


def columns_of_series(columns: Columns, wanted: Bool, *, compiled: bool = HAS_LOOP) -> Columns:
    """Return the points of some series, in order. `wanted` is a mask by number; numbers beyond its end are not wanted.

    >>> columns = Columns(np.array([1, 0, 7], np.int32), np.arange(3), np.zeros(3, np.uint8), np.arange(3))
    >>> columns_of_series(columns, np.array([False, True])).bits.tolist()
    [0]
    """
    if compiled:
        whole = Columns(*map(np.ascontiguousarray, columns))
        return columns_of(_columns.choose(*whole, wanted.view(np.uint8)))
    inside = columns.at(np.flatnonzero(columns.series < len(wanted)))
    return inside.at(np.flatnonzero(wanted[inside.series]))


def count_series(series: Int32, place_of: Int32, counts: Int64, present: Bool, *, compiled: bool = HAS_LOOP) -> None:
    """Add the points of each series to `counts`, and mark it in `present`. `place_of` has its place in both, by its
    number: negative for series to leave out, as are those beyond its end.

    >>> counts, present = np.zeros(2, np.int64), np.zeros(2, np.bool_)
    >>> count_series(np.array([1, 0, 1, 2], np.int32), np.array([-1, 1], np.int32), counts, present)
    >>> counts.tolist(), present.tolist()
    ([0, 2], [False, True])
    """
    if compiled:
        _columns.count(np.ascontiguousarray(series), place_of, counts, present.view(np.uint8))
        return
    places = place_of[series[series < len(place_of)]]
    places = places[places >= 0]
    counts += np.bincount(places, minlength=len(counts))
    present[places] = True


def rows_of_parts(
    parts: Sequence[Columns], row_of: Int32, rows: int, span: tuple[int, int], *, compiled: bool = HAS_LOOP
) -> tuple[Batch, Int64]:
    """Return the points of some series within a span, and how many bytes the values of each row take in a cell.

    `parts` have the points of one hour, those of a series in order of arrival. `row_of` has the row of each series by
    its number: negative for those to leave out, as are series beyond its end. `span` is instants, the end excluded.
    Rows without points are left out. Of equal times the last to arrive counts.

    >>> zeros = np.zeros(2, np.uint8)
    >>> part = Columns(np.array([1, 4], np.int32), np.array([6000, 2000]), zeros, np.array([5, 7]))
    >>> batch, sizes = rows_of_parts([part], np.array([-1, 3], np.int32), 4, (0, 7200000))
    >>> batch.series.tolist(), batch.starts.tolist(), batch.times.tolist(), batch.bits.tolist(), sizes.tolist()
    ([3], [0, 1], [3000], [5], [1])
    """
    if compiled:
        whole = [Columns(*map(np.ascontiguousarray, part)) for part in parts]
        found = _columns.gather(whole, row_of, rows, *span)
        if found is not None:
            starts, sizes, times, bits = (np.frombuffer(each, np.int64) for each in found[:4])
            present = np.flatnonzero(starts[1:] > starts[:-1])
            if len(present) < rows:
                starts, sizes = np.append(starts[present], starts[-1:]), sizes[present]
            batch = Batch(present.astype(np.int32), starts, times, bits, np.frombuffer(found[4], np.bool_))
            return batch, sizes
    every = joined_columns(parts)
    row = np.where(every.series < len(row_of), row_of[np.minimum(every.series, len(row_of) - 1)], -1)
    chosen = (row >= 0) & (every.instants >= span[0]) & (every.instants < span[1])
    return rows_of_columns(every._replace(series=row.astype(np.int32)).at(chosen))


def rows_of_columns(columns: Columns) -> tuple[Batch, Int64]:
    """Return points of one hour, with the numbers of rows as series, as `rows_of_parts` does."""
    columns = sort_columns(columns, join=True)
    first = np.ones(len(columns.series), np.bool_)
    first[1:] = columns.series[1:] != columns.series[:-1]
    starts = np.flatnonzero(first)
    bounds = np.append(starts, len(columns.series))
    sizes = np.diff(bounds)
    if len(starts):
        sizes += np.add.reduceat(columns.flags & LENGTH, starts, dtype=np.int64)
    return Batch(columns.series[starts], bounds, columns.instants >> 1, *wide_values(columns)), sizes


def merged_rows(rows: Batch, added: Batch, added_of: Int64, *, compiled: bool = HAS_LOOP) -> tuple[Batch, bool]:
    """Return rows, each with the points of an added row of its hour, and whether all then have the same times. Of equal
    times the added point counts. `added_of` has the index of each row's added row, negative where there is none. No two
    rows have the same one.

    >>> no = np.zeros(1, np.bool_)
    >>> rows = Batch(np.zeros(1, np.int32), np.array([0, 1]), np.array([5]), np.array([1]), no)
    >>> batch, is_alike = merged_rows(rows, rows._replace(bits=np.array([2])), np.array([0]))
    >>> batch.times.tolist(), batch.bits.tolist(), is_alike
    ([5], [2], True)
    """
    if compiled:
        starts = np.empty(len(rows.series) + 1, np.int64)
        *found, is_alike = _columns.merge_rows(*_buffers(rows), *_buffers(added), added_of, starts)
        times, bits = (np.frombuffer(each, np.int64) for each in found[:2])
        return Batch(rows.series, starts, times, bits, np.frombuffer(found[2], np.bool_)), is_alike
    counts = np.diff(added.starts)
    row_of_added = np.full(len(counts), -1, np.int64)
    has_added = np.flatnonzero(added_of >= 0)
    row_of_added[added_of[has_added]] = has_added
    row = np.concatenate(
        (np.repeat(np.arange(len(rows.series)), np.diff(rows.starts)), np.repeat(row_of_added, counts))
    )
    times = np.concatenate((rows.times, added.times))
    order = np.lexsort((times, row))  # stable: of equal times the added point is the last
    row, times = row[order], times[order]
    last = row >= 0
    last[:-1] &= (row[1:] != row[:-1]) | (times[1:] != times[:-1])
    order, row, times = order[last], row[last], times[last]
    starts = np.searchsorted(row, np.arange(len(rows.series) + 1)).astype(np.int64)
    bits, floats = np.concatenate((rows.bits, added.bits))[order], np.concatenate((rows.floats, added.floats))[order]
    batch = Batch(rows.series, starts, times, bits, floats)
    return batch, have_same_times(batch)


def _buffers(batch: Batch) -> tuple[Int64, Int64, Int64, UInt8]:
    """Return the columns of a batch, except its series, for the compiled code."""
    starts, times, bits = (np.ascontiguousarray(part) for part in batch[1:4])
    return starts, times, bits, np.ascontiguousarray(batch.floats).view(np.uint8)


def have_same_times(batch: Batch) -> bool:
    """Return whether all rows of a batch have the same times."""
    rows, count = len(batch.series), int(batch.starts[1]) if len(batch.series) else 0
    if len(batch.times) != rows * count or (np.diff(batch.starts) != count).any():
        return False
    times = batch.times.reshape(rows, count)
    return bool((times == times[:1]).all())


def sort_columns(columns: Columns, *, join: bool, compiled: bool = HAS_LOOP) -> Columns:
    """Return the points sorted by series and time. Of equal points only the last to arrive is kept.

    With `join` (many points per cell), points with one time are equal. Otherwise (a cell per point) only points with
    one qualifier are equal: several may remain for one time, in order of arrival (see `layers`).
    """
    if compiled and len(columns.series):
        columns = Columns(*map(np.ascontiguousarray, columns))
        picked, is_sorted = _columns.pick(*columns, counted_order(columns.series))
        return columns_of(picked) if is_sorted else sort_times(columns_of(picked), join=join)
    return sort_times(columns.at(series_order(columns.series)), join=join)


def sort_times(columns: Columns, *, join: bool) -> Columns:
    """Sort points as `sort_columns` does. They are sorted by series, then by arrival, already."""
    times = columns.instants >> 1
    same = columns.series[1:] == columns.series[:-1]
    if (same & (times[1:] < times[:-1])).any():
        order = np.lexsort((times, columns.series))
        columns, times = columns.at(order), times[order]
    same &= times[1:] == times[:-1]
    if not same.any():
        return columns
    if join:
        return columns.at(np.append(~same, True))
    return _last_of_each_qualifier(columns)


def series_order(series: Int32) -> NDArray[np.int64]:
    """Return argsort(kind="stable"), but sort by 16 bits at a time, which numpy does in linear time."""
    order = np.argsort(series.astype(np.uint16), kind="stable")
    if series.size and int(series.max()) > 0xFFFF:
        order = order[np.argsort((series[order] >> 16).astype(np.uint16), kind="stable")]
    return order


def _last_of_each_qualifier(columns: Columns) -> Columns:
    """Return the points, sorted by series and time, with only the last to arrive of each qualifier."""
    order = np.lexsort((columns.flags, columns.instants, columns.series))
    ordered = columns.at(order)
    last = np.ones(len(order), np.bool_)
    last[:-1] = (
        (ordered.series[1:] != ordered.series[:-1])
        | (ordered.instants[1:] != ordered.instants[:-1])
        | (ordered.flags[1:] != ordered.flags[:-1])
    )
    return columns.at(np.sort(order[last]))


def series_ends(columns: Columns) -> Int64:
    """Return the index of each series' last point; the points are sorted by series."""
    if not len(columns.series):
        return np.empty(0, np.int64)
    return np.append(np.flatnonzero(columns.series[1:] != columns.series[:-1]), len(columns.series) - 1)


def newest_points(columns: Columns) -> Columns:
    """Return the newest point of each series, sorted by series. Of equally new ones the last to arrive is kept.

    >>> series, instants = np.array([3, 1, 3, 1], np.int32), np.array([8, 6, 8, 4])
    >>> found = newest_points(Columns(series, instants, np.zeros(4, np.uint8), np.arange(4)))
    >>> found.series.tolist(), found.instants.tolist(), found.bits.tolist()
    ([1, 3], [6, 8], [1, 2])
    """
    if not len(columns.series):
        return columns
    series, times = columns.series, columns.instants >> 1
    last = np.full(int(series.max()) + 1, -1, np.int64)
    last[series] = np.arange(len(series))  # of a repeated index, the last value stays
    if (times > times[last[series]]).any():  # points did not arrive in the order of their times
        newest = np.full(len(last), np.iinfo(np.int64).min)
        np.maximum.at(newest, series, times)
        found = np.flatnonzero(times == newest[series])
        last[series[found]] = found
    return columns.at(last[last >= 0])


def layers(columns: Columns) -> Iterator[Columns]:
    """Yield sorted points in parts that have each time of a series only once. The parts must be written one after the
    other: of several cells with one time, the last to arrive must get the latest write timestamp."""
    times = columns.instants >> 1
    again = np.zeros(len(times), np.bool_)
    again[1:] = (columns.series[1:] == columns.series[:-1]) & (times[1:] == times[:-1])
    if not again.any():
        yield columns
        return
    at = np.arange(len(times))
    rank = at - np.maximum.accumulate(np.where(again, 0, at))
    for layer in range(int(rank.max()) + 1):
        yield columns.at(rank == layer)


SLICE_POINTS = 50_000  # sorted and encoded at once
SPARSE = 4  # from this many series numbers per point, sorting is faster than counting the points of each series


def series_slices(columns: Columns, *, compiled: bool = HAS_LOOP) -> list[Int32]:
    """Return the indexes of each slice's points, sorted by series, then by arrival. Each series is in one slice only,
    so slices may be written concurrently.

    Only the order is computed for all points at once. The columns of one slice fit in the processor's caches and in
    memory that malloc reuses. Fresh memory for all columns would take longer to be zeroed by the kernel than to be
    filled.
    """
    order = counted_order(columns.series, compiled=compiled)
    start, count = 0, len(order)
    slices = []
    while start < count:
        end = _end_of_series(columns.series, order, min(start + SLICE_POINTS, count))
        slices.append(order[start:end])
        start = end
    return slices


def picked(columns: Columns, places: Int32, *, compiled: bool = HAS_LOOP) -> Columns:
    """Return the points with these indexes. The columns are contiguous."""
    return columns_of(_columns.pick(*columns, places)[0]) if compiled else columns.at(places)


def sorted_parts(columns: Columns, places: Int32, *, join: bool, compiled: bool = HAS_LOOP) -> list[Columns]:
    """Return a slice's points sorted (see `sort_columns`), in parts that must be written one after the other."""
    if compiled:
        picked, is_sorted = _columns.pick(*columns, places)
        columns = columns_of(picked)
        if is_sorted:
            return [columns]
    else:
        columns = columns.at(places)
    return list(layers(sort_times(columns, join=join)))


def counted_order(series: Int32, *, compiled: bool = HAS_LOOP) -> Int32:
    """Return the stable order by series, found by counting the points of each series, see `series_order`."""
    numbers = int(series.max()) + 1 if len(series) else 0
    if numbers > SPARSE * len(series) or not compiled:
        return series_order(series).astype(np.int32)
    return np.frombuffer(_columns.order(series, numbers), np.int32)


def _end_of_series(series: Int32, order: Int32, end: int) -> int:
    """Return the first index from `end` on whose series differs from that of `end - 1`."""
    last = series[order[end - 1]]
    while end < len(order):
        others = np.flatnonzero(series[order[end : end + SLICE_POINTS]] != last)
        if len(others):
            return end + int(others[0])
        end = min(end + SLICE_POINTS, len(order))
    return end


def starts_of(counts: NDArray[np.integer[Any]] | Bool | Sequence[int]) -> Int64:
    """Return where each part of an array starts, given their lengths, and last where the array ends.
    Of a mask: how many elements before each are chosen.

    >>> starts_of(np.array([2, 3])).tolist()
    [0, 2, 5]
    """
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def spread(starts: Int64, counts: Int64) -> Int64:
    """Return the indexes of all points of some rows, given by start and count.

    >>> spread(np.array([5, 20]), np.array([2, 3])).tolist()
    [5, 6, 20, 21, 22]
    """
    ends = np.cumsum(counts)
    found: Int64 = np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
    return found


def place_rows(values: Int64, chosen: Bool, counts: Int64, whole: Int64, *, compiled: bool = HAS_LOOP) -> None:
    """Write the values of the chosen rows to their places in `whole`, which has those of all rows, `counts` of each.

    >>> whole = np.zeros(6, np.int64)
    >>> place_rows(np.array([7, 8, 9]), np.array([True, False, True]), np.array([2, 3, 1]), whole)
    >>> whole.tolist()
    [7, 8, 0, 0, 0, 9]
    """
    if compiled:
        _columns.place_rows(values, chosen.view(np.uint8), counts, whole)
    else:
        whole[spread((np.cumsum(counts) - counts)[chosen], counts[chosen])] = values


class Bucket(NamedTuple):
    """Number of values from `lower` to below `upper`. Bounds are singles, the number is a signed 64-bit integer."""

    lower: float
    upper: float
    values: int


class Histogram(NamedTuple):
    """OpenTSDB's simple histogram."""

    buckets: tuple[Bucket, ...]  # one or more, by lower then upper bound
    underflow: int = 0
    overflow: int = 0


def in_order(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Return buckets sorted by their bounds. Of buckets with equal bounds keep the last."""
    unique = {(*signed(bucket.lower), *signed(bucket.upper)): bucket for bucket in buckets}
    return [unique[bounds] for bounds in sorted(unique)]


def signed(bound: float) -> tuple[float, float]:
    """Return a bound and its sign: Java orders -0.0 just below 0.0."""
    return bound, math.copysign(1, bound)
