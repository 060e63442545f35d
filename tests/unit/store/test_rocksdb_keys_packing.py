"""Long cells of the embedded store: what is under their names, in what order they come, and databases from before."""

from pathlib import Path

import pytest
import rocksdict  # noqa: TID251 (what is in the files is looked at, and made as earlier versions made it)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.store.test_embedded import opened
from tsd.codec.cell import seconds_qualifier
from tsd.codec.packed import HAS_LOOP
from tsd.errors import StoreError
from tsd.store import Put, packing
from tsd.store.cells import Cursor, cell_pages
from tsd.store.embedded import EmbeddedStore
from tsd.store.keyvalue import row_head, with_time
from tsd.store.packing import LONG_BYTES, NAME_BYTES, closed, is_name, stands_as
from tsd.store.rocks import STAMPS
from tsd.store.rocks_options import options
from tsd.store.stamps import Stamps

POINTS = b"t:" + b"".join(seconds_qualifier(10 * at, 0) for at in range(360))
VALUE = bytes(at % 7 for at in range(360)) + b"\0"


@given(st.binary(min_size=2, max_size=60), st.binary(max_size=60), st.booleans())
def test_a_cell_stands_under_its_columns_name(column: bytes, value: bytes, packing_too: bool) -> None:
    name = stands_as(column)
    if name == column:
        assert not is_name(column)
        return
    assert is_name(name)
    assert len(name) == NAME_BYTES < LONG_BYTES
    stored = with_time(7, closed(column, value, packing=packing_too))
    assert packing.opened(name, stored) == (column, with_time(7, value))


def test_an_hour_of_points_is_small() -> None:
    assert len(closed(POINTS, VALUE, packing=True)) < 200
    assert len(closed(POINTS, VALUE, packing=False)) > len(POINTS) + len(VALUE)


@pytest.mark.parametrize("content", ["", "02", "00", "0000000100", "01", "0102030405060708090a"])
def test_what_no_cell_looks_like_is_an_error(content: str) -> None:
    with pytest.raises(StoreError, match="damaged"):
        packing.opened(stands_as(POINTS), with_time(7, bytes.fromhex(content)))


async def read_all(store: EmbeddedStore) -> list[list[tuple[bytes, bytes, bytes]]]:
    """All cells, by each of the ways there are."""
    page = await store.page("cells", b"", None, limit=100)
    rows = await store.get("cells", [row.key for row in page.rows])
    walked = [
        (part.keys[at], *part.cell(at)[:2])
        async for part in cell_pages(store, "cells", b"", None)
        for at in range(len(part.keys))
    ]
    whole = await store.cells("cells", b"", None, limit_bytes=1, cursor=Cursor())
    assert whole.keys[:1] == [row.key for row in page.rows][:1]
    return [
        [(row.key, cell.column, cell.value) for row in page.rows for cell in row.cells],
        [(key, cell.column, cell.value) for key, cells in rows.items() for cell in cells],
        walked,
    ]


async def test_long_cells_that_start_alike_come_in_order(tmp_path: Path) -> None:
    columns = sorted([POINTS[:6], POINTS[:8], POINTS[:12], *(POINTS[: 40 + 2 * more] for more in range(20))])
    cells = [(row, column, b"v%d" % at) for row in (b"a", b"b") for at, column in enumerate(columns)]
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(*cell) for cell in cells])
        assert await read_all(store) == [cells] * 3


def older_database(folder: Path, cells: list[tuple[bytes, bytes, int, bytes]]) -> None:
    """As versions made it that had every column in its key."""
    settings = options(1 << 20, 1 << 20)
    database = rocksdict.Rdict(str(folder), settings)
    table = database.create_column_family("cells", settings)
    for row, column, time_ms, value in cells:
        table[row_head(row) + column] = with_time(time_ms, value)
    stamps = Stamps(lambda: 500, None)
    stamps.now()
    database[STAMPS] = stamps.last_record()
    table.close()
    database.close()


async def test_a_database_from_before_is_read_and_written(tmp_path: Path) -> None:
    rows = [b"a", b"b", b"c", b"d"]
    older_database(tmp_path, [(row, POINTS, 500, VALUE) for row in rows])
    for _ in range(2):  # as long as it is there
        async with opened(tmp_path) as store:
            assert await read_all(store) == [[(row, POINTS, VALUE) for row in rows]] * 3
            found = await store.get("cells", rows, columns=[POINTS])
            assert {row: cells[0].time_ms for row, cells in found.items()} == dict.fromkeys(rows, 500)
    async with opened(tmp_path) as store:
        other = VALUE[::-1][1:] + b"\0"
        await store.put("cells", [Put(b"a", POINTS, other), Put(b"b", POINTS, other)], time_ms=499)
        await store.put("cells", [Put(b"b", POINTS, other)])
        await store.delete("cells", {b"c": [POINTS]}, up_to_ms=500)
        await store.delete("cells", {b"d": [POINTS]}, up_to_ms=499)
        assert await store.create("cells", [Put(b"d", POINTS, other), Put(b"c", POINTS, other)]) == [False, True]
        now = [(b"a", POINTS, VALUE), (b"b", POINTS, other), (b"c", POINTS, other), (b"d", POINTS, VALUE)]
        assert await read_all(store) == [now] * 3
        await store.delete("cells", {row: [POINTS] for row in rows}, up_to_ms=None)
        assert await read_all(store) == [[]] * 3


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: cells are not packed")
async def test_a_damaged_cell_is_an_error_wherever_it_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(b"a", POINTS, VALUE)])
    settings = options(1 << 20, 1 << 20)
    database = rocksdict.Rdict(str(tmp_path), settings, {"cells": settings})
    table = database.get_column_family("cells")
    [(key, value)] = table.items()
    table[key] = value[:60] + bytes((value[60] ^ 1,)) + value[61:]
    table.close()
    database.close()
    async with opened(tmp_path) as store:
        for ask in (
            lambda: store.get("cells", [b"a"]),
            lambda: store.get("cells", [b"a"], columns=[POINTS]),
            lambda: store.page("cells", b"", None, limit=9),
            lambda: store.cells("cells", b"", None, limit_bytes=9, cursor=Cursor()),
        ):
            with pytest.raises(StoreError, match="checksum"):
                await ask()
