"""Points of open hours that are partly stored: answers to all kinds of questions are those of a slow reference.

The daemon runs in this process, and its clocks jump. Some sizes are so small that few points are packed, cut into
slices and read in pages.
"""

import json
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import patch

import trio

from tests.fuzz.answers import settings_of
from tests.fuzz.cells import Cells
from tests.fuzz.changes import Judge, local_settings_of
from tests.fuzz.histograms import CONFIG
from tests.fuzz.process import Client
from tests.fuzz.questions import KEYS, METRICS, VALUES
from tests.fuzz.world import HOUR_S, Sent, World
from tests.running import Running, running

BOOT_S = 100_000.0  # a machine's uptime
SIZES = {
    "tsd.ingest.writer.LEAST_PACKED": (50, 300, 1000),
    "tsd.ingest.writer.UNPACKED_SHARE": (1 << 20,),
    "tsd.ingest.packed_points.CHUNK_POINTS": (20, 100, 500),
    "tsd.ingest.packed_points.MERGED_POINTS": (50, 300, 1 << 15),
    "tsd.ingest.metric_points.SLICE_POINTS": (50, 300, 2000, 1 << 18),
    "tsd.ingest.open_hours.SMALL": (1, 20_000),
    "tsd.ingest.open_hours.SMALL_CHOSEN": (1, 500_000),
    "tsd.ingest.open_hours.MERGED": (2, 4, 16),
    "tsd.ingest.open_hours.FEW_A_SERIES": (1.5, 50.0),
    "tsd.ingest.found_points.MOST_TOGETHER": (1, 4, 256),
    "tsd.ingest.found_points.MOST_POINTS": (10, 1000),
    "tsd.tables.open_rows.PAGE_POINTS": (300, 2000, 200_000),
    "tsd.codec.points.SLICE_POINTS": (50, 50_000),
    "tsd.store.rocksdb.folding.BLOCK_ROWS": (2, 256),
    "tsd.store.rocksdb.folding.BLOCK_BYTES": (200, 16 << 10),
    "tsd.store.rocksdb.folding.PART_BYTES": (1000, 200_000),
    "tsd.store.rocksdb.block_view.BLOCKS_AT_ONCE": (1, 48),
    "tsd.query.assemble.SLICE_POINTS": (1000, 500_000),
    "tsd.query.open_series.FEW_POINTS": (5, 1000),
    "tsd.tables.opentsdb.matched_series.FEW_POINTS": (5, 1000),
}
STEPS = {
    "due": 30, "late": 30, "burst": 30, "new": 5, "flush": 3, "flush due": 15, "drop": 3, "jump": 12, "cells": 8,
    "note": 3, "histogram": 3, "none": 8, "restart": 2,
}  # fmt: skip


class JumpingClock(trio.abc.Clock):
    """trio's clock and the wall clock, which jump ahead together."""

    def __init__(self, start_s: float) -> None:
        self._start_s, self._real_s, self._ahead_s = start_s, time.perf_counter(), 0.0

    def jump(self, seconds: float) -> None:
        """Jump ahead."""
        self._ahead_s += seconds

    def now_s(self) -> float:
        """Return the wall clock."""
        return self._start_s + time.perf_counter() - self._real_s + self._ahead_s

    def start_clock(self) -> None:
        """See trio.abc.Clock."""

    def current_time(self) -> float:
        """See trio.abc.Clock."""
        return BOOT_S + self.now_s() - self._start_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See trio.abc.Clock."""
        return deadline if math.isinf(deadline) else deadline - self.current_time()


def burst(dice: random.Random, world: World) -> list[Sent]:
    """Return points of all series of a metric at the same times, mostly of this hour."""
    now_s, family = world.now_ms() // 1000, dice.choice(METRICS)
    start_s = now_s // HOUR_S * HOUR_S - dice.choice([0, 0, 0, HOUR_S]) + dice.randrange(HOUR_S)
    step_s = dice.choice([1, 7, 10, 60])
    return [
        world.point(series, at * 1000)
        for at in range(start_s, min(now_s, start_s + 40 * step_s), step_s)
        for series in world.stored
        if series.family == family and dice.random() < 0.95
    ]


class Session:
    """A daemon from its start to its end."""

    def __init__(self, running: Running, clock: JumpingClock, world: World, judge: Judge, cells: Cells | None) -> None:
        self._running, self._daemon, self._clock, self._world = running, running.daemon, clock, world
        self._judge, self._cells = judge, cells
        self._others = random.Random(judge.dice.random())  # the judge uses its own in a thread

    async def step(self, client: Client) -> str:
        """Do one thing, and return its name."""
        dice, judge, world, writer = self._judge.dice, self._judge, self._world, self._daemon.ingest.writer
        [name] = dice.choices(list(STEPS), list(STEPS.values()))
        match name:
            case "due" | "late":
                await trio.to_thread.run_sync(client.send, world.due() if name == "due" else world.late())
            case "burst":
                await trio.to_thread.run_sync(client.send, burst(dice, world))
            case "new":
                await trio.to_thread.run_sync(client.send, [world.start_one()])
            case "flush":
                assert await writer.flush()
            case "flush due":
                assert await writer.flush_due()
            case "drop":
                self._daemon.drop_caches()
            case "jump":
                self._clock.jump(dice.choice([1, 10, 10, 60, 300, 900, 1800, 3700]))
                await trio.sleep(0.02)
            case "cells" if self._cells is not None:
                assert await writer.flush()
                await self._daemon.store.put(self._daemon.config.data_table, self._cells.draw())
                self._daemon.drop_caches()
            case "note":
                await trio.to_thread.run_sync(judge.notes.change, client)
            case "histogram":
                await trio.to_thread.run_sync(judge.histograms.send, client)
        return str(name)

    async def ask(self, client: Client) -> None:
        """Ask questions twice, the second time while others send points, or stored and cached ones change places."""
        self._judge.done["held points at a question"] += self._daemon.ingest.writer.held_points
        await trio.to_thread.run_sync(self._judge.ask, client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._disturb)
            await trio.to_thread.run_sync(self._judge.ask, client)
            nursery.cancel_scope.cancel()

    async def _disturb(self) -> None:
        """Send points of another metric, store points and drop caches, until cancelled."""
        writer, dice = self._daemon.ingest.writer, self._others
        while True:
            match dice.choice(["send", "send", "send", "flush", "flush due", "flush due", "drop", "none"]):
                case "send":
                    await self._running.send_lines(self._noise().encode())
                case "flush":
                    await writer.flush()
                case "flush due":
                    await writer.flush_due()
                case "drop":
                    self._daemon.drop_caches()
            await trio.sleep(dice.choice([0, 0.002, 0.02]))

    def _noise(self) -> str:
        """Return points of this hour of some of 100 series of another metric."""
        now_s, dice = self._world.now_ms() // 1000, self._others
        first_s, hosts = now_s // HOUR_S * HOUR_S, dice.sample(range(100), dice.choice([1, 20, 100]))
        times = range(first_s, now_s + 1, max((now_s - first_s) // 10, 1))
        return "".join(f"put noise {at} {dice.random()} host=noise{host}\n" for at in times for host in hosts)


async def _play(
    folder: Path, seed: int, steps: int, clock: JumpingClock, shared: Mapping[str, str] | None
) -> Counter[str]:
    dice = random.Random(seed)

    def now_s() -> int:
        return int(clock.now_s())

    world, has_rollups = World(dice, now_s, may_have_entities=shared is None), dice.random() < 0.4
    world.keep_s = 0
    judge = Judge(dice, world, now_s, for_rollups=False)
    cells = None if world.has_entities or has_rollups or dice.random() < 0.4 else Cells(dice, world)
    own = {
        "tsd.http.query.allow_delete": "true",
        "tsd.core.histograms.config": CONFIG,
        "tsd.rollups.build": str(has_rollups).lower(),
        "tsd.storage.salt.width": str(world.salt_width),
        "tsd.entity.enabled": str(world.has_entities).lower(),
    }
    left = steps
    while left > 0:
        given = {**settings_of(dice), **local_settings_of(dice), **own}
        if dice.random() < 0.8:
            given |= {"tsd.storage.hold_open_hours": "true", "tsd.storage.join_points": "true"}
        if shared is not None:  # points of this interval are held
            given |= {**shared, "tsd.storage.flush_interval": "30000"}
        judge.log.append(str(given))
        async with running(folder, given) as daemon:
            client = Client(daemon.port)
            await trio.to_thread.run_sync(client.connect)
            with closing(client):
                if left == steps:
                    await trio.to_thread.run_sync(_begin, client, world.past(dice.choice([0.3, 1])))
                session, name = Session(daemon, clock, world, judge, cells), ""
                while left > 0 and name != "restart":
                    left, name = left - 1, await session.step(client)
                    judge.done[name] += 1
                    judge.log.append(f"{name} {now_s()}")
                    await session.ask(client)
    judge.done["points"] = sum(map(len, world.stored.values()))
    return judge.done


def _begin(client: Client, points: list[Sent]) -> None:
    """Assign all names, and send points."""
    status, text = client.request("/api/uid/assign", {"metric": METRICS, "tagk": KEYS, "tagv": VALUES})
    assert status == 200, text
    assert [int(uid, 16) for uid in json.loads(text)["tagv"].values()] == list(range(1, len(VALUES) + 1))
    client.send(points)


def play_held(folder: Path, seed: int, steps: int, shared: Mapping[str, str] | None = None) -> Counter[str]:
    """Send and ask `steps` times. Return what was done. Raise AssertionError with what differs. `shared`: settings of
    tables in an HBase."""
    dice = random.Random(f"clock {seed}")
    hours = int(time.time()) // HOUR_S + 2 + dice.choice([0, 6, 11])  # noqa: TID251 (a test's own)
    clock = JumpingClock(hours * HOUR_S + dice.choice([0, 900, 1800, 3000, 3500]))
    sizes: dict[str, float] = {}
    if dice.random() < 0.8:
        sizes = {name: dice.choice(choices) for name, choices in SIZES.items()}
    with ExitStack() as stack:
        for name, size in sizes.items():
            stack.enter_context(patch(name, size))
        fast = {"time": clock.now_s, "time_ns": lambda: int(clock.now_s() * 1e9)}
        stack.enter_context(patch.multiple(time, **fast))
        return trio.run(_play, folder, seed, steps, clock, shared, clock=clock)
