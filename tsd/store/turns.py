"""The processor, shared between queries, which read and compute very much, and everybody else.

What reads in steps of some milliseconds, one after the other, would have half the event loop, or with many readers
nearly all of it, however many lines wait to be taken in. And lines that come as fast as they are taken need all of the
machine's cores, of which a query's threads would take an equal part. Here all who work in steps together have a small
part while others want the loop, and all of it while nobody does.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import trio

T = TypeVar("T")

OTHERS = 16  # times as long as a step of the loop took, everybody else has it, if they want it
MUCH_BYTES_S = 8e6  # of lines that come in: they want it. A twentieth of what it can take, even beside a reader
SPAN_S = 0.02  # over which that is looked at
LASTS_S = 0.25  # how long it holds: lines come in gusts
NAP_S = 0.01  # of a rest, until it is looked at again
LEAST_NAP_S = 1e-6  # what rounding leaves of a rest is none: a clock that stands until somebody sleeps would stay there
AGE_S = 1.0  # what was before that tells nothing of now


class Pace:
    """Whether writers want the event loop, and rests for them. Lines that come in are what it goes by: the loop's own
    time does not tell a writer's work from that of the query itself, its request and its answer. Not for threads."""

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        """`cpu`: seconds that the loop's thread has used so far."""
        self.cpu = cpu
        self._bytes = 0
        self._since = -math.inf, 0  # a time, and the bytes that had come by then
        self._wanted_until = -math.inf

    def came(self, size: int) -> None:
        """Take note of so many bytes of lines."""
        self._bytes += size

    def wanted(self) -> bool:
        """Whether much came in of late."""
        now = trio.current_time()
        before, bytes_before = self._since
        if not 0 <= now - before < SPAN_S:
            if 0 <= now - before < AGE_S and self._bytes - bytes_before >= MUCH_BYTES_S * (now - before):
                self._wanted_until = now + LASTS_S
            self._since = now, self._bytes
        return now < self._wanted_until <= now + LASTS_S

    async def rest(self, owed_s: float) -> None:
        """Let others run for so long, or until they have little to do."""
        while owed_s > LEAST_NAP_S and self.wanted():
            begun = trio.current_time()
            await trio.sleep(min(owed_s, NAP_S))
            owed_s -= trio.current_time() - begun
        await trio.lowlevel.checkpoint()


PACE = Pace()  # a process has one event loop


class Turns:
    """Those who read."""

    def __init__(self, pace: Pace = PACE) -> None:
        self._pace = pace
        self._turn = trio.Lock()

    async def step(self, steps: Iterator[T]) -> T:
        """The next of `steps`, and then others have had their part."""
        async with self._turn:
            begun = self._pace.cpu()
            made = next(steps)
            took_s = self._pace.cpu() - begun
            await self._pace.rest(OTHERS * took_s)
            return made
