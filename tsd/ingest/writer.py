"""Writer: seals the open window, writes windows to the store, oldest first, and removes their journal segments.

A window has the points of one interval. Windows are written one after the other, so the later of two values of a point
is written last. A window may be dropped from memory. Its segment is read again then, like those of earlier runs.

The writer may hold open hours (`tsd.ingest.open_hours`). Their points leave their windows, and become a window of their
own when the hour is over, or earlier if a bound is reached. Segments are removed strictly in order, so a replay never
writes an older value over a newer one.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial

import numpy as np
import trio

from tsd.codec.points import POINT_BYTES, Columns
from tsd.errors import JOURNAL_DAMAGED, CorruptRow, StoreError, bare, lacks_space
from tsd.ingest.accepted import JOURNAL_FULL, JOURNAL_SLOW, AcceptedLines
from tsd.ingest.journal.journal import Segment
from tsd.ingest.open_hours import (
    Interval,
    OpenHour,
    OpenHours,
    has_hours_of,
    points_between,
    split,
)
from tsd.ingest.packed_points import PackedPoints, slices
from tsd.ingest.series import SeriesTable
from tsd.ingest.window_reader import FolderFails, WindowReader, as_store_error
from tsd.ingest.windows import (
    HourWindow,
    IntervalWindow,
    PendingSegment,
    StorePauses,
    Window,
    WindowMemory,
    WindowSettings,
    Written,
)
from tsd.lazy import LazyLogger
from tsd.store.retry import backoff
from tsd.store.scheduling import next_time
from tsd.tables.reading import ScanRange
from tsd.tables.writing import Hours, PointWriter

log = LazyLogger(__name__)

HELD_SHARE = 4  # points of open hours may use 1/4 of the memory for points
UNPACKED_SHARE = 16  # 1/16 of that is packed at once
UNPACKED_POINTS = 1 << 18  # at once: malloc reuses their memory, which the kernel would zero each time for more
LEAST_PACKED = 4096  # points: fewer would not get smaller
SMALL_SHARE = 16  # a window with 1/16 of the most points is small
AWAY_S = 2.0  # a store that takes nothing of a window for longer is away
LEFT_SHARE = 4  # a window that is left to the journal has 1/4 of the most points: it is read again as a whole
OPEN_BYTES = 2 << 20  # of open points while they are left to the journal; more are dropped, and read again


class Writer:
    """Seals windows and writes them."""

    def __init__(
        self,
        accepted: AcceptedLines,
        reader: WindowReader,
        points: PointWriter,
        settings: WindowSettings,
        *,
        now_s: Callable[[], int],
    ) -> None:
        """`reader` reads windows of the accepted lines. `now_s` is the wall clock."""
        self._open_window, self._journal, self._ledger, self._backpressure = accepted
        self._reader = reader
        self._points = points
        self._settings = settings
        self._max_points = settings.max_points
        self._now_s = now_s
        self._uptime_s = reader.uptime_s
        self._windows: deque[Window] = deque()
        self._left: list[Window] = []  # in the journal, as they could not be read or stored at the end
        self.memory = WindowMemory()  # of sealed windows
        self._interval = Interval(settings.hold_intervals * settings.interval_s, settings.interval_s)
        self._hours = OpenHours(self._interval)
        self._last_whole_s = -1  # base time of the last hour that was released whole
        self._packing_due = trio.Event()
        self._released_memory = 0  # bytes, of windows made of open hours, and of windows that gave points to them
        self._segments: deque[PendingSegment] = deque()  # all with points that are not stored, in order
        self.evicted = 0  # series, since the start
        self.early_releases = 0  # how often open hours were written before their end because a bound was reached
        self._open_since_s: int | None = None  # when the first point of the open window was accepted
        self._open_since = math.inf  # the same, by trio's clock
        self._sealed = 0  # windows, since the start
        self._last_open = 0  # number of the last of them that was the open window, and not an open hour
        self._written = 0
        self._backlog = 0  # the first windows, sealed before the end of an outage, or of an earlier run
        self._renamed = 0  # windows that were sealed when names last changed: those not written yet may have old names
        self._waiting = trio.Event()
        self._large = trio.Event()  # the open window is not small any more
        self._progress = trio.Event()
        self._finishing = False
        self._writing_metric = trio.Lock()
        self._pauses = StorePauses(lambda: points.cells)
        self.trouble: str | None = None  # error of the last write, None if it succeeded
        self.retries = 0

    @property
    def table(self) -> SeriesTable:
        """The series of its points."""
        return self._open_window.table

    @property
    def cells(self) -> int:
        """Cells put since the start."""
        return self._points.cells

    @property
    def waiting_points(self) -> int:
        """Points that are accepted and not stored."""
        windows = sum(window.points for window in (*self._left, *self._windows))
        return self._open_window.points + windows + self._hours.points

    @property
    def held_points(self) -> int:
        """Points of open hours."""
        return self._hours.points

    @property
    def windows(self) -> int:
        """Sealed windows that are not yet stored."""
        return len(self._windows)

    @property
    def next_window(self) -> Window | None:
        """The window that is written next, or is being written."""
        return self._windows[0] if self._windows else None

    @property
    def waiting_s(self) -> int:
        """Age of the oldest point that is due and not stored, or 0. Points of open hours are not due."""
        oldest_s = self._windows[0].since_s if self._windows else self._open_since_s
        return 0 if oldest_s is None else max(self._now_s() - oldest_s, 0)

    @property
    def is_behind(self) -> bool:
        """Whether the store is slow or fails, so that windows wait for it."""
        return self.trouble is not None or len(self._windows) > 1 or not self._backpressure.is_open

    @property
    def failure(self) -> str | None:
        """Error of the last write, or of the journal's disk; None if both work."""
        return self.trouble or self._journal.trouble

    def _leaves(self) -> bool:
        """Return whether new points are left to the journal: the store is away, or gets older ones of it."""
        return self._is_away() or self._gets_older()

    def _gets_older(self) -> bool:
        """Return whether the store gets points of the journal that are older than those of the open window."""
        reads = bool(self._windows) and self._windows[0].parts is None
        return reads and (len(self._windows) > 1 or self._written < self._backlog)

    def _is_away(self) -> bool:
        """Return whether the store fails, or has taken nothing of the window that is being written for AWAY_S."""
        return self.trouble is not None or self._pauses.length_s() > AWAY_S

    def adopt(self, segments: list[Segment]) -> None:
        """Queue the segments of an earlier run, before anything else, and count their damaged lines."""
        if damaged := self._journal.damaged:
            self._ledger.received += damaged
            self._ledger.refuse(JOURNAL_DAMAGED, damaged)
        # Series inserted by the replay must not look idle, or the next seal would free their numbers.
        self._open_window.table.mark_seen(np.empty(0, np.int32), self._uptime_s())
        together: list[Segment] = []
        lines = 0
        for segment in segments:
            self._ledger.received += segment.lines
            if together and lines + segment.lines > self._max_points:
                self._adopt(together, lines)
                together, lines = [], 0
            together.append(segment)
            lines += segment.lines
        if together:
            self._adopt(together, lines)
        self._backlog = self._sealed

    def _adopt(self, segments: list[Segment], lines: int) -> None:
        """Queue segments of an earlier run as one window."""
        since_s = self._now_s() if segments[0].found_s is None else segments[0].found_s
        self._enqueue(IntervalWindow([*map(self._pending, segments)], None, lines, self._uptime_s(), since_s))

    def _pending(self, segment: Segment) -> PendingSegment:
        self._segments.append(PendingSegment(segment))
        return self._segments[-1]

    def seal(self, *, hold: bool = True) -> None:
        """Seal the open window, if it has lines. Write open hours that are over, or unless `hold` all of them, with the
        points of this window."""
        now_s = self._now_s()
        self._release(self._hours.take(now_s))
        self._seal_window(now_s)
        if not hold:
            self._release(self._hours.take())

    def _seal_window(self, now_s: int) -> None:
        segment = self._journal.rotate()
        if segment is None:
            return
        points, complete = self._open_window.points, self._open_window.complete
        columns, summaries, now = self._open_window.take(), self._open_window.take_summaries(), self._uptime_s()
        self._open_window.table.mark_seen(columns.series, now)
        since_s = now_s if self._open_since_s is None else self._open_since_s
        pending = self._pending(segment)
        if self._may_hold(columns, complete=complete):
            due, held = self._split(columns, now_s, pending, now)
        else:
            self._release(self._hours.take())  # first: what is held is older
            due, held = columns, []
        points -= sum(len(part.series) for part in held)
        parts, summaries = ([due], summaries) if complete else (None, None)
        # While the store pauses, waiting windows keep what open hours hold of them, unpacked. The embedded store does
        # not pause: windows that wait while a large hour is written should not have the next hour released.
        kept = points if math.isinf(self._settings.hold_intervals) else len(columns.series)
        memory = kept * POINT_BYTES if held else 0
        self._enqueue(IntervalWindow([pending], parts, points, now, since_s, memory, summaries=summaries, held=held))
        self._last_open = self._sealed
        self._open_since_s, self._open_since = None, math.inf
        self._evict(now)
        self.regulate()

    def _evict(self, now: int) -> None:
        """Evict idle series. The open window is empty, so only queued windows and open hours have numbers of series."""
        sealed_s = [window.sealed_s for window in self._windows]
        if self._hours.oldest_s is not None:
            sealed_s.append(self._hours.oldest_s)
        self.evicted += self._open_window.table.evict(
            max(now - self._settings.series_ttl_s, 0), held_since_s=min(sealed_s)
        )

    def _may_hold(self, columns: Columns, *, complete: bool) -> bool:
        """Return whether points of a window may be held now."""
        if not self._settings.hold_intervals:
            return False
        table = self._open_window.table
        without_key = table.unresolved.keys() | table.refused
        if not complete or (without_key and not without_key.isdisjoint(np.unique(columns.series).tolist())):
            return False
        reason = ""
        if len(columns.series) >= self._max_points:
            reason = "rate"
        elif self.held_memory + len(columns.series) * POINT_BYTES > self._settings.memory_limit // HELD_SHARE:
            reason = "memory"
        elif self._journal.size > self._journal.max_bytes // 2:
            reason = "journal"
        elif (self.trouble or self._gets_older()) and not math.isinf(self._settings.hold_intervals):
            reason = "store"  # what is held cannot be dropped. A pause is no reason: HELD_SHARE bounds its memory
        if reason and self._hours.points:
            self.early_releases += 1
            log.info("open_hours.released_early", reason=reason, points=self._hours.points)
        return not reason

    def _split(
        self, columns: Columns, now_s: int, segment: PendingSegment, sealed_s: int
    ) -> tuple[Columns, list[Columns]]:
        """Hold the points of open hours. Return the points that are due, and those that are held."""
        excluded = [self._open_window.table.of_metric(metric, columns.series) for metric in self._settings.due_metrics]
        found = split(columns, now_s, [mask for mask in excluded if mask.any()])
        self._hours.add(found, segment, now_s, sealed_s, min(self._open_since, trio.current_time()))
        if any(map(self._is_large, self._hours)):
            self._packing_due.set()
        return found.due, list(found.held.values())

    def _is_large(self, hour: OpenHour) -> bool:
        """Return whether an hour has enough points to pack."""
        most = self._settings.memory_limit // HELD_SHARE // UNPACKED_SHARE // POINT_BYTES
        return hour.unpacked >= max(most, LEAST_PACKED)

    async def pack_hours(self) -> None:
        """Pack points of open hours, until cancelled."""
        while True:
            await self._packing_due.wait()
            self._packing_due = trio.Event()
            for hour in list(self._hours):
                if hour in self._hours and self._is_large(hour):  # it may have been released meanwhile
                    await hour.pack(self._open_window.table)

    def _release(self, hours: Sequence[OpenHour]) -> None:
        """Queue the points of open hours."""
        for hour in hours:
            window = hour.window(self._now_s(), self._last_whole_s)
            self._last_whole_s = hour.base_s if window.is_whole else self._last_whole_s
            self._enqueue(window, counted=True)

    @property
    def held_memory(self) -> int:
        """Bytes of points that are held, or were held and wait for the store."""
        return self._hours.memory + self._released_memory

    def _enqueue(self, window: Window, *, counted: bool = False) -> None:
        """Queue a window. Unless `counted`, it is a further user of its segments."""
        if not counted:
            for segment in window.segments:
                segment.users += 1
        self._windows.append(window)
        self.memory.add(window)
        self._released_memory += window.held_memory
        self._sealed += 1
        self._waiting.set()

    def regulate(self) -> None:
        """Keep memory and journal within their limits: seal a large window, drop waiting windows from memory, and stop
        accepting lines while the journal is full or too slow."""
        if self._open_since_s is None and self._open_window.points:
            self._open_since_s, self._open_since = self._now_s(), trio.current_time()
        if self._open_window.points > self._max_points // SMALL_SHARE:
            self._large.set()
        part, journal = self._settings.memory_limit // 4, self._journal
        is_calm = self.trouble is None and not self._windows and self._backpressure.is_open
        is_calm = is_calm and self._open_window.points < self._max_points and not journal.is_full
        if is_calm and max(self._open_window.size, journal.pending) <= part:  # as after most blocks of lines
            return
        if self._is_away():
            self._backlog = self._sealed
        leaves = self._leaves()
        most_points = self._max_points // LEFT_SHARE if leaves else self._max_points
        if self._open_window.points >= most_points or self._open_window.size > part:  # of long lines
            self.seal()
            return
        if self._hours.points and journal.is_full:  # it may have been made smaller
            self.seal(hold=False)
            return
        if leaves and not self._settings.hold_intervals and self._open_window.size > OPEN_BYTES:
            self._open_window.table.mark_seen(self._open_window.drop().series, self._uptime_s())
        if math.isinf(self._settings.hold_intervals):
            leaves = self._gets_older()  # queries read an embedded store that fails, and the points that wait for it
        most = 0 if leaves else self._settings.memory_limit // 2 - self._open_window.size - self.held_memory
        self.memory.shrink(most, but=self.next_window)
        self._backpressure.set(JOURNAL_FULL, journal.is_full)
        self._backpressure.set(JOURNAL_SLOW, journal.pending > part)

    async def watch_journal(self) -> None:
        """Regulate after each write of the journal while no lines are accepted, and after each failed one. After that
        `flush` may give up. Other writes wake nothing here: there are some for each block of lines."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_backpressure)
            nursery.start_soon(self._watch_failures)

    async def _watch_backpressure(self) -> None:
        while True:
            await self._backpressure.wait_held()
            self.regulate()  # the journal may have advanced before this task ran
            if not self._backpressure.is_open:
                await self._journal.wait_progress()

    async def _watch_failures(self) -> None:
        while True:
            await self._journal.wait_failure()
            self.regulate()
            self._note_progress()

    async def seal_windows(self) -> None:
        """Seal a window at every interval, a small one of open hours seldom. Runs until cancelled."""
        interval_s = self._settings.interval_s
        while True:
            self._large = trio.Event()
            now = trio.current_time()
            with trio.move_on_at(min(next_time(now + self._rest_s(), interval_s), self._hours.due)) as wait:
                await self._large.wait()
            if not wait.cancelled_caught:
                await trio.sleep_until(min(next_time(trio.current_time(), interval_s), self._hours.due))
            due = min(self._open_due(), self._hours.due)
            if due <= trio.current_time() or not self._is_small_window():
                self.seal()
            self._release(self._hours.take_due())  # with the window that has ended

    def _open_due(self) -> float:
        """Return when points of the open window are due, by trio's clock; without any those that come now."""
        return self._interval.end(min(self._open_since, trio.current_time()))

    def _rest_s(self) -> float:
        """Return for how long nothing can be due, unless the open window becomes large: to wake an idle daemon takes
        milliseconds of CPU. Open hours may be due earlier."""
        settings, now_s = self._settings, self._now_s()
        age_s = 0 if self._open_since_s is None else now_s - self._open_since_s
        left_s = self._open_due() - trio.current_time() - settings.interval_s / 2
        return max(min(settings.small_s - abs(age_s), self._hours.ends_s() - now_s, left_s), 0)

    def _is_small_window(self) -> bool:
        """Return whether the open window may stay open: it is young, and small. Each takes a segment of the journal."""
        now_s, most = self._now_s(), self._max_points // SMALL_SHARE
        if not self._settings.hold_intervals or self._hours.is_over(now_s) or self._open_window.points > most:
            return False
        return self._open_since_s is not None and 0 <= now_s - self._open_since_s < self._settings.small_s

    async def write_windows(self) -> None:
        """Write sealed windows until `finish` is called and no window is left, or the store has no space for those that
        the journal has."""
        pauses = backoff(*self._settings.retry_s, sys.maxsize)
        while self._windows or not self._finishing:
            window = self.next_window
            if window is None:
                self._waiting = trio.Event()
                await self._waiting.wait()
                continue
            self._pauses.begin_write()
            try:
                written = await self._write(window)
            except (StoreError, CorruptRow) as error:
                if self._finishing and isinstance(error, FolderFails):
                    self._leave(error)
                    continue
                self._note_trouble(error)
                if self._finishing and lacks_space(error) and not self._journal.unsynced:
                    self._leave_all()
                    return
                self.regulate()
                await trio.sleep(next(pauses))
                continue
            pauses = backoff(*self._settings.retry_s, sys.maxsize)
            self._pauses.end_write()
            if self.trouble is not None:
                log.info("store.available", windows_waiting=len(self._windows))
            self.trouble = None
            self.memory.remove(self._windows.popleft())
            self._count(window, written)  # in one step with the removal, so that the ledger always balances
            self._written += 1
            self._note_progress()
            self.regulate()

    def _leave(self, error: FolderFails) -> None:
        """Leave the first window to the next start, which replays its segments before those of later windows."""
        self._left.append(window := self._windows.popleft())
        self.memory.remove(window)
        paths = [str(pending.segment.path) for pending in window.segments]
        log.error("journal.window_left", points=window.points, paths=paths, error=str(error))

    def _leave_all(self) -> None:
        """Leave all windows to the next start: the store has no space for them, and the journal has them on disk."""
        self._left += self._windows
        self._windows.clear()

    def _note_trouble(self, error: StoreError | CorruptRow) -> None:
        text = str(bare(error))
        self.retries += 1
        if self.trouble is None:
            log.warning("store.unavailable", error=text)
        self.trouble = text
        self._note_progress()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    def expire_names(self) -> None:
        """Seal all points, because names may have changed. Until these are stored, reads by name wait for them."""
        self.seal(hold=False)
        self._renamed = self._sealed

    async def flush(self, *, patient: bool = True) -> bool:
        """Write all points accepted so far, those of open hours too. Return whether they are stored, and no replay
        brings them back once they are deleted. Unless `patient`, give up when the store or the journal's disk fails."""
        self.seal(hold=False)
        return await self._wait_written(self._sealed, patient=patient) and await self._journal.sync_removals()

    async def flush_due(self) -> bool:
        """Write all points accepted so far but those held until the end of their hour, and return whether they are
        stored. Give up when the store or the journal's disk fails."""
        self.seal(hold=math.isinf(self._settings.hold_intervals))
        return await self._wait_written(self._sealed, patient=False)

    async def _wait_written(self, wanted: int, *, patient: bool) -> bool:
        """Wait until `wanted` windows are stored and return whether they are."""
        while self._written < wanted and (patient or (self.trouble is None and self._journal.trouble is None)):
            await self._progress.wait()
        return self._written >= wanted

    async def write_metric(self, metric: bytes) -> bool:
        """Write all points of a metric accepted so far and return whether they are stored. Points of open hours stay in
        memory, but their series and newest points are known to the tables after that."""
        waiting = self._open_window.has_metric(metric)
        if not (waiting or any(window.may_have(metric, self._open_window.table) for window in self._windows)):
            return await self._wait_written(self._renamed, patient=False)
        sealed = self._sealed
        async with self._writing_metric:  # of many concurrent callers, one at a time may seal a window
            if waiting and self._last_open <= sealed:
                self.seal()
            return await self._wait_written(self._last_open if waiting else sealed, patient=False)

    def unstored(self, metric: bytes | None, span: ScanRange | None = None) -> list[Columns | PackedPoints] | None:
        """Return all points that are not stored, those of one hour in order of arrival; with a `span` without parts
        that have no points of its hours. None: some are only in the journal, or may have new names, or a metric has
        rollups or histograms."""
        renamed = self._written < self._renamed and self.trouble is None  # else the old names are better than none
        opened = self._open_window
        if not opened.complete or (metric is not None and (renamed or opened.has_summaries(metric))):
            return None
        parts: list[Columns | PackedPoints] = []
        for window in self._windows:
            if window.parts is None:
                return None
            if metric is not None and window.summaries is not None and metric in window.summaries.metrics:
                return None
            if isinstance(window, HourWindow):
                parts += [part for part in window.packed if _is_within(part.base_s, span)]
            parts += [part for part in window.parts if has_hours_of(part, span)]
        for hour in self._hours:
            if _is_within(hour.base_s, span):
                parts += [*hour.packed, *hour.parts]
        return parts + opened.peek(span)

    def finish(self) -> None:
        """Seal the last window, write open hours, and let `write_windows` return once all is stored."""
        self.seal(hold=False)
        self._finishing = True
        self._journal.end_waits()
        self._waiting.set()

    def _count(self, window: Window, written: Written) -> None:
        self._ledger.stored += written.stored
        for refused in written.refused:
            self._ledger.refuse(refused.error.reason)
        if damaged := window.points - written.stored - len(written.refused):
            self._ledger.refuse(JOURNAL_DAMAGED, damaged)

    async def _write(self, window: Window) -> Written:
        """Write a window's points to the store and remove segments that are not needed any more. May be repeated."""
        if window.written is None:
            window.written = await self._put(window)
            self._released_memory -= window.held_memory
            for segment in window.segments:
                segment.release()
        with suppress(FolderFails) if self._finishing else nullcontext(), as_store_error():  # `Journal.run` tries again
            while self._segments and not self._segments[0].users:
                if not await self._journal.remove(self._segments[0].segment):
                    break
                self._segments.popleft()
        return window.written

    async def _put(self, window: Window) -> Written:
        """Put a window's points into the store. May be repeated."""
        if isinstance(window, HourWindow) and window.is_packed:
            await self._put_packed(window)
            return Written(window.points, [])
        if isinstance(window, IntervalWindow):
            for part in window.held:
                await self._points.record(part, self._open_window.table)
        columns, summaries, refused = await self._reader.read(window)
        lines = len(columns.series) + (summaries.lines if summaries else 0)
        if lines:
            await self._points.write(columns, self._open_window.table, hours=self._hours_of(window))
            if summaries and self._points.summaries:
                await self._points.summaries.write(summaries)
            await self._points.sync()
        if refused:
            await self._reader.keep_refused(window, refused)
        return Written(lines, refused)

    def _hours_of(self, window: Window) -> Hours:
        """Return what is known of the window's hours. At the end of this run they count as over."""
        if not isinstance(window, HourWindow):
            return Hours.OPEN
        if window.is_whole or self._finishing:
            return Hours.WHOLE
        return Hours.OVER if window.is_over else Hours.OPEN

    async def _put_packed(self, window: HourWindow) -> None:
        """Put the points of an hour, some series at a time: few of them are unpacked at once, and those that are stored
        leave memory. When it is repeated, it goes on after them."""
        table, most = self._open_window.table, min(self._max_points, UNPACKED_POINTS)
        while True:
            _, last = next(slices(window.packed, most))
            find = partial(points_between, window.packed, window.parts, table, window.stored_to, last)
            columns = await trio.to_thread.run_sync(find)
            await self._points.write(columns, table, hours=self._hours_of(window))
            window.set_stored(last)
            if last is None:
                break
        await self._points.sync()


def _is_within(base_s: int, span: ScanRange | None) -> bool:
    """Return whether an hour is within a span; None: any is."""
    return span is None or span.start_s <= base_s < span.stop_s
