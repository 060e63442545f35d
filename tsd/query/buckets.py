"""Points → runs of one series and one bucket: which points a downsampler takes together (query.md §9)."""

from typing import NamedTuple, Protocol

import numpy as np

from tsd.query import calendar
from tsd.query.dates import UNITS_MS
from tsd.query.model import Calendar, Downsample
from tsd.query.points import Batch, Int64
from tsd.query.ranges import HOUR_S, ScanRange
from tsd.query.ranks import spread

_HOUR_MS = HOUR_S * 1000
_UNKNOWN = -(1 << 62)


class Runs(NamedTuple):
    """Consecutive points of one series in one bucket."""

    series: Int64  # (runs,)
    stamps: Int64  # (runs,): the bucket's first moment
    starts: Int64  # (runs + 1,): where each run begins among the points


class Buckets(Protocol):
    """What the times are cut into."""

    within_hours: bool  # whether no bucket has points of two hours
    span: tuple[int, int]  # ms: points before the first, or not before the second, are left out

    def labels(self, batch: Batch) -> Int64:
        """A number for each point: equal for two points of a series only if they share a bucket."""

    def stamps(self, labels: Int64) -> Int64:
        """First moments of the buckets, in ms."""

    def filled(self) -> Int64 | None:
        """The stamps of all buckets that a fill makes every series have; None: it makes none."""

    def filled_count(self) -> int:
        """How many those are, about."""


_FOREVER = 1 << 62


class Fixed:
    """Buckets of one length, counted from the epoch."""

    def __init__(self, interval_ms: int, scan: ScanRange) -> None:
        self._interval_ms, self._scan = interval_ms, scan
        self.within_hours = _HOUR_MS % interval_ms == 0
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


class Everything:
    """One bucket: what is in [start, end), stamped start."""

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


class ByCalendar:
    """Buckets by wall clock. Each series' own first point says where its first one begins, and the others follow."""

    def __init__(self, spec: Calendar, scan: ScanRange) -> None:
        self._spec, self._scan = spec, scan
        self.within_hours = False
        base = calendar.base(scan.start_ms, spec)
        self.span = (base if base == scan.start_ms else calendar.after(base, spec), _FOREVER)
        self._edges: dict[int, Int64] = {}  # first bucket's start → starts of it and of those after it, as far as met
        self._first_of = np.empty(0, np.int64)  # of each series: the start of its first bucket

    def labels(self, batch: Batch) -> Int64:
        """The stamps themselves."""
        lengths = np.diff(batch.starts)
        rows = np.flatnonzero(lengths)
        firsts = self._known(batch, rows)
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
        """Fill in the labels of the rows of series whose first bucket starts at `first`."""
        begins, ends = batch.starts[rows], batch.starts[rows + 1]
        edges = self._reaching(first, int(batch.times[ends - 1].max()))
        low, high = (_started(edges, batch.times[at]) for at in (begins, ends - 1))
        labels[spread(begins, ends - begins)] = np.repeat(low, ends - begins)
        for row in np.flatnonzero(low != high).tolist():
            part = slice(begins[row], ends[row])
            labels[part] = _started(edges, batch.times[part])

    def _known(self, batch: Batch, rows: Int64) -> Int64:
        """Where the first bucket of each row's series starts; of a series that is new its first point says so."""
        series = batch.series[rows]
        missing = (int(series.max()) if len(series) else -1) + 1 - len(self._first_of)
        if missing > 0:
            self._first_of = np.append(self._first_of, np.full(missing, _UNKNOWN))
        for place in np.flatnonzero(self._first_of[series] == _UNKNOWN).tolist():
            if self._first_of[series[place]] == _UNKNOWN:
                time_ms = int(batch.times[batch.starts[rows[place]]])
                self._first_of[series[place]] = calendar.base(time_ms, self._spec)
        return self._first_of[series]

    def _reaching(self, first: int, time_ms: int) -> Int64:
        """The starts of buckets from one on, up to one past a time."""
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
    """The last bucket to have begun at each time. Before the first one: that one, as where clocks change it may begin
    after the point that it is the first one for.
    """
    return edges[np.maximum(np.searchsorted(edges, times, "right") - 1, 0)]


def steps(start_ms: int, past_ms: int, spec: Calendar) -> Int64:
    """Starts of buckets from one on until one is past a time."""
    if spec.unit in calendar.EXACT:
        step = calendar.after(start_ms, spec) - start_ms
        return np.arange(start_ms, past_ms + step + 1, step, dtype=np.int64)
    edges = [start_ms]
    while edges[-1] <= past_ms:
        edges.append(calendar.after(edges[-1], spec))
    return np.array(edges)


def buckets_of(spec: Downsample, query_start_ms: int, query_end_ms: int, scan: ScanRange) -> Buckets:
    """The buckets that a downsampler asks for; raises BadQuery for a zone that does not exist."""
    if spec.is_all:
        return Everything(query_start_ms, query_end_ms)
    return ByCalendar(spec.calendar, scan) if spec.calendar else Fixed(spec.interval_ms, scan)


def runs_of(batch: Batch, buckets: Buckets) -> Runs:
    """The runs of a batch, in its order."""
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
    """The points in a span of time."""
    low, high = span
    if not len(batch.times) or (low <= batch.times.min() and batch.times.max() < high):
        return batch
    kept = (batch.times >= low) & (batch.times < high)
    starts = np.append(0, np.cumsum(kept))[batch.starts]
    return Batch(batch.series, starts, batch.times[kept], batch.bits[kept], batch.floats[kept])


def by_series(batch: Batch) -> Batch:
    """The same points, each series' rows joined to one."""
    order = np.argsort(batch.series, kind="stable")
    series = batch.series[order]
    fresh = np.append(True, series[1:] != series[:-1])
    if fresh.all():
        return batch
    lengths = np.diff(batch.starts)[order]
    starts = np.append(0, np.cumsum(lengths))
    joined = Batch(series[fresh], np.append(starts[:-1][fresh], starts[-1]), batch.times, batch.bits, batch.floats)
    if (order[1:] > order[:-1]).all():
        return joined
    index = spread(batch.starts[:-1][order], lengths)
    return joined._replace(times=batch.times[index], bits=batch.bits[index], floats=batch.floats[index])
