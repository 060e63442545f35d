"""`movingAverage`: the mean of the last points, by their number or by their age (query.md §19)."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tsd.errors import BadQuery
from tsd.query.durations import MOST_DIGITS
from tsd.query.points import Bool, Float64, Int64, Points, doubles_as_points

_UNITS_S = {
    "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip
_LENGTH = re.compile(r"'([0-9]+)((?:[^0-9].*)?)'")
_LARGEST = (1 << 31) - 1
NO_INTEGER = "Invalid parameter, must be an integer"
_TOO_SHORT = "Moving average window must be an integer greater than zero"
_EXACT, _HIGHEST = 53, 1023  # of a double: its bits, and the power of two that is none too large
_BLOCK = 4096  # windows that are added up side by side: they stay near the processor
_ADDITIONS = 1 << 22  # between two looks at whether to go on: some milliseconds


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
        if found is None:
            raise BadQuery(f"Invalid moving window parameter: {text}")
        number, unit = read_integer(found[1]), found[2]
        if number is None:
            raise BadQuery(f"Unable to parse moving window parameter: {text}")
        if unit not in _UNITS_S:
            raise BadQuery(f"Unknown time unit={unit} in window={text}")
        if number <= 0:
            raise BadQuery(_TOO_SHORT)
        return Window(length_ms=number * _UNITS_S[unit] * 1000)
    if not text.isascii() or not text.isdigit():
        raise BadQuery(f"Unparseable window size: {text}")
    points = read_integer(text)
    if points is None:
        raise BadQuery(NO_INTEGER)
    if points <= 0:
        raise BadQuery(_TOO_SHORT)
    return Window(points=points)


def read_integer(digits: str) -> int | None:
    """The number that Java takes digits for; None where it has more than 32 bits."""
    if len(digits) > MOST_DIGITS or int(digits) > _LARGEST:
        return None
    return int(digits)


def moving_average(points: Points, window: Window, check: Callable[[], None] = lambda: None) -> Points:
    """The mean at every point of those in the window that ends with it, added up from the newest. NaN is left out; 0.0
    stands where the window reaches back before the first point, or holds nothing. `check` is called often, and raises
    what is to end it."""
    values = points.doubles()
    known = ~np.isnan(values)
    with np.errstate(all="ignore"):
        if window.points:
            first = np.arange(1, known.sum() + 1) - window.points
            means = _means(values[known], first, first >= 0, np.full(len(first), window.points), check)
            means = np.append(0.0, means)[np.cumsum(known)]  # a point that is none changes nothing
        else:
            first = np.searchsorted(points.times, points.times - window.length_ms, "right")
            count = np.append(0, np.cumsum(known))
            numbers = count[1:] - count[first]
            means = _means(np.where(known, values, 0.0), first, first > 0, numbers, check)
    return doubles_as_points(points.times, means)


def _means(values: Float64, first: Int64, whole: Bool, numbers: Int64, check: Callable[[], None]) -> Float64:
    """The mean of the values from `first` to each, where that is `whole` and their number is none of 0; else 0.0."""
    shown = whole & (numbers > 0)
    begins = np.where(shown, first, np.arange(len(values)))
    longest = int((np.arange(len(values)) - begins).max(initial=0)) + 1
    sums = _exact_sums(values, begins, longest)
    if sums is None:
        sums = _sums(values, begins, int(np.argmax(shown)), check)
    return np.divide(sums, numbers, out=np.zeros(len(values)), where=shown)


def _exact_sums(values: Float64, begins: Int64, longest: int) -> Float64 | None:
    """The sum of the values from where each window begins; None where the order of additions may show in a digit.

    It does not where all values are multiples of one power of two, and so small that no sum loses a bit: they are added
    up as integers, once.
    """
    mantissas, exponents = np.frexp(values[values != 0.0])
    if not len(mantissas):
        return np.zeros(len(values))
    if not np.isfinite(mantissas).all():
        return None
    whole = np.ldexp(mantissas, _EXACT).astype(np.int64)
    lowest = int((exponents + _bits(whole & -whole)).min()) - _EXACT - 1  # the power of the lowest bit that is set
    highest = int(exponents.max())
    more = longest.bit_length()
    if highest - lowest + more > _EXACT or highest + more > _HIGHEST:
        return None
    integers = np.ldexp(values, -lowest).astype(np.int64)
    summed = np.append(0, np.cumsum(integers))  # it may wrap: differences are right all the same
    exact: Float64 = np.ldexp((summed[1:] - summed[begins]).astype(np.float64), lowest)
    return exact


def _bits(powers: Int64) -> Int64:
    """How many bits powers of two have."""
    return np.frexp(powers.astype(np.float64))[1].astype(np.int64)


def _sums(values: Float64, begins: Int64, start: int, check: Callable[[], None]) -> Float64:
    """The same of windows that end at `start` or later, value after value from the newest on, as the order of additions
    shows in the last digit."""
    sums = np.zeros(len(values))
    done = 0
    for low in range(start, len(values), _BLOCK):
        high = min(low + _BLOCK, len(values))
        lengths = np.arange(low, high) - begins[low:high] + 1
        shortest, longest = int(lengths.min()), int(lengths.max())
        block = sums[low:high]
        for back in range(longest):
            if back < shortest:
                block += values[low - back : high - back]
            else:
                inside = np.flatnonzero(lengths > back)
                block[inside] += values[inside + (low - back)]
            done += high - low
            if done >= _ADDITIONS:
                check()
                done = 0
    return sums
