"""One pass over a table: what it looks at, where it says that it is, and what it does where the store fails."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.flaky_store import Fault, FlakyStore
from tests.unit.store.damaging import stored_blocks
from tests.unit.store.rocksdb_parts import opened
from tests.unit.tables.compaction.parts import NOW_MS, TABLE, compactor, key, made, shown
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key
from tsd.errors import StoreDown, StoreError, WrongClock
from tsd.store import Family, Put, Store, Table
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.compaction.hour_folding import FoldRules, HourFolding
from tsd.tables.opentsdb.compaction.sweep import Sweep, SweepRange
from tsd.tables.opentsdb.data_table import DataTable

TWO, ONE = "0000=2a@5 0010=2b@6", "00000010=2a2b00"
HOURS = [3600 * hour for hour in range(1, 6)]
ALL = SweepRange(0, 1 << 40)
SALTED = KeyLayout(salt_width=1, salt_buckets=3)


class Pages(FlakyStore):
    """Notes the keys of the rows that it gives out."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.given: list[bytes] = []

    async def page(self, table, start, stop, *, limit, columns=None):  # type: ignore[no-untyped-def]
        found = await super().page(table, start, stop, limit=limit, columns=columns)
        self.given += [row.key for row in found.rows]
        return found


def sweep(store: Store, by: RowCompactor | None = None, *, layout: KeyLayout = KeyLayout(), **more: object) -> Sweep:  # noqa: B008
    """A pass over a table."""
    return Sweep(DataTable(store, TABLE, layout), by or compactor(store), **more)  # type: ignore[arg-type]


async def run(it: Sweep, stretch: SweepRange = ALL, position: bytes = b"") -> list[tuple[int, bytes]]:
    """What it says where it is."""
    return [part async for part in it.run(stretch, position)]


async def test_sweep_reads_only_the_hours_of_its_metrics() -> None:
    rows = [key(hour, metric=metric) for metric in range(1, 5) for hour in HOURS]
    store = Pages(await made(dict.fromkeys(rows, TWO)))
    await run(sweep(store), SweepRange(HOURS[1], HOURS[3], (b"\0\0\2", b"\0\0\4", b"\0\1\0")))
    wanted = {key(hour, metric=metric) for metric in (2, 4) for hour in HOURS[1:3]}
    assert await shown(store.store, rows) == [ONE if row in wanted else "0000=2a 0010=2b" for row in rows]
    assert set(store.given) == wanted
    store.given.clear()
    await run(sweep(store), SweepRange(HOURS[1], HOURS[3]))
    assert len(store.given) == 4 + 4 * 2  # the first row of each metric, which tells that there is one


@pytest.mark.parametrize("metrics", [(), (b"\0\0\1", b"\0\0\2", b"\0\0\3")])
async def test_damaged_blocks_stop_only_their_hours(tmp_path: Path, metrics: tuple[bytes, ...]) -> None:
    """In a metric: the first hour, and all hours."""
    rows = [key(hour, metric=metric) for metric in (1, 2, 3) for hour in HOURS]
    bad = [*rows[:1], *rows[5:10]]
    async with opened(tmp_path) as store:
        await store.create_tables([Table(TABLE, (Family(b"t"),))])
        await store.put(TABLE, [Put(row, b"t:\0\0\0\x10", b"\1\2\0") for row in bad])
        for row in bad:
            await store.column_blocks.fold(TABLE, row[:7])
        await store.put(TABLE, [Put(row, column, b"\5") for row in rows for column in (b"t:\0\x20", b"t:\0\x30")])
    stored_blocks(tmp_path, TABLE, *((row, -1) for row in bad))
    told: list[bytes] = []
    async with opened(tmp_path) as store:
        by = compactor(store)
        places = await run(
            sweep(store, by, on_damage=lambda error: told.append(error.prefix)), SweepRange(0, 1 << 40, metrics)
        )
        whole = [row for row in rows if row not in bad]
        assert sum(count for count, _ in places) == len(whole)
        assert [len(cells) for cells in (await store.get(TABLE, whole)).values()] == [1] * len(whole)
        assert by.stats.corrupt == len(bad)
    assert told == [row[:7] for row in bad]


async def test_sweep_covers_all_salts() -> None:
    rows = [row_key(SALTED, b"\0\0\1", hour, b"\0\0\1" + bytes([0, 0, n])) for n in range(1, 30) for hour in HOURS]
    assert {row[0] for row in rows} == {0, 1, 2}
    for stretch in (ALL, SweepRange(0, 1 << 40, (b"\0\0\1",))):
        store = await made(dict.fromkeys(rows, TWO))
        progress = await run(sweep(store, compactor(store, layout=SALTED), layout=SALTED), stretch)
        assert sum(count for count, _ in progress) == len(rows)
        assert set(await shown(store, rows)) == {ONE}


async def test_sweep_can_resume_at_each_position() -> None:
    rows = [key(hour, series, metric=metric) for metric in (1, 3) for hour in HOURS for series in range(1, 20)]
    places = await run(sweep(await made(dict.fromkeys(rows, TWO))))
    assert sum(count for count, _ in places) == len(rows)
    assert len(places) >= 3
    done = 0
    for count, position in places:
        done += count
        store = await made(dict.fromkeys(rows, TWO))
        assert sum(count for count, _ in await run(sweep(store), ALL, position)) == len(rows) - done
        assert await shown(store, rows) == ["0000=2a 0010=2b"] * done + [ONE] * (len(rows) - done)


async def test_row_with_short_key_is_skipped() -> None:
    rows = [b"\0", key(0), b"\0\0\1\xff", key(0, metric=2), b"\xff\xff", b"\xff\xff\xff"]
    store = await made(dict.fromkeys(rows, TWO))
    await run(sweep(store))
    assert [text == ONE for text in await shown(store, rows)] == [False, True, False, True, False, False]


async def test_rate_limits_rows_per_second(autojump_clock: MockClock) -> None:
    store = await made(dict.fromkeys([key(hour, n) for hour in HOURS for n in range(1, 101)], TWO))
    begun = trio.current_time()
    assert sum(count for count, _ in await run(sweep(store, rate=10.0))) == 500
    assert 49 <= trio.current_time() - begun <= 51


async def test_pause_after_each_page_follows_the_ratio(autojump_clock: MockClock) -> None:
    begun: list[float] = []

    class SlowPages(FlakyStore):
        async def page(self, table, start, stop, *, limit, columns=None):  # type: ignore[no-untyped-def]
            if stop is not None:  # a part of the pass, not a search for the next metric
                begun.append(trio.current_time())
                await trio.sleep(1)
            return await super().page(table, start, stop, limit=limit, columns=columns)

    store = SlowPages(await made(dict.fromkeys([key(hour, n) for hour in HOURS for n in range(1, 101)], TWO)))
    await run(sweep(store, pause_ratio=2.0))
    assert len(begun) >= 2
    assert [round(later - earlier) for earlier, later in itertools.pairwise(begun)] == [3] * (len(begun) - 1)


async def test_rows_with_recent_cells_are_retried_once(autojump_clock: MockClock) -> None:
    young = f"0000=2a@5 0010=2b@{NOW_MS}"
    store = await made({key(0): TWO, key(0, 2): young})
    by = compactor(store, settle_ms=500)
    assert [count for count, _ in await run(sweep(store, by))] == [2]
    assert await shown(store, [key(0), key(0, 2)]) == [ONE, "0000=2a 0010=2b"]
    assert by.stats.busy == 1
    assert trio.current_time() >= 0.5


@pytest.mark.parametrize("calls", range(6))
async def test_store_errors_are_retried(autojump_clock: MockClock, calls: int) -> None:
    rows = [key(hour) for hour in HOURS]
    store = FlakyStore(await made(dict.fromkeys(rows, TWO)))
    store.plan = [Fault.NONE] * calls + [Fault.REFUSED, Fault.ANSWER_LOST]
    retried: list[StoreError] = []
    by = compactor(store)
    await run(sweep(store, by, on_retry=retried.append))
    assert set(await shown(store.store, rows)) == {ONE}
    assert (by.stats.rows, by.stats.compacted) == (5, 5)
    assert 1 <= len(retried) <= 2  # two deletes may be under way at once


async def test_permanent_store_error_ends_the_sweep(autojump_clock: MockClock) -> None:
    store = FlakyStore(await made({key(0): TWO}))
    store.always = Fault.REFUSED
    retried: list[StoreError] = []
    with pytest.raises(StoreDown):
        await run(sweep(store, on_retry=retried.append))
    assert len(retried) > 2
    assert 30 <= trio.current_time() <= 120  # a short outage is survived


async def test_wrong_clock_ends_the_sweep_at_once() -> None:
    class Refusing(FlakyStore):
        async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
            raise WrongClock("late")

    retried: list[StoreError] = []
    with pytest.raises(WrongClock):
        await run(sweep(Refusing(await made({key(0): TWO})), on_retry=retried.append))
    assert retried == []


async def test_sweep_folds_the_hours_that_it_compacted(tmp_path: Path) -> None:
    rows = [key(hour, series, metric=metric) for metric in (1, 3) for hour in HOURS for series in range(1, 300)]
    store = await EmbeddedStore.open(tmp_path, lambda: NOW_MS)
    try:
        await store.create_tables([Table(TABLE, (Family(b"t"),))])
        await store.put(TABLE, [Put(row, b"t:\0\0", b"\x2a") for row in rows])
        folding = HourFolding(store.column_blocks, TABLE, KeyLayout(), FoldRules(0, 0, 1))
        await run(sweep(store, fold=folding.fold), SweepRange(HOURS[0], HOURS[3]))
        assert folding.stats.cells == 2 * 3 * 299
        assert await store.column_blocks.next_unfolded(TABLE, b"", None) == key(HOURS[3], 1)
        assert len(await store.get(TABLE, rows)) == len(rows)
    finally:
        await store.aclose()
