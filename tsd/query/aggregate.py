"""The aggregators: their kernels, and how they replace missing values of a series (docs/compat/query.md §12).

A kernel holds a state for each of many slots. A slot is a time at which series are merged, or a bucket of one series.
Values arrive in OpenTSDB's order and are added in that order, because floating-point sums depend on it: nothing here
uses pairwise addition (as numpy.sum and numpy.add.reduceat do). Percentiles need all values of a slot together.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Bool, Float64, Int64, spread, starts_of
from tsd.query.java_arithmetic import quotient, truncated
from tsd.query.model import RANKS
from tsd.tables.quirks import OPENTSDB, Quirks

Numbers = NDArray[Any]  # all doubles, or all 64-bit integers
Slots = NDArray[np.intp]

_Scalar = TypeVar("_Scalar", bound=np.generic)

NEGATIVE_ZERO = np.float64(-0.0).view(np.int64)
_LOOP_S, _POINT_S = 8e-6, 0.15e-6  # cost of one step: some short numpy operations, or one value in Python


class Kernel(Protocol):
    """The running state of one aggregator. Results are doubles or 64-bit integers, as chosen when it is made."""

    def grow(self, size: int) -> None:
        """Extend to `size` slots."""

    def column(self, first: int, values: Numbers) -> None:
        """Add one value to each slot from `first` on."""

    def rows(self, table: Numbers) -> None:
        """Add several values to each slot, row after row; `table` is (rows, slots)."""

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        """Add `values[starts[i] : starts[i + 1]]`, in order, to slot `slots[i]`; no slot twice, no empty run."""

    def result(self) -> Numbers:
        """Return the result of each slot."""


Make = Callable[[bool], Kernel]  # True: for integers


class ByRow(ABC):
    """Adds a table row by row."""

    @abstractmethod
    def column(self, first: int, values: Numbers) -> None:
        """See Kernel."""

    def rows(self, table: Numbers) -> None:
        """See Kernel."""
        for row in table:
            self.column(0, row)


class Sum:
    """Σv, or Σv², or the mean. NaN is skipped; it is the result of a slot without numbers."""

    def __init__(self, integers: bool, *, squared: bool = False, mean: bool = False) -> None:
        self._total = _zeros(integers)
        self._tally = Count(integers)
        self._integers, self._squared, self._mean = integers, squared, mean

    def grow(self, size: int) -> None:
        self._total = grown(self._total, size)
        self._tally.grow(size)

    def column(self, first: int, values: Numbers) -> None:
        nan = None if self._integers else nans(values)
        self._tally.add(first, len(values), nan)
        into = self._total[first : first + len(values)]
        np.add(into, self._term(values, nan), out=into)

    def rows(self, table: Numbers) -> None:
        nan = None if self._integers else nans(table)
        self._tally.add_rows(table, nan)
        self._total = added(self._total, self._term(table, nan))

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        self._tally.runs(slots, starts, values)
        np.add.at(self._total, np.repeat(slots, np.diff(starts)), self._term(values, nans(values)))

    def _term(self, values: Numbers, nan: Bool | None) -> Numbers:
        if nan is not None:
            values = np.where(nan, 0.0, values)  # it does not change a sum that starts with 0.0
        return values * values if self._squared else values

    def result(self) -> Numbers:
        if not self._integers:
            empty = self._tally.counts == 0
            divided = self._total / self._tally.counts if self._mean else self._total
            return np.where(empty, np.nan, divided)
        return quotient(self._total, self._tally.counts) if self._mean else self._total


class Count:
    """The number of values that are not NaN."""

    def __init__(self, integers: bool) -> None:
        self.counts = np.zeros(0, np.int64)
        self._integers = integers

    def grow(self, size: int) -> None:
        self.counts = grown(self.counts, size)

    def column(self, first: int, values: Numbers) -> None:
        self.add(first, len(values), None if self._integers else nans(values))

    def add(self, first: int, size: int, nan: Bool | None) -> None:
        """Count one value for each slot from `first` on, except where it is `nan`."""
        self.counts[first : first + size] += 1 if nan is None else ~nan

    def rows(self, table: Numbers) -> None:
        self.add_rows(table, None if self._integers else nans(table))

    def add_rows(self, table: Numbers, nan: Bool | None) -> None:
        """Count the rows of a table for each slot, except where they are `nan`."""
        self.counts += len(table) if nan is None else len(table) - nan.sum(axis=0)

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        lengths = np.diff(starts)
        self.counts[slots] += lengths
        if (nan := nans(values)) is not None:
            np.subtract.at(self.counts, np.repeat(slots, lengths)[nan], 1)

    def result(self) -> Numbers:
        return self.counts if self._integers else self.counts.astype(np.float64)


class Extreme:
    """The lowest or highest value; of 0.0 and -0.0 the first. The result is NaN if all values are NaN, or the infinity
    that is the initial value."""

    def __init__(self, integers: bool, *, highest: bool) -> None:
        self._better = np.greater if highest else np.less
        self._reduce = np.fmax if highest else np.fmin
        limits = np.iinfo(np.int64)
        self._worst = (limits.min if highest else limits.max) if integers else (-math.inf if highest else math.inf)
        self._best = _zeros(integers)
        self._integers = integers

    def grow(self, size: int) -> None:
        self._best = grown(self._best, size, self._worst)

    def column(self, first: int, values: Numbers) -> None:
        into = self._best[first : first + len(values)]
        np.copyto(into, values, where=self._better(values, into))

    def rows(self, table: Numbers) -> None:
        if not self._integers and (table.view(np.int64) == NEGATIVE_ZERO).any():
            for row in table:
                self.column(0, row)
        else:
            self.column(0, self._reduce.reduce(table, axis=0))

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        if (values.view(np.int64) == NEGATIVE_ZERO).any():
            for part, nth in nth_values(slots, starts, values):
                self._add_values(part, nth)
        else:
            self._add_values(slots, self._reduce.reduceat(values, starts[:-1]))

    def _add_values(self, slots: Slots, values: Float64) -> None:
        best = self._best[slots]
        self._best[slots] = np.where(self._better(values, best), values, best)

    def result(self) -> Numbers:
        return self._best if self._integers else np.where(self._best == self._worst, np.nan, self._best)


class Product(ByRow):
    """The product; NaN if any value is."""

    def __init__(self, integers: bool) -> None:
        self._product = _zeros(integers)

    def grow(self, size: int) -> None:
        self._product = grown(self._product, size, 1)

    def column(self, first: int, values: Numbers) -> None:
        into = self._product[first : first + len(values)]
        np.multiply(into, values, out=into)

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        np.multiply.at(self._product, np.repeat(slots, np.diff(starts)), values)

    def result(self) -> Numbers:
        return self._product


class Deviation(ByRow):
    """The population standard deviation by Welford's recurrence. NaN is skipped."""

    def __init__(self, integers: bool) -> None:
        self._mean, self._squares = np.zeros(0), np.zeros(0)
        self._counts = np.zeros(0, np.int64)
        self._integers = integers

    def grow(self, size: int) -> None:
        self._mean, self._squares = grown(self._mean, size), grown(self._squares, size)
        self._counts = grown(self._counts, size)

    def column(self, first: int, values: Numbers) -> None:
        self._add_values(np.arange(first, first + len(values)), values.astype(np.float64))

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        lengths = np.diff(starts)
        if len(lengths) and int(lengths.max()) * _LOOP_S > len(values) * _POINT_S:
            for slot, first, stop in zip(slots.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True):
                self._add_run(slot, values[first:stop].tolist())
            return
        for part, nth in nth_values(slots, starts, values):
            self._add_values(part, nth)

    def _add_values(self, slots: Slots, values: Float64) -> None:
        if (nan := np.isnan(values)).any():
            slots, values = slots[~nan], values[~nan]
        counts = self._counts[slots] + 1
        mean = self._mean[slots]
        moved = np.where(counts == 1, values, mean + (values - mean) / counts)
        self._squares[slots] += np.where(counts == 1, 0.0, (values - mean) * (values - moved))
        self._counts[slots], self._mean[slots] = counts, moved

    def _add_run(self, slot: int, values: list[float]) -> None:
        """Add values one by one: faster for few long runs."""
        count, mean, squares = int(self._counts[slot]), float(self._mean[slot]), float(self._squares[slot])
        for value in values:
            if value != value:
                continue
            count += 1
            if count == 1:
                mean = value
                continue
            moved = mean + (value - mean) / count
            squares += (value - mean) * (value - moved)
            mean = moved
        self._counts[slot], self._mean[slot], self._squares[slot] = count, mean, squares

    def result(self) -> Numbers:
        spread = np.sqrt(self._squares / np.maximum(self._counts, 1))
        spread = np.where(self._counts == 1, 0.0, spread)
        return truncated(spread) if self._integers else np.where(self._counts == 0, np.nan, spread)


class FirstOrLast:
    """The first or the last value, also if it is NaN."""

    def __init__(self, integers: bool, *, last: bool) -> None:
        self._values = _zeros(integers)
        self._has: Bool = np.zeros(0, np.bool_)
        self._last = last

    def grow(self, size: int) -> None:
        self._values, self._has = grown(self._values, size), grown(self._has, size)

    def column(self, first: int, values: Numbers) -> None:
        into, has = self._values[first : first + len(values)], self._has[first : first + len(values)]
        np.copyto(into, values, where=True if self._last else ~has)
        has[:] = True

    def rows(self, table: Numbers) -> None:
        self.column(0, table[-1 if self._last else 0])

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        if self._last:
            self._values[slots] = values[starts[1:] - 1]
        else:
            self._values[slots] = np.where(self._has[slots], self._values[slots], values[starts[:-1]])
        self._has[slots] = True

    def result(self) -> Numbers:
        return self._values


class Difference(ByRow):
    """The last value minus the first that is not NaN; 0 if they are the same value."""

    def __init__(self, integers: bool) -> None:
        self._first, self._last = _zeros(integers), _zeros(integers)
        self._counts = np.zeros(0, np.int64)  # from the first on
        self._integers = integers

    def grow(self, size: int) -> None:
        self._first, self._last = grown(self._first, size), grown(self._last, size)
        self._counts = grown(self._counts, size)

    def column(self, first: int, values: Numbers) -> None:
        part = slice(first, first + len(values))
        fresh = self._counts[part] == 0
        np.copyto(self._first[part], values, where=fresh)
        self._last[part] = values
        self._counts[part] += 1 if self._integers else ~(fresh & np.isnan(values))

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        begins = starts[:-1]
        if np.isnan(values).any():
            numbers = np.append(np.flatnonzero(~np.isnan(values)), len(values))
            begins = numbers[np.searchsorted(numbers, begins)]
        fresh = (self._counts[slots] == 0) & (begins < starts[1:])
        self._first[slots[fresh]] = values[begins[fresh]]
        self._last[slots] = values[starts[1:] - 1]
        counted = np.where(self._counts[slots] == 0, np.maximum(starts[1:] - begins, 0), np.diff(starts))
        self._counts[slots] += counted

    def result(self) -> Numbers:
        if self._integers:
            return self._last - self._first
        found = np.where(self._counts == 1, 0.0, self._last - self._first)
        return np.where(self._counts == 0, np.nan, found)


def added(total: Numbers, table: Numbers) -> Numbers:
    """Return the total of each slot after adding the rows of a table, one after the other.

    >>> added(np.array([1e17, 0.0]), np.array([[7.0, 1.0], [7.0, 2.0]])).tolist()
    [1e+17, 3.0]
    """
    if len(total) > 1:  # numpy adds whole rows in order, but the values of a single column pairwise
        sums: Numbers = np.add.reduce(np.concatenate([total[None], table]), axis=0)
    else:
        sums = np.add.accumulate(np.append(total, table))[-1:]
    return sums


def nans(values: Numbers) -> Bool | None:
    """Return which values are NaN; None if no value is."""
    nan: Bool = np.isnan(values)
    return nan if np.count_nonzero(nan) else None


def nth_values(slots: Slots, starts: Int64, values: Float64) -> Iterator[tuple[Slots, Float64]]:
    """Yield the first value of every run with its slot, then the second of those that have one, and so on."""
    lengths = np.diff(starts)
    order = np.argsort(-lengths, kind="stable")
    slots, begins, lengths = slots[order], starts[:-1][order], lengths[order]
    for nth in range(int(lengths[0]) if len(lengths) else 0):
        having = int(np.searchsorted(-lengths, -nth))
        yield slots[:having], values[begins[:having] + nth]


def grown(array: NDArray[_Scalar], size: int, fill: float = 0) -> NDArray[_Scalar]:
    """Extend an array."""
    return np.concatenate([array, np.full(size - len(array), fill, array.dtype)])


def _zeros(integers: bool) -> Numbers:
    return np.zeros(0, np.int64 if integers else np.float64)


class PercentileMethod(Enum):
    """How the position of a percentile among sorted values is computed."""

    MEDIAN = "the upper middle"
    LEGACY = "p(n+1)"
    R3 = "the nearest"
    R7 = "1+(n-1)p"


class PercentileRule(NamedTuple):
    """A percentile; `of` is in percent."""

    kind: PercentileMethod
    of: float = 50.0


class Percentile:
    """A percentile. It holds all values of a slot until the slot is closed. NaN is skipped."""

    def __init__(self, integers: bool, rank: PercentileRule) -> None:
        self._integers, self._rank = integers, rank
        self._found = np.zeros(0, np.int64 if integers else np.float64)
        self._columns: list[tuple[int, Numbers]] = []  # first slot, and (rows, slots)
        self._runs: list[tuple[Slots, Int64, Float64]] = []  # slots, lengths, values

    def grow(self, size: int) -> None:
        self._found = grown(self._found, size, 0 if self._integers else np.nan)

    def column(self, first: int, values: Numbers) -> None:
        self._columns.append((first, values[None]))

    def rows(self, table: Numbers) -> None:
        self._columns.append((0, table))

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        self._runs.append((slots, np.diff(starts), values))

    @property
    def held(self) -> int:
        """Number of values kept for open slots."""
        return sum(len(values) for _, _, values in self._runs)

    def compute_closed(self, still_open: Bool | None = None) -> None:
        """Compute the percentiles of closed slots, and drop their values."""
        if not self._runs:
            return
        slots, lengths, values = (np.concatenate(parts) for parts in zip(*self._runs, strict=True))
        self._runs = []
        order = np.argsort(slots, kind="stable")
        if still_open is not None:
            opened = still_open[slots[order]]
            self._keep(slots, lengths, values, order[opened])
            order = order[~opened]
        if len(order):
            slots, starts, values = _joined(slots, lengths, values, order)
            for rows, matrix in _matrices(starts, values):
                counts = (~np.isnan(matrix)).sum(axis=1)
                self._found[slots[rows]] = pick(self._rank, ascending(matrix, 1).T, counts)

    def _keep(self, slots: Slots, lengths: Int64, values: Float64, kept: Slots) -> None:
        if len(kept):
            slots, starts, values = _joined(slots, lengths, values, kept)
            self._runs = [(slots, np.diff(starts), values)]

    def result(self) -> Numbers:
        self.compute_closed()
        return self._of_columns() if self._columns else self._found

    def _of_columns(self) -> Numbers:
        size = len(self._found)
        exact = self._integers and self._rank.kind is PercentileMethod.MEDIAN  # others are computed in doubles
        shape = sum([len(table) for _, table in self._columns]), size
        matrix = np.full(shape, np.iinfo(np.int64).max if exact else np.nan, np.int64 if exact else np.float64)
        counts = np.zeros(size, np.int64)
        row = 0
        for first, table in self._columns:
            stop = first + table.shape[1]
            matrix[row : row + len(table), first:stop] = table
            counts[first:stop] += len(table)
            row += len(table)
        if not exact:
            counts = (~np.isnan(matrix)).sum(axis=0)
        found = pick(self._rank, ascending(matrix, 0), counts)
        return truncated(found) if self._integers and not exact else found


def pick(rank: PercentileRule, ordered: Numbers, counts: Int64) -> Numbers:
    """Return the percentile of each column. In each, the first `counts` values are numbers; NaN if there are none."""
    columns = np.arange(len(counts))
    highest = np.maximum(counts - 1, 0)
    if rank.kind is PercentileMethod.MEDIAN:
        return ordered[np.minimum(counts // 2, highest), columns]
    position = _position(rank, counts)
    below = np.clip(np.floor(position), 1, np.maximum(counts, 1)).astype(np.int64) - 1
    lower, upper = ordered[below, columns], ordered[np.minimum(below + 1, highest), columns]
    found = lower + (position - np.floor(position)) * (upper - lower)
    found = np.where(position < 1, ordered[0], np.where(position >= counts, ordered[highest, columns], found))
    return np.where(counts == 1, ordered[0], found)


def ascending(matrix: Numbers, axis: int) -> Numbers:
    """Sort as Java does: -0.0 before 0.0, NaN last."""
    bits = matrix.view(np.int64)
    if matrix.dtype == np.int64 or not (bits == NEGATIVE_ZERO).any():
        return np.sort(matrix, axis=axis)
    bits = np.where(np.isnan(matrix), np.nan, matrix).view(np.int64)
    ordered = np.sort(_flipped(bits), axis=axis)
    return _flipped(ordered).view(np.float64)


def _flipped(bits: Int64) -> Int64:
    """Map bits of doubles to integers in the order of the doubles, and back."""
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


def _position(rank: PercentileRule, counts: Int64) -> Numbers:
    """Return the position of the percentile, counted from 1."""
    share = rank.of / 100
    if rank.kind is PercentileMethod.LEGACY:
        return share * (counts + 1)
    if rank.kind is PercentileMethod.R7:
        return 1 + (counts - 1) * share
    return np.where(share <= 0.5 / np.maximum(counts, 1), 0.0, np.rint(counts * share))


def _joined(slots: Slots, lengths: Int64, values: Float64, order: Slots) -> tuple[Slots, Int64, Float64]:
    """Reorder runs and join those of one slot: slots, starts, values."""
    index = spread(np.cumsum(lengths)[order] - lengths[order], lengths[order])
    slots, lengths = slots[order], lengths[order]
    fresh = np.flatnonzero(np.append(True, slots[1:] != slots[:-1]))
    ends = starts_of(lengths)
    return slots[fresh], np.append(ends[fresh], ends[-1]), values[index]


def _matrices(starts: Int64, values: Float64) -> Iterator[tuple[Slots, Float64]]:
    """Yield runs of similar length as rows of a matrix padded with NaN: indices of the runs, and their values."""
    lengths = np.diff(starts)
    widths = 1 << np.ceil(np.log2(lengths)).astype(np.int64)
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        along = np.arange(lengths[rows].max())
        places = starts[rows][:, None] + along
        inside = along < lengths[rows][:, None]
        yield rows, np.where(inside, values[np.minimum(places, len(values) - 1)], np.nan)


class Missing(Enum):
    """What a series contributes at a time between two of its points."""

    LERP = "linear interpolation"
    ZERO = "0"
    HIGHEST = "the highest number"
    LOWEST = "the lowest number"
    PREVIOUS = "the earlier value"


class Aggregator(NamedTuple):
    """How values of one time are aggregated."""

    missing: Missing
    kernel: Make
    doubles: Make  # OpenTSDB computes estimated percentiles of doubles differently
    needs_all: bool = False  # the kernel keeps every value until the end

    def make(self, *, integers: bool, quirks: Quirks = OPENTSDB) -> Kernel:
        """Return a new kernel. With the quirk `plain_percentiles` doubles have no estimated percentiles."""
        return (self.doubles if quirks.plain_percentiles and not integers else self.kernel)(integers)


def _plain(missing: Missing, kernel: Make) -> Aggregator:
    return Aggregator(missing, kernel, kernel)


def _ranked(rank: PercentileRule) -> Aggregator:
    doubles = rank if rank.kind is PercentileMethod.MEDIAN else PercentileRule(PercentileMethod.LEGACY, rank.of)
    return Aggregator(Missing.LERP, partial(Percentile, rank=rank), partial(Percentile, rank=doubles), needs_all=True)


def _percent(digits: str) -> float:
    return 99.9 if digits == "999" else float(digits)


BY_NAME: Mapping[str, Aggregator] = MappingProxyType(
    {
        "sum": _plain(Missing.LERP, Sum),
        "zimsum": _plain(Missing.ZERO, Sum),
        "pfsum": _plain(Missing.PREVIOUS, Sum),
        "squareSum": _plain(Missing.ZERO, partial(Sum, squared=True)),
        "avg": _plain(Missing.LERP, partial(Sum, mean=True)),
        "count": _plain(Missing.ZERO, Count),
        "min": _plain(Missing.LERP, partial(Extreme, highest=False)),
        "mimmin": _plain(Missing.HIGHEST, partial(Extreme, highest=False)),
        "max": _plain(Missing.LERP, partial(Extreme, highest=True)),
        "mimmax": _plain(Missing.LOWEST, partial(Extreme, highest=True)),
        "dev": _plain(Missing.LERP, Deviation),
        "diff": _plain(Missing.LERP, Difference),
        "mult": _plain(Missing.LERP, Product),
        "first": _plain(Missing.ZERO, partial(FirstOrLast, last=False)),
        "last": _plain(Missing.ZERO, partial(FirstOrLast, last=True)),
        "none": _plain(Missing.ZERO, partial(FirstOrLast, last=False)),
        "median": _ranked(PercentileRule(PercentileMethod.MEDIAN)),
        **{f"p{digits}": _ranked(PercentileRule(PercentileMethod.LEGACY, _percent(digits))) for digits in RANKS},
        **{f"ep{digits}r3": _ranked(PercentileRule(PercentileMethod.R3, _percent(digits))) for digits in RANKS},
        **{f"ep{digits}r7": _ranked(PercentileRule(PercentileMethod.R7, _percent(digits))) for digits in RANKS},
    }
)
