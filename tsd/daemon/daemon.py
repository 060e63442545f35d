"""The daemon, made of built parts: statistics, background tasks, operations of the control socket and reloads.

`tsd.daemon.assembly` and `tsd.daemon.builders` build the parts, `tsd.daemon.wiring` the store, `tsd.daemon.layouts` the
tables; `tsd.daemon.lifecycle` starts and stops them.
"""

import math
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import trio

from tsd.api.hot import read_request
from tsd.api.stats import DaemonStats, collect, rank_clients, render
from tsd.auth.authenticator import NETWORK_SETTINGS
from tsd.config.loader import Loaded, keys
from tsd.config.log import set_level
from tsd.config.settings import Config
from tsd.daemon.builders import ServerParts, limit_new_names
from tsd.daemon.diagnostics import Allocator, BackgroundTasks, Task, trim_memory
from tsd.daemon.parts import CoreParts
from tsd.daemon.replay import Replay, replay_operations
from tsd.daemon.systemd import FEEDS
from tsd.errors import Refused, StoreError, TsdError
from tsd.ingest.canary import Canary
from tsd.ingest.journal.journal import Segment
from tsd.lazy import LazyLogger
from tsd.server import control
from tsd.server.clients import QUOTAS, configured_quotas
from tsd.tables.catalog import Stat

log = LazyLogger(__name__)


Apply = Callable[[Config], None]

NEW_NAME_LIMITS = ("tsd.ingest.max_series", "tsd.uid.new_per_minute")
CANARY_S = 10.0  # between two rounds; less if systemd's watchdog requires it


def apply_settings(running: Config, reload_config: Callable[[], Loaded], live: Mapping[str, Apply]) -> Config:
    """Return the configuration after a reload: settings of `live` are applied, others are logged.

    Raise BadConfig before anything is changed.
    """
    wanted = reload_config().config
    applied: dict[str, Any] = {}
    pending = []
    for key, field in keys().items():
        value = getattr(wanted, field.name)
        if value == getattr(running, field.name):
            continue
        if key in live:
            live[key](wanted)
            applied[field.name] = value
            log.info("setting.changed", key=key, value=str(value))
        else:
            pending.append(key)
    if pending:
        log.warning("settings.restart_required", keys=" ".join(pending))
    return replace(running, **applied)


class Daemon:
    """One daemon."""

    def __init__(
        self,
        parts: CoreParts,
        server: ServerParts,
        stop: trio.Event,
        *,
        canary: Canary | None,
        watchdog_s: float | None,
    ) -> None:
        """`canary` None: it is off. `watchdog_s`: systemd's timeout, None if it does not watch this process."""
        ingest, access = parts.ingest, parts.access
        self.config = parts.config
        self.store = parts.store
        self.tables = parts.tables
        self.ingest = ingest
        self.query = parts.query
        self.access = access
        self.server = server
        self.canary = canary
        self.watchdog_s = watchdog_s
        self.stop = stop
        self.host = socket.gethostname()
        self.is_open = False  # whether clients can connect
        self.replayed = 0  # lines of the journal at the start, including damaged ones
        self.reloads: list[tuple[str, Callable[[], Awaitable[None]]]] = []  # what SIGHUP reloads, by name
        if access.tls:
            self.reloads.append(("the certificate", access.tls.reload))
        if access.authenticator.enabled:
            self.reloads.append(("accounts", access.authenticator.reload))
        self.live: dict[str, Apply] = {  # settings that may change, and how
            "tsd.log.level": lambda wanted: set_level(wanted.log_level),
            "tsd.core.drain_timeout": lambda _: None,  # read at shutdown
            "tsd.journal.max_bytes": self._resize_journal,
            **dict.fromkeys(QUOTAS, lambda wanted: access.clients.set_quotas(configured_quotas(wanted))),
            **dict.fromkeys(NEW_NAME_LIMITS, lambda wanted: limit_new_names(ingest.new_names, wanted)),
            **dict.fromkeys(NETWORK_SETTINGS, self._set_networks),
        }
        self._background = BackgroundTasks()
        self._now_ms = parts.now_ms
        self._started_s = parts.now_ms() // 1000

    def _set_networks(self, config: Config) -> None:
        if self.access.authenticator.set_networks(config):
            self.server.listener.recheck_networks()

    def _resize_journal(self, config: Config) -> None:
        self.ingest.journal.max_bytes = config.journal_max_bytes
        self.ingest.writer.regulate()  # otherwise a full journal's backpressure would end only with the next line

    def drop_caches(self) -> None:
        """Drop all caches, so that names are read from the store again."""
        self.ingest.writer.expire_names()  # it seals: one window has only one number of each series
        self.tables.drop_caches()
        self.ingest.open_window.table.invalidate()
        self.query.engine.cache.clear()
        if self.store.column_blocks is not None:
            self.store.column_blocks.forget()

    async def stats(self) -> bytes:
        """Return the reply of the command `stats`."""
        return render(self.statistics(), self._now_ms() // 1000, self.stats_tags())

    def stats_tags(self) -> str:
        """Return the tags of each line of `stats`."""
        port = f"port={self.config.port} " if self.config.stats_with_port else ""
        return port + f"{'fqdn' if self.config.stats_canonical else 'host'}={self.host}"

    def statistics(self) -> list[Stat]:
        """Return the current statistics."""
        ingest, access, server, engine = self.ingest, self.access, self.server, self.query.engine
        telnet = server.telnet_stats
        snapshot = DaemonStats(
            listener=server.listener.statistics(),
            telnet_commands=telnet.commands,
            web=server.http.statistics(),
            truncated_lines=telnet.truncated_lines,
            coalesced_errors=telnet.summarized,
            accepted=ingest.ledger.accepted,
            received=ingest.ledger.received,
            stored=ingest.ledger.stored,
            journaled=ingest.writer.waiting_points,
            refused=ingest.ledger.refused,
            journal=ingest.journal.statistics(),
            backpressure=bool(ingest.backpressure.reasons),
            windows=ingest.writer.windows,
            held_points=ingest.writer.held_points,
            early_releases=ingest.writer.early_releases,
            cells=ingest.writer.cells,
            write_retries=ingest.writer.retries,
            series=ingest.open_window.table.linked,
            tables=self.tables.statistics(),
            store=self.store.statistics(),
            query_cache=engine.cache.statistics(),
            query_warnings=engine.warnings + self.tables.catalog.warnings,
            canary=self.canary.statistics() if self.canary else None,
            access=access.authenticator.statistics(),
            tls=access.tls.statistics() if access.tls else None,
            clients=access.clients.statistics(),
            rejected=ingest.rejected.statistics(),
            task_failures=self._background.failures,
            started_s=self._started_s,
        )
        return list(collect(snapshot))

    def adopt(self, segments: Sequence[Segment]) -> None:
        """Queue the points of an earlier run's journal, before any others."""
        self.ingest.writer.adopt(list(segments))
        lines = sum(segment.lines for segment in segments)
        self.replayed = lines + self.ingest.journal.damaged
        if segments:
            log.info("journal.replay_started", segments=len(segments), lines=lines)

    async def watch_replay(self) -> None:
        """Log when the points of an earlier run are stored, or that the store does not accept them now."""
        writer, journal = self.ingest.writer, self.ingest.journal
        if not writer.windows:
            return
        if await writer.flush_due():
            log.info("journal.replayed", lines=self.replayed - journal.damaged)
        else:
            log.warning("journal.replay_deferred", error=writer.failure)

    async def flush(self) -> bool:
        """Write all pending points now, also those of open hours and those in lines that have arrived and are not read
        yet. False if the store does not accept them."""
        await self.server.listener.read_quiet()
        return await self.ingest.writer.flush(patient=False)

    async def check_tables(self) -> None:
        """Log missing tables at once; the first window would fail much later."""
        try:
            existing = await self.store.tables()
        except StoreError as error:
            log.warning("tables.check_failed", error=str(error))
            return
        if missing := [name for name in self.tables.required if name not in existing]:
            log.warning(
                "tables.missing",
                tables=" ".join(missing),
                next_step="tsd create-tables",
            )
        elif self.tables.entities is not None:
            try:
                await self.tables.entities.check()
            except StoreError as error:
                log.error("tables.unfit", error=str(error))

    async def resolve_host(self) -> None:
        """Look up this machine's full name, once and in a thread: a resolver may be slow."""
        if self.config.stats_canonical:
            self.host = await trio.to_thread.run_sync(socket.getfqdn, abandon_on_cancel=True)

    def tasks(self) -> list[Task]:
        """Return the tasks that run while the daemon serves.

        Most tasks are restarted after an unexpected error. In the tables' fatal tasks (compaction, which deletes cells)
        and in the canary, which detects such errors, an error ends the daemon.
        """
        access, canary = self.access, self.canary
        restarted: dict[str, Task] = {
            **self.tables.tasks,
            "tables": self.check_tables,
            "host": self.resolve_host,
            "http": self.server.http.run,
            "rejected lines": self.ingest.rejected.run,
            "packing": self.ingest.writer.pack_hours,
            "memory": lambda: trim_memory(Allocator()),
        }
        if access.tls:
            restarted["certificate"] = access.tls.watch
        if access.authenticator.enabled:
            restarted["accounts"] = access.authenticator.watch
        tasks = [self._background.restarting(name, task) for name, task in restarted.items()]
        tasks += self.tables.fatal_tasks
        if canary is not None:
            tasks.append(lambda: canary.run(min(CANARY_S, (self.watchdog_s or math.inf) / FEEDS)))
        return tasks

    def control_operations(self) -> dict[str, control.Operation]:
        """Return the operations of the control socket."""
        http = self.server.http

        async def drop_caches() -> None:
            self.drop_caches()

        async def health(which: str) -> dict[str, str]:
            return dict(await http.health.check(which))

        async def clients(sort: str, limit: int) -> list[dict[str, Any]]:
            return rank_clients(self.access.clients, sort, limit)

        async def hot(since: str, sort: str, limit: int) -> dict[str, Any]:
            if http.hot_keys is None:
                raise TsdError("got a request for hot ranges, wanted a table layout whose ranges are counted")
            try:
                wanted = read_request(since, sort, str(limit))
            except Refused as exc:
                raise TsdError(f"{exc.message}: {exc.details}") from exc
            return await http.hot_keys.listed(wanted)

        replay = Replay(self.ingest.intake, self.ingest.rejected, http.endpoints.get, self.server.translation)
        return {
            **control.store_operations(self.store, self.tables.on_change),
            "retention": _refuse_retention,  # where nothing expires
            "change_days": _build_no_days,
            **self.tables.operations,
            **replay_operations(replay, self.ingest.rejected),
            "clients": clients,
            "hot": hot,
            "flush": self.flush,
            "stats": self.stats,
            "drop_caches": drop_caches,
            "health": health,
        }


async def _build_no_days(days: list[Any], deleted: bool) -> bool:  # noqa: ARG001 (as requests have it)
    """Return that this daemon builds no rollups."""
    return False


async def _refuse_retention(*, trust_clock: bool) -> None:  # noqa: ARG001 (as requests have it)
    """Raise TsdError: no points expire."""
    raise TsdError(
        "the running daemon has no rules that let points expire: set tsd.retention.rules in its configuration and "
        "restart it"
    )
