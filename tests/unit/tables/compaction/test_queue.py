"""Which rows a daemon compacts, and in what order."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.compaction.parts import key
from tsd.codec.rowkey import Layout, row_key
from tsd.compaction.hours import WATCHED, Hour, place_of, plain_note_rows
from tsd.compaction.queue import HAS_LOOP, RowQueue
from tsd.store import Put

if HAS_LOOP:
    from tsd.compaction._noting import note_rows

HOUR = 1356998400
ALL = 10**6


def queue(
    *,
    limit: int = ALL,
    layout: Layout = Layout(),  # noqa: B008
    started_s: int = HOUR,
    by_loop: bool = HAS_LOOP,
) -> RowQueue:
    """One of a daemon that started with the hour."""
    return RowQueue(layout, limit, started_s, by_loop=by_loop)


def puts(*rows: bytes) -> Iterable[Put]:
    """A cell of each row."""
    return [Put(row, b"t:\0\0", b"*") for row in rows]


def test_a_row_of_one_cell_wants_no_compaction() -> None:
    rows = queue()
    rows.note(puts(key(HOUR, 1), key(HOUR, 2)))
    rows.note(puts(key(HOUR, 2)))
    rows.note(puts(key(HOUR, 2)))
    assert rows.waiting == 1
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR, 2)]
    assert (rows.waiting, rows.take(ALL, HOUR + 3600)) == (0, [])


def test_an_hour_must_be_over() -> None:
    rows = queue()
    rows.note(puts(key(HOUR), key(HOUR + 3600), key(HOUR), key(HOUR + 3600)))
    assert rows.take(ALL, HOUR + 3599) == []
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR)]
    assert rows.take(ALL, HOUR + 7200) == [key(HOUR + 3600)]


@pytest.mark.parametrize("late", ["of before the start", "of a closed hour"])
def test_where_cells_may_be_there_one_more_is_enough(late: str) -> None:
    rows = queue(started_s=HOUR + 1 if late == "of before the start" else 0)
    if late == "of a closed hour":
        rows.note(puts(key(HOUR)))
        assert rows.take(ALL, HOUR + 3600) == []
    rows.note(puts(key(HOUR)))
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR)]


def test_the_oldest_hour_comes_first_and_all_salts_of_an_hour_by_turns() -> None:
    layout = Layout(salt_width=1, salt_buckets=4)
    hours = [
        [row_key(layout, b"\0\0\1", base, b"\0\0\1" + n.to_bytes(3, "big")) for n in range(40)]
        for base in (HOUR + 3600, HOUR)
    ]
    rows = queue(layout=layout)
    for _ in range(2):
        rows.note(puts(*hours[0], *hours[1]))
    taken = [row for _ in range(20) for row in rows.take(4, HOUR + 7200)]
    assert sorted(taken[:40]) == sorted(hours[1])
    assert sorted(taken[40:]) == sorted(hours[0])
    assert all(len({row[0] for row in taken[at : at + 4]}) == 4 for at in range(0, 16, 4))


def test_what_is_put_back_waits_again() -> None:
    rows = queue()
    rows.note(puts(key(HOUR), key(HOUR)))
    rows.put_back(rows.take(ALL, HOUR + 3600))
    assert rows.waiting == 1
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR)]


def test_it_holds_no_more_than_its_limit_and_counts_what_it_does_not() -> None:
    rows = queue(limit=2)
    many = [key(HOUR, series, metric=series) for series in range(5)]
    rows.note(puts(*many))
    rows.note(puts(*many))
    assert (rows.waiting, rows.left_out) == (2, 6)
    rows.take(0, HOUR + 3600)
    assert sorted(rows.take(ALL, HOUR + 3600)) == many[:2]
    rows.note(puts(*many))  # there is room again
    assert (rows.waiting, rows.left_out) == (2, 9)


def test_points_of_years_to_come_keep_nobody_out() -> None:
    rows = queue(limit=3)
    rows.note(puts(*(key(HOUR + 10**8, series) for series in range(9))))
    rows.note(puts(key(HOUR + 10**8, 1), key(HOUR, 1), key(HOUR, 2), key(HOUR, 1), key(HOUR, 2)))
    assert sorted(rows.take(ALL, HOUR + 3600)) == [key(HOUR, 1), key(HOUR, 2)]
    rows.note(puts(*(key(HOUR + 10**8, series) for series in range(9) for _ in range(2))))
    assert rows.waiting == len(rows.take(ALL, HOUR + 10**9)) == 3  # the room of those that were taken is free


def test_hours_that_are_left_out_leave_nothing() -> None:
    """Each metric and hour that found the queue full would else have been kept until its hour was over."""
    rows = queue(limit=1)
    rows.note(puts(key(HOUR), key(HOUR)))
    rows.note(puts(*(key(HOUR + 3600, metric=metric) for metric in range(1, 100))))
    assert rows.turns == 1
    assert rows.left_out == 99


def test_of_metrics_with_a_row_each_all_are_taken() -> None:
    rows = queue()
    many = [key(HOUR, metric=metric) for metric in range(1, 50)]
    rows.note(puts(*many, *many))
    taken = [rows.take(20, HOUR + 3600) for _ in range(3)]
    assert [len(part) for part in taken] == [20, 20, 9]
    assert sorted(row for part in taken for row in part) == many


def test_many_metrics_of_few_series_take_turns_in_groups() -> None:
    """Each on its own took 2 KiB for an hour: after HBase was away, that was most of what memory rose by."""
    rows = queue()
    many = [key(HOUR, series, metric=metric) for metric in range(1, 1000) for series in range(3)]
    rows.note(puts(*many, *many))
    assert rows.turns == 64
    taken = rows.take(ALL, HOUR + 3600)
    assert sorted(taken) == sorted(many)
    assert all(len({row[2] % 64 for row in taken[at : at + 64]}) == 64 for at in range(0, 1024, 64))


@pytest.mark.parametrize("by_loop", sorted({HAS_LOOP, False}))
def test_what_is_no_row_is_refused_and_the_account_stays_right(by_loop: bool) -> None:
    rows = queue(by_loop=by_loop)
    rows.note(puts(key(HOUR)))
    for _ in range(3):
        with pytest.raises(ValueError, match="got a row of 6 bytes, wanted 7 or more"):
            rows.note([Put(key(HOUR, 2), b"", b""), Put(b"m\0\0\0\0\0", b"", b"")])
    assert (rows.waiting, rows.take(ALL, HOUR + 3600)) == (1, [key(HOUR, 2)])
    assert rows.turns == 0


def test_the_last_time_of_all_ends() -> None:
    rows = queue()
    last = key(HOUR)[:3] + b"\xff" * 4 + key(HOUR)[7:]
    rows.put_back([last])
    assert rows.take(ALL, 1 << 33) == [last]


@pytest.mark.parametrize("by_loop", sorted({HAS_LOOP, False}))
def test_one_row_that_waits_does_not_keep_the_keys_of_those_that_do_not(by_loop: bool) -> None:
    """While few wait none is taken, and an hour of many series that were written once each stayed for days."""
    rows = queue(by_loop=by_loop)
    rows.note(puts(*(key(HOUR, series) for series in range(1000)), key(HOUR, 7)))
    assert rows.take(0, HOUR + 3600) == []
    [hour] = rows._hours.values()
    assert hour.states.keys() == [key(HOUR, 7)[:3] + key(HOUR, 7)[7:]]
    rows.note(puts(key(HOUR, 8)))  # one cell more of an hour that is over is enough
    assert sorted(rows.take(ALL, HOUR + 3600)) == [key(HOUR, 7), key(HOUR, 8)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=12)),
        st.tuples(st.just("take"), st.tuples(st.integers(0, 5), st.integers(0, 5))),
        st.tuples(st.just("put back"), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=30)
@given(STEPS, st.sampled_from([3, 7, ALL]), st.sampled_from([HAS_LOOP, False]))
def test_rows_wait_once_each_however_they_come_and_go(steps: list[tuple[str, Any]], limit: int, by_loop: bool) -> None:
    rows = queue(limit=limit, started_s=HOUR, by_loop=by_loop)
    cells: dict[bytes, int] = {}  # of each row that is in the queue
    closed = HOUR - 1
    taken: list[bytes] = []
    for what, given_ in steps:
        if what == "note":
            noted = [key(HOUR + 3600 * hour, number % 3, metric=1 + 64 * (number // 3)) for hour, number in given_]
            rows.note(puts(*noted))
            for row in noted:
                cells[row] = cells.get(row, int.from_bytes(row[3:7], "big") <= closed) + 1
        elif what == "take":
            count, hour = given_
            taken = rows.take(count, HOUR + 3600 * hour)
            closed = max(closed, HOUR + 3600 * (hour - 1))
            assert len(set(taken)) == len(taken) <= count
            assert limit < ALL or all(cells.pop(row) > 1 for row in taken)
            cells = {row: n for row, n in cells.items() if n > 1 or int.from_bytes(row[3:7], "big") > closed}
        else:
            rows.put_back(taken)
            cells |= dict.fromkeys(taken, 2)
            taken = []
        if limit == ALL:
            assert rows.waiting == sum(n > 1 for n in cells.values())
        assert rows.waiting <= limit
    waiting = rows.waiting
    left = rows.take(ALL, HOUR + 3600 * 9)
    assert len(set(left)) == len(left) == waiting
    if limit == ALL:
        assert sorted(left) == sorted(row for row, n in cells.items() if n > 1)
    assert (rows.waiting, rows.turns) == (0, 0)


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 3)), max_size=8)


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only one is there")
@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(ROWS, st.integers(0, 6), st.integers(0, 3)), max_size=5), st.sampled_from([0, 1]))
def test_both_ways_of_noting_are_one(calls: list[tuple[list[tuple[int, int, int]], int, int]], salt: int) -> None:
    """Of hours some of which are there, from any place on, with more room and less."""
    layout = Layout(salt_width=salt, salt_buckets=2)
    there = range(0, 3, 2)

    def key_of(hour: int, series: int, metric: int) -> bytes:
        pairs = b"\0\0\1" + series.to_bytes(3, "big")
        return row_key(layout, (64 * metric + 1).to_bytes(3, "big"), HOUR + 3600 * hour, pairs)

    def places() -> dict[bytes, Hour]:
        rows = [key_of(hour, series, 1) for hour in there for series in range(3)]
        found = {place_of(row, salt, layout.metric_end): Hour() for row in rows}
        row = key_of(2, 1, 1)  # one that came back after it went
        hour = found[place_of(row, salt, layout.metric_end)]
        within = row[: layout.metric_end] + row[layout.pairs_start :]
        hour.watch(within)
        assert hour.pop(WATCHED) == within
        hour.watch(within)
        assert not hour.is_plain
        return found

    looped, plain = places(), places()
    for rows, room, late in calls:
        noted = [Put(key_of(*row), b"", b"") for row in rows]
        for start in range(len(noted) + 1):
            words = salt, layout.metric_end, HOUR + 3600 * (late - 1), room, HOUR + 3600 * late
            assert note_rows(noted, start, looped, *words) == plain_note_rows(noted, start, plain, *words)
    for one, other in zip(looped.values(), plain.values(), strict=True):
        assert (one.watched, one.waiting) == (other.watched, other.waiting)
        assert one.states.items(0, 99)[0] == other.states.items(0, 99)[0]


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only one is there")
def test_the_compiled_way_refuses_what_makes_no_sense() -> None:
    for words in ((0, 3, HOUR, -1), (3, 3, HOUR, 1)):
        with pytest.raises(ValueError, match="bytes of salt, the base time behind 3, a place of 0, and room for"):
            note_rows([], 0, {}, *words, HOUR)
    with pytest.raises(TypeError, match="got hours as"):
        note_rows([], 0, [], 0, 3, HOUR, 1, HOUR)  # type: ignore[arg-type]
