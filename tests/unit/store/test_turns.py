"""Readers of very much, and everybody else: who has the event loop."""

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from tsd.store.turns import AGE_S, BUSY, LASTS_S, OTHERS, SPAN_S, Pace, Turns

STEP_S = 0.002  # of CPU


class Loop:
    """An event loop's CPU: a part of all time, by others, and what steps take."""

    def __init__(self, busy: float) -> None:
        self.busy = busy
        self.steps_s = 0.0

    def cpu(self) -> float:
        """Used so far, in seconds."""
        return trio.current_time() * self.busy + self.steps_s

    def steps(self, notes: list[str], name: str, count: int = 3) -> Iterator[int]:
        """Steps that take a while and are noted."""
        for number in range(count):
            self.steps_s += STEP_S
            notes.append(name)
            yield number

    async def seen(self, pace: Pace) -> None:
        """So that it is known how busy it is."""
        pace.wanted()
        await trio.sleep(2 * SPAN_S)
        pace.wanted()


async def read(turns: Turns, steps: Iterator[int]) -> None:
    """Work off all of some steps."""
    for number in range(3):
        assert await turns.step(steps) == number


@pytest.mark.parametrize(("busy", "rests"), [(BUSY * 1.1, 3), (BUSY * 0.9, 0), (0.0, 0)])
async def test_others_have_most_of_the_loop_if_they_want_it(autojump_clock: MockClock, busy: float, rests: int) -> None:
    loop = Loop(busy)
    pace = Pace(loop.cpu)
    await loop.seen(pace)
    begun = trio.current_time()
    await read(Turns(pace), loop.steps([], "page"))
    assert trio.current_time() - begun == pytest.approx(rests * OTHERS * STEP_S)


async def test_what_readers_do_themselves_is_no_reason_to_rest(autojump_clock: MockClock) -> None:
    loop = Loop(0.0)
    pace = Pace(loop.cpu)
    await loop.seen(pace)
    for _ in range(20):
        loop.steps_s += SPAN_S
        pace.took(SPAN_S)
        await trio.sleep(SPAN_S)
        assert not pace.wanted()


async def test_one_who_takes_half_of_the_loop_does_not_pass_for_half_idle(autojump_clock: MockClock) -> None:
    loop = Loop(BUSY * 0.9)
    pace = Pace(loop.cpu)
    await loop.seen(pace)
    assert not pace.wanted()
    for _ in range(3):
        loop.steps_s += SPAN_S
        pace.took(SPAN_S)
        await trio.sleep(2 * SPAN_S)
        assert pace.wanted()  # they had nearly all of the other half


async def test_a_rest_ends_when_others_have_less_to_do(autojump_clock: MockClock) -> None:
    loop = Loop(1.0)
    pace = Pace(loop.cpu)
    await loop.seen(pace)
    begun = trio.current_time()
    loop.busy, loop.steps_s = 0.0, begun  # from now on
    await pace.rest(100 * SPAN_S)
    assert trio.current_time() - begun <= 2 * SPAN_S + LASTS_S


async def test_what_was_long_ago_tells_nothing(autojump_clock: MockClock) -> None:
    loop = Loop(1.0)
    pace = Pace(loop.cpu)
    assert not pace.wanted()
    await trio.sleep(2 * AGE_S)
    assert not pace.wanted()
    await trio.sleep(2 * SPAN_S)
    assert pace.wanted()


async def test_readers_take_turns_and_rest_together(autojump_clock: MockClock) -> None:
    notes: list[str] = []
    loop = Loop(1.0)
    pace = Pace(loop.cpu)
    await loop.seen(pace)
    turns = Turns(pace)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, turns, loop.steps(notes, "a"))
        nursery.start_soon(read, turns, loop.steps(notes, "b"))
    assert sorted(notes[:2]) == sorted(notes[2:4]) == sorted(notes[4:]) == ["a", "b"]
    assert trio.current_time() - begun == pytest.approx(6 * OTHERS * STEP_S)


async def test_a_reader_that_is_cancelled_holds_up_nobody() -> None:
    notes: list[str] = []
    loop = Loop(0.0)
    turns = Turns(Pace(loop.cpu))
    with trio.CancelScope() as scope:
        scope.cancel()
        await read(turns, loop.steps(notes, "gone"))
    await read(turns, loop.steps(notes, "there"))
    assert notes[-3:] == ["there"] * 3
