"""Buckets of downsamplers: which points belong together, and the results of rows (docs/compat/query.md §9).

Series that are sent together have points in the same buckets. Their timestamps are then stored once, and their values
are a matrix with one row per series, built without sorting.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tsd.codec.dates import UNITS_MS
from tsd.codec.points import Batch, Bool, Float64, Int64, doubles_as_points, spread, starts_of
from tsd.codec.putline import HOUR_MS
from tsd.query import calendar
from tsd.query.columns import Kind, SeriesColumns
from tsd.query.model import Calendar, Downsample
from tsd.tables.reading import ScanRange

MANY_STEPS = 500  # they take 10 ms
_UNKNOWN = -(1 << 62)
_SMALL = 1 << 16  # series: numpy sorts numbers of 16 bits in linear time


class Runs(NamedTuple):
    """Consecutive points of one series in one bucket."""

    series: Int64  # (runs,)
    stamps: Int64  # (runs,): the bucket's first moment
    starts: Int64  # (runs + 1,): where each run begins among the points


class Buckets(Protocol):
    """A division of time into buckets."""

    within_hours: bool  # no bucket spans two hours
    span: tuple[int, int]  # ms: points before the first or from the second on are skipped

    def labels(self, batch: Batch) -> Int64:
        """Return a number for each point, equal for two points of a series only if they share a bucket."""

    def stamps(self, labels: Int64) -> Int64:
        """Return the first moments of buckets, in ms."""

    def filled(self) -> Int64 | None:
        """Return the stamps of all buckets that a fill adds to every series; None if it adds none."""

    def filled_count(self) -> int:
        """Return about how many stamps `filled` returns."""


_FOREVER = 1 << 62


class FixedBuckets:
    """Buckets of one length, aligned with the epoch."""

    def __init__(self, interval_ms: int, scan: ScanRange) -> None:
        self._interval_ms, self._scan = interval_ms, scan
        self.within_hours = HOUR_MS % interval_ms == 0
        self.span = (-(-scan.start_ms // interval_ms) * interval_ms, _FOREVER)

    def labels(self, batch: Batch) -> Int64:
        return batch.times // self._interval_ms

    def stamps(self, labels: Int64) -> Int64:
        return labels * self._interval_ms

    def filled(self) -> Int64:
        first, stop = (time_ms // self._interval_ms for time_ms in (self._scan.start_ms, self._scan.stop_ms))
        return np.arange(first, stop, dtype=np.int64) * self._interval_ms

    def filled_count(self) -> int:
        return self._scan.stop_ms // self._interval_ms - self._scan.start_ms // self._interval_ms


class SingleBucket:
    """One bucket: all points in [start, end), stamped start."""

    within_hours = False

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self.span = (start_ms, end_ms)

    def labels(self, batch: Batch) -> Int64:
        return np.zeros(len(batch.times), np.int64)

    def stamps(self, labels: Int64) -> Int64:
        return labels + self.span[0]

    def filled(self) -> None:
        return None

    def filled_count(self) -> int:
        return 0


class CalendarBuckets:
    """Buckets by wall clock. The first point of each series decides where its first bucket starts."""

    def __init__(self, spec: Calendar, scan: ScanRange) -> None:
        self._spec, self._scan = spec, scan
        self.within_hours = False
        base = calendar.base(scan.start_ms, spec)
        self.span = (base if base == scan.start_ms else calendar.after(base, spec), _FOREVER)
        self._edges: dict[
            int, Int64
        ] = {}  # first bucket's start → starts of it and of later buckets, extended on demand
        self._first_of = np.empty(0, np.int64)  # of each series: the start of its first bucket

    def labels(self, batch: Batch) -> Int64:
        """Return the stamps themselves."""
        lengths = np.diff(batch.starts)
        rows = np.flatnonzero(lengths)
        firsts = self._first_buckets(batch, rows)
        if self._spec.unit in calendar.EXACT:
            step = self._spec.number * UNITS_MS[self._spec.unit]
            start = np.repeat(firsts, lengths[rows])
            into: Int64 = np.maximum(batch.times - start, 0)
            return start + into // step * step
        labels = np.empty(len(batch.times), np.int64)
        for first in np.unique(firsts).tolist():
            self._label(batch, rows[firsts == first], first, labels)
        return labels

    def _label(self, batch: Batch, rows: Int64, first: int, labels: Int64) -> None:
        """Write the labels of rows of series whose first bucket starts at `first`."""
        begins, ends = batch.starts[rows], batch.starts[rows + 1]
        edges = self._edges_until(first, int(batch.times[ends - 1].max()))
        low, high = (_started(edges, batch.times[at]) for at in (begins, ends - 1))
        labels[spread(begins, ends - begins)] = np.repeat(low, ends - begins)
        for row in np.flatnonzero(low != high).tolist():
            part = slice(begins[row], ends[row])
            labels[part] = _started(edges, batch.times[part])

    def _first_buckets(self, batch: Batch, rows: Int64) -> Int64:
        """Return where the first bucket of each row's series starts. For a new series, its first point decides."""
        series = batch.series[rows]
        missing = (int(series.max()) if len(series) else -1) + 1 - len(self._first_of)
        if missing > 0:
            self._first_of = np.append(self._first_of, np.full(missing, _UNKNOWN))
        for place in np.flatnonzero(self._first_of[series] == _UNKNOWN).tolist():
            if self._first_of[series[place]] == _UNKNOWN:
                time_ms = int(batch.times[batch.starts[rows[place]]])
                self._first_of[series[place]] = calendar.base(time_ms, self._spec)
        return self._first_of[series]

    def _edges_until(self, first: int, time_ms: int) -> Int64:
        """Return the starts of buckets from `first` on, up to one after `time_ms`."""
        edges = self._edges.get(first, np.array([first]))
        if edges[-1] <= time_ms:
            edges = np.append(edges, steps(int(edges[-1]), time_ms, self._spec)[1:])
        self._edges[first] = edges
        return edges

    def stamps(self, labels: Int64) -> Int64:
        return labels

    def filled(self) -> Int64:
        first, stop = (calendar.base(time_ms, self._spec) for time_ms in (self._scan.start_ms, self._scan.stop_ms))
        edges = steps(first, stop, self._spec)
        return edges[edges < stop] if stop > first else edges[:1]

    def filled_count(self) -> int:
        return (self._scan.stop_ms - self._scan.start_ms) // (self._spec.number * UNITS_MS[self._spec.unit]) + 1


def _started(edges: Int64, times: Int64) -> Int64:
    """Return the start of the bucket of each time. The first bucket may start after its first point where clocks
    change."""
    return edges[np.maximum(np.searchsorted(edges, times, "right") - 1, 0)]


def steps(start_ms: int, past_ms: int, spec: Calendar) -> Int64:
    """Return starts of buckets from `start_ms` on, up to one after `past_ms`."""
    if spec.unit in calendar.EXACT:
        step = calendar.after(start_ms, spec) - start_ms
        return np.arange(start_ms, past_ms + step + 1, step, dtype=np.int64)
    edges = [start_ms]
    while edges[-1] <= past_ms:
        edges.append(calendar.after(edges[-1], spec))
    return np.array(edges)


def has_many_steps(spec: Downsample | None, scan: ScanRange) -> bool:
    """Return whether the starts of calendar buckets may take long: each is computed from the one before."""
    if spec is None or spec.calendar is None or spec.calendar.unit in calendar.EXACT:
        return False
    step_ms = spec.calendar.number * UNITS_MS[spec.calendar.unit]
    return scan.stop_ms - scan.start_ms > MANY_STEPS * step_ms


def buckets_of(spec: Downsample, query_start_ms: int, query_end_ms: int, scan: ScanRange) -> Buckets:
    """Return the buckets of a downsampler. Raise BadQuery for a zone that does not exist."""
    if spec.is_all:
        return SingleBucket(query_start_ms, query_end_ms)
    return CalendarBuckets(spec.calendar, scan) if spec.calendar else FixedBuckets(spec.interval_ms, scan)


def runs_of(batch: Batch, buckets: Buckets) -> Runs:
    """Return the runs of a batch, in its order."""
    points = len(batch.times)
    if not points:
        return Runs(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1, np.int64))
    labels = buckets.labels(batch)
    fresh = np.empty(points, np.bool_)
    np.not_equal(labels[1:], labels[:-1], out=fresh[1:])
    fresh[batch.starts[batch.starts < points]] = True
    at = np.flatnonzero(fresh)
    in_rows = np.diff(np.searchsorted(at, batch.starts))
    series = np.repeat(batch.series, in_rows).astype(np.int64)
    return Runs(series, buckets.stamps(labels[at]), np.append(at, points))


def within(batch: Batch, span: tuple[int, int]) -> Batch:
    """Return the points in a span of time."""
    low, high = span
    if not len(batch.times) or (low <= batch.times.min() and batch.times.max() < high):
        return batch
    kept = (batch.times >= low) & (batch.times < high)
    starts = starts_of(kept)[batch.starts]
    return Batch(batch.series, starts, batch.times[kept], batch.bits[kept], batch.floats[kept])


def by_series(batch: Batch) -> Batch:
    """Join the rows of each series."""
    order = np.argsort(batch.series, kind="stable")
    series = batch.series[order]
    fresh = np.append(True, series[1:] != series[:-1])
    if fresh.all():
        return batch
    lengths = np.diff(batch.starts)[order]
    starts = starts_of(lengths)
    joined = Batch(series[fresh], np.append(starts[:-1][fresh], starts[-1]), batch.times, batch.bits, batch.floats)
    if (order[1:] > order[:-1]).all():
        return joined
    index = spread(batch.starts[:-1][order], lengths)
    return joined._replace(times=batch.times[index], bits=batch.bits[index], floats=batch.floats[index])


class Bucketed(NamedTuple):
    """The buckets of some rows, row by row, ascending in each; a row may have none.

    If all rows have the same buckets, `stamps` are those of one row, otherwise those of all.
    """

    starts: Int64  # (rows + 1,): where the buckets of each row begin among all
    stamps: Int64  # ms: each bucket's first moment
    values: Float64  # (buckets,)

    @property
    def is_even(self) -> bool:
        """Whether all rows have the same buckets."""
        rows = len(self.starts) - 1
        return rows > 0 and len(self.stamps) * rows == len(self.values)

    def flat_stamps(self) -> Int64:
        """Return the stamp of every bucket.

        >>> bucketed(np.array([0, 1]), np.array([60, 60]), np.array([1.0, 2.0]), 2).flat_stamps().tolist()
        [60, 60]
        """
        return np.tile(self.stamps, len(self.starts) - 1) if self.is_even else self.stamps

    def between(self, first: int, stop: int) -> "Bucketed":
        """Return the buckets of the rows from `first` to before `stop`."""
        starts = self.starts[first : stop + 1] - self.starts[first]
        part = slice(int(self.starts[first]), int(self.starts[stop]))
        if self.is_even:
            return Bucketed(starts, self.stamps, self.values[part])
        stamps = self.stamps[part]
        return Bucketed(starts, stamps if stop == first + 1 else _shared(starts, stamps), self.values[part])

    def hours(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows of one hour: first, and stop."""
        rows = len(self.starts) - 1
        if self.is_even or not len(self.values):
            yield 0, rows
            return
        firsts = self.stamps[np.minimum(self.starts[:-1], len(self.stamps) - 1)] // HOUR_MS
        yield from pairwise([0, *(np.flatnonzero(np.diff(firsts)) + 1).tolist(), rows])

    def picked(self, rows: Bool) -> "Bucketed":
        """Return the buckets of some rows."""
        if rows.all():
            return self
        if self.is_even and rows.any():
            values = self.values.reshape(len(rows), -1)[rows]
            starts = np.arange(len(values) + 1, dtype=np.int64) * len(self.stamps)
            return Bucketed(starts, self.stamps, values.reshape(-1))
        lengths = np.diff(self.starts)
        kept = np.repeat(rows, lengths)
        starts = starts_of(lengths[rows])
        stamps = self.stamps[:0] if self.is_even else self.stamps[kept]
        return Bucketed(starts, stamps, self.values[kept])


def bucketed(rows: Int64, stamps: Int64, values: Float64, count: int) -> Bucketed:
    """Build the buckets of `count` rows from each bucket's row, ascending, stamp and value."""
    starts = starts_of(np.bincount(rows, minlength=count))
    return Bucketed(starts, _shared(starts, stamps), values)


def _shared(starts: Int64, stamps: Int64) -> Int64:
    """Return the stamps of one row if all rows have the same, otherwise all stamps."""
    rows, each = len(starts) - 1, int(starts[1] - starts[0]) if len(starts) > 1 else 0
    if each and each * rows == len(stamps) and (np.diff(starts) == each).all():
        table = stamps.reshape(rows, each)
        if (table == table[0]).all():
            first: Int64 = table[0].copy()
            return first
    return stamps


def joined(parts: Sequence[Bucketed]) -> Bucketed:
    """Join rows of one hour."""
    parts = [part for part in parts if len(part.starts) > 1]
    if not parts:
        return Bucketed(np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))
    first = parts[0]
    if all(part.is_even and np.array_equal(part.stamps, first.stamps) for part in parts):
        stamps = first.stamps
    else:
        stamps = np.concatenate([part.flat_stamps() for part in parts])
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    return Bucketed(starts_of(lengths), stamps, np.concatenate([part.values for part in parts]))


class SeriesBuckets(NamedTuple):
    """Buckets of rows, with the series of each row."""

    series: Int64  # (rows,)
    buckets: Bucketed


def table_of(parts: Sequence[SeriesBuckets], series_count: int) -> SeriesColumns | None:
    """Return the points of each series by number, if all parts are even, each series has a row in every hour, and hours
    do not overlap; else None."""
    hours: dict[int, list[SeriesBuckets]] = {}  # by their first stamp
    for part in parts:
        if not len(part.series):
            continue
        if not part.buckets.is_even or not len(part.buckets.stamps):
            return None
        hours.setdefault(int(part.buckets.stamps[0]), []).append(part)
    if not hours or not all(_is_whole(hours[first], series_count) for first in hours):
        return None
    order = sorted(hours)
    stamps = np.concatenate([hours[first][0].buckets.stamps for first in order])
    if (stamps[1:] <= stamps[:-1]).any():
        return None
    table, every = np.empty((series_count, len(stamps)), np.float64), np.arange(series_count)
    at = 0
    for first in order:
        width = len(hours[first][0].buckets.stamps)
        for series, buckets in hours[first]:
            rows = slice(None) if len(series) == series_count and not np.count_nonzero(series != every) else series
            table[rows, at : at + width] = buckets.values.reshape(-1, width)  # a slice takes a fifth of the time
        at += width
    return SeriesColumns.table(stamps, table.view(np.int64))


def _is_whole(parts: Sequence[SeriesBuckets], series_count: int) -> bool:
    """Return whether the parts of an hour have the same buckets, and each series once."""
    stamps = parts[0].buckets.stamps
    numbers = np.concatenate([part.series for part in parts])
    return (
        len(numbers) == series_count
        and all(np.array_equal(part.buckets.stamps, stamps) for part in parts[1:])
        and bool((np.bincount(numbers, minlength=series_count) == 1).all())
    )


def by_series_of(parts: Sequence[SeriesBuckets], series_count: int) -> SeriesColumns:
    """Return the points of each series by number. The rows of a series are in order."""
    series = _concatenated([part.series for part in parts])
    lengths = _concatenated([np.diff(part.buckets.starts) for part in parts])
    stamps = _concatenated([part.buckets.flat_stamps() for part in parts])
    values = _concatenated([part.buckets.values for part in parts])
    if (table := _table_by_hour(series, lengths, stamps, values, series_count)) is not None:
        return table
    if np.count_nonzero(series[1:] < series[:-1]):
        order = stable_order(series, series_count)
        begins = (np.cumsum(lengths) - lengths)[order]
        series, lengths = series[order], lengths[order]
        index = spread(begins, lengths)
        stamps, values = stamps[index], values[index]
    bounds = starts_of(lengths)[np.searchsorted(series, np.arange(series_count + 1))]
    return SeriesColumns(doubles_as_points(stamps, values), bounds)


def stable_order(numbers: NDArray[np.integer[Any]], count: int) -> NDArray[np.intp]:
    """Return the stable order by numbers below `count`, such as those of series. They often come in ascending runs, one
    for each hour: these are merged, many times faster than `tsd.codec.points.series_order` sorts them."""
    return np.argsort(numbers.astype(np.uint16) if count <= _SMALL else numbers, kind="stable")


def _table_by_hour(
    series: Int64, lengths: Int64, stamps: Int64, values: Float64, series_count: int
) -> SeriesColumns | None:
    """Return the points of each series by number, if each hour has a row of each series, in order, with the same
    stamps; else None."""
    hours, width = len(series) // series_count, int(lengths[0]) if len(lengths) else 0
    if series_count < 2 or not hours * width or hours * series_count != len(series):
        return None
    if np.count_nonzero(lengths != width) or np.count_nonzero(
        series.reshape(hours, series_count) != np.arange(series_count)
    ):
        return None
    each = stamps.reshape(hours, series_count, width)
    times = each[:, 0].reshape(-1)
    if np.count_nonzero(each != each[:, :1]) or np.count_nonzero(times[1:] <= times[:-1]):
        return None
    table = values.reshape(hours, series_count, width).transpose(1, 0, 2).reshape(series_count, -1)
    return SeriesColumns.table(times, table.view(np.int64))


def _concatenated(arrays: Sequence[NDArray[Kind]]) -> NDArray[Kind]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
