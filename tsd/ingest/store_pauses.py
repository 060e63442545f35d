"""Pauses of the store while a window is written, such as those of a region that moves."""

import math
from collections.abc import Callable

import trio


class StorePauses:
    """How long the store has taken no cells of the window that is being written, by trio's clock."""

    def __init__(self, cells: Callable[[], int]) -> None:
        """`cells` returns how many cells the store has taken."""
        self._cells = cells
        self._seen_cells = 0
        self._seen_s = -math.inf  # when these were seen first
        self._since_s = math.inf  # when the write began

    def begin_write(self) -> None:
        """Note that a window is written from now on."""
        self._since_s = trio.current_time()

    def end_write(self) -> None:
        """Note that the window is stored."""
        self._since_s = math.inf

    def length_s(self) -> float:
        """Return how long no cells were taken: since the write began, or a call here first saw new cells, whichever is
        later. Without a write that is minus infinity."""
        now, cells = trio.current_time(), self._cells()
        if self._seen_cells != cells:
            self._seen_cells, self._seen_s = cells, now
        return now - max(self._since_s, self._seen_s)
