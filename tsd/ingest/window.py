"""A window: what came in during one interval, on its way from the journal into the store."""

from collections import deque
from typing import NamedTuple

from tsd.codec.columns import Columns
from tsd.ingest.journal import Segment
from tsd.ingest.putlines import POINT_BYTES
from tsd.ingest.source import Refusal
from tsd.ingest.summary_cells import SummaryCells


class Contents(NamedTuple):
    """What a window is to put into the store."""

    columns: Columns
    summaries: SummaryCells
    refused: list[Refusal]


class Written(NamedTuple):
    """What became of a window's lines; those that are missing were damaged on disk."""

    stored: int
    refused: list[Refusal]


class Window:
    """Points that came in during one interval."""

    def __init__(
        self,
        segment: Segment,
        columns: Columns | None,
        points: int,
        sealed_s: int,
        summaries: SummaryCells,
        since_s: int,
    ) -> None:
        self.segment = segment
        self.columns = columns  # None: read the segment
        self.summaries = summaries
        self.points = points
        self.sealed_s = sealed_s  # by the clock that never goes back
        self.since_s = since_s  # when its first point came, by the wall clock

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self.points * POINT_BYTES + self.summaries.size if self.columns is not None else 0

    def drop(self) -> None:
        """Leave the points to the segment."""
        self.columns, self.summaries = None, SummaryCells()


class Held:
    """What waiting windows hold in memory: counted as they come and go, as it is asked for with every block."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self._windows: deque[tuple[Window, int]] = deque()  # those that hold any, oldest first, and how many

    def enter(self, window: Window) -> None:
        """A window begins to wait, behind the others."""
        if size := window.held:
            self._windows.append((window, size))
            self.size += size

    def leave(self, window: Window) -> None:
        """The oldest window is stored."""
        if self._windows and self._windows[0][0] is window:
            self.size -= self._windows.popleft()[1]

    def shrink(self, most: int, *, but: Window | None) -> None:
        """Leave windows to their segments, the newest first, until no more than `most` bytes are held; but one, which
        is being written."""
        while self.size > most and self._windows and self._windows[-1][0] is not but:
            window, size = self._windows.pop()
            self.size -= size
            window.drop()
