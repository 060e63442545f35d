"""Texts, their numbers, and when both are forgotten."""

import numpy as np
import pytest

from tsd.codec.rowkey import LONGEST_KEY, Layout, most_tags
from tsd.ingest import compiled
from tsd.ingest.series import KeyParts, SeriesTable, SeriesText

needs_loop = pytest.mark.skipif(not compiled.HAS, reason="no C compiler when tsd was installed: only one way is there")


def enter(table: SeriesTable, metric: bytes, tags: bytes, parts: KeyParts | None = None) -> int:
    return table.enter(SeriesText(metric, tags), parts)


PARTS = KeyParts(b"\0\0\1", b"\0\0\1\0\0\1")


def test_spellings_of_one_series_share_a_number() -> None:
    table = SeriesTable()
    numbers = {enter(table, b"m", tags, PARTS) for tags in (b"a=1 b=2", b"b=2 a=1", b" a=1  b=2", b"a=1 b=2 a=1")}
    assert numbers == {0}
    assert enter(table, b"n", b"b=2 a=1", PARTS) == enter(table, b"n", b"a=1 b=2", PARTS) == 1
    assert enter(table, b"m", b"a=1", PARTS) == 2
    assert len(table) == 3


def test_idle_series_go_and_their_numbers_are_used_again() -> None:
    table = SeriesTable()
    for number in range(3000):
        enter(table, b"m", b"host=%d" % number, KeyParts(b"m", b"%d" % number))
    enter(table, b"m", b" host=1 ", PARTS)
    table.touch(np.arange(0, 3000, 2, dtype=np.int32), 100)
    assert table.forget(before_s=100, held_since_s=200) == 1500
    assert len(table) == 1500
    assert table.find(SeriesText(b"m", b"host=2")) == 2
    assert table.find(SeriesText(b"m", b"host=1")) is None
    assert table.find(SeriesText(b"m", b" host=1 ")) is None
    again = enter(table, b"m", b"host=1", PARTS)
    assert again < 3000
    assert again % 2 == 1
    assert table.parts(again) == PARTS
    assert table.parts(2) == KeyParts(b"m", b"2")


def test_a_metric_without_series_leaves_nothing_behind() -> None:
    table = SeriesTable()
    enter(table, b"m", b"a=1", PARTS)
    assert table.forget(before_s=1, held_since_s=1) == 1
    assert table.find(SeriesText(b"m", b"a=1")) is None
    assert len(table) == 0


def test_a_series_without_uids_is_settled_later_and_not_forgotten_before() -> None:
    table = SeriesTable()
    number = enter(table, b"m", b"a=1")
    assert table.unsettled == {number: SeriesText(b"m", b"a=1")}
    assert enter(table, b"m", b" a=1") == number
    assert table.parts(number) is None
    assert table.forget(before_s=1000, held_since_s=1000) == 0
    table.settle(number, PARTS)
    assert table.unsettled == {}
    assert table.parts(number) == PARTS


def test_a_refused_series_is_a_stranger_again() -> None:
    table = SeriesTable()
    number = enter(table, b"m", b"a=1")
    enter(table, b"m", b" a=1")
    table.refuse(number)
    assert table.refused == {number}
    assert table.find(SeriesText(b"m", b"a=1")) is None
    assert table.find(SeriesText(b"m", b" a=1")) is None
    assert enter(table, b"m", b"a=1", PARTS) != number


def test_forgotten_texts_get_new_numbers_while_old_ones_keep_their_parts() -> None:
    table = SeriesTable()
    old = enter(table, b"m", b"a=1", PARTS)
    table.touch(np.array([old], np.int32), 500)
    table.forget_texts()
    assert table.find(SeriesText(b"m", b"a=1")) is None
    new = enter(table, b"m", b"a=1", KeyParts(b"other", b"uids"))
    assert new != old
    assert table.parts(old) == PARTS
    table.touch(np.array([new], np.int32), 501)
    assert table.forget(before_s=100, held_since_s=500) == 0  # a window may still hold points of the old one
    assert table.forget(before_s=100, held_since_s=501) == 1
    assert table.find(SeriesText(b"m", b"a=1")) == new


def test_forgotten_series_do_not_pile_up() -> None:
    table = SeriesTable()
    for generation in range(5):
        for number in range(2000):
            enter(table, b"m", b"id=%d-%d a=1" % (generation, number), PARTS)
        assert table.forget(before_s=1, held_since_s=1) == 2000
    assert table.texts.count == 2000
    assert not table.knows(SeriesText(b"m", b"a=1 id=3-7"))


@pytest.mark.parametrize("by_loop", [False, pytest.param(True, marks=needs_loop)])
def test_the_longest_key_parts_have_room(by_loop: bool) -> None:
    """No series has longer ones: a setting of more tags than a row key has room for is refused at the start."""
    table = SeriesTable(by_loop=by_loop)
    parts = KeyParts(bytes(8) + b"m" * 8, b"kv" * (most_tags(Layout()) * 3))
    assert LONGEST_KEY - 16 < len(parts.before + parts.after) <= LONGEST_KEY + 16
    text = SeriesText(b"m", b" ".join(b"k%d=v" % number for number in range(200)))
    number = table.enter(text, parts)
    assert table.parts(number) == parts
    assert table.knows(SeriesText(b"m", b" ".join(reversed(text.tags.split()))))


@pytest.mark.parametrize("by_loop", [False, pytest.param(True, marks=needs_loop)])
def test_the_tags_of_many_series_stand_by_metric(by_loop: bool) -> None:
    table = SeriesTable(by_loop=by_loop)
    for number, metric in enumerate([b"m", b"n", b"m", b"m"]):
        enter(table, metric, b"a=%d" % number, KeyParts(b"\7" + metric, b"%d" % number))
    enter(table, b"n", b"b=1")  # without UIDs yet
    found = table.tags_of(np.array([3, 4, 1, 0, 3], np.int32), 1)
    assert {metric: (*some,) for metric, some in found.items()} == {
        b"m": ([3, 0, 3], [b"3", b"0", b"3"]),
        b"n": ([1], [b"1"]),
    }
    table.refuse(4)
    table.touch(np.array([0, 1, 2], np.int32), 9)
    table.forget(before_s=9, held_since_s=9)
    assert table.tags_of(np.array([3, 4], np.int32), 0) == {}
