"""From the times of a query to the hours that are read for it, and to those that are answered (query.md §7)."""

from typing import NamedTuple

from tsd.query import calendar
from tsd.query.model import Downsample

HOUR_S = 3600
MILLISECONDS_FROM = 1 << 32  # times below are taken for seconds


class ScanRange(NamedTuple):
    """Rows whose base time is in [start_s, stop_s) are read; both are whole hours."""

    start_s: int
    stop_s: int

    @property
    def start_ms(self) -> int:
        """First moment that is read."""
        return self.start_s * 1000

    @property
    def stop_ms(self) -> int:
        """Where the last hour that is read ends."""
        return self.stop_s * 1000


def scan_range(start_ms: int, end_ms: int, downsample: Downsample | None, *, corrected: bool = False) -> ScanRange:
    """What is read for a query from `start_ms` to `end_ms`, both included.

    Corrected: whatever the buckets that hold either time span, by the calendar's own lengths too.

    >>> scan_range(1356998400000, 1356998460000, None)
    ScanRange(start_s=1356998400, stop_s=1357002000)
    """
    interval = downsample.interval_ms if downsample else 0
    start, end = _seconds(start_ms), _seconds(end_ms) + 1
    if interval:
        start -= 1000 * start % interval // 1000
        aligned = end + (interval - 1000 * end % interval) // 1000
        stop = -(-aligned // HOUR_S) * HOUR_S
    else:
        stop = end + HOUR_S - end % HOUR_S
    start = max(0, start - start % HOUR_S)
    if corrected and downsample and downsample.calendar:
        first = calendar.base(start_ms, downsample.calendar) // 1000
        after = -(-calendar.after(calendar.base(end_ms, downsample.calendar), downsample.calendar) // 1000)
        return ScanRange(max(0, first - first % HOUR_S), -(-after // HOUR_S) * HOUR_S)
    return ScanRange(start, stop)


def output_range(start_ms: int, end_ms: int, downsample: Downsample | None, *, corrected: bool = False) -> range:
    """The times that are answered.

    Corrected: from the start of the bucket that holds `start_ms`, which OpenTSDB leaves out as its stamp is earlier.
    """
    if not corrected or downsample is None or downsample.is_all:
        return range(start_ms, end_ms + 1)
    if downsample.calendar:
        return range(calendar.base(start_ms, downsample.calendar), end_ms + 1)
    return range(start_ms - start_ms % downsample.interval_ms, end_ms + 1)


def _seconds(time_ms: int) -> int:
    return time_ms // 1000 if time_ms >= MILLISECONDS_FROM else time_ms
