"""Share of the event loop between ingest and scans."""

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from tsd.store.scheduling import HIGH_BYTES_PER_S, HOLD_S, MAX_SAMPLE_AGE_S, PAUSE_RATIO, SAMPLE_S, IngestLoad, Throttle

STEP_S = 0.002  # of CPU


class Loop:
    """An event loop with CPU time of steps, and ingest at a constant rate between measurements."""

    def __init__(self, share: float) -> None:
        """`share` is the rate of incoming bytes, as a share of the rate that counts as high."""
        self.share = share
        self.steps_s = 0.0
        self.looked_at = 0.0
        self.load = IngestLoad(lambda: self.steps_s)
        self._is_high = self.load.is_high
        self.load.is_high = self.is_high_now  # type: ignore[method-assign]

    def is_high_now(self) -> bool:
        """Record what has arrived by now, and return whether the load is high."""
        now = trio.current_time()
        self.load.record(round(self.share * HIGH_BYTES_PER_S * (now - self.looked_at)))
        self.looked_at = now
        return self._is_high()

    def steps(self, notes: list[str], name: str, count: int = 3) -> Iterator[int]:
        """Yield steps that take CPU time, and note the name of each."""
        for number in range(count):
            self.steps_s += STEP_S
            notes.append(name)
            yield number

    async def seen(self) -> None:
        """Let the load be measured: that needs two samples."""
        self.looked_at = trio.current_time()
        self.load.is_high()
        await trio.sleep(2 * SAMPLE_S)
        self.load.is_high()


async def read(turns: Throttle, steps: Iterator[int]) -> None:
    """Run all steps of a scan."""
    for number in range(3):
        assert await turns.step(steps) == number


@pytest.mark.parametrize(("share", "rests"), [(1.1, 3), (20.0, 3), (0.9, 0), (0.0, 0)])
async def test_high_ingest_load_pauses_scans(autojump_clock: MockClock, share: float, rests: int) -> None:
    loop = Loop(share)
    await loop.seen()
    begun = trio.current_time()
    await read(Throttle(loop.load), loop.steps([], "page"))
    assert trio.current_time() - begun == pytest.approx(rests * PAUSE_RATIO * STEP_S)


async def test_query_work_does_not_count_as_load(autojump_clock: MockClock) -> None:
    """Regression: short queries, one after the other, paused for the CPU time of their own requests and answers."""
    loop = Loop(0.0)
    await loop.seen()
    for _ in range(20):
        loop.steps_s += SAMPLE_S
        await trio.sleep(SAMPLE_S)
        assert not loop.load.is_high()


async def test_high_load_is_held_between_bursts(autojump_clock: MockClock) -> None:
    loop = Loop(2.0)
    await loop.seen()
    loop.share = 0.0
    await trio.sleep(HOLD_S - 3 * SAMPLE_S)
    assert loop.load.is_high()
    await trio.sleep(4 * SAMPLE_S)
    assert not loop.load.is_high()


async def test_pause_ends_when_the_load_falls(autojump_clock: MockClock) -> None:
    loop = Loop(2.0)
    await loop.seen()
    begun = trio.current_time()
    loop.share = 0.0  # from now on
    await loop.load.pause(100 * SAMPLE_S)
    assert trio.current_time() - begun <= 2 * SAMPLE_S + HOLD_S


async def test_old_samples_are_discarded(autojump_clock: MockClock) -> None:
    loop = Loop(2.0)
    assert not loop.load.is_high()
    await trio.sleep(2 * MAX_SAMPLE_AGE_S)
    assert not loop.load.is_high()
    await trio.sleep(2 * SAMPLE_S)
    assert loop.load.is_high()


async def test_concurrent_scans_alternate_and_share_pauses(autojump_clock: MockClock) -> None:
    notes: list[str] = []
    loop = Loop(2.0)
    await loop.seen()
    turns = Throttle(loop.load)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, turns, loop.steps(notes, "a"))
        nursery.start_soon(read, turns, loop.steps(notes, "b"))
    assert sorted(notes[:2]) == sorted(notes[2:4]) == sorted(notes[4:]) == ["a", "b"]
    assert trio.current_time() - begun == pytest.approx(6 * PAUSE_RATIO * STEP_S)


async def test_cancelled_scan_does_not_block_others() -> None:
    notes: list[str] = []
    loop = Loop(0.0)
    turns = Throttle(loop.load)
    with trio.CancelScope() as scope:
        scope.cancel()
        await read(turns, loop.steps(notes, "gone"))
    await read(turns, loop.steps(notes, "there"))
    assert notes[-3:] == ["there"] * 3


async def test_a_short_step_after_a_checkpoint_does_not_wait_for_others(autojump_clock: MockClock) -> None:
    turns, notes = Throttle(IngestLoad()), list[str]()

    async def note() -> None:
        notes.append("other")

    async with trio.open_nursery() as nursery:
        await trio.sleep(1)
        turns.begin_turn()
        nursery.start_soon(note)
        assert await turns.step(iter((7,))) == 7
        assert not notes
