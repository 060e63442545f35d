"""The event loop's time, shared between those who read very much and everybody else.

What reads in steps of some milliseconds, one after the other, would have half the loop, or with many readers nearly
all of it, however many lines wait to be taken in. Here all readers together have a small part of it while others want
it, and all of it while nobody does.
"""

import time
from collections.abc import Iterator
from typing import TypeVar

import trio

T = TypeVar("T")

OTHERS = 8  # times as long as a step took, everybody else has the loop, if they want it
IDLE_S = 0.0002  # a turn of the loop that takes less does nothing that anybody waits for


class Turns:
    """Those who read. Times are the loop's CPU: another thread's work, or another process', is no reason to rest."""

    def __init__(self) -> None:
        self._turn = trio.Lock()

    async def step(self, steps: Iterator[T]) -> T:
        """The next of `steps`, and then others have had their part."""
        async with self._turn:
            begun = time.thread_time()
            made = next(steps)
            await _rest(OTHERS * (time.thread_time() - begun))
            return made


async def _rest(owed_s: float) -> None:
    """Let others run for so long, or until they have nothing to do. In a turn of the loop tasks come in any order: only
    after two has everybody had one."""
    idle = 0
    while owed_s > 0 and idle < 2:
        before = time.thread_time()
        await trio.lowlevel.checkpoint()
        used_s = time.thread_time() - before
        owed_s -= used_s
        idle = idle + 1 if used_s < IDLE_S else 0
