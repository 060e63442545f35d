"""Merging in threads stops when its query is cancelled."""

import numpy as np
import trio

from tsd.codec.points import Points
from tsd.query.columns import Chosen
from tsd.query.merge import merge
from tsd.query.workers import check_cancelled
from tsd.tables.reading import ScanRange

SERIES = Chosen.all_of([Points(np.arange(1000) * 1000, np.arange(1000), np.zeros(1000, np.bool_))] * 500)
SCAN = ScanRange(0, 3600)


async def test_merging_thread_stops_with_its_query() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            trio.from_thread.run_sync(scope.cancel)
        check_cancelled()

    with trio.CancelScope() as scope:
        await trio.to_thread.run_sync(lambda: merge(SERIES, "sum", SCAN, check=check))
    assert scope.cancelled_caught
    assert calls == 2


async def test_small_merge_runs_without_checks() -> None:
    assert len(merge(SERIES, "sum", SCAN, check=check_cancelled).points.times) == 1000
