"""The longest step of the event loop while a daemon answers requests."""

import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import trio

from tests.running import Running, running
from tsd.cli.serve import tune_collector

LONGEST_MS = 20.0  # on a core that runs `_reference` in REFERENCE_MS
REFERENCE_MS = 5.0
ROUNDS = 5  # until one is good: a collection of garbage may fall into any step
BASE = 1_356_998_400
OURS = ("tsd.", "trio._highlevel_serve_listeners.")  # names of the daemon's tasks; the others serve connections
_OBJECTS = b"[" + b",".join([b'{"a": {"a": {"a": [[{"a": [[["a"]]]}]]}}}'] * 1500) + b"]"


def _reference() -> float:
    """Return the CPU time in ms of a fixed piece of work: half of it computes, and half creates and frees objects.

    Neighbours on a machine slow down memory more than computing.
    """
    begun = time.thread_time()
    total = 0
    for n in range(50_000):
        total += n
    msgspec.json.decode(_OBJECTS)
    return (time.thread_time() - begun) * 1000


class StepClock(trio.abc.Instrument):
    """Measures the CPU time of each step of the daemon's tasks.

    A slow core lengthens all steps: a virtual machine may count the time of its neighbours. The reference work is
    measured before and after the steps, and divides their times.
    """

    def __init__(self) -> None:
        self._begun = 0.0
        self._references_ms = [_reference()]
        self.longest_s = 0.0
        self.task = ""

    def stop(self) -> None:
        self._references_ms.append(_reference())

    @property
    def longest_ms(self) -> float:
        """The longest step in ms, on a core as fast as the one that the limit is for."""
        slowness = sum(self._references_ms) / len(self._references_ms) / REFERENCE_MS
        return self.longest_s * 1000 / max(slowness, 1.0)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took_s = time.thread_time() - self._begun
        if took_s > self.longest_s and task.name.startswith(OURS):
            self.longest_s, self.task = took_s, task.name


@contextmanager
def usual_collector() -> Iterator[None]:
    """Collect garbage as seldom as `tsd serve` does, and nothing that other tests left."""
    before = gc.get_threshold()
    tune_collector()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@asynccontextmanager
async def measured(folder: Path, settings: dict[str, str]) -> AsyncIterator[Running]:
    """Run a daemon in this process, with the garbage collection of `tsd serve`."""
    with usual_collector():
        async with running(folder, settings) as daemon:
            yield daemon


@asynccontextmanager
async def timed() -> AsyncIterator[StepClock]:
    clock = StepClock()
    trio.lowlevel.add_instrument(clock)
    try:
        yield clock
    finally:
        trio.lowlevel.remove_instrument(clock)
        clock.stop()


async def longest_step(attack: Callable[[], Awaitable[object]]) -> tuple[float, str]:
    """Attack until no step is too long, up to `ROUNDS` times. Return the longest step of the best round in ms, and its
    task."""
    steps: list[tuple[float, str]] = []
    while len(steps) < ROUNDS and not any(step[0] <= LONGEST_MS for step in steps):
        async with timed() as clock:
            await attack()
        steps.append((clock.longest_ms, clock.task))
    return min(steps)


SETTINGS = {
    "tsd.core.auto_create_metrics": "true",
    "tsd.http.request.max_chunk": str(16 << 20),
    "tsd.kairosdb.enabled": "true",
    "tsd.heroic.enabled": "true",
}


async def send_synced(daemon: Running, lines: bytes) -> None:
    """Send lines, and read answers until they are on disk."""
    async with daemon.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send, lines + b"sync\n")
        await client.read_until(b"synced ")
