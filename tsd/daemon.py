"""The parts of one daemon, put together; life.py starts and stops them."""

import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import structlog
import trio

from tsd.access.configured import warnings
from tsd.access.doorkeeper import NETWORKS, Doorkeeper, anonymous_roles
from tsd.api.clients import ranked
from tsd.assembly import (
    creates,
    make_uids,
    name_rules,
    needed_tables,
    now_ms,
    summary_rules,
)
from tsd.build import version_reply
from tsd.canary import Canary, Home
from tsd.compaction.configured import paced_compactor
from tsd.config import Config, Mode, journal_folder, layout, state_folder
from tsd.deadletters.log import DeadLetters
from tsd.deadletters.replay import Replay, verbs
from tsd.doors import control
from tsd.doors.clients import Clients
from tsd.doors.crowd import Crowd
from tsd.doors.listener import Limits, Listener
from tsd.doors.quotas import QUOTAS, quotas_of
from tsd.doors.replies import Budget
from tsd.doors.signin import sign_in
from tsd.doors.telnet import Powers, Rules, Tally, TelnetSession
from tsd.doors.tls import Tls
from tsd.doors.unfinished import Unfinished
from tsd.doors.visitor import Visitor
from tsd.errors import StoreError
from tsd.heap import SpareMemory
from tsd.ingest import compiled
from tsd.ingest.folder import adopted, identity
from tsd.ingest.growth import Growth
from tsd.ingest.intake import Gate, Intake
from tsd.ingest.journal import Journal, Segment
from tsd.ingest.ledger import Ledger
from tsd.ingest.names import SeriesNames
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import SeriesTable
from tsd.ingest.summaries import Summaries
from tsd.ingest.writer import Writer
from tsd.log import set_level
from tsd.query.configured import make_engine, make_index, make_registry
from tsd.reloads import Apply
from tsd.series_watch import SeriesWatch
from tsd.serving import Parts, Web
from tsd.stats import Snapshot, Stat, collect, render
from tsd.store import Store
from tsd.systemd import keep_waiting, watchdog_s
from tsd.uid_recheck import recheck_forever, watch_counters
from tsd.upkeep import Upkeep
from tsd.watchdog import FEEDS

log = structlog.get_logger(__name__)

UNSETTLED_BYTES = 1024  # at most, of a series that is known without its UIDs
UNSETTLED_SHARE = 8  # what part of the memory for points they may take
CAPS = ("tsd.ingest.max_series", "tsd.uid.new_per_minute")
CANARY_S = 10.0  # between its rounds, unless systemd's watchdog wants to hear sooner


class Daemon:
    """The parts of one daemon, put together."""

    def __init__(self, config: Config, store: Store, stop: trio.Event) -> None:
        self._started_s = now_ms() // 1000
        self.config = config
        self.store = store
        self.stop = stop
        self.uids = make_uids(config, store)
        self.ledger = Ledger()
        self.gate = Gate()
        self.journal = Journal(
            journal_folder(config),
            sync_interval_s=config.journal_sync_ms / 1000,
            max_bytes=config.journal_max_bytes,
            owner=identity(state_folder(config)),
            adopted=adopted(journal_folder(config)),
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
        self.letters = DeadLetters(
            state_folder(config) / "rejected",
            state_folder(config) / "refused",
            max_bytes=config.rejected_bytes,
            per_second=config.rejected_per_s,
            now_ms=now_ms,
        )
        self.growth = Growth(self.rows.table)
        self._cap(config)
        self.intake = Intake(
            self.rows,
            names,
            self.journal,
            self.ledger,
            self.gate,
            self.writer.regulate,
            most_unsettled=config.memory_limit // UNSETTLED_SHARE // UNSETTLED_BYTES,
            summaries=summaries,
            growth=self.growth,
            on_refused=self.letters.note,
        )
        self.tally = Tally()
        self.replayed = 0  # lines found in the journal at the start, damaged ones among them
        self.host = socket.gethostname()
        self.clients = Clients(quotas_of(config), now_ms, prefix=config.ipv6_prefix)
        self.tls = Tls(config, now_ms) if config.tls_certificate else None
        self.doorkeeper = Doorkeeper(config, now_ms)
        for warning in warnings(config, anonymous_roles(config), config.bind):
            log.warning(warning)
        self.engine = make_engine(
            config, store, self.uids, self.index, flush=self.writer.show, now_ms=now_ms, remembers=True
        )
        self.web = Web(
            Parts(
                config,
                store,
                self.uids,
                self.rows,
                self.journal,
                self.intake,
                self.writer,
                self.compactor,
                now_ms,
                self.drop_caches,
                stop.set,
                self.statistics,
                self.stats_tags,
                self.watch,
                self.engine,
                make_registry(config, now_ms),
                self.clients,
                self.doorkeeper,
            )
        )
        self.crowd = Crowd(self.intake.take_plain, self.gate, now_ms, self.tally.took)
        self.listener = Listener(
            self._telnet,
            self.web.serve,
            Limits(
                config.connections_limit,
                config.socket_timeout_s,
                config.tcp_no_delay,
                config.keep_alive,
                config.line_timeout_s,
            ),
            self.clients,
            self.tls,
            self.doorkeeper,
            self.crowd,
            Unfinished(config.unfinished_memory),
        )
        self._powers = Powers(self.stats, partial(version_reply, by_loop=compiled.HAS), self.drop_caches, stop.set)
        self._rules = Rules(
            config.mode,
            not config.no_diediedie,
            config.max_line,
            config.reply_buffer,
            rules,
            patience_s=config.socket_timeout_s or math.inf,
        )
        self._replies = Budget(config.reply_memory)
        self._upkeep = Upkeep()
        self.is_open = False  # whether agents can connect
        self.watchdog_s = watchdog_s()
        self.canary = self._make_canary()
        self.reloads: list[tuple[str, Callable[[], Awaitable[None]]]] = []  # what SIGHUP reads again, by name
        if self.tls:
            self.reloads.append(("the certificate", self.tls.reload))
        if self.doorkeeper.enabled:
            self.reloads.append(("accounts", self.doorkeeper.reload))
        self.live: dict[str, Apply] = {  # the settings that it lets change, and what makes them act
            "tsd.log.level": lambda wanted: set_level(wanted.log_level),
            "tsd.core.drain_timeout": lambda _: None,  # it is looked up when it is needed
            "tsd.journal.max_bytes": self._resize_journal,
            **dict.fromkeys(QUOTAS, lambda wanted: self.clients.limit(quotas_of(wanted))),
            **dict.fromkeys(CAPS, self._cap),
            **dict.fromkeys(NETWORKS, self._go_by_networks),
        }

    def _go_by_networks(self, config: Config) -> None:
        if self.doorkeeper.go_by(config):
            self.listener.look_again()

    def _resize_journal(self, config: Config) -> None:
        self.journal.max_bytes = config.journal_max_bytes
        self.writer.regulate()  # where it was full, nobody else comes to see that it no longer is

    def _cap(self, config: Config) -> None:
        self.growth.limit(max_series=config.max_series, names_per_minute=config.names_per_minute)

    def _make_canary(self) -> Canary | None:
        """What looks whether points come through; unless it is told otherwise, for systemd's watchdog alone."""
        config = self.config
        wanted = self.watchdog_s is not None if config.canary is None else config.canary
        if not wanted or config.mode is Mode.READ_ONLY:
            return None
        home = Home(self.store, config.data_table, layout(config), self.uids, self.writer.show)
        return Canary(self.intake, home, self.host, identity(state_folder(config))[:8], now_ms)

    async def _telnet(
        self, stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]], visitor: Visitor
    ) -> None:
        keeper = self.doorkeeper
        if keeper.enabled and not visitor.principal.roles:
            rest = await sign_in(stream, first, receive, keeper, visitor, self._rules.max_line)
            if rest is None:
                return
            first = rest
        session = TelnetSession(
            stream, self.intake, self._powers, self._rules, self.tally, self._replies, visitor, keeper, self.crowd
        )
        await session.run(first, receive)

    def drop_caches(self) -> None:
        """Look every name up again from now on."""
        self.writer.seal()
        self.uids.drop_caches()
        self.rows.table.forget_texts()
        self.watch.forget()
        self.engine.hours.remembered.forget()

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
            remembered=self.engine.hours.remembered.statistics(),
            query_warnings=self.engine.warnings + self.watch.points.warnings,
            canary=self.canary.statistics() if self.canary else None,
            access=self.doorkeeper.statistics(),
            tls=self.tls.statistics() if self.tls else None,
            clients=self.clients.statistics(),
            letters=self.letters.statistics(),
            upkeep_failures=self._upkeep.failures,
            started_s=self._started_s,
        )
        return list(collect(snapshot))

    async def replay(self, segments: Sequence[Segment]) -> None:
        """Take up what an earlier run left in the journal: written before anything else, if the store takes it."""
        self.writer.adopt(list(segments))
        lines = sum(segment.lines for segment in segments)
        self.replayed = lines + self.journal.damaged
        if not segments:
            return
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

    def upkeep(self) -> list[Callable[[], Awaitable[None]]]:
        """What goes on as long as agents are served. Errors that nobody foresaw end the daemon where they are the
        compactor's, which deletes cells, or the canary's, which looks whether all of this still works."""
        config, index, canary = self.config, self.index, self.canary
        lasting: dict[str, Callable[[], Awaitable[None]]] = {
            "names": lambda: recheck_forever(self.uids, config.uid_cache_ttl_s, self.drop_caches),
            "UID counters": lambda: watch_counters(self.uids),
            "tables": self.look_for_tables,
            "host": self.learn_name,
            "web": self.web.run,
            "refused lines": self.letters.run,
            "memory": SpareMemory().give_back,
        }
        if index is not None:
            lasting["series index"] = lambda: index.keep_complete(config.data_table)
        if self.tls:
            lasting["certificate"] = self.tls.watch
        if self.doorkeeper.enabled:
            lasting["accounts"] = self.doorkeeper.watch
        tasks = [self._upkeep.lasting(name, task) for name, task in lasting.items()]
        if self.compactor:
            tasks.append(self.compactor.run)
        if canary is not None:
            tasks.append(lambda: canary.run(min(CANARY_S, (self.watchdog_s or math.inf) / FEEDS)))
        return tasks

    def control_verbs(self) -> dict[str, control.Verb]:
        """What commands on this machine may ask."""

        async def drop_caches() -> None:
            self.drop_caches()

        async def health(which: str) -> dict[str, str]:
            return dict(await self.web.health.look(which))

        async def clients(sort: str, limit: int) -> list[dict[str, Any]]:
            return ranked(self.clients, sort, limit)

        return {
            **control.store_verbs(self.store),
            **verbs(Replay(self.intake, self.letters, self.web.endpoints.get), self.letters),
            "clients": clients,
            "flush": self.flush,
            "stats": self.stats,
            "drop_caches": drop_caches,
            "health": health,
        }
