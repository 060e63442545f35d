"""Points → runs of one series and one bucket: which points a downsampler takes together (query.md §9)."""

from typing import NamedTuple, Protocol

import numpy as np

from tsd.query import calendar
from tsd.query.model import Calendar, Downsample
from tsd.query.points import Batch, Int64
from tsd.query.ranges import HOUR_S, ScanRange
from tsd.query.ranks import spread

_HOUR_MS = HOUR_S * 1000
_NO_CHAIN = -1


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


class ByCalendar:
    """Buckets by wall clock. Each series' own first point says where its first one begins, and the others follow."""

    def __init__(self, spec: Calendar, scan: ScanRange) -> None:
        self._spec, self._scan = spec, scan
        self.within_hours = False
        base = calendar.base(scan.start_ms, spec)
        self.span = (base if base == scan.start_ms else calendar.after(base, spec), _FOREVER)
        self._chains: dict[int, int] = {}  # first bucket's start → number in `_edges`
        self._edges: list[Int64] = []  # starts of the buckets of a chain, past all times met
        self._chain_of = np.empty(0, np.int64)  # of each series

    def labels(self, batch: Batch) -> Int64:
        """The stamps themselves."""
        lengths = np.diff(batch.starts)
        rows = np.flatnonzero(lengths)
        chains = self._known(batch, rows)
        firsts, lasts = batch.times[batch.starts[rows]], batch.times[batch.starts[rows + 1] - 1]
        labels = np.empty(len(batch.times), np.int64)
        for chain in np.unique(chains).tolist():
            mine = chains == chain
            edges = self._reaching(chain, int(lasts[mine].max()))
            low, high = (edges[np.searchsorted(edges, times[mine], "right") - 1] for times in (firsts, lasts))
            places = rows[mine]
            labels[spread(batch.starts[places], lengths[places])] = np.repeat(low, lengths[places])
            for row in places[low != high].tolist():
                part = slice(batch.starts[row], batch.starts[row + 1])
                labels[part] = edges[np.searchsorted(edges, batch.times[part], "right") - 1]
        return labels

    def _known(self, batch: Batch, rows: Int64) -> Int64:
        """The chain of each row; a series that is met for the first time gets one."""
        series = batch.series[rows]
        missing = (int(series.max()) if len(series) else -1) + 1 - len(self._chain_of)
        if missing > 0:
            self._chain_of = np.append(self._chain_of, np.full(missing, _NO_CHAIN))
        for place in np.flatnonzero(self._chain_of[series] == _NO_CHAIN).tolist():
            if self._chain_of[series[place]] == _NO_CHAIN:
                start = calendar.base(int(batch.times[batch.starts[rows[place]]]), self._spec)
                self._chain_of[series[place]] = self._chain(start)
        return self._chain_of[series]

    def _chain(self, start: int) -> int:
        if start not in self._chains:
            self._chains[start] = len(self._edges)
            self._edges.append(np.array([start]))
        return self._chains[start]

    def _reaching(self, chain: int, time_ms: int) -> Int64:
        """The edges of a chain, up to one past a time."""
        edges = self._edges[chain]
        if edges[-1] <= time_ms:
            self._edges[chain] = edges = np.append(edges, steps(int(edges[-1]), time_ms, self._spec)[1:])
        return edges

    def stamps(self, labels: Int64) -> Int64:
        return labels

    def filled(self) -> Int64:
        first, stop = (calendar.base(time_ms, self._spec) for time_ms in (self._scan.start_ms, self._scan.stop_ms))
        edges = steps(first, stop, self._spec)
        return edges[edges < stop] if stop > first else edges[:1]


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
