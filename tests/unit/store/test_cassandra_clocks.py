"""A machine's clock and those of Cassandra's nodes, which are read when it matters."""

from collections.abc import Sequence

import pytest
import trio

from tsd.errors import StoreDown, StoreError, WrongClock
from tsd.store.cassandra.clocks import ClockCheck, NodeTime

NOW_MS = 1_700_000_000_000
LIMIT_MS = 60_000
LATE_MS = -5 * 60_000
HOUR_MS = 3_600_000


class Machine:
    """A machine whose wall clock may be set, and nodes whose clocks may be wrong."""

    def __init__(self, *, limit_ms: int = LIMIT_MS, nodes_ms: Sequence[int] = (0,), round_trip_ms: int = 0) -> None:
        """`nodes_ms` are how far the clocks of nodes are ahead."""
        self.elapsed_ms = 5.0
        self.ahead_ms = 0  # wall clock
        self.nodes_ms = nodes_ms
        self.round_trip_ms = round_trip_ms
        self.is_down = False
        self.readings = 0
        self.check = ClockCheck(limit_ms, self.clock_ms, lambda: self.elapsed_ms, self._times)

    def clock_ms(self) -> int:
        return NOW_MS + int(self.elapsed_ms) + self.ahead_ms

    async def _times(self) -> list[NodeTime]:
        await trio.lowlevel.checkpoint()
        self.readings += 1
        if self.is_down:
            raise StoreDown("no node answers")
        asked_ms = self.elapsed_ms
        self.elapsed_ms += self.round_trip_ms
        middle_ms = NOW_MS + int(asked_ms + self.round_trip_ms / 2)
        return [NodeTime(middle_ms + ahead_ms, asked_ms, self.elapsed_ms) for ahead_ms in self.nodes_ms]

    async def writes(self) -> bool:
        """Return whether a write is allowed."""
        try:
            assert await self.check.checked_ms() == self.clock_ms()
        except WrongClock:
            return False
        return True


@pytest.mark.parametrize("ahead_ms", [LATE_MS, -LIMIT_MS - 1, LIMIT_MS + 1, HOUR_MS])
async def test_clock_that_is_wrong_at_the_start_writes_nothing(ahead_ms: int) -> None:
    machine = Machine()
    machine.ahead_ms = ahead_ms
    assert not await machine.writes()
    assert not await machine.writes()
    assert machine.check.ahead_ms == ahead_ms
    machine.ahead_ms = 0
    assert await machine.writes()


@pytest.mark.parametrize("ahead_ms", [-LIMIT_MS, -1, 0, LIMIT_MS])
async def test_clock_within_the_limit_writes_and_is_seldom_compared(ahead_ms: int) -> None:
    machine = Machine()
    machine.ahead_ms = ahead_ms
    for _ in range(100):
        assert await machine.writes()
    assert machine.readings == 1
    machine.elapsed_ms += HOUR_MS
    assert await machine.writes()
    assert machine.readings == 2


@pytest.mark.parametrize("by_ms", [LATE_MS, -LATE_MS])
async def test_clock_that_is_set_wrong_stops_writes_at_once_until_it_is_right(by_ms: int) -> None:
    machine = Machine()
    assert await machine.writes()
    machine.ahead_ms += by_ms
    assert not await machine.writes()
    machine.ahead_ms -= by_ms
    assert await machine.writes()


async def test_clocks_of_nodes_that_are_set_like_ours_let_writes_go_on() -> None:
    machine = Machine()
    assert await machine.writes()
    machine.ahead_ms = LATE_MS
    machine.nodes_ms = [LATE_MS]
    assert await machine.writes()


async def test_clock_that_stood_still_is_seen_at_the_next_reading() -> None:
    """As that of a paused virtual machine, whose monotonic clock stands still, too."""
    machine = Machine()
    assert await machine.writes()
    machine.nodes_ms = [-LATE_MS]
    machine.elapsed_ms += HOUR_MS
    assert not await machine.writes()


async def test_slow_answer_makes_no_difference() -> None:
    machine = Machine(limit_ms=1000, round_trip_ms=10_000)
    assert await machine.writes()
    assert machine.check.ahead_ms == 0


@pytest.mark.parametrize(
    ("nodes_ms", "agrees"),
    [
        ([0, 0, HOUR_MS], True),
        ([-HOUR_MS, 5, HOUR_MS], True),
        ([0, HOUR_MS, HOUR_MS], False),
        ([0, HOUR_MS], False),  # one of the two is wrong
        ([-HOUR_MS, 0], False),
        ([0, 0, 0, HOUR_MS], True),
    ],
)
async def test_most_nodes_decide(nodes_ms: Sequence[int], agrees: bool) -> None:
    assert await Machine(nodes_ms=nodes_ms).writes() == agrees


async def test_nodes_that_do_not_answer_are_a_store_that_is_away() -> None:
    machine = Machine()
    machine.is_down = True
    with pytest.raises(StoreDown):
        await machine.check.checked_ms()
    assert machine.check.ahead_ms is None
    machine.is_down = False
    assert await machine.writes()


async def test_writes_at_once_share_a_reading() -> None:
    machine = Machine()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(machine.check.checked_ms)
    assert machine.readings == 1


async def test_writes_at_once_share_a_failure() -> None:
    """The last one does not wait until each one before it has given up."""
    machine = Machine()
    machine.is_down = True
    refused = 0

    async def write() -> None:
        nonlocal refused
        with pytest.raises(StoreDown):
            await machine.check.checked_ms()
        refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(write)
    assert (machine.readings, refused) == (1, 10)
    machine.is_down = False
    assert await machine.writes()


async def test_write_that_is_cancelled_lets_the_next_one_read() -> None:
    machine = Machine()
    with trio.move_on_after(0):
        await machine.writes()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(machine.writes)
    assert machine.readings == 1


async def test_without_a_limit_no_clock_is_read() -> None:
    machine = Machine(limit_ms=0)
    machine.ahead_ms = LATE_MS
    assert await machine.writes()
    assert (machine.readings, machine.check.ahead_ms) == (0, None)


async def test_error_names_both_clocks_and_the_limit() -> None:
    machine = Machine(nodes_ms=[-LATE_MS])
    with pytest.raises(StoreError) as error:
        await machine.check.checked_ms()
    assert str(error.value) == (
        "this machine's clock says 2023-11-14 22:13:20 UTC, those of Cassandra's nodes 2023-11-14 22:18:20 UTC: it is "
        "300.0 s late, and nothing is written while that is more than 60 s (tsd.storage.cassandra.clock_limit): "
        "synchronise the clocks"
    )
