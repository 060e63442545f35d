"""`highestMax` and `highestCurrent`: which series are the highest (query.md §19).

OpenTSDB ranks columns: at every time of any series the values of those that are there, interpolated between their
points, stand side by side from the first column on, so that a series that has not begun or has ended moves the others
up, and columns that nothing is left for hold 0. Corrected, each series is ranked by its own points.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.query.javamath import quotient
from tsd.query.points import Bool, Float64, Int64, Points

_SMALLEST = 5e-324  # what OpenTSDB takes for the lowest double


class Span(NamedTuple):
    """The times asked for, both ends included, in ms."""

    start_ms: int
    end_ms: int

    def cut(self, points: Points) -> Points:
        """The points within."""
        low = int(np.searchsorted(points.times, self.start_ms))
        return points.at(slice(low, int(np.searchsorted(points.times, self.end_ms, "right"))))


def by_maximum(
    series: Sequence[Points], span: Span, *, corrected: bool, check: Callable[[], None] = lambda: None
) -> list[int]:
    """Places of the series, that with the highest maximum first. `check` is called often, and raises what is to end
    it."""
    if corrected:
        return _descending([np.nanmax(one.doubles(), initial=-np.inf) for one in _cut(series, span, check)])
    columns = _Columns(series, span, check)
    highest = {True: np.full(len(series), float(np.iinfo(np.int64).min)), False: np.full(len(series), _SMALLEST)}
    found = {whole: each.copy() for whole, each in highest.items()}
    filled = np.zeros(len(columns.times), np.int64)
    with np.errstate(all="ignore"):
        for numbers, at, values in columns.each():
            filled[at] += 1
            for whole, each in found.items():
                here = columns.whole[at] == whole
                np.maximum.at(each, numbers[here], values[here])
        for whole, each in found.items():
            left = filled[columns.whole == whole].min(initial=len(series))  # from this column on some hold nothing: 0
            each[left:] = np.maximum(each[left:], 0.0)
            highest[whole] = np.fmax(each, highest[whole])
    if columns.whole.all():
        return _descending(highest[True] if len(columns.whole) else np.zeros(len(series)))
    return _descending(np.maximum(highest[True], highest[False]) if columns.whole.any() else highest[False])


def by_current(
    series: Sequence[Points], span: Span, *, corrected: bool, check: Callable[[], None] = lambda: None
) -> list[int]:
    """Places of the series, that with the highest last value first. `check` as for `by_maximum`."""
    if corrected:
        values = [one.doubles() for one in _cut(series, span, check)]
        return _descending([one[-1] if len(one) else -np.inf for one in values])
    columns = _Columns(series, span, check)
    last = [np.flatnonzero(columns.whole == whole)[-1:] for whole in (True, False)]  # of integers, and of doubles
    columns.look_at(np.concatenate(last))
    found = np.zeros((len(series), len(columns.times)))
    for numbers, at, shown in columns.each():
        found[numbers, at] = shown
    if not found.shape[1]:
        return list(range(len(series)))
    # To Java nothing is higher than NaN.
    return _descending(np.where(np.isnan(found), np.inf, found).max(axis=1))


def _cut(series: Sequence[Points], span: Span, check: Callable[[], None]) -> Iterator[Points]:
    for one in series:
        check()
        yield span.cut(one)


def _descending(keys: Sequence[float] | Float64) -> list[int]:
    order: list[int] = np.argsort(-np.nan_to_num(np.asarray(keys), nan=-np.inf), kind="stable").tolist()
    return order


class _Columns:
    """The columns at all times of any series, told series by series: all at once they could be far more than the
    points. `whole`: where all are integers."""

    def __init__(self, series: Sequence[Points], span: Span, check: Callable[[], None]) -> None:
        self._check = check
        begun = [one.at(one.times >= span.start_ms) for one in series]
        self._begun = [one for one in begun if len(one.times) and one.times[0] <= span.end_ms]
        self.times = np.unique(np.concatenate([np.empty(0, np.int64), *(span.cut(one).times for one in self._begun)]))
        self.whole: Bool = np.ones(len(self.times), np.bool_)
        for lane in self._lanes():
            self.whole &= lane.whole

    def look_at(self, places: NDArray[np.intp]) -> None:
        """Forget all other times."""
        self.times, self.whole = self.times[places], self.whole[places]

    def each(self) -> Iterator[tuple[Int64, NDArray[np.intp], Float64]]:
        """Of each series where it is there: its column's number, which of the times that is, and its value."""
        filled = np.zeros(len(self.times), np.int64)
        for lane in self._lanes():
            places = np.flatnonzero(lane.alive)
            yield filled[places], places, lane.values(self.whole)[places]
            filled[places] += 1

    def _lanes(self) -> Iterator["_Lane"]:
        for one in self._begun:
            self._check()
            yield _Lane(one, self.times)


class _Lane:
    """One series among the times of all."""

    def __init__(self, points: Points, times: Int64) -> None:
        self._points, self._times = points, times
        self._at = np.searchsorted(points.times, times, "right") - 1  # its point at or before each time
        self._next = np.minimum(self._at + 1, len(points.times) - 1)
        self.alive: Bool = (self._at >= 0) & (times <= points.times[-1])
        ended = times > points.times[-1]
        here = points.floats[np.maximum(self._at, 0)] & (self._at >= 0)
        self.whole: Bool = ended | ~(here | points.floats[self._next])

    def values(self, whole: Bool) -> Float64:
        """Its value at each time, as good as the line between its points tells; an integer's where `whole`."""
        at, points = np.maximum(self._at, 0), self._points
        past, length = self._times - points.times[at], points.times[self._next] - points.times[at]
        doubles = points.doubles()
        with np.errstate(all="ignore"):
            rise = doubles[self._next] - doubles[at]
            line = doubles[at] + past * rise / length
            steps = points.bits[at] + quotient(
                past * (points.bits[self._next] - points.bits[at]), np.maximum(length, 1)
            )
        between = np.where(whole, steps, line)
        exact: Float64 = np.where(past == 0, doubles[at], between)
        return exact
