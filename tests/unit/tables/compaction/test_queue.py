"""Which rows a daemon compacts, and in which order."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tables.compaction.parts import key
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key
from tsd.store import Put
from tsd.tables.opentsdb.compaction.hour_buckets import SINGLE, WAITING, HourBucket
from tsd.tables.opentsdb.compaction.queue import HAS_LOOP, RowQueue

if HAS_LOOP:
    from tsd.tables.opentsdb.compaction._queue import record_rows

HOUR = 1356998400
ALL = 10**6


def queue(
    *,
    limit: int = ALL,
    layout: KeyLayout = KeyLayout(),  # noqa: B008
    started_s: int = HOUR - 3600,
    compiled: bool = HAS_LOOP,
) -> RowQueue:
    """Return the queue of a daemon that started an hour before."""
    return RowQueue(layout, limit, started_s, compiled=compiled)


def puts(*rows: bytes) -> Sequence[Put]:
    """Return a cell of each row."""
    return [Put(row, b"t:\0\0", b"*") for row in rows]


def test_row_with_one_cell_is_not_queued() -> None:
    rows = queue()
    rows.record(puts(key(HOUR, 1), key(HOUR, 2)))
    rows.record(puts(key(HOUR, 2)))
    rows.record(puts(key(HOUR, 2)))
    assert rows.waiting == 1
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR, 2)]
    assert (rows.waiting, rows.take(ALL, HOUR + 3600)) == (0, [])


def test_open_hour_is_not_taken() -> None:
    rows = queue()
    rows.record(puts(key(HOUR), key(HOUR + 3600), key(HOUR), key(HOUR + 3600)))
    assert rows.take(ALL, HOUR + 3599) == []
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR)]
    assert rows.take(ALL, HOUR + 7200) == [key(HOUR + 3600)]


def test_row_written_whole_is_not_queued_without_another_cell() -> None:
    rows = queue()
    rows.record(puts(key(HOUR, 1)))
    rows.record(puts(key(HOUR, 1), key(HOUR, 2), key(HOUR, 3)), whole=True)
    assert rows.waiting == 1
    rows.record(puts(key(HOUR, 3), key(HOUR, 4)))  # late points, of a new series too
    assert sorted(rows.take(ALL, HOUR + 3600)) == [key(HOUR, 1), key(HOUR, 3), key(HOUR, 4)]


@pytest.mark.parametrize(("started_s", "waiting"), [(HOUR + 1, 2), (HOUR - 60, 2), (HOUR - 61, 0)])
def test_whole_rows_that_may_have_cells_of_an_earlier_run_are_queued(started_s: int, waiting: int) -> None:
    """Regression: points of an hour that begins in less than a minute may have been written before the start."""
    rows = queue(started_s=started_s)
    rows.record(puts(key(HOUR, 1), key(HOUR, 2)), whole=True)
    assert rows.waiting == waiting


@pytest.mark.parametrize("late", ["of before the start", "of a closed hour"])
def test_one_cell_is_enough_if_earlier_ones_may_exist(late: str) -> None:
    rows = queue(started_s=HOUR + 1 if late == "of before the start" else 0)
    if late == "of a closed hour":
        rows.record(puts(key(HOUR)))
        assert rows.take(ALL, HOUR + 3600) == []
    rows.record(puts(key(HOUR)))
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR)]


def test_open_hour_of_a_restart_is_not_taken() -> None:
    rows = queue(started_s=HOUR + 1800)
    rows.record(puts(key(HOUR - 3600), key(HOUR), key(HOUR)))
    assert rows.take(ALL, HOUR + 3599) == [key(HOUR - 3600)]
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR)]


def test_oldest_hour_first_and_all_salts_alternating() -> None:
    layout = KeyLayout(salt_width=1, salt_buckets=4)
    hours = [
        [row_key(layout, b"\0\0\1", base, b"\0\0\1" + n.to_bytes(3, "big")) for n in range(40)]
        for base in (HOUR + 3600, HOUR)
    ]
    rows = queue(layout=layout)
    for _ in range(2):
        rows.record(puts(*hours[0], *hours[1]))
    taken = [row for _ in range(20) for row in rows.take(4, HOUR + 7200)]
    assert sorted(taken[:40]) == sorted(hours[1])
    assert sorted(taken[40:]) == sorted(hours[0])
    assert all(len({row[0] for row in taken[at : at + 4]}) == 4 for at in range(0, 16, 4))


def test_row_put_back_is_queued_again() -> None:
    rows = queue()
    rows.record(puts(key(HOUR), key(HOUR)))
    rows.put_back(rows.take(ALL, HOUR + 3600))
    assert rows.waiting == 1
    assert rows.take(ALL, HOUR + 3600) == [key(HOUR)]


@pytest.mark.difference(
    "compaction-queue",
    topic="rows",
    theirs="The compaction queue is in memory only and has no bound",
    ours="It is bounded, and `tsd compact` finds other rows",
)
def test_full_queue_drops_and_counts_rows() -> None:
    rows = queue(limit=2)
    many = [key(HOUR, series, metric=series) for series in range(5)]
    rows.record(puts(*many))
    rows.record(puts(*many))
    assert (rows.waiting, rows.dropped) == (2, 6)
    rows.take(0, HOUR + 3600)
    assert sorted(rows.take(ALL, HOUR + 3600)) == many[:2]
    rows.record(puts(*many))  # there is room again
    assert (rows.waiting, rows.dropped) == (2, 9)


def test_rows_far_in_the_future_are_dropped_first() -> None:
    rows = queue(limit=3)
    rows.record(puts(*(key(HOUR + 10**8, series) for series in range(9))))
    rows.record(puts(key(HOUR + 10**8, 1), key(HOUR, 1), key(HOUR, 2), key(HOUR, 1), key(HOUR, 2)))
    assert sorted(rows.take(ALL, HOUR + 3600)) == [key(HOUR, 1), key(HOUR, 2)]
    rows.record(puts(*(key(HOUR + 10**8, series) for series in range(9) for _ in range(2))))
    assert rows.waiting == len(rows.take(ALL, HOUR + 10**9)) == 3  # taken rows free their room


def test_dropped_rows_leave_no_buckets() -> None:
    """Otherwise an empty bucket would stay until the end of its hour."""
    rows = queue(limit=1)
    rows.record(puts(key(HOUR), key(HOUR)))
    rows.record(puts(*(key(HOUR + 3600, metric=metric) for metric in range(1, 100))))
    assert rows.buckets == 1
    assert rows.dropped == 99


def test_all_metrics_with_one_row_are_taken() -> None:
    rows = queue()
    many = [key(HOUR, metric=metric) for metric in range(1, 50)]
    rows.record(puts(*many, *many))
    taken = [rows.take(20, HOUR + 3600) for _ in range(3)]
    assert [len(part) for part in taken] == [20, 20, 9]
    assert sorted(row for part in taken for row in part) == many


def test_many_metrics_share_buckets_in_groups() -> None:
    """Regression: a bucket for each metric took 2 KiB: most of the memory growth during an outage of HBase."""
    rows = queue()
    many = [key(HOUR, series, metric=metric) for metric in range(1, 1000) for series in range(3)]
    rows.record(puts(*many, *many))
    assert rows.buckets == 64
    taken = rows.take(ALL, HOUR + 3600)
    assert sorted(taken) == sorted(many)
    assert all(len({row[2] % 64 for row in taken[at : at + 64]}) == 64 for at in range(0, 1024, 64))


@pytest.mark.parametrize("compiled", sorted({HAS_LOOP, False}))
def test_invalid_row_is_refused_and_counts_stay_right(compiled: bool) -> None:
    rows = queue(compiled=compiled)
    rows.record(puts(key(HOUR)))
    for _ in range(3):
        with pytest.raises(ValueError, match=r"\b6\b.*\b7\b"):
            rows.record([Put(key(HOUR, 2), b"", b""), Put(b"m\0\0\0\0\0", b"", b"")])
    assert (rows.waiting, rows.take(ALL, HOUR + 3600)) == (1, [key(HOUR, 2)])
    assert rows.buckets == 0


def test_row_with_the_last_base_time_is_taken() -> None:
    rows = queue()
    last = key(HOUR)[:3] + b"\xff" * 4 + key(HOUR)[7:]
    rows.put_back([last])
    assert rows.take(ALL, 1 << 33) == [last]


def test_closed_bucket_frees_keys_of_single_rows() -> None:
    bucket = HourBucket()
    bucket.add_single(b"again")
    assert bucket.pop(SINGLE) == b"again"
    for series in (b"again", b"a", b"b"):
        bucket.add_single(series)
    bucket.set_waiting(b"b")
    bucket.close()
    assert (bucket.states.keys(), bucket.single, bucket.waiting) == ([b"b"], 0, 1)
    assert bucket.pop(WAITING) == b"b"


@pytest.mark.parametrize("compiled", sorted({HAS_LOOP, False}))
def test_one_late_cell_is_enough_after_the_hour(compiled: bool) -> None:
    rows = queue(compiled=compiled)
    rows.record(puts(*(key(HOUR, series) for series in range(1000)), key(HOUR, 7)))
    assert rows.take(0, HOUR + 3600) == []
    rows.record(puts(key(HOUR, 8)))
    assert sorted(rows.take(ALL, HOUR + 3600)) == [key(HOUR, 7), key(HOUR, 8)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=12)),
        st.tuples(st.just("whole"), st.tuples(st.integers(0, 3), st.sets(st.integers(1, 6)))),
        st.tuples(st.just("take"), st.tuples(st.integers(0, 5), st.integers(0, 5))),
        st.tuples(st.just("put back"), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=30)
@given(STEPS, st.sampled_from([3, 7, ALL]), st.sampled_from([HAS_LOOP, False]))
def test_each_row_is_queued_once_for_any_sequence(steps: list[tuple[str, Any]], limit: int, compiled: bool) -> None:
    rows = queue(limit=limit, compiled=compiled)
    cells: dict[bytes, int] = {}  # of each queued row
    closed = whole = HOUR - 1
    taken: list[bytes] = []
    for what, given_ in steps:
        if what == "whole":
            hour, numbers = given_
            noted = [key(HOUR + 3600 * hour, number % 3, metric=1 + 64 * (number // 3)) for number in sorted(numbers)]
            rows.record(puts(*noted), whole=True)
            for row in noted:
                if row in cells or HOUR + 3600 * hour <= closed:
                    cells[row] = cells.get(row, 1) + 1
            whole = max(whole, HOUR + 3600 * hour) if noted else whole
        elif what == "note":
            noted = [key(HOUR + 3600 * hour, number % 3, metric=1 + 64 * (number // 3)) for hour, number in given_]
            rows.record(puts(*noted))
            for row in noted:
                cells[row] = cells.get(row, int.from_bytes(row[3:7], "big") <= max(closed, whole)) + 1
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
    assert (rows.waiting, rows.buckets) == (0, 0)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed")
@settings(deadline=None, max_examples=200)
@given(STEPS, st.sampled_from([3, 7, ALL]))
def test_compiled_and_pure_queues_hold_the_same(steps: list[tuple[str, Any]], limit: int) -> None:
    queues = [queue(limit=limit, started_s=HOUR, compiled=compiled) for compiled in (True, False)]
    taken: list[bytes] = []
    for what, given_ in steps:
        if what == "whole":
            hour, numbers = given_
            cells = puts(*(key(HOUR + 3600 * hour, number % 3, metric=number) for number in sorted(numbers)))
            for rows in queues:
                rows.record(cells, whole=True)
        elif what == "note":
            cells = puts(*(key(HOUR + 3600 * hour, number % 3, metric=number) for hour, number in given_))
            for rows in queues:
                rows.record(cells)
        elif what == "take":
            count, hour = given_
            found = []
            for rows in queues:
                random.seed(1)
                found.append(rows.take(count, HOUR + 3600 * hour))
            taken = found[0]
            assert found[1] == taken
        else:
            for rows in queues:
                rows.put_back(taken)
            taken = []
        one, other = [(rows.waiting, rows.dropped, rows.oldest, rows.buckets) for rows in queues]
        assert one == other


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed")
def test_compiled_loop_refuses_invalid_arguments() -> None:
    for numbers in ((0, 3, HOUR, False, -1), (3, 3, HOUR, False, 1)):
        with pytest.raises(ValueError, match=r"\b3\b"):
            record_rows([], 0, {}, *numbers, HOUR)
    with pytest.raises(TypeError):
        record_rows([], 0, [], 0, 3, HOUR, False, 1, HOUR)
