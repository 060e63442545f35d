"""Threads that decode, merge and write answers, and what they leave to others."""

import math
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from tsd.store.turns import PACE, Pace

T = TypeVar("T")

OTHERS = 3  # times as long as a piece of work took, the machine is left to others, while they want the event loop
_FREE = trio.CapacityLimiter(math.inf)


class Threads:
    """Some threads, and the pace of those who use them."""

    def __init__(self, most: int, pace: Pace = PACE) -> None:
        """`most` pieces of work are done side by side."""
        self._slots = trio.CapacityLimiter(most)
        self._resting = trio.Lock()
        self._pace = pace
        self._owed_s = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises; returns once others have had their part."""

        def timed() -> tuple[T, float]:
            begun = time.thread_time()
            return work(), time.thread_time() - begun

        async with self._slots:
            made, took_s = await trio.to_thread.run_sync(timed, limiter=_FREE)
            async with self._resting:  # where several worked, one rests after the other
                owed_s, self._owed_s = OTHERS * took_s + self._owed_s, 0.0
                await self._pace.rest(owed_s)
        return made

    def took(self, cpu_s: float) -> None:
        """Take note of work that the event loop did itself: the next rest is longer for it."""
        self._pace.took(cpu_s)
        self._owed_s += OTHERS * cpu_s
