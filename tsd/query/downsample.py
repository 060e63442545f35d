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
from tsd.query.buckets import Runs, buckets_of, by_series, runs_of, within
from tsd.query.folds import Slots
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
        self._spec, self._folded, self._folded_size = spec, list[Float64](), 0
        self._fold = BY_NAME[spec.function].make(integers=False, corrected=corrected)
        self._size = self._capacity = 0  # slots: buckets of series that have a point
        self._slots: list[tuple[Int64, Int64]] = []  # series and stamps of new slots, batch by batch
        self._last_stamps, self._last_slots = np.empty(0, np.int64), np.empty(0, np.int64)  # of each series

    def feed(self, batch: Batch) -> None:
        """Take in the next batch."""
        batch = within(batch, self._buckets.span)
        if not len(batch.times):
            return
        if self._looped:
            folded = compiled.fold(batch, self._spec.interval_ms, self._spec.function)
            self._slots.append((folded.series, folded.stamps))
            self._folded.append(folded.values)
            self._folded_size += len(folded.values)
            return
        if not self._buckets.within_hours:
            batch = by_series(batch)
        runs = runs_of(batch, self._buckets)
        slots = self._all_new(runs) if self._buckets.within_hours else self._slots_of(runs)
        values = Points(batch.times, batch.bits, batch.floats).doubles()
        with np.errstate(all="ignore"):
            self._fold.runs(slots, runs.starts, values)
            if isinstance(self._fold, Ranked):
                self._fold.settle(self._open())

    @property
    def held(self) -> int:
        """How many values are kept until their buckets are complete."""
        return self._fold.held if isinstance(self._fold, Ranked) else 0

    def answer_size(self, series_count: int) -> int:
        """How many points `finish` would give about: a fill can make many out of none."""
        filled = self._buckets.filled_count() if self._fill is not Fill.NONE else 0
        return max(series_count * filled, self._size + self._folded_size)

    def size(self, series_count: int) -> int:
        """How many values are kept, or will be in the end."""
        return self.held + self.answer_size(series_count)

    def _all_new(self, runs: Runs) -> Slots:
        """Slots for runs that are whole buckets."""
        self._slots.append((runs.series, runs.stamps))
        first = self._size
        self._grow(first + len(runs.series))
        return np.arange(first, self._size)

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

    def _open(self) -> Bool | None:
        """Which slots may get more values."""
        if self._buckets.within_hours:
            return None
        opened = np.zeros(self._capacity, np.bool_)
        opened[self._last_slots[self._last_slots >= 0]] = True
        return opened

    def finish(self, series_count: int) -> list[Points]:
        """The points of each series, by its number."""
        with np.errstate(all="ignore"):
            values = np.concatenate([self._fold.result()[: self._size], *self._folded])
        series, stamps = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in _transposed(self._slots))
        grid = self._buckets.filled()
        if self._fill is not Fill.NONE and grid is not None:
            if self._corrected or self._spec.calendar:  # else the one before it leads the rates
                grid = grid[grid >= self._scan.start_ms]
            return self._filled(series, stamps, values, grid, series_count)
        order = in_order(series, series_count)
        bounds = np.searchsorted(series[order], np.arange(series_count + 1))
        return split(stamps[order], values[order].view(np.int64), np.ones(len(order), np.bool_), bounds)

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

    def feed(self, batch: Batch) -> None:
        """Take in the next batch."""
        if len(batch.times):
            self._batches.append(batch)
            self._size += len(batch.times)

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
