"""Worker threads pause while ingest load is high."""

import time

import pytest
import trio
from trio.testing import MockClock

from tsd.query.workers import MAX_PAUSE_S, MIN_PAUSE_S, PAUSE_RATIO, WorkerPool
from tsd.store.scheduling import IngestLoad

PIECE_S = 0.002  # of CPU


def piece() -> str:
    """Use the CPU."""
    end = time.thread_time() + PIECE_S
    while time.thread_time() < end:
        pass
    return "done"


class Rests(IngestLoad):
    """Records pauses under a constant load."""

    def __init__(self) -> None:
        super().__init__(lambda: self.loop_s)
        self.loop_s = 0.0  # CPU of the event loop
        self.rested_s = 0.0
        self.busy = True

    def is_high(self) -> bool:
        return self.busy

    async def pause(self, owed_s: float) -> None:
        self.rested_s += owed_s
        await trio.lowlevel.checkpoint()


def work_itself(workers: WorkerPool, pace: Rests, cpu_s: float) -> None:
    """Work in the event loop."""
    with workers.charged():
        pace.loop_s += cpu_s


async def test_worker_pauses_after_each_piece_of_work() -> None:
    pace = Rests()
    threads = WorkerPool(2, pace)

    async def run_query() -> None:
        for _ in range(3):
            assert await threads.run(piece) == "done"

    async with trio.open_nursery() as clients:
        clients.start_soon(run_query)
        clients.start_soon(run_query)
    assert pace.rested_s >= 6 * PAUSE_RATIO * PIECE_S


async def test_work_in_the_event_loop_is_charged() -> None:
    pace = Rests()
    threads = WorkerPool(1, pace)
    work_itself(threads, pace, 0.1)
    await threads.run(piece)
    assert pace.rested_s >= PAUSE_RATIO * (0.1 + PIECE_S)
    work_itself(threads, pace, MAX_PAUSE_S)
    before_s = pace.rested_s
    await threads.run(lambda: None)
    assert pace.rested_s - before_s == pytest.approx(MAX_PAUSE_S)


async def test_no_pause_without_ingest_load() -> None:
    pace = Rests()
    pace.busy = False
    threads = WorkerPool(1, pace)
    work_itself(threads, pace, 1.0)
    assert await threads.run(piece) == "done"
    pace.busy = True
    await threads.run(lambda: None)
    assert pace.rested_s < PAUSE_RATIO  # what is over is forgotten


async def test_failed_work_is_charged_to_the_next() -> None:
    pace = Rests()
    threads = WorkerPool(1, pace)

    def fail() -> None:
        piece()
        raise ValueError("a page")

    def cut() -> None:
        trio.from_thread.run_sync(scope.cancel)
        piece()
        trio.from_thread.check_cancelled()

    with trio.CancelScope() as scope:
        await threads.run(cut)
    assert scope.cancelled_caught
    with pytest.raises(ValueError, match="a page"):
        await threads.run(fail)
    await threads.run(lambda: None)
    assert pace.rested_s >= 2 * PAUSE_RATIO * PIECE_S


async def test_short_pauses_are_added_up() -> None:
    pace = Rests()
    threads = WorkerPool(1, pace)
    for _ in range(3):
        work_itself(threads, pace, MIN_PAUSE_S / PAUSE_RATIO / 4)
        await threads.run(lambda: None)
        assert pace.rested_s == 0
    work_itself(threads, pace, MIN_PAUSE_S / PAUSE_RATIO / 2)
    await threads.run(lambda: None)
    assert pace.rested_s >= MIN_PAUSE_S


async def test_work_without_load_is_not_charged_later() -> None:
    pace = Rests()
    pace.busy = False
    threads = WorkerPool(1, pace)
    for _ in range(1000):
        work_itself(threads, pace, 0.001)
    pace.busy = True
    await threads.run(lambda: None)
    assert pace.rested_s == 0


async def test_old_charges_expire(autojump_clock: MockClock) -> None:
    pace = Rests()
    threads = WorkerPool(1, pace)
    work_itself(threads, pace, 1.0)
    await trio.sleep(2 * MAX_PAUSE_S)
    work_itself(threads, pace, MIN_PAUSE_S)
    await threads.run(lambda: None)
    assert pace.rested_s == pytest.approx(PAUSE_RATIO * MIN_PAUSE_S)
