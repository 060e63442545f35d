"""Work in threads, which nobody can cancel from without: it looks by itself whether its query has ended."""

import numpy as np
import trio

from tsd.query.engine import check_going_on
from tsd.query.merge import merge
from tsd.query.points import Points
from tsd.query.ranges import ScanRange

SERIES = [Points(np.arange(1000) * 1000, np.arange(1000), np.zeros(1000, np.bool_)) for _ in range(3)]
SCAN = ScanRange(0, 3600)


async def test_a_thread_that_merges_hears_that_its_query_has_ended() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            trio.from_thread.run_sync(scope.cancel)
        check_going_on()

    with trio.CancelScope() as scope:
        await trio.to_thread.run_sync(lambda: merge(SERIES, "sum", SCAN, check=check))
    assert scope.cancelled_caught
    assert calls == 2


async def test_what_is_merged_at_once_is_not_looked_after() -> None:
    assert len(merge(SERIES, "sum", SCAN, check=check_going_on).points.times) == 1000
