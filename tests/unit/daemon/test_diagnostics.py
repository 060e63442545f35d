"""Task dumps, malloc tuning, and restarts of background tasks."""

import errno
import os
import resource
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.running import running
from tsd.daemon.diagnostics import (
    Allocator,
    BackgroundTasks,
    log_tasks,
    task_lines,
    thread_lines,
    trim_memory,
)


async def wait_inside(event: trio.Event) -> None:
    await event.wait()


async def wait_for(event: trio.Event) -> None:
    await wait_inside(event)


async def test_task_lines_end_with_the_first_call_of_trio() -> None:
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait_for, event)
        nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        _, *inner = task_lines(trio.lowlevel.current_task())
        event.set()
        nursery.cancel_scope.cancel()
    assert len(inner) == 2
    [alike] = [line for line in inner if "wait_for" in line]
    assert alike.startswith("  test_diagnostics.wait_for:")
    assert " > test_diagnostics.wait_inside:" in alike
    assert " > _sync.Event.wait:" in alike
    assert alike.endswith(" (3 alike)")
    assert any(line.startswith("  _timeouts.sleep_forever:") for line in inner)


async def test_dump_of_many_tasks_is_limited() -> None:
    async def deep(left: int) -> None:
        async with trio.open_nursery() as nursery:
            if left:
                nursery.start_soon(deep, left - 1)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deep, 115)
        await trio.testing.wait_all_tasks_blocked()
        with capture_logs() as logs:
            log_tasks()
        nursery.cancel_scope.cancel()
    [dump] = logs
    assert dump["event"] == "tasks.dumped"
    assert 10 < len(dump["tasks"]) < 115
    assert len(dump["tasks"]) + dump["omitted"] >= 115


async def test_thread_lines_have_the_calls_of_a_busy_thread() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hop() -> None:
        begun.set()
        go_on.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, hop)
        await trio.to_thread.run_sync(begun.wait)
        lines = [line for line in thread_lines() if "hop" in line]
        go_on.set()
    assert len(lines) == 1
    assert "test_diagnostics.test_thread_lines_have_the_calls_of_a_busy_thread.<locals>.hop:" in lines[0]
    assert " > threading.Event.wait:" in lines[0]


needs_glibc = pytest.mark.skipif(not Allocator().is_known, reason="malloc is not that of glibc 2.33 or newer")

ALLOCATE = """
import resource
from tsd.daemon.diagnostics import tune_malloc
if {kept}:
    assert tune_malloc()
for _ in range(50):
    blocks = [bytes(100_000) for _ in range(100)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(*, kept: bool) -> int:
    words = [sys.executable, "-c", ALLOCATE.format(kept=kept)]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


@needs_glibc
def test_reused_memory_is_not_faulted_in_again() -> None:
    again = 50 * 100 * 100_000 // resource.getpagesize()
    assert faults(kept=True) < again // 4


MANY_THREADS = """
import ctypes, os, threading
from tsd.daemon.diagnostics import tune_malloc
if {kept}:
    assert tune_malloc()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fdopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
start = threading.Barrier(12)
def work():
    start.wait()
    blocks = [libc.malloc(1000) for _ in range(1000)]
    start.wait()
    for block in blocks:
        libc.free(block)
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
read, write = os.pipe()
file = ctypes.c_void_p(libc.fdopen(write, b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(os.read(read, 1 << 20).count(b"<heap nr="))
"""


def heaps(*, kept: bool) -> int:
    words = [sys.executable, "-c", MANY_THREADS.format(kept=kept)]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


@needs_glibc
@pytest.mark.slow
def test_threads_share_few_heaps() -> None:
    assert heaps(kept=True) < heaps(kept=False) / 2


HOLES = """
import os
import resource
import trio
from tsd.daemon.diagnostics import MIN_TRIM_BYTES, Allocator, trim_memory, tune_malloc
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
assert tune_malloc()
allocator = Allocator()
blocks = [b"x" * 10_000 for _ in range(10_000)]
most = resident()
blocks = blocks[::100]  # the memory between them is free, and not at the end of a heap
assert allocator.free_bytes() > 90_000_000 > MIN_TRIM_BYTES, allocator.free_bytes()
assert resident() > most - 5_000_000
async def until_trimmed():
    async with trio.open_nursery() as nursery:
        if {trim}:
            nursery.start_soon(trim_memory, allocator, 0.001)
        while {trim} and resident() > most - 80_000_000:
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
trio.run(until_trimmed)
print(most - resident())
"""


def trimmed_bytes(*, trim: bool) -> int:
    words = [sys.executable, "-c", HOLES.replace("{trim}", str(trim))]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout)


@needs_glibc
@pytest.mark.slow
def test_free_memory_between_used_blocks_is_trimmed() -> None:
    assert trimmed_bytes(trim=True) > 80_000_000
    assert trimmed_bytes(trim=False) < 5_000_000


AGAIN = """
import trio
from tsd.daemon.diagnostics import SAMPLES, Allocator, trim_memory, tune_malloc
assert tune_malloc()
class Counting(Allocator):
    trims = samples = 0
    def trim(self):
        self.trims += 1
        super().trim()
    def free_bytes(self):
        self.samples += 1
        return super().free_bytes()
allocator = Counting()
blocks = [b"x" * 10_000 for _ in range(10_000)][::100]
async def sample(count):
    wanted = allocator.samples + count
    while allocator.samples < wanted:
        await trio.sleep(0.001)
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trim_memory, allocator, 0.001)
        await sample(5 * SAMPLES)
        assert allocator.trims == 1, allocator.trims  # trimmed memory is not trimmed again
        used = [b"y" * 10_000 for _ in range(9_000)]
        await sample(2 * SAMPLES)
        del used
        await sample(2 * SAMPLES)
        assert allocator.trims == 2, allocator.trims
        nursery.cancel_scope.cancel()
trio.run(main)
"""


@needs_glibc
@pytest.mark.slow
def test_trimmed_memory_is_trimmed_again_only_after_use() -> None:
    subprocess.run([sys.executable, "-c", AGAIN], check=True, timeout=60)


async def test_sample_of_memory_without_file_descriptors_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the task ended with the error, and was restarted."""
    sampled = trio.Event()
    errors = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    class Known(Allocator):  # with every C library
        is_known = True

        def free_bytes(self) -> int:
            return 0

    def read() -> int:
        if errors:
            raise errors.pop()
        sampled.set()
        return 0

    monkeypatch.setattr("tsd.daemon.diagnostics.resident_bytes", read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trim_memory, Known(), 0.001)
        await sampled.wait()
        nursery.cancel_scope.cancel()


async def test_failed_task_is_restarted_and_counted(autojump_clock: MockClock) -> None:
    """Regression: one error in reading a certificate's names ended the daemon."""
    began: list[float] = []

    async def fail() -> None:
        began.append(trio.current_time())
        if len(began) < 10:
            raise ZeroDivisionError("injected")

    tasks = BackgroundTasks()
    with capture_logs() as logs:
        await tasks.restarting("certificate", fail)()
    assert tasks.failures == 9
    assert [(line["event"], line["task"]) for line in logs] == [("background_task.failed", "certificate")] * 9
    pauses = [after - before for before, after in pairwise(began)]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-2] == pauses[-1]  # up to a limit


async def test_daemon_serves_while_a_task_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr("tsd.tables.opentsdb.layout.watch_counters", fail)
    async with running(tmp_path) as daemon, daemon.client() as client:
        assert await client.send_lines(b"put m 1500000000 1 a=b\n") == b"synced 1\n"
        assert (await client.stats())["rpc.exceptions"] == 1


async def test_cancelled_or_interrupted_task_is_not_restarted(autojump_clock: MockClock) -> None:
    tasks = BackgroundTasks()
    with trio.move_on_after(5) as scope:
        await tasks.restarting("host", trio.sleep_forever)()
    assert scope.cancelled_caught
    assert tasks.failures == 0

    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await tasks.restarting("host", interrupted)()
