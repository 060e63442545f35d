"""Retries, and bounded concurrency."""

from collections import Counter
from contextlib import nullcontext

import pytest
import trio

from tsd.errors import StoreBusy, StoreDown, StoreError
from tsd.store.retry import retried, run_bounded


async def test_concurrency_is_limited(autojump_clock: trio.testing.MockClock) -> None:
    under_way: list[int] = []
    most = 0

    async def call(part: int) -> None:
        nonlocal most
        under_way.append(part)
        most = max(most, len(under_way))
        await trio.sleep(1)
        under_way.remove(part)

    begun_s = trio.current_time()
    await run_bounded(range(10), call, limit=4)
    assert (most, under_way, trio.current_time() - begun_s) == (4, [], 3)


async def test_first_error_is_raised_and_stops_new_calls(autojump_clock: trio.testing.MockClock) -> None:
    begun: list[int] = []

    async def call(part: int) -> None:
        begun.append(part)
        await trio.sleep(part)
        raise StoreBusy("first") if part == 1 else StoreDown("later")

    with pytest.raises(StoreBusy, match="first"):
        await run_bounded([2, 1, 3], call, limit=2)
    assert begun == [2, 1]
    await run_bounded([], call, limit=2)


@pytest.mark.parametrize(
    ("errors", "calls", "retries"),
    [
        ([], 1, 0),
        ([StoreBusy("a")], 2, 1),
        ([StoreBusy("a"), StoreBusy("b"), StoreBusy("c")], 3, 2),
        ([StoreBusy("a"), StoreDown("b")], 2, 1),
    ],
)
async def test_a_call_that_fails_in_the_end_counts_as_an_error(
    errors: list[StoreError], calls: int, retries: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Regression: after the last retry of a busy Cassandra the error was not counted."""
    left, count = errors[:], Counter[str]()

    async def call() -> None:
        count["calls"] += 1
        if left:
            raise left.pop(0)

    fails = len(errors) == calls
    with pytest.raises(type(errors[-1])) if fails else nullcontext():
        await retried(call, [1, 2], count)
    assert count == Counter(calls=calls, retries=retries, errors=fails)
