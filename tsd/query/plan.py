"""From the times of a query to the hours to read, and to the times to answer (docs/compat/query.md §7)."""

from typing import NamedTuple

from tsd.codec.putline import FIRST_MS, HOUR_MS, HOUR_S
from tsd.query import calendar
from tsd.query.model import Downsample, Fill, SubQuery
from tsd.tables.quirks import OPENTSDB, Quirks
from tsd.tables.reading import ScanRange, Selection


class Plan(NamedTuple):
    """What to read for a sub query."""

    sub: SubQuery
    scan: ScanRange
    selection: Selection
    open_hours: tuple[int, ...] = ()  # base times of hours with points that the store lacks
    part: ScanRange | None = None  # the only hours to read, of those that are merged

    @property
    def rows(self) -> ScanRange:
        """The hours to read: those of `scan`, over which series are merged, or one more (docs/compat/query.md §6.4)."""
        if self.part is not None:
            return self.part
        return ScanRange(self.scan.start_s, self.scan.stop_s + HOUR_S * self.selection.reads_beyond)


def scan_range(start_ms: int, end_ms: int, downsample: Downsample | None, *, quirks: Quirks = OPENTSDB) -> ScanRange:
    """Return what to read for a query from `start_ms` to `end_ms`, both included.

    Without the quirk `nominal_calendar`: all of the calendar's buckets that hold either time.

    >>> scan_range(1356998400000, 1356998460000, None)
    ScanRange(start_s=1356998400, stop_s=1357002000)
    """
    start = start_ms // 1000 if start_ms >= FIRST_MS else start_ms
    end = (end_ms // 1000 if end_ms >= FIRST_MS else end_ms) + 1
    if downsample is None:
        return ScanRange(start - start % HOUR_S if start > 0 else 0, end + HOUR_S - end % HOUR_S)
    interval = downsample.interval_ms
    if interval:
        start -= 1000 * start % interval // 1000
        aligned = end + (interval - 1000 * end % interval) // 1000
        stop = -(-aligned // HOUR_S) * HOUR_S
    else:
        stop = end + HOUR_S - end % HOUR_S
    start = max(0, start - start % HOUR_S)
    if downsample.calendar and not quirks.nominal_calendar:
        first = calendar.base(start_ms, downsample.calendar) // 1000
        after = -(-calendar.after(calendar.base(end_ms, downsample.calendar), downsample.calendar) // 1000)
        return ScanRange(max(0, first - first % HOUR_S), -(-after // HOUR_S) * HOUR_S)
    return ScanRange(start, stop)


def range_to_end(end_ms: int, downsample: Downsample | None, scan: ScanRange) -> ScanRange:
    """Return the hours of a scan range up to that of `end_ms`, or up to the end of the last bucket that begins until
    then. Return the whole scan range if it has no later hours, or if a bucket would be read in part.

    >>> range_to_end(1356998400_000 + 3599_000, None, ScanRange(1356998400, 1357005600))
    ScanRange(start_s=1356998400, stop_s=1357002000)
    """
    interval_ms = HOUR_MS
    if downsample is not None:
        if downsample.calendar or (downsample.fill is Fill.SCALAR and downsample.scalar is None):
            return scan
        interval_ms = downsample.interval_ms or HOUR_MS
    after_ms = end_ms // interval_ms * interval_ms + interval_ms
    stop_s = -(-after_ms // HOUR_MS) * HOUR_S
    if end_ms < FIRST_MS or stop_s * 1000 % interval_ms or stop_s >= scan.stop_s:
        return scan
    return ScanRange(scan.start_s, stop_s)


def output_range(start_ms: int, end_ms: int, downsample: Downsample | None, *, quirks: Quirks = OPENTSDB) -> range:
    """Return the times to answer.

    Without the quirk `omits_first_bucket`: from the start of the bucket that holds `start_ms`.
    """
    if quirks.omits_first_bucket or downsample is None or downsample.is_all:
        return range(start_ms, end_ms + 1)
    if downsample.calendar:
        return range(calendar.base(start_ms, downsample.calendar), end_ms + 1)
    return range(start_ms - start_ms % downsample.interval_ms, end_ms + 1)
