"""What waiting windows hold in memory is counted as they come and go, and is what going over all of them finds."""

import random
from collections import deque

import numpy as np
import pytest

from tsd.codec.columns import Columns
from tsd.ingest.summary_cells import SummaryCells
from tsd.ingest.window import Held, Window

NOTHING = np.empty(0, np.int64)
COLUMNS = Columns(NOTHING.astype(np.int32), NOTHING, NOTHING.astype(np.uint8), NOTHING)


def window(points: int, *, in_memory: bool) -> Window:
    return Window(None, COLUMNS if in_memory else None, points, 0, SummaryCells(), 0)  # type: ignore[arg-type]


def shrink(windows: deque[Window], most: int) -> None:
    """As it was done with every block: it took 400 us where an outage had lasted a day."""
    held = sum(one.held for one in windows)
    for one in list(windows)[:0:-1]:
        if held <= most:
            break
        held -= one.held
        one.drop()


@pytest.mark.parametrize("seed", range(30))
def test_windows_are_dropped_as_by_going_over_all_of_them(seed: int) -> None:
    chance = random.Random(seed)
    windows, twins, held = deque[Window](), deque[Window](), Held()
    for _ in range(300):
        what = chance.random()
        if what < 0.5:
            points, in_memory = chance.randint(1, 1000), chance.random() < 0.8
            windows.append(window(points, in_memory=in_memory))
            twins.append(window(points, in_memory=in_memory))
            held.enter(windows[-1])
        elif what < 0.8:
            most = chance.randint(-1000, 100_000)
            held.shrink(most, but=windows[0] if windows else None)
            shrink(twins, most)
        elif windows:
            held.leave(windows.popleft())
            twins.popleft()
        assert [one.held for one in windows] == [one.held for one in twins]
        assert held.size == sum(one.held for one in windows)


def test_a_window_that_is_looked_at_is_one_that_still_holds_some() -> None:
    """Not each of those that were left to the journal long ago."""
    held, first = Held(), window(10, in_memory=True)
    for one in (first, *(window(10, in_memory=True) for _ in range(100))):
        held.enter(one)
    held.shrink(0, but=first)
    assert [one for one, _ in held._windows] == [first]
