"""Which gateway a call goes to, on a clock that the tests turn."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tsd.errors import StoreBusy, StoreDown
from tsd.store.gateways import FIRST_REST_S, IDLE_S, LONGEST_REST_S, Gateways, NoAnswer

A, B = ("a", 1), ("b", 2)


class Line:
    """A connection that somebody may have cut."""

    def __init__(self) -> None:
        self.cut = self.closed = False

    def stale(self) -> bool:
        return self.cut

    def close(self) -> None:
        self.closed = True


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def call(gateways: Gateways[Line], error: Exception | None = None, *, fresh: bool = False) -> tuple[str, int, Line]:
    """One call, which may fail: the gateway it went to, and its connection."""
    with gateways.lease(fresh=fresh) as lease:
        lease.connection = lease.connection or Line()
        if error:
            raise error
    return *lease.address, lease.connection


def fail(gateways: Gateways[Line]) -> None:
    with pytest.raises(NoAnswer):
        call(gateways, NoAnswer("gone", timed_out=True))


def test_calls_are_spread(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A, B], clock)
    assert sorted(call(gateways)[0] for _ in range(6)) == ["a"] * 3 + ["b"] * 3
    with gateways.lease(fresh=False) as first, gateways.lease(fresh=False) as second:
        assert {first.address, second.address} == {A, B}
        first.connection, second.connection = Line(), Line()


def test_a_connection_is_used_again(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    _, _, line = call(gateways)
    assert call(gateways)[2] is line
    assert gateways.opened == 1


def test_a_connection_that_was_cut_or_idle_for_long_is_not(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    _, _, line = call(gateways)
    line.cut = True
    _, _, other = call(gateways)
    assert other is not line
    assert line.closed
    clock.now += IDLE_S
    assert call(gateways)[2] is not other
    assert other.closed


@pytest.mark.parametrize("error", [NoAnswer("gone"), StoreBusy("later"), ValueError("our bug")])
def test_what_raised_is_never_used_again(clock: Clock, error: Exception) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    _, _, line = call(gateways)
    with pytest.raises(type(error)):
        call(gateways, error)
    assert line.closed
    assert call(gateways)[2] is not line


def test_a_gateway_that_failed_is_left_alone(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A, B], clock)
    fail(gateways)
    assert gateways.down == 1
    assert len({call(gateways)[0] for _ in range(4)}) == 1
    clock.now += FIRST_REST_S
    assert {call(gateways)[0] for _ in range(4)} == {"a", "b"}
    assert gateways.down == 0


def test_where_all_failed_callers_hear_so_at_once(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    fail(gateways)
    with pytest.raises(StoreDown, match="no gateway answers: a:1: gone"):
        call(gateways)


def rests(gateways: Gateways[Line], clock: Clock) -> Iterator[float]:
    """How long a gateway is left alone, each time it fails."""
    while True:
        fail(gateways)
        since = clock.now
        while True:
            clock.now += 0.01
            try:
                with gateways.lease(fresh=False):
                    raise KeyboardInterrupt  # neither an answer nor a failure
            except StoreDown:
                continue
            except KeyboardInterrupt:
                break
        yield clock.now - since


def test_the_rest_grows_up_to_a_bound(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    longest = [min(FIRST_REST_S * 2**n, LONGEST_REST_S) for n in range(8)]
    for rest, bound in zip(rests(gateways, clock), longest, strict=False):
        assert bound / 2 <= rest <= bound + 0.02
    call(gateways)
    assert FIRST_REST_S / 2 <= next(rests(gateways, clock)) <= FIRST_REST_S + 0.02


def test_one_call_only_asks_whether_it_is_back(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    fail(gateways)
    clock.now += FIRST_REST_S
    with gateways.lease(fresh=False) as probe:
        with pytest.raises(StoreDown):
            call(gateways)
        probe.connection = Line()
    call(gateways)


def fail_together(gateways: Gateways[Line], calls: int) -> None:
    with ExitStack() as stack:
        for _ in range(calls):
            stack.enter_context(gateways.lease(fresh=False))
        raise NoAnswer("gone")


def test_calls_that_fail_together_count_once(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    with pytest.raises(NoAnswer):
        fail_together(gateways, 6)
    clock.now += FIRST_REST_S
    call(gateways)


def test_a_used_connection_that_was_dropped_says_nothing_about_its_gateway(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    with gateways.lease(fresh=False) as one:
        _, _, other = call(gateways)
        one.connection = Line()
    with pytest.raises(NoAnswer):
        call(gateways, NoAnswer("end of file"))
    assert gateways.down == 0
    assert call(gateways, fresh=True)[2] not in (one.connection, other)
    assert one.connection.closed
    assert other.closed


def test_closed_with_a_call_under_way(clock: Clock) -> None:
    gateways: Gateways[Line] = Gateways([A], clock)
    _, _, idle = call(gateways)
    with gateways.lease(fresh=True) as lease:
        lease.connection = Line()
        gateways.close()
    assert idle.closed
    assert lease.connection.closed
    with pytest.raises(StoreDown, match="closed"):
        call(gateways)
