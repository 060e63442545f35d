"""Many values → one, in OpenTSDB's order and to its last digit: what an aggregator does at each time (query.md §12).

A fold holds a state for each of many slots: a slot is a time at which series are merged, or a bucket of one series.
Values reach it in the order in which OpenTSDB meets them, and are added in that order: floating-point sums depend on
it, so nothing here adds pairwise (as numpy.sum and numpy.add.reduceat do).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.query.javamath import quotient, truncated
from tsd.query.points import Bool, Float64, Int64

Numbers = NDArray[Any]  # all doubles, or all 64-bit integers
Slots = NDArray[np.intp]

_Scalar = TypeVar("_Scalar", bound=np.generic)

NEGATIVE_ZERO = np.float64(-0.0).view(np.int64)
_LOOP_S, _POINT_S = 8e-6, 0.15e-6  # what numpy costs for one short operation or three, and Python for one value


class Fold(Protocol):
    """One aggregator at work. Results are of the type that the fold was made for: doubles or 64-bit integers."""

    def grow(self, size: int) -> None:
        """There are `size` slots from now on."""

    def column(self, first: int, values: Numbers) -> None:
        """One more value for each slot from `first` on."""

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        """`values[starts[i] : starts[i + 1]]`, in order, for slot `slots[i]`; no slot twice, no empty run."""

    def result(self) -> Numbers:
        """What came out, a number for each slot."""


Make = Callable[[bool], Fold]  # a fold of integers, or of doubles


class Sum:
    """Σv, or Σv²; NaN is skipped, and is the result where there was nothing else."""

    def __init__(self, integers: bool, *, squared: bool = False, mean: bool = False) -> None:
        self._total = _zeros(integers)
        self._tally = Tally(integers)
        self._integers, self._squared, self._mean = integers, squared, mean

    def grow(self, size: int) -> None:
        self._total = grown(self._total, size)
        self._tally.grow(size)

    def column(self, first: int, values: Numbers) -> None:
        nan = None if self._integers else nans(values)
        self._tally.add(first, len(values), nan)
        into = self._total[first : first + len(values)]
        np.add(into, self._term(values, nan), out=into)

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        self._tally.runs(slots, starts, values)
        np.add.at(self._total, np.repeat(slots, np.diff(starts)), self._term(values, nans(values)))

    def _term(self, values: Numbers, nan: Bool | None) -> Numbers:
        if nan is not None:
            values = np.where(nan, 0.0, values)  # to a sum that began with 0.0 this changes nothing
        return values * values if self._squared else values

    def result(self) -> Numbers:
        if not self._integers:
            empty = self._tally.counts == 0
            divided = self._total / self._tally.counts if self._mean else self._total
            return np.where(empty, np.nan, divided)
        return quotient(self._total, self._tally.counts) if self._mean else self._total


class Tally:
    """How many values, NaN left out; 0 where none."""

    def __init__(self, integers: bool) -> None:
        self.counts = np.zeros(0, np.int64)
        self._integers = integers

    def grow(self, size: int) -> None:
        self.counts = grown(self.counts, size)

    def column(self, first: int, values: Numbers) -> None:
        self.add(first, len(values), None if self._integers else nans(values))

    def add(self, first: int, size: int, nan: Bool | None) -> None:
        """One more value for each slot from `first` on, but where it is `nan`."""
        self.counts[first : first + size] += 1 if nan is None else ~nan

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        lengths = np.diff(starts)
        self.counts[slots] += lengths
        if (nan := nans(values)) is not None:
            np.subtract.at(self.counts, np.repeat(slots, lengths)[nan], 1)

    def result(self) -> Numbers:
        return self.counts if self._integers else self.counts.astype(np.float64)


class Extreme:
    """The lowest or the highest; of 0.0 and -0.0 the first. Nothing but the furthest infinity (or NaN) gives NaN."""

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

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        if (values.view(np.int64) == NEGATIVE_ZERO).any():
            for lane, nth in lanes(slots, starts, values):
                self._take(lane, nth)
        else:
            self._take(slots, self._reduce.reduceat(values, starts[:-1]))

    def _take(self, slots: Slots, values: Float64) -> None:
        held = self._best[slots]
        self._best[slots] = np.where(self._better(values, held), values, held)

    def result(self) -> Numbers:
        return self._best if self._integers else np.where(self._best == self._worst, np.nan, self._best)


class Product:
    """All multiplied; a NaN makes it NaN."""

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


class Deviation:
    """The population's standard deviation by Welford's recurrence; NaN is skipped."""

    def __init__(self, integers: bool) -> None:
        self._mean, self._squares = np.zeros(0), np.zeros(0)
        self._counts = np.zeros(0, np.int64)
        self._integers = integers

    def grow(self, size: int) -> None:
        self._mean, self._squares = grown(self._mean, size), grown(self._squares, size)
        self._counts = grown(self._counts, size)

    def column(self, first: int, values: Numbers) -> None:
        self._take(np.arange(first, first + len(values)), values.astype(np.float64))

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        lengths = np.diff(starts)
        if len(lengths) and int(lengths.max()) * _LOOP_S > len(values) * _POINT_S:
            for slot, first, stop in zip(slots.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True):
                self._take_run(slot, values[first:stop].tolist())
            return
        for lane, nth in lanes(slots, starts, values):
            self._take(lane, nth)

    def _take(self, slots: Slots, values: Float64) -> None:
        if (nan := np.isnan(values)).any():
            slots, values = slots[~nan], values[~nan]
        counts = self._counts[slots] + 1
        mean = self._mean[slots]
        moved = np.where(counts == 1, values, mean + (values - mean) / counts)
        self._squares[slots] += np.where(counts == 1, 0.0, (values - mean) * (values - moved))
        self._counts[slots], self._mean[slots] = counts, moved

    def _take_run(self, slot: int, values: list[float]) -> None:
        """The same, a value at a time: few long runs are faster so."""
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


class Edge:
    """The first value, or the last, whatever it is."""

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

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        if self._last:
            self._values[slots] = values[starts[1:] - 1]
        else:
            self._values[slots] = np.where(self._has[slots], self._values[slots], values[starts[:-1]])
        self._has[slots] = True

    def result(self) -> Numbers:
        return self._values


class Difference:
    """The last value less the first that is not NaN; 0 where that one is the last."""

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


def nans(values: Numbers) -> Bool | None:
    """Which values are NaN; None: none is."""
    nan: Bool = np.isnan(values)
    return nan if np.count_nonzero(nan) else None


def lanes(slots: Slots, starts: Int64, values: Float64) -> Iterator[tuple[Slots, Float64]]:
    """The first value of every run with its slot, then the second of those that have one, and so on."""
    lengths = np.diff(starts)
    order = np.argsort(-lengths, kind="stable")
    slots, begins, lengths = slots[order], starts[:-1][order], lengths[order]
    for nth in range(int(lengths[0]) if len(lengths) else 0):
        having = int(np.searchsorted(-lengths, -nth))
        yield slots[:having], values[begins[:having] + nth]


def grown(array: NDArray[_Scalar], size: int, fill: float = 0) -> NDArray[_Scalar]:
    """The array made longer."""
    return np.concatenate([array, np.full(size - len(array), fill, array.dtype)])


def _zeros(integers: bool) -> Numbers:
    return np.zeros(0, np.int64 if integers else np.float64)
