"""Windows of points → Heroic's cells, one for each point: the index first, then the points of each row together.

Heroic's values are doubles: whole numbers beyond 2^53 are rounded. Of several points of a series at one time the last
to arrive is kept.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.heroic.keys import encode_base
from tsd.codec.heroic.values import PERIOD_MS, encode_values, point_columns
from tsd.codec.points import Columns, Float64, Int64, Points, wide_values
from tsd.store import Put
from tsd.tables.heroic.index import Entry, SeriesList
from tsd.tables.heroic.tables import HeroicTables
from tsd.tables.writing import Hours, SeriesKey, SeriesLookup, SummaryWriter

SLICE_POINTS = 20_000  # encoded and put at once


class SortedPoints(NamedTuple):
    """Points of a window by series and time, each place once."""

    series: Sequence[SeriesKey]
    numbers: Int64  # of each point's series, in `series`
    times: Int64
    values: Float64

    def at(self, part: slice) -> "SortedPoints":
        """Return some of the points."""
        return SortedPoints(self.series, self.numbers[part], self.times[part], self.values[part])


def sort_points(points: Columns, series: SeriesLookup) -> SortedPoints:
    """Return a window's points in the order in which they are put."""
    present, numbers = np.unique(points.series, return_inverse=True)
    keys = list(series.keys(present))
    firsts: dict[SeriesKey, int] = {}
    same = [firsts.setdefault(key, at) for at, key in enumerate(keys)]  # texts with other orders of tags have one key
    places = np.array(same, np.int64)[numbers] if keys else np.empty(0, np.int64)
    times = points.instants >> 1
    order = np.lexsort((times, places))  # stable: of equal points the last to arrive is the last
    last = np.ones(len(order), np.bool_)
    last[:-1] = (places[order][1:] != places[order][:-1]) | (times[order][1:] != times[order][:-1])
    order = order[last]
    ordered = Points(times[order], *wide_values(points.at(order)))
    return SortedPoints(keys, places[order], ordered.times, ordered.doubles())


def encode_points(points: SortedPoints) -> list[Put]:
    """Return the cells of some points."""
    bases = points.times // PERIOD_MS * PERIOD_MS
    columns = point_columns(points.times - bases)
    values = encode_values(points.values)
    starts = row_starts(points.numbers, bases)
    cells: list[Put] = []
    for start, end in zip(starts, [*starts[1:], len(columns)], strict=True):
        head, tail = points.series[points.numbers[start]]
        row = head + encode_base(int(bases[start])) + tail
        cells += [Put(row, columns[at], values[at]) for at in range(start, end)]
    return cells


def row_starts(numbers: Int64, bases: Int64) -> list[int]:
    """Return the index of the first point of each row."""
    changed = np.ones(len(numbers), np.bool_)
    changed[1:] = (numbers[1:] != numbers[:-1]) | (bases[1:] != bases[:-1])
    return np.flatnonzero(changed).tolist()


def entries_of(points: SortedPoints) -> list[Entry]:
    """Return the rows of points."""
    bases = points.times // PERIOD_MS * PERIOD_MS
    return [Entry(points.series[points.numbers[at]], int(bases[at])) for at in row_starts(points.numbers, bases)]


class HeroicWriter:
    """Writes points into Heroic's table: the layout's `PointWriter`."""

    summaries: SummaryWriter | None = None

    def __init__(
        self, tables: HeroicTables, index: SeriesList, on_points: Callable[[Columns], None] = lambda _: None
    ) -> None:
        """`on_points` is called with each window that was put."""
        self._tables = tables
        self._index = index
        self._on_points = on_points
        self.cells = 0  # put since the start

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:  # noqa: ARG002
        """Put points, see `PointWriter`."""
        ordered = await trio.to_thread.run_sync(sort_points, points, series)
        async with self._index.lock:
            await self._index.ensure(entries_of(ordered))
            for start in range(0, len(ordered.times), SLICE_POINTS):
                part = slice(start, start + SLICE_POINTS)
                cells = await trio.to_thread.run_sync(encode_points, ordered.at(part))
                await self._tables.put(cells)
                self.cells += len(cells)
        self._on_points(points)

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """Do nothing: no points wait for the end of their hour, see `Tables.holds_hours`."""

    async def sync(self) -> None:
        """Return when all that was put survives a crash."""
        await self._tables.store.sync()
