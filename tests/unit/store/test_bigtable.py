"""Bigtable's emulator: what the engine checks itself, and its timestamps. What calls do is held against a model in
tests/property/test_stores.py."""

from collections.abc import AsyncIterator

import pytest
import trio

from tests.peers.bigtable import RunningBigtable
from tests.unit.store.counters import check_increments
from tsd.daemon.settings import now_ms
from tsd.errors import InvalidCell, NoTable, StoreDown, StoreError
from tsd.store import Family, Put, Table, scan
from tsd.store.bigtable.engine import BigtableStore

pytestmark = [pytest.mark.bigtable, pytest.mark.slow]
TABLE = Table("some-cells", (Family(b"t"),))
ROW, COLUMN = b"row", b"t:"
HOUR_MS = 3_600_000


@pytest.fixture
async def store(bigtable: RunningBigtable) -> AsyncIterator[BigtableStore]:
    """A store with one table in an instance of its own."""
    store = bigtable.store(bigtable.unused_instance())
    assert await store.create_tables([TABLE]) == [TABLE.name]
    yield store
    await store.aclose()


async def test_rows_of_several_requests_come_in_order(store: BigtableStore) -> None:
    rows = [bytes([a, b, c]) for a in range(12) for b in range(100) for c in (0, 255)]
    await store.put(TABLE.name, [Put(row, COLUMN, b"v") for row in reversed(rows)])
    found = [row.key async for page in scan(store, TABLE.name, limit=700) for row in page]
    assert found == rows
    assert sorted(await store.get(TABLE.name, rows)) == rows


async def test_many_named_columns_are_all_found(store: BigtableStore) -> None:
    columns = [b"t:%030d" % number for number in range(1200)]
    await store.put(TABLE.name, [Put(ROW, column, b"v") for column in columns])
    found = await store.get(TABLE.name, [ROW], columns=columns[1:])
    assert [cell.column for cell in found[ROW]] == columns[1:]
    page = await store.page(TABLE.name, b"", None, limit=9, columns=columns[1:])
    assert [cell.column for cell in page.rows[0].cells] == columns[1:]


async def test_conditional_write_replaces_a_future_timestamp(store: BigtableStore) -> None:
    await store.put(TABLE.name, [Put(ROW, COLUMN, b"ahead")], time_ms=now_ms() + HOUR_MS)
    assert await store.check_and_put(TABLE.name, ROW, COLUMN, b"new", expected=b"ahead")
    [cell] = (await store.get(TABLE.name, [ROW]))[ROW]
    assert cell.value == b"new"
    assert cell.time_ms < now_ms() + HOUR_MS


async def test_late_put_of_an_older_time_shows_after_delete(store: BigtableStore) -> None:
    for time_ms in (3000, 1000):
        await store.put(TABLE.name, [Put(ROW, COLUMN, b"%d" % time_ms)], time_ms=time_ms)
    await store.delete(TABLE.name, {ROW: [COLUMN]}, up_to_ms=3000)
    assert await store.get(TABLE.name, [ROW]) == {}
    await store.put(TABLE.name, [Put(ROW, COLUMN, b"late")], time_ms=2000)
    assert (await store.get(TABLE.name, [ROW]))[ROW][0].value == b"late"


async def test_increments_of_two_stores_are_all_counted(bigtable: RunningBigtable) -> None:
    instance = bigtable.unused_instance()
    await check_increments([bigtable.store(instance) for _ in range(2)])


async def test_counter_of_another_length_is_an_error(store: BigtableStore) -> None:
    await store.put(TABLE.name, [Put(ROW, COLUMN, b"text")])
    with pytest.raises(StoreError):
        await store.increment(TABLE.name, ROW, COLUMN, 1)


@pytest.mark.parametrize(
    "cell",
    [Put(b"", COLUMN, b""), Put(bytes(4097), COLUMN, b""), Put(ROW, b"t:" + bytes(16 << 10), b""), Put(ROW, b"t", b"")],
    ids=["empty key", "long key", "long qualifier", "no family"],
)
async def test_cells_that_the_service_refuses_are_refused(store: BigtableStore, cell: Put) -> None:
    with pytest.raises(InvalidCell):
        await store.put(TABLE.name, [Put(ROW, COLUMN, b"v"), cell])
    assert await store.get(TABLE.name, [ROW]) == {}


async def test_missing_table_and_missing_family_are_named(store: BigtableStore) -> None:
    with pytest.raises(NoTable, match=r"\bother\b"):
        await store.get("other", [ROW])
    with pytest.raises(StoreError, match=r"\bzz\b"):
        await store.put(TABLE.name, [Put(ROW, b"zz:", b"")])
    with pytest.raises(StoreError, match=r"\bzz\b"):
        await store.create_tables([Table(TABLE.name, (Family(b"zz"),))])


async def test_cancelled_calls_leave_the_store_usable(bigtable: RunningBigtable) -> None:
    own = bigtable.store(bigtable.unused_instance())
    await own.create_tables([TABLE])
    bigtable.pause()
    try:
        for call in (own.get(TABLE.name, [ROW]), own.increment(TABLE.name, ROW, COLUMN, 1)):
            with trio.move_on_after(0.05) as scope:
                await call
            assert scope.cancelled_caught
    finally:
        bigtable.resume()
    await own.put(TABLE.name, [Put(ROW, b"t:a", b"v")])
    await own.aclose()


async def test_silent_server_is_a_timeout_and_is_used_again(bigtable: RunningBigtable) -> None:
    own = bigtable.store(bigtable.unused_instance(), timeout_s=1.0)
    await own.create_tables([TABLE])
    bigtable.pause()
    try:
        for call in (own.put(TABLE.name, [Put(ROW, COLUMN, b"")]), own.get(TABLE.name, [ROW]), own.tables()):
            with pytest.raises(StoreDown):
                await call
    finally:
        bigtable.resume()
    while True:
        try:
            await own.put(TABLE.name, [Put(ROW, COLUMN, b"after")])
            break
        except StoreDown:
            pass
    assert (await own.get(TABLE.name, [ROW]))[ROW][0].value == b"after"
    await own.aclose()
