"""The threads of queries, and everybody else: who has the processor."""

import time

import pytest
import trio

from tsd.query.threads import OTHERS, Threads
from tsd.store.turns import Pace

PIECE_S = 0.002  # of CPU


def piece() -> str:
    """Use the processor."""
    end = time.thread_time() + PIECE_S
    while time.thread_time() < end:
        pass
    return "done"


class Rests(Pace):
    """Only notes how long each rest is to be."""

    def __init__(self) -> None:
        super().__init__()
        self.owed: list[float] = []

    async def rest(self, owed_s: float) -> None:
        self.owed.append(owed_s)
        await trio.lowlevel.checkpoint()


async def test_others_have_their_part_after_each_piece_of_work() -> None:
    pace = Rests()
    threads = Threads(2, pace)

    async def ask() -> None:
        for _ in range(3):
            assert await threads.run(piece) == "done"

    async with trio.open_nursery() as askers:
        askers.start_soon(ask)
        askers.start_soon(ask)
    assert len(pace.owed) == 6
    assert min(pace.owed) >= OTHERS * PIECE_S


async def test_the_loops_own_work_is_made_good_for_with_the_next() -> None:
    pace = Rests()
    threads = Threads(1, pace)
    threads.took(1000.0)
    await threads.run(piece)
    await threads.run(piece)
    first, second = pace.owed
    assert first >= OTHERS * 1000.0 > second


async def test_errors_come_through_and_hold_up_nobody() -> None:
    threads = Threads(1, Rests())

    def fail() -> None:
        raise ValueError("a page")

    with pytest.raises(ValueError, match="a page"):
        await threads.run(fail)
    assert await threads.run(piece) == "done"
