"""Which queries a daemon answers in the general way: only these select series."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.running import Running, running
from tsd.codec.metadata import Annotation
from tsd.config.settings import Config
from tsd.daemon.layouts import TableCallbacks, build_configured_tables
from tsd.daemon.settings import Clock
from tsd.store import Store
from tsd.tables import Tables
from tsd.tables.reading import PointReader, Selection, SeriesRequest


class CountingReader(PointReader):
    """A layout's reader that counts selections."""

    def __init__(self, inner: PointReader) -> None:
        self._inner = inner
        self.selections = 0
        self.changes = inner.changes
        self.selects_together = inner.selects_together

    async def select(self, request: SeriesRequest) -> Selection:
        """See PointReader."""
        self.selections += 1
        return await self._inner.select(request)

    async def global_annotations(self, first_s: int, last_s: int) -> list[Annotation]:
        """See PointReader."""
        return await self._inner.global_annotations(first_s, last_s)


class CountedQueries(Running):
    """A running daemon whose selections are counted."""

    reader: CountingReader
    short = 0  # queries of the test that were answered without a selection

    @property
    def selections(self) -> int:
        """Selections since the start."""
        return self.reader.selections


@asynccontextmanager
async def counted_queries(folder: Path, settings: dict[str, str]) -> AsyncIterator[CountedQueries]:
    """Run a daemon, see `tests.running.running`."""
    readers: list[CountingReader] = []

    def build_tables(config: Config, store: Store, now_ms: Clock, callbacks: TableCallbacks) -> Tables:
        tables = build_configured_tables(config, store, now_ms, callbacks)
        readers.append(CountingReader(tables.reader))
        return replace(tables, reader=readers[0])

    async with running(folder, settings, build_tables=build_tables) as daemon:
        counted = CountedQueries(daemon.daemon, daemon.port, daemon.stop)
        counted.reader = readers[0]
        yield counted
