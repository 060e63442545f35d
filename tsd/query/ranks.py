"""Medians and percentiles: what needs all values at once (query.md §12)."""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np

from tsd.query.folds import NEGATIVE_ZERO, Numbers, Slots, grown
from tsd.query.javamath import truncated
from tsd.query.points import Bool, Float64, Int64


class Kind(Enum):
    """Where a percentile lies among sorted values."""

    MEDIAN = "the upper middle"
    LEGACY = "p(n+1)"
    R3 = "the nearest"
    R7 = "1+(n-1)p"


class Rank(NamedTuple):
    """Which value is wanted; `of` is in per cent."""

    kind: Kind
    of: float = 50.0


class Ranked:
    """The values of every slot until it is closed, then only the one that was wanted. NaN is skipped."""

    def __init__(self, integers: bool, rank: Rank) -> None:
        self._integers, self._rank = integers, rank
        self._found = np.zeros(0, np.int64 if integers else np.float64)
        self._columns: list[tuple[int, Numbers]] = []
        self._runs: list[tuple[Slots, Int64, Float64]] = []  # slots, lengths, values

    def grow(self, size: int) -> None:
        self._found = grown(self._found, size, 0 if self._integers else np.nan)

    def column(self, first: int, values: Numbers) -> None:
        self._columns.append((first, values))

    def runs(self, slots: Slots, starts: Int64, values: Float64) -> None:
        self._runs.append((slots, np.diff(starts), values))

    @property
    def held(self) -> int:
        """How many values of open slots are kept."""
        return sum(len(values) for _, _, values in self._runs)

    def settle(self, still_open: Bool | None = None) -> None:
        """Take what is wanted out of the runs that are closed, and forget their values."""
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
        self.settle()
        return self._of_columns() if self._columns else self._found

    def _of_columns(self) -> Numbers:
        size = len(self._found)
        exact = self._integers and self._rank.kind is Kind.MEDIAN  # others are worked out in doubles
        matrix = np.full(
            (len(self._columns), size), np.iinfo(np.int64).max if exact else np.nan, None if not exact else np.int64
        )
        counts = np.zeros(size, np.int64)
        for row, (first, values) in zip(matrix, self._columns, strict=True):
            row[first : first + len(values)] = values
            counts[first : first + len(values)] += 1
        if not exact:
            counts = (~np.isnan(matrix)).sum(axis=0)
        found = pick(self._rank, ascending(matrix, 0), counts)
        return truncated(found) if self._integers and not exact else found


def pick(rank: Rank, ordered: Numbers, counts: Int64) -> Numbers:
    """The wanted value of each column, of whose values the first `counts` are numbers; NaN where there is none."""
    columns = np.arange(len(counts))
    highest = np.maximum(counts - 1, 0)
    if rank.kind is Kind.MEDIAN:
        return ordered[np.minimum(counts // 2, highest), columns]
    position = _position(rank, counts)
    below = np.clip(np.floor(position), 1, np.maximum(counts, 1)).astype(np.int64) - 1
    lower, upper = ordered[below, columns], ordered[np.minimum(below + 1, highest), columns]
    found = lower + (position - np.floor(position)) * (upper - lower)
    found = np.where(position < 1, ordered[0], np.where(position >= counts, ordered[highest, columns], found))
    return np.where(counts == 1, ordered[0], found)


def ascending(matrix: Numbers, axis: int) -> Numbers:
    """Sorted as Java does it: -0.0 before 0.0, NaN last."""
    bits = matrix.view(np.int64)
    if matrix.dtype == np.int64 or not (bits == NEGATIVE_ZERO).any():
        return np.sort(matrix, axis=axis)
    bits = np.where(np.isnan(matrix), np.nan, matrix).view(np.int64)
    ordered = np.sort(_flipped(bits), axis=axis)
    return _flipped(ordered).view(np.float64)


def _flipped(bits: Int64) -> Int64:
    """Bits of doubles → integers in the order of the doubles, and back."""
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


def _position(rank: Rank, counts: Int64) -> Numbers:
    """Where the wanted value lies, counted from 1."""
    share = rank.of / 100
    if rank.kind is Kind.LEGACY:
        return share * (counts + 1)
    if rank.kind is Kind.R7:
        return 1 + (counts - 1) * share
    return np.where(share <= 0.5 / np.maximum(counts, 1), 0.0, np.rint(counts * share))


def _joined(slots: Slots, lengths: Int64, values: Float64, order: Slots) -> tuple[Slots, Int64, Float64]:
    """The runs in another order, those of one slot made one: slots, starts, values."""
    index = spread(np.cumsum(lengths)[order] - lengths[order], lengths[order])
    slots, lengths = slots[order], lengths[order]
    fresh = np.flatnonzero(np.append(True, slots[1:] != slots[:-1]))
    ends = np.append(0, np.cumsum(lengths))
    return slots[fresh], np.append(ends[fresh], ends[-1]), values[index]


def _matrices(starts: Int64, values: Float64) -> Iterator[tuple[Slots, Float64]]:
    """Runs of about one length as the rows of a matrix, filled up with NaN: which runs, and their values."""
    lengths = np.diff(starts)
    widths = 1 << np.ceil(np.log2(lengths)).astype(np.int64)
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        along = np.arange(lengths[rows].max())
        places = starts[rows][:, None] + along
        inside = along < lengths[rows][:, None]
        yield rows, np.where(inside, values[np.minimum(places, len(values) - 1)], np.nan)


def spread(begins: Int64, lengths: Int64) -> Slots:
    """`begins[0], begins[0] + 1, …` for the first length, then the same from `begins[1]`, and so on.

    >>> spread(np.array([10, 3]), np.array([2, 3])).tolist()
    [10, 11, 3, 4, 5]
    """
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
