"""Aligns the series of a group with the times of all (docs/compat/query.md §11). Series that have all those times, as
series sent together do, are aligned as one table.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tsd.codec.points import NO_POINTS, Bool, Int64, Points
from tsd.query.aggregate import Kernel, Missing, Numbers, Slots
from tsd.query.columns import CHUNK, Chosen, SeriesColumns
from tsd.query.java_arithmetic import quotient
from tsd.tables.reading import ScanRange


class Rates(NamedTuple):
    """The rates of a series, each at the time of the later of its two points.

    `first` is OpenTSDB's rate at the series' first point, as if it had a value of 0 in 1970. No answer shows it, but it
    is added to other series' rates until this series starts (docs/compat/query.md §11).
    """

    first: float | None  # None: there is none
    points: Points


_CONSTANTS = {
    Missing.ZERO: (0, 0.0),
    Missing.HIGHEST: (np.iinfo(np.int64).max, np.finfo(np.float64).max),
    Missing.LOWEST: (np.iinfo(np.int64).min, np.finfo(np.float64).min),
}
_TABLE_PER_POINT = 8  # largest ratio of table entries to points for which a table of all times is used


class AlignedPart(NamedTuple):
    """The values of a series at some consecutive times."""

    first: int  # place of the first of those times
    values: Numbers
    interpolated: int  # how many of them are not points


class Aligned(Protocol):
    """One or more series, aligned with the times of all."""

    count: int  # of series
    has_doubles: bool
    has_integers: bool

    def add_to(self, kernel: Kernel, first: int, stop: int, *, integers: bool, check: Callable[[], None]) -> int:
        """Add the values at the places [first, stop) to a kernel's slots from 0 on. Return how many were interpolated.
        `check` is called every few milliseconds and may raise an exception."""

    def near_doubles(self, size: int) -> Bool:
        """Return at which of `size` places a point, or the next one of its series, is a double."""


class AlignedRows:
    """Series that have a point at each of the times."""

    def __init__(self, columns: SeriesColumns, firsts: Int64, width: int) -> None:
        """`firsts`: the place of the first point of each series; `width`: the number of times."""
        self._columns, self._firsts, self._width = columns, firsts, width
        self.count = len(firsts)
        self.has_doubles, self.has_integers = columns.has_doubles, columns.has_integers

    def add_to(self, kernel: Kernel, first: int, stop: int, *, integers: bool, check: Callable[[], None]) -> int:
        """See Aligned."""
        each = max(1, CHUNK // (stop - first))
        for at in range(0, self.count, each):
            check()
            firsts = self._firsts[at : at + each]
            kernel.rows(self._columns.numbers(firsts, first, stop, self._width, integers=integers))
        return 0

    def near_doubles(self, size: int) -> Bool:
        """See Aligned."""
        found = self._columns.doubles_at(self._firsts, self._width)
        found[:-1] |= found[1:]
        return found if size == self._width else found[:size]


class _AlignedOne(ABC):
    """One series."""

    count = 1

    @abstractmethod
    def part(self, first: int, stop: int, integers: bool) -> AlignedPart | None:
        """Return its values at the places [first, stop); None if it has none there."""

    def add_to(self, kernel: Kernel, first: int, stop: int, *, integers: bool, check: Callable[[], None]) -> int:
        """See Aligned."""
        check()
        piece = self.part(first, stop, integers)
        if piece is None:
            return 0
        kernel.column(piece.first - first, piece.values)
        return piece.interpolated


class AlignedSeries(_AlignedOne):
    """One series aligned with the times of all: it contributes from its first point to its last."""

    def __init__(self, points: Points, places: Slots, times: Int64, missing: Missing) -> None:
        self.points, self._places = points, places
        self._times, self._missing = times, missing
        self._first, self._stop = int(places[0]), int(places[-1]) + 1
        self._gapless = self._stop - self._first == len(places)
        doubles = int(np.count_nonzero(points.floats))
        self.has_doubles, self.has_integers = doubles > 0, doubles < len(points.floats)

    def part(self, first: int, stop: int, integers: bool) -> AlignedPart | None:
        """Return its values at the places [first, stop); None if it has none there."""
        first, stop = max(first, self._first), min(stop, self._stop)
        if first >= stop:
            return None
        if self._gapless:
            low = first - self._first
            return AlignedPart(first, numbers(self.points.at(slice(low, low + stop - first)), integers), 0)
        # From the point at or before the first place to that at or after the last.
        low = int(np.searchsorted(self._places, first, "right")) - 1
        high = int(np.searchsorted(self._places, stop - 1, "left")) + 1
        places, points = self._places[low:high], self.points.at(slice(low, high))
        begin = int(places[0])
        there = np.zeros(int(places[-1]) + 1 - begin, np.bool_)
        there[places - begin] = True
        values = _filled(points, places - begin, there, self._missing, self._times[begin:], integers)
        cut = slice(first - begin, stop - begin)
        return AlignedPart(first, values[cut], int((~there[cut]).sum()) if self._missing not in _CONSTANTS else 0)

    def near_doubles(self, size: int) -> Bool:
        """See Aligned."""
        floats = self.points.floats
        near = np.append(floats[:-1] | floats[1:], floats[-1])
        lengths = np.diff(np.append(self._places, self._stop))
        found = np.zeros(size, np.bool_)
        found[: self._first] = floats[0]
        found[self._first : self._stop] = np.repeat(near, lengths)
        return found


class AlignedRates(_AlignedOne):
    """The rates of one series: each applies until the next, OpenTSDB's spurious first one from the group's start."""

    def __init__(self, rates: Rates, places: Slots) -> None:
        self.has_doubles, self.has_integers = True, False
        self._own, self._stop = places, int(places[-1]) + 1
        self._values = rates.points.doubles()
        self._places = places  # where each value starts to apply
        if rates.first is not None:
            self._values, self._places = np.append(rates.first, self._values), np.append(0, places)

    def part(self, first: int, stop: int, integers: bool) -> AlignedPart | None:
        """Return its values like AlignedSeries; rates are never interpolated."""
        assert not integers
        first, stop = max(first, int(self._places[0])), min(stop, self._stop)
        if first >= stop:
            return None
        low = int(np.searchsorted(self._places, first, "right")) - 1
        high = int(np.searchsorted(self._places, stop))
        lengths = np.diff(np.concatenate([[first], self._places[low + 1 : high], [stop]]))
        own = np.searchsorted(self._own, (first, stop))
        return AlignedPart(first, np.repeat(self._values[low:high], lengths), stop - first - int(own[1] - own[0]))

    def near_doubles(self, size: int) -> Bool:
        """See Aligned."""
        return np.ones(size, np.bool_)


def _filled(points: Points, places: Slots, there: Bool, missing: Missing, times: Int64, integers: bool) -> Numbers:
    """Return values at all places from the first point to the last; `there` marks those with a point."""
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
    """Return values as integers or doubles. Doubles read as integers are never used."""
    return points.bits if integers else points.doubles()


def align(series: Sequence[Points]) -> tuple[Int64, list[Slots]]:
    """Return the times of all series, ascending, and the places of each series' own times."""
    times = series[0].times
    if all(points.times is times or np.array_equal(points.times, times) for points in series[1:]):
        return times, [np.arange(len(times))] * len(series)
    every = np.concatenate([points.times for points in series])
    times, places = _ranked(every)
    return times, np.split(places, np.cumsum([len(points.times) for points in series])[:-1])


def _ranked(every: Int64) -> tuple[Int64, Slots]:
    """Return the distinct times, ascending, and the place of each time among them."""
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
    present = np.zeros(span, np.bool_)
    present[offsets] = True
    return np.flatnonzero(present) * unit + low, (np.cumsum(present) - 1)[offsets]


def align_columns(chosen: Chosen, scan: ScanRange, missing: Missing) -> tuple[Int64, list[Aligned]]:
    """Align series from the start of a scan range on: the times of all, ascending, and the series in their order."""
    columns = chosen.columns
    firsts, stops = columns.bounds[chosen.numbers], columns.bounds[chosen.numbers + 1]
    firsts = firsts + _early(columns, firsts, stops, scan.start_ms)
    alive = stops > firsts
    if not alive.all():
        firsts, stops = firsts[alive], stops[alive]
    if not len(firsts):
        return NO_POINTS.times, []
    times, width = columns.between(int(firsts[0]), int(stops[0])).times, int(stops[0] - firsts[0])
    if columns.shares_times or ((stops - firsts == width).all() and columns.have_times(firsts, times)):
        return times, [AlignedRows(columns, firsts, width)]
    places = list(zip(firsts.tolist(), stops.tolist(), strict=True))
    series = [columns.between(first, stop) for first, stop in places]
    times, own = align(series)
    aligned: list[Aligned] = []
    whole: list[int] = []  # neighbours with all times
    for (first, _), points, found in zip(places, series, own, strict=True):
        if len(found) == len(times):
            whole.append(first)
            continue
        if whole:
            aligned.append(AlignedRows(columns, np.array(whole), len(times)))
            whole = []
        aligned.append(AlignedSeries(points, found, times, missing))
    if whole:
        aligned.append(AlignedRows(columns, np.array(whole), len(times)))
    return times, aligned


def _early(columns: SeriesColumns, firsts: Int64, stops: Int64, start_ms: int) -> Int64 | int:
    """Return how many points of each series are before `start_ms`: buckets may be."""
    if columns.shares_times:
        return int(np.searchsorted(columns.times, start_ms))
    found = np.zeros(len(firsts), np.int64)
    if not len(columns.times):
        return found
    begun = columns.times[np.minimum(firsts, len(columns.times) - 1)] < start_ms
    for at in np.flatnonzero(begun & (firsts < stops)).tolist():
        found[at] = np.searchsorted(columns.times[firsts[at] : stops[at]], start_ms)
    return found


def align_rates(series: Sequence[Rates]) -> tuple[Int64, list[Aligned]]:
    """Align the rates of series: the times of all, ascending, and the series in their order."""
    alive = [rates for rates in series if len(rates.points.times)]
    if not alive:
        return NO_POINTS.times, []
    times, places = align([rates.points for rates in alive])
    return times, [AlignedRates(rates, own) for rates, own in zip(alive, places, strict=True)]


def doubles_of(aligned: Sequence[Aligned], size: int) -> Bool:
    """Return at which times the result is a double: where a series has a double at that time or next."""
    if not any(each.has_integers for each in aligned):
        return np.ones(size, np.bool_)
    found = np.zeros(size, np.bool_)
    for each in aligned:
        if each.has_doubles:
            found |= each.near_doubles(size)
    return found
