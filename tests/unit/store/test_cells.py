"""Scans by cells give what scans by rows give, also where they are larger than the cache."""

from pathlib import Path

import pytest

from tsd.store import Family, Put, Table, cell_pages, scan
from tsd.store.rocksdb.engine import EmbeddedStore

ROWS = 600


@pytest.mark.parametrize("cache_bytes", [1 << 20, 64 << 20], ids=["larger than the cache", "cached"])
@pytest.mark.parametrize("limit_bytes", [10_000, 1 << 20], ids=["small pages", "large pages"])
async def test_cell_scan_equals_row_scan(tmp_path: Path, cache_bytes: int, limit_bytes: int) -> None:
    store = await EmbeddedStore.open(tmp_path / "store", lambda: 1, cache_bytes=cache_bytes)
    try:
        await store.create_tables([Table("t", (Family(b"t"),))])
        cells = [
            Put(b"\0\0%05d\0\1" % row, b"t:%d" % column, bytes([row % 256]) * 1500)
            for row in range(ROWS)
            for column in range(1 + row % 3)
        ]
        await store.put("t", cells, time_ms=7)
        wanted = [
            (row.key, cell) async for rows in scan(store, "t", cells[10].row, cells[-10].row) for row in rows
            for cell in row.cells
        ]  # fmt: skip
        found, last = [], b""
        async for page in cell_pages(store, "t", cells[10].row, cells[-10].row, limit_bytes=limit_bytes):
            assert page.keys[0] > last, "a row was cut"
            last = page.keys[-1]
            found += [(key, page.cell(at)) for at, key in enumerate(page.keys)]
        assert found == wanted
        assert len(wanted) > ROWS
    finally:
        await store.aclose()
