"""Points of few series in parts of memory, each of which is searched once."""

import random
from weakref import ref

import numpy as np

from tsd.codec.points import Columns
from tsd.ingest.found_points import FoundPoints
from tsd.ingest.packed_points import PackedPoints, pack

METRIC = 3
Row = tuple[int, int, int]  # instant, flags, bits


def part_of(chance: random.Random, count: int, series: int = 8) -> Columns:
    return Columns(
        np.array([chance.randrange(series) for _ in range(count)], np.int32),
        np.array([chance.randrange(7_200_000) for _ in range(count)], np.int64),
        np.array([chance.randrange(16) for _ in range(count)], np.uint8),
        np.array([chance.randrange(-100, 100) for _ in range(count)], np.int64),
    )


def rows(columns: Columns) -> list[Row]:
    return [*zip(*(column.tolist() for column in columns[1:]), strict=True)]


def numbers(*each: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(each, np.int32)


def expected(number: int, parts: list[Columns]) -> list[Row]:
    return [row for part in parts for row, own in zip(rows(part), part.series.tolist(), strict=True) if own == number]


def test_parts_that_come_and_go() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        found, parts = FoundPoints(), list[Columns]()
        for _ in range(60):
            step = chance.random()
            if step < 0.4:
                parts.append(part_of(chance, chance.randrange(30)))
            elif step < 0.5 and parts:
                del parts[: chance.randrange(len(parts)) + 1]
            elif step < 0.6 and len(parts) > 1:
                joined = Columns(*map(np.concatenate, zip(*parts[-2:], strict=True)))
                parts[-2:] = [joined]
            number = chance.randrange(9)
            columns = found.of_series(METRIC, numbers(number), parts)
            assert columns is not None
            assert rows(columns) == expected(number, parts)
            assert not columns.series.any()


async def test_several_series_are_found_together() -> None:
    """In plain and in packed parts; of each series in order of arrival."""
    for seed in range(20):
        chance = random.Random(seed)
        found, plain, parts = FoundPoints(), list[Columns](), list[Columns | PackedPoints]()
        for _ in range(8):
            plain.append(part_of(chance, chance.randrange(1, 60)))
            is_packed = chance.random() < 0.3
            parts.append(pack(plain[-1], np.full(8, METRIC, np.int32)) if is_packed else plain[-1])
            some = sorted(chance.sample(range(9), chance.randrange(1, 6)))
            columns = found.of_series(METRIC, numbers(*some), parts)
            if columns is None:
                columns = await found.find(METRIC, numbers(*some), parts)
            assert found.of_series(METRIC, numbers(*some), parts) is columns
            for place, number in enumerate(some):
                instants = columns.instants[columns.series == place].tolist()
                assert instants == [instant for instant, _, _ in expected(number, plain)]


def test_the_same_parts_give_the_same_object() -> None:
    chance = random.Random(1)
    found, parts = FoundPoints(), [part_of(chance, 50), part_of(chance, 5)]
    first, other = (found.of_series(METRIC, numbers(at), parts) for at in (3, 4))
    assert found.of_series(METRIC, numbers(3), parts) is first
    assert found.of_series(METRIC, numbers(4), list(parts)) is other
    parts.append(part_of(chance, 5))
    later = found.of_series(METRIC, numbers(3), parts)
    assert later is not None
    assert later is not first
    assert rows(later) == expected(3, parts)


def test_points_of_parts_that_are_gone_are_not_kept() -> None:
    """Regression: those of one part that was left kept those of all earlier ones, and were counted alone."""
    chance = random.Random(1)
    found, parts = FoundPoints(), [part_of(chance, 500), part_of(chance, 5)]
    earlier = found.of_series(METRIC, numbers(3), parts)
    assert earlier is not None
    gone = ref(earlier.instants)
    del earlier
    later = found.of_series(METRIC, numbers(3), parts[1:])
    assert later is not None
    assert rows(later) == expected(3, parts[1:])
    assert gone() is None


def test_a_series_that_is_not_in_memory_has_no_points() -> None:
    columns = FoundPoints().of_series(METRIC, numbers(), [part_of(random.Random(1), 50)])
    assert columns is not None
    assert not len(columns.series)


async def test_packed_points_are_searched_in_a_thread_once() -> None:
    """Later parts are searched in the event loop."""
    chance = random.Random(1)
    found, packed, parts = FoundPoints(), list[PackedPoints](), list[Columns]()
    for _ in range(3):
        parts.append(part_of(chance, 3000, series=200))
        packed.append(pack(parts[-1], np.full(200, METRIC, np.int32)))
        assert found.of_series(METRIC, numbers(1), packed) is None
        columns = await found.find(METRIC, numbers(1), packed)
        assert rows(columns) == expected(1, parts)
        assert found.of_series(METRIC, numbers(1), packed) is columns
        later = part_of(chance, 500, series=200)
        joined = found.of_series(METRIC, numbers(1), [*packed, later])
        assert joined is not None
        assert rows(joined) == [*expected(1, parts), *expected(1, [later])]


async def test_a_series_that_packed_points_lack() -> None:
    packed = [pack(part_of(random.Random(1), 3000, series=8), np.full(8, METRIC, np.int32))]
    for metric, number in ((METRIC, 9), (METRIC + 1, 1), (METRIC - 1, 1)):
        found = FoundPoints()
        assert not len((await found.find(metric, numbers(number), packed)).series)
        columns = found.of_series(metric, numbers(number), packed)
        assert columns is not None
        assert not len(columns.series)


async def test_many_points_are_searched_in_a_thread() -> None:
    found, part = FoundPoints(), part_of(random.Random(1), 1000)
    many = Columns(*(np.repeat(column, 1000) for column in part))
    assert found.of_series(METRIC, numbers(9), [many]) is None
    assert not len((await found.find(METRIC, numbers(9), [many])).series)
    later = found.of_series(METRIC, numbers(9), [many, part])
    assert later is not None


def test_many_series() -> None:
    chance = random.Random(3)
    found = FoundPoints()
    for _ in range(3000):
        part = part_of(chance, 40, series=2000)
        for number in part.series[:3].tolist():
            columns = found.of_series(METRIC, numbers(number), [part])
            assert columns is not None
            assert rows(columns) == expected(number, [part])
