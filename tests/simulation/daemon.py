"""One daemon process from start to end: the parts that tsd.daemon builds, on a simulated store and disk."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from tests.simulation.disk import SimulatedDisk
from tests.simulation.plan import Engine, Plan
from tests.simulation.store import FaultyStore
from tests.simulation.streams import StreamEnd
from tsd.codec.names import Widths
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.putline import NameRules
from tsd.config.settings import Mode
from tsd.ingest.accepted import AcceptedLines, Backpressure, Ledger
from tsd.ingest.intake import Intake
from tsd.ingest.journal.disk import Disk
from tsd.ingest.journal.journal import Journal, JournalSettings
from tsd.ingest.limits import NewNameLimit
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.ingest.summaries import Summaries
from tsd.ingest.unstored_points import UnstoredPoints
from tsd.ingest.window_reader import WindowReader
from tsd.ingest.windows import WindowSettings
from tsd.ingest.writer import Writer
from tsd.server.peer import local_peer
from tsd.server.replies import ReplyBudget, SlowConsumer
from tsd.server.telnet import DaemonCommands, TelnetOptions, TelnetPort, TelnetSession, TelnetStats
from tsd.store.scheduling import IngestLoad
from tsd.tables.opentsdb.compaction.compactor import SETTLE_MS, RowCompactor
from tsd.tables.opentsdb.compaction.queue import RowQueue
from tsd.tables.opentsdb.compaction.scheduler import CompactionRate, CompactionScheduler
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.resolver import AutoCreate, UidResolver
from tsd.tables.opentsdb.summaries import SummaryRules
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.opentsdb.writer import CellWriter

DRAIN_S = 30  # limit for writing windows at shutdown
SERVER_DRAIN_S = 5
MAX_LINE = 1024
REPLY_BUFFER = 1 << 20
NAMES = NameRules()


def _same_store(store: FaultyStore, _journal: Journal) -> FaultyStore:
    return store


@dataclass(frozen=True)
class Parts:
    """Factories of the daemon's parts. Tests replace them to inject bugs."""

    journal: type[Journal] = Journal
    disk: type[SimulatedDisk] = SimulatedDisk
    store: type[FaultyStore] = FaultyStore
    writer_store: Callable[[FaultyStore, Journal], Any] = _same_store
    compactor_store: Callable[[FaultyStore], Any] = lambda store: store
    writer: type[Writer] = Writer
    backpressure: type[Backpressure] = Backpressure
    open_window: type[OpenWindow] = OpenWindow


def row_compactor(parts: Parts, plan: Plan, store: FaultyStore, now_ms: Callable[[], int]) -> RowCompactor:
    """Build a compactor as the daemon's configuration does."""
    settle_ms = 0 if plan.engine is Engine.EMBEDDED else SETTLE_MS
    rules = MergeRules(fix_duplicates=True)
    own_store = parts.compactor_store(store)
    return RowCompactor(
        DataTable(own_store, "tsdb", KeyLayout()),
        rules,
        now_ms,
        lambda _: None,
        settle_ms=settle_ms,
        span_age_ms=SETTLE_MS,
    )


class SimulatedDaemon:
    """One process."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        parts: Parts,
        store: FaultyStore,
        disk: Disk,
        folder: Path,
        now_ms: Callable[[], int],
    ) -> None:
        self.number = number
        self.plan = plan
        self.store = store
        self.stop = trio.Event()
        self.over = False
        self.backpressure = parts.backpressure()
        self.ledger = Ledger()
        self.journal = parts.journal(
            folder / "journal",
            JournalSettings(plan.sync_interval_s, plan.journal_max_bytes, plan.gather_s),
            owner="0" * 32,
            disk=disk,
        )
        self.uids = Uids(store, "tsdb-uid", Widths())
        self.open_window = parts.open_window(SeriesTable(), NAMES)
        resolver = UidResolver(self.uids, KeyLayout(), AutoCreate(metrics=not plan.strict, tagks=True, tagvs=True))
        self.compactor = self._paced(parts, now_ms) if plan.compacts else None
        points = CellWriter(
            parts.writer_store(store, self.journal),
            SummaryRules(NAMES, "tsdb"),
            join=plan.join,
            on_cells=self.compactor.record if self.compactor else None,
        )
        summaries = Summaries(resolver, points.summaries, now_ms)
        accepted = AcceptedLines(self.open_window, self.journal, self.ledger, self.backpressure)
        self.writer = parts.writer(
            accepted,
            WindowReader(self.open_window, resolver, self.journal, summaries, folder / "refused"),
            points,
            WindowSettings(
                plan.flush_interval_s,
                plan.memory_limit,
                series_ttl_s=7200,
                hold_intervals=plan.hold_intervals,
                small_intervals=1,  # the plan chooses how long windows are
            ),
            now_s=lambda: now_ms() // 1000 - (plan.writer_lag_s if plan.hold_intervals else 0),
        )
        self.unstored = UnstoredPoints(self.writer)
        self.intake = Intake(
            accepted,
            resolver,
            self.writer.regulate,
            summaries=summaries,
            name_limit=NewNameLimit(self.open_window.table, max_unresolved=plan.max_unresolved),
            load=IngestLoad(),
        )
        self.telnet_stats = TelnetStats()
        self._replies = ReplyBudget(16 << 20)
        self._sessions: trio.Nursery | None = None
        self._open: dict[StreamEnd, None] = {}

    def _paced(self, parts: Parts, now_ms: Callable[[], int]) -> CompactionScheduler:
        compactor = row_compactor(parts, self.plan, self.store, now_ms)
        later_s = 7200  # treat hours as over, so that compaction runs during the simulation
        return CompactionScheduler(
            RowQueue(KeyLayout(), 1000, now_ms() // 1000),
            compactor,
            CompactionRate(1, 0, 1000, 3600),  # the whole queue, every second
            lambda: self.writer.is_behind,
            lambda: now_ms() // 1000 + later_s,
        )

    async def run(self) -> None:
        """Replay the journal, serve, and write the last window; see `tsd.daemon.daemon`."""
        segments = self.journal.recover()
        async with trio.open_nursery() as disk:
            disk.start_soon(self.journal.run)
            async with trio.open_nursery() as writers:
                writers.start_soon(self.writer.write_windows)
                async with trio.open_nursery() as server:
                    server.start_soon(self.writer.watch_journal)
                    server.start_soon(self.writer.pack_hours)
                    self.writer.adopt(segments)
                    if segments:
                        await self.writer.flush(patient=False)
                    self.journal.confirm_damage_counted()
                    server.start_soon(self.writer.seal_windows)
                    if self.compactor:
                        server.start_soon(self.compactor.run)
                    await self._serve()
                    server.cancel_scope.cancel()
                deadline = writers.cancel_scope.deadline = trio.current_time() + DRAIN_S
                self.writer.finish()
            self.journal.close(deadline=deadline)

    async def _serve(self) -> None:
        """Serve until `stop`, then process what clients have sent."""
        async with trio.open_nursery() as sessions:
            self._sessions = sessions
            try:
                await self.stop.wait()
            finally:
                self._sessions = None
            sessions.cancel_scope.deadline = trio.current_time() + SERVER_DRAIN_S
            for end in self._open:
                end.shut()

    def connect(self, end: StreamEnd, rng: random.Random) -> bool:
        """Serve a connection. Return False if the daemon does not accept connections."""
        if self._sessions is None or self.over:
            end.close()
            return False
        self._open[end] = None
        self._sessions.start_soon(self._converse, end, rng)
        return True

    async def _converse(self, end: StreamEnd, rng: random.Random) -> None:
        async def stats() -> bytes:
            return b"tsd.stat 1 1\n"

        commands = DaemonCommands(stats, lambda: b"version\n", self.drop_caches, lambda: None)
        rules = TelnetOptions(
            Mode.READ_WRITE, diediedie=False, max_line=MAX_LINE, reply_buffer=REPLY_BUFFER, timeout_s=300
        )
        port = TelnetPort(self.intake, commands, rules, self.telnet_stats, self._replies)
        session = TelnetSession(port, end, local_peer())

        async def receive() -> bytes:
            return await end.receive_some(rng.choice((1 << 18, 1 << 18, 64, 7)))

        try:
            if first := await receive():
                await session.run(first, receive)
        except* (trio.BrokenResourceError, SlowConsumer):
            pass
        finally:
            self._open.pop(end, None)
            end.close()

    @property
    def serves(self) -> bool:
        """Whether the daemon accepts connections."""
        return self._sessions is not None and not self.over

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._open)

    def cut(self) -> None:
        """End the process: its further calls have no effect."""
        self.over = True
        self.store.dead = True
        for end in self._open:
            end.close()

    def drop_caches(self) -> None:
        """Drop caches as the daemon does."""
        self.writer.seal(hold=False)
        self.uids.drop_caches()
        self.open_window.table.invalidate()
