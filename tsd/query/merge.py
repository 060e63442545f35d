"""Merges the series of a group: rates, alignment of times, aggregation, groups and common tags (docs/compat/query.md
§8, §10 to §12).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.names import Widths
from tsd.codec.points import NO_POINTS, Bool, Float64, Int64, Points, doubles_as_points
from tsd.query.aggregate import BY_NAME, Aggregator, Missing, Numbers, Slots
from tsd.query.calendar import quotient
from tsd.query.model import RateOptions
from tsd.tables.quirks import OPENTSDB, Quirks
from tsd.tables.reading import ScanRange


class Rates(NamedTuple):
    """The rates of a series, each at the time of the later of its two points.

    `first` is OpenTSDB's rate at the series' first point, as if it had a value of 0 in 1970. No answer shows it, but it
    is added to other series' rates until this series starts (docs/compat/query.md §11).
    """

    first: float | None  # None: there is none
    points: Points


def rate(points: Points, options: RateOptions, start_ms: int = 0, *, quirks: Quirks = OPENTSDB) -> Rates:
    """Return the rates of a series.

    A filled series may begin with a bucket before `start_ms`, where merging starts. That bucket has no rate; the first
    rate is that of the next bucket, computed from the fill. Without the quirk `rate_from_1970` there is no spurious
    first rate.
    """
    early = int(np.searchsorted(points.times, start_ms))
    if len(points.times) - early < 2:
        return Rates(None, points.at(slice(0, 0)))
    if not options.counter:
        return _plain(points.at(slice(early, None)), quirks)  # a filled series has no gap where `first` could show
    origin = Points(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    with np.errstate(all="ignore"):
        with_origin = Points(*(np.concatenate(pair) for pair in zip(origin, points, strict=True)))
        rates, kept = _rates(with_origin, options)
    if not quirks.rate_from_1970:
        kept[0] = True  # drop the spurious rate, not a real one in its place
    kept[:early] = False
    times, rates = points.times[kept], rates[kept]
    if len(times) < 2:
        return Rates(None, points.at(slice(0, 0)))
    return Rates(float(rates[0]) if quirks.rate_from_1970 else None, doubles_as_points(times[1:], rates[1:]))


def _plain(points: Points, quirks: Quirks) -> Rates:
    """Return the rates of values that are not a counter."""
    with np.errstate(all="ignore"):
        change, _, _ = _changes(points)
        rates = change / (np.diff(points.times) / 1000.0)
        first = points.at(slice(0, 1)).doubles() / (points.times[:1] / 1000.0)
    return Rates(float(first[0]) if quirks.rate_from_1970 else None, doubles_as_points(points.times[1:], rates))


def _rates(points: Points, options: RateOptions) -> tuple[Float64, Bool]:
    """Return the rate of each pair of neighbours, and which of them are shown."""
    seconds = np.diff(points.times) / 1000.0
    change, whole, fell = _changes(points)
    kept = np.ones(len(change), np.bool_)
    if not fell.any():
        return change / seconds, kept
    if options.drop_resets:
        return change / seconds, ~fell
    rates = np.where(fell, _wrapped(points, whole, options.counter_max), change) / seconds
    if options.reset_value > 0:
        rates[fell & (rates > options.reset_value)] = 0.0
    return rates, kept


def _changes(points: Points) -> tuple[Float64, Bool, Bool]:
    """Return v1 - v0 as doubles; whether both are integers, subtracted as such; and whether the change is negative."""
    values = points.doubles()
    change = values[1:] - values[:-1]
    whole = ~(points.floats[1:] | points.floats[:-1])
    if whole.any():
        exact: Int64 = points.bits[1:] - points.bits[:-1]
        change = np.where(whole, exact.astype(np.float64), change)
    return change, whole, change < 0


def _wrapped(points: Points, whole: Bool, counter_max: int) -> Float64:
    """Return the change of a counter that wrapped: max - v0 + v1."""
    values = points.doubles()
    exact = counter_max - points.bits[:-1] + points.bits[1:]
    return np.where(whole, exact.astype(np.float64), float(counter_max) - values[:-1] + values[1:])


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


class AlignedSeries:
    """One series aligned with the times of all: it contributes from its first point to its last."""

    def __init__(self, points: Points, places: Slots, times: Int64, missing: Missing) -> None:
        self.points, self._places = points, places
        self._times, self._missing = times, missing
        self._first, self._stop = int(places[0]), int(places[-1]) + 1
        self._gapless = self._stop - self._first == len(places)

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
        """Return at which places its point, or the next one, is a double."""
        floats = self.points.floats
        near = np.append(floats[:-1] | floats[1:], floats[-1])
        lengths = np.diff(np.append(self._places, self._stop))
        found = np.zeros(size, np.bool_)
        found[: self._first] = floats[0]
        found[self._first : self._stop] = np.repeat(near, lengths)
        return found


class AlignedRates:
    """The rates of one series: each applies until the next, OpenTSDB's spurious first one from the group's start."""

    def __init__(self, rates: Rates, places: Slots) -> None:
        self.points = rates.points
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


_BLOCK = 1 << 16  # times aggregated together: a block's arrays fit the processor's cache
_BLOCK_VALUES = 1 << 20  # values in a block of an aggregator that keeps all


class MergedPoints(NamedTuple):
    """A group's points, and how many values of its series were interpolated."""

    points: Points
    interpolated: int


def merge(
    series: Sequence[Points | Rates],
    aggregator: str,
    scan: ScanRange,
    *,
    rate: bool = False,
    quirks: Quirks = OPENTSDB,
    check: Callable[[], None] = lambda: None,
) -> MergedPoints:
    """Merge the series of a group, in their order, over the scan range.

    With `rate` all of them are Rates, else Points. `check` is called every few milliseconds and raises an exception to
    stop the work.
    """
    how = BY_NAME[aggregator]
    with np.errstate(all="ignore"):
        times, aligned = _align_rates(series) if rate else _align_series(series, scan, how.missing)
        if not len(times):
            return MergedPoints(NO_POINTS, 0)
        stop = int(np.searchsorted(times, scan.stop_ms, "right"))
        doubles = np.ones(len(times), np.bool_) if rate else _doubles(aligned, len(times))
        step = max(64, _BLOCK_VALUES // len(aligned)) if how.needs_all else _BLOCK
        parts = [
            _aggregated(aligned, how, (first, min(first + step, stop)), doubles, quirks, check)
            for first in range(0, stop, step)
        ]
    if not parts:
        return MergedPoints(NO_POINTS, 0)
    bits = parts[0][0] if len(parts) == 1 else np.concatenate([part[0] for part in parts])
    return MergedPoints(Points(times[:stop], bits, doubles[:stop]), sum(part[1] for part in parts))


def _align_series(
    series: Sequence[Points | Rates], scan: ScanRange, missing: Missing
) -> tuple[Int64, list[AlignedSeries | AlignedRates]]:
    alive = []
    for points in series:
        assert isinstance(points, Points)
        if not len(points.times):
            continue
        early = 0 if points.times[0] >= scan.start_ms else int(np.searchsorted(points.times, scan.start_ms))
        if early < len(points.times):
            alive.append(points.at(slice(early, None)) if early else points)
    if not alive:
        return NO_POINTS.times, []
    times, places = align(alive)
    return times, [AlignedSeries(points, own, times, missing) for points, own in zip(alive, places, strict=True)]


def _align_rates(series: Sequence[Points | Rates]) -> tuple[Int64, list[AlignedSeries | AlignedRates]]:
    alive = [rates for rates in series if isinstance(rates, Rates) and len(rates.points.times)]
    if not alive:
        return NO_POINTS.times, []
    times, places = align([rates.points for rates in alive])
    return times, [AlignedRates(rates, own) for rates, own in zip(alive, places, strict=True)]


def _doubles(aligned: Sequence[AlignedSeries | AlignedRates], size: int) -> Bool:
    """Return at which times the result is a double: where a series has a double at that time or next."""
    counts = [np.count_nonzero(each.points.floats) for each in aligned]
    having = [each for each, count in zip(aligned, counts, strict=True) if count]
    if all(count == len(each.points.floats) for each, count in zip(aligned, counts, strict=True)):
        return np.ones(size, np.bool_)
    found = np.zeros(size, np.bool_)
    for each in having:
        assert isinstance(each, AlignedSeries)
        found |= each.near_doubles(size)
    return found


def _aggregated(
    aligned: Sequence[AlignedSeries | AlignedRates],
    how: Aggregator,
    part: tuple[int, int],
    doubles: Bool,
    quirks: Quirks,
    check: Callable[[], None],
) -> tuple[Int64, int]:
    """Return the bits of the results at some times, and how many values were interpolated."""
    wanted = doubles[slice(*part)]
    found: list[Numbers] = []
    interpolated = 0
    for integers in (False, True):
        if wanted.all() if integers else not wanted.any():
            continue
        fold = how.make(integers=integers, quirks=quirks)
        fold.grow(len(wanted))
        interpolated = 0
        for each in aligned:
            check()
            piece = each.part(*part, integers)
            if piece:
                fold.column(piece.first - part[0], piece.values)
                interpolated += piece.interpolated
        found.append(fold.result().view(np.int64))
    return (found[0] if len(found) == 1 else np.where(wanted, found[0], found[1])), interpolated


class CommonTags(NamedTuple):
    """Tags by ids: those that all series of a group share, and the names of the others."""

    tags: Mapping[bytes, bytes]  # ascending by tag name
    aggregated: Sequence[bytes]  # ascending


def grouped(pairs: Sequence[bytes], widths: Widths, group_by: Sequence[bytes], *, each: bool) -> list[list[int]]:
    """Group series, given by their tag pairs in order; each group is a list of places in `pairs`.

    `each`: every series is its own group. Otherwise group by the values of the tag names `group_by`.

    >>> two = [bytes.fromhex("000001000002"), bytes.fromhex("000001000001")]
    >>> grouped(two, Widths(), [bytes.fromhex("000001")], each=False), grouped(two, Widths(), [], each=False)
    ([[1], [0]], [[0, 1]])
    """
    if each:
        return [[place] for place in range(len(pairs))]
    if not group_by:
        return [list(range(len(pairs)))] if pairs else []
    groups: dict[bytes, list[int]] = {}
    wanted = frozenset(group_by)
    width, tagk = widths.pair, widths.tagk
    for place, joined in enumerate(pairs):
        values = [
            joined[at + tagk : at + width] for at in range(0, len(joined), width) if joined[at : at + tagk] in wanted
        ]
        groups.setdefault(b"".join(values), []).append(place)
    return [groups[values] for values in sorted(groups)]


def common_tags(pairs: Sequence[bytes], widths: Widths) -> CommonTags:
    """Return the common tags: the names whose value is the same in all series with the name.

    >>> both = common_tags([bytes.fromhex("000001000001000002000001"), bytes.fromhex("000001000002")], Widths())
    >>> {tagk.hex(): tagv.hex() for tagk, tagv in both.tags.items()}, [tagk.hex() for tagk in both.aggregated]
    ({'000002': '000001'}, ['000001'])
    """
    found: dict[bytes, bytes] = {}
    differing: set[bytes] = set()
    for part in _alike(pairs):
        for tagk, tagv, same in _columns(part, widths):
            if not same or found.setdefault(tagk, tagv) != tagv:
                differing.add(tagk)
    tags = {tagk: found[tagk] for tagk in sorted(found) if tagk not in differing}
    return CommonTags(tags, sorted(differing))


def _alike(pairs: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split series by their number of tags."""
    sizes = set(map(len, pairs))
    if len(sizes) < 2:
        yield pairs
        return
    for size in sizes:
        yield [one for one in pairs if len(one) == size]


def _columns(pairs: Sequence[bytes], widths: Widths) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield each tag name of series with equally many tags, with a value, and whether that is the only one."""
    if len(pairs) == 1 or len(set(pairs)) == 1:
        [joined] = set(pairs)
        for at in range(0, len(joined), widths.pair):
            yield joined[at : at + widths.tagk], joined[at + widths.tagk : at + widths.pair], True
        return
    if not pairs or not pairs[0]:
        return
    table = np.frombuffer(b"".join(pairs), np.uint8).reshape(len(pairs), -1)
    for at in range(0, table.shape[1], widths.pair):
        names, values = table[:, at : at + widths.tagk], table[:, at + widths.tagk : at + widths.pair]
        if _all_equal(names):
            yield names[0].tobytes(), values[0].tobytes(), _all_equal(values)
        else:
            for name, value in {(n.tobytes(), v.tobytes()) for n, v in zip(names, values, strict=True)}:
                yield name, value, True


def _all_equal(rows: NDArray[np.uint8]) -> bool:
    return bool((rows == rows[0]).all())
