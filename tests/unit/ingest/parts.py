"""Ingest without a socket: intake, journal and writer on a store that fails on demand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests import layouts
from tests.flaky_store import FlakyStore
from tests.layouts import readable
from tests.layouts.readable import POINTS, ReadableSeries, ReadableWriter, points_of, rows_of, split_key, split_row
from tests.query_vectors import from_points
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.cell import FAMILY
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import data_cells, points, problems
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.codec.putline import NameRules
from tsd.ingest.accepted import AcceptedLines, Backpressure, Ledger
from tsd.ingest.intake import Intake, Taken
from tsd.ingest.journal.journal import Journal, JournalSettings
from tsd.ingest.limits import NewNameLimit
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.ingest.summaries import Summaries
from tsd.ingest.unstored_points import UnstoredPoints
from tsd.ingest.window_reader import WindowReader
from tsd.ingest.windows import SMALL_INTERVALS, Window, WindowSettings
from tsd.ingest.writer import Writer
from tsd.store import Family, Table, scan
from tsd.store.memory import MemoryStore
from tsd.store.scheduling import IngestLoad
from tsd.tables.opentsdb.resolver import AutoCreate, UidResolver
from tsd.tables.opentsdb.summaries import SummaryRules
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.opentsdb.writer import CellWriter, HourBlocks, OnCells
from tsd.tables.writing import PointWriter, SeriesResolver

BASE = 1356998400
SERIES = b"\0\0\1" + b"\0\0\1" + b"\0\0\1"
NO_SUMMARIES = SummaryRules(NameRules(), "tsdb")


class Parts:
    """Ingest without a socket. `run` runs it."""

    def __init__(
        self,
        folder: Path,
        store: FlakyStore,
        *,
        join: bool = True,
        memory_limit: int = 64 << 20,
        max_bytes: int = 1 << 30,  # of the journal
        metrics: bool = True,  # whether unknown ones are created
        max_unresolved: int = 1000,
        max_series: int = 0,
        rules: SummaryRules = NO_SUMMARIES,
        load: IngestLoad | None = None,
        hold_intervals: float = 0,
        interval_s: float = 3600,
        small_intervals: int = SMALL_INTERVALS,
        on_cells: OnCells | None = None,
        blocks: HourBlocks | None = None,
    ) -> None:
        self.store = store
        self.folder = folder
        self.now_s = 1_000_000  # the wall clock
        self.uptime_s = 1_000_000
        self.backpressure = Backpressure()
        self.ledger = Ledger()
        self.journal = Journal(
            folder / "journal",
            JournalSettings(0.001, max_bytes, retry_s=0.001),
            owner="0" * 32,
        )
        self.uids = Uids(store, "tsdb-uid", Widths())
        self.open_window = OpenWindow(SeriesTable(), NameRules())
        self.resolver: SeriesResolver = UidResolver(self.uids, KeyLayout(), AutoCreate(metrics, True, True))
        self.summary_rules = rules
        self.points: PointWriter = CellWriter(
            store,
            rules,
            join=join,
            on_cells=on_cells,
            blocks=blocks,
        )
        if layouts.is_readable():
            self.resolver = self.readable = ReadableSeries(store, creates_metrics=metrics)
            self.points = ReadableWriter(store)
        self.summaries = Summaries(self.resolver, self.points.summaries, lambda: BASE * 1000)
        reader = WindowReader(
            self.open_window, self.resolver, self.journal, self.summaries, folder / "refused", lambda: self.uptime_s
        )
        accepted = AcceptedLines(self.open_window, self.journal, self.ledger, self.backpressure)
        self.writer = Writer(
            accepted,
            reader,
            self.points,
            WindowSettings(
                interval_s=interval_s,
                memory_limit=memory_limit,
                series_ttl_s=7200,
                hold_intervals=hold_intervals,
                due_metrics=[b"due"],
                small_intervals=small_intervals,
                retry_s=(0.001, 0.002),
            ),
            now_s=lambda: self.now_s,
        )
        self.unstored = UnstoredPoints(self.writer)
        name_limit = NewNameLimit(self.open_window.table, max_unresolved=max_unresolved)
        name_limit.set_limits(max_series=max_series, names_per_minute=0)
        self.intake = Intake(
            accepted,
            self.resolver,
            self.writer.regulate,
            summaries=self.summaries,
            name_limit=name_limit,
            load=load or IngestLoad(),
        )

    async def take(self, *lines: bytes) -> Taken:
        return await self.intake.take(b"".join(line + b"\n" for line in lines))

    async def stored(self) -> dict[tuple[bytes, int], int | float]:
        """Every stored point, by its row key without base time, and its time in ms; rows are sound."""
        if layouts.is_readable():
            return await self._readable()
        found = {}
        async for rows in scan(self.store.store, "tsdb"):
            for row in rows:
                cells = data_cells(row.cells)
                assert problems(row.key, cells) == [] or len(cells) > 1
                base = int.from_bytes(row.key[3:7], "big")
                for point in points(row.key, cells, MergeRules(fix_duplicates=True)):
                    found[row.key[:3] + row.key[7:], base * 1000 + point.offset_ms] = point.number
        return found

    async def _readable(self) -> dict[tuple[bytes, int], int | float]:
        known = self.readable
        ids = {key: known.id_of(Kind.METRIC, split_key(key)[0]) + pairs for key, pairs in known.pairs.items()}
        rows = await rows_of(self.store.store, POINTS)
        return {
            (ids[split_row(row)[0]], time_ms): number
            for row in rows
            for time_ms, number in from_points(points_of(row)).items()
        }

    def window(self) -> Window:
        """Return the window that is written next."""
        assert self.writer.next_window is not None
        return self.writer.next_window

    def check_ledger(self) -> None:
        assert self.ledger.balance(self.writer.waiting_points) == 0


async def make_store() -> FlakyStore:
    store = FlakyStore(MemoryStore(lambda: 1))  # a clock that stands still: the order of windows must do
    await store.create_tables(
        [
            *readable.TABLES,
            Table("tsdb", (Family(FAMILY),)),
            Table("tsdb-uid", (Family(ID_FAMILY), Family(NAME_FAMILY))),
        ]
    )
    return store


@asynccontextmanager
async def going(parts: Parts) -> AsyncIterator[Parts]:
    """The journal and the writer run; at the end everything that can be written is."""
    segments = parts.journal.recover()
    async with trio.open_nursery() as disk:
        disk.start_soon(parts.journal.run)
        async with trio.open_nursery() as writers:
            parts.writer.adopt(segments)
            writers.start_soon(parts.writer.write_windows)
            async with trio.open_nursery() as listeners:
                listeners.start_soon(parts.writer.watch_journal)
                listeners.start_soon(parts.writer.pack_hours)
                yield parts
                listeners.cancel_scope.cancel()
            parts.writer.finish()
        parts.journal.close()
    parts.check_ledger()


def line(offset: int, value: object, host: str = "a", metric: str = "m") -> bytes:
    return f"put {metric} {BASE + offset} {value} host={host}".encode()
