"""Points of the open hour stay in memory and in the journal until the hour is over, and are then written once."""

import math
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests import layouts
from tests.flaky_store import Fault
from tests.unit.ingest.parts import BASE, Parts, going, line, make_store
from tsd.codec.opentsdb.columns import CELL_POINTS
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.putline import HOUR_S
from tsd.ingest.open_hours import held_until_s
from tsd.ingest.packed_points import PackedPoints, pack
from tsd.ingest.writer import POINT_BYTES
from tsd.tables.opentsdb.compaction.queue import RowQueue
from tsd.tables.reading import ScanRange

pytestmark = layouts.on_all

OVER_S = held_until_s(BASE, BASE)


async def holding(folder: Path, **settings: object) -> Parts:
    parts = Parts(folder, await make_store(), **{"hold_intervals": math.inf, **settings})
    parts.now_s = BASE + 600
    return parts


class Windows:
    """A writer that seals windows by virtual time, without journal and store."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    async def after(self, intervals: int) -> int:
        """Send a line in each of some intervals of 10 s; return how many windows were sealed meanwhile."""
        before = self.parts.writer.windows
        await trio.sleep(5)  # between two seals
        for at in range(intervals):
            await self.parts.take(line(at, at))
            await trio.sleep(10)
            self.parts.now_s += 10
        return self.parts.writer.windows - before


@pytest.mark.parametrize("hold_intervals", [0, math.inf])
async def test_small_windows_of_open_hours_wait(
    tmp_path: Path, autojump_clock: MockClock, hold_intervals: float
) -> None:
    windows = Windows(await holding(tmp_path, interval_s=10, hold_intervals=hold_intervals))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(windows.parts.writer.seal_windows)
        count = await windows.after(20)
        assert 1 <= count <= 5 if hold_intervals else count >= 19
        nursery.cancel_scope.cancel()


async def test_hour_that_is_over_is_released_within_a_minute(tmp_path: Path, autojump_clock: MockClock) -> None:
    windows = Windows(await holding(tmp_path, interval_s=10))
    parts = windows.parts
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.writer.seal_windows)
        await windows.after(20)
        held = parts.writer.held_points
        parts.now_s = OVER_S
        await trio.sleep(70)
        assert parts.writer.held_points < held
        nursery.cancel_scope.cancel()


async def test_all_points_of_a_long_interval_are_released_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Also if more windows end, as when a metric is read."""
    parts = await holding(tmp_path, interval_s=10, hold_intervals=3, small_intervals=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.writer.seal_windows)
        await trio.sleep(5)  # between two seals
        held = []
        for at in range(12):
            await parts.take(line(at, at))
            if at >= 6:
                parts.writer.seal()
            parts.uptime_s += 10
            await trio.sleep(10)
            held.append(parts.writer.held_points)
        assert held == [1, 2, 0] * 4
        nursery.cancel_scope.cancel()


async def test_interval_of_held_points_begins_again_after_a_flush(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The points after it are not released early with the interval that it has ended."""
    parts = await holding(tmp_path, interval_s=10, hold_intervals=3, small_intervals=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.writer.seal_windows)
        await trio.sleep(5)  # between two seals
        held = []
        for at in range(5):
            if at == 2:
                parts.writer.seal(hold=False)
            await parts.take(line(at, at))
            await trio.sleep(10)
            held.append(parts.writer.held_points)
        assert held == [1, 2, 1, 2, 0]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("start", [-600, -453, -178, -5])
async def test_an_hour_has_as_many_intervals_as_fit(tmp_path: Path, autojump_clock: MockClock, start: int) -> None:
    """Whenever the daemon started, each row gets six cells at ten minutes, and its points wait hardly longer. Late
    points are written with others."""
    parts = await holding(tmp_path, interval_s=10, hold_intervals=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.writer.seal_windows)
        released = []
        before = 0
        for at in range(start, HOUR_S + 100):
            parts.now_s = BASE + at
            if at % 10 == 3:
                await parts.take(line(at, at), line(at - 2700, at, "late"))
            await trio.sleep(1)
            held = parts.writer.held_points + parts.open_window.points
            assert held <= 2 * 62
            if held < before:
                released.append(at)
            before = held
        assert len([at for at in released if at > 300]) == 6  # before that, the last points of the hour before
        assert HOUR_S <= released[-1] < HOUR_S + 20
        nursery.cancel_scope.cancel()


async def test_points_are_held_no_longer_than_wanted(tmp_path: Path, autojump_clock: MockClock) -> None:
    parts = await holding(tmp_path, interval_s=10, hold_intervals=4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.writer.seal_windows)
        for at in range(2):
            await parts.take(line(at, at))
            parts.writer.seal()
            await trio.sleep(15)
            assert parts.writer.held_points == at + 1
        await trio.sleep(15)
        assert parts.writer.held_points == 0
        assert parts.writer.waiting_points == 2
        nursery.cancel_scope.cancel()


async def test_points_of_a_small_window_are_released_in_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A window that stays open does not keep its points longer than wanted."""
    windows = Windows(await holding(tmp_path, interval_s=10, hold_intervals=3))
    parts = windows.parts
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.writer.seal_windows)
        await trio.sleep(35)
        await parts.take(line(0, 0))
        await trio.sleep(30)
        assert (parts.writer.held_points, parts.open_window.points, parts.writer.waiting_points) == (0, 0, 1)
        nursery.cancel_scope.cancel()


async def test_large_window_ends_with_its_interval(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Lines of a flood that follow minutes without any do not gather for as long as a few lines."""
    windows = Windows(await holding(tmp_path, interval_s=10, memory_limit=1 << 20))
    parts = windows.parts
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.writer.seal_windows)
        await trio.sleep(65)
        for at in range(3000):
            await parts.take(line(at, at))
        await trio.sleep(10)
        assert parts.open_window.points == 0
        nursery.cancel_scope.cancel()


async def test_small_windows_end_though_the_clock_goes_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    windows = Windows(await holding(tmp_path, interval_s=10))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(windows.parts.writer.seal_windows)
        await windows.parts.take(line(0, 0))
        windows.parts.now_s -= 300
        await trio.sleep(70)
        assert windows.parts.writer.windows == 1
        nursery.cancel_scope.cancel()


def segments(folder: Path) -> int:
    return len(list((folder / "journal").glob("*.journal")))


async def settled(parts: Parts) -> None:
    """Seal the window, and wait until what is due is stored, and the rest on disk."""
    assert await parts.writer.flush_due()
    await parts.journal.wait_synced(parts.journal.position)
    parts.check_ledger()


@layouts.opentsdb_only
async def test_points_held_for_an_interval_are_written_when_asked(tmp_path: Path) -> None:
    async with going(await holding(tmp_path, hold_intervals=6)) as parts:
        for at in range(5):
            await parts.take(line(10 * at, at))
            parts.writer.seal()
        assert parts.writer.held_points == 5
        await settled(parts)
        assert (parts.writer.cells, parts.writer.held_points, parts.ledger.stored) == (1, 0, 5)
        assert len(await parts.stored()) == 5


@layouts.opentsdb_only
async def test_row_of_an_hour_is_written_once(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        for at in range(5):
            await parts.take(line(10 * at, at), line(10 * at, at, "b"))
            await settled(parts)
        assert (parts.writer.cells, parts.writer.held_points, parts.ledger.stored) == (0, 10, 0)
        assert segments(tmp_path) == 5
        parts.now_s = OVER_S - 1
        await settled(parts)
        assert parts.writer.held_points == 10
        parts.now_s = OVER_S
        await settled(parts)
        assert (parts.writer.cells, parts.writer.held_points, parts.ledger.stored) == (2, 0, 10)
        assert segments(tmp_path) == 0
        assert len(await parts.stored()) == 10


@layouts.opentsdb_only
@pytest.mark.parametrize("points", [2, CELL_POINTS + 1])
async def test_rows_that_were_written_twice_need_compaction(tmp_path: Path, points: int) -> None:
    """Others, with all points that came until the end of the hour, need none. Those of many points have several cells,
    which compaction leaves as they are."""
    queue = RowQueue(KeyLayout(), 100, 0)
    async with going(await holding(tmp_path, on_cells=queue.record)) as parts:
        await parts.take(line(0, 1, "early"))
        assert await parts.writer.flush()
        many = [b"put m %d 1 host=many" % (BASE * 1000 + at) for at in range(points)]
        await parts.take(line(1, 2, "early"), line(1, 2, "whole"), line(1, 2, "late"), *many)
        await settled(parts)
        parts.now_s = OVER_S
        await settled(parts)
        assert parts.writer.held_points == 0
        assert queue.waiting == 1
        await parts.take(line(2, 3, "late"))
        assert await parts.writer.flush()
        assert queue.waiting == 2


@layouts.opentsdb_only
async def test_hour_that_is_over_again_is_not_written_whole_again(tmp_path: Path) -> None:
    """Regression: rows with a second cell were not compacted if the clock was set back soon after the hour."""
    queue = RowQueue(KeyLayout(), 100, 0)
    async with going(await holding(tmp_path, on_cells=queue.record)) as parts:
        for offset in (0, 1):
            await parts.take(line(offset, 1))
            await settled(parts)
            assert parts.writer.held_points == 1
            parts.now_s = OVER_S
            await settled(parts)
            assert parts.writer.held_points == 0
            assert queue.waiting == offset
            parts.now_s = OVER_S - 60


async def test_late_points_are_written_together(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        parts.now_s = OVER_S
        for at in range(5):
            await parts.take(line(10 * at, at))
            await settled(parts)
        assert await parts.stored() == {}
        parts.now_s += 3600
        await settled(parts)
        assert len(await parts.stored()) == 5


async def test_points_of_other_hours_are_written_at_once(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(-7200, 1), line(7200, 2), line(0, 3), line(0, 4, metric="due"))
        await settled(parts)
        assert sorted((await parts.stored()).values()) == [1, 2, 4]
        assert parts.writer.held_points == 1


async def test_segments_go_in_order(tmp_path: Path) -> None:
    """A later segment that is stored stays, because a replay of the earlier one would write older values last."""
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(0, 1))
        await settled(parts)
        await parts.take(line(-7200, 1))
        await settled(parts)
        assert segments(tmp_path) == 2
        assert await parts.writer.flush()
        assert segments(tmp_path) == 0


async def test_flush_writes_open_hours(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(0, 1))
        await settled(parts)
        assert await parts.stored() == {}
        assert await parts.writer.flush()
        assert list((await parts.stored()).values()) == [1]


async def test_readers_of_a_metric_leave_its_hour_open(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(0, 1))
        assert await parts.writer.write_metric(b"m")
        assert await parts.stored() == {}
        assert parts.writer.held_points == 1


async def test_readers_of_a_metric_see_points_that_came_after_the_end_of_a_held_hour(tmp_path: Path) -> None:
    """Regression: the reader waited for the held hour alone, which is written first."""
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(0, 1))
        await settled(parts)
        parts.now_s = OVER_S
        await parts.take(line(-7200, 2))
        assert await parts.writer.write_metric(b"m")
        assert sorted((await parts.stored()).values()) == [1, 2]


@pytest.mark.parametrize("bound", [{"memory_limit": 4 * POINT_BYTES * 64}, {"max_bytes": 4096}])
async def test_bounds_write_open_hours_early(tmp_path: Path, bound: dict[str, object]) -> None:
    async with going(await holding(tmp_path, **bound)) as parts:
        for at in range(80):
            await parts.take(line(at, at))
            await settled(parts)
            assert parts.writer.held_memory <= POINT_BYTES * 64
        assert parts.writer.early_releases
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 80


async def test_points_of_an_outage_are_not_held_for_an_interval(tmp_path: Path) -> None:
    """Regression: what is held cannot be left to the journal alone, so memory rose during the whole outage."""
    async with going(await holding(tmp_path, hold_intervals=3)) as parts:
        await parts.take(line(0, 0))
        parts.writer.seal()
        parts.store.always = Fault.REFUSED
        assert not await parts.writer.flush(patient=False)
        held = parts.writer.held_memory
        for at in range(1, 20):
            await parts.take(line(at, at))
            parts.writer.seal()
            assert parts.writer.held_memory == held
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert list((await parts.stored()).values()) == list(range(20))


async def test_points_are_held_while_the_store_pauses(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Regression: after 2 s without an answer of HBase the points of an interval became several cells."""
    async with going(await holding(tmp_path, hold_intervals=60)) as parts:
        await parts.take(line(0, 0))
        parts.writer.seal()
        parts.store.hold = trio.Event()
        await parts.take(line(-7200, 0))
        parts.writer.seal()
        await parts.store.held.wait()
        for at in range(1, 6):
            await trio.sleep(5)
            await parts.take(line(at, at))
            parts.writer.seal()
        assert (parts.writer.held_points, parts.writer.early_releases) == (6, 0)
        parts.store.hold.set()
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 7


async def test_what_a_waiting_window_gave_to_open_hours_counts_as_memory(tmp_path: Path) -> None:
    """Regression: it counted as what it takes in the open hour, where it is packed, until the store went on."""
    windows, points = 3, 150
    async with going(await holding(tmp_path, memory_limit=4 << 20, hold_intervals=60)) as parts:
        await parts.take(line(0, 0))
        await settled(parts)
        parts.store.hold = trio.Event()
        await parts.take(line(-7200, 0))
        parts.writer.seal()
        for at in range(windows):
            await parts.take(*(line(points * at + one, one) for one in range(points)))
            parts.writer.seal()
        waits = parts.writer.held_points * POINT_BYTES
        assert parts.writer.held_memory > waits
        parts.store.hold.set()
        await settled(parts)
        assert parts.writer.held_memory <= waits


@pytest.mark.slow
async def test_packed_points_are_read_and_written(tmp_path: Path) -> None:
    """Hours with many points are packed: they take little memory, and lose nothing."""
    metrics, rounds = [f"m{at}" for at in range(40)], 240
    async with going(await holding(tmp_path, memory_limit=4 << 20)) as parts:
        wanted = {}
        for at in range(rounds):
            offset = 7 * (at if at % 9 else at - 5)  # some times come twice
            names = metrics if at % 2 else [*metrics, f"rare{at}"]
            await parts.take(*(line(offset, at, "a", metric=name) for name in names))
            wanted |= {(name, offset): at for name in names}
            await settled(parts)
            await trio.testing.wait_all_tasks_blocked()
        writer = parts.writer
        assert (writer.early_releases, writer.held_points) == (0, rounds * 40 + rounds // 2)
        assert writer.held_memory < writer.held_points * POINT_BYTES // 2
        for metric in ("m0", "m39", "rare10"):
            found = await parts.unstored.open_points(metric.encode())
            assert found is not None
            last = dict(zip((found.columns.instants // 2000 - BASE).tolist(), found.columns.bits.tolist(), strict=True))
            assert last == {offset: value for (name, offset), value in wanted.items() if name == metric}
        assert await writer.flush()
        assert writer.held_memory == 0
        stored = await parts.stored()
        assert sorted(stored.values()) == sorted(wanted.values())


@pytest.mark.slow
async def test_points_of_many_series_are_packed_again(tmp_path: Path) -> None:
    """A series has one of the points that are packed at once; later some are packed again, which takes less memory."""
    rounds, series = 20, 4200
    async with going(await holding(tmp_path, memory_limit=4 << 20)) as parts:
        writer, held = parts.writer, [0]
        for at in range(rounds):
            await parts.take(*(line(10 * at, 1000 * one + at, "a", metric=f"m{one}") for one in range(series)))
            await settled(parts)
            await trio.testing.wait_all_tasks_blocked()
            held.append(writer.held_memory)
        assert (writer.early_releases, writer.held_points) == (0, rounds * series)
        assert min(after - before for before, after in pairwise(held)) < 0
        for one in (0, series - 1):
            found = await parts.unstored.open_points(b"m%d" % one)
            assert found is not None
            assert (found.columns.instants // 2000 - BASE).tolist() == [10 * at for at in range(rounds)]
            assert found.columns.bits.tolist() == [1000 * one + at for at in range(rounds)]
        parts.store.plan, parts.store.always = [Fault.NONE], Fault.REFUSED
        assert not await writer.flush(patient=False)
        stored = Counter(int(value) // 1000 for value in (await parts.stored()).values())
        assert 0 < len(stored) < series
        assert set(stored.values()) == {rounds}
        for one in range(0, series, 100):
            found = await parts.unstored.open_points(b"m%d" % one)
            assert one in stored or (found is not None and len(found.columns.bits) == rounds)
        parts.store.plan, parts.store.always = [Fault.NONE, Fault.ANSWER_LOST, Fault.REFUSED], Fault.NONE
        assert await writer.flush()
        assert len(await parts.stored()) == rounds * series


async def test_released_hours_are_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an hour was packed in vain if it was released while another hour was packed."""
    many, packed = 4200, 0

    def hour_of(offset: int) -> list[bytes]:
        return [line(offset, 1, metric=f"m{one}") for one in range(many)]

    async with going(await holding(tmp_path, memory_limit=4 << 20)) as parts:

        async def release() -> None:
            await parts.take(*hour_of(0))
            await settled(parts)
            assert await parts.writer.flush()

        def pack_slowly(*given: Any) -> PackedPoints:
            nonlocal packed
            packed += 1
            trio.from_thread.run(release)
            return pack(*given)

        monkeypatch.setattr("tsd.ingest.open_hours.pack", pack_slowly)
        await parts.take(line(-1, 1), line(0, 1))
        await settled(parts)
        await parts.take(*hour_of(-1))
        await settled(parts)
        for _ in range(3):
            await trio.testing.wait_all_threads_completed()
            await trio.testing.wait_all_tasks_blocked()
        assert packed == 1
        assert len(await parts.stored()) == 2 * many + 2


@pytest.mark.slow
async def test_later_values_win_whatever_is_held(tmp_path: Path) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        async with going(await holding(tmp_path / str(seed))) as parts:
            last: dict[int, int] = {}
            for value in range(150):
                offset = chance.choice((0, 1, 3599, 3600, 3601, -1))
                await parts.take(line(offset, value))
                last[(BASE + offset) * 1000] = value
                step = chance.random()
                if step < 0.3:
                    parts.writer.seal()
                elif step < 0.35:
                    assert await parts.writer.flush()
                elif step < 0.45:
                    parts.now_s += chance.choice((-900, 600, 1800))
                    parts.writer.seal()
            assert await parts.writer.flush()
            assert {time: value for (_, time), value in (await parts.stored()).items()} == last


async def test_crash_replays_what_was_held(tmp_path: Path) -> None:
    parts = await holding(tmp_path)
    parts.journal.recover()
    with trio.CancelScope() as crash:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.journal.run)
            nursery.start_soon(parts.writer.write_windows)
            for at in range(4):
                await parts.take(line(0, at), line(-7200, at))
                await settled(parts)
            crash.cancel()
    assert list((await parts.stored()).values()) == [3]
    async with going(Parts(tmp_path, parts.store, hold_intervals=math.inf)) as again:
        assert await again.writer.flush()
        assert list((await again.stored()).values()) == [3, 3]
        assert segments(tmp_path) == 0


async def test_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(0, 1))
        await settled(parts)
    assert segments(tmp_path) == 0
    assert list((await parts.stored()).values()) == [1]


@pytest.mark.slow
async def test_points_wait_while_the_store_fails(tmp_path: Path) -> None:
    async with going(await holding(tmp_path, memory_limit=4 * POINT_BYTES * 64)) as parts:
        await parts.take(line(0, 0))
        await settled(parts)
        parts.store.always = Fault.REFUSED
        for at in range(1, 200):
            await parts.take(line(at, at))
            parts.writer.seal()
            assert parts.writer.held_memory + parts.writer.memory.size <= 3 * POINT_BYTES * 64
        parts.check_ledger()
        assert not await parts.writer.flush(patient=False)
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert len(await parts.stored()) == 200


async def test_series_without_key_are_not_held(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(0, 1))
        await settled(parts)
        parts.store.always = Fault.REFUSED
        await parts.take(line(0, 2), line(0, 2, "new"))
        parts.writer.seal()
        assert parts.writer.held_points == 0
        parts.store.always = Fault.NONE
        assert await parts.writer.flush()
        assert sorted((await parts.stored()).values()) == [2, 2]


async def test_held_series_are_not_evicted(tmp_path: Path) -> None:
    async with going(await holding(tmp_path)) as parts:
        await parts.take(line(0, 1))
        await settled(parts)
        parts.uptime_s += 10 * 7200
        await parts.take(line(0, 2, "b"))
        await settled(parts)
        await parts.take(line(0, 3, "c"))
        assert await parts.writer.flush()
        assert sorted((await parts.stored()).values()) == [1, 2, 3]


@pytest.mark.parametrize("reads_between", [False, True])
async def test_points_of_a_span_are_found_wherever_they_wait(tmp_path: Path, reads_between: bool) -> None:
    """Points of other hours need not be found; reads in between change nothing."""
    async with going(await holding(tmp_path)) as parts:
        offsets = [*range(-7200, 7200, 100), *range(0, 3600, 400)]
        for at, offset in enumerate(offsets):
            await parts.take(line(offset, at))
            if reads_between:
                await parts.unstored.open_points(b"m", span=ScanRange(BASE - 3600, BASE))
            if at == 10:
                parts.writer.seal()
        for first in range(BASE - 10800, BASE + 10800, 3600):
            for hours in (1, 2):
                span = ScanRange(first, first + hours * 3600)
                found = await parts.unstored.open_points(b"m", span=span)
                assert found is not None
                times = {BASE + offset for offset in offsets} & set(range(span.start_s, span.stop_s))
                assert times <= {instant // 2000 for instant in found.columns.instants.tolist()}
        away = await parts.unstored.open_points(b"m", span=ScanRange(BASE + 36000, BASE + 39600))
        assert away is not None
        assert not len(away.columns.instants)
