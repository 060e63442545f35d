"""RocksDB in a folder: what happens around the calls, which tests/property/test_stores.py holds against a model."""

import os
from pathlib import Path

import pytest
import trio

from tests.unit.store import crashing
from tests.unit.store.rocksdb_parts import CELLS, child, lines_until_killed, opened
from tsd.errors import DaemonRuns, NoTable, StoreError
from tsd.store import Family, Put, Table, scan
from tsd.store.rocksdb.engine import EmbeddedStore

MANY_ROWS = 6000  # more than is written or read in one step


async def test_second_process_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(DaemonRuns, match=str(tmp_path)):
            await EmbeddedStore.open(tmp_path, lambda: 0)
        process = await trio.to_thread.run_sync(child, "try_to_open", tmp_path)
        output, _ = await trio.to_thread.run_sync(process.communicate)
        assert str(tmp_path) in output
        assert f"({os.getpid()})" in output


async def test_unusable_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=str(tmp_path / "file")):
        await EmbeddedStore.open(tmp_path / "file", lambda: 0)


async def test_created_tables_persist(tmp_path: Path) -> None:
    async with opened(tmp_path / "deeper" / "still") as store:
        assert await store.create_tables([CELLS, Table("more", (Family(b"t"),))]) == ["more"]
        await store.put("more", [Put(b"row", b"t:", b"v")])
        with pytest.raises(NoTable, match="less"):
            await store.put("less", [])
    async with opened(tmp_path / "deeper" / "still") as store:
        assert await store.tables() == ["cells", "more"]
        assert list(await store.get("more", [b"row"])) == [b"row"]


async def test_call_after_close_raises(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        pass
    with pytest.raises(StoreError, match=str(tmp_path)):
        await store.get("cells", [b"row"])


async def test_timestamps_stay_above_those_of_earlier_process(tmp_path: Path) -> None:
    async with opened(tmp_path, clock_ms=9_000) as store:
        await store.put("cells", [Put(b"row", b"t:", b"first")])
    async with opened(tmp_path, clock_ms=5_000) as store:
        await store.put("cells", [Put(b"row", b"t:", b"second")])
        assert (await store.get("cells", [b"row"]))[b"row"] == [(b"t:", b"second", 9_001)]


async def test_counters_and_timestamps_survive_a_crash(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(child, "count", tmp_path)
    numbers = await trio.to_thread.run_sync(lines_until_killed, process, 50)
    assert numbers == list(range(1, len(numbers) + 1))
    async with opened(tmp_path, clock_ms=crashing.NOW_MS - 60_000) as store:
        assert await store.increment("cells", b"counter", b"t:", 1) > numbers[-1]
        [cell] = (await store.get("cells", [b"counter"]))[b"counter"]
        assert cell.time_ms >= crashing.NOW_MS


async def test_synced_rows_survive_a_crash(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(child, "put", tmp_path)
    numbers = await trio.to_thread.run_sync(lines_until_killed, process, 20)
    async with opened(tmp_path) as store:
        found = [row async for rows in scan(store, "cells") for row in rows]
    assert len(found) >= numbers[-1] * crashing.ROWS
    assert {len(row.cells) for row in found} == {crashing.COLUMNS}


async def test_concurrent_increments_are_atomic(tmp_path: Path) -> None:
    sums: list[int] = []
    async with opened(tmp_path) as store:

        async def add() -> None:
            sums.append(await store.increment("cells", b"counter", b"t:", 1))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(add)
    assert sorted(sums) == list(range(1, 101))


async def test_other_tasks_run_between_batches(tmp_path: Path) -> None:
    passes = 0

    async def others() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with opened(tmp_path) as store, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        before = passes
        await store.put("cells", [Put(b"%d" % row, b"t:", b"v") for row in range(MANY_ROWS)])
        assert passes - before >= 5
        before = passes
        assert len((await store.page("cells", b"", None, limit=2 * MANY_ROWS)).rows) == MANY_ROWS
        assert passes - before >= 4
        nursery.cancel_scope.cancel()


async def test_split_put_shares_no_timestamp_with_later_put(tmp_path: Path) -> None:
    """A compaction that has read the later one's cell would take what then comes with the same stamp for known."""
    async with opened(tmp_path) as store:
        many = [Put(number.to_bytes(2, "big"), b"t:a", b"") for number in range(MANY_ROWS)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.put, "cells", many)
            for number in range(5):
                await store.put("cells", [Put(bytes([255, number]), b"t:b", b"")])
        stamps = {b"t:a": set[int](), b"t:b": set[int]()}
        async for page in scan(store, "cells"):
            for row in page:
                stamps[row.cells[0].column].add(row.cells[0].time_ms)
        assert len(stamps[b"t:b"]) == 5
        assert not stamps[b"t:a"] & stamps[b"t:b"]


async def test_wide_row_is_read_whole(tmp_path: Path) -> None:
    wide = [Put(b"wide", b"t:%08d" % column, b"v") for column in range(MANY_ROWS)]
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(b"a", b"t:", b"v"), *wide, Put(b"z", b"t:", b"v")])
        assert len((await store.get("cells", [b"wide"]))[b"wide"]) == len(wide)
        page = await store.page("cells", b"", None, limit=2)
        assert [(row.key, len(row.cells)) for row in page.rows] == [(b"a", 1), (b"wide", len(wide))]
        assert page.next_start == b"z"


async def test_large_page_ends_early(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(b"%d" % row, b"t:", bytes(1 << 20)) for row in range(9)])
        page = await store.page("cells", b"", None, limit=100)
        assert (len(page.rows), page.next_start) == (4, b"4")


@pytest.mark.slow
async def test_stalled_database_is_retried(tmp_path: Path) -> None:
    async with opened(tmp_path, memtable_bytes=64 << 10) as store:
        for part in range(20):
            await store.put("cells", [Put(b"%d-%d" % (part, row), b"t:", os.urandom(1000)) for row in range(1000)])
        assert store.statistics()["stalls"] > 0
        assert sum([len(rows) async for rows in scan(store, "cells")]) == 20_000


async def test_damaged_block_raises(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(b"%06d" % row, b"t:", os.urandom(100)) for row in range(5000)])
    largest = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    largest.write_bytes(data)
    async with opened(tmp_path) as store:
        with pytest.raises(StoreError, match="Corruption"):
            await store.page("cells", b"", None, limit=5000)
        with pytest.raises(StoreError, match="Corruption"):
            await store.get("cells", [b"%06d" % row for row in range(5000)])
        with pytest.raises(StoreError, match="Corruption"):
            await store.get("cells", [b"%06d" % row for row in range(5000)], columns=[b"t:"])


@pytest.mark.slow
async def test_full_disk_recovers_without_restart(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(child, "fill_disk", tmp_path)
    output, _ = await trio.to_thread.run_sync(process.communicate)
    assert output.splitlines() == ["refused", "readable", "refused", "taken again", "all there"]


@pytest.mark.slow
async def test_sync_that_reopens_the_database_ends_before_the_store_is_closed(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(child, "close_while_reopening", tmp_path)
    output, _ = await trio.to_thread.run_sync(process.communicate)
    assert output.splitlines() == ["refused", "synced and closed"]


@pytest.mark.slow
async def test_store_stays_closed_after_lost_writes(tmp_path: Path) -> None:
    process = await trio.to_thread.run_sync(child, "lose_log", tmp_path)
    output, _ = await trio.to_thread.run_sync(process.communicate)
    lost = f"{tmp_path} was reopened without its last writes, which must be sent again"
    lines = [line for line in output.splitlines() if "store.unsynced_writes_dropped" not in line]
    assert lines == ["refused", f"lost: {lost}", lost, f"lost: {lost}", lost]
