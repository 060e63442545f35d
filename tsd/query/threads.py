"""Threads that decode, merge and write answers, and what they leave to others."""

import math
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from tsd.store.turns import NAP_S, PACE, Pace

T = TypeVar("T")

OTHERS = 3  # times as long as a piece of work took, the machine is left to others, while they want the event loop
_FREE = trio.CapacityLimiter(math.inf)


class Threads:
    """Some threads, and the pace of those who use them. What a query that ended owes, the next one pays."""

    def __init__(self, most: int, pace: Pace = PACE) -> None:
        """`most` pieces of work are done side by side."""
        self._slots = trio.CapacityLimiter(most)
        self._resting = trio.Lock()
        self._pace = pace
        self._owed_s = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, before and after which others had their part."""
        used_s = 0.0

        def timed() -> T:
            nonlocal used_s
            begun = time.thread_time()
            try:
                return work()
            finally:
                used_s = time.thread_time() - begun

        async with self._slots:
            await self._rest()
            try:
                made = await trio.to_thread.run_sync(timed, limiter=_FREE)
            finally:
                self._owed_s += OTHERS * used_s
            await self._rest()
        return made

    def took(self, cpu_s: float) -> None:
        """Take note of work that the event loop did itself: the next rest is longer for it."""
        self._pace.took(cpu_s)
        self._owed_s += OTHERS * cpu_s

    async def _rest(self) -> None:
        """Where several worked, one rests after the other."""
        async with self._resting:
            while self._owed_s > 0 and self._pace.wanted():
                nap_s = min(self._owed_s, NAP_S)
                await self._pace.rest(nap_s)
                self._owed_s -= nap_s
            self._owed_s = 0.0
