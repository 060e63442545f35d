"""Readers of very much, and everybody else: who has the event loop."""

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from tsd.store.turns import AGE_S, LASTS_S, MUCH_BYTES_S, OTHERS, SPAN_S, Pace, Turns

STEP_S = 0.002  # of CPU


class Loop:
    """An event loop's CPU, which steps take, and lines that come in at some speed while somebody looks."""

    def __init__(self, share: float) -> None:
        """`share` of the speed from which on they are much."""
        self.share = share
        self.steps_s = 0.0
        self.looked_at = 0.0
        self.pace = Pace(lambda: self.steps_s)
        self._wanted = self.pace.wanted
        self.pace.wanted = self.wanted  # type: ignore[method-assign]

    def wanted(self) -> bool:
        """What the pace says, once all is known that has come by now."""
        now = trio.current_time()
        self.pace.came(round(self.share * MUCH_BYTES_S * (now - self.looked_at)))
        self.looked_at = now
        return self._wanted()

    def steps(self, notes: list[str], name: str, count: int = 3) -> Iterator[int]:
        """Steps that take a while and are noted."""
        for number in range(count):
            self.steps_s += STEP_S
            notes.append(name)
            yield number

    async def seen(self) -> None:
        """So that it is known how much comes in."""
        self.looked_at = trio.current_time()
        self.pace.wanted()
        await trio.sleep(2 * SPAN_S)
        self.pace.wanted()


async def read(turns: Turns, steps: Iterator[int]) -> None:
    """Work off all of some steps."""
    for number in range(3):
        assert await turns.step(steps) == number


@pytest.mark.parametrize(("share", "rests"), [(1.1, 3), (20.0, 3), (0.9, 0), (0.0, 0)])
async def test_writers_have_most_of_the_loop_if_they_want_it(
    autojump_clock: MockClock, share: float, rests: int
) -> None:
    loop = Loop(share)
    await loop.seen()
    begun = trio.current_time()
    await read(Turns(loop.pace), loop.steps([], "page"))
    assert trio.current_time() - begun == pytest.approx(rests * OTHERS * STEP_S)


async def test_what_queries_do_themselves_is_no_reason_to_rest(autojump_clock: MockClock) -> None:
    """Small ones that were asked one after the other rested for what their own requests and answers took."""
    loop = Loop(0.0)
    await loop.seen()
    for _ in range(20):
        loop.steps_s += SPAN_S
        await trio.sleep(SPAN_S)
        assert not loop.pace.wanted()


async def test_it_lasts_from_one_gust_to_the_next(autojump_clock: MockClock) -> None:
    loop = Loop(2.0)
    await loop.seen()
    loop.share = 0.0
    await trio.sleep(LASTS_S - 3 * SPAN_S)
    assert loop.pace.wanted()
    await trio.sleep(4 * SPAN_S)
    assert not loop.pace.wanted()


async def test_a_rest_ends_when_less_comes_in(autojump_clock: MockClock) -> None:
    loop = Loop(2.0)
    await loop.seen()
    begun = trio.current_time()
    loop.share = 0.0  # from now on
    await loop.pace.rest(100 * SPAN_S)
    assert trio.current_time() - begun <= 2 * SPAN_S + LASTS_S


async def test_what_was_long_ago_tells_nothing(autojump_clock: MockClock) -> None:
    loop = Loop(2.0)
    assert not loop.pace.wanted()
    await trio.sleep(2 * AGE_S)
    assert not loop.pace.wanted()
    await trio.sleep(2 * SPAN_S)
    assert loop.pace.wanted()


async def test_readers_take_turns_and_rest_together(autojump_clock: MockClock) -> None:
    notes: list[str] = []
    loop = Loop(2.0)
    await loop.seen()
    turns = Turns(loop.pace)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, turns, loop.steps(notes, "a"))
        nursery.start_soon(read, turns, loop.steps(notes, "b"))
    assert sorted(notes[:2]) == sorted(notes[2:4]) == sorted(notes[4:]) == ["a", "b"]
    assert trio.current_time() - begun == pytest.approx(6 * OTHERS * STEP_S)


async def test_a_reader_that_is_cancelled_holds_up_nobody() -> None:
    notes: list[str] = []
    loop = Loop(0.0)
    turns = Turns(loop.pace)
    with trio.CancelScope() as scope:
        scope.cancel()
        await read(turns, loop.steps(notes, "gone"))
    await read(turns, loop.steps(notes, "there"))
    assert notes[-3:] == ["there"] * 3
