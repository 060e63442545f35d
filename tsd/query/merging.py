"""Series of different times → what each counts with at every time of any of them (query.md §11)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tsd.query.aggregators import Missing
from tsd.query.folds import Numbers, Slots
from tsd.query.javamath import quotient
from tsd.query.points import Bool, Int64, Points
from tsd.query.rate import Rates

_CONSTANTS = {
    Missing.ZERO: (0, 0.0),
    Missing.HIGHEST: (np.iinfo(np.int64).max, np.finfo(np.float64).max),
    Missing.LOWEST: (np.iinfo(np.int64).min, np.finfo(np.float64).min),
}
_TABLE_PER_POINT = 8  # a table of all times is used while it has no more places than this for each point


class Part(NamedTuple):
    """What a series counts with at some consecutive times."""

    first: int  # place of the first of those times
    values: Numbers
    made_up: int  # how many of them no point has


class Lane:
    """One series among the times of all: it is alive from its first point to its last."""

    def __init__(self, points: Points, places: Slots, times: Int64, missing: Missing) -> None:
        self.points, self._places = points, places
        self._times, self._missing = times, missing
        self._first, self._stop = int(places[0]), int(places[-1]) + 1
        self._gapless = self._stop - self._first == len(places)

    def part(self, first: int, stop: int, integers: bool) -> Part | None:
        """Its values at the places [first, stop); None: it is not alive there."""
        first, stop = max(first, self._first), min(stop, self._stop)
        if first >= stop:
            return None
        if self._gapless:
            low = first - self._first
            return Part(first, numbers(self.points.at(slice(low, low + stop - first)), integers), 0)
        # From the point at or before the first place to that at or after the last.
        low = int(np.searchsorted(self._places, first, "right")) - 1
        high = int(np.searchsorted(self._places, stop - 1, "left")) + 1
        places, points = self._places[low:high], self.points.at(slice(low, high))
        begin = int(places[0])
        there = np.zeros(int(places[-1]) + 1 - begin, np.bool_)
        there[places - begin] = True
        values = _filled(points, places - begin, there, self._missing, self._times[begin:], integers)
        cut = slice(first - begin, stop - begin)
        return Part(first, values[cut], int((~there[cut]).sum()) if self._missing not in _CONSTANTS else 0)

    def near_doubles(self, size: int) -> Bool:
        """At which of all places its point, or the next of its points, is a double."""
        floats = self.points.floats
        near = np.append(floats[:-1] | floats[1:], floats[-1])
        lengths = np.diff(np.append(self._places, self._stop))
        found = np.zeros(size, np.bool_)
        found[: self._first] = floats[0]
        found[self._first : self._stop] = np.repeat(near, lengths)
        return found


class Held:
    """The rates of one series: each holds until the next, and the meaningless first one from the group's beginning."""

    def __init__(self, rates: Rates, places: Slots) -> None:
        self.points = rates.points
        self._own, self._stop = places, int(places[-1]) + 1
        self._values = rates.points.doubles()
        self._places = places  # from where each value holds
        if rates.first is not None:
            self._values, self._places = np.append(rates.first, self._values), np.append(0, places)

    def part(self, first: int, stop: int, integers: bool) -> Part | None:
        """As a lane's; nothing is interpolated, whatever the aggregator."""
        assert not integers
        first, stop = max(first, int(self._places[0])), min(stop, self._stop)
        if first >= stop:
            return None
        low = int(np.searchsorted(self._places, first, "right")) - 1
        high = int(np.searchsorted(self._places, stop))
        lengths = np.diff(np.concatenate([[first], self._places[low + 1 : high], [stop]]))
        own = np.searchsorted(self._own, (first, stop))
        return Part(first, np.repeat(self._values[low:high], lengths), stop - first - int(own[1] - own[0]))


def _filled(points: Points, places: Slots, there: Bool, missing: Missing, times: Int64, integers: bool) -> Numbers:
    """Values at all places from the first point's to the last's; `there` says which of them have a point."""
    own = numbers(points, integers)
    if missing is Missing.PREVIOUS:
        return np.repeat(own, np.diff(np.append(places, len(there))))
    if missing in _CONSTANTS:
        values = np.full(len(there), _CONSTANTS[missing][0 if integers else 1], own.dtype)
    else:
        values = np.empty(len(there), own.dtype)
        at = np.flatnonzero(~there)
        gap = np.repeat(np.arange(len(places) - 1), np.diff(places) - 1)  # the point before each of those
        since, length = times[at] - points.times[gap], np.diff(points.times)[gap]
        rise = since * np.diff(own)[gap]
        values[at] = own[gap] + (quotient(rise, length) if integers else rise / length)
    values[places] = own
    return values


def numbers(points: Points, integers: bool) -> Numbers:
    """Values as what they are aggregated as. Of doubles taken for integers nothing is used."""
    return points.bits if integers else points.doubles()


def lined_up(series: Sequence[Points]) -> tuple[Int64, list[Slots]]:
    """The times of all series, ascending, and the places of each series' own among them."""
    times = series[0].times
    if all(points.times is times or np.array_equal(points.times, times) for points in series[1:]):
        return times, [np.arange(len(times))] * len(series)
    every = np.concatenate([points.times for points in series])
    times, places = _ranked(every)
    return times, np.split(places, np.cumsum([len(points.times) for points in series])[:-1])


def _ranked(every: Int64) -> tuple[Int64, Slots]:
    """The distinct times, ascending, and the place of each time among them."""
    low = int(every.min())
    offsets = every - low
    unit = 1 if (offsets % 1000).any() else 1000
    span = int(offsets.max()) // unit + 1
    if span > _TABLE_PER_POINT * len(every):
        ordered = np.sort(every)
        times = ordered[np.append(True, ordered[1:] != ordered[:-1])]
        return times, np.searchsorted(times, every)
    if unit > 1:
        offsets //= unit
    met = np.zeros(span, np.bool_)
    met[offsets] = True
    return np.flatnonzero(met) * unit + low, (np.cumsum(met) - 1)[offsets]
