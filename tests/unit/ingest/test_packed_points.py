"""Packed points: every bit comes back, by metric and by parts."""

import random

import numpy as np
import pytest

from tsd.codec.points import Columns, Int32, joined_columns
from tsd.codec.text import FLOAT
from tsd.ingest.packed_points import PackedPoints, Place, merge, pack, slices

METRICS = 7


def columns_of(values: list[tuple[int, int, int, int]]) -> Columns:
    """Columns of points: series, instant, flags and bits."""
    series, instants, flags, bits = zip(*values, strict=True)
    return Columns(np.array(series, np.int32), np.array(instants), np.array(flags, np.uint8), np.array(bits))


def value(chance: random.Random, kind: int) -> tuple[int, int]:
    """Flags and bits of a value as a parser gives it."""
    if kind == 0:
        length = chance.choice((1, 2, 4, 8))
        return length - 1, chance.randrange(-(1 << 8 * length - 1), 1 << 8 * length - 1)
    if kind == 1:
        return FLOAT | 3, int(np.float32(chance.choice((42.5, -0.0, 1e30, chance.gauss(0, 9)))).view(np.uint32))
    number = chance.choice((chance.randrange(10**6) / 100, chance.random(), float("nan"), 1e300, 0.1))
    return FLOAT | 7, int(np.float64(number).view(np.int64))


def made(chance: random.Random, points: int, series: int, kinds: tuple[int, ...]) -> Columns:
    scale = chance.choice((1, 2000))
    instants = [(850_000_000_000 + at // 3) * scale for at in range(points)]
    return columns_of([(chance.randrange(series), at, *value(chance, chance.choice(kinds))) for at in instants])


def metric_of(series: int) -> Int32:
    return np.arange(series, dtype=np.int32) * 5 % METRICS + 1


def by_series(columns: Columns) -> dict[int, list[tuple[int, int, int]]]:
    found: dict[int, list[tuple[int, int, int]]] = {}
    for series, *rest in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault(series, []).append(tuple(rest))
    return found


@pytest.mark.parametrize("kinds", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_all_bits_come_back_in_order(kinds: tuple[int, ...], seed: int) -> None:
    chance = random.Random(seed)
    points, series = chance.choice(((1, 1), (500, 3), (3000, 700)))
    columns = made(chance, points, series, kinds)
    packed = pack(columns, metric_of(series))
    assert packed.points == points
    assert by_series(joined_columns(packed.between(None, None, metric_of(series)))) == by_series(columns)


@pytest.mark.slow
def test_metric_is_unpacked_alone() -> None:
    columns = made(random.Random(1), 200_000, 5000, (0,))
    numbers = metric_of(5000)
    packed = pack(columns, numbers)
    for metric in range(1, METRICS + 1):
        assert packed.has_metric(metric)
        found = joined_columns(packed.near(metric, -1, 5000))
        wanted = columns.at(numbers[columns.series] == metric)
        assert by_series(found.at(numbers[found.series] == metric)) == by_series(wanted)
        assert len(found.series) < 200_000
    assert not packed.has_metric(METRICS + 1)
    assert packed.near(METRICS + 1, -1, 5000) == []


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [False, True])
def test_slices_have_every_series_once(aligned: bool) -> None:
    chance = random.Random(2)
    numbers = metric_of(4000)
    parts = [made(chance, 100_000, series, (0, 2)) for series in (3000, 4000, 2000)]
    packed: list[PackedPoints] = []
    for part in parts:
        packed.append(pack(part, numbers, packed[-1].bounds if packed and aligned else ()))
    seen: dict[int, list[tuple[int, int, int]]] = {}
    bounds = list(slices(packed, 30_000))
    assert len(bounds) > 2
    for after, last in bounds:
        found = joined_columns([some for one in packed for some in one.between(after, last, numbers)])
        places = {Place(int(numbers[series]), series) for series in found.series.tolist()}
        assert all((after is None or place > after) and (last is None or place <= last) for place in places)
        part = by_series(found)
        assert seen.keys().isdisjoint(part)
        seen |= part
    assert seen == by_series(joined_columns(parts))


def test_series_that_come_later_are_found() -> None:
    """Before the first bound, between two, and behind the last one; others are gone."""
    numbers = metric_of(6000)
    before = pack(columns_of([(series, 2000 * at, 0, 7) for at in range(20) for series in range(1000, 5000)]), numbers)
    others = (*range(2000), *range(4000, 6000))
    wanted = columns_of([(series, 2000 * at, 0, at) for at in range(20) for series in others])
    packed = pack(wanted, numbers, before.bounds)
    assert before.bounds
    assert by_series(joined_columns(packed.between(None, None, numbers))) == by_series(wanted)
    for series in (0, 1500, 3000, 5999):
        found = packed.of_place(Place(int(numbers[series]), series))
        assert by_series(found) == by_series(wanted.at(wanted.series == series))


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [False, True])
def test_merged_points_are_the_same_in_order(aligned: bool) -> None:
    chance = random.Random(5)
    numbers = metric_of(30_000)
    packed: list[PackedPoints] = []
    parts = [made(chance, 40_000, chance.choice((200, 25_000, 30_000)), (0, 1, 2)) for _ in range(5)]
    for part in parts:
        packed.append(pack(part, numbers, packed[-1].bounds if packed and aligned else ()))
    merged = merge(packed, numbers, packed[1].bounds[::3])
    wanted = joined_columns(parts)
    assert (merged.points, merged.merges, merge([merged], numbers).merges) == (200_000, 1, 2)
    assert by_series(joined_columns(merged.between(None, None, numbers))) == by_series(wanted)
    later = pack(parts[0], numbers, merged.bounds)
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for after, last in slices([merged, later], 30_000):
        some = [part for one in (merged, later) for part in one.between(after, last, numbers)]
        found = by_series(joined_columns(some))
        assert seen.keys().isdisjoint(found)
        seen |= found
    assert seen == by_series(joined_columns([wanted, parts[0]]))
    for series in chance.sample(sorted(seen), 5):
        assert by_series(merged.of_place(Place(int(numbers[series]), series))) == by_series(
            wanted.at(wanted.series == series)
        )


def test_merged_points_of_many_series_take_less() -> None:
    """A series has a point in each: differences are stored once there are some."""
    numbers, chance = metric_of(3000), random.Random(4)
    levels = [chance.randrange(10**9) for _ in range(3000)]
    packed = [
        pack(columns_of([(at, 20_000 * time, 3, level + 3 * time) for at, level in enumerate(levels)]), numbers)
        for time in range(8)
    ]
    assert merge(packed, numbers).size < sum(one.size for one in packed) / 2


def test_points_of_agents_take_a_tenth() -> None:
    chance = random.Random(3)
    lines = [
        (number, (1_700_000_000 + 10 * at) * 2000, 1, 1000 + chance.randrange(100))
        for at in range(12)
        for number in range(5000)
    ]
    columns = columns_of(lines)
    assert pack(columns, metric_of(5000)).size < sum(column.nbytes for column in columns) // 10
