"""Worker threads for decoding, merging and writing answers, which pause while the ingest load is high."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import trio

from tsd.store.scheduling import NAP_S, IngestLoad

T = TypeVar("T")

PAUSE_RATIO = 6  # a pause is this multiple of the CPU time used, while ingest load is high
MIN_PAUSE_S = 0.002  # shorter pauses are added up first
MAX_PAUSE_S = 2.0  # a query pauses no longer on account of earlier queries
SMALL = 5_000  # points that are processed without a thread
SMALL_PAGE = 64  # cells that are decoded without a thread, which would cost as much
_FREE_OF_CHARGE = nullcontext()
_FREE = trio.CapacityLimiter(math.inf)


class WorkerPool:
    """Worker threads that pause while ingest load is high. Pauses that a query leaves due are made by the next one."""

    def __init__(self, threads: int, load: IngestLoad) -> None:
        """`threads`: largest number of parallel calls."""
        self._slots = trio.CapacityLimiter(threads)
        self._pause_lock = trio.Lock()
        self._load = load
        self._due_s = 0.0
        self._charged_at = 0.0  # time of the last charge

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in a thread, with pauses before and after it."""
        used_s = 0.0

        def timed() -> T:
            nonlocal used_s
            begun = time.thread_time()
            try:
                return work()
            finally:
                used_s = time.thread_time() - begun

        try:
            self._slots.acquire_nowait()  # the thread is a checkpoint: a second one would take as long as small work
        except trio.WouldBlock:
            await self._slots.acquire()
        try:
            await self._pause()
            try:
                made = await trio.to_thread.run_sync(timed, limiter=_FREE)
            finally:
                self._charge(used_s)
            await self._pause()
        finally:
            self._slots.release()
        return made

    async def run_sized(self, points: int, work: Callable[[], T]) -> T:
        """Return what `work` returns; in a thread if it has many points."""
        if points <= SMALL:
            return self.run_here(work)
        return await self.run(work)

    def run_here(self, work: Callable[[], T]) -> T:
        """Return what small work returns, run in the event loop itself, as `charged` counts it."""
        with self.charged():
            return work()

    def charged(self) -> AbstractContextManager[None]:
        """Count work in the event loop itself: it extends the next pause. Without high ingest load nothing is measured:
        reading the CPU time would take as long as a small piece of work."""
        if self._load.is_high():
            return self._charging()
        self._due_s = 0.0
        return _FREE_OF_CHARGE

    @contextmanager
    def _charging(self) -> Iterator[None]:
        begun_s = self._load.cpu()
        try:
            yield
        finally:
            self._charge(self._load.cpu() - begun_s)

    def _charge(self, used_s: float) -> None:
        """Extend the next pause for used CPU time, only under high ingest load. Old pauses expire."""
        now = trio.current_time()
        if not self._load.is_high():
            self._due_s = 0.0
        elif now - self._charged_at > MAX_PAUSE_S:
            self._due_s = PAUSE_RATIO * used_s
        else:
            self._due_s += PAUSE_RATIO * used_s
        self._charged_at = now

    async def _pause(self) -> None:
        """Make the pause that is due. Only one task pauses at a time."""
        if self._due_s < MIN_PAUSE_S:
            return
        async with self._pause_lock:
            self._due_s = min(self._due_s, MAX_PAUSE_S)
            while self._due_s > 0 and self._load.is_high():
                nap_s = min(self._due_s, NAP_S)
                await self._load.pause(nap_s)
                self._due_s -= nap_s
            self._due_s = 0.0


def check_cancelled() -> None:
    """Raise Cancelled in a thread of a cancelled query."""
    if not trio.lowlevel.in_trio_run():  # small work runs in the event loop without interruption
        trio.from_thread.check_cancelled()
