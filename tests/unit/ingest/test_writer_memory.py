"""Memory of waiting windows: the running count equals the sum over all windows."""

import random
from collections import deque

import numpy as np
import pytest

from tests.seeds import seeds
from tsd.codec.points import Columns
from tsd.ingest.windows import IntervalWindow, WindowMemory

NOTHING = np.empty(0, np.int64)
COLUMNS = Columns(NOTHING.astype(np.int32), NOTHING, NOTHING.astype(np.uint8), NOTHING)


def window(points: int, *, in_memory: bool) -> IntervalWindow:
    return IntervalWindow([], [COLUMNS] if in_memory else None, points, 0, 0)


class CountingWindow(IntervalWindow):
    """Counts how often its points are dropped."""

    drops = 0

    def drop(self) -> None:
        self.drops += 1
        super().drop()


def shrink(windows: deque[IntervalWindow], most: int) -> None:
    """Drop the newest windows by going over all of them: the reference for `WindowMemory.shrink`."""
    held = sum(one.size for one in windows)
    for one in list(windows)[:0:-1]:
        if held <= most:
            break
        held -= one.size
        one.drop()


@pytest.mark.parametrize("seed", seeds(30, fast=5))
def test_drop_order_equals_that_of_a_full_scan(seed: int) -> None:
    chance = random.Random(seed)
    windows, twins, held = deque[IntervalWindow](), deque[IntervalWindow](), WindowMemory()
    for _ in range(300):
        what = chance.random()
        if what < 0.5:
            points, in_memory = chance.randint(1, 1000), chance.random() < 0.8
            windows.append(window(points, in_memory=in_memory))
            twins.append(window(points, in_memory=in_memory))
            held.add(windows[-1])
        elif what < 0.8:
            most = chance.randint(-1000, 100_000)
            held.shrink(most, but=windows[0] if windows else None)
            shrink(twins, most)
        elif windows:
            held.remove(windows.popleft())
            twins.popleft()
        assert [one.size for one in windows] == [one.size for one in twins]
        assert held.size == sum(one.size for one in windows)


def test_dropped_windows_are_not_visited_again() -> None:
    """The newest window is dropped once, however often memory is short."""
    held, first = WindowMemory(), window(10, in_memory=True)
    others = [CountingWindow([], [COLUMNS], 10, 0, 0) for _ in range(100)]
    for one in (first, *others):
        held.add(one)
    for _ in range(2):
        held.shrink(0, but=first)
        assert [one.drops for one in others] == [1] * 100
        assert held.size == first.size
