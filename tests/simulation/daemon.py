"""A daemon's parts, put together as tsd.daemon does, on a simulated store and disk; one life from start to end."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.simulation.chance import Engine, Plan
from tests.simulation.pipe import End
from tests.simulation.store import Line
from tsd.codec.merge import MergeRules
from tsd.codec.putline import NameRules
from tsd.codec.rowkey import Layout
from tsd.codec.uid import Widths
from tsd.compaction.pace import Pace, PacedCompactor
from tsd.compaction.queue import RowQueue
from tsd.compaction.step import REST_MS, RowCompactor
from tsd.doors.replies import Budget, Unread
from tsd.doors.telnet import Powers, Rules, Tally, TelnetSession
from tsd.doors.visitor import here
from tsd.ingest.disk import Disk
from tsd.ingest.intake import Gate, Intake
from tsd.ingest.journal import Journal
from tsd.ingest.ledger import Ledger
from tsd.ingest.names import Creates, SeriesNames
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import SeriesTable
from tsd.ingest.summaries import Summaries, SummaryRules
from tsd.ingest.writer import Writer
from tsd.settings import Mode
from tsd.uids import Uids

DRAIN_S = 30  # for windows, at a stop
DOORS_S = 5
MAX_LINE = 1024
REPLY_BUFFER = 1 << 20
NAMES = NameRules()


@dataclass(frozen=True)
class Makers:
    """What the parts are made of: planted bugs stand here in a test."""

    journal: type[Journal] = Journal
    writer: type[Writer] = Writer
    uids: type[Uids] = Uids
    gate: type[Gate] = Gate
    rows: type[OpenRows] = OpenRows
    compactor: type[RowCompactor] = RowCompactor


def row_compactor(makers: Makers, plan: Plan, line: Line, now_ms: Callable[[], int]) -> RowCompactor:
    """As the configuration would have it."""
    rest_ms = 0 if plan.engine is Engine.EMBEDDED else REST_MS
    rules = MergeRules(fix_duplicates=True)
    return makers.compactor(line, "tsdb", Layout(), rules, now_ms, lambda _: None, rest_ms=rest_ms)


class Life:
    """One process, from its start to its end."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        makers: Makers,
        line: Line,
        disk: Disk,
        folder: Path,
        now_ms: Callable[[], int],
    ) -> None:
        self.number = number
        self.plan = plan
        self.line = line
        self.stop = trio.Event()
        self.over = False
        self.gate = makers.gate()
        self.ledger = Ledger()
        self.journal = makers.journal(
            folder / "journal",
            sync_interval_s=plan.sync_interval_s,
            max_bytes=plan.journal_max_bytes,
            owner="0" * 32,
            disk=disk,
        )
        self.uids = makers.uids(line, "tsdb-uid", Widths())
        self.rows = makers.rows(SeriesTable(), NAMES)
        names = SeriesNames(self.uids, Layout(), NAMES, Creates(metrics=not plan.strict, tagks=True, tagvs=True))
        summaries = Summaries(names, SummaryRules(NAMES, "tsdb"))
        self.compactor = self._paced(makers, now_ms) if plan.compacts else None
        self.writer = makers.writer(
            self.rows,
            names,
            self.journal,
            line,
            self.ledger,
            self.gate,
            table="tsdb",
            summaries=summaries,
            interval_s=plan.flush_interval_s,
            memory_limit=plan.memory_limit,
            series_idle_s=7200,
            join=plan.join,
            refused_folder=folder / "refused",
            now_s=lambda: now_ms() // 1000,
            note=self.compactor.note if self.compactor else lambda _: None,
        )
        self.intake = Intake(
            self.rows,
            names,
            self.journal,
            self.ledger,
            self.gate,
            self.writer.regulate,
            most_unsettled=plan.most_unsettled,
            summaries=summaries,
        )
        self.tally = Tally()
        self._replies = Budget(16 << 20)
        self._sessions: trio.Nursery | None = None
        self._open: dict[End, None] = {}

    def _paced(self, makers: Makers, now_ms: Callable[[], int]) -> PacedCompactor:
        step = row_compactor(makers, self.plan, self.line, now_ms)
        later_s = 7200  # hours are over before their time: nobody waits for them here
        return PacedCompactor(
            RowQueue(Layout(), 1000, now_ms() // 1000),
            step,
            Pace(1, 0, 1000, 3600),  # all that waits, every second
            lambda: self.writer.behind,
            lambda: now_ms() // 1000 + later_s,
        )

    async def run(self) -> None:
        """From the journal that is found to the last window; see tsd.daemon._run."""
        segments = self.journal.recover()
        async with trio.open_nursery() as disk:
            disk.start_soon(self.journal.run)
            async with trio.open_nursery() as writers:
                writers.start_soon(self.writer.write_windows)
                async with trio.open_nursery() as doors:
                    doors.start_soon(self.writer.watch_journal)
                    self.writer.adopt(segments)
                    if segments:
                        await self.writer.flush(patient=False)
                    self.journal.told()
                    doors.start_soon(self.writer.seal_windows)
                    if self.compactor:
                        doors.start_soon(self.compactor.run)
                    await self._serve()
                    doors.cancel_scope.cancel()
                deadline = writers.cancel_scope.deadline = trio.current_time() + DRAIN_S
                self.writer.finish()
            self.journal.close(deadline=deadline)

    async def _serve(self) -> None:
        """Until `stop`; then what has been sent is taken in."""
        async with trio.open_nursery() as sessions:
            self._sessions = sessions
            try:
                await self.stop.wait()
            finally:
                self._sessions = None
            sessions.cancel_scope.deadline = trio.current_time() + DOORS_S
            for end in self._open:
                end.shut()

    def connect(self, end: End, chance: random.Random) -> bool:
        """Serve a connection; False where nobody listens."""
        if self._sessions is None or self.over:
            end.hang_up()
            return False
        self._open[end] = None
        self._sessions.start_soon(self._converse, end, chance)
        return True

    async def _converse(self, end: End, chance: random.Random) -> None:
        async def stats() -> bytes:
            return b"tsd.stat 1 1\n"

        powers = Powers(stats, lambda: b"version\n", self.drop_caches, lambda: None)
        rules = Rules(
            Mode.READ_WRITE, diediedie=False, max_line=MAX_LINE, reply_buffer=REPLY_BUFFER, names=NAMES, patience_s=300
        )
        session = TelnetSession(end, self.intake, powers, rules, self.tally, self._replies, here())

        async def receive() -> bytes:
            return await end.receive_some(chance.choice((1 << 18, 1 << 18, 64, 7)))

        try:
            if first := await receive():
                await session.run(first, receive)
        except* (trio.BrokenResourceError, Unread):
            pass
        finally:
            self._open.pop(end, None)
            end.hang_up()

    @property
    def serves(self) -> bool:
        """Whether it takes connections."""
        return self._sessions is not None and not self.over

    @property
    def sessions(self) -> int:
        """Open ones."""
        return len(self._open)

    def cut(self) -> None:
        """The process is gone: nothing it would still do has any effect."""
        self.over = True
        self.line.dead = True
        for end in self._open:
            end.hang_up()

    def drop_caches(self) -> None:
        """As the daemon does."""
        self.writer.seal()
        self.uids.drop_caches()
        self.rows.table.forget_texts()
