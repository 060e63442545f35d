"""`movingAverage`: the mean of the last points, by their number or by their age (query.md §19)."""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.errors import BadQuery
from tsd.query.durations import MOST_DIGITS
from tsd.query.points import Bool, Float64, Points, doubles_as_points

_UNITS_S = {
    "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip
_LENGTH = re.compile(r"'([0-9]+)([^0-9].*)'")
_TOO_SHORT = "Moving average window must be an integer greater than zero"


class Window(NamedTuple):
    """How many points, or how long."""

    points: int = 0
    length_ms: int = 0


def read_window(text: str) -> Window:
    """The window of a number of points, or of `'2min'`; raises BadQuery.

    >>> read_window("3"), read_window("'2min'")
    (Window(points=3, length_ms=0), Window(points=0, length_ms=120000))
    """
    if text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        found = _LENGTH.fullmatch(text)
        if found is None or len(found[1]) > MOST_DIGITS:
            raise BadQuery(f"Invalid moving window parameter: {text}")
        number, unit = int(found[1]), found[2]
        if unit not in _UNITS_S:
            raise BadQuery(f"Unknown time unit={unit} in window={text}")
        if number <= 0:
            raise BadQuery(_TOO_SHORT)
        return Window(length_ms=number * _UNITS_S[unit] * 1000)
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise BadQuery(f"Unparseable window size: {text}")
    if int(text) <= 0:
        raise BadQuery(_TOO_SHORT)
    return Window(points=int(text))


def moving_average(points: Points, window: Window) -> Points:
    """The mean at every point of those in the window that ends with it, added up from the newest. NaN is left out; 0.0
    stands where the window reaches back before the first point, or holds nothing."""
    known = ~np.isnan(values := points.doubles())
    if window.points:
        last = np.cumsum(known)  # a point that is none changes nothing
        means = _means(values[known], np.arange(1, known.sum() + 1) - window.points, None)
        return doubles_as_points(points.times, np.concatenate(([0.0], means))[last])
    first = np.searchsorted(points.times, points.times - window.length_ms, "right")
    return doubles_as_points(points.times, _means(values, first, known))


def _means(values: Float64, first: NDArray[np.int64], known: Bool | None) -> Float64:
    """The mean of the values from `first` to each, of those that are `known`; 0.0 where `first` is before the first, or
    for windows of time where it is the first."""
    count = len(values)
    whole = first > 0 if known is not None else first >= 0
    total, number = np.zeros(count), np.zeros(count)
    longest = int((np.arange(count) - first)[whole].max(initial=-1)) + 1
    for back in range(longest):  # one addition after the other: their order shows in the last digit
        ends = np.flatnonzero(whole[back:] & (np.arange(count - back) >= first[back:])) + back
        if known is not None:
            ends = ends[known[ends - back]]
        total[ends] += values[ends - back]
        number[ends] += 1
    return np.divide(total, number, out=np.zeros(count), where=number > 0)
