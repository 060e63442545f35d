"""The newest points of series in memory, from the points that this daemon writes (docs/compat/query.md §17).

The cache is updated once per written window, not per point. It lacks points stored before the daemon started, and
points that other processes write. `checked_ms` and `depth_h` have the time and the range of the last read of a series'
rows.

Active series stay in the cache: those to which ingest gives a number. All points in memory are of these. The number of
idle ones, and of series that only requests name, is bounded. Those that are dropped are read from rows.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from itertools import compress, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import trio
from numpy.typing import NDArray

from tsd.codec.bytemap import ByteMap
from tsd.codec.kept_arrays import grown, kept_zeros
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.points import Columns, newest_points, series_ends, wide_values
from tsd.codec.putline import HOUR_S
from tsd.tables.catalog import LastPoint
from tsd.tables.opentsdb.encode import series_by_metric
from tsd.tables.reading import ScanRange
from tsd.tables.writing import SeriesLookup

try:
    from tsd.tables.opentsdb import _last_points
except ImportError:  # no C compiler at installation
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare both

NEW_SERIES = 2000  # added between two trio checkpoints: about a millisecond
NO_TIME = 0  # time in ms of a series without a known point
NOT_READ, FORGOTTEN = -1, -2  # in place of a number of hours
MAX_IDLE = 2_000_000  # series, of some 80 bytes each
_GROWTH = 1024

Series = tuple[bytes, bytes]  # metric UID, tag pairs
Slots = NDArray[np.intp]


class LookBack(NamedTuple):
    """The hours in which newest points are searched."""

    now_ms: int
    hours: int  # before the current hour

    @property
    def this_hour_s(self) -> int:
        """The base time of the current hour."""
        return self.now_ms // 1000 // HOUR_S * HOUR_S

    def bases(self, hour: int, stop: int) -> list[int]:
        """Return the base times from `hour` hours ago to before `stop` hours ago."""
        return [base for ago in range(hour, stop) if (base := self.this_hour_s - ago * HOUR_S) >= 0]

    @property
    def start_ms(self) -> int:
        """The first millisecond searched."""
        return (self.this_hour_s - self.hours * HOUR_S) * 1000

    @property
    def range(self) -> ScanRange:
        """The hours searched."""
        return ScanRange(self.start_ms // 1000, self.this_hour_s + HOUR_S)


class _Runs(NamedTuple):
    """Runs of points of one series."""

    ends: NDArray[np.int64]  # index of the last point of each
    numbers: NDArray[np.int32]  # of their series
    generations: NDArray[np.int64]


class LastPointCache:
    """The newest points of series, by metric UID and joined tag pairs."""

    def __init__(self, salt_width: int, *, max_idle: int = MAX_IDLE, compiled: bool = HAS_LOOP) -> None:
        """Of more than `max_idle` idle series, those with the oldest points are dropped."""
        self._compiled = compiled
        self._salt_width = salt_width
        self._max_idle = self._limit = max_idle  # `_limit`: series at which idle ones are counted
        self._lookup: SeriesLookup | None = None  # None: no series is active
        self._slots: dict[bytes, ByteMap] = {}  # slots by tag pairs, by metric UID
        self._count = 0
        self._times = np.zeros(_GROWTH, np.int64)
        self._bits = np.zeros(_GROWTH, np.int64)
        self._floats = np.zeros(_GROWTH, np.bool_)
        self._held = np.zeros(_GROWTH, np.bool_)  # whether the point is not in its row yet
        self._checks: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None  # allocated when first used
        # By series number, which is reused: the slot, and the generation of the number that has it.
        self._slot_of = np.zeros(_GROWTH, np.int32)
        self._generations = np.zeros(_GROWTH, np.int64)
        # Missing series were evicted, or a command changed their rows while they were not there.
        self.missing_changes = 0  # how often series were evicted, or rows of missing ones changed
        self.missing_ms = NO_TIME  # such series may have stored points until then
        self.clears = 0
        self._moves = 0  # how often slots were reassigned
        self.changes = 0  # how often a command changed rows

    def __len__(self) -> int:
        return self._count

    @property
    def checked_ms(self) -> NDArray[np.int64]:
        """By slot: time of the last read of the series' rows."""
        return self._check_arrays()[0]

    @property
    def depth_h(self) -> NDArray[np.int32]:
        """By slot: hours that were read; NOT_READ: none; FORGOTTEN: none, and stored points may be newer."""
        return self._check_arrays()[1]

    def _check_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        if self._checks is None:
            size = len(self._times)
            self._checks = kept_zeros(size, np.int64), np.full(size, NOT_READ, np.int32)
        return self._checks

    async def record(self, columns: Columns, series: SeriesLookup, before_ms: int, *, held: bool = False) -> None:
        """Record the newest points of a window, in any order: of equally new ones the last. They are written, or `held`
        and written later. Points at or after `before_ms` are skipped: a point with a wrong time in the future would
        hide all later ones."""
        if (columns.instants >= before_ms << 1).any():
            columns = columns.at(columns.instants < before_ms << 1)
        if not len(columns.series):
            return
        ends = series_ends(columns)
        numbers = columns.series[ends]
        self._make_room(int(numbers.max()) + 1)
        runs = _Runs(ends, numbers, series.generations(numbers))
        new = self._record_known(columns, runs, held)
        if new:
            self._lookup = series
            if self._count + len(new) > self._limit and self._count + len(np.unique(numbers[new])) > self._limit:
                self._drop_idle()
        while new:  # again if slots are reassigned meanwhile
            await self._add(np.unique(numbers[new]), series)
            new = self._record_known(columns, runs, held)

    def _record_known(self, columns: Columns, runs: _Runs, held: bool) -> list[int]:
        """Record the points of series that have slots. Return the indexes of the other runs."""
        if self._compiled:
            _, instants, flags, bits = map(np.ascontiguousarray, columns)
            return _last_points.record(
                instants, flags, bits, *runs, self._generations, self._slot_of,
                self._times, self._bits, self._floats.view(np.uint8), self._held.view(np.uint8), held,
            )  # fmt: skip
        new = self._generations[runs.numbers] != runs.generations
        known = columns.at(np.repeat(~new, np.diff(runs.ends, prepend=-1)))
        points = newest_points(known._replace(series=self._slot_of[known.series]))  # two numbers may share a slot
        slots, times = points.series, points.instants >> 1
        newer = times >= self._times[slots]
        slots, points = slots[newer], points.at(newer)
        self._times[slots] = times[newer]
        self._held[slots] = held
        self._bits[slots], self._floats[slots] = wide_values(points)
        return np.flatnonzero(new).tolist()

    def _make_room(self, numbers: int) -> None:
        """Make room for series with numbers below `numbers`."""
        self._generations, self._slot_of = grown(self._generations, numbers), grown(self._slot_of, numbers)

    async def _add(self, new: NDArray[np.int32], series: SeriesLookup) -> None:
        """Give slots to series without one, unless slots are reassigned meanwhile."""
        generations, moves = series.generations(new), self._moves
        for at in range(0, len(new), NEW_SERIES):
            found = series_by_metric(new[at : at + NEW_SERIES], series, self._salt_width)
            for metric, some in found.items():
                self._slot_of[some.numbers] = self._slots_for(metric, some.series_pairs)
            await trio.lowlevel.checkpoint()
            if moves != self._moves:
                return
        self._generations[new] = generations

    def _slots_for(self, metric: bytes, series_pairs: list[bytes]) -> list[int]:
        """Return the slots of a metric's series, new ones for new series."""
        if not series_pairs:
            return []
        series = self._slots.get(metric)
        if series is None:
            series = self._slots[metric] = ByteMap()
        slots, self._count = series.enter(series_pairs, self._count)
        if self._count > len(self._times):
            self._grow(self._count)
        return slots

    def slot(self, metric: bytes, pairs: bytes) -> int:
        """Return the slot of a series, a new one for a new series."""
        return self._slots_for(metric, [pairs])[0]

    def slots(self, series: Sequence[Series]) -> Slots:
        """Return the slots of series that a request names, new ones for new series."""
        if self._count + len(series) > self._limit and 0 < self._new_of(series) > self._limit - self._count:
            self._drop_idle()
        found: list[int] = []
        for metric, some in groupby(series, itemgetter(0)):
            found += self._slots_for(metric, [pairs for _, pairs in some])
        return np.array(found, np.intp)

    def _new_of(self, series: Sequence[Series]) -> int:
        """Return how many of some series have no slot."""
        return sum(metric not in self._slots or self._slots[metric].number(pairs) < 0 for metric, pairs in series)

    def _grow(self, size: int) -> None:
        self._times, self._bits = grown(self._times, size), grown(self._bits, size)
        self._floats, self._held = grown(self._floats, size), grown(self._held, size)
        if self._checks is not None:
            count, depth_h = len(self.depth_h), grown(self.depth_h, size)
            depth_h[count:] = NOT_READ
            self._checks = grown(self.checked_ms, size), depth_h

    def metrics(self) -> Collection[bytes]:
        """Return the metrics with series."""
        return self._slots.keys()

    def pairs_of(self, metric: bytes) -> Collection[bytes]:
        """Return the tag pairs of a metric's series with points. A request may have named others."""
        series = self._slots.get(metric)
        if series is None:
            return ()
        series_pairs = series.keys()
        if self._checks is None:  # all slots are of written series
            return series_pairs
        slots, _ = series.enter(series_pairs, self._count)
        known = (self._times[slots] != NO_TIME) | (self.depth_h[slots] == FORGOTTEN)
        return series_pairs if known.all() else list(compress(series_pairs, known.tolist()))

    def times_ms(self, slots: Slots) -> NDArray[np.int64]:
        """Return the times of the newest points; NO_TIME if there is none."""
        return self._times[slots]

    def are_held(self, slots: Slots) -> NDArray[np.bool_]:
        """Return whether the newest points are not in their rows yet."""
        return self._held[slots]

    def points(self, slots: Sequence[int] | Slots) -> list[LastPoint]:
        """Return the newest points."""
        times, bits, floats = self._times[slots], self._bits[slots], self._floats[slots]
        numbers: list[int | float] = [
            double if is_float else integer
            for integer, double, is_float in zip(
                bits.tolist(), bits.view(np.float64).tolist(), floats.tolist(), strict=True
            )
        ]
        return [LastPoint(*one) for one in zip(times.tolist(), numbers, strict=True)]

    def set_read(self, slot: int, found: LastPoint | None, *, checked_ms: int, depth_h: int) -> None:
        """Record what a read of `depth_h` hours of rows found."""
        start_ms = LookBack(checked_ms, depth_h).start_ms
        if self.depth_h[slot] == FORGOTTEN and not self._held[slot] and self._times[slot] < start_ms:
            self._times[slot] = NO_TIME  # of a late point: an older row may have a newer one
        self.checked_ms[slot] = checked_ms
        self.depth_h[slot] = max(depth_h, int(self.depth_h[slot]))
        if found is not None:
            self._set_newer(slot, found, held=False)

    def set_held(self, slot: int, point: LastPoint) -> None:
        """Record the newest point of a series that is not in its row yet."""
        self._set_newer(slot, point, held=True)

    def _set_newer(self, slot: int, point: LastPoint, *, held: bool) -> None:
        if point.time_ms <= self._times[slot]:
            return
        self._times[slot] = point.time_ms
        self._held[slot] = held
        is_float = isinstance(point.number, float)
        self._floats[slot] = is_float
        self._bits[slot] = np.float64(point.number).view(np.int64) if is_float else point.number

    def forget_point(self, slot: int, point: LastPoint) -> None:
        """Forget a newest point that its row lacks, unless it is not in its row yet or another one is known by now."""
        if not self._held[slot] and self.points([slot])[0].is_same(point):
            self._times[slot] = NO_TIME

    def forget(self, layout: KeyLayout, rows: Iterable[bytes]) -> None:
        """Forget the newest points of series that lie in rows, by their row keys, or before: a command has changed the
        rows. Points that are not in their rows yet remain."""
        self.changes += 1
        end, start, salt = layout.metric_end, layout.pairs_start, layout.salt_width
        for row in rows:
            series = self._slots.get(row[salt:end])
            slot = series.number(row[start:]) if series is not None else -1
            base_s = int.from_bytes(row[end:start], "big")
            if slot < 0:
                self.missing_changes += 1
                self.missing_ms = max(self.missing_ms, (base_s + HOUR_S) * 1000 - 1)
            elif self._times[slot] // 1000 // HOUR_S * HOUR_S <= base_s:
                if not self._held[slot]:
                    self._times[slot] = NO_TIME
                self.depth_h[slot] = FORGOTTEN

    async def forget_before(self, metric: bytes, before_s: int) -> None:
        """Forget the newest points of a metric that are older than `before_s`: they have expired."""
        before_ms, moves = before_s * 1000, self._moves
        if metric not in self._slots or not (self._times[: self._count] < before_ms).any():
            return
        series, series_pairs = self._slots[metric], self._slots[metric].keys()
        for at in range(0, len(series_pairs), NEW_SERIES):
            slots = np.array([series.number(one) for one in series_pairs[at : at + NEW_SERIES]], np.intp)
            old = slots[self._times[slots] < before_ms]
            self._times[old] = NO_TIME
            if self._checks is not None:
                self.depth_h[old] = NOT_READ
            await trio.lowlevel.checkpoint()
            if moves != self._moves:  # slots were reassigned: what is left is read from rows, or goes next time
                return

    def clear(self) -> None:
        """Drop everything: names may have other UIDs, or points may be deleted. Stored points, and points in memory,
        may be newer than what is recorded after that."""
        self.clears += 1
        self._moves += 1
        self._slots.clear()
        self._count, self._limit = 0, self._max_idle
        self._generations[:] = 0
        self._times[:] = NO_TIME
        self._checks = None

    def _drop_idle(self) -> None:
        """Drop the idle series with the oldest points until half as many are left as there may be."""
        numbers = np.flatnonzero(self._generations).astype(np.int32)
        if self._lookup is not None:
            is_active = self._lookup.generations(numbers) == self._generations[numbers]
            self._generations[numbers[~is_active]] = 0
            numbers = numbers[is_active]
        is_idle = np.ones(self._count, np.bool_)
        is_idle[self._slot_of[numbers]] = False
        idle, left = np.flatnonzero(is_idle), self._max_idle // 2
        if len(idle) > left:
            oldest_first = np.argsort(self._times[idle], kind="stable")
            moved = self._drop(idle[oldest_first[: len(idle) - left]])
            self._slot_of[numbers] = moved[self._slot_of[numbers]]
        self._limit = self._count + self._max_idle - left

    def _drop(self, slots: Slots) -> NDArray[np.int32]:
        """Drop some slots. Return the new slot of each, -1 for those that are dropped."""
        self._moves += 1
        self.missing_changes += 1
        self.missing_ms = max(self.missing_ms, int(self._times[slots].max()))
        is_kept = np.ones(self._count, np.bool_)
        is_kept[slots] = False
        moved = np.where(is_kept, np.cumsum(is_kept, dtype=np.int32) - 1, np.int32(-1))
        kept = np.flatnonzero(is_kept)
        for array in (self._times, self._bits, self._floats, self._held, *(self._checks or ())):
            array[: len(kept)] = array[kept]
        self._times[len(kept) :] = NO_TIME
        if self._checks is not None:
            self.depth_h[len(kept) :] = NOT_READ
        for series in self._slots.values():
            series.renumber(moved)
        self._slots = {metric: series for metric, series in self._slots.items() if len(series)}
        self._count = len(kept)
        return moved
