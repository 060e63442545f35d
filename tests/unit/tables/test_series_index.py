"""The index of series: what is entered is found, once, and what it remembers of what it read."""

import random
from collections.abc import Collection, Sequence

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from tests.flaky_store import Fault, FlakyStore
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import DamagedBlock, StoreDown
from tsd.ingest.series import SeriesTable
from tsd.store import Cell, Family, Page, Put, Table, scan
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.series_index import OWN, STATE_ROW, SeriesIndex
from tsd.tables.opentsdb.series_recorder import UnkeptIndex

TABLE = "series"
METRIC = b"\0\0\1"
HOST_A, HOST_B, CPU_0 = b"\0\0\1\0\0\1", b"\0\0\1\0\0\2", b"\0\0\2\0\0\3"


async def a_store() -> MemoryStore:
    store = MemoryStore(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    return store


async def entries(store: MemoryStore) -> int:
    """How many there are."""
    return sum([len(row.cells) async for rows in scan(store, TABLE) for row in rows if row.key != STATE_ROW])


async def test_added_series_invalidate_cached_answers() -> None:
    index = SeriesIndex(await a_store(), TABLE, KeyLayout())
    await index.add({METRIC: [HOST_A]})
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A]
    await index.add({METRIC: [HOST_A + CPU_0, HOST_B]})
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A, HOST_A + CPU_0]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A, HOST_A + CPU_0, HOST_B]
    assert await index.with_tag(METRIC, b"", 2) is None
    assert await index.with_tag(METRIC, HOST_B, 0) is None


@pytest.mark.parametrize("seed", range(3))
async def test_series_are_found_by_each_tag(seed: int) -> None:
    chance = random.Random(seed)
    store = await a_store()
    tags = [[tagk.to_bytes(3, "big") + tagv.to_bytes(3, "big") for tagv in range(1, 4)] for tagk in range(1, 4)]
    every = [
        b"".join(chance.sample(some, 1)[0] for some in chance.sample(tags, 3)[: chance.randint(1, 3)])
        for _ in range(40)
    ]
    known: set[bytes] = set()
    while len(known) < len(set(every)):
        index = SeriesIndex(store, TABLE, KeyLayout())  # as after a start
        some = chance.sample(every, 5)
        await index.add({METRIC: some})
        known.update(some)
        before = await entries(store)
        await index.add({METRIC: chance.sample(sorted(known), len(known))})
        assert await entries(store) == before  # no series is entered twice
        for pair in chance.sample([b"", *(pair for some in tags for pair in some)], 3):
            wanted = sorted(one for one in known if pair in {b"", *(one[at : at + 6] for at in range(0, len(one), 6))})
            assert await index.with_tag(METRIC, pair, 99) == wanted


class Failing(MemoryStore):
    """Takes so many more puts."""

    left = 1 << 30

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        if not self.left:
            raise StoreDown("gone")
        self.left -= 1
        await super().put(table, cells, time_ms=time_ms)


@pytest.mark.parametrize("puts", [0, 1])
async def test_interrupted_add_is_completed_by_a_repeat(puts: int) -> None:
    store = Failing(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    index = SeriesIndex(store, TABLE, KeyLayout())
    store.left = puts
    with pytest.raises(StoreDown):
        await index.add({METRIC: [HOST_A + CPU_0, HOST_B + CPU_0]})
    store.left = 1 << 30
    await index.add({METRIC: [HOST_B + CPU_0]})  # who came first then, by himself
    await index.add({METRIC: [HOST_A + CPU_0, HOST_B + CPU_0]})
    for pair in (b"", CPU_0):
        assert await index.with_tag(METRIC, pair, 2) == [HOST_A + CPU_0, HOST_B + CPU_0]


async def test_series_added_elsewhere_show_after_an_own_add() -> None:
    store = await a_store()
    index, other = (SeriesIndex(store, TABLE, KeyLayout()) for _ in range(2))
    assert await index.with_tag(METRIC, HOST_A, 9) == []
    await other.add({METRIC: [HOST_A]})
    await index.add({METRIC: [HOST_A]})
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A]


class Counting(MemoryStore):
    """Counts the pages that are read."""

    pages = 0

    async def page(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        columns: Collection[bytes] | None = None,
    ) -> Page:
        """See Store."""
        self.pages += 1
        return await super().page(table, start, stop, limit=limit, columns=columns)


async def test_cached_answers_of_an_own_store_stay_valid_until_a_write(autojump_clock: MockClock) -> None:
    store = Counting(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    other, index = (SeriesIndex(store, TABLE, KeyLayout()) for _ in range(2))
    await other.add({METRIC: [HOST_A + CPU_0]})
    for _ in range(2):
        assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A + CPU_0]
        assert await index.with_tag(METRIC, CPU_0, 9) == [HOST_A + CPU_0]
        await trio.sleep(3600)
    assert store.pages == 2
    await other.add({METRIC: [HOST_B + CPU_0]})
    assert await index.with_tag(METRIC, CPU_0, 9) == [HOST_A + CPU_0, HOST_B + CPU_0]
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A + CPU_0]
    assert store.pages == 3
    row = METRIC + HOST_A + HOST_A + CPU_0
    await store.delete(TABLE, {row: [OWN, b"t:s"]}, up_to_ms=None)
    assert await index.with_tag(METRIC, HOST_A, 9) == []


class Shared(MemoryStore):
    """Does not report writes: other processes may write."""

    change_feed = None  # type: ignore[assignment]


async def test_a_look_on_a_shared_table_holds_for_seconds(autojump_clock: MockClock) -> None:
    store = Shared(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    index = SeriesIndex(store, TABLE, KeyLayout())
    state = index.state()
    await trio.sleep(1)
    assert index.is_current(state)
    await trio.sleep(60)
    assert not index.is_current(state)  # another process may have added series meanwhile
    state = index.state()
    await index.add({METRIC: [HOST_A]})
    assert not index.is_current(state)


async def test_held_table_of_a_shared_index_has_own_series_that_were_added_elsewhere() -> None:
    store = Shared(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    index, other = (SeriesIndex(store, TABLE, KeyLayout()) for _ in range(2))
    await index.add({METRIC: [HOST_A]})
    assert await _held(index) == [HOST_A]
    await other.add({METRIC: [HOST_B]})
    await index.add({METRIC: [HOST_B]})  # a daemon's own points would not show otherwise
    assert await _held(index) == [HOST_A, HOST_B]


async def test_a_look_on_an_own_table_holds_until_series_are_added(autojump_clock: MockClock) -> None:
    store = await a_store()
    index, other = (SeriesIndex(store, TABLE, KeyLayout()) for _ in range(2))
    state = index.state()
    await trio.sleep(3600)
    assert index.is_current(state)
    await other.add({METRIC: [HOST_A]})
    assert not index.is_current(state)


async def test_rebuilt_index_has_lost_entries_again() -> None:
    """However it was: a log that was damaged in its middle, a backup of no one moment."""
    store = await a_store()
    await store.create_tables([Table("data", (Family(b"t"),))])
    series = [HOST_A + CPU_0, HOST_B + CPU_0]
    await store.put("data", [Put(METRIC + bytes(4) + one, b"t:\0\0", b"\1") for one in series])
    index = SeriesIndex(store, TABLE, KeyLayout())
    await index.add({METRIC: series})
    own = {row.key for row in [row async for rows in scan(store, TABLE) for row in rows] if OWN in _columns(row.cells)}
    async for rows in scan(store, TABLE):
        for row in rows:
            if row.key not in own | {STATE_ROW}:
                await store.delete(TABLE, {row.key: _columns(row.cells)}, up_to_ms=None)
    assert await SeriesIndex(store, TABLE, KeyLayout()).with_tag(METRIC, b"", 9) == []
    await index.outdate()
    assert await index.rebuild("data") == 2
    found = SeriesIndex(store, TABLE, KeyLayout())
    assert await found.complete()
    for pair in (b"", CPU_0):
        assert await found.with_tag(METRIC, pair, 9) == series


async def test_complete_index_is_checked_seldom_and_rebuilt_after_a_query(autojump_clock: MockClock) -> None:
    store = CountingStore(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),)), Table("data", (Family(b"t"),))])
    index, importer = (SeriesIndex(store, TABLE, KeyLayout()) for _ in range(2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.keep_complete, "data")
        await trio.sleep(100)
        assert await index.complete()
        before = store.gets
        await trio.sleep(3600)
        assert store.gets - before < 30
        for number in (HOST_A, HOST_B):  # the second one soon after a rebuild
            await store.put("data", [Put(METRIC + bytes(4) + number, b"t:\0\0", b"\1")])
            await importer.outdate()
            await trio.sleep(10)
            assert not await index.complete()
            await trio.sleep(60)
            assert await index.complete()
        assert await index.with_tag(METRIC, b"", 9) == [HOST_A, HOST_B]
        nursery.cancel_scope.cancel()


async def test_index_that_no_query_reads_is_rebuilt(autojump_clock: MockClock) -> None:
    store = await a_store()
    await store.create_tables([Table("data", (Family(b"t"),))])
    index, importer = (SeriesIndex(store, TABLE, KeyLayout()) for _ in range(2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.keep_complete, "data")
        await trio.sleep(100)
        await importer.outdate()
        await trio.sleep(3600)
        assert await importer.complete()
        nursery.cancel_scope.cancel()


class DamagedStore(MemoryStore):
    """Counts reads of a table that has a damaged block."""

    reads = 0

    async def page(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, columns: Collection[bytes] | None = None
    ) -> Page:
        if table == "data":
            self.reads += 1
            raise DamagedBlock("checksum", METRIC + bytes(4))
        return await super().page(table, start, stop, limit=limit, columns=columns)


async def test_rows_before_a_damaged_block_are_read_again_seldom(autojump_clock: MockClock) -> None:
    store = DamagedStore(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),)), Table("data", (Family(b"t"),))])
    index = SeriesIndex(store, TABLE, KeyLayout())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.keep_complete, "data")
        await trio.sleep(3600)
        assert not await index.complete()
        nursery.cancel_scope.cancel()
    assert 0 < store.reads < 30


class CountingStore(MemoryStore):
    """Counts reads of rows."""

    gets = 0

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        self.gets += 1
        return await super().get(table, rows, columns=columns)


async def _held(index: SeriesIndex) -> list[bytes]:
    table = await index.table(METRIC)
    assert table is not None
    return table.series_pairs(np.arange(table.count))


def _columns(cells: Sequence[Cell]) -> list[bytes]:
    return [cell.column for cell in cells]


async def test_index_that_is_completed_during_an_import_without_it_is_completed_again() -> None:
    store = await a_store()
    await store.create_tables([Table("data", (Family(b"t"),))])
    index = SeriesIndex(store, TABLE, KeyLayout())
    unkept = UnkeptIndex(SeriesIndex(store, TABLE, KeyLayout()))
    await unkept.record(np.array([1], np.int32), SeriesTable())
    await index.rebuild("data")
    await unkept.finish()
    assert not await index.complete()


async def test_index_that_cannot_be_marked_stops_no_points() -> None:
    """Its table may be disabled, or not permitted: nothing here reads it. It is marked once that is possible."""
    plain = await a_store()
    await plain.create_tables([Table("data", (Family(b"t"),))])
    await SeriesIndex(plain, TABLE, KeyLayout()).rebuild("data")
    store = FlakyStore(plain)
    unkept = UnkeptIndex(SeriesIndex(store, TABLE, KeyLayout()))
    store.always, store.reads_always = Fault.REFUSED, True
    await unkept.record(np.array([1], np.int32), SeriesTable())
    store.always = Fault.NONE
    await unkept.record(np.array([1], np.int32), SeriesTable())
    assert not await SeriesIndex(plain, TABLE, KeyLayout()).complete()
