"""Faults of one round, under load. Each ends with a ready daemon and idle clients; verification follows.

Bad clients never read, send single bytes, disconnect within a line, or send no lines at all.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import trio

from tsd.cli.torture.environment import MIN_FILE_BYTES, POLL_S, Environment
from tsd.cli.torture.options import CRASH, PAUSE, Options
from tsd.cli.torture.proxy import ProxyMode
from tsd.cli.torture.report import TortureReport
from tsd.cli.torture.senders import AGAIN_S, HOST, HttpSender, Lines, Sender, TruncatingSender, reset
from tsd.cli.torture.settings import LONG_WINDOWS_MS, SHORT_WINDOWS_MS

PAUSES_S = (0.01, 0.1, 1.0, 4.0)  # between single bytes
JUNK_BYTES = 5000
UNREAD_LINES = 200
JUNK = (b"put\n", b"put  \n", b"\0\0\0\n", b"stats\n" * 20, b"version\nhelp\n", b"GET / HTTP/1.1\r\n\r\n",
         b"POST /api/put HTTP/1.1\r\nContent-Length: 99999\r\n\r\n[{", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
         b"\x16\x03\x01\x02\x00\x01\x00", b"\xff\xfb\x1f\xff\xfa", b"sync\n" * 50, b"x" * 40_000)  # fmt: skip

Bad = Callable[[trio.SocketStream, random.Random], Awaitable[None]]


async def never_reading(stream: trio.SocketStream, chance: random.Random) -> None:
    """Send commands and bad lines until cancelled, and never read."""
    while True:
        await stream.send_all(chance.choice([b"put x\n", b"put y 1 1 a\n", b"stats\n", b"sync\n"]) * UNREAD_LINES)


async def byte_by_byte(stream: trio.SocketStream, chance: random.Random) -> None:
    """Send single bytes, with pauses, of a line or a request that never ends."""
    text = chance.choice(
        [b"put slow.client 1500000000 1 host=a", b"POST /api/put HTTP/1.1\r\nContent-Length: 9\r\n\r\n["]
    )
    for at in range(len(text)):
        await stream.send_all(text[at : at + 1])
        await trio.sleep(chance.choice(PAUSES_S))
    await trio.sleep_forever()


async def sending_junk(stream: trio.SocketStream, chance: random.Random) -> None:
    """Send random bytes and input of other protocols, then disconnect."""
    for _ in range(chance.randint(1, 20)):
        junk = chance.randbytes(chance.randint(1, JUNK_BYTES)).replace(b"put", b"pat")
        await stream.send_all(chance.choice([junk, *JUNK]))
    if chance.random() < 0.5:
        reset(stream)


BAD: tuple[Bad, ...] = (never_reading, byte_by_byte, sending_junk)


async def misbehave(bad: Bad, port: int, chance: random.Random) -> None:
    """Run such clients one after another until cancelled."""
    while True:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await bad(stream, chance)
        await trio.sleep(chance.uniform(0, 2 * AGAIN_S))


async def cut_lines(truncating: TruncatingSender, port: int) -> None:
    """Run a client that truncates its lines until cancelled."""
    while True:
        truncating.begin()
        await truncating.run(port)
        await trio.sleep(AGAIN_S)


LINES = 60  # confirmed for each client between two changes
MAX_LINES = 500  # confirmed for one client before a kill, at most
SOON_S = 0.05  # a kill happens at a random moment within this time
AGAIN = 0.25  # share of kills followed by another one before or soon after the next daemon is ready
LOAD_PER_S = 400.0  # lines per second and client during long faults
CALLS_PER_S = 100.0  # the same where calls count, not lines: verifying a line takes longer than sending it
FEW_PER_S = 25.0  # while servers restart, which takes tens of seconds
LONG_OUTAGE_S = 60.0  # a longer outage has a proportionally longer warm-up
MANY_SLOTS = 300  # series of one client at full load
BAD_CLIENTS = 3  # bad clients of each kind
FAILING = (0.05, 0.3, 0.8)  # shares of calls
MOST_FAILED = 5  # calls, until those of a round that follow may succeed
PAUSED_S = (0.1, 0.6, 1.5)  # the timeout of calls is half a second, see FAST in settings
JUMPS_MS = (1, 999, 60_000, 3_600_000, 5 * 3_600_000, 30 * 86_400_000)
MODES = {
    "refuse": ProxyMode.REFUSE, "hang": ProxyMode.HANG, "stall": ProxyMode.STALL, "late": ProxyMode.HOLD,
    "cut": ProxyMode.CUT, "lost": ProxyMode.LOSE, "garble": ProxyMode.GARBLE, "repeat": ProxyMode.REPEAT,
}  # fmt: skip


@dataclass
class Round:
    """One round: its test environment, clients and report."""

    environment: Environment
    place: str  # prefix of its metrics' names
    chance: random.Random
    report: TortureReport
    options: Options
    senders: list[Sender]

    def draw_seed(self) -> int:
        """Return a seed for another random generator."""
        return self.chance.getrandbits(32)

    def count_fault(self, fault: str) -> None:
        """Count a fault."""
        self.report.faults[fault] += 1

    @asynccontextmanager
    async def load(self, *, per_s: float | None = None) -> AsyncIterator[trio.Nursery]:
        """Run clients that send during the block, and then wait until all is confirmed or the daemon has exited."""
        port = self.environment.daemon.port
        async with trio.open_nursery() as nursery:
            for sender in self.senders:
                sender.begin(per_s)
                nursery.start_soon(sender.run, port)
            yield nursery
            for sender in self.senders:
                sender.finish()

    async def wait_confirmed(self, count: int = LINES) -> None:
        """Return once each client has this many more lines confirmed."""
        async with trio.open_nursery() as nursery:
            for sender in self.senders:
                nursery.start_soon(sender.more_confirmed, count)

    async def wait_random(self) -> None:
        """Wait until a random client has a random number of lines confirmed, and a little longer."""
        await self.chance.choice(self.senders).more_confirmed(self.chance.randint(0, MAX_LINES))
        await trio.sleep(self.chance.uniform(0, SOON_S))

    async def wait_stored(self) -> None:
        """Return once all lines received so far are stored. Raise UnexpectedAnswer if storing makes no progress."""
        received = (await self.environment.stats())["ledger.received"]
        async with self.environment.storing():
            await self.environment.wait_at_least("ledger.stored", received)


def make_senders(place: str, chance: random.Random, *, much: bool = False) -> list[Sender]:
    """Return two telnet clients and an HTTP client. With `much` they send at full load, for a fixed set of series."""
    seeds = [chance.getrandbits(32) for _ in range(3)]
    if much:
        lines = [Lines(place, at, MANY_SLOTS, 0) for at in range(3)]
        telnet = [Sender(lines[at], seed=seeds[at], block=500, ahead=10_000) for at in range(2)]
        return [*telnet, HttpSender(lines[2], seed=seeds[2], block=2000)]
    telnet = [Sender(Lines(place, at), seed=seeds[at]) for at in range(2)]
    return [*telnet, HttpSender(Lines(place, 2), seed=seeds[2], block=200)]


async def kill(now: Round) -> None:
    """Kill the daemon (kill -9) at any moment: under load, and while the journal is replayed."""
    environment, chance = now.environment, now.chance
    await environment.ensure_ready(chance)
    async with now.load():
        await now.wait_random()
        await _kill(now)
    await after_death(now)


async def _kill(now: Round) -> None:
    await now.environment.daemon.kill()
    now.count_fault("kill")


async def after_death(now: Round) -> None:
    """Restart the daemon, sometimes killing it again; clients may then resend what was not acknowledged."""
    environment, chance = now.environment, now.chance
    while chance.random() < AGAIN:
        daemon = await environment.start(chance)
        await daemon.logged("journal.replay_started", "daemon.ready")
        await trio.sleep(chance.uniform(0, SOON_S))
        await _kill(now)
    await environment.ensure_ready(chance)
    if chance.random() < 0.5:
        async with now.load():
            await trio.sleep(chance.uniform(0, SOON_S))


async def gateway(now: Round, *, mode: ProxyMode, name: str) -> None:
    """Set a fault mode of the store's servers until the writer has retried, while clients send."""
    environment = now.environment
    await environment.ensure_ready(now.chance, SHORT_WINDOWS_MS)
    async with now.load(per_s=CALLS_PER_S):
        await now.wait_confirmed()
        environment.gateway_mode = mode
        now.count_fault(name)
        await environment.wait_increase("writer.retries", now.chance.randint(1, 2))
        await now.wait_confirmed()
        environment.gateway_mode = ProxyMode.PASS
        await now.wait_stored()


async def errors(now: Round) -> None:
    """Answer a share of calls with errors, executed or not, until the writer has retried, while clients send."""
    environment = now.environment
    await environment.ensure_ready(now.chance, SHORT_WINDOWS_MS)
    async with now.load(per_s=CALLS_PER_S):
        await now.wait_confirmed()
        environment.fail_calls(now.chance.choice(FAILING))
        before = environment.failed_calls()
        while environment.failed_calls() < before + MOST_FAILED:  # noqa: ASYNC110 - of other threads
            await trio.sleep(POLL_S)
        await now.wait_confirmed()
        environment.fail_calls(0)
        await now.wait_stored()
    now.report.faults["errors"] += environment.failed_calls() - before  # of all calls, not rounds


async def pause(now: Round) -> None:
    """Stop the servers' processes for a while that may exceed the timeout of calls, while clients send."""
    environment = now.environment
    await environment.ensure_ready(now.chance, SHORT_WINDOWS_MS)
    async with now.load(per_s=CALLS_PER_S):
        for _ in range(now.chance.randint(1, 3)):
            await now.wait_confirmed()
            async with environment.servers.paused():
                now.count_fault(PAUSE)
                await trio.sleep(now.chance.choice(PAUSED_S))
                with trio.move_on_after(now.chance.choice(PAUSED_S)):
                    await now.wait_confirmed()  # into the journal
            await now.wait_confirmed()
        await now.wait_stored()


async def crash(now: Round) -> None:
    """Kill the servers' processes (kill -9) while clients send, and start them again."""
    environment, servers = now.environment, now.environment.servers
    async with servers.needed():
        await environment.ensure_ready(now.chance, SHORT_WINDOWS_MS)
    async with now.load(per_s=FEW_PER_S):
        await now.wait_confirmed()
        await trio.sleep(now.chance.uniform(0, SOON_S))
        if await servers.crash():
            now.count_fault("kill of servers")
        now.count_fault(CRASH)
        async with servers.needed():
            await now.wait_confirmed()
            await now.wait_stored()


async def outage(now: Round) -> None:
    """Make the store unavailable at full load: memory stays constant, and the backlog is stored soon after."""
    environment, options = now.environment, now.options
    shortest, longest = options.outage_s
    await environment.ensure_ready(now.chance, LONG_WINDOWS_MS)
    away_s = now.chance.uniform(shortest, longest)
    async with now.load():
        before = await _warm_up(now, round(options.full_load * max(away_s / LONG_OUTAGE_S, 1)))
        environment.gateway_mode = ProxyMode.REFUSE
        now.count_fault("outage")
        with trio.move_on_after(away_s):
            while True:
                now.report.measure("memory, of its level before", environment.daemon.resident_bytes() / before)
                await environment.stats()
                await trio.sleep(0.1)
        environment.gateway_mode = ProxyMode.PASS
        await _catch_up(now, before)
    now.report.measure("outage, s", away_s)


async def _warm_up(now: Round, lines: int) -> int:
    """Return the highest memory use under full load, in bytes, once caches are filled."""
    share = lines // len(now.senders) // 2
    await now.wait_confirmed(share)
    wanted = [sender.confirmed_count + share for sender in now.senders]
    highest = now.environment.daemon.resident_bytes()
    while any(one.confirmed_count < count for one, count in zip(now.senders, wanted, strict=True)):
        await trio.sleep(POLL_S)
        highest = max(highest, now.environment.daemon.resident_bytes())
    return highest


async def _catch_up(now: Round, before: int) -> None:
    environment, options = now.environment, now.options
    at_end = await environment.stats()
    back = trio.current_time()
    await environment.wait_increase("ledger.stored")
    resumed_s = trio.current_time() - back
    while (await environment.stats())["ledger.stored"] < at_end["ledger.received"]:
        now.report.measure("memory, of its level before", environment.daemon.resident_bytes() / before)
        await trio.sleep(POLL_S)
    caught_up_s = trio.current_time() - back
    now.report.measure("stores again after, s", resumed_s)
    now.report.measure("caught up after, s", caught_up_s)
    now.report.measure("backlog, points", at_end["ledger.received"] - at_end["ledger.stored"])
    if resumed_s > options.resume_s:
        now.report.add_error(f"{now.place}: no points were stored for {resumed_s:.1f} s after the store's return")
    if (share := now.report.maxima["memory, of its level before"]) > options.memory_share:
        now.report.add_error(f"{now.place}: memory rose to {share:.2f} times its level before")


async def full(now: Round) -> None:
    """Let no file grow for a while: clients wait, and the daemon recovers by itself."""
    environment, chance = now.environment, now.chance
    await environment.ensure_ready(chance)
    async with now.load(per_s=LOAD_PER_S):
        await now.wait_confirmed()
        if environment.disk.small:
            environment.disk.fill()
        else:
            environment.daemon.limit_file_size(chance.choice([0, MIN_FILE_BYTES]))
        now.count_fault("disk full" if environment.disk.small else "files bounded")
        await _wait_effect(now)
        environment.daemon.limit_file_size(None)
        if environment.disk.small:
            environment.disk.free()
        await now.wait_confirmed()


async def _wait_effect(now: Round) -> None:
    """Return after two failed writes of journal or store, or once backpressure stops clients."""
    first = await now.environment.stats()
    while True:
        found = await now.environment.stats()
        failures = sum(found[name] - first[name] for name in ("journal.failures", "writer.retries"))
        if failures >= 2 or found["ingest.backpressure"]:
            return
        await trio.sleep(POLL_S)


async def clock(now: Round) -> None:
    """Set the wall clock back and forth by up to a month, with and without kills in between."""
    environment, chance = now.environment, now.chance
    for _ in range(chance.randint(1, 3)):
        await environment.ensure_ready(chance)
        dies = chance.random() < 0.5
        async with now.load(per_s=LOAD_PER_S):
            for _ in range(chance.randint(1, 4)):
                await now.wait_confirmed()
                environment.jump(chance.choice(JUMPS_MS) * chance.choice([-1, 1]))
                now.count_fault("clock jump")
                await now.wait_confirmed()
                if chance.random() < 0.5:
                    await environment.flush()
            if dies:
                await _kill(now)
        if dies:
            await after_death(now)


async def clients(now: Round) -> None:
    """Run bad clients next to good ones, which must not be affected."""
    environment, chance = now.environment, now.chance
    port = (await environment.ensure_ready(chance)).port
    truncating = TruncatingSender(Lines(now.place, len(now.senders)), seed=now.draw_seed())
    async with trio.open_nursery() as nursery:
        for bad in BAD * BAD_CLIENTS:
            nursery.start_soon(misbehave, bad, port, random.Random(now.draw_seed()))  # noqa: S311 - reproducible
        nursery.start_soon(cut_lines, truncating, port)
        async with now.load(per_s=LOAD_PER_S) as load:
            for sender in now.senders:
                load.start_soon(sender.check_connected)
            await now.wait_confirmed(5 * LINES)
        nursery.cancel_scope.cancel()
    now.senders.append(truncating)
    now.count_fault("bad clients")
    environment.daemon.check()


async def storm(now: Round) -> None:
    """Inject several faults at once, then kill the daemon."""
    environment, chance = now.environment, now.chance
    await environment.ensure_ready(chance)
    async with now.load(per_s=LOAD_PER_S):
        for _ in range(chance.randint(1, 4)):
            await _random_fault(now)
            await trio.sleep(chance.uniform(0, 0.3))
        await _kill(now)
    environment.gateway_mode = ProxyMode.PASS
    await after_death(now)


async def _random_fault(now: Round) -> None:
    """Inject one random fault."""
    environment, chance = now.environment, now.chance
    if environment.has_servers and chance.random() < 0.5:
        name = chance.choice(list(MODES))
        environment.gateway_mode = MODES[name]
        now.count_fault(name)
    elif chance.random() < 0.5:
        environment.jump(chance.choice(JUMPS_MS) * chance.choice([-1, 1]))
        now.count_fault("clock jump")
    else:
        environment.daemon.limit_file_size(chance.choice([0, MIN_FILE_BYTES, None]))
        now.count_fault("files bounded")


Fault = Callable[[Round], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "kill": kill, "full": full, "clock": clock, "clients": clients, "storm": storm, "outage": outage,
    "errors": errors, PAUSE: pause, CRASH: crash,
    **{name: partial(gateway, mode=mode, name=name) for name, mode in MODES.items()},
}  # fmt: skip
