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

OTHERS = 12  # times as long as a step of the loop took, everybody else has it, if they want it
BUSY = 0.4  # of the loop's time used by others: they want it
LEAST_LEFT = 0.6  # of a span: of no less. A reader's own request and threads are others, too, and use some of it
SPAN_S = 0.02  # over which that is looked at
LASTS_S = 0.25  # how long it holds: lines come in gusts
NAP_S = 0.01  # of a rest, until it is looked at again
LEAST_NAP_S = 1e-6  # what rounding leaves of a rest is none: a clock that stands until somebody sleeps would stay there
AGE_S = 1.0  # what was before that tells nothing of now


class Pace:
    """Whether others want the event loop, and rests for them. CPU of the loop is what it goes by: another process' work
    is no reason to rest. Not for threads."""

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        """`cpu`: seconds that the loop's thread has used so far."""
        self.cpu = cpu
        self._own_s = 0.0  # of it, by those who rest
        self._since = -math.inf, 0.0, 0.0  # a time, and CPU of those who rest and of others by then
        self._wanted_until = -math.inf

    def took(self, cpu_s: float) -> None:
        """Take note of a step of the loop by one of those who rest."""
        self._own_s += cpu_s

    def wanted(self) -> bool:
        """Whether others used much, of late, of what the loop's time those who rest left them: a reader that takes half
        of it must not pass for a loop that is half idle."""
        now, own, used = trio.current_time(), self._own_s, self.cpu() - self._own_s
        before, own_before, used_before = self._since
        if not 0 <= now - before < SPAN_S:
            left_s = now - before - (own - own_before)
            if 0 <= now - before < AGE_S and used - used_before >= BUSY * max(left_s, LEAST_LEFT * SPAN_S):
                self._wanted_until = now + LASTS_S
            self._since = now, own, used
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
            self._pace.took(took_s)
            await self._pace.rest(OTHERS * took_s)
            return made
