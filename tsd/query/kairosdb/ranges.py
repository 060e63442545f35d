"""KairosDB's aggregators over buckets of time: avg, count, dev, first, gaps, last, least_squares, max, min, percentile
and sum.

A bucket begins with its first point: later points belong to it as long as they are before its end. So all points of
descending times are in one bucket.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Bool, Float64, Int64, Points, starts_of
from tsd.query.aggregate import BY_NAME
from tsd.query.kairosdb.column import Column, joined, of_doubles, of_integers
from tsd.query.kairosdb.model import BadRequest, Step
from tsd.query.kairosdb.times import Buckets, aligned
from tsd.tables.quirks import OPENTSDB

T = TypeVar("T", bound=np.generic)

KERNELS = frozenset(("avg", "max", "min", "sum"))  # aggregators that OpenTSDB's queries have too


class Ranges(NamedTuple):
    """Runs of consecutive points, one for each bucket that has any."""

    starts: Int64  # (runs + 1,): index of each run's first point, then the number of points
    begins: Int64  # (runs,): start of each bucket
    ends: Int64  # (runs,): its end, which belongs to the next one


def buckets_of(step: Step, start_ms: int, zone: tzinfo) -> Buckets:
    """Return the buckets of an aggregator in a query that starts at `start_ms`."""
    first = aligned(start_ms, step.sampling.unit, zone) if step.align_sampling else start_ms
    return Buckets(first, step.sampling, zone)


def ranges_of(times: Int64, buckets: Buckets) -> Ranges:
    """Divide points into buckets."""
    if not len(times):
        return Ranges(np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
    ascending = bool((times[1:] >= times[:-1]).all())
    if ascending and times[0] >= buckets.start_ms:
        numbers = buckets.numbers(times)
        firsts = np.append(0, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)
        found = numbers[firsts]
        return Ranges(np.append(firsts, len(times)), buckets.edges(found), buckets.edges(found + 1))
    starts, begins, ends = [], [], []
    at = 0
    while at < len(times):
        number = buckets.number(int(times[at]))
        end = buckets.edge(number + 1)
        starts.append(at)
        begins.append(buckets.edge(number))
        ends.append(end)
        beyond = np.flatnonzero(times[at + 1 :] >= end)
        at = at + 1 + int(beyond[0]) if len(beyond) else len(times)
    return Ranges(np.array([*starts, len(times)], np.int64), np.array(begins, np.int64), np.array(ends, np.int64))


def result_times(step: Step, times: Int64, ranges: Ranges) -> Int64:
    """Return the time of each bucket's result."""
    if step.align_start_time:
        return ranges.begins
    return ranges.ends if step.align_end_time else times[ranges.starts[:-1]]


def aggregate(column: Column, step: Step, ranges: Ranges) -> Column:
    """Return the results of an aggregator, except gaps."""
    starts = ranges.starts
    times = result_times(step, column.times, ranges)
    if step.name == "count":
        return of_integers(times, np.diff(starts))
    if step.name == "first":
        return column.at(starts[:-1]).with_times(times)
    if step.name == "last":
        last = column.at(starts[1:] - 1)
        return last.with_times(times) if step.align_start_time or step.align_end_time else last
    values = column.numbers()
    if step.name == "least_squares":
        return _least_squares(column.times, values, starts)
    if step.name in KERNELS:
        return of_doubles(times, _by_kernel(step.name, values, starts))
    results = _EACH[step.name](values, starts, step)
    return of_doubles(times, results)


def aggregate_all(columns: Sequence[Column], step: Step, buckets: Buckets) -> list[Column] | None:
    """Return the results of an aggregator for each of several groups, from one pass over all of them. Return None
    unless all are numbers by ascending time, from the first bucket on. Not for gaps and least_squares."""
    if any(column.texts is not None or column.nulls is not None or not len(column) for column in columns):
        return None
    whole = joined(list(columns))
    times = whole.times
    edges = starts_of([*map(len, columns)])
    heads = edges[1:-1] - 1  # the next point is another group's first
    rises = times[1:] >= times[:-1]
    rises[heads] = True
    if not rises.all() or times[edges[:-1]].min() < buckets.start_ms:
        return None
    numbers = buckets.numbers(times)
    begins = numbers[1:] != numbers[:-1]
    begins[heads] = True
    firsts = np.append(0, np.flatnonzero(begins) + 1)
    found = numbers[firsts]
    ranges = Ranges(np.append(firsts, len(times)), buckets.edges(found), buckets.edges(found + 1))
    results = aggregate(whole, step, ranges)
    cuts = np.searchsorted(firsts, edges).tolist()
    return [results.at(slice(first, stop)) for first, stop in itertools.pairwise(cuts)]


def _by_kernel(name: str, values: Float64, starts: Int64) -> Float64:
    """Return the results of one of the engine's kernels; NaN where a bucket has one."""
    count = len(starts) - 1
    kernel = BY_NAME[name].make(integers=False, quirks=OPENTSDB)
    kernel.grow(count)
    with np.errstate(all="ignore"):
        if count:
            kernel.runs(np.arange(count), starts, values)
        results = np.asarray(kernel.result(), np.float64)[:count].copy()
    if (nan := np.isnan(values)).any():
        results[np.searchsorted(starts, np.flatnonzero(nan), "right") - 1] = np.nan
    return results


def _deviations(values: Float64, starts: Int64, step: Step) -> Float64:
    """Return standard deviations, or the mean plus or minus some of them."""
    found = []
    edges = starts.tolist()
    listed = values.tolist()
    for first, stop in itertools.pairwise(edges):
        mean = power = 0.0
        for n, value in enumerate(listed[first:stop], 1):
            mean += (value - mean) / n
            power += (value * value - power) / n
        n = stop - first
        spread = (power * n - n * mean * mean) / (n - 1) if n > 1 else math.nan
        deviation = math.sqrt(spread) if spread >= 0 else 0.0
        if step.return_type == "pos_sd":
            deviation = mean + deviation * step.dev_count
        elif step.return_type == "neg_sd":
            deviation = mean - deviation * step.dev_count
        found.append(deviation)
    return np.array(found, np.float64)


def _percentiles(values: Float64, starts: Int64, step: Step) -> Float64:
    found = []
    edges = starts.tolist()
    for first, stop in itertools.pairwise(edges):
        ordered = np.sort(values[first:stop])
        size = stop - first
        place = step.percentile * (size + 1)
        whole = math.floor(place)
        if place < 1:
            found.append(float(ordered[0]))
        elif place >= size:
            found.append(float(ordered[-1]))
        else:
            lower, upper = float(ordered[whole - 1]), float(ordered[whole])
            found.append(lower + (place - whole) * (upper - lower))
    return np.array(found, np.float64)


_EACH: Mapping[str, Callable[[Float64, Int64, Step], Float64]] = {"dev": _deviations, "percentile": _percentiles}


def _least_squares(times: Int64, values: Float64, starts: Int64) -> Column:
    """Return the regression line of each bucket at its first and its last time."""
    at: list[int] = []
    found: list[float] = []
    edges = starts.tolist()
    for first, stop in itertools.pairwise(edges):
        part_times, part = times[first:stop].tolist(), values[first:stop].tolist()
        if len(part) <= 2:
            at += part_times
            found += part
            continue
        at += (part_times[0], part_times[-1])
        found += _line(part_times, part)
    return of_doubles(np.array(at, np.int64), np.array(found, np.float64))


def _line(times: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Return the regression line at the first and the last time, by the recurrence of Welford."""
    mean_x = mean_y = sum_xx = sum_xy = sum_x = sum_y = 0.0
    for n, (x, y) in enumerate(zip(map(float, times), values, strict=True)):
        if n == 0:
            mean_x, mean_y = x, y
        else:
            weight = n / (1.0 + n)
            dx, dy = x - mean_x, y - mean_y
            sum_xx += dx * dx * weight
            sum_xy += dx * dy * weight
            mean_x += dx / (1.0 + n)
            mean_y += dy / (1.0 + n)
        sum_x += x
        sum_y += y
    slope = sum_xy / sum_xx if sum_xx else math.nan
    intercept = (sum_y - slope * sum_x) / len(values)
    return intercept + slope * times[0], intercept + slope * times[-1]


MOST_GAPS = 10_000_000
GAPS_SLICE = 1 << 18  # buckets, in a few milliseconds


def gaps(
    column: Column,
    step: Step,
    buckets: Buckets,
    span: tuple[int, int],
    room: Callable[[int], None],
    check: Callable[[], None],
) -> Column:
    """Return the points, with a null for each empty bucket of a span (ms, both included); with `trim` between points.

    `room` is called with the number of nulls, and raises BadRequest if there are too many. `check` is called often, and
    raises an exception to stop the work.
    """
    if step.trims_gaps and not len(column):
        return column
    if step.trims_gaps:
        span = int(column.times.min()), int(column.times.max())
    first, last = buckets.number(span[0]), buckets.number(span[1])
    if last < first:
        return column
    if last - first > MOST_GAPS:
        raise BadRequest(f"gaps: got {last - first} buckets, wanted at most {MOST_GAPS}: use a longer sampling")
    room(last - first)
    found = ranges_of(column.times, buckets).begins
    parts = [column.times]
    for low in range(first, last + 1, GAPS_SLICE):
        check()
        begins = buckets.edges(np.arange(low, min(low + GAPS_SLICE, last + 1)))
        parts.append(begins[~np.isin(begins, found)])
    times = np.concatenate(parts)
    check()
    order = np.argsort(times, kind="stable")
    blank: Int64 = np.zeros(len(times) - len(column), np.int64)

    def merged(values: NDArray[T], nothing: NDArray[T]) -> NDArray[T]:
        check()
        return np.concatenate([values, nothing])[order]

    points = Points(
        times[order],
        merged(column.points.bits, blank),
        merged(column.points.floats, blank.astype(np.bool_)),
    )
    nulls: Bool = merged(np.zeros(len(column), np.bool_), np.ones(len(blank), np.bool_))
    if column.nulls is not None:
        nulls |= merged(column.nulls, blank.astype(np.bool_))
    texts = None if column.texts is None else merged(column.texts, np.full(len(blank), None, object))
    return Column(points, texts, nulls)
