"""Rows and parts of rows taken out of a store while others write to them."""

from dataclasses import replace

import pytest

from tests.flaky_store import FlakyStore
from tests.interfering_store import InterferingStore
from tests.unit.codec.codec_rows import KEY, cells, show
from tests.unit.query.engines import DATA, NOW_MS, START_S, QueryEnvironment, make_query
from tests.unit.tables.compaction.parts import compactor
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.row import Span, data_cells, removal
from tsd.store import Family, Put, Row, Table, scan
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.delete import BUSY_MS, RowRemoval, remove_joined, remove_parts, remove_rows

TABLE = "tsdb"
READ_MS = 10_000
OLDEST = Span(-1, 1)
AMBIGUOUS = "0000f000fa00=010201@5 f00000000010=030401@5"  # cut, the other cell's value would count: see codec's test


async def made(text: str) -> InterferingStore:
    store = InterferingStore(MemoryStore(lambda: READ_MS + 1))
    await store.create_tables([Table(TABLE, (Family(COLUMN[:-1]),))])
    for cell in cells(text):
        await store.put(TABLE, [Put(KEY, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)
    store.calls.clear()
    return store


async def part_of(store: InterferingStore, span: Span) -> RowRemoval:
    row = Row(KEY, (await store.store.get(TABLE, [KEY]))[KEY])
    return RowRemoval(row, removal(KEY, data_cells(row.cells), span))


async def held(store: InterferingStore) -> str:
    return show(data_cells((await store.store.get(TABLE, [KEY])).get(KEY, [])))


async def test_rewritten_cells_are_older_than_later_writes() -> None:
    """Regression: it was written at the store's present, over a value that had just come."""
    store = await made(AMBIGUOUS)
    part = await part_of(store, OLDEST)
    assert part.removal.puts is None
    await store.store.put(TABLE, [Put(KEY, COLUMN + bytes.fromhex("f000fa00"), b"\x09")], time_ms=READ_MS)
    assert await remove_parts(store, TABLE, [part], read_ms=READ_MS) == set()
    assert await held(store) == "f000fa00=09"


async def test_busy_row_is_kept() -> None:
    store = await made("00000010=2a2b00@9999")
    store.capabilities = replace(store.capabilities, ascending_timestamps=False)
    part = await part_of(store, OLDEST)
    before = await held(store)
    assert await remove_parts(store, TABLE, [part], read_ms=READ_MS) == {KEY}
    assert await held(store) == before
    assert await remove_parts(store, TABLE, [part], read_ms=READ_MS + BUSY_MS) == set()
    assert await held(store) == "0010=2b"


async def test_row_whose_append_column_grows_meanwhile_is_left_for_another_try() -> None:
    store = await made("050000=00002a00102b@5 0020=2c@5")
    span = Span(1000, 3_600_000)
    part = await part_of(store, span)
    grown = bytes.fromhex("00002a00102b00302d")

    async def append() -> None:
        await store.store.put(TABLE, [Put(KEY, COLUMN + bytes.fromhex("050000"), grown)])

    store.before["check_and_put"] = append
    assert await remove_parts(store, TABLE, [part], read_ms=READ_MS) == {KEY}
    assert await held(store) == "0020=2c 050000=00002a00102b00302d"
    assert await remove_parts(store, TABLE, [await part_of(store, span)], read_ms=READ_MS) == set()
    assert await held(store) == "050000=00002a"


async def test_cells_of_many_times_are_deleted_with_one_call() -> None:
    store = await made(" ".join(f"00{offset:02x}=2a@{offset + 1}" for offset in range(0, 256, 16)))
    assert await remove_parts(store, TABLE, [await part_of(store, Span(0, 3_600_000))], read_ms=READ_MS) == set()
    assert await held(store) == ""
    assert store.calls == ["sync", "delete"]


async def test_cells_of_a_busy_row_are_deleted_at_their_own_times() -> None:
    store = await made(f"0000=2a@5 0010=2b@{READ_MS}")
    part = await part_of(store, Span(0, 3_600_000))
    await store.store.put(TABLE, [Put(KEY, COLUMN + b"\0\0", b"\x09")], time_ms=READ_MS)
    assert await remove_parts(store, TABLE, [part], read_ms=READ_MS) == set()
    assert await held(store) == "0000=09"


async def test_query_deletes_points_that_a_compaction_has_joined_since_they_were_read() -> None:
    store = InterferingStore(MemoryStore(lambda: NOW_MS))
    env = await QueryEnvironment.build([f"m {START_S} 1 host=a"], store=store)
    await env.put([f"m {START_S + 10} 2 host=a"])
    assert DATA == TABLE
    [[key, before]] = [(row.key, row.cells) async for page in scan(store.store, DATA) for row in page]
    assert len(before) == 2

    async def compact() -> None:
        assert await compactor(store.store).compact_keys([key]) == []
        assert len((await store.store.get(DATA, [key]))[key]) == 1

    store.before["delete"] = compact
    await env.engine.run(replace(make_query("sum:m"), delete=True))
    assert await store.store.get(DATA, [key]) == {}


async def test_points_that_a_query_deletes_are_deleted_after_a_loss_of_power() -> None:
    """Regression: while an hour was open, nothing else synced the store until its end."""
    store = FlakyStore(MemoryStore(lambda: NOW_MS))
    env = await QueryEnvironment.build([f"m {START_S} 1 host=a"], store=store)
    await env.engine.run(replace(make_query("sum:m"), delete=True))
    assert "delete" in store.calls
    assert store.calls[-1] == "sync"


@pytest.mark.parametrize("ascending", [True, False])
async def test_cells_written_since_a_row_was_read_are_kept(ascending: bool) -> None:
    store = await made(f"0000=2a@5 0010=2b@{READ_MS}")
    store.capabilities = replace(store.capabilities, ascending_timestamps=ascending)
    row = Row(KEY, (await store.store.get(TABLE, [KEY]))[KEY])
    await store.store.put(TABLE, [Put(KEY, COLUMN + b"\0\x20", b"\x09")], time_ms=READ_MS + ascending)
    await remove_rows(store, TABLE, [row], read_ms=READ_MS)
    await remove_joined(store, TABLE, [row], read_ms=READ_MS)
    assert await held(store) == "0020=09"
