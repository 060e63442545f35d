"""Cassandra through a proxy that misbehaves, and its timestamps. What calls do is held against a model in
tests/property/test_stores.py."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import trio

from tests.peers.cassandra import RunningCassandra
from tests.unit.store.counters import check_increments
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode
from tsd.daemon.settings import now_ms
from tsd.errors import NoTable, StoreDown, StoreError, WrongClock
from tsd.store import Cell, Cursor, Family, Put, StampedDelete, StampedPut, StampedSpan, Table, cell_pages, scan
from tsd.store.cassandra.engine import CassandraStore
from tsd.store.cassandra.keys import Prefixes

pytestmark = [pytest.mark.cassandra, pytest.mark.slow]
TABLE = Table("some-cells", (Family(b"t"),))
ROW, COLUMN = b"row", b"t:"
HOUR_MS = 3_600_000


@pytest.fixture
async def store(cassandra: RunningCassandra) -> AsyncIterator[CassandraStore]:
    """A store with one table in a keyspace of its own."""
    store = cassandra.store(cassandra.unused_keyspace(), widths=Prefixes(1, 2))
    assert await store.create_tables([TABLE], compression="ZSTD") == [TABLE.name]
    yield store
    await store.aclose()


async def test_rows_of_many_partitions_come_in_order(store: CassandraStore) -> None:
    rows = [bytes([a, b, c]) for a in range(3) for b in range(100) for c in (0, 255)]
    await store.put(TABLE.name, [Put(row, COLUMN, b"v") for row in reversed(rows)])
    found = [row.key async for page in scan(store, TABLE.name, limit=7) for row in page]
    assert found == rows
    within = [row.key async for page in scan(store, TABLE.name, b"\0\x50", b"\2\1\1") for row in page]
    assert within == [row for row in rows if b"\0\x50" <= row < b"\2\1\1"]


async def test_pages_of_cells_have_whole_rows_of_dense_and_of_sparse_partitions(store: CassandraStore) -> None:
    sizes = {b"\0\0": (2500, 1), b"\0\1": (1, 3), b"\0\2": (2, 4100), **{b"\1" + bytes([n]): (1, 1) for n in range(20)}}
    cells = [
        Put(part + n.to_bytes(2, "big"), COLUMN + m.to_bytes(2, "big"), b"%d" % m)
        for part, (rows, columns) in sizes.items()
        for n in range(rows)
        for m in range(columns)
    ]
    await store.put(TABLE.name, cells)
    for limit_bytes in (1, 300, 2 << 20):
        found = []
        async with aclosing(cell_pages(store, TABLE.name, b"", None, limit_bytes=limit_bytes)) as pages:
            last = b""
            async for page in pages:
                assert page.keys[0] > last
                last = page.keys[-1]
                found += list(map(Put, page.keys, page.columns, page.values))
        assert found == cells
    stop = b"\0\0" + (2400).to_bytes(2, "big")
    within = [key async for page in cell_pages(store, TABLE.name, cells[7].row, stop) for key in page.keys]
    assert within == [cell.row for cell in cells[7:2400]]


async def test_scan_finds_partitions_that_are_newer_than_the_last_one(store: CassandraStore) -> None:
    for row in (b"\5\1r", b"\5\3r", b"\5\5r", b"\5\2r", b"\5\0r", b"\5\4r"):
        rows = await _rows(store, b"\5", b"\6")
        await store.put(TABLE.name, [Put(row, COLUMN, b"v")])
        assert await _rows(store, b"\5", b"\6") == sorted([*rows, row])
        assert await _rows(store, b"\5", b"\5\3") == [one for one in sorted([*rows, row]) if one < b"\5\3"]


async def test_scan_that_ends_early_leaves_nothing_open(store: CassandraStore) -> None:
    rows = [bytes([3, part, 0]) for part in range(40)]
    await store.put(TABLE.name, [Put(row, COLUMN, b"v") for row in rows])
    reader, cursor = store.cell_reader, Cursor()
    assert reader is not None
    page = await reader.read_cells(TABLE.name, b"\3", b"\4", limit_bytes=1, cursor=cursor)
    assert page.next_start == rows[len(page.keys)][:2]
    # another start with the same cursor is a new scan
    other = await reader.read_cells(TABLE.name, rows[20], b"\4", limit_bytes=1, cursor=cursor)
    assert other.keys[0] == rows[20]
    for _ in range(2):
        await reader.close_cursor(TABLE.name, cursor)
    again = await reader.read_cells(TABLE.name, b"\3", b"\4", limit_bytes=1, cursor=cursor)
    await reader.close_cursor(TABLE.name, cursor)
    assert again.keys == page.keys


async def _rows(store: CassandraStore, start: bytes, stop: bytes) -> list[bytes]:
    return [key async for page in cell_pages(store, TABLE.name, start, stop) for key in page.keys]


async def test_later_of_two_puts_with_one_timestamp_wins(store: CassandraStore) -> None:
    for value in (b"zz", b"a", b"m", b"m"):
        await store.put(TABLE.name, [Put(ROW, COLUMN, value)], time_ms=1500)
        [cell] = (await store.get(TABLE.name, [ROW]))[ROW]
        assert (cell.value, cell.time_ms) == (value, 1500)


async def test_cells_with_timestamps_of_their_own(store: CassandraStore) -> None:
    stamped = store.stamped_cells
    assert stamped is not None
    puts = [StampedPut(bytes([a, b, 0]), COLUMN + name, bytes(40), 1000 + b) for a in range(3) for b in range(200)
            for name in (b"1", b"2")]  # fmt: skip
    await stamped.put(TABLE.name, puts)
    places = [(put.row, put.column) for put in puts if put.column != COLUMN + b"1"]
    found = await stamped.get(TABLE.name, [*places, (b"none", COLUMN)])
    assert found == {put.row: [Cell(*put[1:])] for put in puts if (put.row, put.column) in places}
    deleted = [StampedDelete(put.row, put.column, 1000 + 99) for put in puts]
    await stamped.delete(TABLE.name, deleted)
    left = await store.get(TABLE.name, [put.row for put in puts])
    assert set(left) == {put.row for put in puts if put.time_ms > 1000 + 99}
    for time_ms in (-1, 2**63):
        with pytest.raises(StoreError, match="write timestamp"):
            await stamped.put(TABLE.name, [StampedPut(ROW, COLUMN, b"v", time_ms)])
    await stamped.put(TABLE.name, [])
    await stamped.delete(TABLE.name, [])
    assert await stamped.get(TABLE.name, []) == {}


async def test_put_that_took_minutes_is_an_error(cassandra: RunningCassandra) -> None:
    clock = iter([0.0, 121_000.0, 121_000.0, 240_000.0])  # before and after each put
    store = cassandra.store(cassandra.unused_keyspace(), elapsed_ms=clock.__next__)
    await store.create_tables([TABLE])
    with pytest.raises(StoreDown, match="a put took 121 s"):
        await store.put(TABLE.name, [Put(ROW, COLUMN, b"v")])
    await store.put(TABLE.name, [Put(ROW, COLUMN, b"v")])
    await store.aclose()


async def test_put_after_another_has_a_later_millisecond(cassandra: RunningCassandra) -> None:
    """Readers compare milliseconds to choose the newest of several cells with one point."""
    store = cassandra.store(cassandra.unused_keyspace(), clock_ms=lambda: 1_700_000_000_000)
    await store.create_tables([TABLE])
    for name in (b"3", b"1", b"2"):
        await store.put(TABLE.name, [Put(ROW, COLUMN + name, b"v")])
    times_ms = {cell.column[len(COLUMN) :]: cell.time_ms for cell in (await store.get(TABLE.name, [ROW]))[ROW]}
    assert times_ms[b"3"] < times_ms[b"1"] < times_ms[b"2"]
    await store.aclose()


@pytest.mark.parametrize("set_ms", [-5 * 60_000, 5 * 60_000])
async def test_nothing_is_written_while_the_clock_is_wrong(cassandra: RunningCassandra, set_ms: int) -> None:
    ahead_ms = 0
    store = cassandra.store(cassandra.unused_keyspace(), clock_ms=lambda: now_ms() + ahead_ms, clock_limit_ms=50_000)
    await store.create_tables([TABLE])
    stamped = store.stamped_cells
    assert stamped is not None
    assert "clock_ahead_ms" not in store.statistics()
    await store.put(TABLE.name, [Put(ROW, COLUMN, b"v")])
    assert abs(store.statistics()["clock_ahead_ms"]) < 50_000
    ahead_ms = set_ms
    for refused in (
        store.put(TABLE.name, [Put(ROW, COLUMN, b"w")]),
        store.put(TABLE.name, [Put(ROW, COLUMN, b"w")], time_ms=now_ms()),
        store.delete(TABLE.name, {ROW: [COLUMN]}, up_to_ms=None),
        stamped.put(TABLE.name, [StampedPut(ROW, COLUMN, b"w", now_ms())]),
        stamped.delete(TABLE.name, [StampedDelete(ROW, COLUMN, now_ms())]),
        stamped.delete_spans(TABLE.name, [StampedSpan(ROW, COLUMN, COLUMN, now_ms())]),
        stamped.delete_rows(TABLE.name, ROW, ROW + b"\0", up_to_ms=now_ms()),
    ):
        with pytest.raises(WrongClock, match=r"\d+\.\d s"):
            await refused
    assert abs(store.statistics()["clock_ahead_ms"] - set_ms) < 50_000
    assert (await store.get(TABLE.name, [ROW]))[ROW][0].value == b"v"
    ahead_ms = 0
    await store.put(TABLE.name, [Put(ROW, COLUMN, b"w")])
    assert (await store.get(TABLE.name, [ROW]))[ROW][0].value == b"w"
    await store.aclose()


async def test_conditional_write_under_a_future_timestamp_is_an_error(store: CassandraStore) -> None:
    await store.put(TABLE.name, [Put(ROW, COLUMN, b"ahead")], time_ms=now_ms() + HOUR_MS)
    with pytest.raises(StoreError, match=rf"\b{ROW.hex()}\b.*\b{COLUMN.hex()}\b"):
        await store.check_and_put(TABLE.name, ROW, COLUMN, b"new", expected=b"ahead")
    assert not await store.check_and_put(TABLE.name, ROW, COLUMN, b"new", expected=b"other")


async def test_cells_of_one_partition_are_each_created_once(cassandra: RunningCassandra) -> None:
    keyspace = cassandra.unused_keyspace()
    stores = [cassandra.store(keyspace) for _ in range(2)]
    await stores[0].create_tables([TABLE])
    rows = [b"part%03d" % n for n in range(150)]  # more than a batch
    await stores[0].put(TABLE.name, [Put(rows[7], COLUMN, b"there"), Put(rows[120], COLUMN, b"")])
    created: list[tuple[bytes, bytes]] = []

    async def create(store: CassandraStore, value: bytes) -> None:
        written = await store.create(TABLE.name, [Put(row, COLUMN, value) for row in rows])
        created.extend((row, value) for row, is_new in zip(rows, written, strict=True) if is_new)

    async with trio.open_nursery() as nursery:
        for number, value in enumerate((b"a", b"b", b"c")):
            nursery.start_soon(create, stores[number % 2], value)
    found = {row: cells[0].value for row, cells in (await stores[1].get(TABLE.name, rows)).items()}
    for store in stores:
        await store.aclose()
    assert len(created) == 149
    assert found == dict(created) | {rows[7]: b"there"}


async def test_a_cell_under_a_later_delete_is_created_or_told(store: CassandraStore) -> None:
    hidden = Put(b"part1", COLUMN, b"v")
    await store.put(TABLE.name, [hidden])
    await store.delete(TABLE.name, {hidden.row: [COLUMN]}, up_to_ms=now_ms() + HOUR_MS)
    with pytest.raises(StoreError, match=rf"\b{hidden.row.hex()}\b"):
        await store.create(TABLE.name, [hidden, Put(b"part2", COLUMN, b"v")])
    assert list(await store.get(TABLE.name, [hidden.row, b"part2"])) == [b"part2"]


async def test_increments_of_two_stores_are_all_counted(cassandra: RunningCassandra) -> None:
    keyspace = cassandra.unused_keyspace()
    await check_increments([cassandra.store(keyspace) for _ in range(2)])


async def test_missing_table_is_named(store: CassandraStore) -> None:
    with pytest.raises(NoTable, match=r"\bother\b"):
        await store.get("other", [ROW])


async def test_table_name_that_is_taken_is_refused(store: CassandraStore) -> None:
    with pytest.raises(StoreError, match=rf"\b{TABLE.name}\b"):
        await store.create_tables([Table("some_cells", (Family(b"t"),))])


async def test_silent_node_is_a_timeout_and_is_used_again(cassandra: RunningCassandra) -> None:
    keyspace = cassandra.unused_keyspace()
    own = cassandra.store(keyspace)
    await own.create_tables([TABLE])
    with FaultyProxy(cassandra.host, cassandra.port) as proxy:
        store = cassandra.store(keyspace, port=proxy.port, timeout_s=2.0)
        try:
            await _put_patiently(store, b"before")
            proxy.mode = ProxyMode.HANG
            with pytest.raises(StoreDown):
                await store.put(TABLE.name, [Put(ROW, COLUMN, b"lost")])
            proxy.mode = ProxyMode.PASS
            await _put_patiently(store, b"after")
            [cell] = (await own.get(TABLE.name, [ROW]))[ROW]
            assert cell.value == b"after"
        finally:
            await store.aclose()
            await own.aclose()


async def _put_patiently(store: CassandraStore, value: bytes) -> None:
    """Put a value as often as it takes: the driver has to connect again, and a busy machine may be slow."""
    while True:
        try:
            await store.put(TABLE.name, [Put(ROW, COLUMN, value)])
            return
        except StoreDown:
            pass


async def test_repeated_answers_are_never_taken_for_others(cassandra: RunningCassandra) -> None:
    """Regression: two requests shared a stream ID after an answer that came twice."""
    values = {b"%03d" % number: b"value %03d" % number for number in range(200)}
    keyspace = cassandra.unused_keyspace()
    own = cassandra.store(keyspace)  # with time to create a keyspace
    await own.create_tables([TABLE])
    await own.put(TABLE.name, [Put(row, COLUMN, value) for row, value in values.items()])
    await own.aclose()
    with FaultyProxy(cassandra.host, cassandra.port) as proxy:
        store = cassandra.store(keyspace, port=proxy.port, timeout_s=2.0)
        found: dict[bytes, bytes] = {}

        async def read(row: bytes) -> None:
            try:
                [cell] = (await store.get(TABLE.name, [row]))[row]
            except StoreDown:
                return
            found[row] = cell.value

        async def read_all() -> None:
            found.clear()
            async with trio.open_nursery() as nursery:
                for row in values:
                    nursery.start_soon(read, row)
            assert found.items() <= values.items()

        try:
            for _ in range(2):
                proxy.mode = ProxyMode.REPEAT
                await read_all()
                proxy.mode = ProxyMode.PASS
                while len(found) < len(values):
                    await read_all()
        finally:
            await store.aclose()


async def test_span_of_a_row_is_deleted_up_to_a_timestamp(store: CassandraStore) -> None:
    stamped = store.stamped_cells
    assert stamped is not None
    rows = [b"\0\0a", b"\0\0b", b"\0\1c"]
    names = [COLUMN + bytes([n]) for n in range(8)]
    await stamped.put(
        TABLE.name, [StampedPut(row, name, b"v", 1000 + n) for row in rows for n, name in enumerate(names)]
    )
    await stamped.delete_spans(TABLE.name, [StampedSpan(row, names[2], names[6], 1005) for row in rows[1:]])
    found = await store.get(TABLE.name, rows)
    assert [cell.column for cell in found[rows[0]]] == names
    for row in rows[1:]:
        assert [cell.column for cell in found[row]] == [*names[:2], *names[6:]]
    await stamped.put(
        TABLE.name, [StampedPut(rows[1], names[3], b"old", 1005), StampedPut(rows[1], names[4], b"new", 1006)]
    )
    assert [cell.value for cell in (await store.get(TABLE.name, [rows[1]], columns=names[3:5]))[rows[1]]] == [b"new"]
    with pytest.raises(StoreError, match=r"timestamp: got -1 ms"):
        await stamped.delete_spans(TABLE.name, [StampedSpan(rows[0], COLUMN, COLUMN, -1)])


async def test_rows_of_many_partitions_are_deleted_up_to_a_timestamp(store: CassandraStore) -> None:
    stamped = store.stamped_cells
    assert stamped is not None
    rows = [bytes([1, part, row]) for part in range(40) for row in range(3)]
    await stamped.put(TABLE.name, [StampedPut(row, COLUMN, b"v", 1000) for row in rows])
    late = rows[50]
    await stamped.put(TABLE.name, [StampedPut(late, COLUMN, b"v", 2000)])
    for start, stop, kept in (
        (rows[1], rows[2], {rows[1]}),  # within a partition
        (rows[4], rows[100], {*rows[4:100]} - {late}),
        (b"\2", b"\3", set()),
    ):
        await stamped.delete_rows(TABLE.name, start, stop, up_to_ms=1999)
        rows = [row for row in rows if row not in kept]
        assert await _rows(store, b"\1", b"\2") == rows
    await stamped.delete_rows(TABLE.name, b"\1", b"\2", up_to_ms=2000)
    assert await _rows(store, b"\1", b"\2") == []


async def test_rows_among_more_deletes_than_cassandra_reads_past(store: CassandraStore) -> None:
    stamped = store.stamped_cells
    assert stamped is not None
    rows = [b"\0\0" + n.to_bytes(3, "big") for n in range(0, 3500, 7)]
    names = [COLUMN + n.to_bytes(2, "big") for n in range(300)]  # 500 x 299 deletes; Cassandra allows 100,000
    await store.put(TABLE.name, [Put(row, name, b"v") for row in rows for name in names])
    await stamped.delete(TABLE.name, [StampedDelete(row, name, now_ms()) for row in rows for name in names[:-1]])
    kept = {row: [names[-1]] for row in rows}
    assert await _rows(store, b"\0", b"\1") == rows
    assert [row.key async for page in scan(store, TABLE.name, limit=1000) for row in page] == rows
    found = await store.get(TABLE.name, rows)
    assert {row: [cell.column for cell in cells] for row, cells in found.items()} == kept
    # one tombstone in place of many
    await stamped.delete_rows(TABLE.name, rows[0], b"\0\1", up_to_ms=now_ms())
    assert await _rows(store, b"\0", b"\1") == []
