"""Points of one group between two aggregators: numbers, or texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import NO_POINTS, Bool, Float64, Int64, Points
from tsd.query.kairosdb.model import BadRequest

T = TypeVar("T")
Texts = NDArray[np.object_]
POINT_BYTES = 60  # of a point while it is processed: its arrays, and their next form


@dataclass(frozen=True)
class Column:
    """Points in the order of the answer. Times may repeat, and descend."""

    points: Points
    texts: Texts | None = None  # the values, in place of the points' bits
    nulls: Bool | None = None  # the points without a value, from `gaps`

    @property
    def times(self) -> Int64:
        """Their times, ms since the epoch."""
        return self.points.times

    def __len__(self) -> int:
        return len(self.points.times)

    def at(self, index: slice | NDArray[np.bool_] | NDArray[np.intp]) -> "Column":
        """Return the points that a numpy index selects."""
        return Column(
            self.points.at(index),
            None if self.texts is None else self.texts[index],
            None if self.nulls is None else self.nulls[index],
        )

    def with_times(self, times: Int64) -> "Column":
        """Return the same values at other times."""
        return replace(self, points=self.points._replace(times=times))

    def numbers(self) -> Float64:
        """Return the values as doubles. Raise BadRequest if one is null."""
        if self.nulls is not None and self.nulls.any():
            raise BadRequest("an aggregator of numbers cannot follow gaps, whose values may be null")
        return self.points.doubles()


EMPTY = Column(NO_POINTS)


def of_doubles(times: Int64, values: Float64) -> Column:
    """Return a column of doubles."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return Column(Points(times, bits, np.ones(len(times), np.bool_)))


def of_integers(times: Int64, values: Int64) -> Column:
    """Return a column of integers."""
    return Column(Points(times, values, np.zeros(len(times), np.bool_)))


def of_texts(times: Int64, texts: Texts) -> Column:
    """Return a column of texts."""
    return Column(Points(times, np.zeros(len(times), np.int64), np.zeros(len(times), np.bool_)), texts)


def joined(columns: list[Column]) -> Column:
    """Return the points of several columns of one kind, one after the other."""
    if not columns:
        return EMPTY
    if len(columns) == 1:
        return columns[0]
    points = Points(*(np.concatenate(parts) for parts in zip(*(one.points for one in columns), strict=True)))
    texts = [one.texts for one in columns if one.texts is not None]
    return Column(points, np.concatenate(texts) if texts else None)


def merged(columns: list[Column], *, descending: bool) -> Column:
    """Return the points of several columns of one kind by time, then by value.

    >>> parts = [of_doubles(np.array([1, 2]), np.array(values)) for values in ([5.0, 6.0], [4.0, 7.0])]
    >>> found = merged(parts, descending=False)
    >>> found.times.tolist(), found.numbers().tolist()
    ([1, 1, 2, 2], [4.0, 5.0, 6.0, 7.0])
    """
    if _share_times(columns):
        table = np.stack([one.points.bits for one in columns], axis=1).view(np.float64)
        table.sort(axis=1)  # the values of each time: several times as fast as to sort all points
        found = of_doubles(np.repeat(columns[0].times, len(columns)), table.reshape(-1))
        return found.at(slice(None, None, -1)) if descending else found
    return in_order(joined(columns), descending=descending)


def _share_times(columns: list[Column]) -> bool:
    """Return whether several columns have doubles at the same ascending times."""
    times = columns[0].times if columns else NO_POINTS.times
    if len(columns) < 2 or not (times[1:] > times[:-1]).all():
        return False
    return all(
        one.texts is None and one.nulls is None and one.points.floats.all() and np.array_equal(one.times, times)
        for one in columns
    )


def in_order(column: Column, *, descending: bool) -> Column:
    """Return a column by time, then by value."""
    if not descending and (column.times[1:] > column.times[:-1]).all():
        return column
    values = np.zeros(len(column)) if column.texts is not None else column.numbers()
    order = np.lexsort((values, column.times))
    return column.at(order[::-1] if descending else order)


def in_runs(items: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[Sequence[T]]:
    """Divide items into runs whose sizes add up to `most` or less, or of one item.

    >>> list(in_runs("abcd", [1, 2, 5, 1], 3))
    ['ab', 'c', 'd']
    """
    first = total = 0
    for at, size in enumerate(sizes):
        total += size
        if total > most and at > first:
            yield items[first:at]
            first, total = at, size
    if first < len(items):
        yield items[first:]
