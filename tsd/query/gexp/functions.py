"""The functions of `gexp` (docs/compat/query.md §19).

`sum`, `difference`, `multiply` and `divide` join the series of several operands by their tags.

`highestMax` and `highestCurrent` rank series. OpenTSDB ranks columns: at each time of any series, it writes the values
of all series that have one, interpolated between points, into the first columns. A series that has not begun or has
ended thus moves the following series one column to the left, and the remaining columns are 0. Corrected, each series is
ranked by its own points.

`movingAverage` is the mean of the last points, by their number or their age.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Bool, Float64, Int64, Points, doubles_as_points, starts_of
from tsd.errors import BadQuery
from tsd.query.java_arithmetic import quotient, truncated
from tsd.query.parse.times import MOST_DIGITS, read_duration
from tsd.query.result import Group
from tsd.tables.quirks import Quirks


class Arithmetic(Enum):
    """An operation on two values."""

    SUM = "+"
    DIFFERENCE = "-"
    PRODUCT = "*"
    QUOTIENT = "/"


def combined(
    operands: Sequence[Sequence[Group]],
    operation: Arithmetic,
    *,
    quirks: Quirks,
    check: Callable[[], None] = lambda: None,
) -> list[Group]:
    """Return one group for each set of tags of any operand, in the order of their ids; a missing operand counts as 0.

    OpenTSDB pairs points by their places. Without the quirk `pairs_by_place`, points are paired by the times that all
    operands with the series have. `check` is called often and raises an exception to stop the work. Raise BadQuery."""
    sides = [{_key(group.tag_uids): group for group in groups} for groups in operands]
    found = []
    for key in sorted({key for side in sides for key in side}):
        check()
        groups = [side.get(key) for side in sides]
        found.append(_group(groups, operation, quirks=quirks))
    return found


def _key(tag_uids: Mapping[bytes, bytes]) -> bytes:
    return b"".join(tagk + tagv for tagk, tagv in sorted(tag_uids.items()))


def _group(groups: Sequence[Group | None], operation: Arithmetic, *, quirks: Quirks) -> Group:
    """Combine groups under the metric with the lowest id and the tags of the first operand."""
    there = [group for group in groups if group is not None]
    of_points = [group.points for group in there]
    times = _earliest_times(of_points) if quirks.pairs_by_place else _common_times(of_points)
    values = [_values(group, times, quirks=quirks) for group in groups]
    first = groups[0] if groups[0] or quirks.pairs_by_place else there[0]
    return Group(
        min(there, key=lambda group: min(group.tsuids, default=b"\xff")).metric,
        dict(first.tags) if first else {},
        list(dict.fromkeys(tagk for group in there for tagk in group.aggregate_tags)),
        tsuids=sorted({tsuid for group in there for tsuid in group.tsuids}),
        points=doubles_as_points(times, reduce(lambda left, right: _calculated(operation, left, right), values)),
        annotations=[],
        tag_uids=dict(first.tag_uids) if first else {},
        aggregate_tag_uids=sorted({uid for group in there for uid in group.aggregate_tag_uids}),
    )


def _earliest_times(series: Sequence[Points]) -> Int64:
    """Return the earliest time at each place. Raise BadQuery if series differ in length."""
    if len({len(points.times) for points in series}) > 1:
        raise BadQuery("No more elements")
    return reduce(np.minimum, [points.times for points in series])


def _common_times(series: Sequence[Points]) -> Int64:
    return reduce(lambda one, two: np.intersect1d(one, two, assume_unique=True), [points.times for points in series])


def _values(group: Group | None, times: Int64, *, quirks: Quirks) -> Float64:
    if group is None:
        return np.zeros(len(times))
    values = group.points.doubles()
    if quirks.pairs_by_place:
        return np.where(np.isnan(values), 0.0, values)
    return values[np.searchsorted(group.points.times, times)]


def _calculated(operation: Arithmetic, left: Float64, right: Float64) -> Float64:
    with np.errstate(all="ignore"):
        match operation:
            case Arithmetic.SUM:
                return left + right
            case Arithmetic.DIFFERENCE:
                return left - right
            case Arithmetic.PRODUCT:
                return left * right
            case Arithmetic.QUOTIENT:
                return np.where(right == 0, 0.0, left / right)


_SMALLEST = 5e-324  # OpenTSDB uses it as the lowest double


class TimeSpan(NamedTuple):
    """The times of the query, both ends included, in ms."""

    start_ms: int
    end_ms: int

    def cut(self, points: Points) -> Points:
        """Return the points within."""
        low = int(np.searchsorted(points.times, self.start_ms))
        return points.at(slice(low, int(np.searchsorted(points.times, self.end_ms, "right"))))


def by_maximum(
    series: Sequence[Points], span: TimeSpan, *, quirks: Quirks, check: Callable[[], None] = lambda: None
) -> list[int]:
    """Return indices of series by descending maximum. `check` is called often and raises to stop the work."""
    if not quirks.ranks_columns:
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
            left = filled[columns.whole == whole].min(initial=len(series))  # from this column on some are empty: 0
            each[left:] = np.maximum(each[left:], 0.0)
            highest[whole] = np.fmax(each, highest[whole])
    if columns.whole.all():
        return _descending(highest[True] if len(columns.whole) else np.zeros(len(series)))
    return _descending(np.maximum(highest[True], highest[False]) if columns.whole.any() else highest[False])


def by_current(
    series: Sequence[Points], span: TimeSpan, *, quirks: Quirks, check: Callable[[], None] = lambda: None
) -> list[int]:
    """Return places of series by descending last value. `check` as for `by_maximum`."""
    if not quirks.ranks_columns:
        values = [one.doubles() for one in _cut(series, span, check)]
        return _descending([one[-1] if len(one) else -np.inf for one in values])
    columns = _Columns(series, span, check)
    last = [np.flatnonzero(columns.whole == whole)[-1:] for whole in (True, False)]  # of integers, and of doubles
    columns.keep_times(np.concatenate(last))
    found = np.zeros((len(series), len(columns.times)))
    for numbers, at, shown in columns.each():
        found[numbers, at] = shown
    if not found.shape[1]:
        return list(range(len(series)))
    # Java orders NaN above all numbers.
    return _descending(np.where(np.isnan(found), np.inf, found).max(axis=1))


def _cut(series: Sequence[Points], span: TimeSpan, check: Callable[[], None]) -> Iterator[Points]:
    for one in series:
        check()
        yield span.cut(one)


def _descending(keys: Sequence[float] | Float64) -> list[int]:
    order: list[int] = np.argsort(-np.nan_to_num(np.asarray(keys), nan=-np.inf), kind="stable").tolist()
    return order


class _Columns:
    """The columns at all times of any series, produced series by series: together they could be far larger than the
    points. `whole`: where all are integers."""

    def __init__(self, series: Sequence[Points], span: TimeSpan, check: Callable[[], None]) -> None:
        self._check = check
        begun = [one.at(one.times >= span.start_ms) for one in series]
        self._begun = [one for one in begun if len(one.times) and one.times[0] <= span.end_ms]
        self.times = np.unique(np.concatenate([np.empty(0, np.int64), *(span.cut(one).times for one in self._begun)]))
        self.whole: Bool = np.ones(len(self.times), np.bool_)
        for aligned in self._aligned_series():
            self.whole &= aligned.whole

    def keep_times(self, places: NDArray[np.intp]) -> None:
        """Keep the times at these places and drop all others."""
        self.times, self.whole = self.times[places], self.whole[places]

    def each(self) -> Iterator[tuple[Int64, NDArray[np.intp], Float64]]:
        """Yield, for each series at the times it has: number of its column, place of the time, and value."""
        filled = np.zeros(len(self.times), np.int64)
        for aligned in self._aligned_series():
            places = np.flatnonzero(aligned.alive)
            yield filled[places], places, aligned.values(self.whole)[places]
            filled[places] += 1

    def _aligned_series(self) -> Iterator["_AlignedSeries"]:
        for one in self._begun:
            self._check()
            yield _AlignedSeries(one, self.times)


class _AlignedSeries:
    """One series aligned with the times of all."""

    def __init__(self, points: Points, times: Int64) -> None:
        self._points, self._times = points, times
        self._at = np.searchsorted(points.times, times, "right") - 1  # its point at or before each time
        self._next = np.minimum(self._at + 1, len(points.times) - 1)
        self.alive: Bool = (self._at >= 0) & (times <= points.times[-1])
        ended = times > points.times[-1]
        here = points.floats[np.maximum(self._at, 0)] & (self._at >= 0)
        self.whole: Bool = ended | ~(here | points.floats[self._next])

    def values(self, whole: Bool) -> Float64:
        """Return its values, interpolated between points; with integer arithmetic where `whole`."""
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


_UNITS_S = {
    "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip
_LENGTH = re.compile(r"'([0-9]+)((?:[^0-9].*)?)'")
_LARGEST = (1 << 31) - 1
NO_INTEGER = "Invalid parameter, must be an integer"
_TOO_SHORT = "Moving average window must be an integer greater than zero"
_EXACT, _HIGHEST = 53, 1023  # a double's bits, and its highest power of two
BLOCK = 4096  # windows summed together: they fit the processor's cache
_ADDITIONS = 1 << 22  # between two calls of `check`: some milliseconds


class AverageWindow(NamedTuple):
    """A number of points, or a length."""

    points: int = 0
    length_ms: int = 0


def read_window(text: str) -> AverageWindow:
    """Parse a number of points, or `'2min'`. Raise BadQuery.

    >>> read_window("3"), read_window("'2min'")
    (AverageWindow(points=3, length_ms=0), AverageWindow(points=0, length_ms=120000))
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
        return AverageWindow(length_ms=number * _UNITS_S[unit] * 1000)
    if not text.isascii() or not text.isdigit():
        raise BadQuery(f"Unparseable window size: {text}")
    points = read_integer(text)
    if points is None:
        raise BadQuery(NO_INTEGER)
    if points <= 0:
        raise BadQuery(_TOO_SHORT)
    return AverageWindow(points=points)


def read_integer(digits: str) -> int | None:
    """Parse a 32-bit integer; None if it is larger."""
    if len(digits) > MOST_DIGITS or int(digits) > _LARGEST:
        return None
    return int(digits)


def moving_average(
    points: Points, window: AverageWindow, check: Callable[[], None] = lambda: None, block_size: int = BLOCK
) -> Points:
    """Return for each point the mean of the window that ends with it, summed from the newest point back.

    NaN is skipped. The mean is 0.0 if the window starts before the first point or is empty. `check` is called often and
    raises an exception to stop the work. `block_size`: windows summed together.
    """
    values = points.doubles()
    known = ~np.isnan(values)
    with np.errstate(all="ignore"):
        if window.points:
            first = np.arange(1, known.sum() + 1) - window.points
            means = _means(values[known], first, first >= 0, np.full(len(first), window.points), check, block_size)
            means = np.append(0.0, means)[np.cumsum(known)]  # NaN changes nothing
        else:
            first = np.searchsorted(points.times, points.times - window.length_ms, "right")
            count = starts_of(known)
            numbers = count[1:] - count[first]
            means = _means(np.where(known, values, 0.0), first, first > 0, numbers, check, block_size)
    return doubles_as_points(points.times, means)


def _means(
    values: Float64, first: Int64, whole: Bool, numbers: Int64, check: Callable[[], None], block_size: int
) -> Float64:
    """Return the mean of the values from `first` to each, where the window is `whole` and not empty; else 0.0."""
    shown = whole & (numbers > 0)
    begins = np.where(shown, first, np.arange(len(values)))
    longest = int((np.arange(len(values)) - begins).max(initial=0)) + 1
    sums = _exact_sums(values, begins, longest)
    if sums is None:
        sums = _sums(values, begins, int(np.argmax(shown)), check, block_size)
    return np.divide(sums, numbers, out=np.zeros(len(values)), where=shown)


def _exact_sums(values: Float64, begins: Int64, longest: int) -> Float64 | None:
    """Return the sum of each window; None if the order of additions could change a digit.

    It cannot if all values are multiples of one power of two, and so small that no sum loses a bit. Then they
    are summed as integers.
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
    summed = starts_of(integers)  # it may wrap: differences are still right
    exact: Float64 = np.ldexp((summed[1:] - summed[begins]).astype(np.float64), lowest)
    return exact


def _bits(powers: Int64) -> Int64:
    """Return how many bits powers of two have."""
    return np.frexp(powers.astype(np.float64))[1].astype(np.int64)


def _sums(values: Float64, begins: Int64, start: int, check: Callable[[], None], block_size: int) -> Float64:
    """Return the sum of each window that ends at `start` or later, added from the newest value back: the order of
    additions shows in the last digit."""
    sums = np.zeros(len(values))
    done = 0
    for low in range(start, len(values), block_size):
        high = min(low + block_size, len(values))
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


_FACTOR = re.compile(r"[-0-9.]+")
_SHIFT = re.compile(r"'([0-9]+)(.*)")
_SHIFT_UNITS = {"min": "m", "sec": "s", "hr": "h", "hour": "h", "day": "d", "week": "w", "month": "n", "year": "y"}


class FunctionContext(NamedTuple):
    """The context of functions: facts of the request."""

    span: TimeSpan
    quirks: Quirks
    check: Callable[[], None] = lambda: None  # called often: raises an exception to stop the work


Groups = Sequence[Group]
Function = Callable[[Sequence[Groups], Sequence[str], FunctionContext], list[Group]]


def absolute(operands: Sequence[Groups], _: Sequence[str], context: FunctionContext) -> list[Group]:
    """Return |v|, of the same type."""
    return [_with_points(group, _absolute(group.points)) for group in _flat(operands, context)]


def scale(operands: Sequence[Groups], words: Sequence[str], context: FunctionContext) -> list[Group]:
    """Return v · factor: integers stay integers if the factor is whole."""
    if not words:
        raise BadQuery("Missing scaling factor")
    if not _FACTOR.fullmatch(words[0]):
        raise BadQuery("Unparseable scale factor value: 0.0")
    try:
        factor = float(words[0])
    except ValueError as exc:
        raise BadQuery("Invalid parameter, must be an integer or floating point") from exc
    return [_with_points(group, _scaled(group.points, factor)) for group in _flat(operands, context)]


def alias(operands: Sequence[Groups], words: Sequence[str], context: FunctionContext) -> list[Group]:
    """Rename groups, with @tagk replaced by the tag's value, and drop tags. OpenTSDB also takes absolute values."""
    if not words:
        raise BadQuery("Missing the alias")
    name = ",".join(words)
    found = []
    for group in _flat(operands, context):
        points = _absolute(group.points) if context.quirks.alias_is_absolute else group.points
        found.append(replace(group, metric=_named(name, group), tags={}, aggregate_tags=[], points=points))
    return found


def average(operands: Sequence[Groups], words: Sequence[str], context: FunctionContext) -> list[Group]:
    """Return the moving average over the points between start and end."""
    if not words:
        raise BadQuery("Missing moving average window size")
    window = read_window(words[0])
    return [
        _with_points(group, moving_average(context.span.cut(group.points), window, context.check))
        for group in _flat(operands, context)
    ]


def time_shift(operands: Sequence[Groups], words: Sequence[str], context: FunctionContext) -> list[Group]:
    """Return earlier points, which the queries have read already, moved to the query's times. OpenTSDB always fails."""
    shift_ms(words, quirks=context.quirks)
    return list(_flat(operands, context))


def shift_ms(words: Sequence[str], *, quirks: Quirks) -> int:
    """Return by how much a timeShift moves earlier points, in ms. Raise BadQuery, with the quirk `refuses_shifts`
    always."""
    if not words:
        raise BadQuery("Need amount of timeshift to perform timeshift")
    if words[0][:1] != "'" or words[0][-1:] != "'":
        raise BadQuery("Invalid timeshift parameter: eg '10min'")
    found = _SHIFT.fullmatch(words[0])
    if found is None:
        raise BadQuery(f"Invalid Parameter: {words[0]}")
    if read_integer(found[1]) is None:
        raise BadQuery(f'For input string: "{found[1]}"')
    if quirks.refuses_shifts:
        raise BadQuery(f"unknown time unit={found[2]}")
    unit = found[2].removesuffix("'")
    return read_duration(found[1] + _SHIFT_UNITS.get(unit, unit), quirks=quirks)


def _combining(operation: Arithmetic) -> Function:
    def function(operands: Sequence[Groups], _: Sequence[str], context: FunctionContext) -> list[Group]:
        if not 2 <= len(operands) <= 26:
            raise BadQuery(f"Must have 2 to 26 series, got {len(operands)} instead")
        return combined(operands, operation, quirks=context.quirks, check=context.check)

    return function


def _ranking(rank: Callable[..., list[int]]) -> Function:
    """Return the function that returns the first series of a ranking: `by_maximum` or `by_current`."""

    def function(operands: Sequence[Groups], words: Sequence[str], context: FunctionContext) -> list[Group]:
        count = _top(words)
        groups = _with_some(operands, context)
        series = [group.points for group in groups]
        order = rank(series, context.span, quirks=context.quirks, check=context.check)
        return [groups[place] for place in order[:count]]

    return function


def _top(words: Sequence[str]) -> int:
    if not words:
        raise BadQuery("Need aggregation window for moving average")  # OpenTSDB's words
    if not words[0].isascii() or not words[0].isdigit():
        raise BadQuery(f"Unparseable top n value: {words[0]}")
    count = read_integer(words[0])
    if count is None:
        raise BadQuery(NO_INTEGER)
    if count < 1:
        raise BadQuery(f"Top n value must be greater than zero: {count}")
    return count


def _flat(operands: Sequence[Groups], context: FunctionContext) -> Iterator[Group]:
    for groups in operands:
        for group in groups:
            context.check()
            yield group


def _with_some(operands: Sequence[Groups], context: FunctionContext) -> list[Group]:
    """Return the groups with points."""
    return [group for group in _flat(operands, context) if len(group.points.times)]


def _with_points(group: Group, points: Points) -> Group:
    return replace(group, points=points)


def _absolute(points: Points) -> Points:
    with np.errstate(all="ignore"):
        doubles = np.abs(points.bits.view(np.float64)).view(np.int64)
        return points._replace(bits=np.where(points.floats, doubles, np.abs(points.bits)))


def _scaled(points: Points, factor: float) -> Points:
    with np.errstate(all="ignore"):
        if not factor.is_integer():
            return doubles_as_points(points.times, points.doubles() * factor)
        doubles = (points.doubles() * factor).view(np.int64)
        return points._replace(bits=np.where(points.floats, doubles, points.bits * truncated(np.array(factor))))


def _named(name: str, group: Group) -> str:
    for tagk in sorted(group.tags, key=len, reverse=True):
        name = name.replace(f"@{tagk}", group.tags[tagk])
    return name


FUNCTIONS: dict[str, Function] = {
    "absolute": absolute,
    "alias": alias,
    "scale": scale,
    "movingAverage": average,
    "highestMax": _ranking(by_maximum),
    "highestCurrent": _ranking(by_current),
    "timeShift": time_shift,
    "shift": time_shift,
    **{name: _combining(Arithmetic.SUM) for name in ("sum", "sumSeries")},
    **{name: _combining(Arithmetic.DIFFERENCE) for name in ("difference", "diffSeries")},
    **{name: _combining(Arithmetic.PRODUCT) for name in ("multiply", "multiplySeries")},
    **{name: _combining(Arithmetic.QUOTIENT) for name in ("divide", "divideSeries")},
}
SHIFTS = frozenset({"timeShift", "shift"})
