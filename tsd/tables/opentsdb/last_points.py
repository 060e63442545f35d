"""The newest point of each series: from the cache, else from rows (docs/compat/query.md §17)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import compress
from typing import NamedTuple

import numpy as np
import trio
from numpy.typing import NDArray

from tsd.codec.opentsdb.cell import MIXED, MS_MARK, Point, split
from tsd.codec.opentsdb.merge import MergedRow, MergeRules, merge
from tsd.codec.opentsdb.row import data_cells
from tsd.codec.opentsdb.rowkey import tsuid, tsuid_row
from tsd.codec.putline import HOUR_S
from tsd.codec.text import LENGTH
from tsd.errors import CorruptRow, StoreDown
from tsd.lazy import LazyLogger
from tsd.store import Cell, scan
from tsd.tables.catalog import LastPoint
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.last_point_cache import FORGOTTEN, NO_TIME, LastPointCache, LookBack, Series, Slots
from tsd.tables.opentsdb.unstored_newest import UnstoredNewest

log = LazyLogger(__name__)

PART = 10_000  # series that are answered as of one moment
ROWS = 1000  # per call of the store
HELD_H = 2  # hours before the current one that may have points in memory only
MOST_READS = 3  # of rows that commands change meanwhile
SCAN_GROWTH = 4  # of the hours that are scanned next
SCAN_SHARE = 8  # a scan ends once it has met this part of the rows that it saves
MAX_UNREADABLE = 10_000  # series with unreadable rows, which every request reads again
RULES = MergeRules(fix_duplicates=True)


class UnreadableRow(NamedTuple):
    """The newest unreadable row of a series."""

    base_s: int
    reason: str


class LastPointReader:
    """Reads the newest points of series, from what this daemon wrote and from rows."""

    def __init__(
        self,
        table: DataTable,
        cache: LastPointCache,
        now_ms: Callable[[], int],
        *,
        look_back_h: int,
        cache_ms: int | None,
        max_unreadable: int = MAX_UNREADABLE,
    ) -> None:
        """Rows of the last `look_back_h` hours are read unless a request gives another range. Cached points are valid
        for `cache_ms` (None: always, no other process writes)."""
        self._store, self._table, self._layout = table
        self._cache = cache
        self._now_ms = now_ms
        self._look_back_h = look_back_h
        self._cache_ms = cache_ms
        self._max_unreadable = max_unreadable
        self._since_ms, self._clears = now_ms(), cache.clears  # later points are recorded, unless they are forgotten
        self._unreadable: dict[Series, UnreadableRow] = {}
        self._unstored: UnstoredNewest | None = None
        self.warnings = 0  # about unreadable rows, since the start

    def include_unstored(self, points: UnstoredNewest) -> None:
        """Take points that are not stored into account."""
        self._unstored = points

    async def of(self, series: Sequence[Series], back_h: int | None) -> list[LastPoint | None]:
        """Return the newest point of each series, no older than `back_h` hours before the current hour (None: of any
        known age). Raise StoreError."""
        found: list[LastPoint | None] = []
        for at in range(0, len(series), PART):
            found += await self._of_part(series[at : at + PART], back_h)
            await trio.lowlevel.checkpoint()
        return found

    async def _of_part(self, series: Sequence[Series], back_h: int | None) -> list[LastPoint | None]:
        """Return the newest point of each series, as of one moment. Raise StoreError."""
        for _ in range(MOST_READS):
            await self.complete()
            span = self._span(back_h)
            points = await self._points(series, span)
            if self._clears == self._cache.clears:
                oldest_ms = NO_TIME + 1 if back_h is None else span.start_ms
                return [point if point.time_ms >= oldest_ms else None for point in points]
        raise StoreDown("caches were dropped during each read of newest points")

    async def complete(self) -> None:
        """Write points in memory if the cache was cleared, and does not know them. Raise StoreDown."""
        clears, since_ms = self._cache.clears, self._now_ms()
        if self._clears != clears:
            if self._unstored is not None:
                await self._unstored.write()
            self._since_ms, self._clears = since_ms, clears

    def unreadable(self, series: Sequence[Series], points: Sequence[LastPoint | None], back_h: int | None) -> list[str]:
        """Return warnings about unreadable rows in the range that are newer than `points`, the result of `of`."""
        span = self._span(back_h)
        found = []
        for one, point in zip(series, points, strict=True) if self._unreadable else ():
            row = self._unreadable.get(one)
            if row is None or row.base_s * 1000 < span.start_ms:
                continue
            if point is None or point.time_ms < row.base_s * 1000:
                found.append(row.reason)
        if found:
            self.warnings += len(found)
            log.warning("last_points.rows_unreadable", rows=len(found), first=found[0])
        return found

    def _span(self, back_h: int | None) -> LookBack:
        return LookBack(self._now_ms(), self._look_back_h if back_h is None else back_h)

    async def _points(self, series: Sequence[Series], span: LookBack) -> list[LastPoint]:
        """Return the newest points of series, with NO_TIME for none. The rows of those whose newest point is not
        cached, or no longer valid, are read."""
        slots = self._cache.slots(series)
        points, known = self._cache.points(slots), self._are_known(series, slots, span)
        if known.all():
            return points
        unknown = dict.fromkeys(compress(series, (~known).tolist()))
        found: dict[Series, LastPoint] = {}
        for tries in range(MOST_READS):
            if left := [one for one in unknown if one not in found]:
                found |= await self._read_all(left, span, is_last=tries + 1 == MOST_READS)
        return [found.get(one, point) for one, point in zip(series, points, strict=True)]

    def _are_known(self, series: Sequence[Series], slots: Slots, span: LookBack) -> NDArray[np.bool_]:
        """Return whether the newest point of each series is cached, and valid."""
        times, depths_h = self._cache.times_ms(slots), self._cache.depth_h[slots]
        # Of a series that was missing, an older point may have been recorded than its rows have.
        since_ms = max(self._since_ms, self._cache.missing_ms + 1)
        known: NDArray[np.bool_] = ((times >= since_ms) & (depths_h != FORGOTTEN)) | (depths_h >= span.hours)
        if self._cache_ms is not None:
            known &= np.maximum(times, self._cache.checked_ms[slots]) > span.now_ms - self._cache_ms
        if self._unreadable:  # read again: rows may have been repaired
            known &= np.array([one not in self._unreadable for one in series], np.bool_)
        return known

    async def _read_all(self, series: Sequence[Series], span: LookBack, *, is_last: bool) -> dict[Series, LastPoint]:
        """Read the rows of series. Return their newest points, with NO_TIME for none. Unless `is_last`, those whose
        rows commands have changed meanwhile are left out."""
        changes = self._cache.changes
        is_forgotten = self._cache.depth_h[self._cache.slots(series)] == FORGOTTEN
        # The cache never had held points that were older than one which is forgotten. They are searched for at once: a
        # search goes through all series of a metric.
        held = await self._held(list(compress(series, is_forgotten.tolist())), _with_held_hours(span))
        found: dict[Series, LastPoint] = {}
        for at in range(0, len(series), ROWS):
            found |= await self._read(series[at : at + ROWS], held, span, changes, is_last=is_last)
        return found

    async def _read(
        self,
        part: Sequence[Series],
        held: Mapping[Series, LastPoint],
        span: LookBack,
        changes: int,
        *,
        is_last: bool,
    ) -> dict[Series, LastPoint]:
        """Read the rows of some series. Return their newest points, unless commands have changed rows since there were
        `changes`: then `held` points may be deleted. If `is_last`, what was read counts until the next request."""
        places = self._cache.slots(part)
        newest_ms = self._cache.times_ms(places)
        is_forgotten = self._cache.depth_h[places] == FORGOTTEN
        if is_forgotten.any():
            span = _with_held_hours(span)
        is_late = is_forgotten & (newest_ms < span.start_ms)  # see `set_read`
        # Rows may lack a held point, also one that is written during the read.
        is_known = ((newest_ms != NO_TIME) & ~is_late & ~self._cache.are_held(places)).tolist()
        points = self._cache.points(places)
        known = dict(compress(zip(part, points, strict=True), is_known))
        missing = self._cache.missing_changes
        found = await self._newest(part, span)
        gone = set() if self._cache_ms is None else await self._changed(known, found, span)
        late = await self._held(list(gone), span)
        if gone:  # again: points that memory had may have been written before it was searched
            found |= await self._newest([one for one in gone if one not in late], span)
        slots: dict[Series, int] = {}
        for one in part:  # by name: slots may have been reassigned
            slot = self._cache.slot(*one)
            is_changed = self._cache.depth_h[slot] == FORGOTTEN or missing != self._cache.missing_changes
            has_changed = changes != self._cache.changes and is_changed
            if has_changed and not is_last:
                continue
            slots[one] = slot
            if one in gone:
                self._cache.forget_point(slot, known[one])
            self._cache.set_read(slot, found.get(one), checked_ms=span.now_ms, depth_h=span.hours)
            if has_changed:
                self._cache.depth_h[slot] = FORGOTTEN
            elif (point := late.get(one, held.get(one))) is not None:
                self._cache.set_held(slot, point)
        return dict(zip(slots, self._cache.points([*slots.values()]), strict=True))

    async def _held(self, series: Sequence[Series], span: LookBack) -> dict[Series, LastPoint]:
        """Return the newest points of series that the store may lack."""
        return await self._unstored.of(series, span.range) if self._unstored is not None and series else {}

    async def _changed(
        self, known: Mapping[Series, LastPoint], found: dict[Series, LastPoint], span: LookBack
    ) -> set[Series]:
        """Return the series whose known points another process has deleted or replaced. `found` has what was read of
        the span, and gets the newest points of older rows that had known ones."""
        stop_ms = (span.this_hour_s + HOUR_S) * 1000
        lost = {
            one: point.time_ms
            for one, point in known.items()
            if point.time_ms < stop_ms
            and ((read := found.get(one)) is None or (read.time_ms <= point.time_ms and not read.is_same(point)))
        }
        older = {
            tsuid_row(self._layout, b"".join(one), at // 1000 // HOUR_S * HOUR_S): one
            for one, at in lost.items()
            if at < span.start_ms and one not in found
        }
        unreadable: dict[bytes, UnreadableRow] = {}
        rows = await self._store.get(self._table, list(older)) if older else {}
        left = await trio.to_thread.run_sync(self._last_of_rows, rows, unreadable) if rows else {}
        found |= {one: left[name] for one in older.values() if (name := b"".join(one)) in left}
        return {one for one in lost if one not in self._unreadable and b"".join(one) not in unreadable}

    async def _newest(self, wanted: Sequence[Series], span: LookBack) -> dict[Series, LastPoint]:
        """Return the newest points in rows, the current hour first.

        Rows are read by their keys. Most series have points in these few hours; those without may have none at all.
        For these their metrics are scanned, as long as that meets fewer rows."""
        found: dict[Series, LastPoint] = {}
        left = {metric + pairs: (metric, pairs) for metric, pairs in wanted}
        unreadable: dict[bytes, UnreadableRow] = {}
        hour, width = 0, 0  # `width`: hours to scan next, 0: none
        may_scan = not self._layout.salt_width
        while left and hour <= span.hours:
            few = max(ROWS // len(left), 1)
            width = max(width * SCAN_GROWTH, few * SCAN_GROWTH) if may_scan and hour else 0
            stop = min(hour + max(width, few), span.hours + 1)
            newest: Mapping[bytes, LastPoint] | None = None
            if width:
                newest = await self._newest_scanned(left, span.bases(hour, stop), unreadable)
                may_scan = newest is not None
            if newest is None:
                stop = min(hour + few, span.hours + 1)
                keys = [tsuid_row(self._layout, one, base) for one in left for base in span.bases(hour, stop)]
                rows = await self._store.get(self._table, keys)
                newest = await trio.to_thread.run_sync(self._last_of_rows, rows, unreadable)
            for name, point in newest.items():
                found[left.pop(name)] = point
            hour = stop
        self._store_unreadable(wanted, unreadable, span)
        return found

    async def _newest_scanned(
        self, left: Mapping[bytes, Series], bases: Sequence[int], unreadable: dict[bytes, UnreadableRow]
    ) -> dict[bytes, LastPoint] | None:
        """Return the newest points of series in rows of some hours, by TSUID, from scans of their metrics; None if
        these have too many rows. The newest unreadable rows go into `unreadable`."""
        if not bases:
            return {}
        found: dict[bytes, LastPoint] = {}
        broken: dict[bytes, UnreadableRow] = {}
        most = max(len(left) * len(bases) // SCAN_SHARE, ROWS)
        for metric in dict.fromkeys(metric for metric, _ in left.values()):
            start, stop = (metric + base.to_bytes(4, "big") for base in (min(bases), max(bases) + HOUR_S))
            async with aclosing(scan(self._store, self._table, start, stop, limit=ROWS)) as pages:
                async for page in pages:  # the oldest first
                    most -= len(page)
                    if most < 0:
                        return None
                    rows = {row.key: list(row.cells) for row in page if tsuid(self._layout, row.key) in left}
                    later: dict[bytes, UnreadableRow] = {}
                    found |= await trio.to_thread.run_sync(self._last_of_rows, rows, later)
                    broken |= later
        for name, row in broken.items():
            if name not in found or found[name].time_ms < row.base_s * 1000:
                unreadable.setdefault(name, row)
        return found

    def _store_unreadable(
        self, wanted: Sequence[Series], unreadable: Mapping[bytes, UnreadableRow], span: LookBack
    ) -> None:
        """Store which rows are unreadable, after all rows were read. Until then, and after a failed read, requests use
        the earlier result."""
        if len(self._unreadable) + len(unreadable) > self._max_unreadable:
            oldest_s = self._span(None).start_ms // 1000
            self._unreadable = {one: row for one, row in self._unreadable.items() if row.base_s >= oldest_s}
        for one in wanted:
            row, known = unreadable.get(one[0] + one[1]), self._unreadable.get(one)
            if row is not None and (known is not None or len(self._unreadable) < self._max_unreadable):
                self._unreadable[one] = row
            elif known is not None and not self._is_out_of_range(known, one, span):
                del self._unreadable[one]

    def _is_out_of_range(self, row: UnreadableRow, one: Series, span: LookBack) -> bool:
        """Return whether a known unreadable row was outside the range of this read, but inside that of an earlier
        one."""
        deepest = span._replace(hours=max(span.hours, int(self._cache.depth_h[self._cache.slot(*one)])))
        return deepest.start_ms <= row.base_s * 1000 < span.start_ms

    def _last_of_rows(
        self, rows: Mapping[bytes, list[Cell]], unreadable: dict[bytes, UnreadableRow]
    ) -> dict[bytes, LastPoint]:
        """Return the newest point of each series in rows, by TSUID. The newest unreadable rows go into `unreadable`."""
        found: dict[bytes, LastPoint] = {}
        for key in sorted(rows, reverse=True):  # the newest hour of a series first
            name = tsuid(self._layout, key)
            if name in found:
                continue
            base = int.from_bytes(key[self._layout.metric_end : self._layout.pairs_start], "big")
            try:
                last = last_of(merge(key, data_cells(rows[key]), RULES))
            except CorruptRow as exc:
                unreadable.setdefault(name, UnreadableRow(base, str(exc)))
                continue  # an older hour may be readable
            if last is not None:
                found[name] = LastPoint(base * 1000 + last.offset_ms, last.number)
        return found


def _with_held_hours(span: LookBack) -> LookBack:
    """Return a span that has all hours of points in memory only."""
    return span._replace(hours=max(span.hours, HELD_H))


def last_of(row: MergedRow) -> Point | None:
    """Return the last point of a row; None if it has none.

    >>> from tsd.codec.opentsdb.merge import StoredCell
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
