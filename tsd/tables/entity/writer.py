"""Writes points to the tables of a layout and to those of entities.

A call returns only when both have the points, so their segment of the journal stays until then: after a crash between
the two, the replay writes both again.
"""

from collections.abc import Callable

import trio

from tsd.codec.points import Columns
from tsd.lazy import LazyLogger
from tsd.store import VersionedCells
from tsd.tables.entity.encode import encode
from tsd.tables.entity.metadata import MetadataWriter
from tsd.tables.entity.newest import Newest, NewestValues
from tsd.tables.entity.tables import ENTITIES, NEWEST, check_tables
from tsd.tables.writing import Hours, PointWriter, SeriesLookup, SummaryWriter

log = LazyLogger(__name__)

SLICE = 4096  # series that are handled at once


def log_skipped(series: int) -> None:
    """Log that series are left out of the tables of entities."""
    log.warning("entity.series_skipped", series=series)


class EntityWriter(PointWriter):
    """Passes points to the layout's writer, then writes them to the entity tables."""

    def __init__(
        self,
        inner: PointWriter,
        cells: VersionedCells,
        newest: NewestValues,
        on_skipped: Callable[[int], None] = log_skipped,
        extra: bytes = b"",
    ) -> None:
        """`on_skipped` gets the number of new series whose names the tables cannot have. `extra`: see NameRules."""
        self._inner = inner
        self._on_skipped = on_skipped
        self._cells = cells
        self._newest = newest
        self._metadata = MetadataWriter(inner.summaries, cells, newest.check_name, extra)
        self._is_checked = False

    @property
    def cells(self) -> int:
        """See PointWriter: cells of the layout's tables."""
        return self._inner.cells

    @property
    def summaries(self) -> SummaryWriter | None:
        """See PointWriter: also metadata. Rollups and histograms are of no entity."""
        return self._metadata

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:
        """See PointWriter."""
        await self._inner.write(points, series, hours=hours)
        if len(points.series):
            await self._write_entities(points, series)

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """See PointWriter: newest values are known from now on, and written with their points."""
        await self._inner.record(points, series)
        if len(points.series):
            await self._note(points, series)

    async def sync(self) -> None:
        """See PointWriter."""
        await self._inner.sync()

    async def _note(self, points: Columns, series: SeriesLookup) -> Newest:
        """Make newest values known, and return them."""
        found = await trio.to_thread.run_sync(self._newest.find, points, series)
        if found.skipped:
            self._on_skipped(found.skipped)
        for at in range(0, len(found.numbers), SLICE):
            self._newest.add(found.at(slice(at, at + SLICE)))
            await trio.lowlevel.checkpoint()
        return found

    async def _write_entities(self, points: Columns, series: SeriesLookup) -> None:
        """Put points and the newest values of a window. Points without an entity are left out. Values that are newer in
        memory may have been deleted from the store. Raise WrongTable."""
        if not self._is_checked:  # in a table that keeps too few versions points would be lost
            await check_tables(self._cells)
            self._is_checked = True
        found = await self._note(points, series)
        places = await trio.to_thread.run_sync(lambda: self._newest.places(found.numbers.tolist()))
        if not places:
            return
        await self._cells.put_columns(ENTITIES.name, await trio.to_thread.run_sync(encode, points, places))
        for at in range(0, len(found.numbers), SLICE):
            part = found.at(slice(at, at + SLICE))
            some = {number: places[number] for number in part.numbers.tolist() if number in places}
            if some:
                newest = await trio.to_thread.run_sync(encode, part.points, some)
                await self._cells.put_columns(NEWEST.name, newest)
                self._newest.mark_stored(part.points)
