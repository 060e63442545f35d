"""The same points in tables of several layouts, read in small pages."""

import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import trio

from tsd.codec.opentsdb.rowkey import BASE_BYTES
from tsd.codec.points import Float64
from tsd.config.loader import Given, key_layout
from tsd.config.settings import Config
from tsd.daemon.builders import build_ingest
from tsd.daemon.layouts import build_configured_tables
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import create_tables
from tsd.errors import BadQuery
from tsd.ingest.intake import absorb_whole
from tsd.ingest.unstored_points import UnstoredPoints
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.model import Query
from tsd.query.result import SubAnswer
from tsd.store import CellPage, ColumnPart, Cursor, Page, RangeOf
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.column_blocks import EmbeddedBlocks
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.scheduling import IngestLoad
from tsd.tables.catalog import SeriesSelector
from tsd.tables.open_points import OpenPointSource
from tsd.tables.writing import Hours

COMMON = {
    "tsd.core.auto_create_metrics": "true",
    "tsd.tall.tables": "METRIC {host}#{ts} m.*; DAYS {host}#{day} d.*",
}


class LayoutForm(NamedTuple):
    """One way to keep points."""

    settings: Mapping[str, str] = {}
    on_disk: bool = True
    prefix: str = "m."  # of metrics: rows of events and of days are chosen by it
    folds: bool = False  # whether some hours are folded into blocks
    only_doubles: bool = False  # whether integers come back as doubles
    holds_hours: bool = False  # whether points of open hours stay in memory


BLOCKS = {"tsd.storage.blocks": "true", "tsd.storage.blocks_least_rows": "2"}
FORMS = {
    "salted": LayoutForm({"tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "3"}),
    "packed": LayoutForm(),
    "held": LayoutForm(holds_hours=True),
    "blocks": LayoutForm(BLOCKS, folds=True),
    "held-blocks": LayoutForm(BLOCKS, folds=True, holds_hours=True),
    "salted-blocks": LayoutForm({**BLOCKS, "tsd.storage.salt.width": "1", "tsd.storage.salt.buckets": "3"}, folds=True),
    "entity": LayoutForm({"tsd.entity.enabled": "true", "tsd.entity.tag": "host"}),
    "events": LayoutForm({"tsd.storage.layout": "tall"}),
    "events-in-memory": LayoutForm({"tsd.storage.layout": "tall"}, on_disk=False),
    "days": LayoutForm({"tsd.storage.layout": "tall"}, prefix="d."),
    "heroic": LayoutForm({"tsd.storage.layout": "heroic"}, only_doubles=True),
    "heroic-in-memory": LayoutForm({"tsd.storage.layout": "heroic"}, on_disk=False, only_doubles=True),
}
PLAIN = LayoutForm(on_disk=False)


class PagedBlocks:
    """Blocks of a store that are read in small pages."""

    def __init__(self, blocks: EmbeddedBlocks, limit_bytes: int) -> None:
        self._blocks, self._limit_bytes = blocks, limit_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def read_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, range_of: RangeOf | None = None
    ) -> AsyncGenerator[list[ColumnPart], None]:
        """See ColumnBlocks."""
        limit = min(limit_bytes, self._limit_bytes)
        return self._blocks.read_columns(table, start, stop, limit_bytes=limit, range_of=range_of)


class SmallPages:
    """Mixin of a store that returns pages of few rows."""

    limit_rows = 1000

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, **others: Any) -> Page:
        """See Store."""
        store: Any = super()
        found: Page = await store.page(table, start, stop, limit=min(limit, self.limit_rows), **others)
        return found


class PagedStore(SmallPages, EmbeddedStore):
    """An embedded store that returns small pages."""

    limit_bytes = 1 << 30

    @property
    def column_blocks(self) -> Any:
        """See Store."""
        return PagedBlocks(super().column_blocks, self.limit_bytes)

    async def read_cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """See CellReader."""
        limit = min(limit_bytes, self.limit_bytes)
        return await super().read_cells(table, start, stop, limit_bytes=limit, cursor=cursor)


class PagedMemory(SmallPages, MemoryStore):
    """A store in memory that returns small pages."""


class ShownGroup(NamedTuple):
    """A series of an answer."""

    tags: list[tuple[str, str]]
    aggregate_tags: list[str]
    times: list[int]
    floats: list[bool]
    values: Float64


class ShownSub(NamedTuple):
    """The answer to a sub query."""

    groups: list[ShownGroup]
    warnings: list[str]


Shown = list[ShownSub] | int  # or the status of an error


class OpenRows:
    """Points in memory, as a writer returns them; `flush` writes them."""

    def __init__(self, points: UnstoredPoints, flush: Callable[[], Awaitable[None]]) -> None:
        self._flush = flush
        self.open_points, self.known_series, self.points_now = (
            points.open_points,
            points.known_series,
            points.points_now,
        )

    async def flush(self, *, patient: bool = True) -> bool:
        """See OpenPointSource."""
        await self._flush()
        return True


class LayoutWorld:
    """Tables of one layout, and an engine over them."""

    def __init__(self, form: LayoutForm, config: Config, store: Any, now_ms: Callable[[], int]) -> None:
        self.form, self.config, self.store = form, config, store
        self._flushes = 0
        self.tables = build_configured_tables(config, store, now_ms)
        hold_s = math.inf if form.holds_hours else 0
        self.ingest = build_ingest(config, self.tables, IngestLoad(), now_ms, hold_s=hold_s)
        self.tables.include_open_points(self.open_points())
        self.engine = QueryEngine(
            self.tables.reader,
            settings=EngineSettings(),
            flush=self.flush_metric,
            now_ms=now_ms,
            open_points=self.open_points(),
        )

    def open_points(self) -> OpenPointSource:
        """Return the points in memory."""
        return OpenRows(self.ingest.unstored, self.flush)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run what writes points."""
        yield

    async def put(self, lines: Sequence[str], *, stored: bool = True) -> None:
        """Accept points, and unless `stored` is false write all points accepted so far as one window."""
        absorbed = await absorb_whole(self.ingest.open_window, self.tables.resolver, self._text(lines))
        assert not absorbed.rejects, absorbed.rejects
        if stored:
            await self.flush()

    def _text(self, lines: Sequence[str]) -> bytes:
        return "".join(f"put {self.form.prefix}{line}\n" for line in lines).encode()

    async def flush(self) -> None:
        """Write the points that are in memory: every second time straight to blocks, if there are blocks."""
        self._flushes += 1
        hours = Hours.OVER if self.form.folds and self._flushes % 2 else Hours.OPEN
        await self.tables.writer.write(self.ingest.open_window.take(), self.ingest.open_window.table, hours=hours)

    async def flush_metric(self, _: bytes) -> bool:
        """Write the points of a metric that a query cannot read from memory."""
        await self.flush()
        return True

    async def fold(self, dice: random.Random) -> None:
        """Fold some hours into blocks."""
        if not self.form.folds:
            return
        layout = key_layout(self.config)
        width = layout.metric_end + BASE_BYTES
        page = await EmbeddedStore.page(self.store, self.config.data_table, b"", None, limit=1000)
        for prefix in sorted({row.key[:width] for row in page.rows}):
            if dice.random() < 0.6:
                await self.store.column_blocks.fold(self.config.data_table, prefix)

    def cut_pages(self, rows: int, size: int) -> None:
        """Let pages have so many rows, or bytes."""
        self.store.limit_rows = rows
        if isinstance(self.store, PagedStore):
            self.store.limit_bytes = size

    async def answer(self, query: Query) -> "Shown":
        """Return what an answer shows, groups in order of their tags, or the status of an error."""
        try:
            return [shown_of(sub) for sub in (await self.engine.run(query)).subs]
        except BadQuery as error:
            return error.status

    async def newest(self, metric: str, back_h: int | None) -> dict[tuple[tuple[str, str], ...], tuple[int, float]]:
        """Return the newest points of the series of a metric."""
        catalog = self.tables.catalog
        selected = await catalog.select(SeriesSelector(self.form.prefix + metric, ()))
        series = [one async for page in selected.pages() for one in page]
        found = await catalog.last_points(series, back_h)
        assert not found.warnings
        named = {one.series: tuple(sorted(one.tags.items())) for one in await catalog.describe(series)}
        return {
            named[one]: (point.time_ms, float(point.number))
            for one, point in zip(series, found.points, strict=True)
            if point is not None
        }


class HoldingWorld(LayoutWorld):
    """One whose writer holds the points of open hours, as that of a daemon does."""

    def __init__(self, form: LayoutForm, config: Config, store: Any, now_ms: Callable[[], int]) -> None:
        # So little memory that points are packed, and that some hours are written before their end.
        super().__init__(form, replace(config, memory_limit=3 << 20), store, now_ms)

    def open_points(self) -> OpenPointSource:
        """Return the points in memory."""
        return self.ingest.unstored

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run what writes points. In the end all are stored."""
        writer, journal = self.ingest.writer, self.ingest.journal
        journal.recover()
        async with trio.open_nursery() as disk:
            disk.start_soon(journal.run)
            async with trio.open_nursery() as writers:
                writers.start_soon(writer.write_windows)
                async with trio.open_nursery() as watching:
                    watching.start_soon(writer.watch_journal)
                    watching.start_soon(writer.pack_hours)
                    yield
                    watching.cancel_scope.cancel()
                writer.finish()
            journal.close()

    async def put(self, lines: Sequence[str], *, stored: bool = True) -> None:
        """Accept points, and unless `stored` is false write those that no open hour holds."""
        text = self._text(lines)
        while text:
            taken = await self.ingest.intake.take(text)
            assert not taken.rejects, taken.rejects
            text = taken.rest
        if stored:
            assert await self.ingest.writer.flush_due()

    async def flush(self) -> None:
        """Write the points that are in memory."""
        assert await self.ingest.writer.flush()

    async def flush_metric(self, metric: bytes) -> bool:
        """Write the points of a metric that a query cannot read from memory, but those of open hours."""
        return await self.ingest.writer.write_metric(metric)


def shown_of(sub: SubAnswer) -> ShownSub:
    """Return what an answer shows, groups in order of their tags."""
    groups = [
        ShownGroup(
            sorted(group.tags.items()),
            sorted(group.aggregate_tags),
            group.points.times.tolist(),
            group.points.floats.tolist(),
            group.points.doubles(),
        )
        for group in sub.groups
    ]
    return ShownSub(sorted(groups, key=lambda one: (one.tags, one.aggregate_tags)), sub.warnings)


def differs(found: Shown, wanted: Shown) -> bool:
    """Return whether answers differ by more than the last digits of numbers, which depend on the order of sums."""
    if isinstance(found, int) or isinstance(wanted, int):
        return found != wanted
    pairs = list(zip(found, wanted, strict=True))
    if any(one.warnings != two.warnings or len(one.groups) != len(two.groups) for one, two in pairs):
        return True
    groups = [pair for one, two in pairs for pair in zip(one.groups, two.groups, strict=True)]
    return any(
        one[:-1] != two[:-1] or not np.allclose(one.values, two.values, rtol=1e-7, atol=1e-5, equal_nan=True)
        for one, two in groups
    )


@asynccontextmanager
async def opened_worlds(
    forms: Mapping[str, LayoutForm], folder: Path, now_ms: Callable[[], int]
) -> AsyncIterator[dict[str, LayoutWorld]]:
    """Open the tables of each form."""
    async with AsyncExitStack() as stack:
        worlds: dict[str, LayoutWorld] = {}
        for name, form in forms.items():
            given = {**COMMON, **form.settings, "tsd.storage.path": str(folder / name)}
            config, _ = read_config(Given("test", key, value) for key, value in given.items())
            (folder / name).mkdir()
            store: Any = await PagedStore.open(folder / name / "db", now_ms) if form.on_disk else PagedMemory(now_ms)
            stack.push_async_callback(store.aclose)
            worlds[name] = await stack.enter_async_context(made_world(form, config, store, now_ms))
        yield worlds


@asynccontextmanager
async def made_world(
    form: LayoutForm, config: Config, store: Any, now_ms: Callable[[], int]
) -> AsyncIterator[LayoutWorld]:
    """Make the tables of a form in a store."""
    await create_tables(config, store, "NONE")
    world = (HoldingWorld if form.holds_hours else LayoutWorld)(form, config, store, now_ms)
    async with world.running():
        yield world
