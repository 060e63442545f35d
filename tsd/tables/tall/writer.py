"""Windows of points → rows of events or days: the index first, then the points of each row together.

Of several points of a series at one time the last to arrive is kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.points import Bool, Columns, Int64
from tsd.codec.tall.fields import COLUMN, day_column
from tsd.codec.tall.rules import TableRule
from tsd.codec.tall.template import RowTime
from tsd.codec.tall.times import DAY_MS
from tsd.codec.tall.values import number_texts
from tsd.codec.text import FLOAT, LENGTH
from tsd.store import Put
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.series import PlacedSeries, Placing
from tsd.tables.tall.tables import TallTables
from tsd.tables.writing import SeriesKey, SeriesLookup, SummaryWriter

SLICE_POINTS = 20_000  # encoded and put at once
SINGLE = 3  # length bits of a value of four bytes


class SortedPoints(NamedTuple):
    """Points of a window by row, series and time, each place once."""

    keys: Sequence[SeriesKey]
    series: Sequence[PlacedSeries]
    numbers: Int64  # of each point's series, in `keys`
    rows: Int64  # time of each point's row
    times: Int64
    bits: Int64
    floats: Bool

    def at(self, part: slice) -> "SortedPoints":
        """Return some of the points."""
        arrays = self.numbers[part], self.rows[part], self.times[part], self.bits[part]
        return SortedPoints(self.keys, self.series, *arrays, self.floats[part])


def sort_points(points: Columns, series: SeriesLookup, placing: Placing) -> SortedPoints:
    """Return a window's points in the order in which they are put."""
    present, numbers = np.unique(points.series, return_inverse=True)
    found = list(series.keys(present))
    firsts: dict[SeriesKey, int] = {}
    same = np.array([firsts.setdefault(key, len(firsts)) for key in found], np.int64)  # texts may share a key
    keys = list(firsts)
    placed = [placing.placed(key) for key in keys]
    order = sorted({key.head for key in keys})
    places = {head: at for at, head in enumerate(order)}
    heads = np.array([places[key.head] for key in keys], np.int64)
    days = np.array([one.rule.template.time is RowTime.DAY for one in placed], np.bool_)
    own = same[numbers] if len(found) else np.empty(0, np.int64)
    times = points.instants >> 1
    rows = np.where(days[own], times // DAY_MS * DAY_MS, times) if len(found) else times
    ordered = np.lexsort((times, own, rows, heads[own] if len(found) else own))  # stable: the last to arrive is last
    last = np.ones(len(ordered), np.bool_)
    last[:-1] = (own[ordered][1:] != own[ordered][:-1]) | (times[ordered][1:] != times[ordered][:-1])
    ordered = ordered[last]
    bits, floats = numbers_of(points.at(ordered))
    return SortedPoints(keys, placed, own[ordered], rows[ordered], times[ordered], bits, floats)


def numbers_of(points: Columns) -> tuple[Int64, Bool]:
    """Return the bits of values, and which are doubles, see `Points`.

    >>> bits, floats = numbers_of(Columns(*map(np.array, ([0, 0], [0, 0], [0, FLOAT | SINGLE], [7, 0x42280000]))))
    >>> bits[:1].tolist(), bits.view(np.float64)[1:].tolist(), floats.tolist()
    ([7], [42.0], [False, True])
    """
    bits = points.bits.astype(np.int64)
    floats = (points.flags & FLOAT) != 0
    singles = floats & ((points.flags & LENGTH) == SINGLE)
    bits[singles] = bits[singles].astype(np.uint32).view(np.float32).astype(np.float64).view(np.int64)
    return bits, floats


def encode_points(points: SortedPoints) -> list[tuple[str, list[Put]]]:
    """Return the cells of some points, by table."""
    tables: list[tuple[str, list[Put]]] = []
    values = number_texts(points.bits, points.floats)
    row, row_of = b"", (-1, b"")
    labels: dict[bytes, list[tuple[bytes, bytes]]] = {}
    puts: list[Put] = []
    arrays = (points.numbers.tolist(), points.rows.tolist(), points.times.tolist(), values)
    for number, row_ms, time_ms, value in zip(*arrays, strict=True):
        (rule, (prefix, field)), head = points.series[number], points.keys[number].head
        if row_of != (row_ms, head):
            row_of = row_ms, head
            row = prefix + rule.template.time_text(row_ms)
            if not tables or tables[-1][0] != rule.table:
                puts = []
                tables.append((rule.table, puts))
            if head not in labels:
                labels[head] = list(_labels(rule, rule.template.parse_prefix(prefix)))
            puts += [Put(row, *label) for label in labels[head]]
        is_day = rule.template.time is RowTime.DAY
        puts.append(Put(row, day_column(field, time_ms - row_ms) if is_day else COLUMN + field, value))
    return tables


def _labels(rule: TableRule, tags: Mapping[str, str]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the columns that have tags, with these."""
    for field in rule.template.fields:
        if field.label:
            yield COLUMN + field.label.encode(), tags[field.tag].encode("latin-1")


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

    async def write(self, points: Columns, series: SeriesLookup) -> None:
        """Put points, see `PointWriter`."""
        ordered = await trio.to_thread.run_sync(sort_points, points, series, self._placing)
        async with self._index.lock:
            await self._index.ensure(ordered.keys, self._placing.listed)
            for start in range(0, len(ordered.times), SLICE_POINTS):
                part = slice(start, start + SLICE_POINTS)
                for table, cells in await trio.to_thread.run_sync(encode_points, ordered.at(part)):
                    await self._tables.store.put(table, cells)
                    self.cells += len(cells)
        self._on_points(points)

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """List the series of points, see `PointWriter`."""
        ordered = await trio.to_thread.run_sync(sort_points, points, series, self._placing)
        async with self._index.lock:
            await self._index.ensure(ordered.keys, self._placing.listed)

    async def sync(self) -> None:
        """Return when all that was put survives a crash."""
        await self._tables.store.sync()
