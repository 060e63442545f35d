"""Reads the points of a metric from the tables of any layout, window by window, as they would come from ingest."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.names import Kind
from tsd.codec.points import Batch, Columns, Int32, Int64, joined_columns, shortest
from tsd.codec.putline import HOUR_S
from tsd.tables.reading import EncodedPage, PointPage, PointReader, ScanRange, Selection, SeriesRequest, SeriesSet
from tsd.tables.writing import NO_KEY, SeriesKeys, SeriesText

WINDOW_POINTS = 100_000  # handled together


class TimeRange(NamedTuple):
    """Times in Unix milliseconds, from `since_ms` to before `until_ms`."""

    since_ms: int
    until_ms: int

    @property
    def hours(self) -> ScanRange:
        """The hours that have these times."""
        return ScanRange(self.since_ms // 1000 // HOUR_S * HOUR_S, -(-self.until_ms // 1000 // HOUR_S) * HOUR_S)


class TextLookup:
    """The texts of the series of one metric, by number. They have no keys."""

    def __init__(self) -> None:
        self.texts: list[SeriesText] = []

    def keys(self, numbers: Int32) -> SeriesKeys:
        """See SeriesLookup."""
        return SeriesKeys.of(NO_KEY for _ in numbers)

    def text(self, number: int) -> SeriesText | None:
        """See SeriesLookup."""
        return self.texts[number]

    def generations(self, numbers: Int32) -> Int64:
        """See SeriesLookup."""
        return np.ones(len(numbers), np.int64)


OnWindow = Callable[[Columns, TextLookup], Awaitable[None]]


async def read_metric(
    reader: PointReader, metric: str, span: TimeRange, on_window: OnWindow, on_warning: Callable[[str], None]
) -> None:
    """Pass the stored points of a metric to `on_window`, those of one series in order of time, and what could not be
    read to `on_warning`. Raise StoreError and what `on_window` raises."""
    reading = _Reading(metric, span, on_window, on_warning)
    selection = await reader.select(SeriesRequest(metric))
    await selection.read(span.hours, partial(reading.take, selection), annotations=False)
    await reading.finish()
    for warning in selection.series.warnings():
        on_warning(f"metric {metric}: {warning}")


class _Reading:
    """Points that wait for their window."""

    def __init__(self, metric: str, span: TimeRange, on_window: OnWindow, on_warning: Callable[[str], None]) -> None:
        self._metric = metric
        self._span = span
        self._on_window = on_window
        self._on_warning = on_warning
        self._lookup = TextLookup()
        self._parts: list[Columns] = []

    async def take(self, selection: Selection, page: EncodedPage[PointPage]) -> None:
        await selection.series.match(page.series())
        decoded = await trio.to_thread.run_sync(page.decode)
        for warning in decoded.warnings:
            self._on_warning(f"metric {self._metric}: {warning}")
        await self._name(selection.series)
        self._parts.append(await trio.to_thread.run_sync(window_of, decoded.batch, self._span))
        if sum(len(part.series) for part in self._parts) >= WINDOW_POINTS:
            await self.finish()

    async def finish(self) -> None:
        """Pass the points on."""
        columns, self._parts = joined_columns(self._parts), []
        if len(columns.series):
            await self._on_window(columns, self._lookup)

    async def _name(self, series: SeriesSet) -> None:
        """Make the texts of new series known."""
        self._lookup.texts += await series_texts(self._metric.encode("latin-1"), series, len(self._lookup.texts))


async def series_texts(metric: bytes, series: SeriesSet, start: int, stop: int | None = None) -> list[SeriesText]:
    """Return the texts of the series of a metric from the number `start` to before `stop` (None: the end)."""
    named = await series_tags(series, start, stop)
    return [SeriesText(metric, " ".join(map("=".join, tags.items())).encode("latin-1")) for tags in named]


async def series_tags(series: SeriesSet, start: int, stop: int | None = None) -> list[dict[str, str]]:
    """Return the tags of series from the number `start` to before `stop` (None: the end). Raise StoreError."""
    return await named_tags(series, [series.widths.tags(pairs) for pairs in series.series_pairs[start:stop]])


async def named_tags(series: SeriesSet, each: Sequence[Mapping[bytes, bytes]]) -> list[dict[str, str]]:
    """Return the tags of each of some series, given by their ids, with names. Raise StoreError."""
    if not each:
        return []
    tagks = await series.names(Kind.TAGK, list(dict.fromkeys(uid for tags in each for uid in tags)))
    tagvs = await series.names(Kind.TAGV, list(dict.fromkeys(uid for tags in each for uid in tags.values())))
    return [{tagks[tagk]: tagvs[tagv] for tagk, tagv in tags.items()} for tags in each]


def window_columns(batch: Batch) -> Columns:
    """Return points that were read in the form of a window: numbers in as few bytes as they need, as ingest has them.

    >>> batch = Batch(np.array([7], np.int32), np.array([0, 2]), np.array([2000, 2500]), np.array([5, 300]),
    ...     np.zeros(2, np.bool_))
    >>> made = window_columns(batch)
    >>> made.series.tolist(), made.instants.tolist(), made.flags.tolist()
    ([7, 7], [4000, 5001], [0, 1])
    """
    series = np.repeat(batch.series, np.diff(batch.starts)).astype(np.int32)
    times, floats = batch.times, batch.floats
    flags, bits = shortest(batch.bits.copy(), np.ascontiguousarray(floats))
    return Columns(series, times << 1 | (times % 1000 != 0), flags, bits)


def window_of(batch: Batch, span: TimeRange) -> Columns:
    """Return the points of a span in the form of a window."""
    return window_columns(batch).at((batch.times >= span.since_ms) & (batch.times < span.until_ms))


def metrics_from(metrics: Sequence[str], done: str) -> list[str]:
    """Return the metrics after `done` in the order of their bytes; all if it is empty."""
    return [one for one in metrics if not done or one.encode("latin-1", "replace") > done.encode("latin-1", "replace")]
