"""Windows: the points of one interval, or of one hour, on their way to the store."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsd.codec.points import Columns
from tsd.ingest.journal.journal import Segment
from tsd.ingest.limits import RefusedLine
from tsd.ingest.lines import POINT_BYTES
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


class Window:
    """Points that are written together: those of one interval, of some segments of an earlier run, or of an hour."""

    def __init__(
        self,
        segments: Sequence[PendingSegment],
        parts: Sequence[Columns] | None,
        points: int,
        sealed_s: int,
        summaries: SummaryBatch | None,
        since_s: int,
        *,
        held: Sequence[Columns] = (),
        is_hour: bool = False,
        is_whole: bool = False,
        packed: Sequence[PackedPoints] = (),
        held_memory: int = 0,
    ) -> None:
        """`held`: points of the interval that open hours hold; they are not part of the window. `is_hour`: the window
        has the points that an open hour held, the oldest of them `packed`. Neither kind can be dropped: `held_memory`
        is what they take, in bytes. `is_whole`: the hour was over, so that only late points can follow."""
        self.segments = segments
        self.parts = parts  # in order of arrival; None: read the segments
        self.summaries = summaries
        self.points = points
        self.sealed_s = sealed_s  # of the oldest point's interval, by the monotonic clock
        self.since_s = since_s  # when its first point was accepted, by the wall clock
        self.held = held
        self.is_hour = is_hour
        self.is_whole = is_whole
        self.packed = packed  # older than the parts
        self.is_packed = bool(packed)
        self.stored_to: Place | None = None  # the points of series up to this one are stored, if `is_packed`
        self.held_memory = held_memory
        self.written: Written | None = None  # None: not stored yet

    @property
    def size(self) -> int:
        """Bytes of memory that `drop` frees."""
        if self.parts is None or self.held or self.is_hour:
            return 0
        return self.points * POINT_BYTES + (self.summaries.size if self.summaries else 0)

    def may_have(self, metric: bytes, table: SeriesTable) -> bool:
        """Return whether it may have points of a metric, or gave some to open hours. Series of a released hour are
        known to the tables since its points arrived."""
        if self.is_hour:
            return False
        if self.parts is None or (self.summaries is not None and metric in self.summaries.metrics):
            return True
        return any(table.has_metric(metric, part.series) for part in (*self.parts, *self.held))

    def set_stored(self, last: Place | None) -> None:
        """Drop packed points of series up to `last`, which are stored; None: all. Queries that read them keep them."""
        left = [] if last is None else [one.after(last) for one in self.packed]
        self.packed = [one for one in left if one.points]
        self.stored_to = last or self.stored_to

    def drop(self) -> None:
        """Drop the points; the segments still have them."""
        self.parts = self.summaries = None


class WindowMemory:
    """Memory of waiting windows that can be dropped. The sum is updated incrementally, because it is needed for every
    block."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self._windows: deque[tuple[Window, int]] = deque()  # those with points in memory and their sizes, oldest first

    def add(self, window: Window) -> None:
        """Add the newest window."""
        if size := window.size:
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
