"""Merges the series of a group: rates, alignment of times, aggregation, groups and common tags (docs/compat/query.md
§8, §10 to §12).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsd.codec.names import Widths
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


GroupValues: TypeAlias = NDArray[np.bytes_ | np.uint64]

_NUMBER_BYTES = 8  # longest values that are compared as numbers


class CommonTags(NamedTuple):
    """Tags by ids: those that all series of a group share, and the names of the others."""

    tags: Mapping[bytes, bytes]  # ascending by tag name
    aggregated: Sequence[bytes]  # ascending


def grouped(series_pairs: Sequence[bytes], widths: Widths, group_by: Sequence[bytes], *, each: bool) -> list[Int64]:
    """Group series, given by their tag pairs in order; each group is the places of its series in `series_pairs`.

    `each`: every series is its own group. Otherwise group by the values of the tag names `group_by`.

    >>> two = [bytes.fromhex("000001000002"), bytes.fromhex("000001000001")]
    >>> [group.tolist() for group in grouped(two, Widths(), [bytes.fromhex("000001")], each=False)]
    [[1], [0]]
    >>> [group.tolist() for group in grouped(two, Widths(), [], each=False)]
    [[0, 1]]
    """
    if each:
        return list(np.arange(len(series_pairs)).reshape(-1, 1))
    if not group_by or not series_pairs:
        return [np.arange(len(series_pairs))] if series_pairs else []
    values = group_values(series_pairs, widths, group_by)
    if values is not None:
        found, group_of = np.unique(values, return_inverse=True)
        order = np.argsort(group_of, kind="stable")
        return np.split(order, np.cumsum(np.bincount(group_of, minlength=len(found)))[:-1])
    groups: dict[bytes, list[int]] = {}
    width, tagk = widths.pair, widths.tagk
    for place, joined in enumerate(series_pairs):
        own = [
            joined[at + tagk : at + width] for at in range(0, len(joined), width) if joined[at : at + tagk] in group_by
        ]
        groups.setdefault(b"".join(own), []).append(place)
    return [np.array(groups[own]) for own in sorted(groups)]


def group_values(
    series_pairs: Sequence[bytes], widths: Widths, group_by: Collection[bytes], *, compiled: bool = HAS_LOOP
) -> GroupValues | None:
    """Return the joined values of some tag names of each series, in their order; None if the series have different tag
    names, or lack one of them."""
    size = len(series_pairs[0])
    if compiled and len(group_by) * widths.tagv <= _NUMBER_BYTES:
        every = list(series_pairs)
        same = _same_tags(every, widths)
        if same is None or not same.names.all():
            return None
        first = series_pairs[0]
        places = [at + widths.tagk for at in range(0, size, widths.pair) if first[at : at + widths.tagk] in group_by]
        if len(places) != len(group_by):
            return None
        numbers = np.empty(len(every), np.uint64)
        _loops.values_as_numbers(every, np.array(places, np.int64), widths.tagv, numbers)
        return numbers
    if not size or set(map(len, series_pairs)) != {size}:
        return None
    table = np.frombuffer(b"".join(series_pairs), np.uint8).reshape(len(series_pairs), size)
    chosen = []
    for at in range(0, size, widths.pair):
        names = table[:, at : at + widths.tagk]
        if not _all_equal(names):
            return None
        if names[0].tobytes() in group_by:
            chosen.append(table[:, at + widths.tagk : at + widths.pair])
    if len(chosen) != len(group_by):
        return None
    values = np.concatenate(chosen, axis=1)
    length = values.shape[1]
    if length > _NUMBER_BYTES:
        return values.view(f"S{length}")[:, 0]
    wide = np.zeros((len(values), _NUMBER_BYTES), np.uint8)
    wide[:, _NUMBER_BYTES - length :] = values
    return wide.view(">u8")[:, 0].astype(np.uint64)


class _SameTags(NamedTuple):
    """Which tags of the first of some series with equally many tags all others have in the same place."""

    names: Bool
    values: Bool


def _same_tags(series_pairs: list[bytes], widths: Widths) -> _SameTags | None:
    """Compare series; None if they have different numbers of tags, or none."""
    count, rest = divmod(len(series_pairs[0]), widths.pair)
    names, values = np.empty(count, np.uint8), np.empty(count, np.uint8)
    if not count or rest or not _loops.same_tags(series_pairs, widths.pair, widths.tagk, names, values):
        return None
    return _SameTags(names.view(np.bool_), values.view(np.bool_))


def common_tags(series_pairs: Sequence[bytes], widths: Widths, *, compiled: bool = HAS_LOOP) -> CommonTags:
    """Return the common tags: the names whose value is the same in all series with the name.

    >>> both = common_tags([bytes.fromhex("000001000001000002000001"), bytes.fromhex("000001000002")], Widths())
    >>> {tagk.hex(): tagv.hex() for tagk, tagv in both.tags.items()}, [tagk.hex() for tagk in both.aggregated]
    ({'000002': '000001'}, ['000001'])
    """
    if len(series_pairs) == 1:
        only = widths.tags(series_pairs[0])
        if len(only) * widths.pair == len(series_pairs[0]):  # no tag name is repeated, as in a damaged key
            return CommonTags(dict(sorted(only.items())), [])
    found: dict[bytes, bytes] = {}
    differing: set[bytes] = set()
    same = _same_tags(list(series_pairs), widths) if compiled and series_pairs else None
    if same is not None and same.names.all():
        columns = _first_tags(series_pairs[0], widths, same.values)
    else:
        columns = chain.from_iterable(_columns(part, widths) for part in _alike(series_pairs))
    for tagk, tagv, is_same in columns:
        if not is_same or found.setdefault(tagk, tagv) != tagv:
            differing.add(tagk)
    tags = {tagk: found[tagk] for tagk in sorted(found) if tagk not in differing}
    return CommonTags(tags, sorted(differing))


def _first_tags(pairs: bytes, widths: Widths, same: Bool) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield what `_columns` yields of series that all have the tag names of the first one, given by its pairs."""
    for place, is_same in enumerate(same.tolist()):
        at = place * widths.pair
        yield pairs[at : at + widths.tagk], pairs[at + widths.tagk : at + widths.pair], is_same


def _alike(series_pairs: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split series by their number of tags."""
    sizes = set(map(len, series_pairs))
    if len(sizes) < 2:
        yield series_pairs
        return
    for size in sizes:
        yield [one for one in series_pairs if len(one) == size]


def _columns(series_pairs: Sequence[bytes], widths: Widths) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield each tag name of series with equally many tags, with a value, and whether that is the only one."""
    if series_pairs and series_pairs.count(series_pairs[0]) == len(series_pairs):
        joined = series_pairs[0]
        for at in range(0, len(joined), widths.pair):
            yield joined[at : at + widths.tagk], joined[at + widths.tagk : at + widths.pair], True
        return
    if not series_pairs or not series_pairs[0]:
        return
    table = np.frombuffer(b"".join(series_pairs), np.uint8).reshape(len(series_pairs), -1)
    for at in range(0, table.shape[1], widths.pair):
        names, values = table[:, at : at + widths.tagk], table[:, at + widths.tagk : at + widths.pair]
        if _all_equal(names):
            yield names[0].tobytes(), values[0].tobytes(), _all_equal(values)
        else:
            for name, value in {(n.tobytes(), v.tobytes()) for n, v in zip(names, values, strict=True)}:
                yield name, value, True


def _all_equal(rows: NDArray[np.uint8]) -> bool:
    return bool((rows[-1] == rows[0]).all() and (rows == rows[0]).all())
