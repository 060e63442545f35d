"""Division of the event loop's time between ingest and scans, and common times for periodic work.

A scan works in steps of a few milliseconds. Without a limit, scans would get half of the event loop's time, or nearly
all of it with many readers. A query's threads would also use cores that ingest needs. While the ingest load is high,
all scans together get a small part of the time; otherwise there is no limit.

Periodic work of all kinds is done at multiples of its periods: an idle daemon wakes up once for all that is due.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import trio

T = TypeVar("T")

PAUSE_RATIO = 16  # length of the pause after a step, relative to the step
HIGH_BYTES_PER_S = 8e6  # ingest load that counts as high: a twentieth of the peak, even during scans
SAMPLE_S = 0.02  # interval between two measurements
HOLD_S = 0.25  # the load stays high for this long after a high measurement: lines arrive in bursts
NAP_S = 0.01  # a pause checks the load this often
LONGEST_TURN_S = 0.001  # steps follow each other without a checkpoint for this long
LEAST_NAP_S = 1e-6  # a shorter remainder of a pause is a rounding error
MAX_SAMPLE_AGE_S = 1.0  # older measurements are discarded


class IngestLoad:
    """Measures the rate of incoming lines and pauses other work while it is high. Not thread-safe.

    It does not measure CPU time of the event loop, which includes the work of the queries themselves.
    """

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        """`cpu` returns the CPU seconds that the event loop's thread has used."""
        self.cpu = cpu
        self._bytes = 0
        self._sample = -math.inf, 0  # time of the last measurement, and the bytes received until then
        self._high_until = -math.inf

    def record(self, size: int) -> None:
        """Count received bytes of lines."""
        self._bytes += size

    def is_high(self) -> bool:
        """Return whether the recent rate was high."""
        now = trio.current_time()
        before, bytes_before = self._sample
        if not 0 <= now - before < SAMPLE_S:
            if 0 <= now - before < MAX_SAMPLE_AGE_S and self._bytes - bytes_before >= HIGH_BYTES_PER_S * (now - before):
                self._high_until = now + HOLD_S
            self._sample = now, self._bytes
        return now < self._high_until <= now + HOLD_S

    async def pause(self, pause_s: float) -> None:
        """Sleep for `pause_s`, or until the load is no longer high."""
        while pause_s > LEAST_NAP_S and self.is_high():
            started = trio.current_time()
            await trio.sleep(min(pause_s, NAP_S))
            pause_s -= trio.current_time() - started
        await trio.lowlevel.checkpoint()


class Throttle:
    """Runs the steps of several scans one at a time, with a pause after each while the ingest load is high."""

    def __init__(self, load: IngestLoad) -> None:
        self._load = load
        self._lock = trio.Lock()
        self._yielded_at = -math.inf

    def begin_turn(self) -> None:
        """Note a checkpoint of the caller."""
        self._yielded_at = trio.current_time()

    async def step(self, steps: Iterator[T]) -> T:
        """Do the next step and the pause for it; return the step's result.

        Without high ingest load nothing is measured: reading the CPU time may take as long as a small step.
        """
        if not self._load.is_high():
            result = next(steps)
            if (now := trio.current_time()) - self._yielded_at > LONGEST_TURN_S:
                self._yielded_at = now
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            return result
        async with self._lock:
            started = self._load.cpu()
            result = next(steps)
            took_s = self._load.cpu() - started
            await self._load.pause(PAUSE_RATIO * took_s)
            return result


async def with_breaks(steps: Generator[None, None, T]) -> T:
    """Run `steps` with a checkpoint after each yield; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await trio.lowlevel.checkpoint()


def next_time(now: float, period_s: float) -> float:
    """Return the next multiple of a period, by trio's clock.

    >>> next_time(19.5, 10.0), next_time(20.0, 10.0)
    (20.0, 30.0)
    """
    found = (now // period_s + 1) * period_s
    return found if found > now else found + period_s  # rounded down to `now`


async def sleep_until_next(period_s: float) -> None:
    """Sleep until the next multiple of a period: at most one period, and less the first time."""
    await trio.sleep_until(next_time(trio.current_time(), period_s))
