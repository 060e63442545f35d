"""The newest points kept from windows: by series, whatever number it has, within a bound."""

from collections.abc import Callable

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.opentsdb.rowkey import KeyLayout, tsuid_row
from tsd.codec.points import Columns, sort_columns
from tsd.codec.putline import instant
from tsd.codec.text import FLOAT
from tsd.ingest.series import SeriesTable
from tsd.tables.catalog import LastPoint
from tsd.tables.opentsdb.last_point_cache import HAS_LOOP, NO_TIME, LastPointCache
from tsd.tables.writing import SeriesKey, SeriesText

NEEDS_LOOP = pytest.mark.skipif(not HAS_LOOP, reason="needs the compiled loop")
BEFORE_MS = 1 << 42
METRIC = b"\0\0\1"


def entered(table: SeriesTable, name: int) -> int:
    """The number of a series."""
    value = b"%d" % name
    parts = SeriesKey(METRIC, b"\0\0\1" + name.to_bytes(3, "big"))
    return table.insert(SeriesText(b"m", b"host=" + value), parts)


def arrived(points: list[tuple[int, int, int]]) -> Columns:
    """Integers (series number, seconds, value) in order of arrival."""
    series, times, values = zip(*points, strict=True)
    return Columns(
        np.array(series, np.int32),
        np.array([instant(time) for time in times], np.int64),
        np.full(len(points), 7, np.uint8),
        np.array(values, np.int64),
    )


def window(points: list[tuple[int, int, int]]) -> Columns:
    """The same, sorted as a writer does."""
    return sort_columns(arrived(points), join=True)


def newest(latest: LastPointCache, name: int) -> LastPoint | None:
    slot = latest.slot(METRIC, b"\0\0\1" + name.to_bytes(3, "big"))
    [point] = latest.points([slot])
    return point if point.time_ms != NO_TIME else None


WINDOWS = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30), st.integers(0, 999)), min_size=1))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_LOOP)])
@pytest.mark.parametrize("columns", [arrived, window])
@given(WINDOWS)
async def test_newest_point_of_all_windows_is_kept(
    columns: Callable[[list[tuple[int, int, int]]], Columns], compiled: bool, windows: list[list[tuple[int, int, int]]]
) -> None:
    table, latest = SeriesTable(), LastPointCache(0, compiled=compiled)
    wanted: dict[int, LastPoint] = {}
    for points in windows:
        await latest.record(
            columns([(entered(table, name), time, value) for name, time, value in points]), table, BEFORE_MS
        )
        for name, time, value in points:
            if name not in wanted or time * 1000 >= wanted[name].time_ms:
                wanted[name] = LastPoint(time * 1000, value)
    assert {name: newest(latest, name) for name in wanted} == wanted


@pytest.mark.parametrize("salt", [b"", b"\7"])
async def test_salt_is_no_part_of_a_series(salt: bytes) -> None:
    table, latest = SeriesTable(), LastPointCache(len(salt))
    parts = SeriesKey(salt + METRIC, b"\0\0\1\0\0\2")
    number = table.insert(SeriesText(b"m", b"a=b"), parts)
    await latest.record(window([(number, 10, 42)]), table, BEFORE_MS)
    assert list(latest.pairs_of(METRIC)) == [b"\0\0\1\0\0\2"]


async def test_reused_series_number_is_not_confused() -> None:
    table, latest = SeriesTable(), LastPointCache(0)
    first = entered(table, 1)
    await latest.record(window([(first, 10, 1)]), table, BEFORE_MS)
    table.mark_seen(np.array([first], np.int32), 100)
    assert table.evict(200, held_since_s=200) == 1
    second = entered(table, 2)
    assert second == first
    await latest.record(window([(second, 11, 2)]), table, BEFORE_MS)
    assert (newest(latest, 1), newest(latest, 2)) == (LastPoint(10_000, 1), LastPoint(11_000, 2))


async def test_future_times_hide_no_points() -> None:
    table, latest = SeriesTable(), LastPointCache(0)
    number = entered(table, 1)
    await latest.record(window([(number, 10, 1), (number, 5000, 2)]), table, 3_600_000)
    assert newest(latest, 1) == LastPoint(10_000, 1)


async def test_floats_of_both_widths_are_doubles() -> None:
    table, latest = SeriesTable(), LastPointCache(0)
    numbers = np.array([entered(table, 1), entered(table, 2)], np.int32)
    bits = [int(np.float32(4.5).view(np.uint32)), int(np.float64(0.1).view(np.int64))]
    flags = np.array([FLOAT | 3, FLOAT | 7], np.uint8)
    columns = Columns(numbers, np.array([instant(10)] * 2, np.int64), flags, np.array(bits, np.int64))
    await latest.record(columns, table, BEFORE_MS)
    assert (newest(latest, 1), newest(latest, 2)) == (LastPoint(10_000, 4.5), LastPoint(10_000, 0.1))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_LOOP)])
async def test_integer_next_to_a_float_stays_an_integer(compiled: bool) -> None:
    table, latest = SeriesTable(), LastPointCache(0, compiled=compiled)
    numbers = np.array([entered(table, 1), entered(table, 2)], np.int32)
    bits = np.array([int(np.float32(4.5).view(np.uint32)), 0x7F800001], np.int64)  # as a float, a signaling NaN
    columns = Columns(numbers, np.array([instant(10)] * 2, np.int64), np.array([FLOAT | 3, 3], np.uint8), bits)
    await latest.record(columns, table, BEFORE_MS)  # warnings are errors
    assert (newest(latest, 1), newest(latest, 2)) == (LastPoint(10_000, 4.5), LastPoint(10_000, 0x7F800001))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_LOOP)])
@pytest.mark.parametrize("times", [(20, 10), (10, 20), (20, 20)])
async def test_newest_point_of_a_series_with_two_numbers_is_kept(times: tuple[int, int], compiled: bool) -> None:
    """Regression: without the compiled loop the point of the higher number was kept, also an older one."""
    table, latest = SeriesTable(), LastPointCache(0, compiled=compiled)
    first = entered(table, 1)
    table.invalidate()
    numbers = [first, entered(table, 1)]
    points = [(number, time, number) for number, time in zip(numbers, times, strict=True)]
    for order in (points, points[::-1]):
        await latest.record(arrived(order), table, BEFORE_MS)
        number, time, _ = max(reversed(order), key=lambda point: point[1])
        assert newest(latest, 1) == LastPoint(time * 1000, number)
        latest.clear()


async def test_idle_series_with_the_oldest_points_are_dropped() -> None:
    table, latest = SeriesTable(), LastPointCache(0, max_idle=4)
    numbers = [entered(table, name) for name in range(8)]
    await latest.record(window([(number, 10 + number, number) for number in numbers]), table, BEFORE_MS)
    table.mark_seen(np.array(numbers[6:], np.int32), 100)
    assert table.evict(50, held_since_s=50) == 6
    await latest.record(window([(entered(table, 8), 5, 8)]), table, BEFORE_MS)
    assert [newest(latest, name) for name in range(4)] == [None] * 4
    assert [newest(latest, name) for name in range(4, 9)] == [
        LastPoint(14_000, 4), LastPoint(15_000, 5), LastPoint(16_000, 6), LastPoint(17_000, 7), LastPoint(5000, 8),
    ]  # fmt: skip
    await latest.record(window([(numbers[7], 60, 77), (entered(table, 0), 3, 9)]), table, BEFORE_MS)
    assert (newest(latest, 7), newest(latest, 0)) == (LastPoint(60_000, 77), LastPoint(3000, 9))


async def test_active_series_are_never_dropped() -> None:
    table, latest = SeriesTable(), LastPointCache(0, max_idle=4)
    for at in range(6):
        points = [(entered(table, name), at * 10 + name + 1, name) for name in range(at * 10, at * 10 + 10)]
        await latest.record(window(points), table, BEFORE_MS)
        latest.slots([(METRIC, b"\0\0\2" + name.to_bytes(3, "big")) for name in range(at * 10, at * 10 + 10)])
    wanted = {name: LastPoint((name // 10 * 10 + name + 1) * 1000, name) for name in range(60)}
    assert {name: newest(latest, name) for name in wanted} == wanted
    assert len(latest) < 80


async def test_eviction_during_insert_never_mixes_series() -> None:
    table, latest = SeriesTable(), LastPointCache(0)
    count = 5000
    numbers = [entered(table, name) for name in range(count)]

    async def forget() -> None:
        while not len(latest):
            await trio.lowlevel.checkpoint()
        latest.clear()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            latest.record, window([(number, 1, at) for at, number in enumerate(numbers)]), table, BEFORE_MS
        )
        nursery.start_soon(forget)
    half = numbers[: count // 2]
    await latest.record(window([(number, 2, at) for at, number in enumerate(half)]), table, BEFORE_MS)
    found = [newest(latest, name) for name in range(count)]
    assert found == [LastPoint(2000 if name < count // 2 else 1000, name) for name in range(count)]


async def test_expired_points_of_a_metric_are_forgotten() -> None:
    table, latest = SeriesTable(), LastPointCache(0)
    numbers = [entered(table, name) for name in range(3)]
    other = table.insert(SeriesText(b"n", b"host=0"), SeriesKey(b"\0\0\2", b"\0\0\1\0\0\0"))
    await latest.record(window([(numbers[0], 10, 1), (numbers[1], 20, 2), (other, 10, 3)]), table, BEFORE_MS)
    await latest.forget_before(METRIC, 20)
    assert [newest(latest, name) for name in range(3)] == [None, LastPoint(20_000, 2), None]
    assert latest.points([latest.slot(b"\0\0\2", b"\0\0\1\0\0\0")]) == [LastPoint(10_000, 3)]
    await latest.record(window([(numbers[0], 15, 4)]), table, BEFORE_MS)
    assert newest(latest, 0) == LastPoint(15_000, 4)


async def test_series_that_a_request_named_are_not_listed() -> None:
    table, latest = SeriesTable(), LastPointCache(0)
    await latest.record(window([(entered(table, 1), 10, 1)]), table, BEFORE_MS)
    other, unknown = b"\0\0\1\0\0\2", b"\0\0\1\0\0\3"
    slots = latest.slots([(METRIC, other), (METRIC, unknown), (b"\0\0\2", unknown)])
    latest.set_read(int(slots[0]), LastPoint(9000, 5), checked_ms=20_000, depth_h=2)
    latest.set_read(int(slots[1]), None, checked_ms=20_000, depth_h=2)
    assert list(latest.pairs_of(METRIC)) == [b"\0\0\1\0\0\1", other]
    assert list(latest.pairs_of(b"\0\0\2")) == []
    latest.forget(KeyLayout(), [tsuid_row(KeyLayout(), METRIC + other, 0)])
    assert list(latest.pairs_of(METRIC)) == [b"\0\0\1\0\0\1", other]


async def test_number_of_series_that_requests_name_is_bounded() -> None:
    table, latest = SeriesTable(), LastPointCache(0, max_idle=10)
    await latest.record(window([(entered(table, 1), 10, 1)]), table, BEFORE_MS)
    for number in range(100, 150):
        named = [(METRIC, b"\0\0\1" + name.to_bytes(3, "big")) for name in (1, number)]
        assert len(set(latest.slots(named).tolist())) == 2
    assert len(latest) <= 11
    assert newest(latest, 1) == LastPoint(10_000, 1)
