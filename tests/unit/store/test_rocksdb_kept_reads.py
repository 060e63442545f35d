"""Reads of few rows that the embedded store keeps: the same rows as in the table, after any write."""

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.unit.store.test_rocksdb_row_cache import HOURS, WRITES, Opened, Points, anything, fold, loops, points_of, row
from tsd.store import ColumnPart, Put, StepLimit
from tsd.store.rocksdb.engine import EmbeddedStore

__all__ = ["loops"]  # a fixture
LIMIT = StepLimit(100, 1 << 16, 10_000)
ROWS = [HOURS[1] + b"s%03d" % number for number in (3, 150, 999)]  # the last one does not exist


def gets(world: Opened) -> int:
    """How many reads RocksDB has done."""
    counts = world.store.statistics()
    return counts.get("get", 0) + counts.get("read_cells", 0)


def found(parts: Sequence[ColumnPart] | None) -> dict[bytes, Points] | None:
    return None if parts is None else {key: points for part in parts for key, points in points_of(part).items()}


def read_rows(world: Opened, rows: Sequence[bytes] = ROWS, limit: StepLimit = LIMIT) -> dict[bytes, Points] | None:
    return found(world.store.column_blocks.get_columns_now("cells", rows, limit))


def read_range(
    world: Opened, start: bytes = ROWS[0], stop: bytes | None = HOURS[1] + b"s01", limit: StepLimit = LIMIT
) -> dict[bytes, Points] | None:
    return found(world.store.column_blocks.read_columns_now("cells", start, stop, limit))


def without_memory(world: Opened, read: Callable[[Opened], dict[bytes, Points] | None]) -> dict[bytes, Points] | None:
    world.store.column_blocks.forget()
    before = gets(world)
    answer = read(world)
    assert gets(world) == before + 1
    return answer


@pytest.mark.parametrize("read", [read_rows, read_range])
async def test_repeated_reads_take_no_read_of_rocksdb(
    tmp_path: Path, read: Callable[[Opened], dict[bytes, Points] | None]
) -> None:
    async with Opened(tmp_path, count=200) as world:
        wanted, before = read(world), gets(world)
        assert wanted
        for hits in range(1, 4):
            assert read(world) == wanted
            assert (gets(world), world.counts()["reads"]) == (before, hits)
        assert world.counts()["bytes"] > sum(len(bits) for _, bits in wanted.values())
        assert without_memory(world, read) == wanted


@pytest.mark.parametrize("read", [read_rows, read_range])
@pytest.mark.parametrize("write", [*WRITES, fold])
async def test_written_rows_are_read_again(
    tmp_path: Path,
    write: Callable[[EmbeddedStore], Awaitable[None]],
    read: Callable[[Opened], dict[bytes, Points] | None],
) -> None:
    async with Opened(tmp_path, count=200) as world:
        read(world)
        await write(world.store)
        assert read(world) == without_memory(world, read)


async def test_other_writes_change_nothing(tmp_path: Path) -> None:
    async with Opened(tmp_path, count=200) as world:
        for read in (read_rows, read_range):
            read(world)
        before = gets(world)
        others = [row(hour, number, 5.0) for hour in HOURS for number in (2, 10, 149, 151, 998)]
        await world.store.put("cells", others)
        await world.store.range_deletes.delete_range("cells", HOURS[1] + b"s01", ROWS[1], changed=[])
        for read in (read_rows, read_range):
            assert read(world)
        assert gets(world) == before


async def test_two_rows_are_no_range(tmp_path: Path) -> None:
    async with Opened(tmp_path, count=200) as world:
        rows = [HOURS[0] + b"s001", HOURS[0] + b"s004"]
        first, ranged = read_rows(world, rows), read_range(world, *rows)
        assert first is not None
        assert ranged is not None
        assert [*first] == rows
        assert [*ranged] == [HOURS[0] + b"s00%d" % number for number in (1, 2, 3)]
        assert (read_rows(world, rows), read_range(world, *rows)) == (first, ranged)


@pytest.mark.parametrize("over", [StepLimit(1, 1 << 16, 1000), StepLimit(9, 30, 1000), StepLimit(9, 1 << 16, 39)])
async def test_limits_hold_for_kept_reads(tmp_path: Path, over: StepLimit) -> None:
    async with Opened(tmp_path, count=200) as world:
        wanted = read_rows(world)
        assert wanted
        assert read_rows(world, limit=over) is None
        assert read_rows(world, limit=StepLimit(2, 1 << 16, 40)) == wanted


async def test_memory_is_bounded(tmp_path: Path) -> None:
    async with Opened(tmp_path, limit=1 << 19, count=200) as world:
        for number in range(200):
            rows = [hour + b"s%03d" % number for hour in HOURS]
            for _ in range(2):
                assert len(read_rows(world, rows) or ()) == len(HOURS)
            range_stop = HOURS[0] + b"s%03d" % (number + 1)
            assert len(read_range(world, rows[0], range_stop) or ()) == 1
            assert 0 < world.counts()["bytes"] <= 1 << 16
        before = gets(world)
        assert read_rows(world, rows)
        assert gets(world) == before
        assert read_rows(world, [HOURS[0] + b"s000", HOURS[1] + b"s000", HOURS[2] + b"s000"])
        assert gets(world) == before + 1  # it has left
    async with Opened(tmp_path / "off", limit=0, count=200) as world:
        for _ in range(2):
            assert read_rows(world)
        assert (gets(world), world.counts()["bytes"]) == (2, 0)


async def test_a_large_read_is_not_kept(tmp_path: Path) -> None:
    async with Opened(tmp_path, limit=1 << 19, count=200) as world:
        rows = [HOURS[0] + b"s%03d" % number for number in range(60)]
        for _ in range(2):
            assert len(read_rows(world, rows) or ()) == 60
        assert (gets(world), world.counts()["bytes"]) == (2, 0)


async def test_many_ranges(tmp_path: Path) -> None:
    """The oldest leave; each write takes the right ones."""
    async with Opened(tmp_path, limit=1 << 22, count=200) as world:
        starts = [HOURS[0] + b"s%03d" % number for number in range(200)]
        for start in starts:
            assert read_range(world, start, start + b"\1")
        before = gets(world)
        await world.store.put("cells", [row(HOURS[0], 180, 7.5), row(HOURS[0], 190, 7.5)])
        for start in starts[170:]:
            assert read_range(world, start, start + b"\1")
        assert gets(world) == before + 2


@pytest.mark.parametrize("seed", range(6))
async def test_any_writes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    keys = [hour + b"s%03d" % number for hour in HOURS for number in range(14)]
    choices = [tuple(sorted(chance.sample(keys, chance.randrange(1, 5)))) for _ in range(8)]
    ranges = [tuple(sorted(chance.sample([*keys, b"hour3"], 2))) for _ in range(4)]
    async with Opened(tmp_path, count=12, least=2) as world:
        for _ in range(150):
            if chance.random() < 0.3:
                await anything(world.store, chance)
            rows, (start, stop) = chance.choice(choices), chance.choice(ranges)
            seen, ranged = read_rows(world, rows), read_range(world, start, stop)
            stored = await world.stored()
            assert seen == {key: stored[key] for key in rows if key in stored}
            assert ranged in (None, {key: points for key, points in stored.items() if start <= key < stop})
        assert world.counts()["reads"]


async def test_kept_rows_are_the_same_object(tmp_path: Path) -> None:
    """So callers recognise what they have decoded."""
    async with Opened(tmp_path, count=200) as world:
        blocks = world.store.column_blocks
        first, second = (blocks.get_columns_now("cells", ROWS, LIMIT) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first[0].packed is second[0].packed is not None


@pytest.mark.parametrize("rows", [ROWS, [HOURS[1] + b"s9990"]])  # of the latter none exists
async def test_a_kept_read_is_done_again_without_its_keys_until_a_row_is_written(
    tmp_path: Path, rows: Sequence[bytes]
) -> None:
    async with Opened(tmp_path, count=200) as world:
        blocks = world.store.column_blocks
        parts = blocks.get_columns_now("cells", rows, LIMIT)
        assert parts is not None
        read = blocks.kept_read(parts)
        assert blocks.read_again("cells", read, LIMIT) is parts
        assert world.counts()["reads"] == 1
        await world.store.put("cells", [row(HOURS[0], 3, 5.0)])
        assert blocks.read_again("cells", read, LIMIT) is parts
        await world.store.put("cells", [Put(rows[-1], b"t:q", b"v")])
        assert blocks.read_again("cells", read, LIMIT) is None
        assert blocks.kept_read(parts) is None


async def test_a_kept_read_is_not_done_again_over_a_limit_or_once_memory_is_dropped(tmp_path: Path) -> None:
    async with Opened(tmp_path, count=200) as world:
        blocks = world.store.column_blocks
        parts = blocks.get_columns_now("cells", ROWS, LIMIT)
        assert parts is not None
        read = blocks.kept_read(parts)
        assert read is not None
        assert blocks.read_again("cells", read, StepLimit(1, 1 << 16, 1000)) is None
        assert blocks.read_again("cells", read, LIMIT) is parts
        blocks.forget()
        assert blocks.read_again("cells", read, LIMIT) is None
        assert blocks.kept_read(parts) is None


async def test_a_read_that_was_not_kept_is_not_done_again(tmp_path: Path) -> None:
    async with Opened(tmp_path, limit=0, count=200) as world:
        blocks = world.store.column_blocks
        parts = blocks.get_columns_now("cells", ROWS, LIMIT)
        assert parts
        assert blocks.kept_read(parts) is None
