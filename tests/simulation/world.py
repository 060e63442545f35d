"""One seed: daemons that live one after the other, clients, what happens to them, and what must hold at the end."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import trio

from tests.simulation.account import Account, Violation, read_names, read_points
from tests.simulation.chance import START_S, Event, Plan, Trouble
from tests.simulation.client import METRICS, Client
from tests.simulation.daemon import Life, Makers, row_compactor
from tests.simulation.disk import Crash, SimulatedDisk
from tests.simulation.store import Backend, Ended, Line
from tsd.codec.cell import FAMILY
from tsd.codec.rowkey import Layout
from tsd.codec.uid import ID_FAMILY, NAME_FAMILY, Kind, Widths
from tsd.compaction.sweep import Stretch, Sweep
from tsd.errors import StoreError, TsdError
from tsd.ingest.folder import segment_paths
from tsd.store import Family, Table
from tsd.uid_table import rename
from tsd.uids import Uids

T = TypeVar("T")

SETTLE_S = 600.0  # at most, when all is well again
LEAKED = 40  # UIDs that one fault may waste: those of a batch
BLOCK_BYTES = 64 << 10  # what one client may have on its way past a limit
OLD, NEW = b"old.name", b"new.name"


class World:
    """Everything of one run."""

    def __init__(self, seed: int, plan: Plan, folder: Path, makers: Makers) -> None:
        self.plan = plan
        self.account = Account()
        self.events: list[str] = []
        self.life: Life | None = None
        self.violation: str | None = None
        self.crashes = 0
        self.renames = 0
        self.neighbours = 0  # times that another daemon asked
        self._makers = makers
        self._folder = folder
        self._chance = random.Random(seed)
        self._jump_ms = 0
        self._lives = 0
        self._over = False
        self.backend = Backend(plan.engine, self._draw(), self.now_ms)
        self.disk = SimulatedDisk(self._draw(), self._cut_off)
        self._in_thread = self._draw()
        self._slow_disk_s = 0.0
        self._power = False
        self._crashing = trio.CancelScope()
        self.patience = trio.CancelScope()

    def _draw(self) -> random.Random:
        """A source of chance for a part: what one draws moves nobody else."""
        return random.Random(self._chance.getrandbits(64))

    def now_ms(self) -> int:
        """The wall clock."""
        return START_S * 1000 + int(trio.current_time() * 1000) + self._jump_ms

    async def in_thread(self, call: Callable[..., T], *args: object, **_: object) -> T:
        """Stands for trio.to_thread.run_sync: the call is made here, at some moment."""
        chance = self._in_thread
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            await trio.sleep(chance.random() * self._slow_disk_s)
            result = call(*args)
            await trio.sleep(chance.random() * self._slow_disk_s)
        return result

    async def run(self) -> None:
        """Raises Violation."""
        with self.patience:
            await self._run()
        if self.patience.cancelled_caught:
            raise Violation(f"it does not end: {self._stuck()}")

    async def _run(self) -> None:
        await make_tables(self.backend)
        if self.plan.strict:
            uids = Uids(Line(self.backend, sound=True), "tsdb-uid", Widths())
            await uids.find_or_assign(Kind.METRIC, [metric.encode() for metric in METRICS])
        async with trio.open_nursery() as lives:
            lives.start_soon(self._live)
            async with trio.open_nursery() as troubles:
                troubles.start_soon(self._happen)
                for _ in range(self.plan.readers):
                    troubles.start_soon(self._read, self._draw())
                if self.plan.compacts:
                    troubles.start_soon(self._sweep, self._draw())
                if self.plan.neighbour:
                    troubles.start_soon(self._neighbour, self._draw())
                async with trio.open_nursery() as clients:
                    for number in range(1, self.plan.clients + 1):
                        client = Client(number, self.plan, self._draw(), self.account, lambda: self.life)
                        clients.start_soon(client.run)
                troubles.cancel_scope.cancel()
            await self._settle()
        await self._check_stored()

    async def _live(self) -> None:
        """Daemons, one after the other."""
        while not self._over:
            await self._one_life(Line(self.backend))

    async def _one_life(self, line: Line) -> None:
        self._lives += 1
        life = Life(self._lives, self.plan, self._makers, line, self.disk, self._folder, self.now_ms)
        self._crashing = trio.CancelScope()
        self.life = life
        try:
            with self._crashing:
                await life.run()
        except BaseException as error:
            if not self._crashing.cancel_called and not _only(error, (Crash, trio.Cancelled)):
                raise
            if _only(error, trio.Cancelled) and not self._crashing.cancel_called:
                raise
        finally:
            self._check_now(life)
            self.life = None
            life.cut()
        crashed = self._crashing.cancel_called or self.disk.dead
        if crashed:
            self.crashes += 1
            self.disk.crash(power=self._power)
            if self._power:
                await self.backend.lose_power()
            self._power = False

    def _check_now(self, life: Life) -> None:
        """What holds between any two steps of a daemon."""
        if self.violation or life.over:
            return
        if balance := life.ledger.balance(life.writer.waiting_points):
            self.violation = f"the ledger is {balance} lines off"
        most = life.plan.memory_limit // 4 + life.plan.clients * BLOCK_BYTES
        if life.journal.pending > most:
            self.violation = f"{life.journal.pending} bytes wait for the journal, {most} may"
        if life.journal.size > life.journal.max_bytes + life.plan.clients * BLOCK_BYTES:
            self.violation = f"the journal has {life.journal.size} bytes"

    def check_step(self) -> None:
        """Called after every step of any task."""
        if self.life is not None:
            self._check_now(self.life)

    async def _happen(self) -> None:
        """Let the events of the plan come."""
        async with trio.open_nursery() as nursery:
            for event in self.plan.events:
                nursery.start_soon(self._event, event)

    async def _event(self, event: Event) -> None:
        await trio.sleep(event.at_s)
        self.events.append(f"{trio.current_time():.3f} {event.trouble.name} for {event.lasts_s:g} s")
        weather, disk = self.backend.weather, self.disk
        match event.trouble:
            case Trouble.STORE_REFUSES:
                weather.refuses = 1.0
            case Trouble.STORE_HANGS:
                weather.hangs = 0.7
            case Trouble.STORE_LOSES_ANSWERS:
                weather.loses = 0.7
            case Trouble.STORE_HALF:
                weather.halves = 0.5
            case Trouble.STORE_SLOW:
                weather.slow_s = event.lasts_s
            case Trouble.STORE_FLAKY:
                weather.refuses = weather.loses = weather.hangs = 0.2
            case Trouble.DISK_FULL:
                disk.full = True
            case Trouble.DISK_FAILS:
                disk.broken = True
            case Trouble.DISK_SLOW:
                self._slow_disk_s = event.lasts_s
            case Trouble.CLOCK_JUMPS:
                self._jump_ms += self._chance.choice((-3_600_000, -1500, 1500, 3_600_000))
            case Trouble.DROP_CACHES if self.life is not None:
                self.life.drop_caches()
            case Trouble.RENAME:
                await self._rename()
            case _:
                self._end_life(event.trouble)
                return
        await trio.sleep(event.lasts_s)
        weather.clear()
        disk.full = disk.broken = False
        self._slow_disk_s = 0.0

    def _end_life(self, trouble: Trouble) -> None:
        """Have the daemon end, now or in the middle of what it does next."""
        if self.life is None:
            return
        self._power = trouble in (Trouble.POWER, Trouble.POWER_AT_WRITE)
        if trouble in (Trouble.KILL_AT_WRITE, Trouble.POWER_AT_WRITE):
            self.disk.crash_in = self._chance.randint(1, 12)
        elif trouble is Trouble.RESTART:
            self.life.stop.set()
        else:
            self.disk.dead = True
            self._cut_off()

    def _cut_off(self) -> None:
        """The process is gone."""
        if self.life is not None:
            self.life.cut()
        self._crashing.cancel()

    async def _neighbour(self, chance: random.Random) -> None:
        """Another daemon on the same tables, that meets the same names."""
        while True:
            line = Line(self.backend, calls=chance.choice((1, 2, 3, 4, 6, math.inf, math.inf)))
            uids = Uids(line, "tsdb-uid", Widths())
            kind = chance.choice(list(Kind))
            names = [f"c{chance.randint(1, 3)}x{chance.randint(0, 12)}".encode() for _ in range(chance.randint(1, 5))]
            self.neighbours += 1
            with _may_fail():
                await uids.find_or_assign(kind, [*names, b"host", b"dc"] if kind is Kind.TAGK else names)
            await trio.sleep(chance.random() * self.plan.length_s / 5)

    async def _sweep(self, chance: random.Random) -> None:
        """`tsd compact` beside the daemon, that may be ended at any time."""
        while True:
            await trio.sleep(chance.random() * self.plan.length_s / 5)
            line = Line(self.backend, calls=chance.choice((1, 2, 3, 4, 5, 6, 8, 10, 15, math.inf)))
            compactor = row_compactor(self._makers, self.plan, line, self.now_ms)
            sweep = Sweep(line, "tsdb", Layout(), compactor, self.now_ms)
            with _may_fail():
                async for _ in sweep.run(Stretch(0, START_S)):
                    pass

    async def _read(self, chance: random.Random) -> None:
        """A query: what waits of a metric is written out, then it is read."""
        sound = Line(self.backend, sound=True)
        while True:
            await trio.sleep(chance.random() * self.plan.length_s / 3)
            metric = chance.choice(METRICS[:-1])  # but the one that is renamed
            safe, life = self.account.safe(metric), self.life
            if life is not None and life.serves and await life.writer.show(metric.encode()) and not life.over:
                names = await read_names(sound, OLD)
                self.account.check_read(await read_points(sound, names, {NEW: OLD}), safe)

    async def _rename(self) -> None:
        """Rename a metric there and back, as `tsd uid rename` does."""
        self.renames += 1
        line = Line(self.backend)
        with suppress(TsdError):
            await Uids(line, "tsdb-uid", Widths()).find_or_assign(Kind.METRIC, [OLD])
            await rename(line, "tsdb-uid", Kind.METRIC, OLD, NEW)

    async def _settle(self) -> None:
        """All is well again, perhaps after a last crash: what waits is stored."""
        self._heal()
        last = self._chance.choice((None, None, Trouble.KILL, Trouble.POWER, Trouble.RESTART))
        try:
            with trio.fail_after(SETTLE_S):
                life = await self._ready()
                if last is not None:
                    self._end_life(last)
                    await _until(lambda: self.life is not life)
                    life = await self._ready()
                await trio.sleep(3 if self.plan.compacts else 0)
                await _until(lambda: not life.sessions)  # of clients that have hung up
                await life.writer.flush()
        except trio.TooSlowError:
            raise Violation(f"not settled in {SETTLE_S} s: {self._stuck()}") from None
        if life.gate.held:
            raise Violation(f"the gate is shut: {sorted(life.gate.held)}")
        if life.writer.waiting_points or life.writer.windows:
            raise Violation(f"{life.writer.waiting_points} points wait")
        self._over = True
        life.stop.set()

    def _stuck(self) -> str:
        """What a daemon that does not settle is at."""
        if self.life is None:
            return "there is none"
        life = self.life
        return (
            f"serves {life.serves}, gate held by {sorted(life.gate.held)}, store {life.writer.trouble!r}, "
            f"journal {life.journal.trouble!r}, {life.writer.windows} windows, {life.writer.waiting_points} points, "
            f"{life.journal.unsynced} lines not synced, {life.sessions} sessions"
        )

    def _heal(self) -> None:
        self.backend.weather.clear()
        self.disk.full = self.disk.broken = False
        self.disk.crash_in = None
        self._slow_disk_s = 0.0

    async def _ready(self) -> Life:
        """The daemon, once it takes connections."""
        await _until(lambda: self.life is not None and self.life.serves)
        assert self.life is not None
        return self.life

    async def _check_stored(self) -> None:
        sound = Line(self.backend, sound=True)
        names = await read_names(sound, OLD)
        self.account.check(await read_points(sound, names, {NEW: OLD}))
        undisturbed = not (self.backend.faults or self.crashes or self.plan.neighbour or self.renames)
        if undisturbed and any(names.unused.values()):
            raise Violation(f"UIDs were given away: {names.unused}")
        most = LEAKED * (self.backend.faults + self.crashes + self.renames + self.neighbours)
        if not undisturbed and max(names.unused.values()) > most:
            raise Violation(f"UIDs were given away: {names.unused}, {most} may be")
        if left := segment_paths(self._folder / "journal"):
            raise Violation(f"segments are left: {[path.name for path in left]}")


async def make_tables(backend: Backend) -> None:
    """Those that a daemon needs."""
    await Line(backend, sound=True).create_tables(
        [Table("tsdb", (Family(FAMILY),)), Table("tsdb-uid", (Family(ID_FAMILY), Family(NAME_FAMILY)))]
    )


@contextmanager
def _may_fail() -> Iterator[None]:
    """Around a command beside the daemon, which the store may fail, and which may be killed."""
    try:
        yield
    except* (StoreError, Ended):
        pass


async def _until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - on virtual time it costs little
        await trio.sleep(0.01)


def _only(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether an exception, or all that it is a group of, is of some kinds."""
    if isinstance(error, BaseExceptionGroup):
        return all(_only(one, kinds) for one in error.exceptions)
    return isinstance(error, kinds)
