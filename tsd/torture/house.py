"""Where a daemon is tortured: its state folder, its gateways' bad company, its clock, and one life after the other."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from tsd.assembly import control_path
from tsd.config import Backend, Config, gateways
from tsd.errors import StoreDown
from tsd.store import Store
from tsd.store.remote import Caller, RemoteStore
from tsd.torture.disk import Disk, small_disk
from tsd.torture.forked import set_ahead
from tsd.torture.process import PATIENCE_S, WORD_S, Daemon, Fallen, running, words_of
from tsd.torture.proxy import FaultyProxy, Mode
from tsd.torture.senders import Unexpected
from tsd.torture.settings import WINDOW, WINDOWS_MS, config_of, has_window, tortured

OPEN = "connectionmgr.connections type=open"
ALONE_S = 120.0  # a client that has hung up may have left much, and its answers are kept for half a minute
LOOK_S = 0.05  # between two looks at a daemon's numbers


class Ground(NamedTuple):
    """What all houses of a run stand on."""

    config: Config  # the user's
    prefix: str  # of tables, on HBase
    own: Config  # with those tables
    store: Store | None  # on HBase: our own way to it, past all that misbehaves


class House:
    """One daemon at a time."""

    def __init__(
        self, ground: Ground, folder: Path, disk: Disk, proxies: Sequence[FaultyProxy], *, eager: bool
    ) -> None:
        self.folder = folder
        self.disk = disk
        self.config = ground.config
        self._store = ground.store
        self._proxies = proxies
        self._clock = folder / "clock"
        self._ahead_ms = 0
        set_ahead(self._clock, 0)
        self._keeps_window = has_window(ground.config)
        addresses = ",".join(f"{proxy.host}:{proxy.port}" for proxy in proxies)
        self._settings = tortured(ground.config, ground.prefix, disk.folder / "state", addresses, eager=eager)
        self.own = config_of(self._settings)
        self._lives: trio.Nursery | None = None
        self._daemon: Daemon | None = None

    @property
    def daemon(self) -> Daemon:
        """The one that runs, or ran last."""
        assert self._daemon is not None
        return self._daemon

    @property
    def began(self) -> bool:
        """Whether there was one."""
        return self._daemon is not None

    async def tell_tasks(self) -> None:
        """Have the daemon that runs log where its tasks wait."""
        if self._daemon is not None:
            await self._daemon.tell_tasks()

    @property
    def on_hbase(self) -> bool:
        """Which engine it is."""
        return self.config.backend is Backend.HBASE

    @asynccontextmanager
    async def lived_in(self) -> AsyncIterator[None]:
        """Daemons may be started during the block; none is left at its end."""
        async with trio.open_nursery() as self._lives:
            yield
            self._lives.cancel_scope.cancel()

    async def start(self, chance: random.Random, windows_ms: Sequence[str] = WINDOWS_MS) -> Daemon:
        """Begin a life, with a window that is drawn."""
        window = {} if self._keeps_window else {WINDOW: chance.choice(windows_ms)}
        assert self._lives is not None
        self._daemon = await self._lives.start(self._live, {**self._settings, **window})
        return self.daemon

    async def _live(self, settings: Mapping[str, str], task_status: trio.TaskStatus[Daemon]) -> None:
        async with running(words_of(settings), self.folder, self.folder / "daemon.log", self._clock) as daemon:
            task_status.started(daemon)
            await daemon.gone.wait()
            if not daemon.killed:  # nobody need wait for what it was to do
                raise Fallen(f"a daemon ended by itself: {daemon.last_words()}")

    async def up(self, chance: random.Random, windows_ms: Sequence[str] = WINDOWS_MS) -> Daemon:
        """A daemon that serves: the one that runs, or a new one."""
        if self._daemon is None or not self._daemon.alive:
            await self.start(chance, windows_ms)
        await self.daemon.ready()
        return self.daemon

    @property
    def gateways_do(self) -> Mode:
        """How the gateways behave."""
        return self._proxies[0].mode if self._proxies else Mode.PASS

    @gateways_do.setter
    def gateways_do(self, mode: Mode) -> None:
        for proxy in self._proxies:
            proxy.mode = mode

    def jump(self, by_ms: int) -> None:
        """Set the daemon's wall clock forward, or back."""
        self._ahead_ms += by_ms
        set_ahead(self._clock, self._ahead_ms)

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[Caller]:
        """The daemon's control socket."""
        try:
            caller = await Caller.connect(control_path(self.own))
        except OSError as exc:
            await self._hear_out()
            raise Fallen(f"a daemon's control socket does not answer: {exc}") from exc
        try:
            yield caller
        except StoreDown:
            await self._hear_out()
            raise
        finally:
            with trio.CancelScope(shield=True):
                await caller.aclose()

    async def _hear_out(self) -> None:
        """Return after a while: a daemon that is ending says first why, and then this is cancelled."""
        with trio.move_on_after(WORD_S):
            await trio.sleep_forever()

    async def stats(self) -> dict[str, int]:
        """The daemon's numbers, by name and own tag. Raises Unexpected where its account does not balance."""
        async with self.asked() as caller:
            text: bytes = await caller.ask("stats")
        found: dict[str, int] = {}
        for line in text.decode().splitlines():
            name, _, value, *tags = line.split(" ")
            own = (tag for tag in tags if not tag.startswith(("host=", "fqdn=", "port=")))
            found[" ".join([name.removeprefix("tsd."), *own])] = int(value)
        refused = sum(value for name, value in found.items() if name.startswith("ledger.refused"))
        if found["ledger.received"] != found["ledger.stored"] + found["ledger.journaled"] + refused:
            raise Unexpected(f"a daemon's account does not balance: {_of_ledger(found)}")
        return found

    async def grown(self, name: str, by: int = 1) -> None:
        """Return once one of the numbers has grown so far from now on."""
        await self.reached(name, (await self.stats())[name] + by)

    async def reached(self, name: str, wanted: int) -> None:
        """Return once one of the numbers is no less than that."""
        while (await self.stats())[name] < wanted:  # noqa: ASYNC110 - of another process: each look is a request
            await trio.sleep(LOOK_S)

    async def alone(self) -> None:
        """Return once nobody is connected, and twice nothing more has come: what a client sent before it hung up is
        taken in after that. Raises Unexpected where that takes too long."""
        before: dict[str, int] = {}
        with trio.move_on_after(ALONE_S):
            while True:
                found = await self.stats()
                if not found[OPEN] and found["ledger.received"] == before.get("ledger.received"):
                    return
                before = found
                await trio.sleep(LOOK_S)
        raise Unexpected(f"{before.get(OPEN)} connections are open {ALONE_S:g} s after their clients have hung up")

    async def flush(self) -> None:
        """Return once everything that was received is stored. Raises Unexpected where that stands still."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_storing)
            while not await self._flushed():  # noqa: ASYNC110 - of another process
                await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()

    async def _flushed(self) -> bool:
        async with self.asked() as caller:
            return bool(await caller.ask("flush"))

    async def _watch_storing(self) -> None:
        """Raise Unexpected once no more was stored for too long: a backlog takes its time."""
        stored, since = -1, trio.current_time()
        while True:
            found = await self.stats()
            if found["ledger.stored"] != stored:
                stored, since = found["ledger.stored"], trio.current_time()
            elif trio.current_time() > since + PATIENCE_S:
                raise Unexpected(f"not everything is stored, and no more for {PATIENCE_S:g} s: {_of_ledger(found)}")
            await trio.sleep(LOOK_S)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """The tables, as they are: through the daemon that owns them, or past all gateways that misbehave."""
        if self._store is not None:
            yield self._store
            return
        async with self.asked() as caller:
            yield RemoteStore(caller)


def _of_ledger(stats: Mapping[str, int]) -> str:
    return str({name: value for name, value in stats.items() if name.startswith("ledger") and value})


@asynccontextmanager
async def house(ground: Ground, folder: Path, *, small: bool, eager: bool) -> AsyncIterator[House]:
    """A house in `folder`, which is made; on a disk that can be filled where it is to be `small`, with daemons that are
    `eager` to rewrite rows or not."""
    folder.mkdir()  # noqa: ASYNC240 - no longer than any look at a clock
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk")) if small else Disk(folder, small=False)
        proxies: list[FaultyProxy] = []
        if ground.config.backend is Backend.HBASE:
            proxies = [stack.enter_context(FaultyProxy(*address)) for address in gateways(ground.config)]
        built = House(ground, folder, disk, proxies, eager=eager)
        async with built.lived_in():
            yield built
