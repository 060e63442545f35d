"""Rows that the embedded store reads as it has packed them: their points, or the same rows as cells."""

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.peers.needs import need_compiled_loops
from tests.unit.store.rocksdb_parts import opened
from tsd.codec.opentsdb.cell import COLUMN, seconds_qualifier
from tsd.codec.text import FLOAT
from tsd.errors import StoreError
from tsd.store import CellPage, PackedRows, Put, StepLimit, cell_pages
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.keys import encode_long_cell, key_column
from tsd.store.rocksdb.packed import PackedCells

POINTS = 40
VALUES = [at / 4 for at in range(POINTS)]


@pytest.fixture(autouse=True)
def loops() -> None:
    need_compiled_loops()


def hour(*times_s: int) -> tuple[bytes, bytes]:
    """The column and the value of VALUES at some times, by default every ten seconds."""
    at = times_s or range(0, POINTS * 10, 10)
    column = COLUMN + b"".join(seconds_qualifier(time_s, FLOAT | 7) for time_s in at)
    return column, struct.pack(f">{POINTS}d", *VALUES) + b"\0"


async def packed(store: EmbeddedStore) -> PackedRows:
    """All rows, which are one page."""
    pages = store.column_blocks.read_columns("cells", b"", None, limit_bytes=1 << 20)
    [part] = [part async for parts in pages for part in parts]
    assert part.packed is not None
    return part.packed


async def cells(store: EmbeddedStore) -> CellPage:
    [page] = [page async for page in cell_pages(store, "cells", b"", None)]
    return page


async def test_rows_of_one_packed_cell_have_points(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(row, *hour()) for row in (b"a", b"b")])
        rows = await packed(store)
        found = rows.decode(np.array([0, 3600]))
        assert found is not None
        assert rows.keys == [b"a", b"b"]
        assert found.counts.tolist() == [POINTS, POINTS]
        assert found.times.tolist() == [base + at * 10_000 for base in (0, 3_600_000) for at in range(POINTS)]
        assert found.bits.view(float).tolist() == VALUES * 2
        assert found.floats.all()
        assert rows.unpack() == await cells(store)
        assert rows.sizes().sum() < sum(map(len, (await cells(store)).values))
        for chosen in ([False, True], [False, False]):
            some = rows.decode(np.zeros(2, np.int64), np.array(chosen))
            assert some is not None
            assert some.bits.view(float).tolist() == VALUES * sum(chosen)


@pytest.mark.parametrize("other", ["second cell", "short cell", "times that fall"])
async def test_other_rows_are_unpacked(tmp_path: Path, other: str) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(row, *hour()) for row in (b"a", b"b")])
        match other:
            case "second cell":
                await store.put("cells", [Put(b"b", COLUMN + seconds_qualifier(3599, 0), b"\1")])
            case "short cell":
                await store.put("cells", [Put(b"c", COLUMN + seconds_qualifier(3599, 0), b"\1")])
            case _:
                await store.put("cells", [Put(b"c", *hour(*range(1, POINTS), 0))])
        rows = await packed(store)
        assert rows.decode(np.zeros(len(rows.keys), np.int64)) is None
        assert rows.unpack() == await cells(store)


def test_damaged_cell_is_an_error() -> None:
    column, value = hour()
    stored = bytes(8) + encode_long_cell(column, value)
    damaged = stored[:-1] + bytes([stored[-1] ^ 1])
    rows = PackedCells(CellPage([b"a"], [key_column(column)], [damaged], 8, [], None))
    assert rows.decode(np.zeros(1, np.int64)) is None
    with pytest.raises(StoreError, match="damaged"):
        rows.unpack()


async def test_rows_are_read_in_one_step_up_to_a_limit(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(row, *hour()) for row in (b"a", b"b", b"bb", b"d")])
        await store.put("cells", [Put(b"d", COLUMN + seconds_qualifier(3599, 0), b"\1")])
        size = int((await packed(store)).sizes().sum()) + 5 * 8
        blocks, rows = store.column_blocks, [b"d", b"c", b"b", b"e", b"a", b"bb"]
        whole = StepLimit(5, size, 4 * POINTS)
        large = whole._replace(cells=500)
        smaller = whole._replace(cells=4), whole._replace(size=size - 1)
        for read in (
            lambda limit: blocks.get_columns_now("cells", rows, limit),
            lambda limit: blocks.read_columns_now("cells", b"a", b"e", limit),
        ):
            [part] = read(whole)
            assert part.packed is not None
            assert part.packed.keys == [b"a", b"b", b"bb", b"d", b"d"]
            assert read(large)[0].packed.keys == part.packed.keys
            assert [read(limit) for limit in smaller] == [None, None]
        assert blocks.get_columns_now("cells", [b"b", b"a"], StepLimit(2, size, 2 * POINTS - 1)) is None
        assert blocks.get_columns_now("cells", [b"c", b"e"], whole) == []
