"""What one seed draws: how large a run is, how the daemon is set up, and how bad things get."""

import random
from dataclasses import dataclass
from enum import Enum, auto

BASE = 1_356_998_400  # an hour begins
START_S = BASE + 2 * 3600  # the wall clock at the start: the hours that points are of are over


class Engine(Enum):
    """What the store stands for."""

    EMBEDDED = auto()  # it ends with the process; what was put and not synced may be gone after a power loss
    HBASE = auto()  # it goes on; batches may be applied by half; other daemons share it


class Trouble(Enum):
    """What happens to a run while its clients send."""

    STORE_REFUSES = auto()
    STORE_HANGS = auto()  # until the call is given up; applied or not
    STORE_LOSES_ANSWERS = auto()
    STORE_HALF = auto()  # some rows of a batch are applied, then it fails
    STORE_SLOW = auto()
    STORE_FLAKY = auto()  # some of the calls
    DISK_FULL = auto()
    DISK_FAILS = auto()  # to sync
    DISK_SLOW = auto()
    KILL = auto()
    POWER = auto()  # of the machine: with the page cache
    KILL_AT_WRITE = auto()  # in the middle of what the disk is asked
    POWER_AT_WRITE = auto()
    RESTART = auto()  # as by SIGTERM
    CLOCK_JUMPS = auto()
    DROP_CACHES = auto()
    RENAME = auto()


@dataclass(frozen=True)
class Event:
    """Something that happens at a time, for a while."""

    at_s: float
    trouble: Trouble
    lasts_s: float


@dataclass(frozen=True)
class Plan:
    """A run."""

    engine: Engine
    clients: int
    rounds: int  # of each client
    batch: int  # lines at most
    flush_interval_s: float
    sync_interval_s: float
    memory_limit: int
    journal_max_bytes: int
    most_unsettled: int
    join: bool
    compacts: bool
    strict: bool  # unknown metrics are refused
    readers: int  # that have a metric written out, and look for what they were told is safe
    neighbour: bool  # another daemon assigns UIDs in the same table
    hurried: bool  # clients hardly wait
    events: tuple[Event, ...]

    @property
    def length_s(self) -> float:
        """How long clients go on, about."""
        return 1.0 if self.hurried else 10.0


def plan(chance: random.Random) -> Plan:
    """What a seed stands for."""
    engine = chance.choice(list(Engine))
    hurried = chance.random() < 0.3
    length_s = 1.0 if hurried else 10.0
    events = tuple(_event(chance, length_s) for _ in range(chance.choice((0, 1, 2, 2, 3, 3, 4, 6))))
    return Plan(
        engine=engine,
        clients=chance.choice((1, 1, 2, 2, 3)),
        rounds=chance.choice((1, 2, 4, 6)),
        batch=chance.choice((2, 5, 10, 40)),
        flush_interval_s=chance.choice((0.2, 1.0, 1.0, 3.0)) * length_s / 10,
        sync_interval_s=chance.choice((0.0, 0.001, 0.05, 0.5)),
        memory_limit=chance.choice((8 << 10, 64 << 10, 64 << 20)),
        journal_max_bytes=chance.choice((2 << 10, 8 << 10, 1 << 30, 1 << 30)),
        most_unsettled=chance.choice((1, 3, 1000)),
        join=chance.random() < 0.8,
        compacts=chance.random() < 0.5,
        strict=chance.random() < 0.3,
        readers=chance.choice((0, 0, 1, 2)),
        neighbour=engine is Engine.HBASE and chance.random() < 0.4,
        hurried=hurried,
        events=tuple(sorted(events, key=lambda event: event.at_s)),
    )


def _event(chance: random.Random, length_s: float) -> Event:
    trouble = chance.choice(list(Trouble))
    lasts_s = chance.choice((0.01, 0.1, 0.3, 1.0)) * length_s
    return Event(round(chance.random() * length_s, 3), trouble, lasts_s)
