"""Windows of points → KairosDB's tables: index rows first, then the points of each row together."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.kairosdb.keys import STRING, DataRow
from tsd.codec.kairosdb.rows import RowSpec
from tsd.codec.kairosdb.values import encode_text
from tsd.codec.points import Columns
from tsd.codec.putline import NameRules, Tags, illegal
from tsd.codec.textline import parse_text_line
from tsd.tables.kairosdb.encode import STAMPS, Encoded, Moment, encode_points, encode_rows, sort_points
from tsd.tables.kairosdb.index import IndexRows
from tsd.tables.kairosdb.points import RowPut
from tsd.tables.kairosdb.series import TTL_BYTES, ttl_of
from tsd.tables.kairosdb.tables import KairosTables
from tsd.tables.writing import Hours, SeriesKey, SeriesLookup, Summary, SummaryBatch

SLICE_POINTS = 20_000  # encoded at once


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

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:  # noqa: ARG002
        """Put points, see `PointWriter`."""
        spec = await self._tables.spec()
        stamp = self._tables.stamps(STAMPS)
        ordered = await trio.to_thread.run_sync(sort_points, points, series, spec)
        for start in range(0, len(ordered.times), SLICE_POINTS):
            part = ordered.at(slice(start, start + SLICE_POINTS))
            await self.put(spec, partial(encode_points, part, spec, stamp))

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """Do nothing: Cassandra gets every window, so no points are written later."""

    async def put(self, spec: RowSpec, encode: Callable[[Moment], Encoded]) -> None:
        """Put the points that `encode`, which runs in a thread, returns, after their index rows."""
        async with self._index.lock:  # what the index has stays until the points are put
            moment = Moment(self._index.known, self._tables.now_s(), self._tables.most_ttl_s())
            encoded = await trio.to_thread.run_sync(encode, moment)
            await self._index.ensure(spec, encoded.wanted, encoded.places)
            await self._tables.put_points(encoded.batches)
        self.points += sum(len(batch.points) for batch in encoded.batches)

    async def sync(self) -> None:
        """Do nothing: Cassandra acknowledges a write after enough replicas have logged it."""
        await trio.lowlevel.checkpoint()

    async def put_texts(self, texts: "TextBatch") -> None:
        """Put the texts of a window."""
        spec = await self._tables.spec()
        stamp = self._tables.stamps()
        for part in texts.slices():
            await self.put(spec, partial(encode_texts, part, spec, stamp))


Texts = list[tuple[SeriesKey, int, bytes]]  # series, time in ms, encoded value


def encode_texts(texts: Texts, spec: RowSpec, stamp_ms: int, moment: Moment) -> Encoded:
    """Encode texts, in order of arrival."""
    rows: dict[tuple[DataRow, int], dict[bytes, bytes]] = {}
    for key, time_ms, value in texts:
        row_ms = spec.row_time(time_ms)
        [column] = spec.columns(np.array([time_ms]), row_ms)
        row = DataRow(key.head.decode(), row_ms, STRING, key.tail[TTL_BYTES:])
        rows.setdefault((row, ttl_of(key)), {})[column] = value
    puts = (
        RowPut(row.encode(), list(cells), list(cells.values()), ttl_s, [stamp_ms] * len(cells))
        for (row, ttl_s), cells in rows.items()
    )
    return encode_rows(puts, moment)


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
