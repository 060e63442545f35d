"""The lifecycle of a daemon: start its parts in order, handle signals, and stop the parts in order of the data flow.

Neither the store nor its tables need to be available at the start. The folders, the port and the journal must be
usable.

SIGTERM and SIGINT stop the daemon, the second one immediately. SIGHUP reloads files. SIGUSR1 logs where tasks wait.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from tsd.codec.text import counted
from tsd.config import loader
from tsd.config.loader import Loaded, journal_folder, keys, lacks_static_files, named_files, state_folder
from tsd.config.settings import Config
from tsd.config.state_dir import lock_state
from tsd.daemon.assembly import build_daemon
from tsd.daemon.daemon import Daemon, apply_settings
from tsd.daemon.diagnostics import log_tasks, tune_malloc
from tsd.daemon.layouts import BuildTables, build_configured_tables
from tsd.daemon.settings import control_path, now_ms
from tsd.daemon.stop_limit import StopLimit
from tsd.daemon.systemd import Watchdog, WatchdogTimeouts, microseconds, notify, notify_soon, notify_until_sent
from tsd.daemon.waiting import wait_for_space
from tsd.daemon.wiring import OpenStore, opened_store
from tsd.errors import BadConfig, CorruptRow, StoreError, TsdError, UnfitSettings, bare, lacks_space
from tsd.ingest.journal.folder import held_journal
from tsd.ingest.journal.journal import Segment
from tsd.lazy import LazyLogger
from tsd.server import control, sockets
from tsd.server.listener import prepare_descriptor_limit
from tsd.store import Store
from tsd.store.scheduling import IngestLoad

log = LazyLogger(__name__)


Reload = tuple[str, Callable[[], Awaitable[None]]]
OnReady = Callable[[Daemon, Sequence[int]], None]

CHECK_WAIT_S = 5.0  # a start waits this long for a store that does not say whether its tables fit the settings
CHECK_AGAIN_S = 10.0  # until it is asked again
REPLAY_WAIT_S = 1.0  # a start waits this long for the replay of the journal
END_S = 5  # after the last deadline of a stop, to write lines once more and close the store
DRAIN_S = 5  # time to process received lines and send the last replies
STALLED_CALLS = 4  # successive timeouts of the store that may delay the end: a thread cannot be cancelled


@asynccontextmanager
async def signals_handled(
    stop: trio.Event, stop_now: trio.Event, reloads: Sequence[Reload], ready: trio.Event
) -> AsyncIterator[None]:
    """Handle signals within the block: the first to stop sets `stop`, the next one `stop_now`.

    SIGHUP runs `reloads` one after the other, but not before the daemon is `ready`. The list may grow meanwhile.
    """
    failure: TsdError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(_receive_signals, stop, stop_now, reloads, ready)
        try:
            yield
        except TsdError as error:  # raised below, outside of an exception group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _receive_signals(
    stop: trio.Event,
    stop_now: trio.Event,
    reloads: Sequence[Reload],
    ready: trio.Event,
    task_status: trio.TaskStatus[None],
) -> None:
    on_terminal = _is_on_terminal()
    send, receive = trio.open_memory_channel[None](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reload_on_request, receive, reloads, ready, stop)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # which the command has blocked
            task_status.started()
            async for number in signals:
                log.info("signal.received", name=signal.Signals(number).name)
                if number == signal.SIGUSR1:
                    log_tasks()
                elif number == signal.SIGHUP and not on_terminal:
                    with suppress(trio.WouldBlock):  # a pending reload reads the same files
                        send.send_nowait(None)
                elif stop.is_set():
                    stop_now.set()
                else:
                    stop.set()


def _is_on_terminal() -> bool:
    """Return whether the daemon runs on a terminal. SIGHUP then means that the terminal is gone."""
    try:
        return os.isatty(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # standard error was replaced, for example by a test
        return False


async def _reload_on_request(
    requests: trio.MemoryReceiveChannel[None], reloads: Sequence[Reload], ready: trio.Event, stop: trio.Event
) -> None:
    """Reload on each request once the daemon is ready, and tell systemd.

    READY=1 ends both a reload and a start. Sent during the start, it would arm the watchdog before it is fed. A
    stopping daemon does not send it either.
    """
    await ready.wait()
    async for _ in requests:
        if not stop.is_set():
            notify(RELOADING=1, MONOTONIC_USEC=microseconds(time.monotonic()))
        await reload(reloads)
        await notify_until_sent(stop.is_set, READY=1)


async def reload(reloads: Sequence[Reload]) -> None:
    """Run all reloads. If one fails, log it and keep the current values. An error that is not about the file or its
    content has its trace in the log."""
    failed = []
    for name, read in reloads:
        try:
            await read()
        except Exception as error:  # noqa: BLE001 - a broken file does not stop a serving daemon
            trace = {} if isinstance(error, TsdError | OSError) else {"exc_info": error}
            log.error("reload.failed", what=name, error=str(error) or repr(error), **trace)
            failed.append(name)
    done = [name for name, _ in reloads if name not in failed]
    log.info("reload.finished", what=" ".join(done) or None, failed=" ".join(failed) or None)


class Shutdown:
    """State of the shutdown."""

    def __init__(self, stop: trio.Event) -> None:
        self.stop = stop  # stop after writing pending points
        self.stop_now = trio.Event()  # stop now; pending points stay in the journal
        self.limit = StopLimit()
        self.losses: list[str] = []  # errors about accepted writes that the store lost; it refuses further writes
        self.unfit: UnfitSettings | None = None

    def on_loss(self, loss: str) -> None:
        """Stop because the store lost writes: the journal still has them."""
        self.losses.append(loss)
        self.stop.set()

    def on_unfit(self, error: UnfitSettings) -> None:
        """Stop because the tables were written with other settings. Pending points stay in the journal: they would be
        written where no other reader finds them."""
        self.unfit = error
        self.stop.set()
        self.stop_now.set()


async def serve(
    loaded: Loaded,
    stop: trio.Event,
    on_ready: OnReady,
    reload_config: Callable[[], Loaded] | None = None,
    *,
    open_store: OpenStore = opened_store,
    build_tables: BuildTables = build_configured_tables,
) -> None:
    """Run a daemon until `stop`, or a signal.

    `on_ready` is called with the daemon and its ports when it serves. `reload_config` reads the configuration again.
    `open_store` and `build_tables` choose the engine and the table layout.
    """
    _check_credentials(loaded.config)
    _report_ineffective(loaded)
    tune_malloc()
    prepare_descriptor_limit()
    config = loaded.config
    shutdown = Shutdown(stop)
    reloads: list[Reload] = []
    ready = trio.Event()
    where = sockets.ListenAddress(config.bind, config.port, config.backlog, config.reuse_port)
    listeners: list[trio.SocketListener] = []
    errors: Counter[int] = Counter()  # responses of a start that waited, by status

    async def start() -> None:
        """Start a daemon and run it until it stops."""
        try:
            state = state_folder(config)
            with lock_state(state, files=named_files(config)), held_journal(journal_folder(config), state):
                load = IngestLoad()
                async with open_store(config, shutdown.on_loss, load) as store:
                    if not listeners:  # before a long replay: the port may be taken
                        listeners.extend(await sockets.listeners(where))
                    daemon = build_daemon(config, store, stop, load, build_tables=build_tables)
                    daemon.server.http.request_stats.errors.update(errors)
                    settings = [("settings", _settings_reload(daemon, reload_config))] if reload_config else []
                    reloads[:] = [*settings, *daemon.reloads]
                    try:
                        await _run(daemon, listeners, on_ready, shutdown, ready)
                    finally:
                        with suppress(FileNotFoundError):
                            os.unlink(control_path(config))
        finally:
            shutdown.limit.end()

    async with signals_handled(stop, shutdown.stop_now, reloads, ready):
        while True:
            try:
                await start()
                break
            except Exception as error:
                if ready.is_set() or stop.is_set() or not lacks_space(error):
                    raise
                full = bare(error)
            if not listeners:
                listeners.extend(await sockets.listeners(where))
            errors += await wait_for_space(config, full, listeners, now_ms, stop)
            if stop.is_set():
                break
    if shutdown.unfit is not None:
        raise BadConfig([str(shutdown.unfit)])
    if shutdown.losses:
        raise StoreError(f"{shutdown.losses[0]}: stopped, so that the next start replays the journal")
    log.info("daemon.stopped")


def _report_ineffective(loaded: Loaded) -> None:
    """Log the settings that have no effect."""
    if loaded.ignored.keys:
        log.info("settings.ignored", keys=" ".join(loaded.ignored.keys))
    for key, consequence in loaded.ignored.unsupported.items():
        log.warning("setting.unsupported", key=key, consequence=consequence)
    for key, place, instead in loaded.repeated:
        log.warning("setting.repeated", key=key, where=place, instead=instead)
    if lacks_static_files(loaded.config):
        log.warning("static_files.missing", folder=loaded.config.staticroot)


def _check_credentials(config: Config) -> None:
    """Raise BadConfig if settings name credentials and systemd provided none."""
    values = {key: getattr(config, field.name) for key, field in keys().items() if key in loader.CREDENTIAL_KEYS}
    unresolved = [f"{key}: got {text!r}" for key, text in values.items() if loader.credential_name(text) is not None]
    if unresolved:
        raise BadConfig([f"{one}, but systemd provided no credentials (LoadCredential=)" for one in unresolved])


def _settings_reload(daemon: Daemon, reload_config: Callable[[], Loaded]) -> Callable[[], Awaitable[None]]:
    async def settings() -> None:
        daemon.config = apply_settings(daemon.config, reload_config, daemon.live)

    return settings


async def _run(
    daemon: Daemon, listeners: list[trio.SocketListener], on_ready: OnReady, shutdown: Shutdown, ready: trio.Event
) -> None:
    """Run the servers, the writer and the journal. They stop in this order, each after its input has ended.

    After `stop_now`, or when the store accepts no more writes, pending points stay in the journal.
    """
    writer, journal = daemon.ingest.writer, daemon.ingest.journal
    segments = await trio.to_thread.run_sync(journal.recover)
    async with trio.open_nursery() as watching:
        async with trio.open_nursery() as disk:
            disk.start_soon(journal.run)
            async with trio.open_nursery() as writers:
                watching.start_soon(_stop_now, daemon, shutdown, writers.cancel_scope)
                writers.start_soon(writer.write_windows)
                async with trio.open_nursery() as servers:
                    servers.start_soon(_stop_servers, daemon, shutdown, servers.cancel_scope, watching)
                    await _start_check(daemon, shutdown, servers)
                    ports = await _start_servers(daemon, segments, listeners, servers)
                    notify_soon(watching, daemon.stop.is_set, READY=1, STATUS=f"serving port {ports[0]}")
                    ready.set()
                    watching.start_soon(_watchdog(daemon, shutdown).run, f"serving port {ports[0]}")
                    on_ready(daemon, ports)
                    await trio.to_thread.run_sync(journal.confirm_damage_counted)
                drain_s = daemon.config.drain_ms / 1000
                if not shutdown.stop_now.is_set():
                    shutdown.limit.start(drain_s + _stall_s(daemon.store) + END_S, partial(_left, daemon))
                deadline = trio.current_time() + drain_s
                writers.cancel_scope.deadline = trio.current_time() if shutdown.losses else deadline
                writer.finish()
            journal.close(deadline=trio.current_time() if shutdown.stop_now.is_set() else deadline)
        watching.cancel_scope.cancel()
    _report_pending(daemon)


async def _start_servers(
    daemon: Daemon, segments: Sequence[Segment], listeners: Sequence[trio.SocketListener], servers: trio.Nursery
) -> list[int]:
    """Replay the journal's segments, and start the background tasks, the control socket and the servers. Return the
    ports."""
    writer = daemon.ingest.writer
    servers.start_soon(writer.watch_journal)
    daemon.adopt(segments)
    await _begin(daemon.watch_replay, servers, REPLAY_WAIT_S)
    servers.start_soon(writer.seal_windows)
    for task in daemon.tasks():
        servers.start_soon(task)
    path = await control.open_listener(control_path(daemon.config))
    servers.start_soon(control.serve, path, daemon.control_operations(), daemon.tables.connection_operations)
    return await _listen(daemon, listeners, servers)


async def _begin(work: Callable[[], Awaitable[None]], nursery: trio.Nursery, wait_s: float) -> None:
    """Begin work of a start, and return when it has ended or has taken `wait_s`."""
    ended = trio.Event()

    async def watch() -> None:
        await work()
        ended.set()

    nursery.start_soon(watch)
    with trio.move_on_after(wait_s):
        await ended.wait()


async def _start_check(daemon: Daemon, shutdown: Shutdown, nursery: trio.Nursery) -> None:
    """Stop the daemon if the tables were written with other settings, before any point is. A start does not wait for a
    store that is unavailable."""

    async def check() -> None:
        try:
            await daemon.tables.check()
        except UnfitSettings as error:
            shutdown.on_unfit(error)
            await trio.sleep_forever()  # until the start is cancelled
        except CorruptRow:  # of a counter of UIDs, which is read last
            pass
        except StoreError:
            nursery.start_soon(check_later)

    async def check_later() -> None:
        await trio.sleep(CHECK_AGAIN_S)
        await check()

    await _begin(check, nursery, CHECK_WAIT_S)


async def _listen(daemon: Daemon, listeners: Sequence[trio.SocketListener], servers: trio.Nursery) -> list[int]:
    """Serve the listeners; return their ports."""
    config = daemon.config
    daemon.server.http.limit_hosts(config, is_local=sockets.are_local(listeners))
    daemon.is_open = True
    servers.start_soon(daemon.server.listener.serve, listeners)
    ports = [listener.socket.getsockname()[1] for listener in listeners]
    log.info("daemon.ready", port=ports[0], bind=config.bind, backend=config.backend.value, pid=os.getpid())
    return ports


def _watchdog(daemon: Daemon, shutdown: Shutdown) -> Watchdog:
    ingest = daemon.ingest
    timeouts = WatchdogTimeouts(daemon.watchdog_s, 2 * _stall_s(daemon.store))
    return Watchdog(
        ingest.journal, ingest.writer, ingest.backpressure, daemon.canary, lambda: ingest.ledger.received, timeouts,
        shutdown.stop.is_set,
    )  # fmt: skip


def _report_pending(daemon: Daemon) -> None:
    """Log how many points the next start must write. Raise TsdError if lines are lost."""
    journal, writer = daemon.ingest.journal, daemon.ingest.writer
    if (pending := writer.waiting_points - journal.lost) > 0:
        log.warning("journal.points_pending", points=pending)
    if lost := journal.lost:
        log.error("journal.lines_lost", lines=lost)
        raise TsdError(f"{counted(lost, 'line')} could not be journaled: {journal.trouble}")


async def _stop_servers(daemon: Daemon, shutdown: Shutdown, servers: trio.CancelScope, watching: trio.Nursery) -> None:
    await daemon.stop.wait()
    timeout_s = DRAIN_S + daemon.config.drain_ms / 1000 + _stall_s(daemon.store)
    shutdown.limit.start(timeout_s + END_S, partial(_left, daemon))
    extended = microseconds(timeout_s + 2 * END_S)
    notify_soon(watching, STOPPING=1, STATUS="writing pending points", EXTEND_TIMEOUT_USEC=extended)
    log.info("daemon.stopping", points_pending=daemon.ingest.writer.waiting_points, timeout_s=round(timeout_s))
    if daemon.is_open:
        daemon.server.listener.drain()
        with trio.move_on_after(DRAIN_S):
            await daemon.server.listener.closed.wait()
    servers.cancel()


def _left(daemon: Daemon) -> dict[str, object]:
    """Return what a stop has not written."""
    journal, writer = daemon.ingest.journal, daemon.ingest.writer
    lost = journal.lost
    return {
        "points_pending": writer.waiting_points - lost, "lines_unsynced": lost, "journal": str(journal.folder),
        "journal_error": journal.trouble, "store_error": writer.trouble,
    }  # fmt: skip


async def _stop_now(daemon: Daemon, shutdown: Shutdown, writers: trio.CancelScope) -> None:
    """Cancel writes to the store: the journal has the points."""
    await shutdown.stop_now.wait()
    log.warning("daemon.stopping_now")
    shutdown.limit.start(END_S + _stall_s(daemon.store), partial(_left, daemon))
    writers.cancel()


def _stall_s(store: Store) -> float:
    """Return how long calls to the store may delay the shutdown."""
    return STALLED_CALLS * store.capabilities.call_timeout_s
