"""Rounds of faults, lanes of rounds side by side, and the account of all of them."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tsd.config import Config
from tsd.errors import TsdError
from tsd.store import Store
from tsd.torture.asking import Asked
from tsd.torture.faults import USUAL, Fault, Knobs, Round, faults_for, make_senders
from tsd.torture.house import Ground, House, house
from tsd.torture.ledger import Ledger
from tsd.torture.reading import stored_rows, unsound_names
from tsd.torture.senders import Sender
from tsd.torture.stuck import bounded
from tsd.torture.verdict import Account

ROUND_S = 360.0  # that a round may take, and so many times its outage: the backlog is to be stored, too
AGAIN = 3
ASKED_POINTS = 200_000  # more are not asked for by queries as well
THOROUGH_POINTS = 1_000_000  # of more, cells are read but not checked byte by byte


class Broken(TsdError):
    """A round came to no end, or to a bad one."""


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    rounds: Mapping[str, int]  # of each fault
    seed: int
    lanes: int  # daemons at once
    knobs: Knobs = USUAL
    duration_s: float = math.inf  # no round begins after it
    faults: Mapping[str, Fault] | None = None  # others than there are

    def shares(self) -> list[tuple[str, range]]:
        """Which rounds of which fault each lane has."""
        each = max(1, self.lanes // len(self.rounds))
        return [
            (fault, range(count * at // each, count * (at + 1) // each))
            for at in range(each)
            for fault, count in self.rounds.items()
            if count * at // each < count * (at + 1) // each
        ]


@dataclass
class Lane:
    """Rounds of one fault, one after the other, in a house of their own."""

    fault: str
    rounds: range
    folder: Path
    ledger: Ledger = field(default_factory=Ledger)
    senders: list[Sender] = field(default_factory=list)  # of all rounds


class Run:
    """All lanes."""

    def __init__(self, plan: Plan, ground: Ground, folder: Path, on_round: Callable[[], None]) -> None:
        """`on_round` is told of each round that is over."""
        self._plan = plan
        self._ground = ground
        self._on_round = on_round
        self._end = math.inf
        self.lanes = [Lane(fault, rounds, folder / f"{fault}-{rounds.start}") for fault, rounds in plan.shares()]

    def ledgers(self) -> list[tuple[str, Ledger]]:
        """By fault."""
        found: dict[str, Ledger] = {}
        for lane in self.lanes:
            found.setdefault(lane.fault, Ledger()).add(lane.ledger)
        return list(found.items())

    def stop(self) -> None:
        """Let no other round begin."""
        self._end = -math.inf

    async def go(self) -> None:
        """Do all that is planned. What goes wrong is in the ledgers."""
        self._end = min(self._end, trio.current_time() + self._plan.duration_s)
        room = trio.CapacityLimiter(self._plan.lanes)
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(self._go_lane, lane, room)
        if self._ground.store is not None:
            await self._look_everywhere(self._ground.store, self._ground.own, self.lanes)

    async def _go_lane(self, lane: Lane, room: trio.CapacityLimiter) -> None:
        async with room:
            try:
                small, eager = lane.fault == "full", lane.fault != "outage"
                async with house(self._ground, lane.folder, small=small, eager=eager) as built:
                    await self._go_rounds(lane, built)
            except* TsdError as errors:
                for error in _single(errors):
                    lane.ledger.trouble(f"{lane.fault}: {error}")

    async def _go_rounds(self, lane: Lane, built: House) -> None:
        for number in lane.rounds:
            if trio.current_time() < self._end:
                await self._round(lane, built, number)
                self._on_round()
        await self._part(lane, built)

    async def _round(self, lane: Lane, built: House, number: int) -> None:
        chance = random.Random(f"{self._plan.seed} {lane.fault} {number}")  # noqa: S311 - to be repeated
        place = f"torture.{lane.fault}.{number}"
        senders = make_senders(place, chance, much=lane.fault == "outage")
        now = Round(built, place, chance, lane.ledger, self._plan.knobs, senders)
        fault = (self._plan.faults or faults_for(hbase=built.on_hbase))[lane.fault]
        try:
            limit_s = ROUND_S + AGAIN * self._plan.knobs.outage_s[1]
            async with bounded(limit_s, lane.folder / "stuck.txt", built.tell_tasks) as scope:
                await fault(now)
        finally:
            lane.senders += now.senders
        if scope.cancel_called:
            raise Broken(f"round {number} came to no end: see stuck.txt; the daemon: {built.daemon.last_words()}")
        built.daemon.check()
        await built.alone()
        await built.flush()
        await built.stats()
        await self._judge(lane, built, now)
        lane.ledger.rounds += 1

    async def _judge(self, lane: Lane, built: House, now: Round) -> None:
        """Read back what a round has left, and compare."""
        metrics = [metric for sender in now.senders for metric in sender.lines.metrics(sender.sent)]
        sent = sum(sender.sent for sender in now.senders)
        account, asked = Account(now.senders), Asked()
        unsound: list[str] = []
        seen: dict[str, None] = {}
        async with built.store() as store:
            wanted = [*dict.fromkeys(metrics), f"{now.place}.bad"]
            async for look in stored_rows(store, built.own, wanted, thorough=sent < THOROUGH_POINTS):
                unsound += look.unsound
                for row in look.rows:
                    account.take(row)
                    seen[row.series.metric] = None
                    if sent < ASKED_POINTS:
                        asked.take(row)
        lane.ledger.enter(now.senders, account.verdict())
        if sent < ASKED_POINTS:
            lane.ledger.find(*await asked.compare(built.daemon.port, list(seen)))
        for told in unsound:
            lane.ledger.trouble(told)
        if not lane.ledger.good:
            raise Broken(f"round {now.place} of seed {self._plan.seed}")

    async def _part(self, lane: Lane, built: House) -> None:
        """When all rounds are over: everything at once, and an orderly end."""
        if not built.began:
            return
        if not built.on_hbase:
            async with built.store() as store:
                await self._look_everywhere(store, built.own, [lane])
        await built.daemon.terminate()

    async def _look_everywhere(self, store: Store, config: Config, lanes: Sequence[Lane]) -> None:
        """Read all there is: whether a later round harmed what an earlier one left, and what nobody looked for."""
        senders = [sender for lane in lanes for sender in lane.senders]
        account = Account(senders)
        unsound = await unsound_names(store, config)
        async for look in stored_rows(store, config, None, thorough=False):
            unsound += look.unsound
            for row in look.rows:
                account.take(row)
        # What a lane that broke has left waits in its journal; what was found there need not be told twice.
        verdict = account.verdict([sender for lane in lanes if lane.ledger.good for sender in lane.senders])
        ledger = lanes[0].ledger
        if any(lane.ledger.good for lane in lanes):
            ledger.find(verdict.lost, verdict.invented, verdict.doubled)
        for told in unsound:
            ledger.trouble(told)


def _single(errors: BaseExceptionGroup[TsdError]) -> Iterator[BaseException]:
    """The errors of a group, and of those within it."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _single(error)
        else:
            yield error
