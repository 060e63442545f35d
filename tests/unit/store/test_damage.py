"""Reads that go on after damaged blocks: all other rows are read, and each block is reported once."""

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from tests.unit.store.crashing import POINTS
from tests.unit.store.damaging import stored_blocks
from tests.unit.store.rocksdb_parts import opened
from tsd.errors import DamagedBlock
from tsd.store import Page, Put
from tsd.store.damage import readable_pages
from tsd.store.rocksdb.engine import EmbeddedStore

HOURS = [b"hour%d" % hour for hour in range(6)]
ROWS = [hour + series for hour in HOURS for series in (b"a", b"b", b"c")]


async def damage(folder: Path, hours: Sequence[bytes]) -> None:
    """Make a store with all hours in blocks, and damage some."""
    async with opened(folder) as store:
        await store.put("cells", [Put(row, *POINTS) for row in ROWS])
        for hour in HOURS:
            await store.column_blocks.fold("cells", hour)
    stored_blocks(folder, "cells", *((hour + b"a", -1) for hour in hours))


async def readable(
    store: EmbeddedStore, limit: int, start: bytes = b"", stop: bytes | None = None, *, mend: bool = False
) -> tuple[list[bytes], list[bytes]]:
    """The rows that are read, and the prefixes of the damaged blocks."""
    found: list[bytes] = []
    damaged: list[bytes] = []

    async def read(at: bytes, end: bytes | None) -> Page:
        return await store.page("cells", at, end, limit=limit)

    async def on_damage(error: DamagedBlock) -> bool:
        damaged.append(error.prefix)
        return bool(mend and await store.column_blocks.remove_damaged("cells", error.prefix))

    async with aclosing(readable_pages(read, start, stop, on_damage)) as pages:
        async for page in pages:
            found += [row.key for row in page.rows]
    return found, damaged


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("damaged", [HOURS[:1], HOURS[1:3], HOURS[2:5:2], HOURS[5:], HOURS])
async def test_rows_of_other_hours_are_read(tmp_path: Path, damaged: list[bytes], limit: int) -> None:
    await damage(tmp_path, damaged)
    async with opened(tmp_path) as store:
        whole = [row for row in ROWS if row[:5] not in damaged]
        assert await readable(store, limit) == (whole, damaged)
        some = [row for row in whole if HOURS[1] <= row < HOURS[4]]
        told = [hour for hour in damaged if HOURS[1] <= hour < HOURS[4]]
        assert await readable(store, limit, HOURS[1], HOURS[4]) == (some, told)


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_rows_are_read_again_once_their_block_is_removed(tmp_path: Path, limit: int) -> None:
    await damage(tmp_path, HOURS[2:4])
    async with opened(tmp_path) as store:
        await store.put("cells", [Put(HOURS[2] + b"b", b"t:late", b"v")])
        left = [row for row in ROWS if row[:5] not in HOURS[2:4] or row == HOURS[2] + b"b"]
        assert await readable(store, limit, mend=True) == (left, HOURS[2:4])
        assert await readable(store, limit) == (left, [])


async def test_block_with_an_unknown_prefix_ends_the_read() -> None:
    async def read(at: bytes, end: bytes | None) -> Page:
        await trio.lowlevel.checkpoint()
        raise DamagedBlock("no place")

    async def on_damage(error: DamagedBlock) -> bool:
        raise AssertionError(error)

    async with aclosing(readable_pages(read, b"", None, on_damage)) as pages:
        with pytest.raises(DamagedBlock, match="no place"):
            await anext(pages)
