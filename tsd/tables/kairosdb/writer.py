"""Windows of points → KairosDB's tables: index rows first, then the points of each row together.

Of several points of a series at one time and of one type, the last to arrive is kept. A whole number, a double and a
text at one time are all kept, as in KairosDB. The last number gets a later write timestamp, so that a reader that wants
one number for each time finds it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.kairosdb.keys import DOUBLE, LONG, STRING, DataRow
from tsd.codec.kairosdb.rows import RowSpec
from tsd.codec.kairosdb.values import encode_doubles, encode_longs, encode_text
from tsd.codec.points import Bool, Columns, Int64
from tsd.codec.putline import NameRules, Tags, illegal
from tsd.codec.text import FLOAT, LENGTH
from tsd.codec.textline import parse_text_line
from tsd.tables.kairosdb.index import IndexRows, RowTime, SeriesType, longest
from tsd.tables.kairosdb.points import RowPut
from tsd.tables.kairosdb.series import TTL_BYTES, ttl_of
from tsd.tables.kairosdb.tables import KairosTables
from tsd.tables.writing import SeriesKey, SeriesLookup, Summary, SummaryBatch

SLICE_POINTS = 20_000  # encoded at once
SINGLE = 3  # length bits of a value of four bytes
STAMPS = 2  # of a window: for points that others at the same time replace, and for all others


class Encoded(NamedTuple):
    """Points of a slice, and the index rows that they need."""

    puts: list[RowPut]
    rows: dict[RowTime, dict[SeriesType, int]]


class SortedPoints(NamedTuple):
    """Points of a window by series, type and time, each place once."""

    series: list[SeriesKey]
    numbers: Int64  # of each point's series, in `series`
    times: Int64
    floats: Bool
    bits: Int64
    replaced: Bool  # by a point of another type at the same time


def sort_points(points: Columns, series: SeriesLookup, spec: RowSpec) -> SortedPoints:
    """Return a window's points in the order in which they are put."""
    present, places = np.unique(points.series, return_inverse=True)
    keys = list(series.keys(present))
    firsts: dict[tuple[bytes, bytes], int] = {}  # series that differ in their time to live only share rows
    same = [firsts.setdefault((key.head, key.tail[TTL_BYTES:]), at) for at, key in enumerate(keys)]
    rows = np.array(same, np.int64)[places] if keys else np.empty(0, np.int64)
    times = points.instants >> 1
    floats = (points.flags & FLOAT) != 0
    slots = spec.read_times(times)  # equal for times of one column
    order = np.lexsort((slots, floats, rows))
    last = np.ones(len(order), np.bool_)
    for values in (slots, floats, rows):
        ordered = values[order]
        last[:-1] &= ordered[1:] == ordered[:-1]
    last[:-1] = ~last[:-1]
    order = order[last]
    by_time = np.lexsort((order, slots[order], rows[order]))
    arrived = order[by_time]
    again = (slots[arrived][1:] == slots[arrived][:-1]) & (rows[arrived][1:] == rows[arrived][:-1])
    replaced = np.zeros(len(order), np.bool_)
    replaced[by_time[:-1][again]] = True
    bits, singles = points.bits[order], floats[order] & ((points.flags[order] & LENGTH) == SINGLE)
    doubles = bits.astype(np.uint32).view(np.float32).astype(np.float64).view(np.int64)
    return SortedPoints(keys, places[order], times[order], floats[order], np.where(singles, doubles, bits), replaced)


def encode_points(points: SortedPoints, part: slice, spec: RowSpec, stamp_ms: int) -> Encoded:
    """Encode a part of a window. `stamp_ms` is the first of STAMPS write timestamps."""
    numbers, times, floats = points.numbers[part], points.times[part], points.floats[part]
    rows = spec.row_times(times)
    columns = spec.columns(times - rows, 0)
    values: list[bytes] = [b""] * len(times)
    for chosen, encode in ((floats, encode_doubles), (~floats, encode_longs)):
        for at, value in zip(np.flatnonzero(chosen).tolist(), encode(points.bits[part][chosen]), strict=True):
            values[at] = value
    stamps = (stamp_ms + ~points.replaced[part]).tolist()
    starts = np.flatnonzero(
        np.diff(numbers, prepend=-1).astype(np.bool_)
        | np.diff(rows, prepend=rows[:1] - 1).astype(np.bool_)
        | np.diff(floats.view(np.int8), prepend=2).astype(np.bool_)
    ).tolist()
    encoded = Encoded([], {})
    for start, end in zip(starts, [*starts[1:], len(times)], strict=True):
        key = points.series[numbers[start]]
        row = DataRow(key.head.decode(), int(rows[start]), DOUBLE if floats[start] else LONG, key.tail[TTL_BYTES:])
        add_row(encoded, row, ttl_of(key), columns[start:end], values[start:end], stamps[start:end])
    return encoded


def add_row(
    encoded: Encoded, row: DataRow, ttl_s: int, columns: Sequence[bytes], values: Sequence[bytes], stamps: Sequence[int]
) -> None:
    """Add points of one row."""
    encoded.puts.append(RowPut(row.encode(), columns, values, ttl_s, stamps))
    lives = encoded.rows.setdefault(RowTime(row.metric, row.row_ms), {})
    series = SeriesType(row.type, row.tags)
    lives[series] = longest((ttl_s, lives.get(series, ttl_s)))


class KairosWriter:
    """Writes points into KairosDB's tables: the layout's `PointWriter`."""

    def __init__(self, tables: KairosTables, index: IndexRows, rules: NameRules) -> None:
        self._tables = tables
        self._index = index
        self.points = 0  # put since the start
        self.summaries = TextWriter(self, rules)

    @property
    def cells(self) -> int:
        """Cells put since the start."""
        return self.points

    async def write(self, points: Columns, series: SeriesLookup) -> None:
        """Put points, see `PointWriter`."""
        spec = await self._tables.spec()
        stamp = self._tables.stamps(STAMPS)
        ordered = await trio.to_thread.run_sync(sort_points, points, series, spec)
        for start in range(0, len(ordered.times), SLICE_POINTS):
            part = slice(start, start + SLICE_POINTS)
            await self.put(spec, await trio.to_thread.run_sync(encode_points, ordered, part, spec, stamp))

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """Do nothing: Cassandra gets every window, so no points are written later."""

    async def put(self, spec: RowSpec, encoded: Encoded) -> None:
        """Put encoded points, after their index rows."""
        lifetime = self._tables.lifetime
        puts = (put._replace(ttl_s=lifetime(put.ttl_s)) if put.ttl_s else put for put in encoded.puts)
        async with self._index.lock:
            await self._index.ensure(spec, encoded.rows)
            await self._tables.put_points(puts)
        self.points += sum(len(put.values) for put in encoded.puts)

    async def sync(self) -> None:
        """Do nothing: Cassandra acknowledges a write after enough replicas have logged it."""
        await trio.lowlevel.checkpoint()

    async def put_texts(self, texts: "TextBatch") -> None:
        """Put the texts of a window."""
        spec = await self._tables.spec()
        encode = partial(encode_texts, spec=spec, stamp_ms=self._tables.stamps())
        for part in texts.slices():
            await self.put(spec, await trio.to_thread.run_sync(encode, part))


Texts = list[tuple[SeriesKey, int, bytes]]  # series, time in ms, encoded value


def encode_texts(texts: Texts, *, spec: RowSpec, stamp_ms: int) -> Encoded:
    """Encode texts, in order of arrival."""
    rows: dict[tuple[DataRow, int], dict[bytes, bytes]] = {}
    for key, time_ms, value in texts:
        row_ms = spec.row_time(time_ms)
        [column] = spec.columns(np.array([time_ms]), row_ms)
        row = DataRow(key.head.decode(), row_ms, STRING, key.tail[TTL_BYTES:])
        rows.setdefault((row, ttl_of(key)), {})[column] = value
    encoded = Encoded([], {})
    for (row, ttl_s), cells in rows.items():
        add_row(encoded, row, ttl_s, list(cells), list(cells.values()), [stamp_ms] * len(cells))
    return encoded


class TextSummary(NamedTuple):
    """A line of a text point."""

    metric: bytes
    tags: Tags
    time_ms: int
    value: bytes


class TextBatch:
    """Texts of one window. Of several at one place the last one counts."""

    def __init__(self) -> None:
        self.lines = 0
        self.size = 0
        self.metrics: set[bytes] = set()
        self._texts: dict[tuple[SeriesKey, int], bytes] = {}

    def add(self, summary: Summary, key: SeriesKey) -> None:
        """Add the text of a line whose series has a key."""
        assert isinstance(summary, TextSummary)
        self._texts[key, summary.time_ms] = summary.value
        self.lines += 1
        self.size += len(summary.value) + len(key.tail)
        self.metrics.add(summary.metric)

    def slices(self) -> Iterator[Texts]:
        """Yield the texts by series, some at a time."""
        texts = sorted((*place, value) for place, value in self._texts.items())
        for start in range(0, len(texts), SLICE_POINTS):
            yield texts[start : start + SLICE_POINTS]


class TextWriter:
    """Writes lines of text points, as the other lines of summaries are written. It knows no rollups or histograms."""

    def __init__(self, writer: KairosWriter, rules: NameRules) -> None:
        self._writer = writer
        self._rules = rules

    def parse(self, line: bytes) -> Summary:
        """Parse a line of a text point. Raise BadLine."""
        verb = line.partition(b" ")[0].decode("latin-1")
        if verb in ("rollup", "histogram"):
            raise illegal(f"KairosDB's tables have no place for a {verb}")
        metric, tags, time_ms, text = parse_text_line(line, self._rules)
        try:
            return TextSummary(metric, tags, time_ms, encode_text(text))
        except ValueError as exc:
            raise illegal(str(exc)) from None

    def new_batch(self) -> TextBatch:
        """Return an empty batch."""
        return TextBatch()

    async def write(self, batch: SummaryBatch) -> None:
        """Put the texts of a batch."""
        assert isinstance(batch, TextBatch)
        await self._writer.put_texts(batch)
