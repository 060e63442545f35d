"""Rows of an hour, downsampled: the buckets of each, kept as a table where all rows have the same ones.

Series that are sent together have their points in the same buckets: their stamps then stand once for all, and the
points of a series are a row of a matrix, found without sorting.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tsd.query.points import Bool, Float64, Int64, Points

HOUR_MS = 3_600_000


class Bucketed(NamedTuple):
    """The buckets of some rows, row by row, ascending in each; a row may have none.

    Where all rows have the same ones, `stamps` are those of one row, and else those of all.
    """

    starts: Int64  # (rows + 1,): where the buckets of each row begin among all
    stamps: Int64  # ms: each bucket's first moment
    values: Float64  # (buckets,)

    @property
    def is_even(self) -> bool:
        """Whether all rows have the same buckets."""
        rows = len(self.starts) - 1
        return rows > 0 and len(self.stamps) * rows == len(self.values)

    def flat_stamps(self) -> Int64:
        """The stamp of every bucket.

        >>> bucketed(np.array([0, 1]), np.array([60, 60]), np.array([1.0, 2.0]), 2).flat_stamps().tolist()
        [60, 60]
        """
        return np.tile(self.stamps, len(self.starts) - 1) if self.is_even else self.stamps

    def between(self, first: int, stop: int) -> "Bucketed":
        """Of the rows from `first` to before `stop`."""
        starts = self.starts[first : stop + 1] - self.starts[first]
        part = slice(int(self.starts[first]), int(self.starts[stop]))
        if self.is_even:
            return Bucketed(starts, self.stamps, self.values[part])
        return Bucketed(starts, _shared(starts, self.stamps[part]), self.values[part])

    def hours(self) -> Iterator[tuple[int, int]]:
        """The rows, cut where another hour begins: first, and stop."""
        rows = len(self.starts) - 1
        if self.is_even or not len(self.values):
            yield 0, rows
            return
        firsts = self.stamps[np.minimum(self.starts[:-1], len(self.stamps) - 1)] // HOUR_MS
        yield from pairwise([0, *(np.flatnonzero(np.diff(firsts)) + 1).tolist(), rows])

    def picked(self, rows: Bool) -> "Bucketed":
        """Of some rows only."""
        if rows.all():
            return self
        lengths = np.diff(self.starts)
        kept = np.repeat(rows, lengths)
        starts = np.append(0, np.cumsum(lengths[rows]))
        if self.is_even:
            return Bucketed(starts, self.stamps if rows.any() else self.stamps[:0], self.values[kept])
        return Bucketed(starts, self.stamps[kept], self.values[kept])


def bucketed(rows: Int64, stamps: Int64, values: Float64, count: int) -> Bucketed:
    """The buckets of `count` rows; of each bucket its row, ascending, its stamp and its value."""
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=count)))
    return Bucketed(starts, _shared(starts, stamps), values)


def _shared(starts: Int64, stamps: Int64) -> Int64:
    """The stamps of one row where those of all are the same, else all of them."""
    rows, each = len(starts) - 1, int(starts[1] - starts[0]) if len(starts) > 1 else 0
    if each and each * rows == len(stamps) and (np.diff(starts) == each).all():
        table = stamps.reshape(rows, each)
        if (table == table[0]).all():
            first: Int64 = table[0].copy()
            return first
    return stamps


def joined(parts: Sequence[Bucketed]) -> Bucketed:
    """Rows of one hour, those of one part after those of another."""
    parts = [part for part in parts if len(part.starts) > 1]
    if not parts:
        return Bucketed(np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))
    first = parts[0]
    if all(part.is_even and np.array_equal(part.stamps, first.stamps) for part in parts):
        stamps = first.stamps
    else:
        stamps = np.concatenate([part.flat_stamps() for part in parts])
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    return Bucketed(np.append(0, np.cumsum(lengths)), stamps, np.concatenate([part.values for part in parts]))


class Part(NamedTuple):
    """Buckets of rows, and the series of each row."""

    series: Int64  # (rows,)
    buckets: Bucketed


def table_of(parts: Sequence[Part], series_count: int) -> list[Points] | None:
    """The points of each series, by its number, where all parts are even, each series has a row in every hour, and the
    hours do not overlap; else None."""
    hours: dict[int, list[Part]] = {}  # by their first stamp
    for part in parts:
        if not len(part.series):
            continue
        if not part.buckets.is_even or not len(part.buckets.stamps):
            return None
        hours.setdefault(int(part.buckets.stamps[0]), []).append(part)
    if not hours or not all(_is_whole(hours[first], series_count) for first in hours):
        return None
    order = sorted(hours)
    stamps = np.concatenate([hours[first][0].buckets.stamps for first in order])
    if (stamps[1:] <= stamps[:-1]).any():
        return None
    table = np.empty((series_count, len(stamps)), np.float64)
    at = 0
    for first in order:
        width = len(hours[first][0].buckets.stamps)
        for series, buckets in hours[first]:
            table[series, at : at + width] = buckets.values.reshape(-1, width)
        at += width
    floats = np.ones(len(stamps), np.bool_)
    return [Points(stamps, bits, floats) for bits in table.view(np.int64)]


def _is_whole(parts: Sequence[Part], series_count: int) -> bool:
    """Whether the parts of an hour have the same buckets, and each series once."""
    stamps = parts[0].buckets.stamps
    met = np.concatenate([part.series for part in parts])
    return (
        len(met) == series_count
        and all(np.array_equal(part.buckets.stamps, stamps) for part in parts[1:])
        and bool((np.bincount(met, minlength=series_count) == 1).all())
    )
