"""Merges the series of a group: rates, alignment of times, and aggregation (docs/compat/query.md §10 to §12)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import NO_POINTS, Bool, Float64, Int64, Points, doubles_as_points
from tsd.query.aggregate import BY_NAME, Aggregator, Numbers
from tsd.query.align import Aligned, Rates, align_columns, align_rates, doubles_of
from tsd.query.columns import CHUNK, Chosen, SeriesColumns, rows_at
from tsd.query.model import PLAIN_RATE, RateOptions
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.same_times import summed_table
from tsd.tables.quirks import OPENTSDB, Quirks
from tsd.tables.reading import ScanRange

if HAS_LOOP:
    from tsd.query import _loops


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
        rates, kept = _rates(_Values.of(with_origin), np.diff(with_origin.times) / 1000.0, options)
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
        rates, _ = _rates(_Values.of(points), np.diff(points.times) / 1000.0, PLAIN_RATE)
        first = points.at(slice(0, 1)).doubles() / (points.times[:1] / 1000.0)
    return Rates(float(first[0]) if quirks.rate_from_1970 else None, doubles_as_points(points.times[1:], rates))


def rate_table(
    chosen: Chosen, options: RateOptions, start_ms: int, check: Callable[[], None] = lambda: None
) -> Chosen | None:
    """Return what `rate` returns for several series that all have the same times; None for other series, and if a rate
    is dropped. None of these rates is the spurious first one: that shows only before another series starts."""
    columns, firsts = chosen.columns, chosen.columns.bounds[chosen.numbers]
    widths = columns.bounds[chosen.numbers + 1] - firsts
    if len(firsts) < 2 or (widths != widths[0]).any():
        return None
    width = int(widths[0])
    times = columns.between(int(firsts[0]), int(firsts[0]) + width).times
    early = int(np.searchsorted(times, start_ms))
    if width - early < 2 or not (columns.shares_times or columns.have_times(firsts, times)):
        return None
    times = times[early:]
    seconds = np.diff(times) / 1000.0
    rates = np.empty((len(firsts), len(seconds)))
    each = max(1, CHUNK // width)
    with np.errstate(all="ignore"):
        for at in range(0, len(firsts), each):
            check()
            part = firsts[at : at + each]
            doubles = columns.numbers(part, early, width, width, integers=False).view(np.float64)
            bits, floats = (
                rows_at(columns.bits, part, early, width, width),
                rows_at(columns.floats, part, early, width, width),
            )
            # `rate` also drops the rate since 1970, or since an early point. Then it shows no other first rate.
            if options.counter and options.drop_resets and (early or (doubles[:, 0] < 0).any()):
                return None
            rates[at : at + each], kept = _rates(_Values(doubles, bits, floats), seconds, options)
            if not kept.all():
                return None
    return Chosen(SeriesColumns.table(times[1:], rates.view(np.int64)), np.arange(len(firsts)))


class _Values(NamedTuple):
    """Values at ascending times; arrays of (times,) or (series, times)."""

    doubles: Float64
    bits: Int64
    floats: Bool

    @classmethod
    def of(cls, points: Points) -> "_Values":
        """Return the values of points."""
        return cls(points.doubles(), points.bits, points.floats)

    def changes(self) -> tuple[Float64, Bool]:
        """Return v1 - v0 of neighbours as doubles, and whether both are integers, which are subtracted as such."""
        change = self.doubles[..., 1:] - self.doubles[..., :-1]
        whole = ~(self.floats[..., 1:] | self.floats[..., :-1])
        if whole.any():
            exact: Int64 = self.bits[..., 1:] - self.bits[..., :-1]
            change = np.where(whole, exact.astype(np.float64), change)
        return change, whole

    def wrapped(self, counter_max: int, whole: Bool) -> Float64:
        """Return the change of a counter that wrapped: max - v0 + v1."""
        exact = counter_max - self.bits[..., :-1] + self.bits[..., 1:]
        change = float(counter_max) - self.doubles[..., :-1] + self.doubles[..., 1:]
        return np.where(whole, exact.astype(np.float64), change)


def _rates(values: _Values, seconds: Float64, options: RateOptions) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the rate of each pair of neighbours, and which of them are shown."""
    change, whole = values.changes()
    kept = np.ones(change.shape, np.bool_)
    if not options.counter or not (fell := change < 0).any():
        return change / seconds, kept
    if options.drop_resets:
        return change / seconds, ~fell
    rates = np.where(fell, values.wrapped(options.counter_max, whole), change) / seconds
    if options.reset_value > 0:
        rates[fell & (rates > options.reset_value)] = 0.0
    return rates, kept


_BLOCK = 1 << 16  # times aggregated together: a block's arrays fit the processor's cache
_BLOCK_VALUES = 1 << 20  # values in a block of an aggregator that keeps all


class MergedPoints(NamedTuple):
    """A group's points, and how many values of its series were interpolated."""

    points: Points
    interpolated: int


def merge(
    series: Chosen | Sequence[Rates],
    aggregator: str,
    scan: ScanRange,
    *,
    quirks: Quirks = OPENTSDB,
    check: Callable[[], None] = lambda: None,
) -> MergedPoints:
    """Merge the series of a group, in their order, over the scan range.

    `check` is called every few milliseconds and raises an exception to
    stop the work.
    """
    if isinstance(series, Chosen) and len(series.numbers) == 1:
        only = merge_only(series.columns[int(series.numbers[0])], aggregator, scan)
        if only is not None:
            return MergedPoints(only, 0)
    if isinstance(series, Chosen) and (summed := summed_table(series, aggregator, scan)) is not None:
        return MergedPoints(summed, 0)
    how = BY_NAME[aggregator]
    with np.errstate(all="ignore"):
        if isinstance(series, Chosen):
            times, aligned = align_columns(series, scan, how.missing)
        else:
            times, aligned = align_rates(series)
        if not len(times):
            return MergedPoints(NO_POINTS, 0)
        stop = int(np.searchsorted(times, scan.stop_ms, "right"))
        doubles = doubles_of(aligned, len(times))
        step = max(64, _BLOCK_VALUES // sum([each.count for each in aligned])) if how.needs_all else _BLOCK
        parts = [
            _aggregated(aligned, how, (first, min(first + step, stop)), doubles, quirks, check)
            for first in range(0, stop, step)
        ]
    if not parts:
        return MergedPoints(NO_POINTS, 0)
    bits = parts[0][0] if len(parts) == 1 else np.concatenate([part[0] for part in parts])
    return MergedPoints(Points(times[:stop], bits, doubles[:stop]), sum(part[1] for part in parts))


_SUMS = frozenset(("sum", "zimsum", "pfsum", "avg"))
_EXTREMES = frozenset(("min", "mimmin", "max", "mimmax"))
_CHOICES = frozenset(("none", "first", "last", "mult"))


def keeps_only(aggregator: str) -> bool | None:
    """Return whether the points of a group's only series are aggregated to sums, None if not to such values as they
    have. NaN, -0.0 and infinite values may change, and integers among doubles."""
    if aggregator in _SUMS:
        return True
    return False if aggregator in _EXTREMES or aggregator in _CHOICES else None


def merge_only(points: Points, aggregator: str, scan: ScanRange, *, compiled: bool = HAS_LOOP) -> Points | None:
    """Return the points of a group's only series as aggregated; None if that takes more than a look at the values.
    `compiled`: look at them with the compiled loop."""
    is_sum = aggregator in _SUMS
    is_own = compiled and is_sum and _loops.are_own_sums(points.bits, points.floats.view(np.uint8))
    doubles = 0 if is_own else np.count_nonzero(points.floats)
    if doubles and doubles < len(points.floats):  # an integer before a double becomes one
        return None
    times = points.times
    if len(times) and (times[0] < scan.start_ms or times[-1] > scan.stop_ms):
        points = points.at(slice(times.searchsorted(scan.start_ms), times.searchsorted(scan.stop_ms, "right")))
    if is_sum:
        if not doubles:
            return points
        sums = points.bits.view(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
        return Points(points.times, sums.view(np.int64), points.floats)
    if aggregator in _EXTREMES:
        return None if doubles and np.isinf(points.doubles()).any() else points
    return points if aggregator in _CHOICES else None


def _aggregated(
    aligned: Sequence[Aligned],
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
        kernel = how.make(integers=integers, quirks=quirks)
        kernel.grow(len(wanted))
        interpolated = sum([each.add_to(kernel, *part, integers=integers, check=check) for each in aligned])
        found.append(kernel.result().view(np.int64))
    return (found[0] if len(found) == 1 else np.where(wanted, found[0], found[1])), interpolated
