"""Deletes points of queries from the tables of entities, before the layout deletes them from its own.

A query with `delete` reads the rows that it deletes. The pages are looked at on their way: each series has a range from
its first point to its last one, and what is written later than that stays.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import trio

from tsd.codec.entity.records import entity_series, series_column
from tsd.codec.metadata import Annotation
from tsd.codec.points import Batch
from tsd.codec.putline import split_tags
from tsd.errors import BadLine, BadQuery
from tsd.tables.entity.newest import EntityColumn
from tsd.tables.entity.removal import ALWAYS, Choice, EntityRemoval
from tsd.tables.reading import (
    EncodedPage,
    Places,
    PointDeleter,
    PointPage,
    PointReader,
    ScanRange,
    Selection,
    SeriesRequest,
    Take,
)
from tsd.tables.stored_windows import TimeRange, series_texts
from tsd.tables.writing import KnownSeries, SeriesKeys

SLICE = 500  # series that are handled at once
Spans = dict[int, tuple[int, int]]  # times of the first and the last point in ms, by the number of a series


class _SeenPage:
    """A page whose points are noted when it is decoded."""

    def __init__(self, page: EncodedPage[PointPage], note: Callable[[Batch], None]) -> None:
        self._page = page
        self._note = note
        self.cells = page.cells

    def series(self) -> Iterable[bytes]:
        """See EncodedPage."""
        return self._page.series()

    def decode(self) -> PointPage:
        """See EncodedPage."""
        page = self._page.decode()
        self._note(page.batch)
        return page


class _SeenPoints:
    """The range of times that each series of a selection has points in. Several threads may note pages."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._pages: list[Spans] = []

    def note(self, batch: Batch) -> None:
        """Note the rows of a page."""
        filled = np.flatnonzero(np.diff(batch.starts))
        first, last = batch.times[batch.starts[filled]], batch.times[batch.starts[filled + 1] - 1]
        found: Spans = {}
        _join(found, zip(batch.series[filled].tolist(), first.tolist(), last.tolist(), strict=True))
        self._pages.append(found)

    def taking(self, take: Take[PointPage]) -> Take[PointPage]:
        """Return a callback that notes pages and passes them on."""
        return lambda page: take(_SeenPage(page, self.note))

    async def remove(self, removal: EntityRemoval, tag: bytes, within: TimeRange = ALWAYS) -> None:
        """Delete the points of those series that have an entity, some at a time."""
        spans = await trio.to_thread.run_sync(self._spans)
        metric, series = self._selection.metric.encode("latin-1"), self._selection.series
        for start in range(0, len(series.series_pairs), SLICE):
            texts = await series_texts(metric, series, start, start + SLICE)
            found: list[tuple[EntityColumn, TimeRange]] = []
            for number, text in enumerate(texts, start):
                place = _place(metric, text.tags, tag) if number in spans else None
                if place is not None and (part := _common(spans[number], within)) is not None:
                    found.append((place, part))
            await removal.remove(found)
            await trio.lowlevel.checkpoint()

    def _spans(self) -> Spans:
        """Return the ranges of all pages."""
        spans: Spans = {}
        for page in self._pages:
            _join(spans, ((number, *span) for number, span in page.items()))
        return spans


def _join(spans: Spans, more: Iterable[tuple[int, int, int]]) -> None:
    for number, first, last in more:
        known = spans.get(number, (first, last))
        spans[number] = min(known[0], first), max(known[1], last)


def _place(metric: bytes, tags: bytes, tag: bytes) -> EntityColumn | None:
    """Return the place of a series, None if the tables have none for it."""
    try:
        found = entity_series(metric, split_tags(tags), tag)
        return None if found is None else EntityColumn(found[0], series_column(found[1]))
    except BadLine:
        return None


class DeletingSelection(Selection):
    """A selection of a layout that also deletes its points from the tables of entities."""

    def __init__(self, inner: Selection, removal: EntityRemoval, tag: bytes) -> None:
        self._inner = inner
        self._removal = removal
        self._tag = tag
        self._seen = _SeenPoints(inner)
        self.metric = inner.metric
        self.filter_tagks = inner.filter_tagks
        self.series = inner.series
        self.rollups = inner.rollups
        self.histograms = inner.histograms
        self.texts = inner.texts
        self.hours = inner.hours
        self.reads_beyond = inner.reads_beyond
        self.reads_hours_in_parts = inner.reads_hours_in_parts

    def pairs_of(self, keys: SeriesKeys) -> Sequence[bytes | None]:
        """See Selection."""
        return self._inner.pairs_of(keys)

    async def find_known(self, series: KnownSeries) -> Places | None:
        """See Selection."""
        return await self._inner.find_known(series)

    async def read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """See Selection."""
        await self._inner.read(span, self._seen.taking(take), annotations=annotations)

    async def read_few(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> bool:
        """See Selection."""
        return await self._inner.read_few(span, self._seen.taking(take), annotations=annotations)

    async def delete(self, read_ms: int) -> None:
        """See Selection."""
        await self._seen.remove(self._removal, self._tag)
        await self._inner.delete(read_ms)


class EntityReader(PointReader):
    """The reader of a layout, whose selections with `delete` also delete points of entities."""

    def __init__(self, inner: PointReader, removal: EntityRemoval, tag: bytes) -> None:
        """`tag` names the entity."""
        self._inner = inner
        self._removal = removal
        self._tag = tag
        self.changes = inner.changes
        self.selects_together = inner.selects_together

    async def select(self, request: SeriesRequest) -> Selection:
        """See PointReader."""
        found = await self._inner.select(request)
        return DeletingSelection(found, self._removal, self._tag) if request.delete else found

    async def global_annotations(self, first_s: int, last_s: int) -> list[Annotation]:
        """See PointReader."""
        return await self._inner.global_annotations(first_s, last_s)


class EntityDeleter(PointDeleter):
    """The deleter of a layout, which also deletes points of entities."""

    def __init__(self, inner: PointDeleter, reader: PointReader, removal: EntityRemoval, tag: bytes) -> None:
        """`reader` is the layout's. `tag` names the entity."""
        self._inner = inner
        self._reader = reader
        self._removal = removal
        self._tag = tag

    async def delete(self, request: SeriesRequest, first_ms: int, last_ms: int) -> None:
        """See PointDeleter. The points are read before, to find their series."""
        span = TimeRange(first_ms, last_ms + 1)
        try:
            selection = await self._reader.select(request)
        except BadQuery:  # of an unknown metric, for example: the layout has no points then
            pass
        else:
            await self._remove(selection, span)
        await self._inner.delete(request, first_ms, last_ms)

    async def _remove(self, selection: Selection, span: TimeRange) -> None:
        seen = _SeenPoints(selection)

        async def take(page: EncodedPage[PointPage]) -> None:
            await selection.series.match(page.series())
            seen.note((await trio.to_thread.run_sync(page.decode)).batch)

        await selection.read(span.hours, take, annotations=False)
        await seen.remove(self._removal, self._tag, span)

    async def delete_metric(self, metric: str) -> None:
        """See PointDeleter."""
        name = metric.encode("latin-1", "replace")
        await self._removal.remove_chosen(Choice(None, lambda _, series: series.metric == name), ALWAYS)
        await self._inner.delete_metric(metric)


def _common(span: tuple[int, int], within: TimeRange) -> TimeRange | None:
    """Return the part of a first to a last time that is within a range, None if there is none."""
    part = TimeRange(max(span[0], within.since_ms), min(span[1] + 1, within.until_ms))
    return part if part.since_ms < part.until_ms else None
