"""The threads of queries, and everybody else: who has the processor."""

import time

import pytest
import trio
from trio.testing import MockClock

from tsd.query.threads import LEAST_S, MOST_S, OTHERS, Threads
from tsd.store.turns import Pace

PIECE_S = 0.002  # of CPU


def piece() -> str:
    """Use the processor."""
    end = time.thread_time() + PIECE_S
    while time.thread_time() < end:
        pass
    return "done"


class Rests(Pace):
    """Only notes how long is rested, while others want the loop."""

    def __init__(self) -> None:
        super().__init__(lambda: self.loop_s)
        self.loop_s = 0.0  # CPU of the event loop
        self.rested_s = 0.0
        self.busy = True

    def wanted(self) -> bool:
        return self.busy

    async def rest(self, owed_s: float) -> None:
        self.rested_s += owed_s
        await trio.lowlevel.checkpoint()


def work_itself(threads: Threads, pace: Rests, cpu_s: float) -> None:
    """As the event loop does."""
    with threads.noted():
        pace.loop_s += cpu_s


async def test_others_have_their_part_after_each_piece_of_work() -> None:
    pace = Rests()
    threads = Threads(2, pace)

    async def ask() -> None:
        for _ in range(3):
            assert await threads.run(piece) == "done"

    async with trio.open_nursery() as askers:
        askers.start_soon(ask)
        askers.start_soon(ask)
    assert pace.rested_s >= 6 * OTHERS * PIECE_S


async def test_the_loops_own_work_is_made_good_for() -> None:
    pace = Rests()
    threads = Threads(1, pace)
    work_itself(threads, pace, 0.1)
    await threads.run(piece)
    assert pace.rested_s >= OTHERS * (0.1 + PIECE_S)
    work_itself(threads, pace, MOST_S)
    before_s = pace.rested_s
    await threads.run(lambda: None)
    assert pace.rested_s - before_s == pytest.approx(MOST_S)


async def test_nobody_rests_where_nobody_wants_the_loop() -> None:
    pace = Rests()
    pace.busy = False
    threads = Threads(1, pace)
    work_itself(threads, pace, 1.0)
    assert await threads.run(piece) == "done"
    pace.busy = True
    await threads.run(lambda: None)
    assert pace.rested_s < OTHERS  # what is over is forgotten


async def test_what_failed_or_was_cancelled_is_paid_for_by_the_next() -> None:
    pace = Rests()
    threads = Threads(1, pace)

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
    assert pace.rested_s >= 2 * OTHERS * PIECE_S


async def test_little_is_owed_until_more_has_come_together() -> None:
    pace = Rests()
    threads = Threads(1, pace)
    for _ in range(3):
        work_itself(threads, pace, LEAST_S / OTHERS / 4)
        await threads.run(lambda: None)
        assert pace.rested_s == 0
    work_itself(threads, pace, LEAST_S / OTHERS / 2)
    await threads.run(lambda: None)
    assert pace.rested_s >= LEAST_S


async def test_small_work_on_an_idle_machine_is_not_paid_for_later() -> None:
    pace = Rests()
    pace.busy = False
    threads = Threads(1, pace)
    for _ in range(1000):
        work_itself(threads, pace, 0.001)
    pace.busy = True
    await threads.run(lambda: None)
    assert pace.rested_s == 0


async def test_nor_is_work_of_another_time(autojump_clock: MockClock) -> None:
    pace = Rests()
    threads = Threads(1, pace)
    work_itself(threads, pace, 1.0)
    await trio.sleep(2 * MOST_S)
    work_itself(threads, pace, LEAST_S)
    await threads._rest()
    assert pace.rested_s == pytest.approx(OTHERS * LEAST_S)
