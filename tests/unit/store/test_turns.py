"""Readers of very much, and everybody else: who has the event loop."""

import time
from collections.abc import Iterator

import trio
import trio.testing

from tsd.store.turns import OTHERS, Turns

STEP_S = 0.0005  # of CPU


def burn(seconds: float) -> None:
    """Use the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def steps(notes: list[str], name: str, count: int) -> Iterator[int]:
    """Steps that take a while and are noted."""
    for number in range(count):
        burn(STEP_S)
        notes.append(name)
        yield number


async def read(turns: Turns, notes: list[str], name: str, count: int = 3) -> None:
    """Work off some steps."""
    pending = steps(notes, name, count)
    for number in range(count):
        assert await turns.step(pending) == number


async def test_who_else_works_has_most_of_the_loop() -> None:
    notes: list[str] = []
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            while True:
                burn(STEP_S)
                notes.append("line")
                await trio.lowlevel.checkpoint()

        nursery.start_soon(write)
        await read(Turns(), notes, "page")
        nursery.cancel_scope.cancel()
    between = " ".join(notes).split("page")[1:]
    assert all(part.count("line") >= OTHERS - 1 for part in between), (
        notes
    )  # a step may take a little longer than a line


async def test_nobody_rests_alone() -> None:
    notes: list[str] = []
    await read(Turns(), notes, "page", 5)
    assert notes == ["page"] * 5


async def test_readers_take_turns_and_rest_together() -> None:
    notes: list[str] = []
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, turns, notes, "a")
        nursery.start_soon(read, turns, notes, "b")
    assert sorted(notes[:2]) == sorted(notes[2:4]) == sorted(notes[4:]) == ["a", "b"]


async def test_a_reader_that_is_cancelled_holds_up_nobody() -> None:
    notes: list[str] = []
    turns = Turns()
    with trio.CancelScope() as scope:
        scope.cancel()
        await read(turns, notes, "gone")
    await read(turns, notes, "there")
    assert notes[-3:] == ["there"] * 3
