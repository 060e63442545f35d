"""Work of a query in threads: it goes on at the same time, and its results are used in order."""

import threading

import pytest
import trio

from tsd.errors import StoreError
from tsd.query.background import Prepared, working
from tsd.query.workers import WorkerPool
from tsd.store.scheduling import IngestLoad

WAIT_S = 60


@pytest.mark.parametrize("is_short", [True, False])
async def test_results_are_used_in_the_order_of_their_beginning(is_short: bool) -> None:
    used: list[int] = []
    second_ran = threading.Event()

    def first() -> Prepared:
        assert second_ran.wait(WAIT_S)  # both run at the same time
        return Prepared(lambda: used.append(1), is_short)

    def second() -> Prepared:
        second_ran.set()
        return Prepared(lambda: used.append(2), is_short)

    def later(number: int) -> Prepared:
        return Prepared(lambda: used.append(number), is_short)

    with trio.fail_after(WAIT_S):
        async with working(WorkerPool(2, IngestLoad())) as threads:
            await threads.in_order.begin(first)
            await threads.in_order.begin(second)
            for number in range(3, 9):
                await threads.in_order.begin(lambda number=number: later(number))
            await threads.in_order.finish()
            assert used == list(range(1, 9))
            await threads.in_order.finish()


async def test_error_of_work_is_raised_after_earlier_results_were_used() -> None:
    used: list[int] = []

    def fail() -> Prepared:
        raise StoreError("broken")

    async def run() -> None:
        async with working(WorkerPool(2, IngestLoad())) as threads:
            await threads.in_order.begin(lambda: Prepared(lambda: used.append(1), is_short=True))
            await threads.in_order.begin(fail)
            await threads.in_order.finish()

    with pytest.raises(StoreError, match="broken"):
        await run()
    assert used == [1]
