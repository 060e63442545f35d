"""Expired rows are deleted, and no others: on an engine with deletes of ranges, and on one without."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_threads_completed

from tests.unit.tables.compaction.parts import TABLE
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN, seconds_qualifier
from tsd.codec.opentsdb.rollup import Rollups, parse_config
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key, split_key
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.config.retention import parse_rules
from tsd.errors import StoreError
from tsd.store import Family, Put, Store, Table, scan
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.clock_guard import ClockGuard
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.retention import Retention, RetentionPolicy
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.retention_task import Amount, RetentionTask

UID_TABLE = "tsdb-uid"
HOUR_S, DAY_S = 3600, 86_400
NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
POINT, ANNOTATION = COLUMN + seconds_qualifier(0, 0), COLUMN + b"\1\0\0"
ENGINES = ["memory", "embedded"]
HOST = b"\0\0\1\0\0\1"
ROLLUPS = Rollups(
    parse_config(
        b'{"aggregationIds": {"sum": 0, "count": 1}, "intervals": ['
        b'{"interval": "1m", "table": "tsdb", "preAggregationTable": "agg", "rowSpan": "1h", "defaultInterval": true},'
        b'{"interval": "1h", "table": "tsdb-1h", "preAggregationTable": "agg-1h", "rowSpan": "1d"}]}'
    )
)
KEEP_NOTHING_ELSE = RetentionPolicy(parse_rules("debug.*=7d; audit=forever; *=30d"), parse_rules(""), None)


@asynccontextmanager
async def opened(engine: str, folder: Path, *tables: str) -> AsyncIterator[Store]:
    """A store with the data table, the UID table and some others."""
    families = (Family(b"t"), Family(ID_FAMILY), Family(NAME_FAMILY))
    store: Store = (
        MemoryStore(lambda: 1000) if engine == "memory" else await EmbeddedStore.open(folder / "store", lambda: 1000)
    )
    try:
        await store.create_tables([Table(name, families) for name in (TABLE, UID_TABLE, *tables)])
        yield store
    finally:
        await store.aclose()


async def make(
    store: Store,
    policy: RetentionPolicy = KEEP_NOTHING_ELSE,
    layout: KeyLayout = KeyLayout(),  # noqa: B008
    rollups: Rollups | None = None,
) -> tuple[Retention, dict[str, bytes]]:
    """A retention, and the UIDs of three metrics."""
    uids = Uids(store, UID_TABLE, layout.widths)
    names = [b"debug.x", b"audit", b"sys.cpu"]
    found = await uids.find_or_assign(Kind.METRIC, names)
    return Retention(DataTable(store, TABLE, layout), uids, policy, rollups), {
        name.decode(): bytes(uid) for name, uid in found.items() if isinstance(uid, bytes)
    }


async def remove_all(retention: Retention, now_s: int = NOW_S) -> Amount:
    total = Amount()
    async for expired in retention.expired(now_s):
        async for amount in retention.remove(expired, lambda: now_s * 1000):
            total = total.plus(amount)
    await retention.reclaim()
    return total


async def keys(store: Store, table: str = TABLE) -> list[bytes]:
    return [row.key async for rows in scan(store, table) for row in rows]


def hours(ago_s: Iterable[int]) -> list[int]:
    return [(NOW_S - ago) // HOUR_S * HOUR_S for ago in ago_s]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [KeyLayout(), KeyLayout(salt_width=1, salt_buckets=4)], ids=["plain", "salted"])
@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sets(
        st.tuples(
            st.sampled_from(["debug.x", "audit", "sys.cpu"]),
            st.one_of(st.integers(0, 60 * 24), *(st.integers(days * 24 - 2, days * 24 + 2) for days in (7, 30))),
            st.integers(1, 9),
        ),
        max_size=60,
    )
)
def test_expired_rows_are_deleted_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, engine: str, layout: KeyLayout, rows: set[tuple[str, int, int]]
) -> None:
    keep_s = {"debug.x": 7 * DAY_S, "sys.cpu": 30 * DAY_S}

    async def run() -> None:
        async with opened(engine, tmp_path_factory.mktemp("store")) as store:
            retention, uids = await make(store, layout=layout)
            base = {row: hours([row[1] * HOUR_S])[0] for row in rows}
            key = {row: row_key(layout, uids[row[0]], base[row], b"\0\0\1\0\0" + bytes([row[2]])) for row in rows}
            await store.put(TABLE, sorted(Put(key[row], POINT, b"\1") for row in rows))
            young = {row for row in rows if base[row] + HOUR_S > NOW_S - keep_s.get(row[0], NOW_S)}
            await remove_all(retention)
            assert await keys(store) == sorted(key[row] for row in young)
            assert await remove_all(retention) == Amount()

    trio.run(run)


@pytest.mark.parametrize("engine", ENGINES)
async def test_estimate_says_what_is_deleted(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as store:
        retention, uids = await make(store)
        puts = [
            Put(
                row_key(KeyLayout(), uids["sys.cpu"], base, b"\0\0\1\0\0" + bytes([series])),
                COLUMN + b"\0\0" * 12,
                b"\1" * 1300,  # so many bytes that a sample is counted
            )
            for base in sorted(hours(range(0, 60 * DAY_S, HOUR_S)))
            for series in range(1, 6)
        ]
        await store.put(TABLE, puts)
        [expired] = [one async for one in retention.expired(NOW_S)]
        about, (exact, is_sample) = await retention.estimate(expired), await retention.estimate(expired, exact=True)
        assert about == (exact, True)
        assert not is_sample
        assert exact.points == exact.rows * 12
        assert await remove_all(retention) == exact
        assert len(await keys(store)) == len(puts) - exact.rows


@pytest.mark.parametrize("engine", ENGINES)
async def test_few_rows_of_a_long_range_are_counted(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as store:
        retention, uids = await make(store)
        await store.put(
            TABLE,
            [Put(row_key(KeyLayout(), uids["sys.cpu"], base, HOST), POINT, b"\1") for base in hours([90 * DAY_S])],
        )
        [expired] = [one async for one in retention.expired(NOW_S)]
        assert (await retention.estimate(expired)).amount.rows == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kept", [False, True])
async def test_annotations_may_outlive_their_points(engine: str, kept: bool, tmp_path: Path) -> None:
    policy = (
        KEEP_NOTHING_ELSE._replace(annotations_s=60 * DAY_S, has_annotation_rule=True) if kept else KEEP_NOTHING_ELSE
    )
    async with opened(engine, tmp_path) as store:
        retention, uids = await make(store, policy)
        recent, old = hours([40 * DAY_S, 70 * DAY_S])
        for metric in (uids["sys.cpu"], bytes(3)):
            for base in (old, recent):
                key = row_key(KeyLayout(), metric, base, HOST if any(metric) else b"")
                await store.put(TABLE, [Put(key, POINT, b"\1"), Put(key, ANNOTATION, b"{}")])
        await remove_all(retention)
        left = {
            (split_key(KeyLayout(), row.key).base, bool(row.key[2]), cell.column)
            async for rows in scan(store, TABLE)
            for row in rows
            for cell in row.cells
        }
        globals_left = {(base, False, column) for base in (old, recent) for column in (POINT, ANNOTATION)}
        if kept:
            globals_left = {(recent, False, POINT), (recent, False, ANNOTATION)}
        assert left == globals_left | ({(recent, True, ANNOTATION)} if kept else set())
        assert [expired async for expired in retention.expired(NOW_S)] == []
        assert await remove_all(retention) == Amount()


@pytest.mark.parametrize("engine", ENGINES)
async def test_annotations_that_stay_are_not_counted(engine: str, tmp_path: Path) -> None:
    policy = KEEP_NOTHING_ELSE._replace(annotations_s=60 * DAY_S, has_annotation_rule=True)
    async with opened(engine, tmp_path) as store:
        retention, uids = await make(store, policy)
        rows = [row_key(KeyLayout(), uids["sys.cpu"], base, HOST) for base in hours([40 * DAY_S, 39 * DAY_S])]
        await store.put(TABLE, [Put(row, ANNOTATION, b"{}") for row in rows])
        assert await remove_all(retention) == Amount()
        await store.put(TABLE, [Put(rows[1], POINT, b"\1")])
        assert await remove_all(retention) == Amount(1, 1, len(rows[1]) + len(POINT) + 1)
        assert await keys(store) == rows


async def test_annotations_may_change_while_their_points_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = KEEP_NOTHING_ELSE._replace(annotations_s=60 * DAY_S, has_annotation_rule=True)
    delete_range = EmbeddedStore.delete_range
    [base] = hours([40 * DAY_S])
    async with opened("embedded", tmp_path) as store:
        retention, uids = await make(store, policy)
        key = row_key(KeyLayout(), uids["sys.cpu"], base, HOST)
        second, third, note = (COLUMN + bytes((1, 0, at)) for at in (1, 2, 3))
        await store.put(
            TABLE, [Put(key, POINT, b"\1"), *(Put(key, each, b"{}") for each in (ANNOTATION, second, third))]
        )
        waiting = [True]

        async def changed_before(self: EmbeddedStore, *args: Any, **options: Any) -> bool:
            if waiting:
                waiting.clear()
                await store.put(TABLE, [Put(key, note, b"new"), Put(key, second, b"edited")])
                await store.delete(TABLE, {key: [third]}, up_to_ms=None)
            return await delete_range(self, *args, **options)

        monkeypatch.setattr(EmbeddedStore, "delete_range", changed_before)
        await remove_all(retention)
        [cells] = (await store.get(TABLE, [key])).values()
        assert {cell.column: cell.value for cell in cells} == {ANNOTATION: b"{}", second: b"edited", note: b"new"}


@pytest.mark.parametrize("engine", ENGINES)
async def test_rollups_with_columns_like_annotations_go(engine: str, tmp_path: Path) -> None:
    """Regression: cells of the aggregator with the id 1 were kept as annotations."""
    rules = parse_rules("*=7d", intervals=True)
    policy = KEEP_NOTHING_ELSE._replace(rollups=rules, annotations_s=60 * DAY_S, has_annotation_rule=True)
    async with opened(engine, tmp_path, "agg", "tsdb-1h", "agg-1h") as store:
        retention, uids = await make(store, policy, rollups=ROLLUPS)
        row = row_key(KeyLayout(), uids["sys.cpu"], (NOW_S - 40 * DAY_S) // DAY_S * DAY_S, HOST)
        await store.put("tsdb-1h", [Put(row, COLUMN + bytes((number, 0, 0)), b"\1") for number in (0, 1)])
        assert (await remove_all(retention)).rows == 1
        assert await keys(store, "tsdb-1h") == []


@pytest.mark.parametrize("engine", ENGINES)
async def test_rollups_have_rules_of_their_own(engine: str, tmp_path: Path) -> None:
    policy = RetentionPolicy(parse_rules("*=7d"), parse_rules("1m:*=30d; *=400d", intervals=True), None)
    async with opened(engine, tmp_path, "agg", "tsdb-1h", "agg-1h") as store:
        retention, uids = await make(store, policy, rollups=ROLLUPS)
        days = [5, 10, 20, 35, 300, 399, 401, 402, 500]
        bases = {day: NOW_S // DAY_S * DAY_S - day * DAY_S for day in days}
        for table in (TABLE, "agg", "tsdb-1h", "agg-1h"):
            keys_of = sorted(row_key(KeyLayout(), uids["sys.cpu"], base, HOST) for base in bases.values())
            await store.put(table, [Put(key, POINT, b"\1") for key in keys_of])
        await remove_all(retention)

        async def left(table: str) -> list[int]:
            bases_left = {split_key(KeyLayout(), key).base for key in await keys(store, table)}
            return [day for day in days if bases[day] in bases_left]

        assert await left(TABLE) == [5]
        assert await left("agg") == [5, 10, 20]
        assert await left("tsdb-1h") == await left("agg-1h") == [5, 10, 20, 35, 300, 399]


async def test_change_feed_reports_each_deleted_hour(tmp_path: Path) -> None:
    async with opened("embedded", tmp_path) as store:
        retention, uids = await make(store)
        bases = hours([50 * DAY_S, 40 * DAY_S, 31 * DAY_S])
        await store.put(TABLE, [Put(row_key(KeyLayout(), uids["sys.cpu"], base, HOST), POINT, b"\1") for base in bases])
        changed: set[bytes] = set()
        assert store.change_feed is not None
        store.change_feed.subscribe(TABLE, lambda rows: changed.update(row[:7] for row in rows or ()))
        await remove_all(retention)
        assert {row_key(KeyLayout(), uids["sys.cpu"], base, b"") for base in bases} <= changed


class _Others:
    """Further tables, from which nothing expires."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    async def remove(self, now_s: int) -> AsyncGenerator[tuple[str, Amount], None]:
        self.rounds.append(now_s)
        yield "others", Amount()


@pytest.mark.parametrize("engine", ENGINES)
async def test_clock_that_jumps_during_a_round_lets_nothing_younger_go(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as store:
        retention, uids = await make(
            store, KEEP_NOTHING_ELSE._replace(annotations_s=60 * DAY_S, has_annotation_rule=True)
        )
        rows = [
            row_key(KeyLayout(), uids[metric], base, HOST)
            for metric in ("debug.x", "sys.cpu")
            for base in hours([50 * DAY_S, 31 * DAY_S, 20 * DAY_S])
        ]
        await store.put(TABLE, [Put(row, column, b"\1") for row in rows for column in (POINT, ANNOTATION)])
        readings = [NOW_MS]  # and years later after the first one
        guard = ClockGuard(tmp_path / "retention.json", lambda: 0.0)
        guard.trust(NOW_MS)
        others = _Others()

        def jumping_ms() -> int:
            return readings.pop() if readings else NOW_MS + 4000 * DAY_S * 1000

        task = RetentionTask(retention, guard, jumping_ms, lambda: False, [others])
        assert (await task.run_now())["waiting_for"] is None
        left = [(row.key, cell.column) async for some in scan(store, TABLE) for row in some for cell in row.cells]
        assert sorted(left) == sorted([*((row, ANNOTATION) for row in rows), (rows[-1], POINT)])
        assert others.rounds == [NOW_S]


async def test_task_deletes_nothing_while_the_clock_is_not_trusted(tmp_path: Path) -> None:
    async with opened("embedded", tmp_path) as store:
        retention, uids = await make(store)
        [base] = hours([31 * DAY_S])
        await store.put(TABLE, [Put(row_key(KeyLayout(), uids["sys.cpu"], base, HOST), POINT, b"\1")])
        clock_ms = [NOW_MS]
        guard = make_guard(tmp_path / "retention.json")
        task = RetentionTask(retention, guard, lambda: clock_ms[0], lambda: False)
        assert (await task.run_now())["waiting_for"]
        assert len(await keys(store)) == 1
        guard.trust(NOW_MS)
        clock_ms[0] += 100 * DAY_S * 1000
        assert (await task.run_now())["waiting_for"]
        assert len(await keys(store)) == 1
        clock_ms[0] = NOW_MS
        result = await task.run_now()
        assert result["waiting_for"] is None
        assert await keys(store) == []
        assert task.deleted.rows == 1


async def test_task_that_waits_for_points_logs_an_error_only_when_they_contradict_the_clock(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    guard = make_guard(tmp_path / "retention.json")
    task = RetentionTask(None, guard, lambda: NOW_MS, lambda: False)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            await trio.sleep(2 * HOUR_S)
            assert [(line["event"], line["log_level"]) for line in logs] == [("retention.waiting_for_points", "info")]
            await trio.sleep(2 * HOUR_S)
            assert [line["log_level"] for line in logs] == ["info", "warning"]
            guard.observe(NOW_MS - 54 * DAY_S * 1000)
            await trio.sleep(300)
            assert [line["event"] for line in logs[2:]] == ["retention.clock_not_trusted"]
            nursery.cancel_scope.cancel()


def make_guard(file: Path) -> ClockGuard:
    """Return a guard by the clock of this trio run, which threads may ask too."""
    clock = trio.lowlevel.current_clock()
    return ClockGuard(file, lambda: clock.current_time() * 1000)


async def minutes(number: int) -> None:
    """Let minutes pass that do not depend on how long threads take."""
    for _ in range(number):
        await trio.sleep(60)
        await wait_all_threads_completed()


async def test_task_runs_each_hour(tmp_path: Path, autojump_clock: MockClock) -> None:
    del autojump_clock
    async with opened("memory", tmp_path) as store:
        retention, uids = await make(store)
        start_s = trio.current_time()

        def now_ms() -> int:
            return int((NOW_S + trio.current_time() - start_s) * 1000)

        bases = hours(30 * DAY_S - HOUR_S * number for number in range(5))
        await store.put(TABLE, [Put(row_key(KeyLayout(), uids["sys.cpu"], base, HOST), POINT, b"\1") for base in bases])
        guard = make_guard(tmp_path / "retention.json")
        guard.trust(NOW_MS)
        task = RetentionTask(retention, guard, now_ms, lambda: False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            while await keys(store):
                await minutes(10)
                young = [base for base in bases if base + HOUR_S > now_ms() // 1000 - 30 * DAY_S]
                assert len(await keys(store)) >= len(young)
            nursery.cancel_scope.cancel()
        assert now_ms() // 1000 - NOW_S < 8 * HOUR_S


async def test_task_goes_on_once_the_state_folder_can_be_written(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Regression: with a full disk the task failed each minute with a traceback, as an internal error."""
    del autojump_clock
    async with opened("memory", tmp_path) as store:
        retention, uids = await make(store)
        [base] = hours([31 * DAY_S])
        await store.put(TABLE, [Put(row_key(KeyLayout(), uids["sys.cpu"], base, HOST), POINT, b"\1")])
        guard = make_guard(tmp_path / "state" / "retention.json")
        guard.observe(NOW_MS)
        (tmp_path / "state").touch()  # no folder
        task = RetentionTask(retention, guard, lambda: NOW_MS, lambda: False)
        with pytest.raises(StoreError, match=r"retention\.json"):
            await task.run_now()
        with capture_logs() as logs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.run)
                await minutes(60)
                assert {line["event"] for line in logs} == {"retention.delayed"}
                (tmp_path / "state").unlink()
                await minutes(60)
                assert await keys(store) == []
                nursery.cancel_scope.cancel()


async def test_event_loop_runs_while_the_reading_of_the_clock_is_saved(tmp_path: Path) -> None:
    class Watched(ClockGuard):
        def trust(self, now_ms: int) -> None:
            trio.from_thread.run_sync(saved.append, now_ms)  # an error on the event loop's own thread
            super().trust(now_ms)

    saved: list[int] = []
    guard = Watched(tmp_path / "retention.json", lambda: 0.0)
    guard.observe(NOW_MS)
    task = RetentionTask(None, guard, lambda: NOW_MS, lambda: False)
    assert (await task.run_now())["waiting_for"] is None
    assert (await task.run_now(trust_clock=True))["waiting_for"] is None
    assert saved == [NOW_MS, NOW_MS]


async def test_task_says_which_points_have_expired(tmp_path: Path) -> None:
    async with opened("embedded", tmp_path) as store:
        retention, uids = await make(store)
        bases = hours([31 * DAY_S, 20 * DAY_S])
        await store.put(TABLE, [Put(row_key(KeyLayout(), uids["sys.cpu"], base, HOST), POINT, b"\1") for base in bases])
        guard = ClockGuard(tmp_path / "retention.json", lambda: 0.0)
        guard.trust(NOW_MS)
        expired: list[tuple[bytes, int]] = []

        async def on_expired(prefix: bytes, stop_s: int) -> None:
            assert len(await keys(store)) == 1
            expired.append((prefix, stop_s))

        await RetentionTask(retention, guard, lambda: NOW_MS, lambda: False, on_expired=on_expired).run_now()
        [(prefix, stop_s)] = expired
        assert prefix == uids["sys.cpu"]
        assert bases[0] < stop_s <= bases[1]
