"""Load by range of row keys: sums, disjoint ranges, bounds and time."""

import random
from collections.abc import Sequence

import pytest

from tsd.store import Cell, Put
from tsd.store.key_load import MINUTE_MS, MINUTES, HotRanges, KeyLoad

VALUE = b"12345"
EVER = MINUTES * MINUTE_MS


def split(_table: str, key: bytes) -> Sequence[bytes]:
    """Ranges of one byte, and of two."""
    return key[:1], key[:2]


class Clock:
    def __init__(self) -> None:
        self.ms = 50 * MINUTE_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def load(clock: Clock) -> KeyLoad:
    return KeyLoad(split, clock)


def puts(*keys: bytes) -> list[Put]:
    return [Put(key, b"t:q", VALUE) for key in keys]


def places(hot: HotRanges) -> dict[bytes, tuple[int, int]]:
    """Cells written and read by prefix."""
    return {one.prefix: (round(one.cells_written), round(one.cells_read)) for one in hot.ranges}


async def test_ranges_are_disjoint_and_complete(load: KeyLoad) -> None:
    load.wrote("t", puts(*[b"aa1"] * 8, b"ab1", b"ab2"))
    load.wrote("t", puts(*[bytes([100, n]) for n in range(10)]))
    load.read_rows("t", [(b"aa1", [Cell(b"t:q", VALUE, 0)] * 3), (b"za1", [Cell(b"t:q", VALUE, 0)])])
    load.read_keys("u", [b"xx"] * 5)
    load.read_range("u", b"yy", 11)
    hot = await load.hot_ranges(EVER, least_share=0.15)
    assert places(hot) == {b"aa": (8, 3), b"d": (10, 0), b"": (2, 1), b"xx": (0, 5), b"yy": (0, 11)}
    assert (hot.cells_written, hot.bytes_written, hot.cells_read) == (20, 20 * len(VALUE), 20)
    for count in ("cells_written", "bytes_written", "cells_read"):
        assert sum(getattr(one, count) for one in hot.ranges) == pytest.approx(getattr(hot, count))


async def test_wide_ranges_count_narrow_ones(load: KeyLoad) -> None:
    load.wrote("t", puts(b"aa", b"ab", b"ba"))
    assert places(await load.hot_ranges(EVER, least_share=0.1, widths=1)) == {b"a": (2, 0), b"b": (1, 0)}


async def test_only_the_wanted_time_counts(load: KeyLoad, clock: Clock) -> None:
    load.wrote("t", puts(b"aa"))
    clock.ms += 5 * MINUTE_MS
    load.wrote("t", puts(b"bb"))
    assert places(await load.hot_ranges(5 * MINUTE_MS, least_share=0.1)) == {b"bb": (1, 0)}
    whole = await load.hot_ranges(6 * MINUTE_MS, least_share=0.1)
    assert places(whole) == {b"aa": (1, 0), b"bb": (1, 0)}
    assert (whole.since_ms, whole.until_ms) == (50 * MINUTE_MS, clock.ms)
    clock.ms += EVER
    load.wrote("t", puts(b"cc"))
    assert places(await load.hot_ranges(2 * EVER, least_share=0.1)) == {b"cc": (1, 0)}


async def test_clock_that_is_set_back_loses_no_load(load: KeyLoad, clock: Clock) -> None:
    load.wrote("t", puts(b"aa"))
    clock.ms -= 10 * MINUTE_MS
    load.wrote("t", puts(b"aa"))
    assert places(await load.hot_ranges(EVER, least_share=0.1)) == {b"aa": (2, 0)}


async def test_sampled_batches_show_shares(load: KeyLoad) -> None:
    """Of large calls a few cells are counted, for all."""
    keys = sorted([b"aa"] * 5000 + [bytes([100 + n % 100, n % 250]) for n in range(5000)])
    for _ in range(20):
        load.wrote("t", puts(*keys))
    hot = await load.hot_ranges(EVER, least_share=0.2)
    assert hot.cells_written == pytest.approx(200_000)
    assert hot.bytes_written == pytest.approx(200_000 * len(VALUE))
    [first] = [one for one in hot.ranges if one.prefix]
    assert first.prefix == b"aa"
    assert first.cells_written == pytest.approx(100_000, rel=0.1)


async def test_many_ranges_take_bounded_memory_and_hide_no_hot_one(load: KeyLoad, clock: Clock) -> None:
    chance = random.Random(7)
    for minute in range(3):
        clock.ms = (60 + minute) * MINUTE_MS
        for _ in range(3000):
            load.wrote("t", puts(chance.randbytes(2), b"\xffa"))
    hot = await load.hot_ranges(EVER, least_share=0.0)
    assert len(hot.ranges) < 3000
    assert sum(one.cells_written for one in hot.ranges) == pytest.approx(18_000)
    assert {one.prefix: one.cells_written for one in hot.ranges}[b"\xffa"] == pytest.approx(9000, rel=0.01)


async def test_repeated_reads_of_a_row_count_in_all_of_its_ranges(load: KeyLoad, clock: Clock) -> None:
    for number in range(3):
        for _ in range(4):
            load.read_range("t", b"aa1", 2)
            load.read_range("u", b"aa1", 1)
            load.read_range("t", b"ab1", 1)
        clock.ms += MINUTE_MS
        hot = await load.hot_ranges(EVER, least_share=0.01)
        assert {(one.table, one.prefix): one.cells_read / (number + 1) for one in hot.ranges if one.cells_read} == {
            ("t", b"aa"): 8, ("u", b"aa"): 4, ("t", b"ab"): 4,
        }  # fmt: skip


async def test_reads_count_after_ranges_were_dropped(load: KeyLoad) -> None:
    load.read_range("t", b"hot", 1)
    for number in range(3000):  # more ranges than a minute has counters
        load.read_range("t", number.to_bytes(2, "big") + b"x", 1)
        load.read_range("t", b"hot", 1)
    hot = await load.hot_ranges(EVER, least_share=0.3)
    assert places(hot)[b"ho"] == (0, 3001)
    assert hot.cells_read == 6001


async def test_nothing_written_is_no_range(load: KeyLoad) -> None:
    load.wrote("t", [])
    load.read_rows("t", [])
    load.read_keys("t", [])
    assert (await load.hot_ranges(EVER, least_share=0.01)).ranges == []
