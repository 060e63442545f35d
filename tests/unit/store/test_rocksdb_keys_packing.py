"""Long cells of the embedded store: digests as keys, order of columns, damage."""

import random
from pathlib import Path

import pytest
import rocksdict  # noqa: TID251 (reads and damages the files)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.store.rocksdb_parts import opened
from tsd.codec.opentsdb.cell import seconds_qualifier
from tsd.codec.packing.cell import HAS_PACKING_LOOP
from tsd.errors import StoreError
from tsd.store import Cursor, Put, cell_pages
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.keys import (
    DIGEST_BYTES,
    LONG_BYTES,
    decode_long_cell,
    encode_long_cell,
    encode_value,
    is_digest,
    key_column,
    row_prefix,
)
from tsd.store.rocksdb.options import options

POINTS = b"t:" + b"".join(seconds_qualifier(10 * at, 0) for at in range(360))
VALUE = bytes(at % 7 for at in range(360)) + b"\0"


@given(st.binary(min_size=2, max_size=60), st.binary(max_size=60), st.booleans())
def test_long_cell_survives_encoding_under_its_digest(column: bytes, value: bytes, packing_too: bool) -> None:
    digest = key_column(column)
    if digest == column:
        assert not is_digest(column)
        return
    assert is_digest(digest)
    assert len(digest) == DIGEST_BYTES < LONG_BYTES
    stored = encode_value(7, encode_long_cell(column, value, packing=packing_too))
    assert decode_long_cell(digest, stored) == (column, encode_value(7, value))


def test_packed_hour_of_points_is_small() -> None:
    assert len(encode_long_cell(POINTS, VALUE, packing=True)) < 200
    assert len(encode_long_cell(POINTS, VALUE, packing=False)) > len(POINTS) + len(VALUE)


@pytest.mark.parametrize("content", ["", "02", "00", "0000000100", "01", "0102030405060708090a"])
def test_invalid_long_cell_raises_store_error(content: str) -> None:
    with pytest.raises(StoreError):
        decode_long_cell(key_column(POINTS), encode_value(7, bytes.fromhex(content)))


async def read_all(store: EmbeddedStore) -> list[list[tuple[bytes, bytes, bytes]]]:
    """Return all cells, read by each of the calls."""
    page = await store.page("cells", b"", None, limit=100)
    rows = await store.get("cells", [row.key for row in page.rows])
    walked = [
        (part.keys[at], *part.cell(at)[:2])
        async for part in cell_pages(store, "cells", b"", None)
        for at in range(len(part.keys))
    ]
    whole = await store.read_cells("cells", b"", None, limit_bytes=1, cursor=Cursor())
    assert whole.keys[:1] == [row.key for row in page.rows][:1]
    return [
        [(row.key, cell.column, cell.value) for row in page.rows for cell in row.cells],
        [(key, cell.column, cell.value) for key, cells in rows.items() for cell in cells],
        walked,
    ]


async def test_columns_with_equal_start_are_read_in_order(tmp_path: Path) -> None:
    columns = sorted([POINTS[:6], POINTS[:8], POINTS[:12], *(POINTS[: 40 + 2 * more] for more in range(20))])
    cells = [(row, column, b"v%d" % at) for row in (b"a", b"b") for at, column in enumerate(columns)]
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(*cell) for cell in cells])
        assert await read_all(store) == [cells] * 3


@pytest.mark.skipif(not HAS_PACKING_LOOP, reason="no C compiler when tsd was installed: cells are not packed")
async def test_damaged_cell_raises_in_every_read_call(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(b"a", POINTS, VALUE)])
    settings, table_settings = options(1 << 20, 1 << 20)
    database = rocksdict.Rdict(str(tmp_path), settings, {"cells": table_settings})
    table = database.get_column_family("cells")
    [(key, value)] = table.items()
    table[key] = value[:60] + bytes((value[60] ^ 1,)) + value[61:]
    table.close()
    database.close()
    async with opened(tmp_path) as store:
        for read in (
            lambda: store.get("cells", [b"a"]),
            lambda: store.get("cells", [b"a"], columns=[POINTS]),
            lambda: store.page("cells", b"", None, limit=9),
            lambda: store.read_cells("cells", b"", None, limit_bytes=9, cursor=Cursor()),
        ):
            with pytest.raises(StoreError):
                await read()


@pytest.mark.skipif(not HAS_PACKING_LOOP, reason="no C compiler when tsd was installed: cells are not packed")
async def test_merged_files_add_few_bytes_to_the_packed_values(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [b"\0\0\1" + (1_700_000_000).to_bytes(4, "big") + b"\0\0\1\0" + at.to_bytes(2, "big") for at in range(500)]
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(row, POINTS, chance.randbytes(360) + b"\0") for row in rows])
    settings, table_settings = options(1 << 20, 1 << 20)
    database = rocksdict.Rdict(str(tmp_path), settings, {"cells": table_settings})
    table = database.get_column_family("cells")
    merging = rocksdict.CompactOptions()
    merging.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
    table.compact_range(None, None, merging)
    values = [len(value) for value in table.values()]
    table.close()
    database.close()
    taken = max(file.stat().st_size for file in tmp_path.glob("*.sst"))
    keys = sum(len(row_prefix(row) + key_column(POINTS)) for row in rows)
    assert len(values) == len(rows)
    assert taken < sum(values) + keys / 2
