"""Sums, counts, minima and maxima of intervals, computed from columns of points; and their cells (FORMATS.md §9).

All arrays of `Sums` are parallel. No Python object is made per point. Sums, minima and maxima are stored as doubles and
counts as integers of 8 bytes, whatever their values. So a cell that is computed again has the same column, and replaces
the earlier one.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rollup import Interval, RollupConfig, rollup_base, rollup_qualifier
from tsd.codec.opentsdb.rowkey import base_bytes
from tsd.codec.points import Batch, Bool, Float64, Int64, Points, starts_of
from tsd.codec.putline import HOUR_S
from tsd.codec.text import FLOAT
from tsd.errors import BadConfig
from tsd.store import CellMatrix, Put

DAY_S = 86_400
AGGREGATORS = ("sum", "count", "min", "max")  # in the order of the fields of Sums
VALUE_BYTES = 8
MATRIX_CELLS = 4096
HELD_HOURS = 1 << 14  # a megabyte
_WHY_NOT = "wanted an interval that divides an hour, or hours that divide a day, and not the default interval"
_PUT: Callable[[tuple[bytes, bytes, bytes]], Put] = partial(tuple.__new__, Put)  # without a Python call for each cell
_INTEGER, _DOUBLE = 7, FLOAT | 7  # flags of values of 8 bytes


class Sums(NamedTuple):
    """Aggregates of intervals of one length, those of a series in a row."""

    series: Int64
    times_s: Int64  # starts of the intervals
    sums: Float64
    counts: Int64
    minima: Float64
    maxima: Float64

    @property
    def aggregates(self) -> tuple[Float64 | Int64, ...]:
        """Return the values, in the order of AGGREGATORS."""
        return self.sums, self.counts, self.minima, self.maxima

    def at(self, index: Int64 | Bool | slice) -> "Sums":
        """Return the intervals that a numpy index selects."""
        series, times_s, sums, counts, minima, maxima = self
        return Sums(series[index], times_s[index], sums[index], counts[index], minima[index], maxima[index])

    def within(self, first_s: int, end_s: int, seconds: int) -> "Sums":
        """Return the intervals of a length that lie in a span as a whole."""
        inside = (self.times_s >= first_s) & (self.times_s + seconds <= end_s)
        return self if inside.all() else self.at(inside)


class RowKeys(NamedTuple):
    """The parts of the series' row keys, by number of the series."""

    heads: list[bytes]  # salt and metric
    tails: list[bytes]  # tag pairs


def can_build(interval: Interval) -> bool:
    """Return whether an interval can be computed: one that divides an hour, or hours that divide a day. Those of the
    default interval are the raw points."""
    divides = HOUR_S % interval.seconds == 0 or (interval.seconds % HOUR_S == 0 and DAY_S % interval.seconds == 0)
    return divides and not interval.is_default


def intervals_to_build(config: RollupConfig, names: Sequence[str] = ()) -> tuple[Interval, ...]:
    """Return the intervals with some names, without names all that can be computed. Raise BadConfig if one is not
    configured or cannot be computed, and if no aggregator can."""
    known = {one.name: one for one in config.intervals}
    problems = [f"no interval {name} is configured" for name in names if name not in known]
    chosen = [known[name] for name in dict.fromkeys(names or known) if name in known]
    if names:
        problems += [f"{one.name}: {_WHY_NOT}" for one in chosen if not can_build(one)]
    found = tuple(one for one in chosen if can_build(one))
    if not found and not problems:
        problems.append(f"none of the intervals {', '.join(known)} can be computed: {_WHY_NOT}")
    if not set(config.ids) & set(AGGREGATORS):
        problems.append(f"aggregationIds: wanted at least one of {', '.join(AGGREGATORS)}")
    if problems:
        raise BadConfig([f"tsd.rollups.config: {problem}" for problem in problems])
    return found


def sums_of(batch: Batch, seconds: int) -> Sums:
    """Return the aggregates of a batch of hours for intervals that divide an hour. NaN counts as no point."""
    values = Points(batch.times, batch.bits, batch.floats).doubles()
    starts, times = batch.starts, batch.times
    if np.isnan(values).any():
        is_number = ~np.isnan(values)
        before = starts_of(is_number)
        starts, times, values = before[starts], times[is_number], values[is_number]
    has_points = np.diff(starts) > 0
    rows, first = np.flatnonzero(has_points), starts[:-1][has_points]
    if seconds < HOUR_S and len(times):
        stamps = times // (seconds * 1000)
        begins = np.ones(len(stamps), np.bool_)
        begins[1:] = stamps[1:] != stamps[:-1]
        begins[first] = True
        inner = np.flatnonzero(begins)
        rows, first = rows[np.searchsorted(first, inner, "right") - 1], inner
    counts = np.diff(first, append=len(times))
    if not len(first):
        return Sums(first, first, np.empty(0), first, np.empty(0), np.empty(0))
    return Sums(
        batch.series[rows].astype(np.int64),
        times[first] // (seconds * 1000) * seconds,
        np.add.reduceat(values, first),
        counts,
        np.minimum.reduceat(values, first),
        np.maximum.reduceat(values, first),
    )


def joined(parts: Sequence[Sums]) -> Sums:
    """Return aggregates one part after the other. There is at least one part."""
    return Sums(*map(np.concatenate, zip(*parts, strict=True)))


def coarser(fine: Sums, seconds: int) -> Sums:
    """Return the aggregates of longer intervals; those of a series must be in order of time."""
    if not len(fine.series):
        return fine
    stamps = fine.times_s // seconds
    begins = np.ones(len(stamps), np.bool_)
    begins[1:] = (stamps[1:] != stamps[:-1]) | (fine.series[1:] != fine.series[:-1])
    first = np.flatnonzero(begins)
    return Sums(
        fine.series[first],
        stamps[first] * seconds,
        np.add.reduceat(fine.sums, first),
        np.add.reduceat(fine.counts, first),
        np.minimum.reduceat(fine.minima, first),
        np.maximum.reduceat(fine.maxima, first),
    )


class LongSums:
    """Adds up the hours of intervals that are longer than an hour. Memory is 32 bytes for each series and interval, and
    48 for each hour that is held."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._intervals: dict[int, tuple[Float64, Int64, Float64, Float64]] = {}  # by start; by number of the series
        self._held: list[Sums] = []  # hours that are not added up yet: many at once take less time
        self._held_hours = 0

    def add(self, hours: Sums) -> None:
        """Add hours, of any series in any order."""
        self._held.append(hours)
        self._held_hours += len(hours.series)
        if self._held_hours >= HELD_HOURS:
            self._add_held()

    def _add_held(self) -> None:
        """Add up the hours that are held."""
        if not self._held_hours:
            return
        hours = joined(self._held)
        self._held, self._held_hours = [], 0
        starts = hours.times_s // self._seconds * self._seconds
        order = np.argsort(starts, kind="stable")
        first = np.flatnonzero(np.diff(starts[order], prepend=-1))
        for index in np.split(order, first[1:]):
            start, part = int(starts[index[0]]), hours.at(index)
            sums, counts, minima, maxima = self._room(start, int(part.series.max()) + 1)
            np.add.at(sums, part.series, part.sums)
            np.add.at(counts, part.series, part.counts)
            np.minimum.at(minima, part.series, part.minima)
            np.maximum.at(maxima, part.series, part.maxima)

    def _room(self, start: int, size: int) -> tuple[Float64, Int64, Float64, Float64]:
        """Return the arrays of an interval, with at least `size` series."""
        empty: tuple[Float64, Int64, Float64, Float64] = (np.zeros(0), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        found = self._intervals.get(start, empty)
        if len(found[0]) < size:
            more = max(size, 2 * len(found[0])) - len(found[0])
            sums, counts, minima, maxima = found
            found = (
                np.append(sums, np.zeros(more)),
                np.append(counts, np.zeros(more, np.int64)),
                np.append(minima, np.full(more, np.inf)),
                np.append(maxima, np.full(more, -np.inf)),
            )
            self._intervals[start] = found
        return found

    def finish(self) -> Iterator[Sums]:
        """Yield the intervals, in order of time, each with the series that have points."""
        self._add_held()
        for start, (sums, counts, minima, maxima) in sorted(self._intervals.items()):
            series = np.flatnonzero(counts)
            times = np.full(len(series), start, np.int64)
            yield Sums(series, times, sums[series], counts[series], minima[series], maxima[series])


class RowOrder(NamedTuple):
    """Aggregates in the order of row keys, and where the rows with one salt, metric and base time begin."""

    sums: Sums
    begins: Int64  # of each group of rows, and the end of the last one
    bases: Int64  # of each group
    heads: list[bytes]  # of each group


def row_order(sums: Sums, interval: Interval, keys: RowKeys) -> RowOrder:
    """Return aggregates in the order of the rows that they belong to."""
    heads = sorted(set(keys.heads))
    number_of = {head: number for number, head in enumerate(heads)}
    head_of = np.fromiter(map(number_of.__getitem__, keys.heads), np.int64, len(keys.heads))
    rank = np.empty(len(keys.tails), np.int64)
    rank[sorted(range(len(rank)), key=keys.tails.__getitem__)] = np.arange(len(rank))
    times, places = np.unique(sums.times_s, return_inverse=True)
    bases = np.array([rollup_base(time, interval) for time in times.tolist()], np.int64)[places]
    head = head_of[sums.series]
    order = np.lexsort((sums.times_s, rank[sums.series], bases, head))
    head, bases = head[order], bases[order]
    first = np.flatnonzero((np.diff(head, prepend=-1) != 0) | (np.diff(bases, prepend=-1) != 0))
    heads_of = [heads[at] for at in head[first].tolist()]
    return RowOrder(sums.at(order), np.append(first, len(order)), bases[first], heads_of)


def rollup_puts(sums: Sums, interval: Interval, config: RollupConfig, keys: RowKeys) -> list[Put]:
    """Return the cells of intervals for the aggregators that have an id, in the order of `sums`: see `row_order`."""
    times, places = np.unique(sums.times_s, return_inverse=True)
    names = [name for name in AGGREGATORS if name in config.ids]
    values = np.stack(
        [_big_endian(column) for name, column in zip(AGGREGATORS, sums.aggregates, strict=True) if name in config.ids],
        axis=1,
    )
    columns = [[rollup_column(name, time, interval, config) for name in names] for time in times.tolist()]
    spots = [*zip((base_bytes(rollup_base(time, interval)) for time in times.tolist()), columns, strict=True)]
    heads, tails = keys
    rows: list[bytes] = []
    names_of: list[bytes] = []
    for series, place in zip(sums.series.tolist(), places.tolist(), strict=True):
        base, wanted = spots[place]
        rows += (heads[series] + base + tails[series],) * len(wanted)
        names_of += wanted
    return [*map(_PUT, zip(rows, names_of, values.view(f"V{VALUE_BYTES}").reshape(-1).tolist(), strict=True))]


def rollup_matrices(
    sums: Sums, interval: Interval, config: RollupConfig, keys: RowKeys, base_s: int
) -> Iterator[CellMatrix]:
    """Yield the cells of intervals of one salt, metric and base time, see `rollup_puts`, by row and column. A matrix
    has about MATRIX_CELLS places for whole rows, whichever of their intervals there are."""
    heads, tails = keys
    names = sorted((name for name in AGGREGATORS if name in config.ids), key=config.ids.__getitem__)
    aggregates = dict(zip(AGGREGATORS, sums.aggregates, strict=True))
    values = np.stack([_big_endian(aggregates[name]) for name in names])
    offsets = (sums.times_s - base_s) // interval.seconds
    first = np.flatnonzero(np.diff(sums.series, prepend=-1))
    bounds = np.append(first, len(offsets))
    base = base_bytes(base_s)
    rows_at_once = max(1, MATRIX_CELLS * interval.seconds // (len(names) * interval.row_s))
    known: dict[bytes, list[bytes]] = {}
    for row in range(0, len(first), rows_at_once):
        last = min(row + rows_at_once, len(first))
        part = slice(int(bounds[row]), int(bounds[last]))
        lengths = np.diff(bounds[row : last + 1])
        is_used = np.zeros(int(offsets[part].max()) + 1, np.bool_)
        is_used[offsets[part]] = True
        times = np.flatnonzero(is_used)
        columns = known.get(times.tobytes())
        if columns is None:
            starts = (base_s + times * interval.seconds).tolist()
            columns = [rollup_column(name, start, interval, config) for name in names for start in starts]
            known[times.tobytes()] = columns
        shape = last - row, len(names), len(times)
        if (lengths == len(times)).all():  # each row has all of these intervals, in order
            made = values[:, part].reshape(shape[1], shape[0], shape[2]).swapaxes(0, 1).copy()
            present = np.ones(shape, np.bool_)
        else:
            made, present = np.zeros(shape, np.uint64), np.zeros(shape, np.bool_)
            rows = np.repeat(np.arange(last - row), lengths)
            places = (np.cumsum(is_used) - 1)[offsets[part]]
            made[rows, :, places] = values[:, part].T
            present[rows, :, places] = True
        yield CellMatrix(
            [heads[number] + base + tails[number] for number in sums.series[first[row:last]].tolist()],
            columns,
            made.reshape(shape[0], -1),
            present.reshape(shape[0], -1),
        )


def rollup_column(name: str, time_s: int, interval: Interval, config: RollupConfig) -> bytes:
    """Return the column of an aggregate."""
    flags = _INTEGER if name == "count" else _DOUBLE
    return COLUMN + rollup_qualifier(config.ids[name], time_s, interval, flags)


def _big_endian(values: Float64 | Int64) -> NDArray[np.uint64]:
    """Return values of 8 bytes each, in memory as cells have them."""
    return values.astype(values.dtype.newbyteorder(">")).view(np.uint64)
