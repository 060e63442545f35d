"""Rows that the embedded store keeps in memory: the same points as in the tables, after any write."""

import random
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.peers.needs import need_compiled_loops
from tests.unit.store.rocksdb_parts import CELLS
from tsd.codec.opentsdb.cell import COLUMN, seconds_qualifier
from tsd.codec.text import FLOAT
from tsd.store import ColumnPart, Put, Rewrite
from tsd.store.rocksdb.cached_rows import RowPieces
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.rocksdb.packed import PackedCells
from tsd.store.rocksdb.row_cache import RangeScan, RowCache

POINTS, ROWS = 20, 400
HOURS = [b"hour%d" % hour for hour in range(3)]
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
Points = tuple[list[int], list[int]]  # offsets in ms, and bits


@pytest.fixture(autouse=True)
def loops() -> None:
    need_compiled_loops()


@cache
def column(times_s: Sequence[int] = range(0, POINTS * 10, 10)) -> bytes:
    return COLUMN + b"".join(seconds_qualifier(time_s, FLOAT | 7) for time_s in times_s)


def row(hour: bytes, number: int, first: float = 0.0, times_s: Sequence[int] = range(0, POINTS * 10, 10)) -> Put:
    """A row of an hour, as one packed cell."""
    values = [first + at / 4 for at in range(POINTS)]
    return Put(hour + b"s%03d" % number, column(times_s), struct.pack(f">{POINTS}d", *values) + b"\0")


def rows(hour: bytes, count: int = ROWS) -> list[Put]:
    return [row(hour, number, number % 7) for number in range(count)]


class Opened:
    """A store with a table of hours, and its readers."""

    def __init__(
        self, folder: Path, limit: int = 1 << 20, count: int = ROWS, least: int = 100, cache_bytes: int = 256 << 20
    ) -> None:
        self._folder, self._limit, self._count, self._least = folder, limit, count, least
        self._cache_bytes = cache_bytes

    async def __aenter__(self) -> "Opened":
        self.store = await EmbeddedStore.open(
            self._folder,
            lambda: 1000,
            cache_bytes=self._cache_bytes,
            row_cache_bytes=self._limit,
            row_cache_least=self._least,
        )
        await self.store.create_tables([CELLS])
        for hour in HOURS:
            await self.store.put("cells", rows(hour, self._count))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.aclose()

    async def read(
        self, first: bytes = HOURS[0], stop: bytes = b"hour3", limit_bytes: int = 1 << 14
    ) -> dict[bytes, Points]:
        """The points of all rows, as queries read them."""
        found: dict[bytes, Points] = {}
        read = self.store.column_blocks.read_columns("cells", first, stop, limit_bytes=limit_bytes, range_of=hour_of)
        async for parts in read:
            for part in parts:
                for key, points in points_of(part).items():
                    assert key not in found
                    found[key] = points
        return found

    async def stored(self, first: bytes = HOURS[0], stop: bytes = b"hour3") -> dict[bytes, Points]:
        """The same, as the table has them."""
        read = self.store.column_blocks.read_columns("cells", first, stop, limit_bytes=1 << 14)
        return {key: points async for parts in read for part in parts for key, points in points_of(part).items()}

    def counts(self) -> Mapping[str, int]:
        """Numbers of the cache."""
        return {
            name.removeprefix("row_cache."): number
            for name, number in self.store.statistics().items()
            if name.startswith("row_cache.")
        }

    async def fill(self) -> None:
        """Let it keep all hours."""
        for _ in range(2):
            await self.read()
        assert self.counts()["ranges"] == len(HOURS)


def hour_of(key: bytes) -> tuple[bytes, bytes] | None:
    return (key[:5], key[:4] + bytes([key[4] + 1])) if len(key) >= 5 else None


def points_of(part: ColumnPart) -> dict[bytes, Points]:
    if part.rows is not None:
        keys = [part.rows.prefix + one for one in part.rows.suffixes()]
        found = part.rows.decode(np.ones(len(keys), np.bool_))
        bounds = found.starts.tolist()
        return {
            key: (found.offsets[at:to].tolist(), found.bits[at:to].tolist())
            for key, at, to in zip(keys, bounds, bounds[1:], strict=False)
        }
    cells = part.cells if part.packed is None else part.packed.unpack()
    assert cells is not None
    rows: dict[bytes, list[tuple[int, int]]] = {}
    for at, key in enumerate(cells.keys):
        rows.setdefault(key, []).extend(doubles_of(*cells.cell(at)[:2]))
    return {key: ([time for time, _ in sorted(own)], [bits for _, bits in sorted(own)]) for key, own in rows.items()}


def doubles_of(column: bytes, value: bytes) -> list[tuple[int, int]]:
    """The points of a cell: offsets in ms, and bits."""
    count = len(column) // 2 - 1
    words = struct.unpack(f">{count}H", column[2:])
    bits = struct.unpack(f">{count}q", value[: count * 8].rjust(count * 8, b"\0"))  # a cell of one point may be shorter
    return [((word >> 4) * 1000, one) for word, one in zip(words, bits, strict=True)]


async def test_hours_read_twice_are_kept(tmp_path: Path) -> None:
    async with Opened(tmp_path) as world:
        wanted = await world.stored()
        assert len(wanted) == len(HOURS) * ROWS
        for hits in (0, 0, 3, 6):
            assert await world.read() == wanted
            assert world.counts()["hits"] == hits
        assert 0 < world.counts()["bytes"] <= 1 << 20
        assert await world.read(HOURS[1], HOURS[2]) == await world.stored(HOURS[1], HOURS[2])
        assert world.counts()["hits"] == 7
        world.store.column_blocks.forget()
        assert world.counts()["ranges"] == world.counts()["bytes"] == 0
        assert await world.read() == wanted


async def test_parts_of_hours_are_not_kept(tmp_path: Path) -> None:
    """Nor are cached hours read where only some of their rows are wanted."""
    async with Opened(tmp_path) as world:
        for first, stop in ((HOURS[0] + b"s1", HOURS[1]), (HOURS[0], HOURS[0] + b"s399")):
            for _ in range(3):
                assert await world.read(first, stop) == await world.stored(first, stop)
            assert not world.counts()["ranges"]
        await world.fill()
        for first, stop in ((HOURS[0] + b"s1", HOURS[1] + b"s2"), (HOURS[0], HOURS[2] + b"s1")):
            assert await world.read(first, stop) == await world.stored(first, stop)


@pytest.mark.parametrize("rows_before", [1, 3, 10, 200])
async def test_small_hours_are_not_kept(tmp_path: Path, rows_before: int) -> None:
    async with Opened(tmp_path, least=250) as world:
        for hour in range(5):
            await world.store.put("cells", rows(b"houq%d" % hour, rows_before))
        for _ in range(3):
            assert await world.read(b"houq0") == await world.stored(b"houq0")
        assert world.counts()["ranges"] <= len(HOURS)
        assert await world.read(HOURS[0]) == await world.stored(HOURS[0])


async def test_chosen_rows(tmp_path: Path) -> None:
    async with Opened(tmp_path) as world:
        await world.fill()
        pages = world.store.column_blocks.read_columns(
            "cells", HOURS[0], HOURS[1], limit_bytes=1 << 20, range_of=hour_of
        )
        [kept] = [part.rows async for parts in pages for part in parts]
        assert kept is not None
        assert kept.points == ROWS * POINTS
        assert kept.sizes().sum() < kept.points * 8
        chosen = np.zeros(ROWS, np.bool_)
        chosen[[3, 399]] = True
        for some in (chosen, ~chosen):
            found, alike = kept.decode(some), kept.decode_alike(some)
            assert alike is not None
            assert found.rows.tolist() == np.flatnonzero(some).tolist()
            assert alike.bits.reshape(-1).tolist() == found.bits.tolist()
            assert alike.bits[:, 0].view(float).tolist() == [float(at % 7) for at in found.rows.tolist()]
            assert alike.offsets_ms.tolist() == found.offsets[:POINTS].tolist()
        await world.store.put("cells", [row(HOURS[0], 999, 1.0, range(POINTS))])
        await world.fill()
        pages = world.store.column_blocks.read_columns(
            "cells", HOURS[0], HOURS[1], limit_bytes=1 << 20, range_of=hour_of
        )
        assert [part.rows.decode_alike() async for parts in pages for part in parts if part.rows] == [None]


async def put(store: EmbeddedStore) -> None:
    await store.put("cells", [row(HOURS[1], 3, 9.0)])


async def put_new(store: EmbeddedStore) -> None:
    await store.put("cells", [row(HOURS[1], 999, 9.0)])


async def put_old(store: EmbeddedStore) -> None:
    await store.put("cells", [row(HOURS[1], 999, 9.0)], time_ms=1)


async def delete(store: EmbeddedStore) -> None:
    await store.delete("cells", {HOURS[1] + b"s003": [column()]}, up_to_ms=None)


async def delete_range(store: EmbeddedStore) -> None:
    await store.range_deletes.delete_range("cells", HOURS[1] + b"s1", HOURS[1] + b"s2", changed=[])


async def delete_hours(store: EmbeddedStore) -> None:
    await store.range_deletes.delete_range("cells", b"hou", HOURS[1] + b"s2", changed=[])


async def create(store: EmbeddedStore) -> None:
    await store.create("cells", [row(HOURS[1], 999, 9.0)])


async def check_and_put(store: EmbeddedStore) -> None:
    _, name, value = row(HOURS[1], 999, 9.0)
    await store.check_and_put("cells", HOURS[1] + b"s999", name, value, expected=None)


async def rewrite(store: EmbeddedStore) -> None:
    other = row(HOURS[1], 3, 9.0, range(POINTS))
    await store.atomic_rewrites.rewrite("cells", [Rewrite(other.row, [other], 2000, [(column(), 2000)])])


async def fold(store: EmbeddedStore) -> None:
    await store.column_blocks.fold("cells", HOURS[1])
    await store.put("cells", [row(HOURS[1], 999, 9.0)])
    await store.column_blocks.fold("cells", HOURS[1])


WRITES = [put, put_new, put_old, delete, delete_range, delete_hours, create, check_and_put, rewrite]


@pytest.mark.parametrize("write", WRITES)
async def test_written_hours_are_read_again(tmp_path: Path, write: Callable[[EmbeddedStore], Awaitable[None]]) -> None:
    async with Opened(tmp_path) as world:
        before = await world.stored()
        await world.fill()
        await write(world.store)
        wanted = await world.stored()
        assert wanted != before
        for _ in range(4):
            assert await world.read() == wanted
        assert world.counts()["invalidated"] >= 1


async def test_folded_hours_keep_their_points(tmp_path: Path) -> None:
    async with Opened(tmp_path) as world:
        for hour in HOURS:
            await world.store.put("cells", [row(hour, number, 0.1) for number in range(ROWS)])
        await world.fill()
        before = await world.stored()
        assert (await world.store.column_blocks.fold("cells", HOURS[1])).cells == ROWS
        for _ in range(3):
            assert await world.read() == before
        await fold(world.store)
        for _ in range(3):
            found = await world.read()
            assert len(found) == len(before) + 1
            assert {key: points for key, points in found.items() if key in before} == before


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "after_pages", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(3, marks=pytest.mark.slow)]
)
async def test_hours_written_while_they_are_read(
    tmp_path: Path, write: Callable[[EmbeddedStore], Awaitable[None]], after_pages: int
) -> None:
    async with Opened(tmp_path) as world:
        await world.read()
        read = world.store.column_blocks.read_columns(
            "cells", HOURS[0], b"hour3", limit_bytes=1 << 14, range_of=hour_of
        )
        for _ in range(after_pages):
            await anext(read)
        await write(world.store)
        async for _ in read:
            pass
        wanted = await world.stored()
        for _ in range(3):
            assert await world.read() == wanted


async def test_hours_folded_while_they_are_read(tmp_path: Path) -> None:
    """By the first fold. The scan is beyond its share of RocksDB's cache."""
    async with Opened(tmp_path, cache_bytes=1 << 10) as world:
        await world.read()
        read = world.store.column_blocks.read_columns(
            "cells", HOURS[0], b"hour3", limit_bytes=1 << 10, range_of=hour_of
        )
        await anext(read)
        for hour in HOURS:
            assert (await world.store.column_blocks.fold("cells", hour)).cells == ROWS
        async for _ in read:
            pass
        wanted = await world.stored()
        for _ in range(3):
            assert await world.read() == wanted


async def anything(store: EmbeddedStore, chance: random.Random) -> None:
    """Write to some rows of the hours, in any way."""
    hour, number = chance.choice(HOURS), chance.randrange(14)
    one = row(hour, number, chance.random(), tuple(sorted(chance.sample(range(3600), POINTS))))
    some = [row(hour, at, chance.random()) for at in chance.sample(range(14), 3)]
    match chance.randrange(8):
        case 0:
            await store.put("cells", some)
        case 1:
            await store.put("cells", [one], time_ms=chance.choice([1, 1000, 5000]))
        case 2:
            await store.delete("cells", {put.row: [put.column] for put in some}, up_to_ms=chance.choice([None, 900]))
        case 3:
            start, stop = sorted(chance.choice(HOURS) + b"s%03d" % chance.randrange(14) for _ in range(2))
            kept = [one._replace(row=start)][: chance.randrange(2)]  # of the deleted rows
            await store.range_deletes.delete_range("cells", start, stop, changed=[], keep=kept)
        case 4:
            await store.create("cells", [one])
        case 5:
            await store.atomic_rewrites.rewrite("cells", [Rewrite(one.row, [one], 2000, [(column(), 2000)])])
        case 6:
            await store.put("cells", rows(hour, 12))
        case _ if chance.random() < 0.2:
            await store.column_blocks.fold("cells", hour)


@pytest.mark.parametrize("seed", SEEDS)
async def test_any_writes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with Opened(tmp_path, count=12, least=2) as world:
        for _ in range(150):
            if chance.random() < 0.4:
                await anything(world.store, chance)
            first, stop = sorted(chance.sample([*HOURS, b"hour3", HOURS[1] + b"s005"], 2))
            size = chance.choice([400, 4000, 1 << 20])
            assert await world.read(first, stop, size) == await world.stored(first, stop)
        assert world.counts()["hits"]
        assert world.counts()["invalidated"]


@pytest.mark.parametrize("seed", SEEDS)
async def test_any_writes_while_rows_are_read(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with Opened(tmp_path, count=12, least=2) as world:

        async def write() -> None:
            for _ in range(3):
                for _ in range(chance.randrange(20)):
                    await trio.lowlevel.checkpoint()
                await anything(world.store, chance)

        async def read() -> None:
            for _ in range(3):
                await world.read(limit_bytes=chance.choice([400, 4000]))

        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for work in (write, read, read):
                    nursery.start_soon(work)
            wanted = await world.stored()
            for _ in range(3):
                assert await world.read() == wanted


async def test_one_scan_collects_a_range(tmp_path: Path) -> None:
    """Many queries of an hour at once would hold it as often, besides their own memory."""
    async with Opened(tmp_path) as world:
        read = world.store.column_blocks.read_columns("cells", HOURS[0], HOURS[1], limit_bytes=1 << 20)
        pages = [part.packed.page async for parts in read for part in parts if isinstance(part.packed, PackedCells)]
    cache = RowCache(1 << 20, 100)

    def scanned(scan: RangeScan) -> list[RowPieces]:
        scan.begin(HOURS[0])
        return [one for page in pages for one in scan.add(page, hour_of)]

    with cache.scanning("cells", HOURS[0], HOURS[1]) as first:
        assert not [*scanned(first), *first.end(HOURS[1])]
    with (
        cache.scanning("cells", HOURS[0], HOURS[1]) as second,
        cache.scanning("cells", HOURS[0], HOURS[1]) as third,
    ):
        assert not [*scanned(second), *scanned(third), *third.end(HOURS[1])]
        [kept] = second.end(HOURS[1])
        second.keep(kept, kept.joined())
    assert cache.statistics()["ranges"] == 1


async def test_limit_is_kept(tmp_path: Path) -> None:
    async with Opened(tmp_path) as world:
        await world.fill()
        wanted, size = await world.stored(), world.counts()["bytes"]
    limit = size * 3 // 4
    async with Opened(tmp_path, limit) as world:
        for _ in range(5):
            assert await world.read() == wanted
            assert world.counts()["bytes"] <= limit
        assert 0 < world.counts()["ranges"] < len(HOURS)
        hits = world.counts()["hits"]
        assert hits
        for hour in HOURS:  # each leaves for the next
            for _ in range(3):
                await world.read(hour, hour[:4] + bytes([hour[4] + 1]))
            assert world.counts()["bytes"] <= limit
        assert world.counts()["hits"] >= hits + len(HOURS)
    for less in (0, size // 2):  # none; an hour takes more than its share
        async with Opened(tmp_path, less) as world:
            for _ in range(3):
                assert await world.read() == wanted
            assert not world.counts()["hits"]


@pytest.mark.parametrize("other", ["second cell", "short cell", "times that fall"])
async def test_other_rows_are_not_kept(tmp_path: Path, other: str) -> None:
    async with Opened(tmp_path) as world:
        match other:
            case "second cell":
                cell = Put(HOURS[1] + b"s003", COLUMN + seconds_qualifier(3599, 0), b"\1")
            case "short cell":
                cell = Put(HOURS[1] + b"s999", COLUMN + seconds_qualifier(3599, 0), b"\1")
            case _:
                cell = row(HOURS[1], 999, 0.0, (*range(1, POINTS), 0))
        await world.store.put("cells", [cell])
        for _ in range(4):
            await world.read()
        assert world.counts()["ranges"] == len(HOURS) - 1


async def test_short_hours_in_memory_are_read_together(tmp_path: Path) -> None:
    async with Opened(tmp_path) as world:
        await world.fill()
        wanted = await world.stored()
        for limit_bytes in (1 << 20, 1 << 16, 1 << 10):
            pages = [
                parts
                async for parts in world.store.column_blocks.read_columns(
                    "cells", HOURS[0], b"hour3", limit_bytes=limit_bytes, range_of=hour_of
                )
            ]
            found = [list(points_of(part).items()) for parts in pages for part in parts]
            assert [one for part in found for one in part] == sorted(wanted.items())
            if limit_bytes == 1 << 20:
                assert [len(parts) for parts in pages] == [len(HOURS)]
            else:
                assert len(pages) > 1


async def test_rows_between_hours_in_memory_come_in_order(tmp_path: Path) -> None:
    async with Opened(tmp_path) as world:
        await world.fill()
        await world.store.put("cells", [row(HOURS[1], 7, 2.5)])
        assert world.counts()["ranges"] == len(HOURS) - 1
        found = await world.read(limit_bytes=1 << 20)
        assert list(found) == sorted(found)
        assert found == await world.stored()


async def test_hours_in_memory_with_the_same_rows_share_the_list_of_their_keys(tmp_path: Path) -> None:
    async with Opened(tmp_path) as world:
        await world.store.delete("cells", {HOURS[2] + b"s007": [column()]}, up_to_ms=None)
        for _ in range(2):
            await world.read()
        read = world.store.column_blocks.read_columns(
            "cells", HOURS[0], b"hour3", limit_bytes=1 << 20, range_of=hour_of
        )
        first, second, third = [part.rows.suffixes() async for parts in read for part in parts if part.rows is not None]
        assert second is first
        assert third == [one for one in first if one != b"s007"]
        assert await world.read(limit_bytes=1 << 20) == await world.stored()
