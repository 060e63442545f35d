"""Windows of points → rows of events or days: the index first, then the points of each row together.

Of several points of a series at one time the last to arrive is kept.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.points import Columns, Int64, wide_values
from tsd.codec.tall.times import DAY_MS
from tsd.store import Put
from tsd.tables.tall.encode import ColumnPlace, RowPoints, encode
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.series import Placing
from tsd.tables.tall.tables import TallTables
from tsd.tables.writing import Hours, SeriesKey, SeriesLookup, SummaryWriter

SLICE_POINTS = 20_000  # encoded and put at once


class SortedPoints(NamedTuple):
    """Points of a window by row, series and time, each place once."""

    keys: Sequence[SeriesKey]
    places: list[ColumnPlace]  # of each series
    tables: Sequence[str]
    table_of: Int64  # of each series, in `tables`
    points: RowPoints  # with numbers of `keys`


def sort_points(points: Columns, series: SeriesLookup, placing: Placing) -> SortedPoints:
    """Return a window's points in the order in which they are put."""
    present, numbers = np.unique(points.series, return_inverse=True)
    firsts: dict[SeriesKey, int] = {}
    same = np.array([firsts.setdefault(key, len(firsts)) for key in series.keys(present)], np.int64)  # texts may share
    keys = list(firsts)
    targets = [placing.target(key) for key in keys]
    names: dict[str, int] = {}
    table_of = np.array([names.setdefault(one.table, len(names)) for one in targets], np.int64)
    column_places = [one.place for one in targets]
    if not keys:
        empty = np.empty(0, np.int64)
        none = RowPoints(empty, empty, empty, empty, np.empty(0, np.bool_))
        return SortedPoints(keys, column_places, list(names), table_of, none)
    places = {head: at for at, head in enumerate(sorted({key.head for key in keys}))}
    heads = np.array([places[key.head] for key in keys], np.int64)
    days = np.array([one.place.is_day for one in targets], np.bool_)
    own = same[numbers]
    times = points.instants >> 1
    rows = np.where(days[own], times // DAY_MS * DAY_MS, times) if days.any() else times
    ordered = np.lexsort((times, own, rows, heads[own]))  # stable: the last to arrive is last
    last = np.ones(len(ordered), np.bool_)
    last[:-1] = (own[ordered][1:] != own[ordered][:-1]) | (times[ordered][1:] != times[ordered][:-1])
    ordered = ordered[last]
    values = wide_values(points.at(ordered))
    in_order = RowPoints(own[ordered], rows[ordered], times[ordered], *values)
    return SortedPoints(keys, column_places, list(names), table_of, in_order)


def encode_points(sorted_points: SortedPoints, part: slice) -> list[tuple[str, list[Put]]]:
    """Return the cells of some of the points, by table."""
    points = sorted_points.points.at(part)
    tables = sorted_points.table_of[points.numbers]
    bounds = [0, *(np.flatnonzero(np.diff(tables)) + 1).tolist(), len(tables)]
    return [
        (sorted_points.tables[tables[start]], encode(sorted_points.places, points.at(slice(start, end))))
        for start, end in pairwise(bounds)
        if end
    ]


class TallWriter:
    """Writes points into the tables of the rules: the layout's `PointWriter`."""

    summaries: SummaryWriter | None = None

    def __init__(
        self,
        tables: TallTables,
        index: SeriesList,
        placing: Placing,
        on_points: Callable[[Columns], None] = lambda _: None,
    ) -> None:
        """`on_points` is called with each window that was put."""
        self._tables = tables
        self._index = index
        self._placing = placing
        self._on_points = on_points
        self.cells = 0  # put since the start

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:  # noqa: ARG002
        """Put points, see `PointWriter`."""
        ordered = await trio.to_thread.run_sync(sort_points, points, series, self._placing)
        async with self._index.lock:
            await self._index.ensure(ordered.keys, self._placing.listed)
            for start in range(0, len(ordered.points.times), SLICE_POINTS):
                part = slice(start, start + SLICE_POINTS)
                for table, cells in await trio.to_thread.run_sync(encode_points, ordered, part):
                    await self._tables.store.put(table, cells)
                    self.cells += len(cells)
        self._on_points(points)

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """Do nothing: no points wait for the end of their hour, see `Tables.holds_hours`."""

    async def sync(self) -> None:
        """Return when all that was put survives a crash."""
        await self._tables.store.sync()
