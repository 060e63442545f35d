"""When a daemon compacts, on an autojump clock."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from tests.flaky_store import Fault, FlakyStore
from tests.property.compaction_schedules import Graves
from tests.unit.tables.compaction.parts import NOW_MS, TABLE, compactor, key, made, shown
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rowkey import LAST_BASE, KeyLayout
from tsd.codec.putline import HOUR_S
from tsd.store import Family, Put, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.compaction.compactor import SETTLE_MS
from tsd.tables.opentsdb.compaction.queue import RowQueue
from tsd.tables.opentsdb.compaction.scheduler import (
    JITTER_S,
    RECENT_S,
    SAFE_S,
    CompactionRate,
    CompactionScheduler,
)

ROWS = [key(0, series) for series in range(1, 101)]
TWO, ONE = "0000=2a 0010=2b", "00000010=2a2b00"
OVER_S = 3600 + SAFE_S + JITTER_S


async def test_rows_with_late_points_beyond_the_limit_are_compacted_at_once(autojump_clock: MockClock) -> None:
    """Regression: they were left to `tsd compact`, though the queue of all other rows had room."""
    late = RowQueue(KeyLayout(), len(ROWS) // 2, LAST_BASE)
    store = await made(dict.fromkeys(ROWS, "0000=2a@5 0010=2b@6"))
    found = Scheduled(store, CompactionRate(10, 0, 1000, 3600), late=late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.scheduler.run)
        await trio.sleep(OVER_S + 60)
        await found.write_late(2)
        await trio.sleep(2 * HOUR_S)
        assert await found.cells() == {1}
        assert found.scheduler.statistics().dropped == 0
        nursery.cancel_scope.cancel()


class Scheduled:
    """A scheduler whose queue has rows with two cells each."""

    def __init__(
        self,
        store: MemoryStore,
        rate: CompactionRate,
        rows: Sequence[bytes] = ROWS,
        *,
        settle_ms: int = 0,
        recent_s: float = RECENT_S,
        late: RowQueue | None = None,
    ) -> None:
        self.store = FlakyStore(store)
        self.now_s = 0
        self.behind = False
        queue = RowQueue(KeyLayout(), 10**6, -3600)
        self.scheduler = CompactionScheduler(
            queue,
            compactor(self.store, settle_ms=settle_ms),
            rate,
            lambda: self.behind,
            lambda: self.now_s + int(trio.current_time()),
            late=late,
            recent_s=recent_s,
        )
        for _ in range(2):
            self.scheduler.record([Put(row, b"t:", b"") for row in rows])

    async def left(self) -> int:
        """Return the number of rows with two cells."""
        texts = await shown(self.store.store, ROWS)
        assert set(texts) <= {TWO, ONE}
        return texts.count(TWO)

    async def write_late(self, offset: int) -> None:
        """Write a point of each row."""
        puts = [Put(row, COLUMN + bytes((offset >> 4, offset << 4 & 0xF0)), b"\x2c") for row in ROWS]
        await self.store.put(TABLE, puts)
        self.scheduler.record(puts)

    async def cells(self) -> set[int]:
        """Return how many cells rows have."""
        found = await self.store.store.get(TABLE, ROWS)
        return {len(cells) for cells in found.values()}


async def scheduled() -> Scheduled:
    return Scheduled(await made(dict.fromkeys(ROWS, "0000=2a@5 0010=2b@6")), CompactionRate(10, 10, 1000, 2))


async def test_rows_are_compacted_some_minutes_after_their_hour(autojump_clock: MockClock) -> None:
    found = await scheduled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.scheduler.run)
        await trio.sleep(3600 + SAFE_S - 1)
        assert await found.left() == 100
        await trio.sleep(JITTER_S + 12 * 10)
        nursery.cancel_scope.cancel()
    assert await found.left() == 10  # not more than the threshold
    statistics = found.scheduler.statistics()
    assert (statistics.queued, statistics.compaction.compacted) == (10, 90)


async def compacted_meanwhile(cells: int, *, rewrites: bool) -> list[int]:
    """Return the numbers of compacted rows of ten moments of a round. Each row has so many cells."""
    text = " ".join(f"{offset_s << 4:04x}=2a@5" for offset_s in range(cells))
    store = await made(dict.fromkeys(ROWS, text))
    found = Scheduled(store, CompactionRate(100, 0, 1000, 3600))
    found.now_s = OVER_S
    found.store.atomic_rewrites = store.atomic_rewrites if rewrites else None
    seen: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.scheduler.run)
        for _ in range(10):
            await trio.sleep(10)
            seen.append(found.scheduler.statistics().compaction.compacted)
        nursery.cancel_scope.cancel()
    return seen


@pytest.mark.parametrize(("cells", "rewrites"), [(2, True), (2, False), (100, True)])
async def test_steps_of_a_round_are_spread_over_its_interval(
    autojump_clock: MockClock, cells: int, rewrites: bool
) -> None:
    seen = await compacted_meanwhile(cells, rewrites=rewrites)
    assert 0 < seen[0] < len(ROWS)
    assert seen == sorted(seen)
    assert seen[-1] == len(ROWS)


async def test_other_tasks_run_while_an_hour_is_closed(autojump_clock: MockClock) -> None:
    found = Scheduled(await made({}), CompactionRate(10, 10, 1000, 2), ())
    found.scheduler.record([Put(key(0, metric=metric), b"t:", b"") for metric in range(1, 51)])
    found.now_s = OVER_S
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await found.scheduler.round()
        nursery.cancel_scope.cancel()
    assert passes > 25


async def test_steps_are_larger_where_few_cells_are_replaced_at_once(autojump_clock: MockClock) -> None:
    few = await compacted_meanwhile(2, rewrites=True)
    many = await compacted_meanwhile(100, rewrites=True)
    deleted_one_by_one = await compacted_meanwhile(2, rewrites=False)
    assert len(set(few)) < len(set(many)) == len(set(deleted_one_by_one))


async def test_neighbours_are_compacted_together_where_requests_are_joined(autojump_clock: MockClock) -> None:
    store = Graves(lambda: NOW_MS)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    groups = [[key(0, series, metric=metric) for series in range(1, 41)] for metric in (1, 2)]
    cells = [Put(row, column, b"*") for row in (*groups[0], *groups[1]) for column in (b"t:\0\0", b"t:\0\x10")]
    await store.put(TABLE, cells, time_ms=5)
    found = Scheduled(store, CompactionRate(10, 0, 40, 3600), ())
    found.store.stamped_cells = store.stamped_cells
    found.now_s = OVER_S
    found.scheduler.record(cells)
    await found.scheduler.round()
    texts = [await shown(store, rows) for rows in groups]
    assert sorted(sorted(set(each)) for each in texts) == [["00000010=2a2a00"], ["0000=2a 0010=2a"]]


async def test_steps_are_larger_where_each_makes_requests(autojump_clock: MockClock) -> None:
    """Rows of 40 cells: more of them are compacted together than where a step is one call within the process."""
    calls = []
    for with_requests in (True, False):
        store = Graves(lambda: NOW_MS)
        await store.create_tables([Table(TABLE, (Family(b"t"),))])
        cells = [Put(row, b"t:" + (at << 4).to_bytes(2, "big"), b"*") for row in ROWS for at in range(40)]
        await store.put(TABLE, cells, time_ms=5)
        found = Scheduled(store, CompactionRate(10, 0, len(ROWS), 3600), ())
        if with_requests:
            found.store.stamped_cells = store.stamped_cells
        found.now_s = OVER_S
        found.scheduler.record(cells)
        await found.scheduler.round()
        assert found.scheduler.statistics().compaction.compacted == len(ROWS)
        calls.append(found.store.calls.count("get"))
    assert calls[0] < calls[1]


async def test_rows_of_several_intervals_are_compacted_together_where_steps_make_requests(
    autojump_clock: MockClock,
) -> None:
    """At the same rate: the next round comes later."""
    rows = [key(0, series) for series in range(1, 401)]
    rounds = []
    for with_requests in (True, False):
        store = Graves(lambda: NOW_MS)
        await store.create_tables([Table(TABLE, (Family(b"t"),))])
        cells = [Put(row, column, b"*") for row in rows for column in (b"t:\0\0", b"t:\0\x10")]
        await store.put(TABLE, cells, time_ms=5)
        found = Scheduled(store, CompactionRate(10, 10, 1000, 2), ())
        if with_requests:
            found.store.stamped_cells = store.stamped_cells
        found.now_s = OVER_S
        found.scheduler.record(cells)
        seen = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.scheduler.run)
            for _ in range(100):
                await trio.sleep(10)
                seen.append(found.scheduler.statistics().compaction.compacted)
            nursery.cancel_scope.cancel()
        assert seen[0] < len(rows) - 10 <= seen[-1]
        rounds.append(len(set(seen)))
    assert rounds[0] < rounds[1]


async def test_no_compaction_while_the_writer_is_behind(autojump_clock: MockClock) -> None:
    found = await scheduled()
    found.now_s = OVER_S
    found.behind = True
    await found.scheduler.round()
    assert (await found.left(), found.store.calls) == (100, [])
    found.behind = False
    await found.scheduler.round()
    assert await found.left() == 90


async def test_rows_with_future_timestamps_do_not_block_others(autojump_clock: MockClock) -> None:
    ahead = f"0000=2a@5 0010=2b@{NOW_MS + 10**9}"
    store = await made({row: ahead if number < 90 else "0000=2a@5 0010=2b@6" for number, row in enumerate(ROWS)})
    found = Scheduled(store, CompactionRate(10, 0, 20, 3600), settle_ms=SETTLE_MS)
    found.now_s = OVER_S
    for _ in range(5):
        await found.scheduler.round()
    assert (await found.left(), found.scheduler.statistics().queued) == (90, 0)
    await trio.sleep(RECENT_S)
    found.store.calls.clear()
    await found.scheduler.round()
    assert found.store.calls == ["get"]  # they are tried again later
    assert found.scheduler.statistics().queued == 70


async def test_store_errors_cause_exponential_backoff(autojump_clock: MockClock) -> None:
    found = await scheduled()
    found.now_s = OVER_S
    found.store.always = Fault.REFUSED
    waits = []
    for _ in range(9):
        begun = trio.current_time()
        await found.scheduler.round()
        waits.append(trio.current_time() - begun)
    assert all(low <= wait <= 2 * low for wait, low in zip(waits, [0.5, 1, 2, 4, 8, 16, 30, 30, 30], strict=True))
    assert found.scheduler.statistics().queued == 100
    assert found.scheduler.statistics().compaction.errors == {"read": 9}
    found.store.always = Fault.NONE
    await found.scheduler.round()
    assert await found.left() == 90


async def test_rows_that_are_due_at_once_end_a_rest(autojump_clock: MockClock) -> None:
    """As late points do: a scheduler that found nothing to do does not let them wait for a minute."""
    found = await scheduled()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.scheduler.run)
        await trio.sleep(OVER_S + 600)
        for _ in range(2):
            found.scheduler.record([Put(row, b"t:", b"") for row in ROWS])
        assert found.scheduler.statistics().queued == len(ROWS)
        await trio.sleep(25)
        assert found.scheduler.statistics().queued < len(ROWS)
        nursery.cancel_scope.cancel()


async def test_rows_that_were_being_written_to_end_a_rest(autojump_clock: MockClock) -> None:
    """Regression: a row that had just been written was tried again at the end of a rest of a minute."""
    store = await made(dict.fromkeys(ROWS, f"0000=2a@5 0010=2b@{NOW_MS}"))
    found = Scheduled(store, CompactionRate(1, 0, 1000, 3600), settle_ms=SETTLE_MS, recent_s=5)
    found.now_s = OVER_S
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.scheduler.run)
        await trio.sleep(4)
        tried = len(found.store.calls)
        assert found.scheduler.statistics().queued == 0
        await trio.sleep(6)
        assert len(found.store.calls) > tried > 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_behind", [False, True])
async def test_rows_with_late_points_are_compacted_once_for_all_of_them(
    autojump_clock: MockClock, is_behind: bool
) -> None:
    """An hour later than others, and only then if the first late point came before their compaction."""
    late = RowQueue(KeyLayout(), 1000, LAST_BASE)
    store = await made(dict.fromkeys(ROWS, "0000=2a@5 0010=2b@6"))
    found = Scheduled(store, CompactionRate(10, 0, 1000, 3600), late=late)
    async with trio.open_nursery() as nursery:
        found.behind = is_behind
        nursery.start_soon(found.scheduler.run)
        await trio.sleep(OVER_S + 60)
        for offset in (2, 3, 4):
            await found.write_late(offset)
            await trio.sleep(600)
            found.behind = False
        compacted = found.scheduler.statistics().compaction
        assert compacted.compacted == (0 if is_behind else 100)
        assert found.scheduler.statistics().queued >= 100
        assert await found.cells() == {5 if is_behind else 4}
        await trio.sleep(HOUR_S)
        assert await found.cells() == {1}
        assert compacted.compacted == (100 if is_behind else 200)
        assert found.scheduler.statistics().queued == 0
        nursery.cancel_scope.cancel()


async def test_late_points_among_others_are_queued_apart(autojump_clock: MockClock) -> None:
    """Cells of one call may be of several hours. Those of older ones are not postponed further."""
    late = RowQueue(KeyLayout(), 1000, LAST_BASE)
    found = Scheduled(await made({}), CompactionRate(10, 0, 1000, 3600), rows=(), late=late)
    found.now_s = OVER_S + HOUR_S + 1
    old, one, two, new = key(0), key(HOUR_S, 1), key(HOUR_S, 2), key(2 * HOUR_S)
    found.scheduler.record([Put(row, b"t:", b"") for row in (one, new, old, two, new, old)])
    assert [late.is_waiting(row) for row in (old, one, two, new)] == [False, True, True, False]
    assert found.scheduler.statistics().queued == 4
