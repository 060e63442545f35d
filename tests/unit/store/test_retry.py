"""Calls at once: so many and no more, and one error for all."""

import pytest
import trio

from tsd.errors import StoreBusy, StoreDown
from tsd.store.together import together


async def test_so_many_are_under_way_at_once(autojump_clock: trio.testing.MockClock) -> None:
    under_way: list[int] = []
    most = 0

    async def ask(part: int) -> None:
        nonlocal most
        under_way.append(part)
        most = max(most, len(under_way))
        await trio.sleep(1)
        under_way.remove(part)

    begun_s = trio.current_time()
    await together(range(10), ask, at_once=4)
    assert (most, under_way, trio.current_time() - begun_s) == (4, [], 3)


async def test_the_first_error_is_raised_and_nothing_else_is_begun(autojump_clock: trio.testing.MockClock) -> None:
    begun: list[int] = []

    async def ask(part: int) -> None:
        begun.append(part)
        await trio.sleep(part)
        raise StoreBusy("first") if part == 1 else StoreDown("later")

    with pytest.raises(StoreBusy, match="first"):
        await together([2, 1, 3], ask, at_once=2)
    assert begun == [2, 1]
    await together([], ask, at_once=2)
