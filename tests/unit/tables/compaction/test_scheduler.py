"""When a daemon compacts: on a clock that jumps, with the memory store."""

import trio
from trio.testing import MockClock

from tests.unit.compaction.parts import NOW_MS, compactor, key, made, shown
from tests.wavering import Fault, WaveringStore
from tsd.codec.rowkey import Layout
from tsd.compaction.pace import JITTER_S, LONGEST_PAUSE_S, SAFE_S, STEP_ROWS, YOUNG_S, Pace, PacedCompactor
from tsd.compaction.queue import RowQueue
from tsd.compaction.step import REST_MS
from tsd.store import Put
from tsd.store.memory import MemoryStore

ROWS = [key(0, series) for series in range(1, 101)]
TWO, ONE = "0000=2a 0010=2b", "00000010=2a2b00"
OVER_S = 3600 + SAFE_S + JITTER_S


class Paced:
    """A compactor whose queue knows of all ROWS, each with two cells."""

    def __init__(self, store: MemoryStore, pace: Pace, *, rest_ms: int = 0) -> None:
        self.store = WaveringStore(store)
        self.now_s = 0
        self.behind = False
        queue = RowQueue(Layout(), 10**6, 0)
        self.compactor = PacedCompactor(
            queue,
            compactor(self.store, rest_ms=rest_ms),
            pace,
            lambda: self.behind,
            lambda: self.now_s + int(trio.current_time()),
        )
        for _ in range(2):
            self.compactor.note([Put(row, b"t:", b"") for row in ROWS])

    async def left(self) -> int:
        """Rows that are still of two cells."""
        texts = await shown(self.store.store, ROWS)
        assert set(texts) <= {TWO, ONE}
        return texts.count(TWO)


async def paced(pace: Pace = Pace(10, 10, 1000, 2)) -> Paced:  # noqa: B008
    return Paced(await made(dict.fromkeys(ROWS, "0000=2a@5 0010=2b@6")), pace)


async def test_rows_are_due_once_their_hour_is_safely_over(autojump_clock: MockClock) -> None:
    found = await paced()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.compactor.run)
        await trio.sleep(3600 + SAFE_S - 1)
        assert await found.left() == 100
        await trio.sleep(JITTER_S + 12 * 10)
        nursery.cancel_scope.cancel()
    assert await found.left() == 10  # no more than the threshold wait: nothing is done
    statistics = found.compactor.statistics()
    assert (statistics.queued, statistics.tally.compacted) == (10, 90)


async def test_a_round_is_spread_over_its_interval(autojump_clock: MockClock) -> None:
    found = await paced(Pace(100, 0, 1000, 3600))
    found.now_s = OVER_S
    steps: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.compactor.run)
        for _ in range(10):
            await trio.sleep(10)
            steps.append(100 - await found.left())
        nursery.cancel_scope.cancel()
    assert steps == [32, 32, 32, 64, 64, 64, 96, 96, 96, 100]
    assert STEP_ROWS == 32


async def test_while_the_writer_is_behind_nothing_is_done(autojump_clock: MockClock) -> None:
    found = await paced()
    found.now_s = OVER_S
    found.behind = True
    await found.compactor.round()
    assert (await found.left(), found.store.calls) == (100, [])
    found.behind = False
    await found.compactor.round()
    assert await found.left() == 90


async def test_rows_with_times_in_the_future_keep_no_others_out(autojump_clock: MockClock) -> None:
    ahead = f"0000=2a@5 0010=2b@{NOW_MS + 10**9}"
    store = await made({row: ahead if number < 90 else "0000=2a@5 0010=2b@6" for number, row in enumerate(ROWS)})
    found = Paced(store, Pace(10, 0, 20, 3600), rest_ms=REST_MS)
    found.now_s = OVER_S
    for _ in range(5):
        await found.compactor.round()
    assert (await found.left(), found.compactor.statistics().queued) == (90, 0)
    await trio.sleep(YOUNG_S)
    found.store.calls.clear()
    await found.compactor.round()
    assert found.store.calls == ["get"]  # they are looked at again, later
    assert found.compactor.statistics().queued == 70


async def test_a_store_that_fails_is_left_alone_for_longer_and_longer(autojump_clock: MockClock) -> None:
    found = await paced()
    found.now_s = OVER_S
    found.store.always = Fault.REFUSED
    waits = []
    for _ in range(9):
        begun = trio.current_time()
        await found.compactor.round()
        waits.append(trio.current_time() - begun)
    assert all(low <= wait <= 2 * low for wait, low in zip(waits, [0.5, 1, 2, 4, 8, 16, 30, 30, 30], strict=True))
    assert LONGEST_PAUSE_S == 60
    assert found.compactor.statistics().queued == 100
    assert found.compactor.statistics().tally.errors == {"read": 9}
    found.store.always = Fault.NONE
    await found.compactor.round()
    assert await found.left() == 90
