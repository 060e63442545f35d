"""Aggregates groups while their rows are read, as long as all series have the same times.

The points of a series are then never kept: each row is added to its group at once. Results are those of
`tsd.query.merge` bit by bit, because rows arrive in the order in which a group's series are merged.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Bool, Float64, Int64, Points
from tsd.query.buckets import stable_order
from tsd.query.plan import Plan
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.same_times import FUNCTIONS, STARTS, results
from tsd.query.tag_groups import GroupValues, group_values, split_at
from tsd.tables.reading import HourTable, SeriesSet

if HAS_LOOP:
    from tsd.query import _loops

Scalar = TypeVar("Scalar", bound=np.generic)

VALUE_BYTES = 17  # of a group at a time
LEAST_ROWS = 4  # of a group, on average: with fewer, the points themselves take as little


def sums_of(plan: Plan) -> "GroupSums | None":
    """Return what aggregates the groups of a plan while it is read; None if it must keep the points."""
    sub, selection = plan.sub, plan.selection
    if not HAS_LOOP or sub.aggregator not in FUNCTIONS or sub.downsample is not None or sub.rate:
        return None
    return GroupSums(sub.aggregator, selection.series)


class GroupSums:
    """The groups of one sub query, aggregated."""

    def __init__(self, aggregator: str, series: SeriesSet) -> None:
        self._aggregator = aggregator
        self._series = series
        self._hours: dict[int, _Hour] = {}  # by base time
        self._group_of = np.empty(0, np.int64)  # of each series, by its number; with room for more
        self._groups = _Groups()
        self._grouped = 0  # series that have a group
        self.size = 0  # values held
        self.order: Sequence[int] = ()  # of all series, once finished
        self._ordered: list[_Hour] = []  # once finished
        self._times: Int64 = np.empty(0, np.int64)
        self._counts: Int64 = np.empty(0, np.int64)  # series of each group

    def add(self, table: HourTable) -> bool:
        """Add the rows of one hour. Return False if they cannot be added: this object is of no more use then."""
        if not self._assign():
            return False
        function = FUNCTIONS[self._aggregator]
        hour = self._hours.get(table.base_s)
        if hour is None:
            hour = self._hours[table.base_s] = _Hour(table.offsets_ms, function)
        elif not np.array_equal(hour.offsets_ms, table.offsets_ms):
            return False
        self.size += hour.grow(self._groups.count)
        hour.numbers.append(table.numbers)
        floats = table.floats.view(np.uint8)
        groups = self._group_of[table.numbers]
        return _loops.add_rows(function, table.bits, floats, groups, hour.doubles, hour.integers, hour.kinds)

    def _assign(self) -> bool:
        """Give new series their groups. Return False if they have too many, or no common form."""
        new = self._series.series_pairs[self._grouped :]
        if not new:
            return True
        if not self._series.group_by:
            self._groups.count = 1
            found = np.zeros(len(new), np.int64)
        else:
            keys = group_values(new, self._series.widths, self._series.group_by)
            if keys is None:
                return False
            found = self._groups.of(keys)
        self._group_of = _extended(self._group_of, self._grouped, found)
        self._grouped += len(new)
        return self._groups.count * LEAST_ROWS <= self._grouped

    def finish(self) -> bool:
        """Join the hours. Return False if a series lacks a row in one of them: values would have to be interpolated."""
        if not self._assign():
            return False
        self.order = self._series.order(range(len(self._series.series_pairs)))
        hours = [self._hours[base_s] for base_s in sorted(self._hours)]
        numbers = [np.concatenate(hour.numbers) for hour in hours]
        if hours:
            if not all(np.array_equal(one, numbers[0]) for one in numbers[1:]) or not self._are_ordered(numbers[0]):
                return False
            self._counts = np.bincount(self._group_of[numbers[0]], minlength=self._groups.count)
            self._times = np.concatenate(
                [base_s * 1000 + self._hours[base_s].offsets_ms for base_s in sorted(self._hours)]
            )
        self._ordered = hours
        return True

    def _are_ordered(self, numbers: NDArray[np.int32]) -> bool:
        """Return whether series came in the order in which they are aggregated."""
        if isinstance(self.order, range):
            return bool((numbers[1:] > numbers[:-1]).all())
        places = np.empty(len(self.order), np.int64)
        places[np.array(self.order)] = np.arange(len(self.order))
        return bool((np.diff(places[numbers]) > 0).all())

    def groups(self) -> list[Int64]:
        """Return the numbers of the series of each group, in order of the values of their tags; for series that are
        numbered in their order."""
        ranks = self._groups.ranks()
        found = ranks[self._group_of[: self._grouped]]
        order = stable_order(found, len(ranks))
        return split_at(order, np.cumsum(np.bincount(found, minlength=len(ranks))))

    def points_of(self, series: int) -> Points:
        """Return the points of the group of one of its series, once finished."""
        group = int(self._group_of[series])
        count = int(self._counts[group])
        kinds = np.concatenate([hour.kinds[group] for hour in self._ordered])
        doubles = np.concatenate([hour.doubles[group] for hour in self._ordered])
        integers = np.concatenate([hour.integers[group] for hour in self._ordered])
        return Points(self._times, *results(self._aggregator, doubles, integers, kinds, count))


class _Groups:
    """The groups, numbered in the order found, by the joined values of their tags."""

    def __init__(self) -> None:
        self.count = 0
        self._values: GroupValues = np.empty(0, np.uint64)  # ascending; with room for more
        self._numbers: Int64 = np.empty(0, np.int64)  # of their groups

    def of(self, keys: GroupValues) -> Int64:
        """Return the group of each of some values. Most pages have the groups of the page before."""
        places, is_known = self._find(keys)
        if not is_known.all():
            self._add(np.unique(keys[~is_known]))
            places, _ = self._find(keys)
        return self._numbers[places]

    def _find(self, keys: GroupValues) -> tuple[NDArray[np.intp], Bool]:
        """Return the place of each value, and whether it is there."""
        if not self.count:
            return np.zeros(len(keys), np.intp), np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self._values[: self.count], keys), self.count - 1)
        return places, self._values[places] == keys

    def _add(self, values: GroupValues) -> None:
        """Add new values, ascending. Those of series in order are often above all others."""
        numbers = np.arange(self.count, self.count + len(values))
        if not self.count or values[0] > self._values[self.count - 1]:
            self._values = _extended(self._values, self.count, values)
            self._numbers = _extended(self._numbers, self.count, numbers)
        else:
            places = np.searchsorted(self._values[: self.count], values)
            self._values = np.insert(self._values[: self.count], places, values)
            self._numbers = np.insert(self._numbers[: self.count], places, numbers)
        self.count += len(values)

    def ranks(self) -> Int64:
        """Return the place of each group in order of its values."""
        found = np.zeros(self.count, np.int64)
        if len(self._numbers):
            found[self._numbers[: self.count]] = np.arange(self.count)
        return found


def _extended(array: NDArray[Scalar], size: int, more: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return an array with more elements after its first `size`, and with room for others."""
    if not size:
        return more
    if size + len(more) > len(array):
        array = np.concatenate((array[:size], more, np.empty_like(more, shape=size)))
    else:
        array[size : size + len(more)] = more
    return array


class _Hour:
    """The state of all groups in one hour: arrays of (groups, times)."""

    def __init__(self, offsets_ms: Int64, function: int) -> None:
        self.offsets_ms = offsets_ms
        self.numbers: list[NDArray[np.int32]] = []  # of the series added
        self._start = STARTS[function]
        self.doubles: Float64 = np.empty((0, len(offsets_ms)))
        self.integers: Int64 = np.empty((0, len(offsets_ms)), np.int64)
        self.kinds: NDArray[np.uint8] = np.empty((0, len(offsets_ms)), np.uint8)

    def grow(self, groups: int) -> int:
        """Make room for this number of groups. Return the number of added values."""
        missing = groups - len(self.kinds)
        if missing <= 0:
            return 0
        shape = max(missing, len(self.kinds)), len(self.offsets_ms)
        double, integer = self._start
        self.doubles = np.concatenate((self.doubles, np.full(shape, double)))
        self.integers = np.concatenate((self.integers, np.full(shape, integer, np.int64)))
        self.kinds = np.concatenate((self.kinds, np.zeros(shape, np.uint8)))
        return shape[0] * shape[1]
