"""Writer: seals open rows into windows, writes windows to the store, oldest first, and removes their journal segments.

A window has the points of one interval. Windows are written one after the other, so that of two values of one point the
later one is written last. A waiting window may be dropped from memory; its segment is then read again to write it. The
daemon replays the journal of an earlier run in the same way.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import structlog
import trio

from tsd.codec.points import Columns, joined_columns
from tsd.errors import JOURNAL_DAMAGED, CorruptRow, StoreError
from tsd.ingest.intake import JOURNAL_FULL, JOURNAL_SLOW, Backpressure, LineCounts, absorb_whole
from tsd.ingest.journal.disk import unused, write_new
from tsd.ingest.journal.journal import Journal, Segment
from tsd.ingest.journal.segment import Block, Damage
from tsd.ingest.limits import RefusedLine
from tsd.ingest.lines import POINT_BYTES
from tsd.ingest.open_rows import OpenRows
from tsd.ingest.rollups import Summaries
from tsd.tables.open_points import OpenPoints
from tsd.tables.writing import PointWriter, SeriesResolver, SeriesText, SummaryBatch

log = structlog.get_logger(__name__)


class Contents(NamedTuple):
    """Points of a window to write, and its refused lines."""

    columns: Columns
    summaries: SummaryBatch | None
    refused: list[RefusedLine]


class Written(NamedTuple):
    """Result for the lines of a window. Lines in neither count were damaged on disk."""

    stored: int
    refused: list[RefusedLine]


class Window:
    """The points of one interval."""

    def __init__(
        self,
        segment: Segment,
        columns: Columns | None,
        points: int,
        sealed_s: int,
        summaries: SummaryBatch | None,
        since_s: int,
    ) -> None:
        self.segment = segment
        self.columns = columns  # None: read the segment
        self.summaries = summaries
        self.points = points
        self.sealed_s = sealed_s  # by the monotonic clock
        self.since_s = since_s  # when its first point was accepted, by the wall clock

    @property
    def size(self) -> int:
        """Bytes of memory."""
        if self.columns is None:
            return 0
        return self.points * POINT_BYTES + (self.summaries.size if self.summaries else 0)

    def drop(self) -> None:
        """Drop the points; the segment still has them."""
        self.columns = self.summaries = None


class WindowMemory:
    """Memory of waiting windows. The sum is updated incrementally, because it is needed for every block."""

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


MAX_POINTS = 2_000_000  # of a window: limits the memory of sorting and encoding
MAX_READ = 200_000  # points that are searched for one query; if more wait, they are written before it reads
AWAY_S = 5.0  # a write that takes longer counts as a failing store
RETRY_S = 0.2, 2.0  # the first and the longest pause after an error of the store


class Writer:
    """Seals windows and writes them."""

    def __init__(
        self,
        rows: OpenRows,
        resolver: SeriesResolver,
        journal: Journal,
        points: PointWriter,
        ledger: LineCounts,
        backpressure: Backpressure,
        *,
        summaries: Summaries,
        interval_s: float,
        memory_limit: int,
        series_ttl_s: int,
        refused_folder: Path,
        now_s: Callable[[], int],
        uptime_s: Callable[[], int] = lambda: int(trio.current_time()),
        retry_s: tuple[float, float] = RETRY_S,
    ) -> None:
        """`now_s` is the wall clock. `uptime_s` never goes back: it separates series that may be evicted from those
        that waiting windows hold. `retry_s` is the first and the longest pause after an error of the store."""
        self._rows = rows
        self._resolver = resolver
        self._journal = journal
        self._points = points
        self._ledger = ledger
        self._backpressure = backpressure
        self._summaries = summaries
        self._interval_s = interval_s
        self._memory_limit = memory_limit
        self._max_points = min(MAX_POINTS, memory_limit // 8 // POINT_BYTES)
        self._series_ttl_s = series_ttl_s
        self._refused_folder = refused_folder
        self._now_s = now_s
        self._uptime_s = uptime_s
        self._first_retry_s, self._last_retry_s = retry_s
        self._windows: deque[Window] = deque()
        self._memory = WindowMemory()
        self._open_since_s: int | None = None  # when the first point of the open window was accepted
        self._sealed = 0  # windows, since the start
        self._written = 0
        self._waiting = trio.Event()
        self._progress = trio.Event()
        self._finishing = False
        self._writing_metric = trio.Lock()
        self._writing_since_s = math.inf  # start of the write of a window, by trio's clock
        self.trouble: str | None = None  # error of the last write, None if it succeeded
        self.retries = 0

    @property
    def cells(self) -> int:
        """Cells put since the start."""
        return self._points.cells

    @property
    def waiting_points(self) -> int:
        """Points that are accepted and not stored."""
        return self._rows.points + sum(window.points for window in self._windows)

    @property
    def windows(self) -> int:
        """Sealed windows that are not yet stored."""
        return len(self._windows)

    @property
    def next_window(self) -> Window | None:
        """The window that is written next, or is being written."""
        return self._windows[0] if self._windows else None

    @property
    def window_memory(self) -> int:
        """Bytes of points in sealed windows."""
        return self._memory.size

    @property
    def waiting_s(self) -> int:
        """Age of the oldest point that is accepted and not stored, or 0."""
        oldest_s = self._windows[0].since_s if self._windows else self._open_since_s
        return 0 if oldest_s is None else max(self._now_s() - oldest_s, 0)

    @property
    def is_behind(self) -> bool:
        """Whether the store is slow or fails, so that windows wait for it."""
        return self.trouble is not None or len(self._windows) > 1 or not self._backpressure.is_open

    @property
    def _store_is_away(self) -> bool:
        """Whether the store fails, or takes long: then waiting windows are only in the journal."""
        return self.trouble is not None or trio.current_time() - self._writing_since_s > AWAY_S

    def adopt(self, segments: list[Segment]) -> None:
        """Queue the segments of an earlier run, before anything else, and count their damaged lines."""
        if damaged := self._journal.damaged:
            self._ledger.received += damaged
            self._ledger.refuse(JOURNAL_DAMAGED, damaged)
        # Series inserted by the replay must not look idle, or the next seal would free their numbers.
        self._rows.table.mark_seen(np.empty(0, np.int32), self._uptime_s())
        for segment in segments:
            self._ledger.received += segment.lines
            since_s = self._now_s() if segment.found_s is None else segment.found_s
            self._enqueue(Window(segment, None, segment.lines, self._uptime_s(), None, since_s))

    def seal(self) -> None:
        """Seal the open window, if it has lines."""
        segment = self._journal.rotate()
        if segment is None:
            return
        points, complete = self._rows.points, self._rows.complete
        columns, summaries = self._rows.take(), self._rows.take_summaries()
        now = self._uptime_s()
        self._rows.table.mark_seen(columns.series, now)
        since_s = self._now_s() if self._open_since_s is None else self._open_since_s
        self._enqueue(Window(segment, columns if complete else None, points, now, summaries, since_s))
        self._open_since_s = None
        # Open rows are empty, so only queued windows have numbers of series.
        self._rows.table.evict(max(now - self._series_ttl_s, 0), held_since_s=self._windows[0].sealed_s)
        self.regulate()

    def _enqueue(self, window: Window) -> None:
        self._windows.append(window)
        self._memory.add(window)
        self._sealed += 1
        self._waiting.set()

    def regulate(self) -> None:
        """Keep memory and journal within their limits: seal a large window, drop waiting windows from memory, and stop
        accepting lines while the journal is full or too slow."""
        if self._open_since_s is None and self._rows.points:
            self._open_since_s = self._now_s()
        if self._rows.points >= self._max_points:
            self.seal()
            return
        most = 0 if self._store_is_away else self._memory_limit // 2 - self._rows.size
        self._memory.shrink(most, but=self.next_window)
        self._hold(self._journal.size >= self._journal.max_bytes, JOURNAL_FULL)
        self._hold(self._journal.pending > self._memory_limit // 4, JOURNAL_SLOW)

    async def watch_journal(self) -> None:
        """Regulate after each successful or failed write of the journal. After a failed one, `flush` may give up."""
        while True:
            await self._journal.progressed()
            self.regulate()
            if self._journal.trouble is not None:
                self._note_progress()

    def _hold(self, condition: bool, reason: str) -> None:
        if condition:
            self._backpressure.hold(reason)
        else:
            self._backpressure.release(reason)

    async def seal_windows(self) -> None:
        """Seal a window at every interval, until cancelled."""
        while True:
            await trio.sleep(self._interval_s)
            self.seal()

    async def write_windows(self) -> None:
        """Write sealed windows until `finish` is called and no window is left."""
        pause = self._first_retry_s
        while self._windows or not self._finishing:
            window = self.next_window
            if window is None:
                self._waiting = trio.Event()
                await self._waiting.wait()
                continue
            self._writing_since_s = trio.current_time()
            try:
                written = await self._write(window)
            except (StoreError, CorruptRow) as error:
                self._note_trouble(error)
                self.regulate()
                await trio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311 - jitter
                pause = min(2 * pause, self._last_retry_s)
                continue
            pause, self._writing_since_s = self._first_retry_s, math.inf
            if self.trouble is not None:
                log.info("store.available", windows_waiting=len(self._windows))
                self.trouble = None
            self._memory.remove(self._windows.popleft())
            self._count(window, written)  # in one step with the removal, so that the ledger always balances
            self._written += 1
            self._note_progress()
            self.regulate()

    def _note_trouble(self, error: StoreError | CorruptRow) -> None:
        error.with_traceback(None)  # the traceback's frames hold the error and a window
        self.retries += 1
        if self.trouble is None:
            log.warning("store.unavailable", error=str(error))
        self.trouble = str(error)
        self._note_progress()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def flush(self, *, patient: bool = True) -> bool:
        """Write all points accepted so far and return whether they are stored. Unless `patient`, give up when the store
        or the journal's disk fails."""
        self.seal()
        return await self._wait_written(self._sealed, patient=patient)

    async def _wait_written(self, wanted: int, *, patient: bool) -> bool:
        """Wait until `wanted` windows are stored and return whether they are."""
        while self._written < wanted and (patient or (self.trouble is None and self._journal.trouble is None)):
            await self._progress.wait()
        return self._written >= wanted

    async def write_metric(self, metric: bytes) -> bool:
        """Write all points of a metric accepted so far, before a query reads them, and return whether they are stored.
        Of many concurrent callers, one at a time may seal a window."""
        waiting = self._rows.has_metric(metric)
        if not waiting and not any(self._may_hold(window, metric) for window in self._windows):
            return True
        wanted = self._sealed + waiting
        async with self._writing_metric:
            if self._sealed < wanted:
                self.seal()
            return await self._wait_written(min(wanted, self._sealed), patient=False)

    def open_points(self, metric: bytes) -> OpenPoints | None:
        """Return the points of a metric that are not stored, see `OpenPointSource`."""
        rows, table, windows = self._rows, self._rows.table, self._windows
        if self.waiting_points > MAX_READ or not rows.complete or rows.has_summaries(metric):
            return None
        parts: list[Columns] = []
        for window in windows:
            if window.columns is None or (window.summaries is not None and metric in window.summaries.metrics):
                return None
            parts.append(window.columns)
        found = [part.at(table.of_metric(metric, part.series)) for part in (*parts, *rows.peek())]
        columns = joined_columns(found)
        if not len(columns.series):
            return OpenPoints(columns, table.keys(columns.series))
        numbers, places = np.unique(columns.series, return_inverse=True)
        if (table.unresolved or table.refused) and not (table.unresolved.keys() | table.refused).isdisjoint(
            numbers.tolist()
        ):
            return None
        return OpenPoints(columns._replace(series=places.astype(np.int32)), table.keys(numbers))

    def _may_hold(self, window: Window, metric: bytes) -> bool:
        if window.columns is None or (window.summaries is not None and metric in window.summaries.metrics):
            return True
        return self._rows.table.has_metric(metric, window.columns.series)

    def finish(self) -> None:
        """Seal the last window, and let `write_windows` return once it is stored."""
        self.seal()
        self._finishing = True
        self._waiting.set()

    def _count(self, window: Window, written: Written) -> None:
        self._ledger.stored += written.stored
        for _, error in written.refused:
            self._ledger.refuse(error.reason)
        if damaged := window.points - written.stored - len(written.refused):
            self._ledger.refuse(JOURNAL_DAMAGED, damaged)

    async def _write(self, window: Window) -> Written:
        """Write a window's points to the store and remove its segment. If a step fails, the caller repeats all of
        them."""
        columns, summaries, refused = await self._read_window(window)
        lines = len(columns.series) + (summaries.lines if summaries else 0)
        await self._points.write(columns, self._rows.table)
        if summaries and self._points.summaries:
            await self._points.summaries.write(summaries)
        await self._points.sync()
        if refused:
            await self._keep_refused(window, refused)
        with _as_store_error():
            await self._journal.remove(window.segment)
        return Written(lines, refused)

    async def _read_window(self, window: Window) -> Contents:
        """Return a window's points, whose series all have keys, and the lines that are refused now."""
        table = self._rows.table
        invalidations = table.invalidations
        if window.columns is not None:
            contents = Contents(window.columns, window.summaries, [])
        else:
            contents = await self._read_again(window)
        while not await self._resolve(contents.columns):  # the lines of refused series are rejected when read again
            contents = await self._read_again(window)
        if table.invalidations != invalidations:
            columns = contents.columns
            contents = contents._replace(columns=columns._replace(series=table.merge_numbers(columns.series)))
        return contents

    async def _resolve(self, columns: Columns) -> bool:
        """Resolve series that were inserted without keys. Return False if any of them is refused."""
        table = self._rows.table
        if not (table.unresolved or table.refused):
            return True
        present = set(np.unique(columns.series).tolist())
        numbers: dict[SeriesText, list[int]] = {}
        for number in present & table.unresolved.keys():
            numbers.setdefault(table.unresolved[number], []).append(number)
        keys, refused = await self._resolver.resolve(list(numbers))
        for at, (text, key) in enumerate(zip(list(numbers), keys, strict=True)):
            for number in numbers[text]:
                if at in refused:
                    table.refuse(number)
                else:
                    table.set_key(number, key)
        return not table.refused & present

    async def _read_again(self, window: Window) -> Contents:
        """Return a window's points from its segment, and the lines that are refused now."""
        rows = self._rows.new_rows()
        refused: list[RefusedLine] = []
        await self._journal.wait_synced(window.segment.position)  # until then it is incomplete
        pieces = window.segment.pieces()
        damages: list[Damage] = []  # found only now: the segment was intact when it was written or found
        while (piece := await _next_of(pieces, window.segment.path)) is not None:
            if isinstance(piece, Damage):
                damages.append(piece)
                continue
            absorbed = await absorb_whole(rows, self._resolver, piece.text, self._summaries)
            if absorbed.rejects:
                lines = piece.text.split(b"\n")
                refused += [RefusedLine(lines[at], error) for at, error in absorbed.rejects]
        if damages:
            with _as_store_error():
                await trio.to_thread.run_sync(self._journal.quarantine, window.segment, damages)
        columns = rows.take()
        rows.table.mark_seen(columns.series, self._uptime_s())
        return Contents(columns, rows.take_summaries(), refused)

    async def _keep_refused(self, window: Window, refused: list[RefusedLine]) -> None:
        """Write acknowledged lines that cannot be stored to a file, and log an error."""
        text = b"".join(b"# %s\n%s\n" % (str(error).encode(), line) for line, error in refused)

        def write() -> Path:
            self._refused_folder.mkdir(parents=True, exist_ok=True)
            path = unused(self._refused_folder / f"{window.segment.path.stem}.lines")
            write_new(self._journal.disk, path, [text])
            return path

        with _as_store_error():
            path = await trio.to_thread.run_sync(write)
        first = refused[0].error
        log.error("journal.lines_refused", lines=len(refused), reason=first.reason, error=str(first), path=str(path))


async def _next_of(pieces: Iterator[Block | Damage], path: Path) -> Block | Damage | None:
    with _as_store_error():
        try:
            return await trio.to_thread.run_sync(next, pieces, None)
        except FileNotFoundError:
            log.error("journal.segment_missing", path=str(path))
            return None


@contextmanager
def _as_store_error() -> Iterator[None]:
    """Raise a StoreError for an OSError of the state folder, such as a full disk, so that the window is retried."""
    try:
        yield
    except OSError as exc:
        raise StoreError(f"the state folder cannot be used: {exc}") from exc
