"""Builders of a daemon's parts, one for each package. Each takes the configuration and lower-level parts.

They do not depend on the engine or the table layout: `tsd.daemon.wiring` chooses these.
"""

import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tsd import version_reply
from tsd.auth.accounts import read_accounts, warnings
from tsd.auth.authenticator import Authenticator, anonymous_roles
from tsd.config.files import exists
from tsd.config.loader import journal_folder, name_rules, state_folder
from tsd.config.settings import Charset, Config, Mode
from tsd.daemon.engine import query_limits
from tsd.daemon.parts import CoreParts, DaemonControl, IngestParts
from tsd.daemon.routes import HttpServer
from tsd.daemon.settings import Clock
from tsd.daemon.wiring import configured_histograms, configured_rollups
from tsd.errors import BadConfig, TsdError
from tsd.ingest import series
from tsd.ingest.accepted import AcceptedLines, Backpressure, Ledger
from tsd.ingest.canary import METRIC as CANARY_METRIC
from tsd.ingest.canary import Canary
from tsd.ingest.dialect import UTF_8, Translation, kairosdb
from tsd.ingest.intake import Intake
from tsd.ingest.journal.folder import adopted, identity
from tsd.ingest.journal.journal import Journal, JournalSettings
from tsd.ingest.limits import NewNameLimit
from tsd.ingest.lines import MAX_LINE_BYTES
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.rejected.log import RejectedLog
from tsd.ingest.series import SeriesTable
from tsd.ingest.summaries import Summaries
from tsd.ingest.unstored_points import UnstoredPoints
from tsd.ingest.window_reader import WindowReader
from tsd.ingest.windows import SMALL_INTERVALS, WindowSettings
from tsd.ingest.writer import Writer
from tsd.lazy import LazyLogger, LazyModule
from tsd.server.clients import Clients, configured_quotas
from tsd.server.listener import AccessControl, Listener, ListenerLimits
from tsd.server.multiplexer import Multiplexer
from tsd.server.packet_batches import PacketBatches
from tsd.server.peer import Peer
from tsd.server.quiet_connections import QuietConnections
from tsd.server.replies import ReplyBudget
from tsd.server.telnet import DaemonCommands, TelnetOptions, TelnetPort, TelnetSession, TelnetStats, log_in
from tsd.server.tls import Tls, check_tls, tls_files
from tsd.store.scheduling import IngestLoad
from tsd.tables import Tables

if TYPE_CHECKING:
    from tsd.api.kairosdb import catalog as kairosdb_catalog
else:  # few daemons take the place of KairosDB
    kairosdb_catalog = LazyModule("tsd.api.kairosdb.catalog")

log = LazyLogger(__name__)


@dataclass(frozen=True)
class ServerParts:
    """The servers of the port."""

    http: HttpServer
    telnet_stats: TelnetStats
    multiplexer: Multiplexer
    listener: Listener
    translation: Translation | None  # of telnet lines


HELD_INTERVAL_S = 10.0  # longest of windows whose points are held for a longer flush interval
UNREAD_SHARE = 0.9  # of the time for which lines may be in memory only: quiet connections are unread for this long
MAX_UNREAD_S = 4.5  # at most: a socket's buffer has room for the lines of this time
UNRESOLVED_BYTES = 1024  # largest size of a series without UIDs
UNRESOLVED_SHARE = 8  # such series may use 1/8 of the memory for points
REJECTED_PER_S = 1000  # rejected lines logged per second, with a burst of ten seconds
REPLY_BUFFER = 1 << 20  # bytes of replies to one client that does not read them
REPLY_MEMORY = 64 << 20  # bytes of unread replies of all telnet connections


def held_s(config: Config, tables: Tables, *, shared: bool) -> float:
    """Return how long points of open hours are held. In a store that only this daemon uses that is until their hour is
    over, which is infinite; in `shared` tables, which others read, for a long flush interval. 0: they are not held."""
    if not config.hold_open_hours or not tables.holds_hours:
        return 0
    if not shared:
        return math.inf
    interval_s = config.write_interval_ms / 1000
    return interval_s if interval_s > HELD_INTERVAL_S and tables.entities is None else 0


def build_ingest(config: Config, tables: Tables, load: IngestLoad, now_ms: Clock, *, hold_s: float) -> IngestParts:
    """Build ingest. `hold_s`: how long points of open hours are held, see `held_s`."""
    folder = state_folder(config)
    journal = Journal(
        journal_folder(config),
        JournalSettings(
            config.journal_sync_ms / 1000, config.journal_max_bytes, gather_s=config.journal_gather_ms / 1000
        ),
        owner=identity(folder),
        adopted=adopted(journal_folder(config)),
    )
    open_window = OpenWindow(SeriesTable(), name_rules(config))
    accepted = AcceptedLines(open_window, journal, Ledger(), Backpressure())
    interval_s, hold_intervals = _write_intervals(config, hold_s)
    summaries = Summaries(tables.resolver, tables.writer.summaries, now_ms, has_texts=tables.has_texts)
    settings = WindowSettings(
        interval_s,
        config.memory_limit,
        config.series_ttl_s,
        hold_intervals,
        due_metrics=(CANARY_METRIC,),
        # Newest values of entities are those of sealed windows.
        small_intervals=1 if tables.entities else SMALL_INTERVALS,
    )
    reader = WindowReader(open_window, tables.resolver, journal, summaries, folder / "refused")
    writer = Writer(accepted, reader, tables.writer, settings, now_s=lambda: now_ms() // 1000)
    rejected = RejectedLog(
        folder / "rejected",
        folder / "refused",
        max_bytes=config.rejected_bytes,
        per_second=REJECTED_PER_S,
        now_ms=now_ms,
    )
    new_names = NewNameLimit(
        open_window.table, max_unresolved=config.memory_limit // UNRESOLVED_SHARE // UNRESOLVED_BYTES
    )
    limit_new_names(new_names, config)
    intake = Intake(
        accepted,
        tables.resolver,
        writer.regulate,
        summaries=summaries,
        name_limit=new_names,
        load=load,
        on_refused=rejected.add,
    )
    unstored = UnstoredPoints(writer, tables.text_of)
    return IngestParts(*accepted, writer, unstored, intake, rejected, new_names)


def _write_intervals(config: Config, hold_s: float) -> tuple[float, float]:
    """Return the seconds of a window, and for how many windows points of open hours are held."""
    if not 0 < hold_s < math.inf:
        return config.write_interval_ms / 1000, hold_s
    hold_intervals = math.ceil(hold_s / HELD_INTERVAL_S)
    return hold_s / hold_intervals, hold_intervals


def limit_new_names(new_names: NewNameLimit, config: Config) -> None:
    """Apply the limits of series and new names."""
    new_names.set_limits(max_series=config.max_series, names_per_minute=config.names_per_minute)


def build_canary(parts: CoreParts, host: str, watchdog_s: float | None) -> Canary | None:
    """Build the canary; by default only for systemd's watchdog. None: it is off, or the daemon does not write."""
    config, ingest, tables = parts.config, parts.ingest, parts.tables
    wanted = watchdog_s is not None if config.canary is None else config.canary
    if not wanted or config.mode is Mode.READ_ONLY:
        return None
    name = identity(state_folder(config))[:8]
    return Canary(
        ingest.intake, tables.resolver, tables.series_reader, ingest.writer.write_metric, host, name, parts.now_ms
    )


def check_files(config: Config) -> None:
    """Read the files that a configuration names, and resolve its address, as the daemon does when it starts. Raise
    BadConfig with all problems. A file that this user cannot read is not checked: the daemon may be another user."""
    problems: list[str] = []
    for check in (configured_rollups, configured_histograms, query_limits, _check_tls, _check_accounts, _check_address):
        try:
            check(config)
        except BadConfig as exc:
            problems += exc.problems
    if problems:
        raise BadConfig(problems)


def _check_tls(config: Config) -> None:
    if config.tls_certificate and all(map(_is_checked, tls_files(config).values())):
        with _tls_errors(config):
            check_tls(config)


def _check_accounts(config: Config) -> None:
    path = Path(config.auth_file)
    if config.authentication and _is_checked(path) and (not exists(path) or path.stat().st_uid in (0, os.geteuid())):
        with _named("tsd.auth.file"):
            read_accounts(path)


def _is_checked(path: str | Path) -> bool:
    """Return whether this user can read a file, or see that there is none."""
    return os.access(path, os.R_OK) or not os.path.lexists(path)


def _check_address(config: Config) -> None:
    try:
        socket.getaddrinfo(config.bind, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise BadConfig([f"tsd.network.bind: got {config.bind!r}, wanted an address: {reason}"]) from exc


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Raise BadConfig with the key for a TsdError of the block."""
    try:
        yield
    except TsdError as exc:
        raise BadConfig([f"{key}: {line}" for line in str(exc).splitlines()]) from exc


@contextmanager
def _tls_errors(config: Config) -> Iterator[None]:
    """Raise BadConfig with the setting that names the file for a TsdError of the block."""
    try:
        yield
    except TsdError as exc:
        problem = str(exc)
        keys = (key for key, name in tls_files(config).items() if problem.startswith((f"{name}:", f"{name} and ")))
        raise BadConfig([f"{next(keys, 'tsd.tls')}: {problem}"]) from exc


def build_access(config: Config, now_ms: Clock) -> AccessControl:
    """Build authentication, TLS and the table of clients. Raise BadConfig."""
    clients = Clients(configured_quotas(config), now_ms, prefix=config.ipv6_prefix)
    with _tls_errors(config):
        tls = Tls(config, now_ms) if config.tls_certificate else None
    with _named("tsd.auth.file"):
        authenticator = Authenticator(config, now_ms)
    for event, hint in warnings(config, anonymous_roles(config), config.bind):
        log.warning(event, next_step=hint)
    return AccessControl(clients, authenticator, tls)


def listener_limits(config: Config) -> ListenerLimits:
    """Return the limits of connections."""
    return ListenerLimits(
        connections=config.connections_limit,
        idle_timeout_s=config.socket_timeout_s,
        line_timeout_s=config.line_timeout_s,
        partial_input_bytes=config.partial_input_memory,
    )


def build_server(parts: CoreParts) -> ServerParts:
    """Build the HTTP and telnet servers and their listener."""
    config, ingest, access = parts.config, parts.ingest, parts.access
    http = HttpServer(parts)
    stats = TelnetStats()
    translation = _translation(config, parts.tables)
    batches = PacketBatches(
        ingest.intake.take_packets,
        parts.now_ms,
        stats.add_commands,
        is_plain=None if translation is None else translation.is_plain,
    )
    multiplexer = Multiplexer(batches, ingest.backpressure)
    rest_s = min(config.journal_gather_ms / 1000 * UNREAD_SHARE, MAX_UNREAD_S)
    quiet = QuietConnections(rest_s, ingest.journal.write_gathered, batches) if rest_s else None
    options = TelnetOptions(
        config.mode,
        not config.no_diediedie,
        MAX_LINE_BYTES,
        REPLY_BUFFER,
        timeout_s=config.socket_timeout_s or math.inf,
        translation=translation,
        has_entities=parts.tables.entities is not None,
    )
    commands = _telnet_commands(parts.control, kairosdb=config.kairosdb_dialect)
    authenticator = access.authenticator
    port = TelnetPort(
        ingest.intake, commands, options, stats, ReplyBudget(REPLY_MEMORY), authenticator, multiplexer, quiet
    )

    async def serve_telnet(
        stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]], peer: Peer
    ) -> None:
        if authenticator.enabled and not peer.principal.roles:
            rest = await log_in(stream, first, receive, authenticator, peer, MAX_LINE_BYTES)
            if rest is None:
                return
            first = rest
        await TelnetSession(port, stream, peer).run(first, receive)

    listener = Listener(serve_telnet, http.serve, listener_limits(config), access, multiplexer, quiet)
    return ServerParts(http, stats, multiplexer, listener, translation)


def _translation(config: Config, tables: Tables) -> Translation | None:
    """Return how telnet lines become put lines in ISO-8859-1."""
    if config.kairosdb_dialect:
        return kairosdb(has_ttl=tables.has_ttl, has_texts=tables.has_texts)
    return UTF_8 if config.telnet_charset is Charset.UTF_8 else None


def _telnet_commands(control: DaemonControl, *, kairosdb: bool) -> DaemonCommands:
    version = kairosdb_catalog.telnet_version if kairosdb else partial(version_reply, compiled=series.HAS_LOOP)
    return DaemonCommands(control.stats, version, control.drop_caches, control.stop)
