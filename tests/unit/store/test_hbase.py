"""HBase through gateways that misbehave. What the calls do is held against a model in tests/property/test_stores.py."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial

import happybase  # noqa: TID251 (the judge must not be the code it judges)
import pytest
import trio
from trio.testing import MockClock

from tests.peers.hbase import RunningHbase
from tests.unit.store.scripted import BusyGateway
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode
from tsd.errors import InvalidCell, NoTable, StoreBusy, StoreDown, StoreError, WrongTable
from tsd.store import Cell, Family, Put, Store, Table, scan
from tsd.store.hbase.engine import HBaseStore

ROW, COLUMN = b"row", b"t:"
PATIENCE_S = 20.0  # of calls that are meant to be answered
BACKOFF_OVER_S = 20  # longer than any backoff
IDLE_TOO_LONG_S = 3600
MANY_ROWS = 6000  # more than one request puts
ENDLESS_S = 3600  # a test that waits for such a call fails
SHORT_S = 3  # of those that are not; what is answered on a busy machine comes before it


@pytest.fixture
def proxy(hbase: RunningHbase) -> Iterator[FaultyProxy]:
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        yield proxy


@pytest.fixture
def running_clock() -> MockClock:
    """A clock that runs as usual, and that a test can set forward."""
    return MockClock(rate=1.0)


@pytest.fixture
async def table(hbase: RunningHbase) -> str:
    """The name of a new table with a family t."""
    name = hbase.unused_tables().data
    async with opened(hbase) as store:
        await store.create_tables([Table(name, (Family(b"t"),))])
    return name


@asynccontextmanager
async def opened(
    *gateways: RunningHbase | FaultyProxy,
    connections: int = 4,
    timeout_s: float = PATIENCE_S,
    expected: Sequence[Table] = (),
) -> AsyncIterator[HBaseStore]:
    """A store on those gateways."""
    addresses = [(at.host, at.port if isinstance(at, FaultyProxy) else at.thrift_port) for at in gateways]
    store = HBaseStore(addresses, connections=connections, timeout_s=timeout_s, expected=expected)
    try:
        yield store
    finally:
        await store.aclose()


def disable(hbase: RunningHbase, table: str) -> None:
    with closing(happybase.Connection(hbase.host, hbase.thrift_port)) as judge:
        judge.disable_table(table)


def enable(hbase: RunningHbase, table: str) -> None:
    with closing(happybase.Connection(hbase.host, hbase.thrift_port)) as judge:
        judge.enable_table(table)


async def counter(hbase: RunningHbase, table: str) -> int:
    """The counter in ROW, as HBase has it."""
    async with opened(hbase) as store:
        return await store.increment(table, ROW, COLUMN, 0)


async def test_store_can_be_created_before_hbase_is_up(
    hbase: RunningHbase, table: str, proxy: FaultyProxy, running_clock: MockClock
) -> None:
    proxy.mode = ProxyMode.REFUSE
    async with opened(proxy) as store:
        with pytest.raises(StoreDown, match=f"{proxy.host}:{proxy.port}"):
            await store.tables()
        proxy.mode = ProxyMode.PASS
        with pytest.raises(StoreDown):
            await store.tables()
        running_clock.jump(BACKOFF_OVER_S)
        assert table in await store.tables()


async def test_gateway_restart_is_survived(hbase: RunningHbase, table: str, running_clock: MockClock) -> None:
    async with opened(hbase) as store:
        await store.put(table, [Put(ROW, COLUMN, b"before")])
        await trio.to_thread.run_sync(hbase.thrift_stop)
        with pytest.raises(StoreDown):
            await store.put(table, [Put(ROW, COLUMN, b"lost")])
        await trio.to_thread.run_sync(hbase.thrift_start)
        running_clock.jump(BACKOFF_OVER_S)
        [cell] = (await store.get(table, [ROW]))[ROW]
        assert cell.value == b"before"


async def test_dropped_idle_connections_are_replaced(hbase: RunningHbase, table: str, proxy: FaultyProxy) -> None:
    async with opened(proxy) as store:
        for value in (1, 2, 3):
            assert await store.increment(table, ROW, COLUMN, 1) == value
            proxy.disconnect_all()
        assert await store.get(table, [ROW])
        assert store.statistics()["connections_opened"] == 4
        assert store.statistics()["gateways_down"] == 0


async def test_old_idle_connections_are_not_used(
    hbase: RunningHbase, proxy: FaultyProxy, running_clock: MockClock
) -> None:
    async with opened(proxy) as store:
        await store.tables()
        running_clock.jump(IDLE_TOO_LONG_S)
        await store.tables()
        assert proxy.accepted == 2


async def test_call_on_reused_connection_is_retried_once(hbase: RunningHbase, table: str, proxy: FaultyProxy) -> None:
    async with opened(proxy) as store:
        await store.tables()
        proxy.mode = ProxyMode.CUT
        with pytest.raises(StoreDown):
            await store.put(table, [Put(ROW, COLUMN, b"v")])
        assert proxy.accepted == 2
        assert store.statistics()["retries"] == 1


async def test_call_on_new_connection_is_not_retried(hbase: RunningHbase, table: str, proxy: FaultyProxy) -> None:
    proxy.mode = ProxyMode.CUT
    async with opened(proxy) as store:
        with pytest.raises(StoreDown):
            await store.put(table, [Put(ROW, COLUMN, b"v")])
        assert proxy.accepted == 1


async def test_increment_with_lost_answer_counts_once(hbase: RunningHbase, table: str, proxy: FaultyProxy) -> None:
    async with opened(proxy) as store:
        await store.increment(table, ROW, COLUMN, 1)
        proxy.mode = ProxyMode.LOSE
        with pytest.raises(StoreDown):
            await store.increment(table, ROW, COLUMN, 1)
    assert await counter(hbase, table) == 2


async def test_create_with_lost_answer_can_be_read(
    hbase: RunningHbase, table: str, proxy: FaultyProxy, running_clock: MockClock
) -> None:
    async with opened(proxy) as store:
        await store.tables()
        proxy.mode = ProxyMode.LOSE
        with pytest.raises(StoreDown):
            await store.create(table, [Put(ROW, COLUMN, b"ours")])
        proxy.mode = ProxyMode.PASS
        running_clock.jump(BACKOFF_OVER_S)
        assert await store.create(table, [Put(ROW, COLUMN, b"other")]) == [False]
        assert (await store.get(table, [ROW]))[ROW][0].value == b"ours"


@pytest.mark.parametrize("mode", [ProxyMode.GARBLE, ProxyMode.REPEAT])
async def test_answer_to_another_call_is_refused(
    hbase: RunningHbase, table: str, proxy: FaultyProxy, mode: ProxyMode, running_clock: MockClock
) -> None:
    async with opened(proxy) as store:
        await store.increment(table, ROW, COLUMN, 5)
        proxy.mode = mode
        with pytest.raises(StoreDown):
            await store.increment(table, ROW, COLUMN, 1)
        proxy.mode = ProxyMode.PASS
        running_clock.jump(BACKOFF_OVER_S)
        assert await store.increment(table, ROW, COLUMN, 1) == 7
        assert proxy.accepted == 2


async def test_late_answer_is_not_used_for_a_later_call(
    hbase: RunningHbase, table: str, proxy: FaultyProxy, running_clock: MockClock
) -> None:
    async with opened(proxy, timeout_s=SHORT_S) as store:
        await store.increment(table, ROW, COLUMN, 5)
        proxy.mode = ProxyMode.HOLD
        with pytest.raises(StoreDown):
            await store.increment(table, ROW, COLUMN, 1)
        proxy.mode = ProxyMode.PASS
        running_clock.jump(BACKOFF_OVER_S)
        assert await store.increment(table, ROW, COLUMN, 1) == 7


async def test_cancelled_call_leaves_no_partial_answer(hbase: RunningHbase, table: str, proxy: FaultyProxy) -> None:
    async with opened(proxy, connections=1) as store:
        await store.increment(table, ROW, COLUMN, 5)
        proxy.mode = ProxyMode.HOLD
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.increment, table, ROW, COLUMN, 1)
            await trio.to_thread.run_sync(proxy.holding.wait)
            nursery.cancel_scope.cancel()
            proxy.mode = ProxyMode.PASS
        assert await store.increment(table, ROW, COLUMN, 1) == 7


async def test_cancelled_read_ends_at_once(hbase: RunningHbase, table: str, proxy: FaultyProxy) -> None:
    async with opened(proxy, connections=1, timeout_s=ENDLESS_S) as store:
        await store.put(table, [Put(ROW, COLUMN, b"v"), Put(b"other", COLUMN, b"w")])
        proxy.mode = ProxyMode.HOLD
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.get, table, [b"other"])
            await trio.to_thread.run_sync(proxy.holding.wait)
            nursery.cancel_scope.cancel()
        proxy.mode = ProxyMode.PASS
        assert list(await store.get(table, [ROW])) == [ROW]


async def test_read_from_a_silent_gateway_ends(
    hbase: RunningHbase, table: str, proxy: FaultyProxy, running_clock: MockClock
) -> None:
    async with opened(proxy, timeout_s=ENDLESS_S) as store:
        await store.put(table, [Put(ROW, COLUMN, b"v")])
        proxy.mode = ProxyMode.HOLD

        async def pass_time() -> None:
            await trio.to_thread.run_sync(proxy.holding.wait)
            running_clock.jump(2 * ENDLESS_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_time)
            with pytest.raises(StoreDown, match="in time"):
                await store.get(table, [ROW])
        proxy.mode = ProxyMode.PASS
        running_clock.jump(BACKOFF_OVER_S)
        assert list(await store.get(table, [ROW])) == [ROW]


async def test_silent_gateway_times_out_once(hbase: RunningHbase, proxy: FaultyProxy, running_clock: MockClock) -> None:
    proxy.mode = ProxyMode.HANG
    async with opened(proxy, timeout_s=SHORT_S) as store:
        with pytest.raises(StoreDown):
            await store.tables()
        for _ in range(3):
            with pytest.raises(StoreDown):
                await store.tables()
        assert proxy.accepted == 1
        proxy.mode = ProxyMode.PASS
        running_clock.jump(BACKOFF_OVER_S)
        await store.tables()


async def test_call_does_not_wait_for_a_gateway_that_stays_away(
    hbase: RunningHbase, table: str, proxy: FaultyProxy, running_clock: MockClock
) -> None:
    async with opened(proxy, timeout_s=ENDLESS_S) as store:
        assert await store.increment(table, ROW, COLUMN, 1) == 1
        proxy.mode = ProxyMode.REFUSE
        with pytest.raises(StoreDown):
            await store.increment(table, ROW, COLUMN, 1)
        proxy.mode = ProxyMode.HANG
        running_clock.jump(BACKOFF_OVER_S)
        with pytest.raises(StoreDown):
            await store.increment(table, ROW, COLUMN, 1)
        proxy.mode = ProxyMode.PASS
        running_clock.jump(BACKOFF_OVER_S)
        assert await store.increment(table, ROW, COLUMN, 1) == 2


async def test_calls_use_the_gateway_that_answers(hbase: RunningHbase, table: str, proxy: FaultyProxy) -> None:
    with FaultyProxy(hbase.host, hbase.thrift_port) as other:
        async with opened(proxy, other) as store:
            for _ in range(4):
                await store.increment(table, ROW, COLUMN, 1)
            assert (proxy.accepted, other.accepted) == (1, 1)
            proxy.mode = ProxyMode.REFUSE
            value = 4
            while value < 14 or not store.statistics()["gateways_down"]:  # a slower gateway gets fewer calls
                value += 1
                assert await store.increment(table, ROW, COLUMN, 1) == value
            assert store.statistics()["gateways_down"] == 1


async def test_put_of_many_batches_writes_all(hbase: RunningHbase, table: str) -> None:
    cells = [Put(b"%06d" % row, b"t:%d" % column, b"v") for row in range(MANY_ROWS) for column in range(3)]
    async with opened(hbase) as store:
        await store.put(table, cells)
        rows = [row async for page in scan(store, table, limit=999) for row in page]
        assert [(row.key, cell.column) for row in rows for cell in row.cells] == [cell[:2] for cell in cells]
        assert store.statistics()["cells_put"] == len(cells)


async def test_put_with_a_failing_batch_raises(hbase: RunningHbase, table: str) -> None:
    cells = [Put(b"%06d" % row, b"t:", b"v") for row in range(MANY_ROWS)]
    cells[MANY_ROWS * 2 // 3] = Put(b"row", b"absent:", b"v")
    async with opened(hbase) as store:
        with pytest.raises(WrongTable, match="no family absent"):
            await store.put(table, cells)


async def test_wide_and_large_rows_are_read(hbase: RunningHbase, table: str) -> None:
    wide = [Put(b"wide", b"t:%06d" % column, b"v") for column in range(5000)]
    large = [Put(b"large%d" % row, b"t:", bytes(1 << 20)) for row in range(9)]
    async with opened(hbase) as store:
        await store.put(table, large + wide)
        assert [cell.column for cell in (await store.get(table, [b"wide"]))[b"wide"]] == [put.column for put in wide]
        keys = [row.key async for page in scan(store, table) for row in page]
        assert keys == [*(put.row for put in large), b"wide"]


StoreCall = Callable[[Store, str], Awaitable[object]]
CALLS: dict[str, StoreCall] = {
    "put": lambda store, table: store.put(table, [Put(ROW, COLUMN, b"v")] * 3),
    "delete": lambda store, table: store.delete(table, {ROW: [COLUMN]}, up_to_ms=None),
    "get": lambda store, table: store.get(table, [ROW]),
    "named": lambda store, table: store.get(table, [ROW], columns=[COLUMN]),
    "page": lambda store, table: store.page(table, b"", None, limit=1),
    "check_and_put": lambda store, table: store.check_and_put(table, ROW, COLUMN, b"v", expected=None),
    "create": lambda store, table: store.create(table, [Put(ROW, COLUMN, b"v")]),
    "increment": lambda store, table: store.increment(table, ROW, COLUMN, 1),
}


@pytest.mark.parametrize("call", CALLS)
async def test_missing_table_is_named(hbase: RunningHbase, call: str) -> None:
    async with opened(hbase) as store:
        with pytest.raises(NoTable, match="nowhere"):
            await CALLS[call](store, "nowhere")
        assert store.statistics().get("retries", 0) == 0


async def test_disabled_table_is_named(hbase: RunningHbase, table: str, running_clock: MockClock) -> None:
    async with opened(hbase, timeout_s=SHORT_S, expected=[Table(table, (Family(b"t"),))]) as store:
        disable(hbase, table)
        for call in (partial(store.get, table, [ROW]), store.tables):
            with pytest.raises(WrongTable, match=f"{table} .*disabled"):
                await call()
        cells = [Put(ROW, COLUMN, b"v")]
        with pytest.raises(StoreError):  # the gateway keeps trying
            await store.put(table, cells)
        running_clock.jump(BACKOFF_OVER_S)
        with pytest.raises(WrongTable, match=f"{table} .*disabled"):
            await store.put(table, cells)
        enable(hbase, table)
        await store.put(table, cells)
        assert table in await store.tables()


async def test_missing_family_is_named(hbase: RunningHbase, table: str) -> None:
    wanted = Table(table, (Family(b"t"), Family(b"name")))
    async with opened(hbase, expected=[wanted]) as store:
        calls: list[Callable[[], Awaitable[object]]] = [
            partial(store.put, table, [Put(ROW, b"name:", b"v")]),
            partial(store.page, table, b"", None, limit=1, columns=[b"name:"]),
            partial(store.create_tables, [wanted]),
            store.tables,
        ]
        for call in calls:
            with pytest.raises(WrongTable, match=f"{table} .*family name"):
                await call()


@pytest.mark.parametrize(
    ("cell", "error", "cause"),
    [
        (Put(b"", b"t:", b"v"), InvalidCell, None),
        (Put(b"r" * 32768, b"t:", b"v"), InvalidCell, None),
        (Put(ROW, b"t", b"v"), InvalidCell, None),
        (Put(ROW, b"absent:", b"v"), WrongTable, "no family absent"),
        (Put(ROW, b"t:", bytes(11 << 20)), StoreError, "KeyValue size too large"),
    ],
    ids=["no row", "long row", "no family", "absent family", "large value"],
)
async def test_invalid_cell_is_refused(
    hbase: RunningHbase, table: str, cell: Put, error: type[StoreError], cause: str | None
) -> None:
    async with opened(hbase) as store:
        with pytest.raises(error, match=cause):
            await store.put(table, [cell])
        assert not await store.get(table, [ROW])


async def test_delete_hides_older_and_equal_timestamps(hbase: RunningHbase, table: str) -> None:
    async def left(*steps: tuple[str, int]) -> list[int]:
        """The times that are left of puts and deletes at given times."""
        row = b"".join(b"%s%d" % (what.encode(), time_ms) for what, time_ms in steps)
        for what, time_ms in steps:
            if what == "put":
                await store.put(table, [Put(row, COLUMN, b"v")], time_ms=time_ms)
            else:
                await store.delete(table, {row: [COLUMN]}, up_to_ms=time_ms)
        return [cell.time_ms for cell in (await store.get(table, [row])).get(row, [])]

    async with opened(hbase) as store:
        assert await left(("put", 10), ("delete", 9)) == [10]
        assert await left(("put", 10), ("delete", 10)) == []
        assert await left(("put", 10), ("delete", 10), ("put", 10)) == []
        assert await left(("put", 10), ("delete", 10), ("put", 11)) == [11]
        assert await left(("put", 20), ("put", 10), ("delete", 15)) == [20]
        assert await left(("put", 20), ("put", 10), ("delete", 20)) == []


async def test_put_right_after_a_delete_is_visible(hbase: RunningHbase, table: str) -> None:
    """Regression: in one case of four it got the delete's millisecond, and was hidden."""
    async with opened(hbase) as store:
        for number in range(100):
            row = b"%d" % number
            await store.delete(table, {row: [COLUMN]}, up_to_ms=None)
            await store.put(table, [Put(row, COLUMN, b"v")])
        assert len(await store.get(table, [b"%d" % number for number in range(100)])) == 100


async def test_tables_have_the_settings_of_opentsdb(hbase: RunningHbase) -> None:
    names = hbase.unused_tables()
    wanted = [Table(names.data, (Family(b"t"),)), Table(names.uid, (Family(b"id", versions=3), Family(b"name")))]
    async with opened(hbase) as store:
        assert await store.create_tables(wanted, compression="GZ") == [names.data, names.uid]
        assert await store.create_tables(wanted) == []
    connection = happybase.Connection(hbase.host, hbase.thrift_port)
    found = connection.table(names.uid).families()
    connection.close()
    assert sorted(found) == [b"id", b"name"]
    assert found[b"id"]["max_versions"] == 3
    assert found[b"name"]["max_versions"] == 1
    for family in found.values():
        assert (family["bloom_filter_type"], family["compression"]) == (b"ROW", b"GZ")
        assert family["block_cache_enabled"]


async def test_two_processes_can_create_tables(hbase: RunningHbase) -> None:
    name = hbase.unused_tables().data
    made: list[str] = []
    async with opened(hbase) as one, opened(hbase) as other, trio.open_nursery() as nursery:

        async def make(store: HBaseStore) -> None:
            made.extend(await store.create_tables([Table(name, (Family(b"t"),))]))
            await store.put(name, [Put(ROW, COLUMN, b"v")])

        nursery.start_soon(make, one)
        nursery.start_soon(make, other)
    assert made == [name]


async def test_unsupported_compression_raises(hbase: RunningHbase) -> None:
    async with opened(hbase) as store:
        with pytest.raises(StoreError, match="Unsupported compression"):
            await store.create_tables([Table(hbase.unused_tables().data, (Family(b"t"),))], compression="LZX")


async def test_busy_hbase_is_retried() -> None:
    with BusyGateway(refusals=2) as gateway:
        store = HBaseStore([gateway.address])
        await store.put("cells", [Put(ROW, COLUMN, b"v")])
        assert (gateway.calls, store.statistics()["retries"]) == (3, 2)
        await store.aclose()


async def test_busy_hbase_raises_after_all_retries(
    autojump_clock: MockClock,
) -> None:
    with BusyGateway(refusals=100) as gateway:
        store = HBaseStore([gateway.address])
        with pytest.raises(StoreBusy, match="Over memstore limit"):
            await store.put("cells", [Put(ROW, COLUMN, b"v")])
        assert 1 < gateway.calls < 100  # it gives up
        assert gateway.calls == store.statistics()["retries"] + 1 == store.statistics()["errors"]
        await store.aclose()


async def test_busy_increment_is_not_retried() -> None:
    with BusyGateway(refusals=1) as gateway:
        store = HBaseStore([gateway.address])
        with pytest.raises(StoreDown):
            await store.increment("cells", ROW, COLUMN, 1)
        assert gateway.calls == 1
        await store.aclose()


async def test_one_of_several_creates_is_refused() -> None:
    cells = [Put(row, COLUMN, b"v") for row in (b"a", b"taken", b"b")]
    with BusyGateway(refusals=1) as gateway:
        store = HBaseStore([gateway.address])
        with pytest.raises(StoreDown):
            await store.create("cells", cells)
        assert await store.create("cells", cells) == [True, False, True]
        assert store.statistics()["connections_opened"] == 2  # nothing is read after a refusal
        await store.aclose()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_failed_connect_says_why(host: str) -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        address = (host, bound.getsockname()[1])
        with pytest.raises(OSError) as refusal:  # noqa: PT011 (the judge: whatever the system says)
            socket.create_connection(address)
        store = HBaseStore([address], versions_gateways=[address])
        assert store.versioned_cells
        for call in (store.tables, partial(store.versioned_cells.families, "cells")):
            with pytest.raises(StoreDown, match=refusal.value.strerror):
                await call()
        await store.aclose()


@pytest.mark.parametrize("transport", ["buffered", "framed"])
@pytest.mark.parametrize("protocol", ["binary", "compact"])
async def test_transports_and_protocols_work(transport: str, protocol: str) -> None:
    with BusyGateway(0, transport, protocol) as gateway:
        store = HBaseStore([gateway.address], transport=transport, protocol=protocol)
        assert [await store.increment("cells", ROW, COLUMN, by) for by in (1, 2**40, -1)] == [1, 2**40, -1]
        await store.put("cells", [Put(b"\xff\x80", b"t:\xff\0", b"\x80" * 100_000)])
        assert await store.create("cells", [Put(b"a", b"t:", b""), Put(b"taken", b"t:", b"")]) == [True, False]
        for rows in ([b"a", b"b"], [b"%03d" % at for at in range(50)]):
            found = await store.get("cells", rows)
            assert found == {row: [Cell(b"t:", bytes(100_000), 5)] for row in rows}
        assert store.statistics()["connections_opened"] == 1
        await store.aclose()


@pytest.mark.parametrize("transport", ["buffered", "framed"])
async def test_refused_reads_are_retried(transport: str) -> None:
    with BusyGateway(2, transport) as gateway:
        store = HBaseStore([gateway.address], transport=transport)
        assert list(await store.get("cells", [ROW])) == [ROW]
        assert gateway.calls == 3
        await store.aclose()
