"""The points of many series in a few arrays, without a Python object for each series."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import NO_POINTS, Bool, Int64, Points

Kind = TypeVar("Kind", bound=np.generic)

CHUNK = 1 << 16  # values processed together: they fit the processor's cache


class SeriesColumns:
    """Points of series by number: series `n` has those from `bounds[n]` to before `bounds[n + 1]`."""

    def __init__(self, points: Points, bounds: Int64, *, shares_times: bool = False) -> None:
        """`shares_times`: `points.times` has the times of one series, which all series with points have."""
        self.times, self.bits, self.floats = points
        self.bounds = bounds
        self.shares_times = shares_times
        doubles = int(np.count_nonzero(self.floats))
        self.has_doubles, self.has_integers = doubles > 0, doubles < len(self.floats)

    @classmethod
    def of(cls, series: Iterable[Points]) -> "SeriesColumns":
        """Return the columns of some series.

        >>> one = Points(np.array([1000]), np.array([7]), np.array([False]))
        >>> [points.bits.tolist() for points in SeriesColumns.of([one, one])]
        [[7], [7]]
        """
        parts = [NO_POINTS, *series]
        times, bits, floats = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(Points(times, bits, floats), np.cumsum([len(part.times) for part in parts], dtype=np.int64))

    @classmethod
    def table(cls, times: Int64, bits: Int64) -> "SeriesColumns":
        """Return the columns of series that all have doubles at the same times; `bits` is (series, times)."""
        bounds = np.arange(len(bits) + 1, dtype=np.int64) * len(times)
        return cls(Points(times, bits.reshape(-1), np.ones(bits.size, np.bool_)), bounds, shares_times=True)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> Points:
        return self.between(int(self.bounds[number]), int(self.bounds[number + 1]))

    def __iter__(self) -> Iterator[Points]:
        return map(self.__getitem__, range(len(self)))

    def flat_times(self) -> Int64:
        """Return the time of each point."""
        if not self.shares_times or not len(self.times):
            return self.times
        return np.tile(self.times, len(self.bits) // len(self.times))

    def between(self, first: int, stop: int) -> Points:
        """Return the points from one place to another, all of one series."""
        part = slice(first, stop)
        if not self.shares_times:
            return Points(self.times[part], self.bits[part], self.floats[part])
        skipped = first % len(self.times) if len(self.times) else 0
        return Points(self.times[skipped : skipped + stop - first], self.bits[part], self.floats[part])

    def have_times(self, firsts: Int64, times: Int64) -> bool:
        """Return whether the points from each of `firsts` on have these times."""
        each = max(1, CHUNK // len(times))
        parts = (firsts[at : at + each] for at in range(0, len(firsts), each))
        return all(bool((rows_at(self.times, part, 0, len(times), len(times)) == times).all()) for part in parts)

    def numbers(self, firsts: Int64, first: int, stop: int, width: int, *, integers: bool) -> NDArray[np.generic]:
        """Return the values at the places [first, stop) after each of `firsts` as (firsts, places), as integers or
        doubles. `width` is the length of the series. Doubles read as integers are never used."""
        bits = rows_at(self.bits, firsts, first, stop, width)
        if integers:
            return bits
        if not self.has_integers:
            return bits.view(np.float64)
        if not self.has_doubles:
            return bits.astype(np.float64)
        floats = rows_at(self.floats, firsts, first, stop, width)
        return np.where(floats, bits.view(np.float64), bits.astype(np.float64))

    def doubles_at(self, firsts: Int64, width: int) -> Bool:
        """Return at which of `width` places after `firsts` any series has a double."""
        found = np.zeros(width, np.bool_)
        each = max(1, CHUNK // width)
        for at in range(0, len(firsts), each):
            found |= rows_at(self.floats, firsts[at : at + each], 0, width, width).any(axis=0)
        return found


class Chosen(NamedTuple):
    """Some of the series of columns, in order."""

    columns: SeriesColumns
    numbers: Int64

    @classmethod
    def all_of(cls, series: Iterable[Points]) -> "Chosen":
        """Return all of some series."""
        columns = SeriesColumns.of(series)
        return cls(columns, np.arange(len(columns)))


def rows_at(column: NDArray[Kind], firsts: Int64, first: int, stop: int, width: int) -> NDArray[Kind]:
    """Return `column[at + first : at + stop]` for each `at` of `firsts`, as a table; without a copy if the parts of
    `width` values follow each other.

    >>> rows_at(np.arange(6), np.array([0, 3]), 1, 3, 3).tolist()
    [[1, 2], [4, 5]]
    """
    begin = int(firsts[0])
    if (np.diff(firsts) == width).all():
        table: NDArray[Kind] = column[begin : begin + len(firsts) * width].reshape(len(firsts), width)[:, first:stop]
    else:
        table = column[firsts[:, None] + np.arange(first, stop)]
    return table
