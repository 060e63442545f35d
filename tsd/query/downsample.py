"""Batches of points → the points of each series: one for each bucket, or all of them.

Memory follows the answer: of a batch nothing is kept but what its buckets have come to (the values themselves only
for percentiles, while their bucket may get more).
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsd.errors import BadQuery
from tsd.query import compiled
from tsd.query.aggregators import BY_NAME
from tsd.query.bucketed import Bucketed, Part, bucketed, table_of
from tsd.query.buckets import Runs, buckets_of, by_series, runs_of, within
from tsd.query.folds import Fold, Slots
from tsd.query.model import Downsample, Fill
from tsd.query.points import Batch, Bool, Float64, Int64, Points
from tsd.query.ranges import ScanRange
from tsd.query.ranks import Ranked, spread

_NEVER = -(1 << 62)
_SMALL = 1 << 16


class Downsampler:
    """One function over buckets of one kind, for all series of a sub query (query.md §9).

    Raises BadQuery for a zone that does not exist, and for the fill that OpenTSDB cannot do when it is needed.
    `by_loop`: take whole buckets together in the compiled loop, if it knows the function.
    """

    def __init__(
        self,
        spec: Downsample,
        query_start_ms: int,
        query_end_ms: int,
        scan: ScanRange,
        *,
        corrected: bool = False,
        by_loop: bool = compiled.HAS,
    ) -> None:
        self._fill, self._scan, self._corrected = spec.fill, scan, corrected
        self._buckets = buckets_of(spec, query_start_ms, query_end_ms, scan)
        self._looped = by_loop and self._buckets.within_hours and compiled.folds(spec.function)
        self._spec = spec
        self._parts: list[Part] = []  # where buckets end with their row: each page's rows are done with at once
        self._parts_size = 0
        self._fold = self._new_fold()  # where they do not
        self._size = self._capacity = 0  # slots: buckets of series that have a point
        self._slots: list[tuple[Int64, Int64]] = []  # series and stamps of new slots, batch by batch
        self._last_stamps, self._last_slots = np.empty(0, np.int64), np.empty(0, np.int64)  # of each series

    def _new_fold(self) -> Fold:
        return BY_NAME[self._spec.function].make(integers=False, corrected=self._corrected)

    def feed(self, batch: Batch) -> Bucketed | None:
        """Take in the next batch; what became of its rows, if none of their buckets can get more."""
        batch = within(batch, self._buckets.span)
        if self._buckets.within_hours:
            buckets = self._by_row(batch)
            series = batch.series.astype(np.int64)
            for first, stop in buckets.hours():
                self.feed_rows(series[first:stop], buckets.between(first, stop))
            return buckets
        if not len(batch.times):
            return None
        batch = by_series(batch)
        runs = runs_of(batch, self._buckets)
        slots = self._slots_of(runs)
        values = Points(batch.times, batch.bits, batch.floats).doubles()
        with np.errstate(all="ignore"):
            self._fold.runs(slots, runs.starts, values)
            if isinstance(self._fold, Ranked):
                self._fold.settle(self._open())
        return None

    def feed_rows(self, series: Int64, buckets: Bucketed) -> None:
        """Take in rows as `feed` made them, of these series."""
        self._parts.append(Part(series, buckets))
        self._parts_size += len(buckets.values)

    def _by_row(self, batch: Batch) -> Bucketed:
        """The buckets of each row of a batch."""
        count = len(batch.series)
        if self._looped:
            folded = compiled.fold(batch, self._spec.interval_ms, self._spec.function)
            return bucketed(*folded, count)
        runs = runs_of(batch._replace(series=np.arange(count, dtype=np.int32)), self._buckets)
        fold = self._new_fold()
        fold.grow(len(runs.series))
        values = Points(batch.times, batch.bits, batch.floats).doubles()
        with np.errstate(all="ignore"):
            if len(values):
                fold.runs(np.arange(len(runs.series)), runs.starts, values)
            return bucketed(runs.series, runs.stamps, fold.result(), count)

    @property
    def held(self) -> int:
        """How many values are kept until their buckets are complete."""
        return self._fold.held if isinstance(self._fold, Ranked) else 0

    def answer_size(self, series_count: int) -> int:
        """How many points `finish` would give about: a fill can make many out of none."""
        filled = self._buckets.filled_count() if self._fill is not Fill.NONE else 0
        return max(series_count * filled, self._size + self._parts_size)

    def size(self, series_count: int) -> int:
        """How many values are kept, or will be in the end."""
        return self.held + self.answer_size(series_count)

    def _slots_of(self, runs: Runs) -> Slots:
        """Slots for runs, series by series: only the first of each may go on with a bucket of an earlier batch."""
        self._know(int(runs.series.max()) + 1)
        first = np.append(True, runs.series[1:] != runs.series[:-1])
        going_on = first & (self._last_stamps[runs.series] == runs.stamps)
        slots = np.where(going_on, self._last_slots[runs.series], self._size - 1 + np.cumsum(~going_on))
        self._slots.append((runs.series[~going_on], runs.stamps[~going_on]))
        self._grow(self._size + int((~going_on).sum()))
        last = np.append(first[1:], True)
        self._last_stamps[runs.series[last]] = runs.stamps[last]
        self._last_slots[runs.series[last]] = slots[last]
        return slots

    def _know(self, series: int) -> None:
        missing = series - len(self._last_stamps)
        if missing > 0:
            self._last_stamps = np.append(self._last_stamps, np.full(missing, _NEVER))
            self._last_slots = np.append(self._last_slots, np.full(missing, -1))

    def _grow(self, size: int) -> None:
        self._size = size
        if size > self._capacity:
            self._capacity = max(size, 2 * self._capacity)
            self._fold.grow(self._capacity)

    def _open(self) -> Bool:
        """Which slots may get more values."""
        opened = np.zeros(self._capacity, np.bool_)
        opened[self._last_slots[self._last_slots >= 0]] = True
        return opened

    def finish(self, series_count: int) -> list[Points]:
        """The points of each series, by its number."""
        if not series_count:  # nor is there a grid to be filled, which is as long as the query's range
            return []
        if self._fill is Fill.NONE and (points := table_of(self._parts, series_count)) is not None:
            return points
        series, stamps, values = self._found()
        grid = self._buckets.filled()
        if self._fill is not Fill.NONE and grid is not None:
            if self._corrected:  # else the one before it leads the rates
                grid = grid[grid >= self._scan.start_ms]
            return self._filled(series, stamps, values, grid, series_count)
        order = in_order(series, series_count)
        bounds = np.searchsorted(series[order], np.arange(series_count + 1))
        return split(stamps[order], values[order].view(np.int64), np.ones(len(order), np.bool_), bounds)

    def _found(self) -> tuple[Int64, Int64, Float64]:
        """All buckets there are, those of a series in order: whose each is, its stamp and its value."""
        if not self._buckets.within_hours:
            with np.errstate(all="ignore"):
                values = self._fold.result()[: self._size]
            series, stamps = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in _transposed(self._slots))
            return series, stamps, values
        each = [(np.repeat(part.series, np.diff(part.buckets.starts)), part.buckets) for part in self._parts]
        return (
            np.concatenate([np.empty(0, np.int64), *(series for series, _ in each)]),
            np.concatenate([np.empty(0, np.int64), *(buckets.flat_stamps() for _, buckets in each)]),
            np.concatenate([np.empty(0), *(buckets.values for _, buckets in each)]),
        )

    def _filled(self, series: Int64, stamps: Int64, values: Float64, grid: Int64, series_count: int) -> list[Points]:
        """Every bucket of every series; buckets that start outside of the grid are not in it."""
        places = np.searchsorted(grid, stamps)
        inside = np.append(grid, _NEVER)[places] == stamps
        there = np.zeros((series_count, len(grid)), np.bool_)
        there[series[inside], places[inside]] = True
        if self._fill is Fill.SCALAR and not there.all():
            raise BadQuery("unhandled fill policy")
        filled = np.full(there.shape, 0.0 if self._fill is Fill.ZERO else np.nan)
        filled[series[inside], places[inside]] = values[inside]
        floats = np.ones(len(grid), np.bool_)
        return [Points(grid, row, floats) for row in filled.view(np.int64)]


class Collector:
    """All points of each series, where nothing is downsampled."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._size = 0

    def feed(self, batch: Batch) -> Bucketed | None:
        """Take in the next batch. There are no buckets."""
        if len(batch.times):
            self._batches.append(batch)
            self._size += len(batch.times)
        return None

    def size(self, _: int) -> int:
        """How many points are kept."""
        return self._size

    def finish(self, series_count: int) -> list[Points]:
        """The points of each series, by its number."""
        if not self._batches:
            return [Points(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))] * series_count
        batches, self._batches = self._batches, []
        whole = batches[0] if len(batches) == 1 else _joined(batches)
        del batches
        order = in_order(whole.series, series_count)
        lengths = np.diff(whole.starts)[order]
        bounds = np.append(0, np.cumsum(lengths))[np.searchsorted(whole.series[order], np.arange(series_count + 1))]
        if (order[1:] > order[:-1]).all():
            return split(whole.times, whole.bits, whole.floats, bounds)
        index = spread(whole.starts[:-1][order], lengths)
        return split(whole.times[index], whole.bits[index], whole.floats[index], bounds)


def _joined(batches: list[Batch]) -> Batch:
    """Batches as one."""
    sizes = np.cumsum([0, *(len(batch.times) for batch in batches)])
    starts = [batch.starts[:-1] + before for batch, before in zip(batches, sizes[:-1], strict=True)]
    columns = ([getattr(batch, name) for batch in batches] for name in ("series", "times", "bits", "floats"))
    series, times, bits, floats = (np.concatenate(column) for column in columns)
    return Batch(series, np.concatenate([*starts, sizes[-1:]]), times, bits, floats)


def _transposed(pairs: list[tuple[Int64, Int64]]) -> tuple[list[Int64], list[Int64]]:
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def in_order(series: NDArray[np.integer[Any]], series_count: int) -> Slots:
    """What sorts by series and leaves the order within each."""
    return np.argsort(series.astype(np.uint16) if series_count <= _SMALL else series, kind="stable")  # 16 bits: radix


def split(times: Int64, bits: Int64, floats: Bool, bounds: Int64) -> list[Points]:
    """The points of each series out of those of all, by where each begins."""
    edges = bounds.tolist()
    return [Points(times[first:stop], bits[first:stop], floats[first:stop]) for first, stop in pairwise(edges)]
