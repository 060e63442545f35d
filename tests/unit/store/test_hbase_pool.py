"""Choice of gateways, on a clock that the tests set."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tsd.errors import StoreBusy, StoreDown
from tsd.store.hbase.pool import ConnectionPool, NoAnswer, PoolTiming

A, B = ("a", 1), ("b", 2)
TIMING = PoolTiming(first_backoff_s=1, longest_backoff_s=8, idle_s=60)


class Line:
    """A connection that a test can cut."""

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


def call(pool: ConnectionPool[Line], error: Exception | None = None, *, fresh: bool = False) -> tuple[str, int, Line]:
    """One call, which may fail: the gateway it went to, and its connection."""
    with pool.lease(fresh=fresh) as lease:
        lease.connection = lease.connection or Line()
        if error:
            raise error
    return *lease.address, lease.connection


def fail(pool: ConnectionPool[Line]) -> None:
    with pytest.raises(NoAnswer):
        call(pool, NoAnswer("gone", timed_out=True))


def test_calls_are_spread_over_gateways(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A, B], clock, timing=TIMING)
    assert sorted(call(pool)[0] for _ in range(6)) == ["a"] * 3 + ["b"] * 3
    with pool.lease(fresh=False) as first, pool.lease(fresh=False) as second:
        assert {first.address, second.address} == {A, B}
        first.connection, second.connection = Line(), Line()


def test_connection_is_reused(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    _, _, line = call(pool)
    assert call(pool)[2] is line
    assert pool.opened == 1


def test_stale_or_old_connection_is_closed(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    _, _, line = call(pool)
    line.cut = True
    _, _, other = call(pool)
    assert other is not line
    assert line.closed
    clock.now += TIMING.idle_s
    assert call(pool)[2] is not other
    assert other.closed


@pytest.mark.parametrize("error", [NoAnswer("gone"), StoreBusy("later"), ValueError("a bug")])
def test_connection_is_closed_after_an_error(clock: Clock, error: Exception) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    _, _, line = call(pool)
    with pytest.raises(type(error)):
        call(pool, error)
    assert line.closed
    assert call(pool)[2] is not line


def test_failed_gateway_gets_no_calls_for_a_while(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A, B], clock, timing=TIMING)
    fail(pool)
    assert pool.down == 1
    assert len({call(pool)[0] for _ in range(4)}) == 1
    clock.now += TIMING.first_backoff_s
    assert {call(pool)[0] for _ in range(4)} == {"a", "b"}
    assert pool.down == 0


def test_calls_fail_at_once_if_all_gateways_failed(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    fail(pool)
    with pytest.raises(StoreDown, match=r"\ba:1\b.*\bgone\b"):
        call(pool)


def rests(pool: ConnectionPool[Line], clock: Clock) -> Iterator[float]:
    """How long a gateway is left alone, each time it fails."""
    while True:
        fail(pool)
        since = clock.now
        while True:
            clock.now += 0.01
            try:
                with pool.lease(fresh=False):
                    raise KeyboardInterrupt  # neither an answer nor a failure
            except StoreDown:
                continue
            except KeyboardInterrupt:
                break
        yield clock.now - since


def test_backoff_grows_up_to_a_limit(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    for rest, bound in zip(rests(pool, clock), [1, 2, 4, 8, 8, 8], strict=False):
        assert bound / 2 <= rest <= bound + 0.02
    call(pool)
    assert 0.5 <= next(rests(pool, clock)) <= 1.02


def test_only_one_call_probes_a_failed_gateway(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    fail(pool)
    clock.now += TIMING.first_backoff_s
    with pool.lease(fresh=False) as probe:
        with pytest.raises(StoreDown):
            call(pool)
        probe.connection = Line()
    call(pool)


def fail_together(pool: ConnectionPool[Line], calls: int) -> None:
    with ExitStack() as stack:
        for _ in range(calls):
            stack.enter_context(pool.lease(fresh=False))
        raise NoAnswer("gone")


def test_concurrent_failures_count_once(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    with pytest.raises(NoAnswer):
        fail_together(pool, 6)
    clock.now += TIMING.first_backoff_s
    call(pool)


def test_dropped_idle_connection_keeps_the_gateway_up(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    with pool.lease(fresh=False) as one:
        _, _, other = call(pool)
        one.connection = Line()
    with pytest.raises(NoAnswer):
        call(pool, NoAnswer("end of file"))
    assert pool.down == 0
    assert call(pool, fresh=True)[2] not in (one.connection, other)
    assert one.connection.closed
    assert other.closed


def test_close_during_a_call_closes_its_connection(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A], clock, timing=TIMING)
    _, _, idle = call(pool)
    with pool.lease(fresh=True) as lease:
        lease.connection = Line()
        pool.close()
    assert idle.closed
    assert lease.connection.closed
    with pytest.raises(StoreDown):
        call(pool)


def timed(pool: ConnectionPool[Line], clock: Clock, took_s: dict[str, float], kind: str = "get") -> str:
    """One call, which takes each gateway its own time. Return where it went."""
    with pool.lease(fresh=False, kind=kind) as lease:
        lease.connection = lease.connection or Line()
        clock.now += took_s[lease.address[0]]
    return lease.address[0]


def shares(pool: ConnectionPool[Line], clock: Clock, took_s: dict[str, float]) -> float:
    """Return the share of calls that go to gateway a."""
    calls = [timed(pool, clock, took_s) for _ in range(1000)]
    return calls.count("a") / len(calls)


def test_slow_gateway_gets_few_calls_until_it_is_fast_again(clock: Clock) -> None:
    """Regression: of two gateways each got half of the calls of a client that waits for each."""
    pool: ConnectionPool[Line] = ConnectionPool([A, B], clock, timing=TIMING)
    assert 0 < shares(pool, clock, {"a": 0.2, "b": 0.002}) < 0.1
    assert shares(pool, clock, {"a": 0.002, "b": 0.2}) > 0.6
    assert shares(pool, clock, {"a": 0.002, "b": 0.2}) > 0.9
    shares(pool, clock, {"a": 0.002, "b": 0.002})
    assert 0.4 < shares(pool, clock, {"a": 0.002, "b": 0.002}) < 0.6


def test_calls_of_different_kinds_are_not_compared(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A, B], clock, timing=TIMING)
    for _ in range(3):
        timed(pool, clock, {"a": 9, "b": 9}, "put")
    assert 0.4 < shares(pool, clock, {"a": 0.002, "b": 0.002}) < 0.6


def test_concurrent_calls_wait_for_a_fast_gateway_rather_than_a_slow_one(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A, B], clock, timing=TIMING)
    shares(pool, clock, {"a": 0.2, "b": 0.002})
    with ExitStack() as stack:
        leases = [stack.enter_context(pool.lease(fresh=False, kind="get")) for _ in range(8)]
        for lease in leases:
            lease.connection = lease.connection or Line()
        assert [lease.address for lease in leases].count(A) <= 1


def test_slow_gateway_that_does_not_answer_gets_no_more_calls(clock: Clock) -> None:
    pool: ConnectionPool[Line] = ConnectionPool([A, B], clock, timing=TIMING)
    shares(pool, clock, {"a": 0.2, "b": 0.002})
    with ExitStack() as stack:
        while True:
            lease = stack.enter_context(pool.lease(fresh=False, kind="get"))
            lease.connection = lease.connection or Line()
            if lease.address == A:
                break
            stack.pop_all().close()
        assert {timed(pool, clock, {"b": 0.002}) for _ in range(200)} == {"b"}


def test_cancelled_calls_count_as_slow(clock: Clock) -> None:
    """A query ends at its timeout before the gateway answers."""
    pool: ConnectionPool[Line] = ConnectionPool([A, B], clock, timing=TIMING)
    shares(pool, clock, {"a": 0.002, "b": 0.002})
    gone = []

    def interrupted() -> None:
        with pool.lease(fresh=False, kind="get") as lease:
            gone.append(lease.address)
            clock.now += 10 if lease.address == A else 0.002
            raise KeyboardInterrupt

    for _ in range(100):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    assert gone.count(A) < 20
