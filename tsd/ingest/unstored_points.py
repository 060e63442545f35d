"""Reads points that are accepted and not stored yet: answers have them in addition to the store's points."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import trio

from tsd.codec.points import NO_COLUMNS, Columns, Int32, Int64
from tsd.codec.putline import split_tags
from tsd.errors import BadLine, StoreDown
from tsd.ingest.found_points import MOST_TOGETHER, FoundPoints
from tsd.ingest.metric_points import few_points_of_metric, points_of_metric
from tsd.ingest.open_hours import are_few, choose_series, indexed, points_of_series
from tsd.ingest.writer import Writer
from tsd.tables.open_points import ChooseSeries, MayPass, OpenPoints
from tsd.tables.reading import ScanRange
from tsd.tables.writing import KnownSeries, SeriesKeys, SeriesText

SERIES_AT_ONCE = 500  # without keys, that are tested without a checkpoint: some 2 ms


class UnstoredPoints:
    """The points of a writer that are not stored: an `OpenPointSource` and an `OpenSeriesSource`."""

    def __init__(self, writer: Writer, text_of: Callable[[SeriesText], SeriesText] = lambda text: text) -> None:
        """`text_of`: see Tables."""
        self._writer = writer
        self._table = writer.table
        self._text_of = text_of
        self._found = FoundPoints()

    async def wait_for_keys(self, metric: bytes, may_pass: MayPass | None = None) -> bool:
        """Return whether points of a metric wait for keys, see `OpenPointSource`."""
        return await self._may_any_pass(self._table.unresolved_of(metric), may_pass)

    async def _may_any_pass(self, numbers: Sequence[int], may_pass: MayPass | None) -> bool:
        """Return whether a request may match one of some series without keys."""
        if may_pass is None:
            return bool(numbers)
        for at, number in enumerate(numbers):
            if at and at % SERIES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()  # a series that gets its key meanwhile has its points in the store
            text = self._table.text(number)
            with suppress(BadLine):  # the series will be refused
                if text is not None and may_pass(split_tags(self._text_of(text).tags)):
                    return True
        return False

    def known_series(self, metric: bytes) -> KnownSeries | None:
        """Return the series of a metric, see `OpenPointSource`."""
        table = self._table
        return None if table.unresolved or table.refused else table.known_series(metric)

    def points_now(
        self, metric: bytes, span: ScanRange, known: KnownSeries | None, numbers: Int32 | None
    ) -> Columns | None:
        """Return the points of few series that are not stored, see `OpenPointSource`."""
        parts = self._writer.unstored(metric, span)
        if parts == []:
            return NO_COLUMNS
        if parts is None or known is None or numbers is None or self.known_series(metric) is not known:
            return None
        return self._found.of_series(self._table.metric_number(metric), numbers, parts)

    async def points_soon(self, metric: bytes, span: ScanRange, known: KnownSeries, numbers: Int32) -> Columns | None:
        """Return the same with a wait for a thread, see `OpenPointSource`."""
        parts, evicted = self._writer.unstored(metric, span), self._writer.evicted
        if parts is None or self.known_series(metric) is not known:
            return None
        columns = await self._found.find(self._table.metric_number(metric), numbers, parts)
        return columns if evicted == self._writer.evicted else None  # else numbers may have been reused

    async def open_points(
        self,
        metric: bytes,
        choose: ChooseSeries | None = None,
        span: ScanRange | None = None,
        may_pass: MayPass | None = None,
    ) -> OpenPoints | None:
        """Return the points of a metric that are not stored, see `OpenPointSource`."""
        table = self._table
        parts = self._writer.unstored(metric, span)
        if parts == []:  # as for most hours that are over
            return OpenPoints.of(NO_COLUMNS, table.keys(np.empty(0, np.int32)))
        while True:
            evicted = self._writer.evicted
            wanted = await choose_series(table, metric, choose)
            if parts is None:
                return None
            metric_number, metric_of = table.metric_number(metric), table.metric_numbers()[: table.texts.count]
            if wanted is not None and 0 < len(wanted) <= MOST_TOGETHER:
                few = np.sort(wanted)
                columns, present = indexed(await self._found.find(metric_number, few, parts))
                numbers = few[present]
                points_with: Callable[[SeriesKeys], OpenPoints] = partial(OpenPoints.of, columns)
            elif are_few(parts, chosen=wanted is not None):
                columns, numbers = indexed(few_points_of_metric(metric_number, wanted, parts, metric_of))
                points_with = partial(OpenPoints.of, columns)
            else:
                find = partial(points_of_metric, metric_number, wanted, parts, metric_of)
                found = await trio.to_thread.run_sync(find)
                numbers, points_with = found.numbers, found.open_points
            if evicted == self._writer.evicted:  # else numbers may have been reused during the search
                break
            parts = self._writer.unstored(metric, span)
        keys = table.keys(numbers)
        without_key = numbers[keys.lacking()].tolist()
        return None if await self._may_any_pass(without_key, may_pass) else points_with(keys)

    async def open_series(self, numbers: Int32, generations: Int64) -> Columns:
        """Return the points of series that are not stored, see `OpenSeriesSource`."""
        while True:
            same = self._table.generations(numbers) == generations
            numbers, generations = numbers[same], generations[same]
            if not len(numbers):
                return NO_COLUMNS
            parts = self._writer.unstored(None)
            if parts is None:
                await trio.lowlevel.checkpoint()
                if await self._writer.flush_due():
                    continue
                raise StoreDown(
                    f"points that only the journal has cannot be written to the store now: {self._writer.failure}"
                )
            if not parts:
                await trio.lowlevel.checkpoint()
                return NO_COLUMNS
            evicted = self._writer.evicted
            columns = await trio.to_thread.run_sync(points_of_series, numbers, parts)
            if evicted == self._writer.evicted:  # else numbers may have been reused during the search
                return columns

    async def flush(self, *, patient: bool = True) -> bool:
        """Write all points accepted so far, see `Writer.flush`."""
        return await self._writer.flush(patient=patient)
