"""A store whose load is counted: it answers what the store that it wraps answers, and each call counts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from tests.property.compaction_schedules import Graves
from tsd.store import (
    Cell,
    CellMatrix,
    CellPage,
    Cursor,
    Family,
    Put,
    Rewrite,
    Row,
    StampedDelete,
    StampedPut,
    StepLimit,
    Store,
    Table,
    cell_pages,
    cells_of_keys,
    cells_of_rows,
    scan,
)
from tsd.store.counted import CountedStore
from tsd.store.key_load import MINUTE_MS, KeyLoad
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore

NOW_MS = 1_700_000_000_000
CELLS = [Put(b"r%d" % row, b"t:%d" % column, b"value") for row in range(3) for column in range(2)]
EMBEDDED = pytest.mark.parametrize("store", ["embedded"], indirect=True)  # the only engine with these calls


@pytest.fixture(params=["memory", "embedded"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store with a table."""
    opened: Store = MemoryStore(lambda: NOW_MS)
    if request.param == "embedded":
        opened = await EmbeddedStore.open(tmp_path / "store", lambda: NOW_MS)
    await opened.create_tables([Table("t", (Family(b"t"),))])
    yield opened
    await opened.aclose()


async def counts(load: KeyLoad) -> tuple[int, int]:
    """Cells written and read."""
    hot = await load.hot_ranges(MINUTE_MS, least_share=0)
    return round(hot.cells_written), round(hot.cells_read)


@pytest.fixture
def load() -> KeyLoad:
    return KeyLoad(lambda _, key: (key[:2],), lambda: NOW_MS)


async def test_writes_count(store: Store, load: KeyLoad) -> None:
    counted: Store = CountedStore(store, load)
    await counted.put("t", CELLS)
    assert await counts(load) == (6, 0)
    assert await counted.create("t", [Put(b"r0", b"t:0", b"x"), Put(b"new", b"t:0", b"x")]) == [False, True]
    assert await counts(load) == (7, 0)
    assert await counted.check_and_put("t", b"r0", b"t:0", b"y", expected=b"value")
    assert not await counted.check_and_put("t", b"r0", b"t:0", b"z", expected=b"value")
    assert await counted.increment("t", b"n", b"t:0", 5) == 5
    assert await counts(load) == (9, 0)
    if counted.wide_rows:
        await counted.wide_rows.replace("t", CELLS[:2])
        assert await counts(load) == (11, 0)
    if counted.atomic_rewrites:
        change = Rewrite(b"r1", [Put(b"r1", b"t:9", b"x")], NOW_MS, [])
        assert await counted.atomic_rewrites.rewrite("t", [change]) == [True]
        assert await counts(load) == (12, 0)
        await counted.put("t", [Put(b"r1", b"t:a", b"1"), Put(b"r1", b"t:b", b"2")])
        before = await counts(load)
        cells = (await store.get("t", [b"r1"]))[b"r1"]
        joined = await counted.atomic_rewrites.join("t", [b"r1", b"none"], lambda row, _: (b"t:joined", row))
        assert joined == [b"r1"]
        assert [cell[:2] for cell in (await store.get("t", [b"r1"]))[b"r1"]] == [(b"t:joined", b"r1")]
        assert await counts(load) == (before[0] + 1, before[1] + len(cells))


@EMBEDDED
async def test_cells_with_derived_values_count(store: Store, load: KeyLoad) -> None:
    derived = CountedStore(store, load).derived_values
    assert derived is not None
    present = np.array([[True, True], [True, False]])
    matrix = CellMatrix([b"r0", b"r1"], [b"t:0", b"t:1"], np.zeros((2, 2), np.uint64), present)
    assert await derived.put_new("t", b"r", iter([matrix]), {b"\1": b"values"})
    assert await derived.derived("t", [b"r"], b"\1") == {b"r": {b"\1": b"values"}}
    assert await counts(load) == (3, 0)


async def test_reads_answer_the_same_and_count(store: Store, load: KeyLoad) -> None:
    await store.put("t", CELLS)
    counted: Store = CountedStore(store, load)
    rows = [b"r0", b"r2", b"no"]
    assert await counted.get("t", rows) == await store.get("t", rows)
    assert await counts(load) == (0, 4)
    assert await counted.page("t", b"", None, limit=9) == await store.page("t", b"", None, limit=9)
    assert [row async for rows in scan(counted, "t") for row in rows]
    assert await counts(load) == (0, 16)
    async with aclosing(cell_pages(counted, "t", b"", None)) as pages:
        assert [key async for page in pages for key in page.keys] == [cell.row for cell in CELLS]
    assert await counts(load) == (0, 22)
    if counted.cell_reader:
        cursor = Cursor()
        await counted.cell_reader.read_cells("t", b"", None, limit_bytes=1, cursor=cursor)
        await counted.cell_reader.close_cursor("t", cursor)
    if counted.wide_rows:
        _, before = await counts(load)
        assert await counted.wide_rows.get_between("t", [b"r0"], b"t:0", b"t:9") == await store.get("t", [b"r0"])
        assert await counted.wide_rows.row_keys("t", b"", None, limit=9) == [b"r0", b"r1", b"r2"]
        assert await counts(load) == (0, before + 5)


class WithGets(MemoryStore):
    """A store that reads cells by row key."""

    def __init__(self) -> None:
        super().__init__(lambda: NOW_MS)

    @property
    def cell_gets(self) -> "WithGets":
        return self

    async def get_cells(self, table: str, rows: Sequence[bytes]) -> CellPage:
        found = await self.get(table, rows)
        return cells_of_rows(Row(key, found[key]) for key in rows if key in found)


async def test_cells_read_by_row_key_count(load: KeyLoad) -> None:
    store = WithGets()
    await store.create_tables([Table("t", (Family(b"t"),))])
    await store.put("t", CELLS)
    page = await cells_of_keys(CountedStore(store, load), "t", [b"no", b"r0", b"r2"])
    assert page == await cells_of_keys(store, "t", [b"no", b"r0", b"r2"])
    assert await counts(load) == (0, len(page.keys))


async def test_cells_with_timestamps_of_their_own_count(load: KeyLoad) -> None:
    store = Graves(lambda: NOW_MS)
    await store.create_tables([Table("t", (Family(b"t"),))])
    stamped = CountedStore(store, load).stamped_cells
    assert stamped is not None
    await stamped.put("t", [StampedPut(b"r0", b"t:0", b"v", 5), StampedPut(b"r0", b"t:1", b"v", 6)])
    assert await stamped.get("t", [(b"r0", b"t:1"), (b"r1", b"t:0")]) == {b"r0": [Cell(b"t:1", b"v", 6)]}
    assert await counts(load) == (2, 1)
    await stamped.delete("t", [StampedDelete(b"r0", b"t:0", 5), StampedDelete(b"r0", b"t:1", 5)])
    assert await store.get("t", [b"r0"]) == {b"r0": [Cell(b"t:1", b"v", 6)]}


async def test_other_calls_reach_the_store(store: Store, load: KeyLoad) -> None:
    counted: Store = CountedStore(store, load)
    assert await counted.tables() == ["t"]
    assert await counted.create_tables([Table("u", (Family(b"t"),))]) == ["u"]
    await counted.put("t", CELLS)
    await counted.delete("t", {b"r0": [b"t:0", b"t:1"]}, up_to_ms=None)
    await counted.sync()
    assert await store.get("t", [b"r0"]) == {}
    assert counted.capabilities == store.capabilities
    assert counted.statistics() == store.statistics()
    assert counted.latencies is store.latencies
    for part in ("change_feed", "cell_signatures", "range_deletes", "snapshots", "cql"):
        assert getattr(counted, part) is getattr(store, part)
    parts = "cell_reader cell_gets column_blocks wide_rows atomic_rewrites stamped_cells derived_values versioned_cells"
    for part in parts.split():
        assert (getattr(counted, part) is None) == (getattr(store, part) is None)


@EMBEDDED
async def test_each_read_of_kept_rows_counts(store: Store, load: KeyLoad) -> None:
    await store.put("t", CELLS)
    blocks = CountedStore(store, load).column_blocks
    assert blocks is not None
    limit = StepLimit(100, 1000, 100)
    parts = blocks.get_columns_now("t", [b"r0", b"r2"], limit)
    assert parts is not None
    assert await counts(load) == (0, 4)
    assert blocks.read_again("t", blocks.kept_read(parts), limit) is parts
    assert await counts(load) == (0, 8)
    await store.put("t", CELLS[:1])
    assert blocks.kept_read(parts) is None
    assert await counts(load) == (0, 8)
