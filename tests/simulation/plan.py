"""The random plan of one seed: size of the run, configuration and faults."""

import math
import random
from dataclasses import dataclass, replace
from enum import Enum, auto

BASE = 1_356_998_400  # start of an hour
START_S = BASE + 2 * 3600  # the wall clock at the start: the hours of all points are over


class Engine(Enum):
    """The simulated storage engine."""

    EMBEDDED = auto()  # ends with the process; a power loss may lose unsynced puts
    HBASE = auto()  # outlives the process; batches may be applied partially; other daemons share it


HOLD_INTERVALS = {Engine.EMBEDDED: (0, math.inf, math.inf), Engine.HBASE: (0, 0, 2, 4)}


class FaultKind(Enum):
    """Faults and events while clients send."""

    STORE_REFUSES = auto()
    STORE_HANGS = auto()  # until the call times out; applied or not
    STORE_LOSES_ANSWERS = auto()
    STORE_HALF = auto()  # some rows of a batch are applied, then it fails
    STORE_SLOW = auto()
    STORE_FLAKY = auto()  # some calls fail
    DISK_FULL = auto()
    DISK_FAILS = auto()  # syncs fail
    DISK_SLOW = auto()
    KILL = auto()
    POWER = auto()  # power loss: the page cache is lost
    KILL_AT_WRITE = auto()  # during a disk call
    POWER_AT_WRITE = auto()
    RESTART = auto()  # SIGTERM
    CLOCK_JUMPS = auto()
    DROP_CACHES = auto()
    RENAME = auto()


@dataclass(frozen=True)
class Event:
    """A fault with its start and duration."""

    at_s: float
    kind: FaultKind
    lasts_s: float


@dataclass(frozen=True)
class Plan:
    """One run."""

    engine: Engine
    clients: int
    rounds: int  # per client
    batch: int  # maximum number of lines
    flush_interval_s: float
    sync_interval_s: float
    gather_s: float
    memory_limit: int
    journal_max_bytes: int
    max_unresolved: int
    join: bool
    compacts: bool
    strict: bool  # unknown metrics are refused
    readers: int  # tasks that query acknowledged points
    second_daemon: bool  # another daemon assigns UIDs in the same table
    hurried: bool  # clients hardly pause
    hold_intervals: float  # for which the writer holds points of open hours; 0: not
    deletes: bool  # rows of points are deleted
    writer_lag_s: int  # the writer's clock is that much behind, so that hours of points may be open, or end meanwhile
    events: tuple[Event, ...]

    @property
    def length_s(self) -> float:
        """About how long clients send."""
        return 1.0 if self.hurried else 10.0


def random_plan(rng: random.Random) -> Plan:
    """Return the plan of a seed."""
    engine = rng.choice(list(Engine))
    hurried = rng.random() < 0.3
    length_s = 1.0 if hurried else 10.0
    events = tuple(_event(rng, length_s) for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4, 6))))
    plan = Plan(
        engine=engine,
        clients=rng.choice((1, 1, 2, 2, 3)),
        rounds=rng.choice((1, 2, 4, 6)),
        batch=rng.choice((2, 5, 10, 40)),
        flush_interval_s=rng.choice((0.2, 1.0, 1.0, 3.0)) * length_s / 10,
        sync_interval_s=rng.choice((0.0, 0.001, 0.05, 0.5)),
        memory_limit=rng.choice((8 << 10, 64 << 10, 64 << 20)),
        journal_max_bytes=rng.choice((2 << 10, 8 << 10, 1 << 30, 1 << 30)),
        max_unresolved=rng.choice((1, 3, 1000)),
        join=rng.random() < 0.8,
        compacts=rng.random() < 0.5,
        strict=rng.random() < 0.3,
        readers=rng.choice((0, 0, 1, 2)),
        second_daemon=engine is Engine.HBASE and rng.random() < 0.4,
        hurried=hurried,
        hold_intervals=rng.choice(HOLD_INTERVALS[engine]),
        writer_lag_s=rng.choice((3480, 3476, 3000, 7076, 7000)),
        gather_s=rng.choice((0.0, 0.01, 1.0)),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        deletes=False,
    )
    # If a clock is set back, the delete of what was read may reach later writes, which have the same times.
    jumps = engine is Engine.HBASE and any(event.kind is FaultKind.CLOCK_JUMPS for event in events)
    return replace(plan, deletes=not jumps and rng.random() < 0.5)


def _event(rng: random.Random, length_s: float) -> Event:
    kind = rng.choice(list(FaultKind))
    lasts_s = rng.choice((0.01, 0.1, 0.3, 1.0)) * length_s
    return Event(round(rng.random() * length_s, 3), kind, lasts_s)
