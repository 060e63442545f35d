"""`highestMax` and `highestCurrent`: which series are the highest (query.md §19).

OpenTSDB ranks columns: at every time of any series the values of those that are there, interpolated between their
points, stand side by side from the first column on, so that a series that has not begun or has ended moves the others
up, and columns that nothing is left for hold 0. Corrected, each series is ranked by its own points.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

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


def by_maximum(series: Sequence[Points], span: Span, *, corrected: bool) -> list[int]:
    """Places of the series, that with the highest maximum first."""
    if corrected:
        return _descending([np.nanmax(one.doubles(), initial=-np.inf) for one in map(span.cut, series)])
    columns = _Columns(series, span)
    highest = np.zeros(len(series))
    for whole in (True, False):
        rows = columns.whole == whole
        if rows.any():
            lowest = float(np.iinfo(np.int64).min) if whole else _SMALLEST
            found = np.fmax(columns.values[:, rows].max(axis=1, initial=lowest), lowest)
            highest = found if whole or not columns.whole.any() else np.maximum(highest, found)
    return _descending(highest)


def by_current(series: Sequence[Points], span: Span, *, corrected: bool) -> list[int]:
    """Places of the series, that with the highest last value first."""
    if corrected:
        values = [one.doubles() for one in map(span.cut, series)]
        return _descending([one[-1] if len(one) else -np.inf for one in values])
    columns = _Columns(series, span)
    last = [np.flatnonzero(columns.whole == whole)[-1:] for whole in (True, False)]  # of integers, and of doubles
    found = columns.values[:, np.concatenate(last)]
    if not found.shape[1]:
        return list(range(len(series)))
    # To Java nothing is higher than NaN.
    return _descending(np.where(np.isnan(found), np.inf, found).max(axis=1))


def _descending(keys: Sequence[float] | Float64) -> list[int]:
    order: list[int] = np.argsort(-np.nan_to_num(np.asarray(keys), nan=-np.inf), kind="stable").tolist()
    return order


class _Columns:
    """`values`: a row for each column, a column for each time. `whole`: where all are integers."""

    def __init__(self, series: Sequence[Points], span: Span) -> None:
        begun = [one.at(one.times >= span.start_ms) for one in series]
        begun = [one if len(one.times) and one.times[0] <= span.end_ms else one.at(slice(0, 0)) for one in begun]
        times = np.unique(np.concatenate([np.empty(0, np.int64), *(span.cut(one).times for one in begun)]))
        lanes = [_Lane(one, times) for one in begun if len(one.times)]
        self.whole: Bool = np.logical_and.reduce([np.ones(len(times), np.bool_), *(lane.whole for lane in lanes)])
        self.values = np.zeros((len(series), len(times)))
        filled = np.zeros(len(times), np.int64)
        for lane in lanes:
            places = np.flatnonzero(lane.alive)
            self.values[filled[places], places] = lane.values(self.whole)[places]
            filled[places] += 1


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
