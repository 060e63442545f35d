"""Write timestamps never fall."""

from hypothesis import given
from hypothesis import strategies as st

from tsd.store.rocksdb.database import WriteClock


def test_timestamps_do_not_follow_a_clock_set_back() -> None:
    times = iter([5_000, 4_000, 5_001])
    clock = WriteClock(lambda: next(times), None)
    assert [clock.now() for _ in range(3)] == [5_000, 5_000, 5_001]


def test_put_timestamps_rise_with_any_clock() -> None:
    times = iter([5_000, 5_000, 4_000, 4_000, 6_000])
    clock = WriteClock(lambda: next(times), None)
    assert [clock.next() for _ in range(3)] == [5_000, 5_001, 5_002]
    assert (clock.now(), clock.next()) == (5_002, 6_000)


def test_batches_of_one_put_share_a_timestamp() -> None:
    clock = WriteClock(lambda: 5_000, None)
    first = clock.next()
    assert clock.now_or_next(first) == first
    other = clock.next()
    assert clock.now_or_next(first) > other


def test_timestamps_continue_after_an_orderly_close() -> None:
    clock = WriteClock(lambda: 5_000, None)
    clock.now()
    assert WriteClock(lambda: 100, clock.last_record()).now() == 5_000


def test_record_is_written_once_a_second() -> None:
    wall = [10_000]
    clock = WriteClock(lambda: wall[0], None)
    written = 0
    for _ in range(10_000):
        wall[0] += 1
        clock.now()
        if record := clock.unsaved():
            clock.saved(record)
            written += 1
    assert written == 10


@given(st.lists(st.tuples(st.integers(-5_000, 5_000), st.booleans(), st.booleans())))
def test_no_timestamp_falls_below_a_stored_one(steps: list[tuple[int, bool, bool]]) -> None:
    wall, disk, stored = [10_000], None, 0
    clock = WriteClock(lambda: wall[0], disk)
    for by_ms, writes, crashes in steps:
        wall[0] = max(wall[0] + by_ms, 0)
        stamp = clock.now()
        assert stamp >= stored
        if writes:
            if record := clock.unsaved():
                disk = record
                clock.saved(record)
            stored = stamp
        if crashes:
            clock = WriteClock(lambda: wall[0], disk)


def test_put_ahead_of_the_clock_requires_later_reads() -> None:
    clock = WriteClock(lambda: 1_000, None)
    assert clock.is_newest(clock.now())
    clock.observe(9_000)
    assert not clock.is_newest(clock.now())
    assert not WriteClock(lambda: 2_000, clock.unsaved()).is_newest(2_500)
    assert clock.is_newest(9_000)


def test_unwritten_record_stays_due() -> None:
    clock = WriteClock(lambda: 1_000, None)
    clock.now()
    assert clock.unsaved() is not None
    assert clock.unsaved() is not None
