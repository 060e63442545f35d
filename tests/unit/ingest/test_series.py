"""Texts, their numbers, and when both are forgotten."""

import random

import numpy as np
import pytest

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY, KeyLayout, most_tags
from tsd.ingest import series
from tsd.ingest.series import SeriesTable
from tsd.tables.opentsdb.encode import series_by_metric
from tsd.tables.writing import SeriesKey, SeriesKeys, SeriesText

if series.HAS_LOOP:
    from tsd.ingest import _parser

needs_loop = pytest.mark.skipif(
    not series.HAS_LOOP, reason="no C compiler when tsd was installed: only one way is there"
)


def enter(table: SeriesTable, metric: bytes, tags: bytes, parts: SeriesKey | None = None) -> int:
    return table.insert(SeriesText(metric, tags), parts)


PARTS = SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1")


def test_spellings_of_a_series_share_its_number() -> None:
    table = SeriesTable()
    numbers = {enter(table, b"m", tags, PARTS) for tags in (b"a=1 b=2", b"b=2 a=1", b" a=1  b=2", b"a=1 b=2 a=1")}
    assert numbers == {0}
    assert enter(table, b"n", b"b=2 a=1", PARTS) == enter(table, b"n", b"a=1 b=2", PARTS) == 1
    assert enter(table, b"m", b"a=1", PARTS) == 2
    assert len(table) == 3


def test_numbers_of_evicted_series_are_reused() -> None:
    table = SeriesTable()
    for number in range(3000):
        enter(table, b"m", b"host=%d" % number, SeriesKey(b"m", b"%d" % number))
    enter(table, b"m", b" host=1 ", PARTS)
    table.mark_seen(np.arange(0, 3000, 2, dtype=np.int32), 100)
    assert table.evict(before_s=100, held_since_s=200) == 1500
    assert len(table) == 1500
    assert table.find(SeriesText(b"m", b"host=2")) == 2
    assert table.find(SeriesText(b"m", b"host=1")) is None
    assert table.find(SeriesText(b"m", b" host=1 ")) is None
    again = enter(table, b"m", b"host=1", PARTS)
    assert again < 3000
    assert again % 2 == 1
    assert table.key_of(again) == PARTS
    assert table.key_of(2) == SeriesKey(b"m", b"2")


def test_evicting_the_last_series_of_a_metric_empties_the_table() -> None:
    table = SeriesTable()
    enter(table, b"m", b"a=1", PARTS)
    assert table.evict(before_s=1, held_since_s=1) == 1
    assert table.find(SeriesText(b"m", b"a=1")) is None
    assert len(table) == 0


def test_unresolved_series_is_not_evicted() -> None:
    table = SeriesTable()
    number = enter(table, b"m", b"a=1")
    assert table.unresolved == {number: SeriesText(b"m", b"a=1")}
    assert enter(table, b"m", b" a=1") == number
    assert table.key_of(number) is None
    assert table.evict(before_s=1000, held_since_s=1000) == 0
    table.set_key(number, PARTS)
    assert table.unresolved == {}
    assert table.key_of(number) == PARTS


def test_refused_series_is_unknown_again() -> None:
    table = SeriesTable()
    number = enter(table, b"m", b"a=1")
    enter(table, b"m", b" a=1")
    table.refuse(number)
    assert table.refused == {number}
    assert table.find(SeriesText(b"m", b"a=1")) is None
    assert table.find(SeriesText(b"m", b" a=1")) is None
    assert enter(table, b"m", b"a=1", PARTS) != number


def test_invalidated_series_get_new_numbers_and_old_keys_stay() -> None:
    table = SeriesTable()
    old = enter(table, b"m", b"a=1", PARTS)
    table.mark_seen(np.array([old], np.int32), 500)
    table.invalidate()
    assert table.find(SeriesText(b"m", b"a=1")) is None
    new = enter(table, b"m", b"a=1", SeriesKey(b"other", b"uids"))
    assert new != old
    assert table.key_of(old) == PARTS
    table.mark_seen(np.array([new], np.int32), 501)
    assert table.evict(before_s=100, held_since_s=500) == 0  # a window may still hold points of the old one
    assert table.evict(before_s=100, held_since_s=501) == 1
    assert table.find(SeriesText(b"m", b"a=1")) == new


def test_evicted_series_leave_no_texts() -> None:
    table = SeriesTable()
    for generation in range(5):
        for number in range(2000):
            enter(table, b"m", b"id=%d-%d a=1" % (generation, number), PARTS)
        assert table.evict(before_s=1, held_since_s=1) == 2000
    assert table.texts.count == 2000
    assert SeriesText(b"m", b"a=1 id=3-7") not in table


def hosts_series(hosts: range, metrics: int) -> list[SeriesText]:
    """Series host by host, with long tags."""
    tags = [b"host=%d-%s" % (host, b"x" * 400) for host in hosts]
    return [SeriesText(b"m%d" % metric, own) for own in tags for metric in range(metrics)]


def enter_all(table: SeriesTable, texts: list[SeriesText]) -> None:
    keys = SeriesKeys.of([SeriesKey(text.metric, text.tags[:20]) for text in texts])
    table.insert_all(texts, keys)


def are_known(table: SeriesTable, texts: list[SeriesText]) -> bool:
    numbers = [table.find(text) for text in texts]
    assert None not in numbers
    found = [(table.text(number), table.key_of(number)) for number in numbers if number is not None]
    return found == [(text, (text.metric, text.tags[:20])) for text in texts]


@needs_loop
def test_series_of_a_host_hold_its_tags_once() -> None:
    table = SeriesTable()
    enter_all(table, texts := hosts_series(range(200), 50))
    assert are_known(table, texts)
    assert isinstance(table.texts, _parser.Texts)
    assert table.texts.held < sum(len(text.tags) for text in texts) // 2


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_loop)])
def test_tags_that_series_share_outlive_some_of_them(compiled: bool) -> None:
    """So many texts are evicted that the rest moves, several times."""
    chance = random.Random(1)
    table = SeriesTable(compiled=compiled)
    left: list[SeriesText] = []
    for now_s in range(1, 12):
        enter_all(table, fresh := hosts_series(range(1000 * now_s, 1000 * now_s + chance.choice((10, 300))), 50))
        left += fresh
        kept = [text for text in left if chance.random() < (0.5 if chance.random() < 0.3 else 0.9)]
        table.mark_seen(np.array([table.find(text) for text in kept], np.int32), now_s)
        assert table.evict(before_s=now_s, held_since_s=now_s) == len(left) - len(kept)
        left = kept
        assert len(table) == len(left)
        assert are_known(table, left)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_loop)])
def test_known_series_are_those_of_the_metric(compiled: bool) -> None:
    table = SeriesTable(compiled=compiled)
    keys = [SeriesKey(b"m", b"%d" % at) for at in range(3)]
    first = [enter(table, b"m", b"a=%d" % at, key) for at, key in enumerate(keys)]
    known = table.known_series(b"m")
    assert known is not None
    assert (known.numbers.tolist(), list(known.keys)) == (first, keys)
    enter(table, b"n", b"a=1", PARTS)
    assert table.known_series(b"m") is known
    late = enter(table, b"m", b"a=9")
    unresolved = table.known_series(b"m")
    assert unresolved is not None
    assert unresolved.numbers.tolist() == [*first, late]
    table.set_key(late, PARTS)
    resolved = table.known_series(b"m")
    assert resolved is not None
    assert list(resolved.keys) == [*keys, PARTS]
    absent = table.known_series(b"absent")
    assert absent is not None
    assert len(absent) == 0


def test_known_series_change_with_a_reused_number() -> None:
    table = SeriesTable()
    enter(table, b"m", b"a=1", SeriesKey(b"m", b"1"))
    before = table.known_series(b"m")
    assert table.evict(before_s=1, held_since_s=1) == 1
    enter(table, b"m", b"a=2", SeriesKey(b"m", b"2"))
    after = table.known_series(b"m")
    assert before is not None
    assert after is not None
    assert before.numbers.tolist() == after.numbers.tolist()
    assert list(after.keys) == [SeriesKey(b"m", b"2")]


def test_too_many_series_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_LISTED", 3)
    table = SeriesTable()
    for metric in (b"m", b"n"):
        for at in range(2):
            enter(table, metric, b"a=%d" % at, PARTS)
        assert table.known_series(metric) is not None
    for at in range(2, 4):
        enter(table, b"m", b"a=%d" % at, PARTS)
    assert table.known_series(b"m") is None


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_loop)])
def test_longest_series_key_fits(compiled: bool) -> None:
    """No series has longer ones: a setting of more tags than a row key has room for is refused at the start."""
    table = SeriesTable(compiled=compiled)
    parts = SeriesKey(bytes(8) + b"m" * 8, b"kv" * (most_tags(KeyLayout()) * 3))
    assert LONGEST_HBASE_KEY - 16 < len(parts.head + parts.tail) <= LONGEST_HBASE_KEY + 16
    text = SeriesText(b"m", b" ".join(b"k%d=v" % number for number in range(200)))
    number = table.insert(text, parts)
    assert table.key_of(number) == parts
    assert SeriesText(b"m", b" ".join(reversed(text.tags.split()))) in table


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_loop)])
def test_series_are_grouped_by_metric(compiled: bool) -> None:
    table = SeriesTable(compiled=compiled)
    for number, metric in enumerate([b"m", b"n", b"m", b"m"]):
        enter(table, metric, b"a=%d" % number, SeriesKey(b"\7" + metric, b"%d" % number))
    enter(table, b"n", b"b=1")  # without UIDs yet
    found = series_by_metric(np.array([3, 4, 1, 0, 3], np.int32), table, 1)
    assert {metric: (*some,) for metric, some in found.items()} == {
        b"m": ([3, 0, 3], [b"3", b"0", b"3"]),
        b"n": ([1], [b"1"]),
    }
    table.refuse(4)
    table.mark_seen(np.array([0, 1, 2], np.int32), 9)
    table.evict(before_s=9, held_since_s=9)
    assert series_by_metric(np.array([3, 4], np.int32), table, 0) == {}
