"""Copies of a store to another one, with failures at every step and reruns."""

import itertools
import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flaky_store import Fault, FlakyStore
from tests.property.compaction_schedules import Graves
from tsd.codec.opentsdb.cell import COLUMN, ms_qualifier
from tsd.codec.opentsdb.row import data_cells, points
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import CorruptRow, StoreDown, StoreError
from tsd.store import Cell, Family, Page, Put, Row, Table
from tsd.store.memory import MemoryStore
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.copy import (
    NEWEST,
    CopyJob,
    CopyProgress,
    CopyStats,
    Mark,
    TablePair,
    TableRef,
    copy_rows,
    copy_store,
)
from tsd.tables.opentsdb.data_table import DataTable

TABLES = [
    Table("tsdb", (Family(b"t"),)),
    Table("tsdb-uid", (Family(b"id"), Family(b"name"))),
    Table("tsdb-meta", (Family(b"name"),)),
]
UID, DATA, META = TablePair("tsdb-uid", "tsdb-uid"), TablePair("tsdb", "tsdb"), TablePair("tsdb-meta", "tsdb-meta")
STEPS = 40  # more than the calls of one copy
DONE = CopyStats(rows=12, cells=21, put=21)


async def empty() -> MemoryStore:
    """Return a store with tables."""
    store = MemoryStore(lambda: 1)
    await store.create_tables(TABLES)
    return store


async def filled() -> MemoryStore:
    """Return a store with a few cells in each table, with timestamps."""
    store, chance = await empty(), random.Random(1)
    names = [Put(b"sys.cpu", b"id:metrics", b"\0\0\1"), Put(b"\0\0\1", b"name:metrics", b"sys.cpu")]
    await store.put("tsdb-uid", names, time_ms=7)
    await store.increment("tsdb-uid", b"\0", b"id:metrics", 1)
    for row in range(9):
        key = b"\0\0\1" + (1356998400 + 3600 * row).to_bytes(4, "big")
        for offset in chance.sample(range(10), 2):
            cell = Put(key, b"t:" + (offset << 4).to_bytes(2, "big"), bytes([offset]))
            await store.put("tsdb", [cell], time_ms=chance.randrange(100, 200))
    await store.put("tsdb-meta", [Put(b"\0\0\1", b"name:ts_meta", b"{}")], time_ms=3)
    return store


def progress(path: Path, source: str = "a") -> CopyProgress:
    """Return the progress of a copy from `source`."""
    return CopyProgress(Checkpoint(path, [source, "b"]))


async def contents(store: MemoryStore) -> list[list[Row]]:
    """Return all rows except counters, whose timestamps the store sets."""
    return [
        [row for row in (await store.page(table.name, b"", None, limit=1000)).rows if row.key != b"\0"]
        for table in TABLES
    ]


async def test_copy_keeps_timestamps_and_is_idempotent(tmp_path: Path) -> None:
    source, target = await filled(), await empty()
    note = progress(tmp_path / "note")
    seen: list[tuple[str, int]] = []
    job = CopyJob(source, target, UID, DATA, [META])
    assert await copy_store(job, note, lambda *done: seen.append(done)) == DONE
    assert seen == [("tsdb", 9), ("tsdb-meta", 1)]
    assert await contents(target) == await contents(source)
    assert await copy_store(job, note, lambda *_: None) == DONE._replace(put=0)
    await source.put("tsdb", [Put(b"\0\0\1\0\0\0\0", b"t:\0\0", b"\1")], time_ms=300)
    assert (await copy_store(job, note, lambda *_: None)).put == 1
    assert await contents(target) == await contents(source)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
@pytest.mark.parametrize("failing", ["source", "target"])
async def test_copy_failing_at_any_step_completes_on_rerun(tmp_path: Path, fault: Fault, failing: str) -> None:
    source = await filled()
    failures = 0
    for step in range(STEPS):
        target = await empty()
        weak = FlakyStore(source if failing == "source" else target)
        weak.plan = [Fault.NONE] * step + [fault]
        job = CopyJob(
            weak if failing == "source" else source, weak if failing == "target" else target, UID, DATA, [META]
        )
        try:
            await copy_store(job, progress(tmp_path / "note"), lambda *_: None)
        except StoreDown:
            failures += 1
            await copy_store(job, progress(tmp_path / "note"), lambda *_: None)
        assert await contents(target) == await contents(source)
    assert 5 < failures < STEPS


async def test_copy_with_new_timestamps_keeps_the_newer_value_after_any_failure(tmp_path: Path) -> None:
    """Regression: the older value, copied before an interruption, counted as newer than the one that was left."""
    source, key = await empty(), b"\0\0\1" + (1356998400).to_bytes(4, "big")
    await source.put("tsdb", [Put(key, b"t:\0\0\0\x10", b"\1\2\0")], time_ms=100)
    await source.put("tsdb", [Put(key, b"t:\0\x10\0\x20", b"\7\3\0")], time_ms=200)
    failures = 0
    for step in range(STEPS):
        target = MemoryStore(lambda: 1000)
        target.capabilities = replace(target.capabilities, hides_for_days=True)
        await target.create_tables(TABLES)
        weak = FlakyStore(target)
        weak.plan = [Fault.NONE] * step + [Fault.REFUSED]
        try:
            await copy_store(CopyJob(source, weak, UID, DATA), progress(tmp_path / "note"), lambda *_: None)
        except StoreDown:
            failures += 1
            await copy_store(CopyJob(source, target, UID, DATA), progress(tmp_path / "note"), lambda *_: None)
        [row] = (await target.page("tsdb", b"", None, limit=10)).rows
        assert [one.number for one in points(key, data_cells(row.cells), NEWEST)] == [1, 7, 3]
    assert 2 < failures < STEPS


async def test_rerun_resumes_and_copies_earlier_rows_last(tmp_path: Path) -> None:
    """The earlier rows may have changed since the run that was interrupted."""
    source, target = await filled(), await empty()
    rows = (await source.page("tsdb", b"", None, limit=100)).rows
    note = progress(tmp_path / "note")
    note.save("tsdb", Mark(rows[3].key, rows[4].key))
    for row in rows[:4]:
        await target.put("tsdb", [Put(row.key, *row.cells[0][:2])], time_ms=row.cells[0].time_ms)
    seen: list[int] = []
    job = CopyJob(source, target, UID, DATA, [META])
    done = await copy_store(job, progress(tmp_path / "note"), lambda table, count: seen.append(count))
    assert seen == [len(rows) - 4, 4, 1]
    assert done == DONE._replace(put=DONE.put - 4)
    assert await contents(target) == await contents(source)


@pytest.mark.parametrize("source_name", ["a", "another"])
@pytest.mark.parametrize("at_its_end", [False, True])
async def test_copy_restarts_if_the_target_changed(tmp_path: Path, source_name: str, at_its_end: bool) -> None:
    source, target = await filled(), await empty()
    rows = (await source.page("tsdb", b"", None, limit=100)).rows
    mark = Mark(rows[-1].key, None) if at_its_end else Mark(rows[3].key, rows[4].key)
    progress(tmp_path / "note").save("tsdb", mark)
    note = progress(tmp_path / "note", source_name)
    assert await copy_store(CopyJob(source, target, UID, DATA, [META]), note, lambda *_: None) == DONE
    assert await contents(target) == await contents(source)


async def test_newer_cell_of_the_target_stays(tmp_path: Path) -> None:
    source, target = await filled(), await empty()
    first = (await source.page("tsdb", b"", None, limit=1)).rows[0]
    newer = Put(first.key, first.cells[0].column, b"\x63")
    await target.put("tsdb", [newer], time_ms=1000)
    done = await copy_store(CopyJob(source, target, UID, DATA), progress(tmp_path / "note"), lambda *_: None)
    assert (done.cells - done.put, done.hidden) == (1, 0)
    assert (await target.get("tsdb", [first.key]))[first.key][0].value == newer.value


async def test_missing_data_table_raises(tmp_path: Path) -> None:
    source, target = await filled(), await empty()
    job = CopyJob(source, target, UID, TablePair("tsdb2", "tsdb"), [META, TablePair("tsdb-tree", "tsdb-tree")])
    with pytest.raises(StoreError, match="there is no table tsdb2"):
        await copy_store(job, progress(tmp_path / "note"), lambda *_: None)
    assert (await copy_store(job._replace(rows=DATA), progress(tmp_path / "n"), lambda *_: None)).rows


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_copied_points_show_where_a_compaction_deletes_what_is_older(is_compacted: bool) -> None:
    clock_ms = itertools.count(10_000).__next__
    store = Graves(clock_ms)
    await store.create_tables(TABLES)
    key = b"\0\0\1" + (1356998400).to_bytes(4, "big") + b"\0\0\1\0\0\1"

    def column(time: int) -> bytes:
        return COLUMN + (time << 4).to_bytes(2, "big")

    for time in range(0, 10, 2):
        await store.put("tsdb", [Put(key, column(time), b"\x01")], time_ms=5000 + time)
    compactor = RowCompactor(
        DataTable(store, "tsdb", KeyLayout()), NEWEST, lambda: 0, raising, settle_ms=0, span_age_ms=-(1 << 62)
    )
    if is_compacted:
        await compactor.compact_keys([key])
    older = [Cell(column(time), b"\x02", 1000 + time) for time in (1, 2, 3, 5)]
    newer = [Cell(column(time), b"\x03", 6000 + time) for time in (3, 4)]
    # the same time twice in the source: the newer value counts, whatever its column
    source = [*older, *newer[1:], Cell(COLUMN + ms_qualifier(3000, 0), b"\x03", newer[0].time_ms)]
    wanted = {0: 1, 1: 2, 2: 1, 3: 3, 4: 3, 5: 2, 6: 1, 8: 1}
    for _ in range(3):
        existing = await store.get("tsdb", [key])
        copied = await copy_rows([Row(key, source)], existing, TableRef(store, "tsdb"))
        assert copied.hidden == 0
        found = points(key, data_cells((await store.get("tsdb", [key]))[key]), NEWEST)
        assert {point.offset_ms // 1000: point.number for point in found} == wanted
        await compactor.compact_keys([key])


async def test_correction_in_the_target_stays_after_a_compaction_of_the_source() -> None:
    """The source compacts an old row together with one that was written after the correction."""
    hour_ms = 3_600_000
    source, target = Graves(lambda: 9 * hour_ms), await empty()
    await source.create_tables(TABLES)
    old, young = [b"\0\0\1" + (1356998400 + at).to_bytes(4, "big") + b"\0\0\1\0\0\1" for at in (0, 7200)]
    for at in range(4):
        for key, since_ms in ((old, hour_ms), (young, 3 * hour_ms)):
            await source.put("tsdb", [Put(key, COLUMN + bytes([0, at << 4]), b"\x01")], time_ms=since_ms + at)

    async def copy() -> None:
        rows = (await source.page("tsdb", b"", None, limit=10)).rows
        await copy_rows(rows, await target.get("tsdb", [old, young]), TableRef(target, "tsdb"))

    await copy()
    await target.put("tsdb", [Put(old, COLUMN + bytes(2), b"\x07")], time_ms=2 * hour_ms)
    compactor = RowCompactor(DataTable(source, "tsdb", KeyLayout()), NEWEST, lambda: 9 * hour_ms, raising, settle_ms=0)
    assert await compactor.compact_keys([old, young]) == []
    assert compactor.stats.compacted == 2
    await copy()
    found = points(old, data_cells((await target.get("tsdb", [old]))[old]), NEWEST)
    assert [point.number for point in found] == [7, 1, 1, 1]


def raising(error: CorruptRow) -> None:
    raise error


class Naming(FlakyStore):
    """A source whose daemon assigns a UID, and stores a point with it, before a page of points is read."""

    async def page(
        self, table: str, start: bytes, stop: bytes | None, *, limit: int, columns: Collection[bytes] | None = None
    ) -> Page:
        if table == DATA.source:
            names = [Put(b"new", b"id:metrics", b"\0\0\2"), Put(b"\0\0\2", b"name:metrics", b"new")]
            await self.store.increment(UID.source, b"\0", b"id:metrics", 1)
            await self.store.put(UID.source, names)
            await self.store.put(DATA.source, [Put(b"\0\0\2" + bytes(4), b"t:\0\0", b"\1")])
        return await self.store.page(table, start, stop, limit=limit, columns=columns)


async def test_killed_copy_leaves_no_points_without_names(tmp_path: Path) -> None:
    """Regression: a daemon of the target assigned the UID to another metric, which then had these points."""
    source, target = await filled(), await empty()
    job = CopyJob(Naming(source), target, UID, DATA)

    def killed(_table: str, _rows: int) -> None:
        raise RuntimeError

    with pytest.raises(ExceptionGroup):
        await copy_store(job, progress(tmp_path / "note"), killed)
    assert b"\0\0\2" + bytes(4) in await target.get(DATA.target, [b"\0\0\2" + bytes(4)])
    assert await target.get(UID.target, [b"new", b"\0\0\2"]) == await source.get(UID.source, [b"new", b"\0\0\2"])
    assert await target.increment(UID.target, b"\0", b"id:metrics", 1) == 3
