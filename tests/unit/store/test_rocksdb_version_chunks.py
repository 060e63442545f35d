"""Chunks of versions on the embedded store: long hours are split, and late versions find their place."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from tsd.codec.putline import HOUR_MS
from tsd.errors import CorruptRow
from tsd.store import Family, Table, VersionedCells
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.version_chunks import MOST_BYTES, Versions, decode_chunk, split_chunk
from tsd.store.versions import UNBOUNDED, VersionPut, Wanted

TABLE = Table("chunks", (Family(b"t", UNBOUNDED),))
ROW, COLUMN = b"web01", b"t:sys.cpu"
NEXT_HOUR = 5 * HOUR_MS


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[VersionedCells]:
    store = await EmbeddedStore.open(tmp_path, lambda: 1)
    await store.versioned_cells.create_tables([TABLE])
    yield store.versioned_cells
    await store.aclose()


def puts(values: dict[int, bytes]) -> list[VersionPut]:
    return [VersionPut(ROW, COLUMN, value, time_ms) for time_ms, value in values.items()]


async def stored(cells: VersionedCells, wanted: Wanted) -> list[tuple[int, bytes]]:
    found = await cells.get(TABLE.name, [ROW], wanted)
    return [(cell.time_ms, cell.value) for cell in found.get(ROW, [])]


async def test_late_versions_and_deletes_in_long_hours(cells: VersionedCells) -> None:
    chosen = random.Random(7)
    model: dict[int, bytes] = {}
    for size in (4000, 1, 4000, 50, 3, 2000, 1):
        times = chosen.sample(range(NEXT_HOUR - HOUR_MS, NEXT_HOUR + HOUR_MS // 2, 300), size)
        new = {time_ms: chosen.randbytes(chosen.choice((2, 5, 40))) for time_ms in times}
        await cells.put(TABLE.name, puts(new))
        model |= new
        for _ in range(5):
            since, until = sorted(chosen.sample(range(NEXT_HOUR - 2 * HOUR_MS, NEXT_HOUR + HOUR_MS), 2))
            newest = sorted((item for item in model.items() if since <= item[0] < until), reverse=True)
            assert await stored(cells, Wanted(since, until)) == newest
            assert await stored(cells, Wanted(since, until, versions=700)) == newest[:700]
        first, second = chosen.choice(sorted(model)[: len(model) // 4]), chosen.choice(sorted(model))
        for since, until in ((0, first), (second, second + chosen.choice((1, HOUR_MS // 8, HOUR_MS // 2)))):
            await cells.delete(TABLE.name, ROW, [COLUMN], since_ms=since, until_ms=until)
            model = {time_ms: value for time_ms, value in model.items() if not since <= time_ms < until}
            assert await stored(cells, Wanted()) == sorted(model.items(), reverse=True)


async def test_values_longer_than_a_chunk(cells: VersionedCells) -> None:
    values = {at: bytes([at]) * 2 * MOST_BYTES for at in range(4)}
    await cells.put(TABLE.name, puts(values))
    await cells.put(TABLE.name, puts({2: b"short"}))
    assert await stored(cells, Wanted()) == sorted((values | {2: b"short"}).items(), reverse=True)


async def test_columns_that_follow_each_other_stay_apart(cells: VersionedCells) -> None:
    columns = [b"t:a", b"t:a\0", b"t:a b", b"t:b"]
    times = [HOUR_MS - 1, HOUR_MS, 3 * HOUR_MS]
    given = [
        VersionPut(row, column, row + column, time) for row in (b"r", b"r2") for column in columns for time in times
    ]
    await cells.put(TABLE.name, given)
    for since, until in ((0, HOUR_MS), (HOUR_MS, 2 * HOUR_MS), (2 * HOUR_MS, 4 * HOUR_MS)):
        [time] = [each for each in times if since <= each < until]
        columns_found = await cells.get_columns(TABLE.name, [b"r", b"r2"], Wanted(since, until))
        assert columns_found.puts() == [put for put in given if put.time_ms == time]


def test_a_split_keeps_all_versions_in_order() -> None:
    times = np.arange(10, 20_010)
    lengths = np.arange(20_000) % 7
    values = bytes(int(lengths.sum()))
    chunks = list(split_chunk(3, Versions(times, lengths, values)))
    assert len(chunks) > 2
    assert chunks[0][0] == 3
    decoded = [decode_chunk(start_ms, stored) for start_ms, stored in chunks]
    assert np.array_equal(np.concatenate([part.times_ms for part in decoded]), times)
    assert b"".join(part.values for part in decoded) == values


@pytest.mark.parametrize("damaged", ["010000000100000002000000aa", "020000000100000002000000aabb"])
def test_damaged_chunks_are_found(damaged: str) -> None:
    assert decode_chunk(0, bytes.fromhex("010000000100000002000000aabb")).values.hex() == "aabb"
    with pytest.raises(CorruptRow):
        decode_chunk(0, bytes.fromhex(damaged))
