"""The life of a daemon: starts its parts in order, and stops them the way data flows.

Nothing here needs the others to be there: HBase may come later, and tables too. What must be there is said in words:
the folders, the port, a journal that can be read.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog
import trio

from tsd import credentials
from tsd.assembly import control_path, opened_store
from tsd.config import Backend, Config, Loaded, journal_folder, keys, state_folder
from tsd.daemon import Daemon
from tsd.doors import control, descriptors, sockets
from tsd.errors import BadConfig, StoreError, TsdError
from tsd.heap import keep_freed_memory
from tsd.ingest.folder import held_journal
from tsd.reloads import reread
from tsd.signals import heeded
from tsd.state import held
from tsd.systemd import announce, microseconds
from tsd.watchdog import Limits, Watchdog

log = structlog.get_logger(__name__)

DRAIN_S = 5  # for what connections have sent, and for their last replies
STALLED_CALLS = 4  # of the store, timed out one after the other, that may hold up an end: a thread cannot be cancelled
OnReady = Callable[[Daemon, Sequence[int]], None]


class Ends:
    """How the end is asked for."""

    def __init__(self, stop: trio.Event) -> None:
        self.stop = stop  # with all that waits
        self.at_once = trio.Event()  # what is in the journal will do
        self.losses: list[str] = []  # writes that the store took and does not have: it takes nothing any more

    def give_up(self, loss: str) -> None:
        """End because of a loss."""
        self.losses.append(loss)
        self.stop.set()


async def serve(loaded: Loaded, stop: trio.Event, on_ready: OnReady, again: Callable[[], Loaded] | None = None) -> None:
    """Run a daemon until `stop`, or a signal. `on_ready` gets it and its ports once agents are served; `again` reads
    the configuration once more."""
    config = loaded.config
    _check_credentials(config)
    ends = Ends(stop)
    reloads: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    ready = trio.Event()
    if loaded.ignored.keys:
        log.info("settings of OpenTSDB's without meaning here", keys=" ".join(loaded.ignored.keys))
    for key, consequence in loaded.ignored.not_done.items():
        log.warning("a setting of OpenTSDB's is on and not done by this version", key=key, consequence=consequence)
    keep_freed_memory()
    descriptors.raise_limit()
    async with heeded(stop, ends.at_once, reloads, ready):
        with held(state_folder(config)), held_journal(journal_folder(config), state_folder(config)):
            async with opened_store(config, ends.give_up) as store:
                where = sockets.Where(config.bind, config.port, config.backlog, config.reuse_port)
                listeners = await sockets.listeners(where)  # that the port is taken is said before anything is replayed
                daemon = Daemon(config, store, stop)
                if again is not None:
                    reloads.append(("settings", _rereading(daemon, again)))
                reloads += daemon.reloads
                try:
                    await _run(daemon, listeners, on_ready, ends, ready)
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(control_path(config))
    if ends.losses:
        raise StoreError(f"{ends.losses[0]}: ended, so that the journal does so at the next start")
    log.info("ended")


def _check_credentials(config: Config) -> None:
    """Raise BadConfig where settings name credentials and there are none."""
    asked = {key: getattr(config, field.name) for key, field in keys().items() if key in credentials.KEYS}
    unresolved = [f"{key}: got {text!r}" for key, text in asked.items() if credentials.name_of(text) is not None]
    if unresolved:
        raise BadConfig([f"{one}, but systemd handed over no credentials (LoadCredential=)" for one in unresolved])


def _rereading(daemon: Daemon, again: Callable[[], Loaded]) -> Callable[[], Awaitable[None]]:
    async def settings() -> None:
        daemon.config = reread(daemon.config, again, daemon.live)

    return settings


async def _run(
    daemon: Daemon, listeners: list[trio.SocketListener], on_ready: OnReady, ends: Ends, ready: trio.Event
) -> None:
    """Doors, then the writer, then the journal: each stops when nothing more can come to it. Where the end shall be at
    once, or the store takes nothing any more, nothing is drained into it."""
    config, writer, journal = daemon.config, daemon.writer, daemon.journal
    segments = await trio.to_thread.run_sync(journal.recover)
    async with trio.open_nursery() as watching:
        async with trio.open_nursery() as disk:
            disk.start_soon(journal.run)
            async with trio.open_nursery() as writers:
                watching.start_soon(_end_at_once, ends.at_once, writers.cancel_scope)
                writers.start_soon(writer.write_windows)
                async with trio.open_nursery() as doors:
                    doors.start_soon(_end_when_told, daemon, doors.cancel_scope, watching)
                    doors.start_soon(writer.watch_journal)
                    await daemon.replay(segments)
                    doors.start_soon(writer.seal_windows)
                    for task in daemon.upkeep():
                        doors.start_soon(task)
                    path = await control.open_listener(control_path(config))
                    doors.start_soon(control.serve, path, daemon.control_verbs())
                    ports = await _open_doors(daemon, listeners, doors)
                    announce(watching, daemon.stop.is_set, READY=1, STATUS=f"serving port {ports[0]}")
                    ready.set()
                    watching.start_soon(_watchdog(daemon, ends).run, f"serving port {ports[0]}")
                    on_ready(daemon, ports)
                    await trio.to_thread.run_sync(journal.told)
                deadline = trio.current_time() + daemon.config.drain_ms / 1000
                writers.cancel_scope.deadline = trio.current_time() if ends.losses else deadline
                writer.finish()
            journal.close(deadline=trio.current_time() if ends.at_once.is_set() else deadline)
        watching.cancel_scope.cancel()
    _say_what_waits(daemon)


async def _open_doors(daemon: Daemon, listeners: Sequence[trio.SocketListener], doors: trio.Nursery) -> list[int]:
    """Serve the port, and say so; its numbers."""
    config = daemon.config
    daemon.is_open = True
    doors.start_soon(daemon.listener.serve, listeners)
    ports = [listener.socket.getsockname()[1] for listener in listeners]
    log.info("ready", port=ports[0], bind=config.bind, backend=config.backend.value, pid=os.getpid())
    return ports


def _watchdog(daemon: Daemon, ends: Ends) -> Watchdog:
    """What tells systemd of this daemon; its canary begins with it."""
    config = daemon.config
    limits = Limits(daemon.watchdog_s, 2 * _stall_s(config))
    return Watchdog(
        daemon.journal, daemon.writer, daemon.gate, daemon.canary, lambda: daemon.ledger.received, limits,
        ends.stop.is_set,
    )  # fmt: skip


def _say_what_waits(daemon: Daemon) -> None:
    """At the end: what the next start will find, and what is lost. Raises TsdError for the latter."""
    journal = daemon.journal
    if (waiting := daemon.writer.waiting_points - journal.unsynced) > 0:
        log.warning("points wait in the journal for the next start", points=waiting)
    if lost := journal.unsynced:
        log.error("lines could not be journaled before the end; no sync confirmed them", lines=lost)
        raise TsdError(f"{lost} lines could not be journaled: {journal.trouble}")


async def _end_when_told(daemon: Daemon, doors: trio.CancelScope, watching: trio.Nursery) -> None:
    await daemon.stop.wait()
    longest_s = DRAIN_S + daemon.config.drain_ms / 1000 + _stall_s(daemon.config)
    announce(watching, STOPPING=1, STATUS="writing what waits", EXTEND_TIMEOUT_USEC=microseconds(longest_s))
    log.info("stopping", points_waiting=daemon.writer.waiting_points, may_take_s=round(longest_s))
    if daemon.is_open:
        daemon.listener.drain()
        with trio.move_on_after(DRAIN_S):
            await daemon.listener.ended.wait()
    doors.cancel()


async def _end_at_once(asked: trio.Event, writers: trio.CancelScope) -> None:
    """Leave to the journal what is not stored, whatever is being done."""
    await asked.wait()
    log.warning("ending at once: what is not in the store is in the journal")
    writers.cancel()


def _stall_s(config: Config) -> float:
    """How long calls of the store may hold up an end."""
    return STALLED_CALLS * config.thrift_timeout_ms / 1000 if config.backend is Backend.HBASE else 0.0
