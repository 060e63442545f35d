"""What is done to a daemon in one round, under load. Each fault ends with a daemon that serves and whose clients have
been told everything; whether what they were told is true is found out afterwards."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import trio

from tsd.errors import TsdError
from tsd.torture.clients import BAD, cut_lines, misbehave
from tsd.torture.disk import LEAST_BYTES
from tsd.torture.house import LOOK_S, House
from tsd.torture.ledger import Ledger
from tsd.torture.lines import Lines
from tsd.torture.proxy import Mode
from tsd.torture.senders import Cutter, HttpSender, Sender
from tsd.torture.settings import BRISK_MS, LASTING_MS

LINES = 60  # confirmed to each client between two changes
MOST_LINES = 500  # confirmed to one client before a kill
SOON_S = 0.05  # a kill's moment is drawn from so long a time
AGAIN = 0.25  # of kills that are followed by another one before or soon after the next daemon serves
PACE = 400.0  # lines a second and client, where a fault takes its time
LONG_S = 60.0  # an outage that is longer comes after as many times more lines: it takes in as many
MANY_SLOTS = 300  # series of one client that sends much
BAD_EACH = 3  # bad clients of each kind
JUMPS_MS = (1, 999, 60_000, 3_600_000, 5 * 3_600_000, 30 * 86_400_000)
MODES = {
    "refuse": Mode.REFUSE, "hang": Mode.STALL, "stall": Mode.HANG, "late": Mode.HOLD, "cut": Mode.CUT,
    "lost": Mode.LOSE, "garble": Mode.GARBLE, "repeat": Mode.REPEAT,
}  # fmt: skip


class Knobs(NamedTuple):
    """What a user may turn."""

    outage_s: tuple[float, float] = (1.0, 3.0)  # the shortest and the longest
    full_load: int = 600_000  # lines before an outage: memory has what it takes then
    memory_share: float = 1.2  # of its level before, at most
    resume_s: float = 10.0  # until the store takes points again, and nothing waits but the backlog's own time


USUAL = Knobs()


class BadPlan(TsdError):
    """Faults that there are not."""


@dataclass
class Round:
    """One round: a house, its clients, and what is noted of it."""

    house: House
    place: str  # what its metrics' names begin with
    chance: random.Random
    ledger: Ledger
    knobs: Knobs
    senders: list[Sender]

    def draw(self) -> int:
        """A seed for somebody else."""
        return self.chance.getrandbits(32)

    def did(self, fault: str) -> None:
        """Count a fault."""
        self.ledger.faults[fault] += 1

    @asynccontextmanager
    async def load(self, *, per_s: float | None = None) -> AsyncIterator[trio.Nursery]:
        """Clients that send during the block, and then until all of it is confirmed, or the daemon is dead."""
        port = self.house.daemon.port
        async with trio.open_nursery() as nursery:
            for sender in self.senders:
                sender.begin(per_s)
                nursery.start_soon(sender.run, port)
            yield nursery
            for sender in self.senders:
                sender.finish()

    async def some(self, count: int = LINES) -> None:
        """Return once each client had so many more lines confirmed."""
        for sender in self.senders:
            await sender.more_confirmed(count)

    async def moment(self) -> None:
        """A while, drawn: until one client had some lines confirmed, and a little longer."""
        await self.chance.choice(self.senders).more_confirmed(self.chance.randint(0, MOST_LINES))
        await trio.sleep(self.chance.uniform(0, SOON_S))

    async def some_stored(self) -> None:
        """Return once all that was received by now is stored."""
        received = (await self.house.stats())["ledger.received"]
        await self.house.reached("ledger.stored", received)


def make_senders(place: str, chance: random.Random, *, much: bool = False) -> list[Sender]:
    """Two that speak telnet and one that speaks HTTP. With `much` they send all they can, of series that stay."""
    seeds = [chance.getrandbits(32) for _ in range(3)]
    if much:
        lines = [Lines(place, at, MANY_SLOTS, 0) for at in range(3)]
        telnet = [Sender(lines[at], seed=seeds[at], block=500, ahead=10_000) for at in range(2)]
        return [*telnet, HttpSender(lines[2], seed=seeds[2], block=2000)]
    telnet = [Sender(Lines(place, at), seed=seeds[at]) for at in range(2)]
    return [*telnet, HttpSender(Lines(place, 2), seed=seeds[2], block=200)]


async def kill(now: Round) -> None:
    """kill -9 at any moment: under load, and while the journal is replayed."""
    house, chance = now.house, now.chance
    await house.up(chance)
    async with now.load():
        await now.moment()
        await _kill(now)
    await after_death(now)


async def _kill(now: Round) -> None:
    await now.house.daemon.kill()
    now.did("kill")


async def after_death(now: Round) -> None:
    """Start again, or try to; then clients send again what was not acknowledged, or some of them do."""
    house, chance = now.house, now.chance
    while chance.random() < AGAIN:
        daemon = await house.start(chance)
        await daemon.logged("replaying the journal", "ready")
        await trio.sleep(chance.uniform(0, SOON_S))
        await _kill(now)
    await house.up(chance)
    if chance.random() < 0.5:
        async with now.load():
            await trio.sleep(chance.uniform(0, SOON_S))


async def gateway(now: Round, *, mode: Mode, name: str) -> None:
    """HBase's gateways misbehave until the writer has felt it, while clients go on."""
    house = now.house
    await house.up(now.chance, BRISK_MS)
    async with now.load(per_s=PACE):
        await now.some()
        house.gateways_do = mode
        now.did(name)
        await house.grown("writer.retries", now.chance.randint(1, 2))
        await now.some()
        house.gateways_do = Mode.PASS
        await now.some_stored()


async def outage(now: Round) -> None:
    """HBase is away for a while, at full load: memory stays where it was, and all is caught up soon after."""
    house, knobs = now.house, now.knobs
    shortest, longest = knobs.outage_s
    await house.up(now.chance, LASTING_MS)
    away_s = now.chance.uniform(shortest, longest)
    async with now.load():
        before = await _warm_up(now, round(knobs.full_load * max(away_s / LONG_S, 1)))
        house.gateways_do = Mode.REFUSE
        now.did("outage")
        with trio.move_on_after(away_s):
            while True:
                now.ledger.measure("memory, of its level before", house.daemon.resident_bytes() / before)
                await house.stats()
                await trio.sleep(0.1)
        house.gateways_do = Mode.PASS
        await _catch_up(now, before)
    now.ledger.measure("outage, s", away_s)


async def _warm_up(now: Round, lines: int) -> int:
    """The highest level of memory under full load, in bytes, from when caches and allocator have what they take."""
    share = lines // len(now.senders) // 2
    await now.some(share)
    wanted = [sender.confirmed_count + share for sender in now.senders]
    highest = now.house.daemon.resident_bytes()
    while any(one.confirmed_count < count for one, count in zip(now.senders, wanted, strict=True)):
        await trio.sleep(LOOK_S)
        highest = max(highest, now.house.daemon.resident_bytes())
    return highest


async def _catch_up(now: Round, before: int) -> None:
    house, knobs = now.house, now.knobs
    at_end = await house.stats()
    back = trio.current_time()
    await house.grown("ledger.stored")
    resumed_s = trio.current_time() - back
    while (await house.stats())["ledger.stored"] < at_end["ledger.received"]:
        now.ledger.measure("memory, of its level before", house.daemon.resident_bytes() / before)
        await trio.sleep(LOOK_S)
    caught_up_s = trio.current_time() - back
    now.ledger.measure("stores again after, s", resumed_s)
    now.ledger.measure("caught up after, s", caught_up_s)
    now.ledger.measure("backlog, points", at_end["ledger.received"] - at_end["ledger.stored"])
    if resumed_s > knobs.resume_s:
        now.ledger.trouble(f"{now.place}: the store was back, and took no points for {resumed_s:.1f} s")
    if (share := now.ledger.worst["memory, of its level before"]) > knobs.memory_share:
        now.ledger.trouble(f"{now.place}: memory rose to {share:.2f} times its level before")


async def full(now: Round) -> None:
    """No file can grow, until there is room again: clients wait, nobody has to start anything."""
    house, chance = now.house, now.chance
    await house.up(chance)
    async with now.load(per_s=PACE):
        await now.some()
        if house.disk.small:
            house.disk.fill()
        else:
            house.daemon.bound_files(chance.choice([0, LEAST_BYTES]))
        now.did("disk full" if house.disk.small else "files bounded")
        await _felt(now)
        house.daemon.bound_files(None)
        if house.disk.small:
            house.disk.free()
        await now.some()


async def _felt(now: Round) -> None:
    """Return once the journal or the store could not be written, twice, or clients have been stopped."""
    first = await now.house.stats()
    while True:
        found = await now.house.stats()
        failures = sum(found[name] - first[name] for name in ("journal.failures", "writer.retries"))
        if failures >= 2 or found["intake.stopped"]:
            return
        await trio.sleep(LOOK_S)


async def clock(now: Round) -> None:
    """The wall clock jumps back and forth, by up to a month; now and then a daemon is killed or ends in between."""
    house, chance = now.house, now.chance
    for _ in range(chance.randint(1, 3)):
        await house.up(chance)
        dies = chance.random() < 0.5
        async with now.load():
            for _ in range(chance.randint(1, 4)):
                await now.some()
                house.jump(chance.choice(JUMPS_MS) * chance.choice([-1, 1]))
                now.did("clock jump")
                await now.some()
                if chance.random() < 0.5:
                    await house.flush()
            if dies:
                await _kill(now)
        if dies:
            await after_death(now)


async def clients(now: Round) -> None:
    """Bad clients beside good ones, who must not notice."""
    house, chance = now.house, now.chance
    port = (await house.up(chance)).port
    cutter = Cutter(Lines(now.place, len(now.senders)), seed=now.draw())
    async with trio.open_nursery() as nursery:
        for bad in BAD * BAD_EACH:
            nursery.start_soon(misbehave, bad, port, random.Random(now.draw()))  # noqa: S311 - to be repeated
        nursery.start_soon(cut_lines, cutter, port)
        async with now.load(per_s=PACE) as load:
            for sender in now.senders:
                load.start_soon(sender.stay)
            await now.some(5 * LINES)
        nursery.cancel_scope.cancel()
    now.senders.append(cutter)
    now.did("bad clients")
    house.daemon.check()


async def storm(now: Round) -> None:
    """Several of these at once, and then a kill."""
    house, chance = now.house, now.chance
    await house.up(chance)
    async with now.load(per_s=PACE):
        for _ in range(chance.randint(1, 4)):
            await _gust(now)
            await trio.sleep(chance.uniform(0, 0.3))
        await _kill(now)
    house.gateways_do = Mode.PASS
    await after_death(now)


async def _gust(now: Round) -> None:
    """One change of many."""
    house, chance = now.house, now.chance
    if house.on_hbase and chance.random() < 0.5:
        name = chance.choice(list(MODES))
        house.gateways_do = MODES[name]
        now.did(name)
    elif chance.random() < 0.5:
        house.jump(chance.choice(JUMPS_MS) * chance.choice([-1, 1]))
        now.did("clock jump")
    else:
        house.daemon.bound_files(chance.choice([0, LEAST_BYTES, None]))
        now.did("files bounded")


Fault = Callable[[Round], Awaitable[None]]
ANYWHERE: dict[str, Fault] = {"kill": kill, "full": full, "clock": clock, "clients": clients, "storm": storm}
ON_HBASE: dict[str, Fault] = {
    **{name: partial(gateway, mode=mode, name=name) for name, mode in MODES.items()},
    "outage": outage,
}


def faults_for(*, hbase: bool) -> Mapping[str, Fault]:
    """Those that there are on an engine, by name."""
    return {**ANYWHERE, **ON_HBASE} if hbase else ANYWHERE


def chosen(words: str, rounds: int, *, hbase: bool) -> dict[str, int]:
    """How many rounds of which faults a text asks for: names with commas between, each with `=ROUNDS` or without; of an
    empty one `rounds` of all. Raises BadPlan.

    >>> chosen("kill=200,full", 20, hbase=False)
    {'kill': 200, 'full': 20}
    """
    there = faults_for(hbase=hbase)
    found: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        name, equals, count = word.partition("=")
        if name not in there:
            raise BadPlan(f"got fault {name!r}, wanted some of {', '.join(there)}")
        if equals and not (count.isdecimal() and int(count)):
            raise BadPlan(f"got {word!r}, wanted {name}=ROUNDS")
        found[name] = int(count) if equals else rounds
    return found or dict.fromkeys(there, rounds)
