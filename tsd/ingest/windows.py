"""Windows: the points of one interval, or of one hour, on their way to the store."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import trio

from tsd.codec.points import POINT_BYTES, Columns
from tsd.ingest.journal.journal import Segment
from tsd.ingest.limits import RefusedLine
from tsd.ingest.packed_points import PackedPoints, Place
from tsd.ingest.series import SeriesTable
from tsd.tables.writing import SummaryBatch

SMALL_INTERVALS = 6  # for which a small window stays open while hours are held
MAX_POINTS = 2_000_000  # of a window: limits the memory of sorting and encoding


@dataclass(frozen=True)
class WindowSettings:
    """How long points stay in memory, and how many."""

    interval_s: float  # of a window
    memory_limit: int  # bytes, of points that are not stored
    series_ttl_s: int  # series without points for this long are evicted
    hold_intervals: float = 0  # how long points of open hours are held; 0: not at all
    due_metrics: Sequence[bytes] = ()  # whose points are never held
    small_intervals: int = SMALL_INTERVALS
    retry_s: tuple[float, float] = (0.2, 2.0)  # the first and the longest pause after an error of the store

    @property
    def small_s(self) -> float:
        """Age at which a small window ends with its interval."""
        return (self.small_intervals - 1) * self.interval_s

    @property
    def max_points(self) -> int:
        """The most points of a window."""
        return min(MAX_POINTS, self.memory_limit // 8 // POINT_BYTES)


class PendingSegment:
    """A segment of the journal, and how many windows and open hours have points of it that are not stored."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.users = 0

    def release(self) -> None:
        """Note that the points of a window or an open hour are stored."""
        self.users -= 1
        self.segment.is_stored = not self.users


class Written(NamedTuple):
    """Result for the lines of a window. Lines in neither count were damaged on disk."""

    stored: int
    refused: list[RefusedLine]


@dataclass(eq=False)
class Window:
    """Points that are written together."""

    segments: Sequence[PendingSegment]
    parts: Sequence[Columns] | None  # in order of arrival; None: read the segments
    points: int
    sealed_s: int  # of the oldest point's interval, by the monotonic clock
    since_s: int  # when its first point was accepted, or became due, by the wall clock
    held_memory: int = 0  # bytes that it keeps in memory, if they cannot be dropped
    _: KW_ONLY
    summaries: SummaryBatch | None = None
    written: Written | None = None  # None: not stored yet

    def may_have(self, metric: bytes, table: SeriesTable) -> bool:
        """Return whether its write may make points or series of a metric known to the tables."""
        raise NotImplementedError


@dataclass(eq=False)
class IntervalWindow(Window):
    """The points of one interval, or of some segments of an earlier run."""

    _: KW_ONLY
    held: Sequence[Columns] = ()  # points of the interval that open hours hold: not part of the window

    @property
    def size(self) -> int:
        """Bytes of memory that `drop` frees. What open hours hold of the interval keeps it in memory."""
        if self.parts is None or self.held:
            return 0
        return self.points * POINT_BYTES + (self.summaries.size if self.summaries else 0)

    def may_have(self, metric: bytes, table: SeriesTable) -> bool:
        """Return whether it may have points of a metric, or gave some to open hours."""
        if self.parts is None or (self.summaries is not None and metric in self.summaries.metrics):
            return True
        return any(table.has_metric(metric, part.series) for part in (*self.parts, *self.held))

    def drop(self) -> None:
        """Drop the points; the segments still have them."""
        self.parts = self.summaries = None


@dataclass(eq=False)
class HourWindow(Window):
    """The points that an open hour held. They cannot be dropped."""

    parts: Sequence[Columns]
    _: KW_ONLY
    packed: Sequence[PackedPoints] = ()  # older than the parts
    is_over: bool  # the hour was over
    is_whole: bool  # the same, and the points are all but late ones
    stored_to: Place | None = None  # the points of series up to this one are stored, if some were packed

    def __post_init__(self) -> None:
        self.is_packed = bool(self.packed)

    def may_have(self, metric: bytes, table: SeriesTable) -> bool:  # noqa: ARG002 - as for intervals
        """Return False: its series are known to the tables since its points arrived."""
        return False

    def set_stored(self, last: Place | None) -> None:
        """Drop packed points of series up to `last`, which are stored; None: all. Queries that read them keep them."""
        left = [] if last is None else [one.after(last) for one in self.packed]
        self.packed = [one for one in left if one.points]
        self.stored_to = last or self.stored_to


class WindowMemory:
    """Memory of waiting windows that can be dropped. The sum is updated incrementally, because it is needed for every
    block."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        # Those with points in memory and their sizes, oldest first.
        self._windows: deque[tuple[IntervalWindow, int]] = deque()

    def add(self, window: Window) -> None:
        """Add the newest window."""
        if isinstance(window, IntervalWindow) and (size := window.size):
            self._windows.append((window, size))
            self.size += size

    def remove(self, window: Window) -> None:
        """Remove the oldest window, which is stored."""
        if self._windows and self._windows[0][0] is window:
            self.size -= self._windows.popleft()[1]

    def shrink(self, most: int, *, but: Window | None) -> None:
        """Drop points of windows from memory, newest first, until at most `most` bytes are left. Keep `but`, which is
        being written."""
        while self.size > most and self._windows and self._windows[-1][0] is not but:
            window, size = self._windows.pop()
            self.size -= size
            window.drop()


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
