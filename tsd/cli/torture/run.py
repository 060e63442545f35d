"""Runs: concurrent lanes of rounds, their verification and their reports.

A watchdog cancels a round that hangs and writes where its tasks wait.
"""

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tsd.cli.torture.environment import POLL_S, Environment, Setup, open_environment
from tsd.cli.torture.faults import FAULTS, Fault, Round, make_senders
from tsd.cli.torture.options import CRASH, DEFAULTS, ON_BIGTABLE, Options
from tsd.cli.torture.report import TortureReport
from tsd.cli.torture.senders import Sender, UnexpectedAnswer
from tsd.cli.torture.servers import RESTART_S
from tsd.cli.torture.verify import Comparison, QueryCheck, stored_rows, uid_errors
from tsd.config.settings import Config
from tsd.daemon.diagnostics import task_lines, thread_lines
from tsd.errors import StoreDown, StoreError, TsdError
from tsd.store import Store


@asynccontextmanager
async def hang_watchdog(
    seconds: float, dump: Path, others: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
) -> AsyncIterator[trio.CancelScope]:
    """Cancel the block after this time, write where its tasks wait to the file `dump`, and call `others`.

    The scope's `cancel_called` says whether that happened.
    """
    me = trio.lowlevel.current_task()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_hung, seconds, scope, me, dump, others)
            yield scope
            nursery.cancel_scope.cancel()


async def _cancel_hung(
    seconds: float,
    scope: trio.CancelScope,
    task: trio.lowlevel.Task,
    dump: Path,
    others: Callable[[], Awaitable[None]],
) -> None:
    await trio.sleep(seconds)
    dump.write_text("\n".join([*task_lines(task), *thread_lines()]) + "\n")  # noqa: ASYNC240 - once
    await others()
    scope.cancel()


ROUND_S = 360.0  # for a round, plus AGAIN times its outage to store the backlog
AGAIN = 3
QUERIED_POINTS = 200_000  # larger rounds are not queried
THOROUGH_POINTS = 1_000_000  # cells of larger rounds are read but not checked against the format


class RoundFailed(TsdError):
    """Raised when a round hangs or its verification fails."""


@dataclass(frozen=True)
class TorturePlan:
    """The rounds of a run."""

    rounds: Mapping[str, int]  # of each fault
    seed: int
    lanes: int  # concurrent daemons
    options: Options = DEFAULTS
    duration_s: float = math.inf  # no round starts after it
    faults: Mapping[str, Fault] | None = None  # instead of the standard ones

    def shares(self) -> list[tuple[str, range]]:
        """Return the fault and the rounds of each lane."""
        each = max(1, self.lanes // len(self.rounds))
        return [
            (fault, range(count * at // each, count * (at + 1) // each))
            for at in range(each)
            for fault, count in self.rounds.items()
            if count * at // each < count * (at + 1) // each
        ]


@dataclass
class Lane:
    """Consecutive rounds of one fault in one test environment."""

    fault: str
    rounds: range
    folder: Path
    report: TortureReport = field(default_factory=TortureReport)
    senders: list[Sender] = field(default_factory=list)  # of all rounds


class Run:
    """All lanes of a plan."""

    def __init__(self, plan: TorturePlan, setup: Setup, folder: Path, on_round: Callable[[], None]) -> None:
        """`on_round` is called after each round."""
        self._plan = plan
        self._setup = setup
        self._on_round = on_round
        self._end = math.inf
        self.lanes = [Lane(fault, rounds, folder / f"{fault}-{rounds.start}") for fault, rounds in plan.shares()]

    def reports(self) -> list[tuple[str, TortureReport]]:
        """Return the reports by fault."""
        found: dict[str, TortureReport] = {}
        for lane in self.lanes:
            found.setdefault(lane.fault, TortureReport()).add(lane.report)
        return list(found.items())

    def stop(self) -> None:
        """Start no other round."""
        self._end = -math.inf

    async def run(self) -> None:
        """Run all rounds. Failures are in the reports."""
        self._end = min(self._end, trio.current_time() + self._plan.duration_s)
        room = trio.CapacityLimiter(self._plan.lanes)
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(self._run_lane, lane, room)
        if self._setup.store is not None:
            try:
                await self._verify_all(self._setup.store, self._setup.own, self.lanes)
            except StoreError as error:  # the rounds, each of which was verified, are reported all the same
                self.lanes[0].report.add_error(f"all tables could not be read at the end: {error}")

    async def _run_lane(self, lane: Lane, room: trio.CapacityLimiter) -> None:
        async with room:
            try:
                small, eager = lane.fault == "full", lane.fault != "outage"
                async with open_environment(
                    self._setup, lane.folder, small=small, eager=eager, relayed=lane.fault in ON_BIGTABLE
                ) as environment:
                    await self._run_rounds(lane, environment)
            except* TsdError as errors:
                for error in _flatten(errors):
                    lane.report.add_error(f"{lane.fault}: {error}")

    async def _run_rounds(self, lane: Lane, environment: Environment) -> None:
        for number in lane.rounds:
            if trio.current_time() < self._end:
                await self._run_round(lane, environment, number)
                self._on_round()
        await self._finish(lane, environment)

    async def _run_round(self, lane: Lane, environment: Environment, number: int) -> None:
        chance = random.Random(f"{self._plan.seed} {lane.fault} {number}")  # noqa: S311 - reproducible
        place = f"torture.{lane.fault}.{number}"
        senders = make_senders(place, chance, much=lane.fault == "outage")
        now = Round(environment, place, chance, lane.report, self._plan.options, senders)
        fault = (self._plan.faults or FAULTS)[lane.fault]
        try:
            limit_s = ROUND_S + AGAIN * self._plan.options.outage_s[1]
            async with hang_watchdog(limit_s, lane.folder / "hang.txt", environment.dump_tasks) as scope:
                await fault(now)
        finally:
            lane.senders += now.senders
        if scope.cancel_called:
            daemon = environment.daemon
            raise RoundFailed(
                f"round {number} hangs: see hang.txt; {daemon.scheduling()}; the daemon: {daemon.last_output()}"
            )
        async with environment.servers.needed():
            if lane.fault == CRASH:
                await _wait_readable(environment)
            environment.daemon.check()
            await environment.wait_idle()
            await environment.flush()
            await environment.stats()
            await self._verify_round(lane, environment, now)
        lane.report.rounds += 1

    async def _verify_round(self, lane: Lane, environment: Environment, now: Round) -> None:
        """Compare the stored points of a round with what was sent."""
        metrics = [metric for sender in now.senders for metric in sender.lines.metrics(sender.sent)]
        sent = sum(sender.sent for sender in now.senders)
        comparison, queried = Comparison(now.senders), QueryCheck()
        corrupt: list[str] = []
        seen: dict[str, None] = {}
        async with environment.store() as store:
            wanted = [*dict.fromkeys(metrics), f"{now.place}.bad"]
            async for page in stored_rows(store, environment.own, wanted, thorough=sent < THOROUGH_POINTS):
                corrupt += page.corrupt
                for row in page.rows:
                    comparison.take(row)
                    seen[row.series.metric] = None
                    if sent < QUERIED_POINTS:
                        queried.take(row)
        lane.report.add_senders(now.senders, comparison.verification())
        if sent < QUERIED_POINTS:
            try:
                findings = await queried.compare(environment.daemon.port, list(seen))
            except UnexpectedAnswer as exc:
                await environment.dump_tasks()
                raise UnexpectedAnswer(f"{exc}; {environment.daemon.scheduling()}") from exc
            lane.report.add_findings(*findings)
        for error in corrupt:
            lane.report.add_error(error)
        if not lane.report.good:
            raise RoundFailed(f"round {now.place} of seed {self._plan.seed}")

    async def _finish(self, lane: Lane, environment: Environment) -> None:
        """Verify all points of a lane again, after its last round, and stop its daemon."""
        if not environment.was_started:
            return
        if not environment.has_servers:
            async with environment.store() as store:
                await self._verify_all(store, environment.own, [lane])
        await environment.daemon.terminate()

    async def _verify_all(self, store: Store, config: Config, lanes: Sequence[Lane]) -> None:
        """Verify all tables: points of earlier rounds, and points of no known client."""
        senders = [sender for lane in lanes for sender in lane.senders]
        comparison = Comparison(senders)
        corrupt = await uid_errors(store, config)
        async for page in stored_rows(store, config, None, thorough=False):
            corrupt += page.corrupt
            for row in page.rows:
                comparison.take(row)
        # Points of a failed lane may be in its journal still, and its report has them already.
        verification = comparison.verification(
            [sender for lane in lanes if lane.report.good for sender in lane.senders]
        )
        report = lanes[0].report
        if any(lane.report.good for lane in lanes):
            report.add_findings(verification.lost, verification.invented, verification.doubled)
        for error in corrupt:
            report.add_error(error)


async def _wait_readable(environment: Environment) -> None:
    """Return once this process reads the servers again: the kill closed its connections. Raise RoundFailed."""
    async with environment.store() as store:
        with trio.move_on_after(RESTART_S):
            while True:
                try:
                    async for _ in stored_rows(store, environment.own, ["none"]):
                        pass
                except StoreDown:
                    await trio.sleep(POLL_S)
                else:
                    return
    raise RoundFailed(f"the servers cannot be read {RESTART_S:.0f} s after a kill")


def _flatten(errors: BaseExceptionGroup[TsdError]) -> Iterator[BaseException]:
    """Yield the errors of a group and of nested groups."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flatten(error)
        else:
            yield error
