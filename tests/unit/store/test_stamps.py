"""Write times never go backwards."""

from hypothesis import given
from hypothesis import strategies as st

from tsd.store.stamps import LEAD_MS, Stamps


def test_a_clock_set_back_is_waited_for() -> None:
    times = iter([5_000, 4_000, 5_001])
    stamps = Stamps(lambda: next(times), None)
    assert [stamps.now() for _ in range(3)] == [5_000, 5_000, 5_001]


def test_stamps_of_puts_rise_while_the_clock_stands_or_goes_back() -> None:
    times = iter([5_000, 5_000, 4_000, 4_000, 6_000])
    stamps = Stamps(lambda: next(times), None)
    assert [stamps.next() for _ in range(3)] == [5_000, 5_001, 5_002]
    assert (stamps.now(), stamps.next()) == (5_002, 6_000)


def test_more_of_one_put_has_its_stamp_until_another_has_a_later_one() -> None:
    stamps = Stamps(lambda: 5_000, None)
    first = stamps.next()
    assert stamps.again(first) == first
    other = stamps.next()
    assert stamps.again(first) > other


def test_after_an_orderly_end_stamps_go_on_where_they_were() -> None:
    stamps = Stamps(lambda: 5_000, None)
    stamps.now()
    assert Stamps(lambda: 100, stamps.last_record()).now() == 5_000


def test_the_record_is_written_once_a_second() -> None:
    clock = [10_000]
    stamps = Stamps(lambda: clock[0], None)
    written = 0
    for _ in range(10 * LEAD_MS):
        clock[0] += 1
        stamps.now()
        if record := stamps.unsaved():
            stamps.saved(record)
            written += 1
    assert written == 10


@given(st.lists(st.tuples(st.integers(-5_000, 5_000), st.booleans(), st.booleans())))
def test_no_stamp_is_behind_one_that_was_stored_whatever_crashes(steps: list[tuple[int, bool, bool]]) -> None:
    clock, disk, stored = [10_000], None, 0
    stamps = Stamps(lambda: clock[0], disk)
    for by_ms, writes, crashes in steps:
        clock[0] = max(clock[0] + by_ms, 0)
        stamp = stamps.now()
        assert stamp >= stored
        if writes:
            if record := stamps.unsaved():
                disk = record
                stamps.saved(record)
            stored = stamp
        if crashes:
            stamps = Stamps(lambda: clock[0], disk)


def test_a_time_of_the_callers_own_that_is_ahead_needs_a_look_from_then_on() -> None:
    stamps = Stamps(lambda: 1_000, None)
    assert stamps.is_newest(stamps.now())
    stamps.note(9_000)
    assert not stamps.is_newest(stamps.now())
    assert not Stamps(lambda: 2_000, stamps.unsaved()).is_newest(2_500)
    assert stamps.is_newest(9_000)


def test_a_record_that_could_not_be_written_is_still_due() -> None:
    stamps = Stamps(lambda: 1_000, None)
    stamps.now()
    assert stamps.unsaved() is not None
    assert stamps.unsaved() is not None
