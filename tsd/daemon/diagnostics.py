"""Diagnostics of the process: what its tasks and threads wait for, malloc tuning, and restarts of background tasks.

Task dumps have names of functions and line numbers, and no values, which may hold tokens.

glibc's malloc returns memory at the end of a heap to the kernel as soon as 128 KiB are free, and maps large blocks
separately. A scan that reads pages of megabytes then causes page faults for each of them. That took half of its time
in a measurement. So the heap keeps some megabytes.

glibc creates up to eight heaps per core. After hours of ingest on two cores, seven of them kept 4 to 8 MiB each. So the
process has one heap. Threads rarely compete for it, because they hold the GIL: with two heaps, ingest took as much CPU
time, and a million series took 12 MiB more.

Free memory inside the heap is only returned by malloc_trim(). After a million new series that was 50 MiB, an eighth of
the process, and took 3 ms.
"""

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from tsd.api.stats import resident_bytes
from tsd.lazy import LazyLogger
from tsd.store.scheduling import sleep_until_next
from tsd.store.threads import run_in_thread

log = LazyLogger(__name__)


MAX_LINES = 100  # most lines of a dump in the log
THREAD_FRAMES = 8  # innermost frames shown of each thread
_TRIO = str(Path(trio.__file__).parent)


def log_tasks() -> None:
    """Log where all tasks and threads wait, also without events of the level info: it was asked for."""
    root = trio.lowlevel.current_root_task()
    tasks = list(task_lines(root)) if root is not None else []
    omitted = len(tasks) - MAX_LINES
    log.warning(
        "tasks.dumped",
        tasks=tasks[:MAX_LINES],
        threads=list(thread_lines()),
        omitted=omitted if omitted > 0 else None,
    )


def task_lines(task: trio.lowlevel.Task) -> Iterator[str]:
    """Yield the call stacks of a task and its children, outermost call first, indented by depth.

    Siblings with the same stack are one line with their number.
    """
    yield _name(_frames(task.coro))
    for nursery in task.child_nurseries:
        same = Counter("\n".join(f"  {line}" for line in task_lines(child)) for child in nursery.child_tasks)
        for lines, count in same.items():
            first, *rest = lines.split("\n")
            yield first if count == 1 else f"{first} ({count} alike)"
            yield from rest


def thread_lines() -> Iterator[str]:
    """Yield the other threads, except idle ones of trio, with their call stacks."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread is threading.current_thread() or frame is None or frame.f_code.co_name == "_work":
            continue
        calls: list[FrameType] = []
        while frame is not None and len(calls) < THREAD_FRAMES:
            calls.append(frame)
            frame = frame.f_back
        yield f"{thread.name}: {' > '.join(_call(call) for call in reversed(calls))}"


def _name(frames: Iterator[FrameType]) -> str:
    """Return a call stack with only the first call inside trio."""
    calls = []
    for frame in frames:
        calls.append(_call(frame))
        if frame.f_code.co_filename.startswith(_TRIO) and len(calls) > 1:
            break
    return " > ".join(calls)


def _call(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}:{frame.f_lineno}"


def _frames(waiting: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine, and of what it awaits or iterates over."""
    while waiting is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(waiting, f"{kind}_frame")), None)
        if kind is None:
            return
        if (frame := getattr(waiting, f"{kind}_frame")) is not None:
            yield frame
        waiting = getattr(waiting, f"{kind}_yieldfrom" if kind == "gi" else f"{kind}_await")


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
KEPT_BYTES = 12 << 20  # free memory at the end of the heap
LARGEST_BYTES = 16 << 20  # larger blocks are mapped separately
HEAPS = 1

SAMPLE_S = 2.0  # between two samples of much free memory
SELDOM = 30  # times as long between two samples of little free memory: an idle daemon wakes up seldom
SAMPLES = 7  # longer than a write window, because the next window reuses what this one frees
MIN_TRIM_BYTES = 8 << 20


class _Mallinfo(ctypes.Structure):
    """malloc.h's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def tune_malloc() -> bool:
    """Have malloc keep free memory in one heap. False if the C library is not glibc.

    Must be called before threads start.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        wanted = ((M_ARENA_MAX, HEAPS), (M_TRIM_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, LARGEST_BYTES))
        return all(mallopt(option, value) for option, value in wanted)
    return False


class Allocator:
    """glibc's malloc from version 2.33 on. Other C libraries do not report free memory: it is 0."""

    def __init__(self) -> None:
        self._mallinfo = None
        library = ctypes.CDLL(None)
        with suppress(AttributeError):
            self._trim, self._mallinfo = library.malloc_trim, library.mallinfo2
            self._trim.argtypes = [ctypes.c_size_t]
            self._mallinfo.restype = _Mallinfo

    @property
    def is_known(self) -> bool:
        """Whether free memory is reported."""
        return self._mallinfo is not None

    def free_bytes(self) -> int:
        """Return the free bytes in the heap, also those that the kernel has. Walks the free lists: call it in a
        thread."""
        return self._mallinfo().fordblks if self._mallinfo is not None else 0

    def trim(self) -> None:
        """Return free memory to the kernel, except KEPT_BYTES. `free_bytes` still counts it."""
        self._trim(KEPT_BYTES)


async def trim_memory(allocator: Allocator, sample_s: float = SAMPLE_S) -> None:
    """Periodically `malloc_trim()` memory that stayed free over several samples. Runs until cancelled."""
    samples = 0  # successive ones with much free memory
    lowest = 0  # resident memory since the last trim. Memory above it may have been used and freed again
    while allocator.is_known:
        await sleep_until_next(sample_s if samples else SELDOM * sample_s)
        with suppress(OSError):  # without a file descriptor left to read /proc: skip this sample
            resident = resident_bytes()
            lowest = min(lowest, resident)
            much = min(await run_in_thread(allocator.free_bytes), resident - lowest)
            samples = samples + 1 if much > MIN_TRIM_BYTES else 0
            if samples == SAMPLES:
                samples = 0
                await trio.to_thread.run_sync(allocator.trim)
                lowest = resident_bytes()


Task = Callable[[], Awaitable[None]]
MAX_RESTART_DELAY_S = 60.0


class BackgroundTasks:
    """Restarts background tasks after unexpected errors. The daemon serves and journals without them."""

    def __init__(self) -> None:
        self.failures = 0

    def restarting(self, name: str, task: Task) -> Task:
        """Return a task that is restarted after an error, with a growing delay."""

        async def run() -> None:
            delay_s = 1.0
            while True:
                try:
                    await task()
                except Exception:  # the daemon continues without this task
                    self.failures += 1
                    log.exception("background_task.failed", task=name, restarting=True, delay_s=delay_s)
                else:
                    return
                await trio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_RESTART_DELAY_S)

        return run
