"""Test environments: one daemon at a time with its state folder, faulty gateways and clock.

Full disks are simulated on a small file system in memory if it can be mounted, otherwise by a limit on file sizes.
"""

import random
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from tsd.cli.torture.fork_server import set_ahead
from tsd.cli.torture.process import DUMP_TIMEOUT_S, TIMEOUT_S, DaemonExited, DaemonProcess, running, serve_arguments
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode
from tsd.cli.torture.senders import HOST, UnexpectedAnswer
from tsd.cli.torture.servers import Servers
from tsd.cli.torture.settings import WINDOW, WINDOWS_MS, config_of, daemon_settings, has_own_window
from tsd.config.settings import Config
from tsd.daemon.settings import control_path
from tsd.daemon.wiring import needs_right_clock, server_addresses, server_setting
from tsd.errors import StoreDown
from tsd.lazy import LazyModule
from tsd.store import Store
from tsd.store.remote import ControlClient, RemoteStore

if TYPE_CHECKING:
    from tsd.cli.torture import relay as bigtable_relay
else:  # grpcio need not be installed
    bigtable_relay = LazyModule("tsd.cli.torture.relay")

DISK_BYTES = 48 << 20
CHUNK = bytes(1 << 16)
MIN_FILE_BYTES = 256 << 10  # smallest limit on file sizes: the journal fits, RocksDB's files soon do not


class StateDisk:
    """The file system of a state folder, which can be filled and freed."""

    def __init__(self, folder: Path, *, small: bool) -> None:
        self.folder = folder
        self.small = small  # a file system of its own

    def fill(self) -> None:
        """Use all free space."""
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(CHUNK)

    def free(self) -> None:
        """Release the space again."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        assert self.small  # never fill a user's disk
        return self.folder / "ballast"


@contextmanager
def small_disk(folder: Path) -> Iterator[StateDisk]:
    """Create `folder` and yield its StateDisk: a file system of its own if this process may mount one."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        small = subprocess.run(mounting, check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError:  # the mount program is missing
        small = False
    try:
        yield StateDisk(folder, small=small)
    finally:
        if small:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S603, S607


OPEN = "connectionmgr.connections type=open"
IDLE_TIMEOUT_S = 120.0  # a disconnected client may leave much unread input, and replies are kept for half a minute
POLL_S = 0.05  # between two reads of a daemon's statistics


class Setup(NamedTuple):
    """What all test environments of a run share."""

    config: Config  # the user's
    prefix: str  # of tables on servers
    own: Config  # with those tables
    store: Store | None  # on servers: a connection without the faulty proxies
    servers: Servers  # of the store, without the proxies


class Environment:
    """A state folder, a clock and proxies for one daemon at a time."""

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        disk: StateDisk,
        proxies: Sequence[FaultyProxy],
        relays: Sequence["bigtable_relay.Relay"] = (),
        *,
        eager: bool,
    ) -> None:
        """`relays` are between the proxies and the servers."""
        self.folder = folder
        self.disk = disk
        self.config = setup.config
        self._store = setup.store
        self.servers = setup.servers
        self._proxies = proxies
        self._relays = relays
        self._clock = folder / "clock"
        self._clock_ahead_ms = 0
        set_ahead(self._clock, 0)
        self._keeps_window = has_own_window(setup.config)
        addresses = ",".join(f"{proxy.host}:{proxy.port}" for proxy in proxies)
        self._settings = daemon_settings(setup.config, setup.prefix, disk.folder / "state", addresses, eager=eager)
        self.own = config_of(self._settings)
        self._daemons: trio.Nursery | None = None
        self._daemon: DaemonProcess | None = None

    @property
    def daemon(self) -> DaemonProcess:
        """The running daemon, or the last one."""
        assert self._daemon is not None
        return self._daemon

    @property
    def was_started(self) -> bool:
        """Return whether a daemon was started."""
        return self._daemon is not None

    async def dump_tasks(self) -> None:
        """Make the running daemon log where its tasks wait."""
        if self._daemon is not None:
            await self._daemon.dump_tasks()

    @property
    def has_servers(self) -> bool:
        """Return whether daemons store on servers, through proxies."""
        return bool(server_setting(self.config))

    @asynccontextmanager
    async def supervise(self) -> AsyncIterator[None]:
        """Allow starting daemons during the block, and end them with it."""
        async with trio.open_nursery() as self._daemons:
            yield
            self._daemons.cancel_scope.cancel()

    async def start(self, chance: random.Random, windows_ms: Sequence[str] = WINDOWS_MS) -> DaemonProcess:
        """Start a daemon with a randomly chosen write window."""
        window = {} if self._keeps_window else {WINDOW: chance.choice(windows_ms)}
        assert self._daemons is not None
        self._daemon = await self._daemons.start(self._run_daemon, {**self._settings, **window})
        return self.daemon

    async def _run_daemon(self, settings: Mapping[str, str], task_status: trio.TaskStatus[DaemonProcess]) -> None:
        async with running(serve_arguments(settings), self.folder, self.folder / "daemon.log", self._clock) as daemon:
            task_status.started(daemon)
            await daemon.exited.wait()
            if not daemon.killed:  # cancels all that waits for the daemon
                raise DaemonExited(f"a daemon exited: {daemon.last_output()}")

    async def ensure_ready(self, chance: random.Random, windows_ms: Sequence[str] = WINDOWS_MS) -> DaemonProcess:
        """Return a ready daemon: the running one, or a new one."""
        if self._daemon is None or not self._daemon.alive:
            await self.start(chance, windows_ms)
        await self.daemon.ready()
        return self.daemon

    @property
    def gateway_mode(self) -> ProxyMode:
        """The fault mode of all gateways."""
        return self._proxies[0].mode if self._proxies else ProxyMode.PASS

    @gateway_mode.setter
    def gateway_mode(self, mode: ProxyMode) -> None:
        for proxy in self._proxies:
            proxy.mode = mode

    def fail_calls(self, share: float) -> None:
        """Let the relays answer this share of calls with errors."""
        for relay in self._relays:
            relay.share = share

    def failed_calls(self) -> int:
        """Return how many calls the relays have answered with errors."""
        return sum(relay.failed.total() for relay in self._relays)

    def jump(self, by_ms: int) -> None:
        """Set the daemon's wall clock forward or back."""
        self._clock_ahead_ms += by_ms
        set_ahead(self._clock, self._clock_ahead_ms)

    @asynccontextmanager
    async def control(self) -> AsyncIterator[ControlClient]:
        """Connect to the daemon's control socket for the block."""
        try:
            caller = await ControlClient.connect(control_path(self.own))
        except OSError as exc:
            await self._wait_for_exit()
            raise DaemonExited(f"a daemon's control socket does not answer: {exc}") from exc
        try:
            yield caller
        except StoreDown:
            await self._wait_for_exit()
            raise
        finally:
            with trio.CancelScope(shield=True):
                await caller.aclose()

    async def _wait_for_exit(self) -> None:
        """Wait for an exiting daemon to log its reason: its exit then cancels this task."""
        with trio.move_on_after(DUMP_TIMEOUT_S):
            await trio.sleep_forever()

    async def stats(self) -> dict[str, int]:
        """Return the daemon's statistics by name and tags. Raise UnexpectedAnswer if line counts do not balance."""
        async with self.control() as caller:
            text: bytes = await caller.call("stats")
        found: dict[str, int] = {}
        for line in text.decode().splitlines():
            name, _, value, *tags = line.split(" ")
            own = (tag for tag in tags if not tag.startswith(("host=", "fqdn=", "port=")))
            found[" ".join([name.removeprefix("tsd."), *own])] = int(value)
        refused = sum(value for name, value in found.items() if name.startswith("ledger.refused"))
        if found["ledger.received"] != found["ledger.stored"] + found["ledger.journaled"] + refused:
            raise UnexpectedAnswer(f"a daemon's counts of lines do not balance: {_ledger_counts(found)}")
        return found

    async def wait_increase(self, name: str, by: int = 1) -> None:
        """Return once a statistic has increased by this much from now on."""
        await self.wait_at_least(name, (await self.stats())[name] + by)

    async def wait_at_least(self, name: str, wanted: int) -> None:
        """Return once a statistic is at least `wanted`."""
        while (await self.stats())[name] < wanted:  # noqa: ASYNC110 - of another process: each read is a request
            await trio.sleep(POLL_S)

    async def wait_idle(self) -> None:
        """Return once no client is connected and no line arrives between two reads.

        Input of disconnected clients is still processed after they are gone. Raise UnexpectedAnswer on timeout.
        """
        before: dict[str, int] = {}
        with trio.move_on_after(IDLE_TIMEOUT_S):
            while True:
                found = await self.stats()
                if not found[OPEN] and found["ledger.received"] == before.get("ledger.received"):
                    return
                before = found
                await trio.sleep(POLL_S)
        raise UnexpectedAnswer(
            f"{before.get(OPEN)} connections are open {IDLE_TIMEOUT_S:g} s after their clients disconnected"
        )

    async def flush(self) -> None:
        """Return once all received points are stored. Raise UnexpectedAnswer if storing makes no progress.

        The clock is set right first if points are not stored otherwise.
        """
        if needs_right_clock(self.own):
            self.jump(-self._clock_ahead_ms)
        async with self.storing():
            while not await self._flushed():  # noqa: ASYNC110 - of another process
                await trio.sleep(POLL_S)

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """Wait in the block for points to be stored. Raise UnexpectedAnswer if storing makes no progress."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_storing)
            yield
            nursery.cancel_scope.cancel()

    async def _flushed(self) -> bool:
        async with self.control() as caller:
            return bool(await caller.call("flush"))

    async def _watch_storing(self) -> None:
        """Raise UnexpectedAnswer once the count of stored points has not changed for too long."""
        stored, since = -1, trio.current_time()
        while True:
            found = await self.stats()
            if found["ledger.stored"] != stored:
                stored, since = found["ledger.stored"], trio.current_time()
            elif trio.current_time() > since + TIMEOUT_S:
                await self.dump_tasks()
                raise UnexpectedAnswer(
                    f"not everything is stored, and no progress for {TIMEOUT_S:g} s: {_ledger_counts(found)}; "
                    f"{self.daemon.scheduling()}"
                )
            await trio.sleep(POLL_S)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """Open the tables for the block: through the daemon that owns them, or without the faulty proxies."""
        if self._store is not None:
            yield self._store
            return
        async with self.control() as caller:
            yield RemoteStore(caller)


def _ledger_counts(stats: Mapping[str, int]) -> str:
    return str({name: value for name, value in stats.items() if name.startswith("ledger") and value})


@asynccontextmanager
async def open_environment(
    setup: Setup, folder: Path, *, small: bool, eager: bool, relayed: bool = False
) -> AsyncIterator[Environment]:
    """Create `folder` and yield its test environment.

    `small`: on a disk that can be filled. `eager`: daemons compact rows as soon as possible. `relayed`: calls of
    Bigtable can be answered with errors.
    """
    folder.mkdir()  # noqa: ASYNC240 - takes microseconds
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk")) if small else StateDisk(folder, small=False)
        addresses = server_addresses(setup.config) if server_setting(setup.config) else []
        relays: list[bigtable_relay.Relay] = []
        if relayed:
            upstreams = [f"{host}:{port}" for host, port in addresses]
            relays = [stack.enter_context(bigtable_relay.relaying(one, folder.name)) for one in upstreams]
            addresses = [(HOST, relay.port) for relay in relays]
        proxies = [stack.enter_context(FaultyProxy(*address)) for address in addresses]
        environment = Environment(setup, folder, disk, proxies, relays, eager=eager)
        async with environment.supervise():
            yield environment
