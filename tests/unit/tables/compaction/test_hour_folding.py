"""Which hours a daemon folds, and when, on the embedded store.

A round ends after its interval: on a virtual clock no machine is too slow to fold all hours in one.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from trio.testing import MockClock

from tests.unit.tables.compaction.parts import compactor, key
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import DamagedBlock, StoreError
from tsd.store import ColumnBlocks, ColumnPart, Family, Folded, Put, RangeOf, Table
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.compaction.hour_folding import FoldRules, HourFolding
from tsd.tables.opentsdb.compaction.queue import RowQueue
from tsd.tables.opentsdb.compaction.scheduler import JITTER_S, SAFE_S, CompactionRate, CompactionScheduler

CELL = b"t:\0\0\0\x10", b"\1\2\0"
LATE_S = 600
DAY_S = 86_400
OVER_S = 3600 + SAFE_S + JITTER_S


class Folding:
    """A scheduler that folds the rows of a store."""

    def __init__(
        self,
        store: EmbeddedStore,
        blocks: ColumnBlocks | None = None,
        limit: int = 100,
        least_rows: int = 1,
        least_compacted: int = 0,
        age_s: int = 0,
    ) -> None:
        self.store = store
        self.now_s = 0
        self.behind = False
        self.folding = HourFolding(
            blocks or store.column_blocks, "tsdb", KeyLayout(), FoldRules(limit, LATE_S, least_rows, age_s)
        )
        queue = RowQueue(KeyLayout(), 1000, -3600)
        rate = CompactionRate(1, least_compacted, 1000, 3600)
        self.scheduler = CompactionScheduler(
            queue, compactor(store), rate, lambda: self.behind, lambda: self.now_s, self.folding
        )

    async def put(self, *rows: bytes) -> None:
        """Write rows of two points."""
        puts = [Put(row, *CELL) for row in rows]
        await self.store.put("tsdb", puts)
        self.scheduler.record(puts)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(folder, lambda: 10**12)
    try:
        await store.create_tables([Table("tsdb", (Family(b"t"),))])
        yield store
    finally:
        await store.aclose()


async def test_hours_are_folded_some_minutes_after_their_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store)
        await found.put(key(0, 1), key(0, 2), key(3600, 1))
        found.now_s = 3600 + SAFE_S - 1
        await found.scheduler.round()
        assert found.folding.stats.cells == 0
        found.now_s = OVER_S
        await found.scheduler.round()
        assert (found.folding.stats.cells, found.folding.stats.points) == (2, 4)
        found.now_s = 3600 + OVER_S
        await found.scheduler.round()
        assert found.folding.stats.cells == 3
        assert len(await store.get("tsdb", [key(0, 1), key(0, 2), key(3600, 1)])) == 3


async def rounds_until(found: Folding, cells: int) -> None:
    """Rounds until so many cells were folded: a search comes before the first fold, and points are awaited after it."""
    for _ in range(3):
        await found.scheduler.round()
        found.now_s += LATE_S
    assert found.folding.stats.cells == cells


async def test_hours_are_folded_at_their_age(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, age_s=DAY_S)
        await found.put(key(0, 1), key(0, 2), key(3600, 1))
        found.now_s = DAY_S + 3600 + SAFE_S - 1
        await found.scheduler.round()
        assert found.folding.stats.cells == 0
        found.now_s = DAY_S + OVER_S
        await rounds_until(found, 2)
        found.now_s = DAY_S + OVER_S + 3600
        await rounds_until(found, 3)
        assert len(await store.get("tsdb", [key(0, 1), key(0, 2), key(3600, 1)])) == 3


async def test_hours_of_all_metrics_are_folded_at_their_age(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Also of UIDs with gaps, and those after which the number of bytes changes."""
    async with opened(tmp_path) as store:
        found = Folding(store, age_s=DAY_S)
        metrics = [1, 2, 7, 255, 256, 65_535, (1 << 24) - 1]
        await found.put(*[key(base_s, 1, metric=metric) for metric in metrics for base_s in (0, 3600)])
        found.now_s = DAY_S + OVER_S
        await rounds_until(found, len(metrics))
        found.now_s = DAY_S + OVER_S + 3600
        await rounds_until(found, 2 * len(metrics))


async def test_late_points_of_an_old_hour_are_folded(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, age_s=DAY_S)
        found.now_s = 3 * DAY_S
        await rounds_until(found, 0)
        await found.put(key(0, 1))
        found.now_s += LATE_S
        await rounds_until(found, 1)


async def test_hours_of_an_earlier_run_are_folded_at_their_age(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        await Folding(store, age_s=DAY_S).put(key(0, 1), key(3 * 3600, 1))
        found = Folding(store, age_s=DAY_S)
        found.now_s = DAY_S + OVER_S
        await rounds_until(found, 1)
        found.now_s += 3 * 3600
        await rounds_until(found, 2)


async def test_hours_are_folded_after_the_clock_was_wrong(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, age_s=DAY_S)
        found.now_s = 100 * DAY_S
        await rounds_until(found, 0)
        found.now_s = OVER_S
        await rounds_until(found, 0)
        await found.put(key(0, 1))
        found.now_s = DAY_S + OVER_S
        await rounds_until(found, 1)


async def test_hours_of_an_earlier_run_are_folded_if_the_clock_was_ahead_at_the_start(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with opened(tmp_path) as store:
        await Folding(store, age_s=DAY_S).put(key(0, 1), key(3 * 3600, 1))
        found = Folding(store, age_s=DAY_S)
        found.now_s = 100 * DAY_S
        await rounds_until(found, 0)
        found.now_s = DAY_S + OVER_S
        await rounds_until(found, 1)
        found.now_s += 3 * 3600
        await rounds_until(found, 2)


async def test_pass_over_the_table_leaves_young_hours(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, age_s=DAY_S)
        await store.put("tsdb", [Put(key(base_s, 1), *CELL) for base_s in (0, 3600)])
        for base_s in (0, 3600):
            await found.folding.fold_old(key(base_s, 1)[:7], DAY_S + 3600)
        assert await store.column_blocks.next_unfolded("tsdb", b"", None) == key(3600, 1)


async def test_late_points_are_folded_together(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store)
        found.now_s = 10 * 3600
        await found.put(key(0, 1))
        found.now_s += LATE_S - 1
        await found.put(key(0, 2))
        await found.scheduler.round()
        assert found.folding.stats.cells == 0
        found.now_s += 1
        await found.scheduler.round()
        assert found.folding.stats.cells == 2


async def test_rows_are_compacted_before_they_are_folded(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store)
        await found.put(key(0, 1))
        late = [Put(key(0, 1), b"t:\0\x20", b"\3")]
        await store.put("tsdb", late)
        found.scheduler.record(late)
        found.now_s = OVER_S
        await found.scheduler.round()
        await found.scheduler.round()
        assert found.folding.stats.points == 3


async def test_no_hour_is_folded_while_the_writer_is_behind(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store)
        await found.put(key(0, 1))
        found.now_s, found.behind = OVER_S, True
        await found.scheduler.round()
        assert found.folding.stats.cells == 0


async def test_hours_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, limit=1)
        await found.put(key(0, 1), key(3600, 1))
        assert found.folding.stats.dropped == 1
        found.now_s = 3600 + OVER_S
        await found.scheduler.round()
        assert found.folding.stats.cells == 1


class FailingOnce:
    """Blocks whose first fold raises an error."""

    def __init__(self, blocks: ColumnBlocks, error: StoreError) -> None:
        self.blocks = blocks
        self.errors = [error]

    async def fold(self, table: str, prefix: bytes, *, least_rows: int = 1) -> Folded:
        """See ColumnBlocks."""
        if self.errors:
            raise self.errors.pop()
        return await self.blocks.fold(table, prefix, least_rows=least_rows)

    async def remove_damaged(self, table: str, prefix: bytes) -> int:
        """See ColumnBlocks."""
        return await self.blocks.remove_damaged(table, prefix)

    async def next_unfolded(self, table: str, start: bytes, stop: bytes | None) -> bytes | None:
        """See ColumnBlocks."""
        return await self.blocks.next_unfolded(table, start, stop)

    async def get_columns(self, table: str, rows: Sequence[bytes]) -> list[ColumnPart]:
        """See ColumnBlocks."""
        return await self.blocks.get_columns(table, rows)

    def read_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, range_of: RangeOf | None = None
    ) -> AsyncGenerator[list[ColumnPart], None]:
        """See ColumnBlocks."""
        return self.blocks.read_columns(table, start, stop, limit_bytes=limit_bytes, range_of=range_of)

    def forget(self) -> None:
        """See ColumnBlocks."""
        self.blocks.forget()


async def test_damaged_block_does_not_stop_other_hours(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, FailingOnce(store.column_blocks, DamagedBlock("checksum", key(0, 1)[:7])))
        await found.put(key(0, 1), key(3600, 1))
        found.now_s = 3600 + OVER_S
        await found.scheduler.round()
        assert (found.folding.stats.damaged, found.folding.stats.cells) == (1, 1)


async def test_failed_fold_is_repeated(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, FailingOnce(store.column_blocks, StoreError("busy")))
        await found.put(key(0, 1))
        found.now_s = OVER_S
        await found.scheduler.round()
        await found.scheduler.round()
        assert (found.folding.stats.damaged, found.folding.stats.cells) == (0, 1)


class Slow(FailingOnce):
    """Blocks of which a fold takes two seconds, without a store: its threads do not wait for a virtual clock."""

    async def fold(self, table: str, prefix: bytes, *, least_rows: int = 1) -> Folded:
        """See ColumnBlocks."""
        await trio.sleep(2)
        return Folded(1, 2)

    async def next_unfolded(self, table: str, start: bytes, stop: bytes | None) -> bytes | None:
        """See ColumnBlocks."""
        return None


async def test_few_rows_that_are_left_do_not_delay_folds(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Regression: each fold waited for a minute while fewer rows waited than are compacted."""
    async with opened(tmp_path) as store:
        found = Folding(store, Slow(store.column_blocks, StoreError("unused")), least_compacted=5)
        puts = [Put(key(3600 * hour, 1), *CELL) for hour in range(8)]
        found.scheduler.record([*puts, Put(puts[-1].row, b"t:\0\x20", b"\3")])  # two cells of the last row
        found.now_s = 3600 * 8 + OVER_S + LATE_S
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.scheduler.run)
            await trio.sleep(100)
            assert found.folding.stats.cells == 8
            nursery.cancel_scope.cancel()


class WrittenMeanwhile(FailingOnce):
    """Blocks with writes during a fold."""

    def __init__(self, blocks: ColumnBlocks) -> None:
        super().__init__(blocks, StoreError(""))
        self.errors.clear()
        self.writes: list[Callable[[], Awaitable[None]]] = []

    async def fold(self, table: str, prefix: bytes, *, least_rows: int = 1) -> Folded:
        """See ColumnBlocks."""
        folded = await super().fold(table, prefix, least_rows=least_rows)
        if self.writes:
            await self.writes.pop()()
        return folded


async def test_rows_that_are_written_during_a_fold_are_folded_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Regression: the metric and hour was forgotten with the fold, and its new rows stayed until the next start."""
    async with opened(tmp_path) as store:
        blocks = WrittenMeanwhile(store.column_blocks)
        found = Folding(store, blocks)
        await found.put(key(0, 1))
        blocks.writes.append(partial(found.put, key(0, 2)))
        found.now_s = OVER_S
        await found.scheduler.round()
        found.now_s += LATE_S
        await found.scheduler.round()
        assert found.folding.stats.cells == 2
        assert await store.column_blocks.next_unfolded("tsdb", b"", None) is None


async def test_hour_that_is_due_earlier_may_come_during_a_fold(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Regression: the hour that came was forgotten in place of the folded one. The clock may be set back."""
    async with opened(tmp_path) as store:
        blocks = WrittenMeanwhile(store.column_blocks)
        found = Folding(store, blocks)
        await found.put(key(3600, 1))

        async def put_earlier() -> None:
            found.now_s = 0
            await found.put(key(0, 1))

        blocks.writes.append(put_earlier)
        found.now_s = 3600 + OVER_S
        await found.scheduler.round()
        found.now_s = 3600 + OVER_S
        await found.scheduler.round()
        assert found.folding.stats.cells == 2
        assert not found.folding.is_due(found.now_s, 0, None)


async def test_start_finds_hours_an_earlier_run_did_not_fold(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        old, other = key(0, 1, metric=2), key(100 * 3600, 1, metric=2)
        await Folding(store).put(key(100 * 3600, 1), key(101 * 3600, 1), old, other)
        await store.put("tsdb", [Put(b"short", *CELL)])  # not a row of points
        found = Folding(store)
        found.now_s = 110 * 3600
        await found.folding.recover(found.now_s, 0)
        found.now_s += LATE_S
        await found.scheduler.round()
        assert found.folding.stats.cells == 3
        assert await store.column_blocks.next_unfolded("tsdb", key(0, 1), None) == old
        assert await store.column_blocks.next_unfolded("tsdb", other, b"s") is None


async def test_hours_of_few_rows_are_left(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as store:
        found = Folding(store, least_rows=3)
        await found.put(key(0, 1), key(0, 2), *(key(3600, series) for series in (1, 2, 3)))
        found.now_s = 3600 + OVER_S
        await found.scheduler.round()
        assert found.folding.stats.cells == 3
        assert await store.column_blocks.next_unfolded("tsdb", key(3600, 1), None) is None
        assert await store.column_blocks.next_unfolded("tsdb", b"", None) == key(0, 1)
