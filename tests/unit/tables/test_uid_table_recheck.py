"""Names kept in memory are held against the UID table: what others change is noticed in time."""

import pytest
import trio
from trio.testing import MockClock

from tests.flaky_store import Fault
from tests.interfering_store import InterferingStore
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.uid import COUNTER_ROW, ID_FAMILY, NAME_FAMILY, encode_counter, id_column
from tsd.store import Family, Put, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.resolver import AutoCreate, UidResolver
from tsd.tables.opentsdb.uid_table import delete, recheck, recheck_forever, rename, watch_counters
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.writing import SeriesKey, SeriesText

TABLE = "tsdb-uid"
METRIC = Kind.METRIC
PERIOD_S = 600


async def made() -> InterferingStore:
    store = InterferingStore(MemoryStore(lambda: round(trio.current_time() * 1000)))
    await store.create_tables([Table(TABLE, (Family(ID_FAMILY), Family(NAME_FAMILY)))])
    return store


class Watched:
    """Names with a task that rechecks them, and how often it dropped them."""

    def __init__(self, store: InterferingStore, **bounds: int) -> None:
        self.uids = Uids(store, TABLE, Widths(), **bounds)
        self.drops = 0

    def drop(self) -> None:
        self.drops += 1
        self.uids.drop_caches()

    async def round(self) -> None:
        await recheck(self.uids, PERIOD_S, self.drop)


@pytest.mark.difference(
    "renamed-names",
    topic="rows",
    theirs="Names that others renamed or deleted stay in memory until `dropcaches`",
    ours="All are looked up again within `tsd.uid.cache_ttl`",
)
async def test_a_rename_by_others_is_noticed_within_the_period(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    store = await made()
    watched = Watched(store)
    await watched.uids.find_or_assign(METRIC, [b"a", b"b"])
    nursery.start_soon(recheck_forever, watched.uids, PERIOD_S, watched.drop)
    await trio.sleep(10 * PERIOD_S)
    assert watched.drops == 0
    await rename(store.store, TABLE, METRIC, b"a", b"c")
    assert await watched.uids.find(METRIC, [b"a"]) == {b"a": b"\0\0\1"}
    await trio.sleep(PERIOD_S)
    assert watched.drops == 1
    assert await watched.uids.find(METRIC, [b"b", b"c"]) == {b"b": b"\0\0\2", b"c": b"\0\0\1"}
    assert isinstance((await watched.uids.find(METRIC, [b"a"]))[b"a"], Exception)
    await trio.sleep(10 * PERIOD_S)
    assert watched.drops == 1


async def test_recheck_spreads_its_chunks_over_the_period(autojump_clock: MockClock) -> None:
    store = await made()
    watched = Watched(store)
    names = [b"name%d" % number for number in range(5000)]
    await watched.uids.find_or_assign(METRIC, names)
    store.calls.clear()
    began = trio.current_time()
    await watched.round()
    assert trio.current_time() - began == pytest.approx(PERIOD_S)
    assert set(store.calls) == {"get"}
    assert len(store.calls) > 1


async def test_deleted_name_is_noticed(autojump_clock: MockClock) -> None:
    store = await made()
    await Uids(store, TABLE, Widths()).find_or_assign(METRIC, [b"a"])
    watched = Watched(store)
    assert await watched.uids.names(METRIC, [b"\0\0\1"]) == {b"\0\0\1": b"a"}
    await delete(store, TABLE, METRIC, b"a")
    await watched.round()
    assert watched.drops == 1
    assert isinstance((await watched.uids.names(METRIC, [b"\0\0\1"]))[b"\0\0\1"], Exception)


async def test_recheck_goes_on_after_a_store_error(autojump_clock: MockClock) -> None:
    store = await made()
    watched = Watched(store)
    await watched.uids.find_or_assign(METRIC, [b"a"])
    await delete(store, TABLE, METRIC, b"a")
    store.plan = [Fault.REFUSED]
    await watched.round()
    assert watched.drops == 0
    await watched.round()
    assert watched.drops == 1


async def test_full_cache_is_dropped_at_the_end_of_a_round(autojump_clock: MockClock) -> None:
    """Series that came long ago may still use them."""
    store = await made()
    watched = Watched(store, name_cache=2, id_cache=2)

    async def find_more() -> None:
        await watched.uids.find_or_assign(METRIC, [b"b", b"c", b"d"])

    await watched.uids.find_or_assign(METRIC, [b"a"])
    store.before["get"] = find_more
    await watched.round()
    assert watched.drops == 1
    await watched.round()
    assert watched.drops == 1


async def test_lookup_during_a_drop_is_not_cached() -> None:
    store = await made()
    await Uids(store, TABLE, Widths()).find_or_assign(METRIC, [b"a"])
    uids = Uids(store, TABLE, Widths())

    async def drop() -> None:
        uids.drop_caches()

    store.before["get"] = drop
    assert await uids.find(METRIC, [b"a"]) == {b"a": b"\0\0\1"}
    store.before["get"] = drop
    assert await uids.names(METRIC, [b"\0\0\1"]) == {b"\0\0\1": b"a"}
    assert uids.statistics()[METRIC].cached == 0
    assert await uids.find(METRIC, [b"a"]) == {b"a": b"\0\0\1"}
    assert uids.statistics()[METRIC].cached == 1


async def test_series_resolved_during_a_drop_gets_the_new_uids() -> None:
    store = await made()
    uids = Uids(store, TABLE, Widths())
    names = UidResolver(uids, KeyLayout(), AutoCreate(True, True, True))
    await uids.find_or_assign(METRIC, [b"a"])
    text = SeriesText(b"a", b"host=x")

    async def rename_and_drop() -> None:
        await rename(store.store, TABLE, METRIC, b"a", b"b")
        uids.drop_caches()

    store.before["get"] = rename_and_drop  # the metric is known: it is the tags that are looked for
    found = await names.resolve([text])
    assert (list(found.keys), found.refused) == ([SeriesKey(b"\0\0\2", bytes.fromhex("000001000001"))], {})


async def empty(store: InterferingStore) -> None:
    """Delete all cells, as `truncate` in HBase's shell does."""
    page = await store.store.page(TABLE, b"", None, limit=1000)
    await store.store.delete(TABLE, {row.key: [cell.column for cell in row.cells] for row in page.rows}, up_to_ms=None)


@pytest.mark.parametrize("refilled", [0, 1, 2])
async def test_replaced_table_is_noticed_soon(autojump_clock: MockClock, nursery: trio.Nursery, refilled: int) -> None:
    """Regression: the UIDs of the old table were used until all cached names had been looked up again."""
    store = await made()
    watched = Watched(store)
    await watched.uids.find_or_assign(METRIC, [b"a", b"b", b"c"])
    nursery.start_soon(watch_counters, watched.uids, 10, watched.drop)
    await trio.sleep(100)
    assert watched.drops == 0
    await empty(store)
    others = [b"other%d" % number for number in range(refilled)]
    await Uids(store.store, TABLE, Widths()).find_or_assign(METRIC, others)
    await trio.sleep(11)
    assert watched.drops == 1
    assert await watched.uids.find_or_assign(METRIC, [b"c"]) == {b"c": bytes((0, 0, refilled + 1))}
    assert watched.uids.statistics()[METRIC].used == refilled + 1
    await trio.sleep(100)
    assert watched.drops == 1


async def test_replaced_table_is_noticed_by_an_assignment(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """It counts up before the counters are read again."""
    store = await made()
    watched = Watched(store)
    await watched.uids.find_or_assign(METRIC, [b"a", b"b"])
    nursery.start_soon(watch_counters, watched.uids, 10, watched.drop)
    await trio.sleep(1)
    await empty(store)
    await watched.uids.find_or_assign(METRIC, [b"c", b"d", b"e"])
    await trio.sleep(10)
    assert watched.drops == 1


async def test_counters_of_others_and_missing_ones_replace_no_table(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """UIDs may be assigned while the counters are read, and random ones have none."""
    store = await made()
    watched = Watched(store)
    nursery.start_soon(watch_counters, watched.uids, 10, watched.drop)
    for number in range(1, 100, 7):
        await store.store.put(TABLE, [Put(COUNTER_ROW, id_column(METRIC), encode_counter(number))])
        await trio.sleep(7)

    async def assign() -> None:
        await watched.uids.find_or_assign(METRIC, [b"a"])

    store.before["get"] = assign
    await trio.sleep(50)
    assert watched.drops == 0
