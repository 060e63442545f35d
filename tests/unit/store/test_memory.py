"""The store that tests run on is as strict as HBase. What it does otherwise is in tests/property/test_stores.py."""

import pytest

from tsd.errors import InvalidCell, NoTable
from tsd.store import Family, Put, Table
from tsd.store.memory import PAGE_BYTES, MemoryStore

ROW, COLUMN = b"row", b"t:"


async def made(*times: int) -> MemoryStore:
    """A store with a table `cells`, whose clock says those times in turn."""
    clock = iter(times)
    store = MemoryStore(lambda: next(clock))
    assert await store.create_tables([Table("cells", (Family(b"t"),))]) == ["cells"]
    return store


@pytest.mark.parametrize(
    "cell",
    [Put(b"", COLUMN, b""), Put(b"r" * 32768, COLUMN, b""), Put(ROW, b"t", b""), Put(ROW, b"u:", b"")],
    ids=["no row", "long row", "no family", "absent family"],
)
async def test_invalid_cell_fails_the_whole_put(cell: Put) -> None:
    store = await made(1)
    with pytest.raises(InvalidCell):
        await store.put("cells", [Put(b"good", COLUMN, b""), cell])
    assert await store.get("cells", [b"good"]) == {}
    with pytest.raises(InvalidCell):
        await store.check_and_put("cells", *cell, expected=None)


async def test_missing_table_raises() -> None:
    store = await made()
    with pytest.raises(NoTable, match="nowhere"):
        await store.put("nowhere", [])


async def test_timestamps_rise_if_the_clock_is_set_back() -> None:
    store = await made(9_000, 5_000)
    for value in (b"first", b"second"):
        await store.put("cells", [Put(ROW, COLUMN, value)])
    assert await store.get("cells", [ROW]) == {ROW: [(COLUMN, b"second", 9_001)]}


async def test_large_page_ends_early() -> None:
    store = await made(1)
    await store.put("cells", [Put(b"%d" % row, COLUMN, bytes(PAGE_BYTES // 4)) for row in range(9)])
    page = await store.page("cells", b"", None, limit=100)
    assert (len(page.rows), page.next_start) == (4, b"4")


async def test_increment_of_another_length_raises() -> None:
    store = await made(1, 2, 3)
    await store.put("cells", [Put(ROW, COLUMN, b"12")])
    with pytest.raises(InvalidCell, match=b"12".hex()):
        await store.increment("cells", ROW, COLUMN, 1)


async def test_statistics_count_calls_and_cells() -> None:
    store = await made(1, 2, 3)
    await store.put("cells", [Put(ROW, COLUMN, b"a"), Put(ROW, b"t:b", b"b")])
    await store.create("cells", [Put(ROW, COLUMN, b"other"), Put(b"new", COLUMN, b"c")])
    assert store.statistics() == {"create_tables": 1, "put": 1, "create": 1, "cells_put": 3}
