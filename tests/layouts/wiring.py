"""How a daemon gets the layout of `tests.layouts.readable`: what `tsd.daemon.wiring` does for OpenTSDB's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.layouts.readable import (
    POINTS,
    SERIES,
    TABLES,
    ReadableCatalog,
    ReadableReader,
    ReadableSeries,
    ReadableWriter,
)
from tsd.config.settings import Config
from tsd.daemon.layouts import TableCallbacks
from tsd.daemon.settings import Clock
from tsd.store import Store
from tsd.store.memory import MemoryStore
from tsd.tables import Tables


def readable_layout(store: MemoryStore) -> dict[str, Any]:
    """Return the options of `tsd.daemon.lifecycle.serve` for the layout on a store, which outlives the daemon."""

    @asynccontextmanager
    async def open_store(*_: object) -> AsyncIterator[Store]:
        await store.create_tables(TABLES)
        yield store

    return {"open_store": open_store, "build_tables": build_tables}


def build_tables(config: Config, store: Store, now_ms: Clock, _: TableCallbacks) -> Tables:
    """Build the faces of the layout."""
    known = ReadableSeries(store, creates_metrics=config.creates_metrics)
    reader = ReadableReader(store, known)
    return Tables(
        ReadableCatalog(store, known, now_ms),
        reader,
        series_reader=reader,
        resolver=known,
        writer=ReadableWriter(store),
        check=trio.lowlevel.checkpoint,
        drop_caches=lambda: None,
        statistics=list,
        required=(POINTS, SERIES),
    )
