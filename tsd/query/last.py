"""Series → their newest points: from what this daemon wrote, and from rows where that may not be all (query.md §17)."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import structlog
import trio

from tsd.codec.cell import MIXED, MS_MARK, Point, split
from tsd.codec.merge import Merged, MergeRules, merge
from tsd.codec.row import data_cells
from tsd.codec.rowkey import Layout, tsuid
from tsd.codec.times import HOUR_S
from tsd.codec.tsuid import tsuid_row
from tsd.codec.words import LENGTH
from tsd.errors import CorruptRow
from tsd.metadata.latest import NO_TIME, LastPoint, Latest
from tsd.store import Cell, Store

log = structlog.get_logger(__name__)

ROWS = 1000  # asked for with one call
MOST_UNREADABLE = 10_000  # series whose rows cannot be read, and that are looked at again each time
RULES = MergeRules(fix_duplicates=True)

Series = tuple[bytes, bytes]  # metric UID, tag pairs


class Span(NamedTuple):
    """How far back points count."""

    now_ms: int
    hours: int  # before the present one

    @property
    def this_hour_s(self) -> int:
        """The base time of the present hour."""
        return self.now_ms // 1000 // HOUR_S * HOUR_S

    @property
    def start_ms(self) -> int:
        """The first ms that counts."""
        return (self.this_hour_s - self.hours * HOUR_S) * 1000


class Unreadable(NamedTuple):
    """The newest of a series' rows that cannot be read."""

    base_s: int
    reason: str


class LastPoints:
    """The newest points of series in a store."""

    def __init__(
        self,
        store: Store,
        table: str,
        layout: Layout,
        latest: Latest,
        now_ms: Callable[[], int],
        *,
        look_back_h: int,
        trust_ms: int | None,
    ) -> None:
        """Rows are looked at `look_back_h` hours back, unless a request says otherwise. What this daemon knows of a
        series holds for `trust_ms` (None: always, because nobody else writes)."""
        self._store = store
        self._table = table
        self._layout = layout
        self._latest = latest
        self._now_ms = now_ms
        self._look_back_h = look_back_h
        self._trust_ms = trust_ms
        self._started_ms = now_ms()
        self._unreadable: dict[Series, Unreadable] = {}
        self.warnings = 0  # told of those

    async def of(self, series: Sequence[Series], back_h: int | None) -> list[LastPoint | None]:
        """The newest point of each series, no older than `back_h` hours before the present one (None: as far as is
        known). Raises StoreError."""
        span = self._span(back_h)
        slots = self._slots(series)
        await self._look(series, slots, span)
        slots = self._slots(series)  # anew: everything may have been forgotten meanwhile
        times = self._latest.times_ms(slots)
        oldest = NO_TIME + 1 if back_h is None else span.start_ms
        points = self._latest.points(slots.tolist())
        return [point if time >= oldest else None for point, time in zip(points, times.tolist(), strict=True)]

    def unreadable(self, series: Sequence[Series], points: Sequence[LastPoint | None], back_h: int | None) -> list[str]:
        """What there is to tell of rows that could not be read, each newer than the `points` that `of` found, and no
        older than it looks."""
        span = self._span(back_h)
        told = []
        for one, point in zip(series, points, strict=True) if self._unreadable else ():
            row = self._unreadable.get(one)
            if row is None or row.base_s * 1000 < span.start_ms:
                continue
            if point is None or point.time_ms < row.base_s * 1000:
                told.append(row.reason)
        if told:
            self.warnings += len(told)
            log.warning("newest points are without rows that cannot be read", rows=len(told), first=told[0])
        return told

    def _span(self, back_h: int | None) -> Span:
        return Span(self._now_ms(), self._look_back_h if back_h is None else back_h)

    def _slots(self, series: Sequence[Series]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        return np.array([self._latest.slot(metric, pairs) for metric, pairs in series], np.intp)

    async def _look(
        self, series: Sequence[Series], slots: np.ndarray[tuple[int], np.dtype[np.intp]], span: Span
    ) -> None:
        """Look into the store for what is not known well enough."""
        times = self._latest.times_ms(slots)
        known = (times >= self._started_ms) | (self._latest.depth_h[slots] >= span.hours)
        if self._trust_ms is not None:
            known &= np.maximum(times, self._latest.checked_ms[slots]) > span.now_ms - self._trust_ms
        if self._unreadable:  # they may have been mended
            known &= np.array([one not in self._unreadable for one in series], np.bool_)
        unknown = np.flatnonzero(~known).tolist()
        for at in range(0, len(unknown), ROWS):
            part = list(dict.fromkeys(series[index] for index in unknown[at : at + ROWS]))
            found = await self._newest(part, span)
            for one in part:  # by name: slots may be others' by now
                self._latest.take(self._latest.slot(*one), found.get(one), checked_ms=span.now_ms, depth_h=span.hours)

    async def _newest(self, wanted: Sequence[Series], span: Span) -> dict[Series, LastPoint]:
        """The newest points that rows hold, hour by hour from the present one back."""
        found: dict[Series, LastPoint] = {}
        left = {metric + pairs: (metric, pairs) for metric, pairs in wanted}
        broken: dict[bytes, Unreadable] = {}
        hour = 0
        while left and hour <= span.hours:
            hours = range(hour, min(hour + max(ROWS // len(left), 1), span.hours + 1))
            bases = [base for hour in hours if (base := span.this_hour_s - hour * HOUR_S) >= 0]
            rows = await self._store.get(
                self._table, [tsuid_row(self._layout, one, base) for one in left for base in bases]
            )
            for name, point in (await trio.to_thread.run_sync(self._last_of_rows, rows, broken)).items():
                found[left.pop(name)] = point
            hour = hours.stop
        self._note_unreadable(wanted, broken, span)
        return found

    def _note_unreadable(self, wanted: Sequence[Series], broken: Mapping[bytes, Unreadable], span: Span) -> None:
        """Remember which rows could not be read, once all have been looked at: who asks meanwhile, or after a look that
        failed, is told what was known before."""
        if len(self._unreadable) + len(broken) > MOST_UNREADABLE:
            oldest_s = self._span(None).start_ms // 1000
            self._unreadable = {one: row for one, row in self._unreadable.items() if row.base_s >= oldest_s}
        for one in wanted:
            row, known = broken.get(one[0] + one[1]), self._unreadable.get(one)
            if row is not None and (known is not None or len(self._unreadable) < MOST_UNREADABLE):
                self._unreadable[one] = row
            elif known is not None and not self._hides(known, one, span):
                del self._unreadable[one]

    def _hides(self, row: Unreadable, one: Series, span: Span) -> bool:
        """Whether a row that was not looked at is to be told of without a look, to who asks as far back as was looked
        some time."""
        deepest = span._replace(hours=max(span.hours, int(self._latest.depth_h[self._latest.slot(*one)])))
        return deepest.start_ms <= row.base_s * 1000 < span.start_ms

    def _last_of_rows(
        self, rows: Mapping[bytes, list[Cell]], broken: dict[bytes, Unreadable]
    ) -> dict[bytes, LastPoint]:
        """The newest point that rows hold of each series, by TSUID; the newest rows that cannot be read go into
        `broken`."""
        found: dict[bytes, LastPoint] = {}
        for key in sorted(rows, reverse=True):  # of one series, the newest hour first
            name = tsuid(self._layout, key)
            if name in found:
                continue
            base = int.from_bytes(key[self._layout.metric_end : self._layout.pairs_start], "big")
            try:
                last = last_of(merge(key, data_cells(rows[key]), RULES))
            except CorruptRow as exc:
                broken.setdefault(name, Unreadable(base, str(exc)))
                continue  # an older hour may be readable
            if last is not None:
                found[name] = LastPoint(base * 1000 + last.offset_ms, last.number)
        return found


def last_of(row: Merged) -> Point | None:
    """The last point of a row; None where it has none.

    >>> from tsd.codec.merge import StoredCell
    >>> last_of(merge(b"", [StoredCell(b"\\0\\0", b"\\x2a", 7), StoredCell(b"\\0\\x10", b"\\x2b", 8)]))
    Point(qualifier=b'\\x00\\x10', value=b'+')
    """
    qualifier, value = row.joined
    if row.size <= 1:
        return row.joined if row.size else None
    if value.endswith(MIXED):
        return split(qualifier, value)[-1]
    width = 4 if qualifier[0] & MS_MARK == MS_MARK else 2
    size = (qualifier[-1] & LENGTH) + 1
    return Point(qualifier[-width:], value[-1 - size : -1])
