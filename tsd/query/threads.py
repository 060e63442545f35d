"""Threads that decode, merge and write answers, and what they leave to others."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from tsd.store.turns import NAP_S, PACE, Pace

T = TypeVar("T")

OTHERS = 6  # times as long as a piece of work took, the machine is left to others, while they want the event loop
LEAST_S = 0.002  # of a rest: less is owed until more has come together
MOST_S = 2.0  # of a rest: one query pays no more for those before it
_FREE = trio.CapacityLimiter(math.inf)


class Threads:
    """Some threads, and the pace of those who use them. What a query that ended owes, the next one pays."""

    def __init__(self, most: int, pace: Pace = PACE) -> None:
        """`most` pieces of work are done side by side."""
        self._slots = trio.CapacityLimiter(most)
        self._resting = trio.Lock()
        self._pace = pace
        self._owed_s = 0.0
        self._owed_at = 0.0  # when something was owed last

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
                self._owe(used_s)
            await self._rest()
        return made

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around work that the event loop does itself, and is not parted from: the next rest is longer for it."""
        begun_s = self._pace.cpu()
        try:
            yield
        finally:
            self._owe(self._pace.cpu() - begun_s)

    def _owe(self, used_s: float) -> None:
        """Add to what is owed, if others want the loop now: a night's small queries are not paid for in the morning."""
        now = trio.current_time()
        if not self._pace.wanted():
            self._owed_s = 0.0
        elif now - self._owed_at > MOST_S:
            self._owed_s = OTHERS * used_s
        else:
            self._owed_s += OTHERS * used_s
        self._owed_at = now

    async def _rest(self) -> None:
        """Where several worked, one rests after the other."""
        if self._owed_s < LEAST_S:
            return
        async with self._resting:
            self._owed_s = min(self._owed_s, MOST_S)
            while self._owed_s > 0 and self._pace.wanted():
                nap_s = min(self._owed_s, NAP_S)
                await self._pace.rest(nap_s)
                self._owed_s -= nap_s
            self._owed_s = 0.0
