"""Many points at once: the same bytes as `words`, `cell` and `join` make, by column instead of by point.

A window's points stand in four parallel arrays. That is what makes the way in fast without a compiler: whatever is done
for each point is done by numpy for all of them, and the property tests hold it against the plain functions.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.cell import MS_MARK
from tsd.codec.times import HOUR
from tsd.codec.words import FLOAT, LENGTH, parse_long
from tsd.errors import BadLine

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]

CELL_POINTS = 4096  # a joined cell holds no more; HBase takes far larger ones, but each is rewritten whole
EXACT = float(1 << 53)  # integers below it are exact in a double
_PLAIN = b"0123456789.+-eE "
# Row k: which of the 8 bytes, right-aligned, a value of length code k takes.
_VALUE_BYTES = np.array([[at >= 7 - length for at in range(8)] for length in range(8)])


class Columns(NamedTuple):
    """Points in order of arrival: parallel arrays of one length."""

    series: Int32  # whose point: a number the caller gave
    instants: Int64  # when: see tsd.codec.times
    flags: UInt8  # float bit and length of the value
    bits: Int64  # the value's bytes, right-aligned: a signed integer, or a float's raw bits

    def at(self, index: NDArray[np.bool_] | Int32 | Int64 | slice) -> "Columns":
        """The points an index picks."""
        return Columns(self.series[index], self.instants[index], self.flags[index], self.bits[index])


class RowCell(NamedTuple):
    """One cell to be written into the row of `series` and `base`."""

    series: int
    base: int
    qualifier: bytes
    value: bytes


def number_columns(words: Sequence[bytes]) -> tuple[UInt8, Int64] | None:
    """Flags and bits of plain decimal numbers; None where a word is not one, or only `words` can judge it.

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
    """Of words without point and exponent, already read as doubles."""
    if max(map(len, words)) > 19 and any(len(word.lstrip(b"+-")) > 19 for word in words):
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
    with np.errstate(over="ignore", under="ignore"):
        singles = numbers.astype(np.float32)
    short = singles.astype(np.float64) == numbers
    bits = np.where(short, singles.view(np.uint32).astype(np.int64), numbers.view(np.int64))
    return np.where(short, FLOAT | 3, FLOAT | 7).astype(np.uint8), bits


def sort_columns(columns: Columns, *, join: bool) -> Columns:
    """The points by series and time, of equal ones the last to arrive.

    Equal means: one time, where points are joined into cells; one qualifier, where each is a cell of its own. Then
    several may be left of a time, in order of arrival: see `layers`.
    """
    return sort_times(columns.at(series_order(columns.series)), join=join)


def sort_times(columns: Columns, *, join: bool) -> Columns:
    """What `sort_columns` says, of points that stand by series already, those of each in order of arrival."""
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
    """Like argsort(kind="stable"), by 16 bits at a time: numpy sorts those in linear time."""
    order = np.argsort(series.astype(np.uint16), kind="stable")
    if series.size and int(series.max()) > 0xFFFF:
        order = order[np.argsort((series[order] >> 16).astype(np.uint16), kind="stable")]
    return order


def _last_of_each_qualifier(columns: Columns) -> Columns:
    """Of points sorted by series and time."""
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
    """Where each series' last point stands, of points sorted by series."""
    if not len(columns.series):
        return np.empty(0, np.int64)
    return np.append(np.flatnonzero(columns.series[1:] != columns.series[:-1]), len(columns.series) - 1)


def layers(columns: Columns) -> Iterator[Columns]:
    """Sorted points in parts that have a time of a series once, to be written one after the other: of several cells for
    one time, the last to arrive must have the latest stamp."""
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


def encode_cells(columns: Columns, *, join: bool, cell_points: int = CELL_POINTS) -> Iterator[RowCell]:
    """The cells of sorted points: one for each row and at most `cell_points` points, or one a point.

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
    """Index after each cell's last point."""
    breaks = np.flatnonzero((series[1:] != series[:-1]) | (hours[1:] != hours[:-1])) + 1
    ends = np.append(breaks, len(series))
    if len(ends) * cell_points >= len(series) and int(np.diff(ends, prepend=0).max()) <= cell_points:
        return ends
    cut = [np.arange(a + cell_points, b, cell_points) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return np.sort(np.concatenate((ends, *cut)))


def _qualifiers(columns: Columns, hours: Int64, in_ms: NDArray[np.bool_], ends: Int64) -> tuple[bytes, list[int]]:
    """All qualifiers in one string, and where each cell's end."""
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
    """All values in one string, joined cells with their last byte, and where each cell's end."""
    lengths = columns.flags & LENGTH
    joined = ends - starts > 1
    last = ends[joined] - 1
    all_bytes = np.zeros((len(lengths), 9), np.uint8)
    all_bytes[:, :8] = columns.bits.astype(">i8").view(np.uint8).reshape(-1, 8)
    taken = np.zeros((len(lengths), 9), np.bool_)
    taken[:, :8] = _VALUE_BYTES[lengths]
    taken[last, 8] = True
    if in_ms.any() and not in_ms.all():
        ms_before = np.append(np.zeros(1, np.int64), np.cumsum(in_ms, dtype=np.int64))
        ms_points = ms_before[ends[joined]] - ms_before[starts[joined]]
        all_bytes[last, 8] = (ms_points > 0) & (ms_points < (ends - starts)[joined])
    sizes = np.cumsum(taken.sum(axis=1))
    return all_bytes[taken].tobytes(), sizes[ends - 1].tolist()
