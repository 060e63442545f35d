"""Downsamples batches of points, or joins them, to the points of each series.

Memory grows with the answer, not with the points read: only the state of each bucket is kept. Percentiles also keep
the values of open buckets.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tsd.codec.packing.cell import HAS_PACKING_LOOP
from tsd.codec.points import NO_POINTS, Batch, Bool, Float64, Int64, Points, doubles_as_points, spread, starts_of
from tsd.errors import BadQuery
from tsd.query.aggregate import BY_NAME, Kernel, Percentile, Slots
from tsd.query.buckets import (
    Bucketed,
    Runs,
    SeriesBuckets,
    bucketed,
    buckets_of,
    by_series,
    by_series_of,
    runs_of,
    stable_order,
    table_of,
    within,
)
from tsd.query.columns import SeriesColumns
from tsd.query.model import Downsample, Fill
from tsd.query.row_buckets import FUNCTIONS, HAS_LOOP, buckets_of_batch, buckets_of_cells, has_loop_for
from tsd.tables.quirks import OPENTSDB, Quirks
from tsd.tables.reading import BucketPage, HourTable, ScanRange

_NEVER = -(1 << 62)
FEW_VALUES = 16384  # of a page: with fewer, sorting its rows at the end is faster than a table of the hours
FEW_ROWS = 8  # of an hour: with fewer, sorting all buckets at the end is faster than a table of the hours


class Downsampler:
    """One function over buckets of one kind, for all series of a sub query (docs/compat/query.md §9).

    Raise BadQuery for a zone that does not exist, and for a fill policy that OpenTSDB cannot apply.
    `compiled`: use the compiled loop for functions that it knows.
    """

    def __init__(
        self,
        spec: Downsample,
        query_start_ms: int,
        query_end_ms: int,
        scan: ScanRange,
        *,
        quirks: Quirks = OPENTSDB,
        compiled: bool = HAS_LOOP,
        hours_in_parts: bool = False,
    ) -> None:
        """`hours_in_parts`: rows of one series and hour may come in several batches, so that a bucket continues."""
        self._fill, self._scan, self._quirks = spec.fill, scan, quirks
        self._buckets = buckets_of(spec, query_start_ms, query_end_ms, scan)
        self._by_rows = self._buckets.within_hours and not hours_in_parts  # each bucket is in one row
        self._uses_loop = compiled and self._by_rows and has_loop_for(spec.function)
        self._spec = spec
        self._parts: list[SeriesBuckets] = []  # by rows: results of each page
        self._parts_size = 0
        self._kernel = self._new_kernel()  # for buckets of several rows
        self._size = self._capacity = 0  # slots: buckets of series that have a point
        self._slots: list[tuple[Int64, Int64]] = []  # series and stamps of new slots, batch by batch
        self._last_stamps, self._last_slots = np.empty(0, np.int64), np.empty(0, np.int64)  # of each series

    @property
    def span(self) -> tuple[int, int]:
        """Milliseconds: points before the first or from the second on are in no bucket."""
        return self._buckets.span

    def _new_kernel(self) -> Kernel:
        return BY_NAME[self._spec.function].make(integers=False, quirks=self._quirks)

    def feed(self, batch: Batch) -> Bucketed | None:
        """Add a batch. Return the buckets of its rows if they are complete."""
        if self._by_rows:
            buckets = self.buckets_of_rows(batch)
            self.feed_buckets(batch.series, buckets)
            return buckets
        batch = within(batch, self._buckets.span)
        if not len(batch.times):
            return None
        batch = by_series(batch)
        runs = runs_of(batch, self._buckets)
        slots = self._slots_of(runs)
        values = Points(batch.times, batch.bits, batch.floats).doubles()
        with np.errstate(all="ignore"):
            self._kernel.runs(slots, runs.starts, values)
            if isinstance(self._kernel, Percentile):
                self._kernel.compute_closed(self._open())
        return None

    def buckets_of_rows(self, batch: Batch) -> Bucketed:
        """Return the buckets of each row of a batch, if each bucket is in one row. May be called in several threads."""
        batch = within(batch, self._buckets.span)
        count = len(batch.series)
        if self._uses_loop:
            return buckets_of_batch(batch, self._spec.interval_ms, self._spec.function)
        runs = runs_of(batch._replace(series=np.arange(count, dtype=np.int32)), self._buckets)
        kernel = self._new_kernel()
        kernel.grow(len(runs.series))
        values = Points(batch.times, batch.bits, batch.floats).doubles()
        with np.errstate(all="ignore"):
            if len(values):
                kernel.runs(np.arange(len(runs.series)), runs.starts, values)
            return bucketed(runs.series, runs.stamps, kernel.result(), count)

    def feed_buckets(self, series: NDArray[np.int32], buckets: Bucketed) -> None:
        """Add the buckets of rows, given the series of each row: hour by hour if they are many."""
        hours = [(0, len(series))]
        if len(buckets.values) >= FEW_VALUES:
            hours = list(buckets.hours())
            if len(series) < len(hours) * FEW_ROWS:
                hours = [(0, len(series))]
        for first, stop in hours:
            self.feed_rows(series[first:stop].astype(np.int64), buckets.between(first, stop))

    @property
    def by_cell(self) -> tuple[int, int] | None:
        """The interval in ms and the number of the function with which cells may be downsampled while they are decoded:
        each bucket is in one row. None if they may not."""
        spec = self._spec
        return (spec.interval_ms, FUNCTIONS[spec.function]) if self._uses_loop and HAS_PACKING_LOOP else None

    def feed_cells(self, page: BucketPage) -> Bucketed:
        """Add rows that are downsampled as `by_cell` says, like `feed`. Return their buckets."""
        buckets = buckets_of_cells(page.buckets, self._spec.function)
        self.feed_buckets(page.series, buckets)
        return buckets

    def feed_rows(self, series: Int64, buckets: Bucketed) -> None:
        """Add buckets of rows that `feed` of an earlier query returned; `series` are the rows' series."""
        self._parts.append(SeriesBuckets(series, buckets))
        self._parts_size += len(buckets.values)

    @property
    def held(self) -> int:
        """Number of values kept until their buckets are complete."""
        return self._kernel.held if isinstance(self._kernel, Percentile) else 0

    def answer_size(self, series_count: int) -> int:
        """Return about how many points `finish` returns: a fill can add many."""
        filled = self._buckets.filled_count() if self._fill is not Fill.NONE else 0
        return max(series_count * filled, self._size + self._parts_size)

    @property
    def parts(self) -> int:
        """Number of parts that `finish` joins."""
        return len(self._parts) + len(self._slots)

    def size(self, series_count: int) -> int:
        """Return the number of values kept, or returned at the end."""
        return self.held + self.answer_size(series_count)

    def _slots_of(self, runs: Runs) -> Slots:
        """Return slots for runs, series by series: only the first run of each may continue an earlier bucket."""
        self._extend_last(int(runs.series.max()) + 1)
        first = np.append(True, runs.series[1:] != runs.series[:-1])
        continues = first & (self._last_stamps[runs.series] == runs.stamps)
        slots = np.where(continues, self._last_slots[runs.series], self._size - 1 + np.cumsum(~continues))
        self._slots.append((runs.series[~continues], runs.stamps[~continues]))
        self._grow(self._size + int((~continues).sum()))
        last = np.append(first[1:], True)
        self._last_stamps[runs.series[last]] = runs.stamps[last]
        self._last_slots[runs.series[last]] = slots[last]
        return slots

    def _extend_last(self, series: int) -> None:
        """Extend the arrays to this number of series."""
        missing = series - len(self._last_stamps)
        if missing > 0:
            self._last_stamps = np.append(self._last_stamps, np.full(missing, _NEVER))
            self._last_slots = np.append(self._last_slots, np.full(missing, -1))

    def _grow(self, size: int) -> None:
        self._size = size
        if size > self._capacity:
            self._capacity = max(size, 2 * self._capacity)
            self._kernel.grow(self._capacity)

    def _open(self) -> Bool:
        """Return which slots may get more values."""
        opened = np.zeros(self._capacity, np.bool_)
        opened[self._last_slots[self._last_slots >= 0]] = True
        return opened

    def finish(self, series_count: int, has_points: Bool | None = None) -> SeriesColumns:
        """Return the points of each series, by number. `has_points`: whether any of each were read; None: of all."""
        if not series_count:  # and no grid to fill, which would be as long as the query's range
            return SeriesColumns.of([])
        if self._fill is Fill.NONE and self._by_rows and self._parts:
            return table_of(self._parts, series_count) or by_series_of(self._parts, series_count)
        series, stamps, values = self._found()
        grid = None if self._fill is Fill.NONE else self._buckets.filled()  # as long as the query's range
        if grid is not None:
            if not self._quirks.bucket_before_range:
                grid = grid[grid >= self._scan.start_ms]
            return self._filled(series, stamps, values, grid, series_count, has_points)
        order = stable_order(series, series_count)
        bounds = np.searchsorted(series[order], np.arange(series_count + 1))
        return SeriesColumns(doubles_as_points(stamps[order], values[order]), bounds)

    def _found(self) -> tuple[Int64, Int64, Float64]:
        """Return series, stamp and value of all buckets, those of a series in order."""
        if not self._by_rows:
            with np.errstate(all="ignore"):
                values = self._kernel.result()[: self._size]
            series = np.concatenate([np.empty(0, np.int64), *(one for one, _ in self._slots)])
            return series, np.concatenate([np.empty(0, np.int64), *(one for _, one in self._slots)]), values
        each = [(np.repeat(part.series, np.diff(part.buckets.starts)), part.buckets) for part in self._parts]
        return (
            np.concatenate([np.empty(0, np.int64), *(series for series, _ in each)]),
            np.concatenate([np.empty(0, np.int64), *(buckets.flat_stamps() for _, buckets in each)]),
            np.concatenate([np.empty(0), *(buckets.values for _, buckets in each)]),
        )

    def _filled(
        self, series: Int64, stamps: Int64, values: Float64, grid: Int64, series_count: int, has_points: Bool | None
    ) -> SeriesColumns:
        """Return every bucket of every series; buckets outside of the grid are dropped."""
        places = np.searchsorted(grid, stamps)
        inside = np.append(grid, _NEVER)[places] == stamps
        present = np.zeros((series_count, len(grid)), np.bool_)
        present[series[inside], places[inside]] = True
        scalar = 0.0 if self._fill is Fill.ZERO else self._spec.scalar
        found = present if has_points is None else present[has_points]  # an index may list others
        if self._fill is Fill.SCALAR and scalar is None and not found.all():
            raise BadQuery("unhandled fill policy")
        filled = np.full(present.shape, np.nan if scalar is None else scalar)
        filled[series[inside], places[inside]] = values[inside]
        return SeriesColumns.table(grid, filled.view(np.int64))


class PointJoiner:
    """Joins the points of each series without downsampling."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._hours: list[HourTable] = []  # all points, if there is no batch
        self._size = 0

    def feed_tables(self, hours: Sequence[HourTable]) -> None:
        """Add hours of rows, each with one row of a series."""
        self._size += sum([hour.bits.size for hour in hours])
        every = [*self._hours, *hours]
        if not self._batches and all(_follows(hour, before) for before, hour in pairwise(every)):
            self._hours = every
        else:
            self._feed_hours(hours)

    def _feed_hours(self, hours: Sequence[HourTable]) -> None:
        """Add hours as batches."""
        earlier, self._hours = self._hours, []
        self._batches += [_rows_of(hour) for hour in (*earlier, *hours)]

    def feed(self, batch: Batch) -> Bucketed | None:
        """Add a batch. There are no buckets."""
        if self._hours:
            self._feed_hours(())
        if len(batch.times):
            self._batches.append(batch)
            self._size += len(batch.times)
        return None

    @property
    def parts(self) -> int:
        """Number of batches that `finish` joins."""
        return len(self._batches) + len(self._hours)

    def size(self, _: int) -> int:
        """Return how many points are held."""
        return self._size

    def finish(self, series_count: int, has_points: Bool | None = None) -> SeriesColumns:  # noqa: ARG002
        """Return the points of each series, by number."""
        batches, self._batches, hours, self._hours = self._batches, [], self._hours, []
        if hours:
            return _joined_hours(hours, series_count)
        if not batches:
            return SeriesColumns(NO_POINTS, np.zeros(series_count + 1, np.int64))
        if len(batches) == series_count == 1:
            [only] = batches
            return SeriesColumns(Points(only.times, only.bits, only.floats), only.starts[[0, -1]])
        table = _table(batches, series_count)
        if table is not None:
            return table
        whole = batches[0] if len(batches) == 1 else _joined(batches)
        del batches
        points = Points(whole.times, whole.bits, whole.floats)
        if (whole.series[1:] >= whole.series[:-1]).all():
            return SeriesColumns(points, whole.starts[np.searchsorted(whole.series, np.arange(series_count + 1))])
        order = stable_order(whole.series, series_count)
        lengths = np.diff(whole.starts)[order]
        bounds = starts_of(lengths)[np.searchsorted(whole.series[order], np.arange(series_count + 1))]
        return SeriesColumns(points.at(spread(whole.starts[:-1][order], lengths)), bounds)


def _follows(hour: HourTable, before: HourTable) -> bool:
    """Return whether an hour has the same series as an earlier one."""
    return hour.base_s > before.base_s and np.array_equal(hour.numbers, before.numbers)


def _rows_of(hour: HourTable) -> Batch:
    """Return the rows of an hour."""
    rows, width = hour.bits.shape
    times = np.tile(hour.base_s * 1000 + hour.offsets_ms, rows)
    return Batch(hour.numbers, np.arange(rows + 1) * width, times, hour.bits.ravel(), hour.floats.ravel())


def _joined_hours(hours: Sequence[HourTable], series_count: int) -> SeriesColumns:
    """Return the points of hours that all have the same series."""
    numbers = hours[0].numbers
    times, bits, floats = (
        np.concatenate([hour.base_s * 1000 + hour.offsets_ms for hour in hours]),
        np.concatenate([hour.bits for hour in hours], axis=1) if len(hours) > 1 else hours[0].bits,
        np.concatenate([hour.floats for hour in hours], axis=1) if len(hours) > 1 else hours[0].floats,
    )
    if np.count_nonzero(numbers[1:] > numbers[:-1]) < len(numbers) - 1:
        order = np.argsort(numbers)
        numbers, bits, floats = numbers[order], bits[order], floats[order]
    bounds = np.searchsorted(numbers, np.arange(series_count + 1)) * len(times)
    return SeriesColumns(Points(times, bits.ravel(), floats.ravel()), bounds, shares_times=True)


def _table(batches: list[Batch], series_count: int) -> SeriesColumns | None:
    """Return the points of series that all have the same times; None for other series.

    Each batch has either some of the series, or all of them with the next times.
    """
    widths = [int(batch.starts[1]) for batch in batches]
    for batch, width in zip(batches, widths, strict=True):
        if len(batch.times) != width * len(batch.series) or (np.diff(batch.starts) != width).any():
            return None
        if not (batch.times.reshape(-1, width) == batch.times[:width]).all():
            return None
    series, times = batches[0].series, batches[0].times[: widths[0]]
    if len(batches) > 1 and all(np.array_equal(batch.series, series) for batch in batches):
        times = np.concatenate([batch.times[:width] for batch, width in zip(batches, widths, strict=True)])
        bits = np.concatenate([batch.bits.reshape(len(series), -1) for batch in batches], axis=1).ravel()
        floats = np.concatenate([batch.floats.reshape(len(series), -1) for batch in batches], axis=1).ravel()
    elif all(np.array_equal(batch.times[:width], times) for batch, width in zip(batches, widths, strict=True)):
        series = np.concatenate([batch.series for batch in batches])
        bits = np.concatenate([batch.bits for batch in batches])
        floats = np.concatenate([batch.floats for batch in batches])
    else:
        return None
    if len(series) < 2 or not (series[1:] > series[:-1]).all():
        return None
    bounds = np.searchsorted(series, np.arange(series_count + 1)) * len(times)
    return SeriesColumns(Points(times, bits, floats), bounds, shares_times=True)


def _joined(batches: list[Batch]) -> Batch:
    """Join batches."""
    sizes = np.cumsum([0, *(len(batch.times) for batch in batches)])
    starts = [batch.starts[:-1] + before for batch, before in zip(batches, sizes[:-1], strict=True)]
    columns = ([getattr(batch, name) for batch in batches] for name in ("series", "times", "bits", "floats"))
    series, times, bits, floats = (np.concatenate(column) for column in columns)
    return Batch(series, np.concatenate([*starts, sizes[-1:]]), times, bits, floats)
