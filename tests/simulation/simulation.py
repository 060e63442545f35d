"""One simulation: consecutive daemons, their clients, the planned faults, and the invariants at the end."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import trio

from tests.simulation.client import METRICS, Client
from tests.simulation.daemon import Parts, SimulatedDaemon, row_compactor
from tests.simulation.disk import Crash
from tests.simulation.plan import START_S, Engine, Event, FaultKind, Plan
from tests.simulation.sent_points import SentPoints, Violation, open_values, points_of, read_names, read_points
from tests.simulation.store import CommandKilled, FaultyStore, StoreServer
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.cell import FAMILY
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.errors import StoreError, TsdError
from tsd.ingest.journal.folder import segment_paths
from tsd.store import Family, Table
from tsd.tables.opentsdb.compaction.sweep import Sweep, SweepRange
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.delete import BUSY_MS, remove_rows
from tsd.tables.opentsdb.uid_table import rename
from tsd.tables.opentsdb.uids import Uids

T = TypeVar("T")

SETTLE_S = 600.0  # limit for writing everything after the last fault
LEAKED = 40  # UIDs of one batch, which one fault may leak
BLOCK_BYTES = 64 << 10  # bytes in flight that one client may add above a limit
OLD, NEW = b"old.name", b"new.name"


class Simulation:
    """State and tasks of one run."""

    def __init__(self, seed: int, plan: Plan, folder: Path, parts: Parts) -> None:
        self.plan = plan
        self.sent_points = SentPoints()
        self.events: list[str] = []
        self.daemon: SimulatedDaemon | None = None
        self.violation: str | None = None
        self.crashes = 0
        self.renames = 0
        self.second_daemon_calls = 0
        self._parts = parts
        self._folder = folder
        self._rng = random.Random(seed)
        self._jump_ms = 0
        self._daemons = 0
        self._over = False
        self.server = StoreServer(plan.engine, self._draw(), self.now_ms)
        self.disk = parts.disk(self._draw(), self._cut_off)
        self._in_thread = self._draw()
        self._slow_disk_s = 0.0
        self._power = False
        self._crashing = trio.CancelScope()
        self.patience = trio.CancelScope()

    def _draw(self) -> random.Random:
        """Return an independent random generator for one part."""
        return random.Random(self._rng.getrandbits(64))

    def now_ms(self) -> int:
        """Return the wall clock."""
        return START_S * 1000 + int(trio.current_time() * 1000) + self._jump_ms

    async def in_thread(self, call: Callable[..., T], *args: object, **_: object) -> T:
        """Replace trio.to_thread.run_sync: make the call in this thread after a random delay."""
        rng = self._in_thread
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            await trio.sleep(rng.random() * self._slow_disk_s)
            result = call(*args)
            await trio.sleep(rng.random() * self._slow_disk_s)
        return result

    async def run(self) -> None:
        """Run the simulation. Raise Violation."""
        with self.patience:
            await self._run()
        if self.patience.cancelled_caught:
            raise Violation(f"the run does not end: {self._describe()}")

    async def _run(self) -> None:
        await make_tables(self.server)
        if self.plan.strict:
            uids = Uids(FaultyStore(self.server, sound=True), "tsdb-uid", Widths())
            await uids.find_or_assign(Kind.METRIC, [metric.encode() for metric in METRICS])
        async with trio.open_nursery() as daemons:
            daemons.start_soon(self._run_daemons)
            async with trio.open_nursery() as background:
                background.start_soon(self._run_events)
                for _ in range(self.plan.readers):
                    background.start_soon(self._read, self._draw())
                if self.plan.compacts:
                    background.start_soon(self._sweep, self._draw())
                if self.plan.deletes:
                    background.start_soon(self._delete, self._draw())
                if self.plan.second_daemon:
                    background.start_soon(self._run_second_daemon, self._draw())
                async with trio.open_nursery() as clients:
                    for number in range(1, self.plan.clients + 1):
                        client = Client(number, self.plan, self._draw(), self.sent_points, lambda: self.daemon)
                        clients.start_soon(client.run)
                background.cancel_scope.cancel()
            await self._settle()
        await self._check_stored()

    async def _run_daemons(self) -> None:
        """Run daemons, one after the other."""
        while not self._over:
            await self._run_daemon(self._parts.store(self.server))

    async def _run_daemon(self, store: FaultyStore) -> None:
        self._daemons += 1
        daemon = SimulatedDaemon(self._daemons, self.plan, self._parts, store, self.disk, self._folder, self.now_ms)
        self._crashing = trio.CancelScope()
        self.daemon = daemon
        try:
            with self._crashing:
                await daemon.run()
        except BaseException as error:
            if not self._crashing.cancel_called and not _only(error, (Crash, trio.Cancelled)):
                raise
            if _only(error, trio.Cancelled) and not self._crashing.cancel_called:
                raise
        finally:
            self._check_now(daemon)
            self.daemon = None
            daemon.cut()
        crashed = self._crashing.cancel_called or self.disk.dead
        if crashed:
            self.crashes += 1
            self.disk.crash(power=self._power)
            if self._power:
                await self.server.lose_power()
            self._power = False

    def _check_now(self, daemon: SimulatedDaemon) -> None:
        """Check the invariants that hold between any two steps of a daemon."""
        if self.violation or daemon.over:
            return
        if balance := daemon.ledger.balance(daemon.writer.waiting_points):
            self.violation = f"the ledger is {balance} lines off"
        most = daemon.plan.memory_limit // 4 + daemon.plan.clients * BLOCK_BYTES
        if daemon.journal.pending > most:
            self.violation = f"{daemon.journal.pending} bytes are not journaled, the limit is {most}"
        if daemon.journal.size > daemon.journal.max_bytes + daemon.plan.clients * BLOCK_BYTES:
            self.violation = f"the journal has {daemon.journal.size} bytes, the limit is {daemon.journal.max_bytes}"

    def check_step(self) -> None:
        """Check invariants. Called after every step of any task."""
        if self.daemon is not None:
            self._check_now(self.daemon)

    async def _run_events(self) -> None:
        """Run the planned events."""
        async with trio.open_nursery() as nursery:
            for event in self.plan.events:
                nursery.start_soon(self._event, event)

    async def _event(self, event: Event) -> None:
        await trio.sleep(event.at_s)
        self.events.append(f"{trio.current_time():.3f} {event.kind.name} for {event.lasts_s:g} s")
        rates, disk = self.server.rates, self.disk
        match event.kind:
            case FaultKind.STORE_REFUSES:
                rates.refused = 1.0
            case FaultKind.STORE_HANGS:
                rates.timed_out = 0.7
            case FaultKind.STORE_LOSES_ANSWERS:
                rates.answer_lost = 0.7
            case FaultKind.STORE_HALF:
                rates.partial = 0.5
            case FaultKind.STORE_SLOW:
                rates.max_delay_s = event.lasts_s
            case FaultKind.STORE_FLAKY:
                rates.refused = rates.answer_lost = rates.timed_out = 0.2
            case FaultKind.DISK_FULL:
                disk.full = True
            case FaultKind.DISK_FAILS:
                disk.broken = True
            case FaultKind.DISK_SLOW:
                self._slow_disk_s = event.lasts_s
            case FaultKind.CLOCK_JUMPS:
                self._jump_ms += self._rng.choice((-3_600_000, -1500, 1500, 3_600_000))
            case FaultKind.DROP_CACHES if self.daemon is not None:
                self.daemon.drop_caches()
            case FaultKind.RENAME:
                await self._rename()
            case _:
                self._end_daemon(event.kind)
                return
        await trio.sleep(event.lasts_s)
        rates.clear()
        disk.full = disk.broken = False
        self._slow_disk_s = 0.0

    def _end_daemon(self, kind: FaultKind) -> None:
        """End the daemon, now or in the middle of one of its next disk calls."""
        if self.daemon is None:
            return
        self._power = kind in (FaultKind.POWER, FaultKind.POWER_AT_WRITE)
        if kind in (FaultKind.KILL_AT_WRITE, FaultKind.POWER_AT_WRITE):
            self.disk.crash_in = self._rng.randint(1, 12)
        elif kind is FaultKind.RESTART:
            self.daemon.stop.set()
        else:
            self.disk.dead = True
            self._cut_off()

    def _cut_off(self) -> None:
        """Kill the process."""
        if self.daemon is not None:
            self.daemon.cut()
        self._crashing.cancel()

    async def _run_second_daemon(self, rng: random.Random) -> None:
        """Assign UIDs to the same names, as a second daemon on the same tables."""
        while True:
            store = FaultyStore(self.server, calls=rng.choice((1, 2, 3, 4, 6, math.inf, math.inf)))
            uids = Uids(store, "tsdb-uid", Widths())
            kind = rng.choice(list(Kind))
            names = [f"c{rng.randint(1, 3)}x{rng.randint(0, 12)}".encode() for _ in range(rng.randint(1, 5))]
            self.second_daemon_calls += 1
            with _may_fail():
                await uids.find_or_assign(kind, [*names, b"host", b"dc"] if kind is Kind.TAGK else names)
            await trio.sleep(rng.random() * self.plan.length_s / 5)

    async def _sweep(self, rng: random.Random) -> None:
        """Run `tsd compact`, which may be killed at any time."""
        while True:
            await trio.sleep(rng.random() * self.plan.length_s / 5)
            store = FaultyStore(self.server, calls=rng.choice((1, 2, 3, 4, 5, 6, 8, 10, 15, math.inf)))
            compactor = row_compactor(self._parts, self.plan, store, self.now_ms)
            sweep = Sweep(DataTable(store, "tsdb", KeyLayout()), compactor)
            with _may_fail():
                async for _ in sweep.run(SweepRange(0, START_S)):
                    pass

    async def _read(self, rng: random.Random) -> None:
        """Query a metric: have its points written or take them from memory, then read and check them."""
        sound = FaultyStore(self.server, sound=True)
        while True:  # rarely in a run that does not end
            await trio.sleep(rng.random() * max(self.plan.length_s / 3, trio.current_time() / 30))
            metric = rng.choice(METRICS[:-1])  # except the renamed one
            safe, daemon = self.sent_points.safe(metric), self.daemon
            if daemon is None or not daemon.serves or not await daemon.writer.write_metric(metric.encode()):
                continue
            waiting = await daemon.unstored.open_points(metric.encode()) if self.plan.hold_intervals else None
            if daemon.over or (self.plan.hold_intervals and waiting is None):
                continue
            names = await read_names(sound, OLD)
            stored = await read_points(sound, names, {NEW: OLD})
            if waiting is not None:
                stored.update(open_values(waiting, names))
            self.sent_points.check_read(stored, safe)

    async def _delete(self, rng: random.Random) -> None:
        """Delete rows now and then."""
        while True:
            await trio.sleep(rng.random() * self.plan.length_s / 3)
            if self.daemon is not None and self.daemon.serves:
                await self._delete_row(self.daemon, rng)

    async def _delete_row(self, daemon: SimulatedDaemon, rng: random.Random) -> None:
        """Delete a row of points, as a command does through the daemon."""
        sound, flushed_at, is_flushed = FaultyStore(self.server, sound=True), self.sent_points.moment, False
        with trio.move_on_after(self.plan.length_s), suppress(Crash):  # a daemon that ends does not answer
            is_flushed = await daemon.writer.flush(patient=False)
        rows, read_ms = (await sound.page("tsdb", b"", None, limit=100)).rows, self.now_ms()
        if self.plan.engine is Engine.HBASE:  # later writes have later times
            rows = [row for row in rows if max(cell.time_ms for cell in row.cells) < read_ms - BUSY_MS]
        if not is_flushed or daemon.over or not rows:
            return
        row = rng.choice(rows)
        keys = {key for key, _ in points_of(row, await read_names(sound, OLD), {NEW: OLD})}
        if any(metric == METRICS[-1] for (metric, _), _ in keys):  # renamed: it may have rows under two UIDs
            return
        self.sent_points.begin_delete(keys)
        await remove_rows(sound, "tsdb", [row], read_ms=read_ms)
        await sound.sync()
        if not daemon.over and not self.plan.compacts:  # a compaction of the row may bring points back
            self.sent_points.end_delete(keys, flushed_at)

    async def _rename(self) -> None:
        """Rename a metric, as `tsd uid rename` does."""
        self.renames += 1
        store = FaultyStore(self.server)
        with suppress(TsdError):
            await Uids(store, "tsdb-uid", Widths()).find_or_assign(Kind.METRIC, [OLD])
            await rename(store, "tsdb-uid", Kind.METRIC, OLD, NEW)

    async def _settle(self) -> None:
        """End all faults, perhaps after a last crash, and wait until everything is written."""
        self._end_faults()
        last = self._rng.choice((None, None, FaultKind.KILL, FaultKind.POWER, FaultKind.RESTART))
        try:
            with trio.fail_after(SETTLE_S):
                daemon = await self._ready()
                if self.plan.deletes:
                    await self._delete_row(daemon, self._rng)
                if last is not None:
                    self._end_daemon(last)
                    await _until(lambda: self.daemon is not daemon)
                    daemon = await self._ready()
                await trio.sleep(3 if self.plan.compacts else 0)
                await _until(lambda: not daemon.sessions)  # sessions of disconnected clients
                await daemon.writer.flush()
        except trio.TooSlowError:
            raise Violation(f"not settled in {SETTLE_S} s: {self._describe()}") from None
        if daemon.backpressure.reasons:
            raise Violation(f"lines are held back: {sorted(daemon.backpressure.reasons)}")
        if daemon.writer.waiting_points or daemon.writer.windows:
            raise Violation(f"{daemon.writer.waiting_points} points are not written")
        self._over = True
        daemon.stop.set()

    def _describe(self) -> str:
        """Describe the daemon's state for an error message."""
        if self.daemon is None:
            return "no daemon runs"
        daemon = self.daemon
        return (
            f"serves {daemon.serves}, held back by {sorted(daemon.backpressure.reasons)}, "
            f"store {daemon.writer.trouble!r}, "
            f"journal {daemon.journal.trouble!r}, {daemon.writer.windows} windows, "
            f"{daemon.writer.waiting_points} points, {daemon.journal.unsynced} lines not synced, "
            f"{daemon.sessions} sessions"
        )

    def _end_faults(self) -> None:
        self.server.rates.clear()
        self.disk.full = self.disk.broken = False
        self.disk.crash_in = None
        self._slow_disk_s = 0.0

    async def _ready(self) -> SimulatedDaemon:
        """Return the daemon once it accepts connections."""
        await _until(lambda: self.daemon is not None and self.daemon.serves)
        assert self.daemon is not None
        return self.daemon

    async def _check_stored(self) -> None:
        sound = FaultyStore(self.server, sound=True)
        names = await read_names(sound, OLD)
        self.sent_points.check(await read_points(sound, names, {NEW: OLD}))
        undisturbed = not (self.server.faults or self.crashes or self.plan.second_daemon or self.renames)
        if undisturbed and any(names.unused.values()):
            raise Violation(f"leaked UIDs: {names.unused}")
        most = LEAKED * (self.server.faults + self.crashes + self.renames + self.second_daemon_calls)
        if not undisturbed and max(names.unused.values()) > most:
            raise Violation(f"leaked UIDs: {names.unused}, the limit is {most}")
        if left := segment_paths(self._folder / "journal"):
            raise Violation(f"segments are left: {[path.name for path in left]}")


async def make_tables(server: StoreServer) -> None:
    """Create the tables that a daemon needs."""
    await FaultyStore(server, sound=True).create_tables(
        [Table("tsdb", (Family(FAMILY),)), Table("tsdb-uid", (Family(ID_FAMILY), Family(NAME_FAMILY)))]
    )


@contextmanager
def _may_fail() -> Iterator[None]:
    """Ignore store errors and the kill of a command."""
    try:
        yield
    except* (StoreError, CommandKilled):
        pass


async def _until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - on virtual time it costs little
        await trio.sleep(0.01)


def _only(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether an exception, or each exception of a group, is of some kinds."""
    if isinstance(error, BaseExceptionGroup):
        return all(_only(one, kinds) for one in error.exceptions)
    return isinstance(error, kinds)
