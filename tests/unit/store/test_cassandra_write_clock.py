"""Write timestamps on Cassandra, whatever the wall clock does."""

from tsd.store.cassandra.conditional import WriteClock

NOW_MS = 1_700_000_000_000


def test_timestamps_rise() -> None:
    clock = WriteClock(lambda: NOW_MS)
    assert [clock.next(NOW_MS + late) for late in (0, 0, 1, 5)] == [
        NOW_MS * 1000, NOW_MS * 1000 + 1, (NOW_MS + 1) * 1000, (NOW_MS + 5) * 1000,
    ]  # fmt: skip


def written(clock: WriteClock, now_ms: int) -> int:
    """Return the millisecond of a write that begins and ends, since the start."""
    stamp = clock.next(now_ms)
    clock.end(stamp)
    return stamp // 1000 - NOW_MS


def test_each_has_a_millisecond_of_its_own_while_the_clock_is_set_back() -> None:
    """Regression: of two values of a point readers chose by column, as both had been written in one millisecond."""
    clock = WriteClock(lambda: NOW_MS)
    times_ms = [NOW_MS, *(NOW_MS - 1000 + passed for passed in range(5)), NOW_MS + 50]
    assert [written(clock, time_ms) for time_ms in times_ms] == [0, 1, 2, 3, 4, 5, 50]


def test_many_concurrent_writes_move_timestamps_no_further_ahead() -> None:
    """Regression: above 1,000 writes a second timestamps went ever further ahead of the clock, once they were ahead. A
    later value by another daemon was hidden then."""
    clock = WriteClock(lambda: NOW_MS)
    clock.follow(NOW_MS * 1000 + 100_000)
    running: list[int] = []
    for passed_ms in range(1000):
        running += [clock.next(NOW_MS + passed_ms) for _ in range(5)]
        if passed_ms % 4 == 3:
            for stamp in running[:-5]:
                clock.end(stamp)
            del running[:-5]
    assert running[-1] // 1000 == NOW_MS + 999


def test_write_after_another_has_a_later_millisecond() -> None:
    clock = WriteClock(lambda: NOW_MS)
    first, concurrent = clock.next(NOW_MS), clock.next(NOW_MS)
    clock.end(first)
    assert first // 1000 == concurrent // 1000 == clock.next(NOW_MS) // 1000 - 1


def test_timestamps_follow_a_node_whose_clock_is_ahead() -> None:
    clock = WriteClock(lambda: NOW_MS)
    clock.follow(NOW_MS * 1000 + 2_000_700)
    assert [written(clock, NOW_MS + passed) for passed in range(3)] == [2001, 2002, 2003]
    clock.follow(NOW_MS * 1000 + 3_600_000_000)  # of a node whose clock is wrong
    assert clock.next(NOW_MS + 5000) == (NOW_MS + 5000) * 1000
