"""The daemon: starts the parts in order, stops them the way data flows, and owns the signals."""

import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog
import trio

from tsd.assembly import (
    control_path,
    creates,
    make_uids,
    name_rules,
    needed_tables,
    now_ms,
    opened_store,
    summary_rules,
)
from tsd.build import version_reply
from tsd.compaction.configured import paced_compactor
from tsd.config import Backend, Config, Loaded, journal_folder, layout, state_folder
from tsd.doors import control, descriptors
from tsd.doors.clients import Clients
from tsd.doors.listener import Limits, Listener
from tsd.doors.replies import Budget
from tsd.doors.telnet import Powers, Rules, Tally, TelnetSession
from tsd.doors.visitor import Visitor
from tsd.errors import CorruptRow, StoreError, TsdError
from tsd.heap import keep_freed_memory
from tsd.ingest.folder import held_journal
from tsd.ingest.intake import Gate, Intake
from tsd.ingest.journal import Journal, Segment
from tsd.ingest.ledger import Ledger
from tsd.ingest.names import SeriesNames
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import SeriesTable
from tsd.ingest.summaries import Summaries
from tsd.ingest.writer import Writer
from tsd.query.configured import make_engine, make_index, make_registry
from tsd.series_watch import SeriesWatch
from tsd.serving import Parts, Web
from tsd.state import held
from tsd.stats import Snapshot, Stat, collect, render
from tsd.store import Store
from tsd.systemd import keep_waiting, microseconds, notify
from tsd.uid_recheck import recheck_forever

log = structlog.get_logger(__name__)

DRAIN_S = 5  # for what connections have sent, and for their last replies
STALLED_CALLS = 4  # of the store, timed out one after the other, that may hold up an end: a thread cannot be cancelled
UNSETTLED_BYTES = 1024  # at most, of a series that is known without its UIDs
UNSETTLED_SHARE = 8  # what part of the memory for points they may take
COUNTERS_S = 600  # between looks at how many UIDs other daemons have used


class Daemon:
    """The parts of one daemon, put together."""

    def __init__(self, config: Config, store: Store, stop: trio.Event) -> None:
        self.config = config
        self.store = store
        self.stop = stop
        self.uids = make_uids(config, store)
        self.ledger = Ledger()
        self.gate = Gate()
        self.journal = Journal(
            journal_folder(config), sync_interval_s=config.journal_sync_ms / 1000, max_bytes=config.journal_max_bytes
        )
        rules = name_rules(config)
        self.rows = OpenRows(SeriesTable(), rules)
        names = SeriesNames(self.uids, layout(config), rules, creates(config))
        self.index = make_index(config, store)
        self.watch = SeriesWatch(config, store, self.rows.table, self.uids, now_ms, index=self.index)
        self.compactor = paced_compactor(config, store, now_ms, lambda: self.writer.behind)
        summaries = Summaries(names, summary_rules(config))
        self.writer = Writer(
            self.rows,
            names,
            self.journal,
            store,
            self.ledger,
            self.gate,
            table=config.data_table,
            summaries=summaries,
            interval_s=config.flush_interval_ms / 1000,
            memory_limit=config.memory_limit,
            series_idle_s=config.series_idle_s,
            join=config.join_points,
            refused_folder=state_folder(config) / "refused",
            now_s=lambda: now_ms() // 1000,
            note=self.compactor.note if self.compactor else lambda _: None,
            on_points=self.watch.note,
        )
        self.intake = Intake(
            self.rows,
            names,
            self.journal,
            self.ledger,
            self.gate,
            self.writer.regulate,
            most_unsettled=config.memory_limit // UNSETTLED_SHARE // UNSETTLED_BYTES,
            summaries=summaries,
        )
        self.tally = Tally()
        self.replayed = 0  # lines found in the journal at the start
        self.host = socket.gethostname()
        self.clients = Clients()
        self.web = Web(
            Parts(
                config,
                store,
                self.uids,
                self.rows,
                self.journal,
                self.intake,
                self.writer,
                now_ms,
                self.drop_caches,
                stop.set,
                self.statistics,
                self.stats_tags,
                self.watch,
                make_engine(config, store, self.uids, self.index, flush=self.writer.show, now_ms=now_ms),
                make_registry(config, now_ms),
            )
        )
        self.listener = Listener(
            self._telnet,
            self.web.serve,
            Limits(config.connections_limit, config.socket_timeout_s, config.tcp_no_delay, config.keep_alive),
            self.clients,
        )
        self._powers = Powers(self.stats, version_reply, self.drop_caches, stop.set)
        self._rules = Rules(
            config.mode,
            not config.no_diediedie,
            config.max_line,
            config.reply_buffer,
            rules,
            patience_s=config.socket_timeout_s or math.inf,
        )
        self._replies = Budget(config.reply_memory)
        self.reloads: list[tuple[str, Callable[[], Awaitable[None]]]] = []  # what SIGHUP reads again, by name

    async def _telnet(
        self, stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]], visitor: Visitor
    ) -> None:
        session = TelnetSession(stream, self.intake, self._powers, self._rules, self.tally, self._replies, visitor)
        await session.run(first, receive)

    def drop_caches(self) -> None:
        """Look every name up again from now on."""
        self.writer.seal()
        self.uids.drop_caches()
        self.rows.table.forget_texts()
        self.watch.forget()

    async def stats(self) -> bytes:
        """The reply of the command `stats`."""
        return render(self.statistics(), now_ms() // 1000, self.stats_tags())

    def stats_tags(self) -> str:
        """What every line of `stats` carries."""
        port = f"port={self.config.port} " if self.config.stats_with_port else ""
        return port + f"{'fqdn' if self.config.stats_canonical else 'host'}={self.host}"

    def statistics(self) -> list[Stat]:
        """The numbers of this moment."""
        snapshot = Snapshot(
            listener=self.listener.statistics(),
            telnet_commands=self.tally.commands,
            web=self.web.statistics(),
            cut_lines=self.tally.cut_lines,
            summed_up=self.tally.summed_up,
            replayed=self.replayed,
            accepted=self.tally.accepted,
            received=self.ledger.received,
            stored=self.ledger.stored,
            journaled=self.writer.waiting_points,
            refused=self.ledger.refused,
            journal=self.journal.statistics(),
            held=bool(self.gate.held),
            windows=self.writer.windows,
            cells=self.writer.cells,
            write_retries=self.writer.retries,
            series=len(self.rows.table),
            uids=self.uids.statistics(),
            compaction=self.compactor.statistics() if self.compactor else None,
            store=self.store.statistics(),
        )
        return list(collect(snapshot))

    async def replay(self, segments: Sequence[Segment]) -> None:
        """Take up what an earlier run left in the journal: written before anything else, if the store takes it."""
        self.writer.adopt(list(segments))
        if not segments:
            return
        self.replayed = lines = sum(segment.lines for segment in segments)
        log.info("replaying the journal", segments=len(segments), lines=lines)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_waiting, lambda: self.writer.cells, self._replaying)
            written = await self.writer.flush(patient=False)
            nursery.cancel_scope.cancel()
        if written:
            log.info("journal replayed", lines=lines)
        else:
            trouble = self.writer.trouble or self.journal.trouble
            log.warning("the journal waits until the store is back", because=trouble)

    def _replaying(self) -> str:
        return f"replaying the journal, {self.writer.waiting_points} lines to go"

    async def flush(self) -> bool:
        """Write open rows now; whether they are stored."""
        return await self.writer.flush(patient=False)

    async def look_for_tables(self) -> None:
        """Say at once what is missing: the first window, or the first new name, would tell much later."""
        try:
            there = await self.store.tables()
        except StoreError as error:
            log.warning("the store does not answer yet; points wait in the journal", error=str(error))
            return
        if missing := [name for name in needed_tables(self.config) if name not in there]:
            log.warning(
                "tables are missing; points wait in the journal until they are made",
                tables=" ".join(missing),
                what_to_do="tsd create-tables, with the settings of this daemon",
            )

    async def learn_name(self) -> None:
        """Find out this machine's full name, once: a resolver may take its time, and the event loop has none."""
        if self.config.stats_canonical:
            self.host = await trio.to_thread.run_sync(socket.getfqdn, abandon_on_cancel=True)

    async def watch_counters(self) -> None:
        """Notice UIDs running out, whoever uses them."""
        while True:
            try:
                await self.uids.read_counters()
            except StoreError as error:
                log.debug("UID counters not read", error=str(error))
            except CorruptRow as error:  # the names that there are need no counter
                log.error(
                    "a UID counter is damaged: new names of its kind cannot be stored",
                    error=str(error),
                    what_to_do="give it 8 bytes, big-endian, no less than the highest UID in use (tsd uid grep KIND .)",
                )
            await trio.sleep(COUNTERS_S)

    def control_verbs(self) -> dict[str, control.Verb]:
        """What commands on this machine may ask."""

        async def drop_caches() -> None:
            self.drop_caches()

        async def health(which: str) -> dict[str, str]:
            return dict(await self.web.health.look(which))

        return {
            **control.store_verbs(self.store),
            "flush": self.flush,
            "stats": self.stats,
            "drop_caches": drop_caches,
            "health": health,
        }


async def serve(loaded: Loaded, stop: trio.Event, on_ready: Callable[[Daemon, Sequence[int]], None]) -> None:
    """Run a daemon until `stop`, or a signal. `on_ready` gets it and its ports once agents are served."""
    config = loaded.config
    losses: list[str] = []

    def give_up(loss: str) -> None:
        losses.append(loss)
        stop.set()

    if loaded.ignored.keys:
        log.info("settings of OpenTSDB's without meaning here", keys=" ".join(loaded.ignored.keys))
    for key, consequence in loaded.ignored.not_done.items():
        log.warning("a setting of OpenTSDB's is on and not done by this version", key=key, consequence=consequence)
    keep_freed_memory()
    descriptors.raise_limit()
    with held(state_folder(config)), held_journal(journal_folder(config), state_folder(config)):
        async with opened_store(config, give_up) as store:
            listeners = await _listen(config)
            try:
                await _run(Daemon(config, store, stop), listeners, on_ready, losses)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(control_path(config))
    if losses:
        raise StoreError(f"{losses[0]}: ended, so that the journal does so at the next start")
    log.info("ended")


async def _listen(config: Config) -> list[trio.SocketListener]:
    """The port, held from now on: that it is taken is said before anything is replayed."""
    try:
        return await trio.open_tcp_listeners(config.port, host=config.bind, backlog=config.backlog)
    except OSError as exc:
        raise TsdError(f"cannot listen on {config.bind}:{config.port}: {exc.strerror or exc}") from exc


async def _run(
    daemon: Daemon,
    listeners: list[trio.SocketListener],
    on_ready: Callable[[Daemon, Sequence[int]], None],
    losses: Sequence[str],
) -> None:
    """Doors, then the writer, then the journal: each stops when nothing more can come to it. After `losses` the store
    takes nothing any more, and nothing is drained into it."""
    config, writer, journal = daemon.config, daemon.writer, daemon.journal
    segments = await trio.to_thread.run_sync(journal.recover)
    async with trio.open_nursery() as disk:
        disk.start_soon(journal.run)
        async with trio.open_nursery() as writers:
            writers.start_soon(writer.write_windows)
            async with trio.open_nursery() as doors:
                doors.start_soon(_stop_on_signal, daemon.stop)
                doors.start_soon(_end_when_told, daemon, doors.cancel_scope)
                doors.start_soon(writer.watch_journal)
                await daemon.replay(segments)
                doors.start_soon(writer.seal_windows)
                doors.start_soon(recheck_forever, daemon.uids, config.uid_cache_ttl_s, daemon.drop_caches)
                upkeep = [daemon.compactor.run] if daemon.compactor else []
                if daemon.index:
                    doors.start_soon(daemon.index.keep_complete, config.data_table)
                for task in (daemon.watch_counters, daemon.look_for_tables, daemon.learn_name, daemon.web.run, *upkeep):
                    doors.start_soon(task)
                path = await control.open_listener(control_path(config))
                doors.start_soon(control.serve, path, daemon.control_verbs())
                doors.start_soon(daemon.listener.serve, listeners)
                ports = [listener.socket.getsockname()[1] for listener in listeners]
                log.info("ready", port=ports[0], bind=config.bind, backend=config.backend.value, pid=os.getpid())
                notify(READY=1, STATUS=f"serving port {ports[0]}")
                on_ready(daemon, ports)
            deadline = trio.current_time() + config.drain_ms / 1000
            writers.cancel_scope.deadline = trio.current_time() if losses else deadline
            writer.finish()
        journal.close(deadline=deadline)
    if (waiting := writer.waiting_points - journal.unsynced) > 0:
        log.warning("points wait in the journal for the next start", points=waiting)
    if lost := journal.unsynced:
        log.error("lines could not be journaled before the end; no sync confirmed them", lines=lost)
        raise TsdError(f"{lost} lines could not be journaled: {journal.trouble}")


async def _end_when_told(daemon: Daemon, doors: trio.CancelScope) -> None:
    await daemon.stop.wait()
    calls_ms = STALLED_CALLS * daemon.config.thrift_timeout_ms if daemon.config.backend is Backend.HBASE else 0
    longest_s = DRAIN_S + (daemon.config.drain_ms + calls_ms) / 1000
    notify(STOPPING=1, STATUS="writing what waits", EXTEND_TIMEOUT_USEC=microseconds(longest_s))
    log.info("stopping", points_waiting=daemon.writer.waiting_points, may_take_s=round(longest_s))
    daemon.listener.drain()
    with trio.move_on_after(DRAIN_S):
        await daemon.listener.ended.wait()
    doors.cancel()


async def _stop_on_signal(stop: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("signal", name=signal.Signals(number).name)
            stop.set()
