"""Windows of open rows → cells in the store, oldest first; then their journal segments go.

Windows are written one after the other, so that of two values of one point the later one is written later. A window
whose points do not fit in memory while it waits is read again from its segment when its turn comes: that is also how
the daemon takes up what an earlier run left.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import structlog
import trio

from tsd.codec.columns import Columns, Int32
from tsd.errors import JOURNAL_DAMAGED, BadLine, CorruptRow, StoreError
from tsd.ingest.cells import encode, series_slices, sorted_parts
from tsd.ingest.disk import unused, write_new
from tsd.ingest.intake import Gate, absorb_whole
from tsd.ingest.journal import Journal, Segment
from tsd.ingest.ledger import Ledger
from tsd.ingest.names import SeriesNames
from tsd.ingest.putlines import POINT_BYTES
from tsd.ingest.rows import OpenRows
from tsd.ingest.segment import Block, Damage
from tsd.ingest.series import SeriesText
from tsd.ingest.source import Refusal
from tsd.ingest.summaries import Summaries
from tsd.ingest.summary_cells import SummaryCells
from tsd.ingest.window import Contents, Held, Window, Written
from tsd.store import Put, Store
from tsd.store.together import together

log = structlog.get_logger(__name__)

MOST_POINTS = 2_000_000  # of a window: bounds what sorting and encoding take
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 5.0
NOTED_CELLS = 2000  # told of in one go
SIDE_BY_SIDE = 3  # slices of a window that are under way


class Writer:
    """Seals windows and writes them."""

    def __init__(
        self,
        rows: OpenRows,
        names: SeriesNames,
        journal: Journal,
        store: Store,
        ledger: Ledger,
        gate: Gate,
        *,
        table: str,
        summaries: Summaries,
        interval_s: float,
        memory_limit: int,
        series_idle_s: int,
        join: bool,
        refused_folder: Path,
        now_s: Callable[[], int],
        uptime_s: Callable[[], int] = lambda: int(trio.current_time()),
        note: Callable[[Sequence[Put]], None] = lambda _: None,
        on_points: Callable[[Columns], Awaitable[None]] | None = None,
    ) -> None:
        """`note` is told of the cells that were put, `on_points` of their points, sorted by series and time, a part of
        a window at a time: before the window is done with, and again where that fails with StoreError. `now_s` is the
        wall clock; `uptime_s` never goes back: by it series that may be forgotten are told from those that waiting
        windows hold."""
        self._rows = rows
        self._names = names
        self._journal = journal
        self._store = store
        self._ledger = ledger
        self._gate = gate
        self._table = table
        self._summaries = summaries
        self._interval_s = interval_s
        self._memory_limit = memory_limit
        self._most_points = min(MOST_POINTS, memory_limit // 8 // POINT_BYTES)
        self._series_idle_s = series_idle_s
        self._join = join
        self._refused_folder = refused_folder
        self._now_s = now_s
        self._uptime_s = uptime_s
        self._note = note
        self._on_points = on_points
        self._windows: deque[Window] = deque()
        self._held = Held()
        self._open_since_s: int | None = None  # when the first point of the open window came
        self._sealed = 0  # windows, since the start
        self._written = 0
        self._waiting = trio.Event()
        self._progress = trio.Event()
        self._finishing = False
        self._showing = trio.Lock()
        self._telling = trio.Lock()  # those who are told await in the middle, and know of one slice at a time
        self.trouble: str | None = None  # why the store does not take cells, while it does not
        self.cells = 0
        self.retries = 0

    @property
    def waiting_points(self) -> int:
        """Points that are accepted and not stored."""
        return self._rows.points + sum(window.points for window in self._windows)

    @property
    def windows(self) -> int:
        """Sealed windows that are not yet stored."""
        return len(self._windows)

    @property
    def waiting_s(self) -> int:
        """For how long the oldest point waits that is accepted and not stored; 0 where there is none."""
        oldest_s = self._windows[0].since_s if self._windows else self._open_since_s
        return 0 if oldest_s is None else max(self._now_s() - oldest_s, 0)

    @property
    def behind(self) -> bool:
        """Whether the store is slow, or in trouble, or points wait for it."""
        return self.trouble is not None or len(self._windows) > 1 or bool(self._gate.held)

    def adopt(self, segments: list[Segment]) -> None:
        """Write what an earlier run left, before anything else. What of it is damaged is in the account."""
        if damaged := self._journal.damaged:
            self._ledger.received += damaged
            self._ledger.refuse(JOURNAL_DAMAGED, damaged)
        # Series that are entered while it is read must not seem idle: the next seal would free their numbers.
        self._rows.table.touch(np.empty(0, np.int32), self._uptime_s())
        for segment in segments:
            self._ledger.received += segment.lines
            since_s = self._now_s() if segment.found_s is None else segment.found_s
            self._enqueue(Window(segment, None, segment.lines, self._uptime_s(), SummaryCells(), since_s))

    def seal(self) -> None:
        """End the open window."""
        segment = self._journal.rotate()
        if segment is None:
            return
        points, complete = self._rows.points, self._rows.complete
        columns, summaries = self._rows.take(), self._rows.take_summaries()
        now = self._uptime_s()
        self._rows.table.touch(columns.series, now)
        since_s = self._now_s() if self._open_since_s is None else self._open_since_s
        self._enqueue(Window(segment, columns if complete else None, points, now, summaries, since_s))
        self._open_since_s = None
        # Only the queue holds numbers of series now: open rows are empty.
        self._rows.table.forget(max(now - self._series_idle_s, 0), held_since_s=self._windows[0].sealed_s)
        self.regulate()

    def _enqueue(self, window: Window) -> None:
        self._windows.append(window)
        self._held.enter(window)
        self._sealed += 1
        self._waiting.set()

    def regulate(self) -> None:
        """Keep memory and journal within their bounds: seal a large window, leave waiting ones to the journal, and stop
        the doors when that is full or behind."""
        if self._open_since_s is None and self._rows.points:
            self._open_since_s = self._now_s()
        if self._rows.points >= self._most_points:
            self.seal()
            return
        oldest = self._windows[0] if self._windows else None
        self._held.shrink(self._memory_limit // 2 - self._rows.size, but=oldest)
        self._hold(self._journal.size >= self._journal.max_bytes, "the journal is full (tsd.journal.max_bytes)")
        self._hold(self._journal.pending > self._memory_limit // 4, "the journal cannot be written fast enough")

    async def watch_journal(self) -> None:
        """Stop and start the doors as the journal is written, until cancelled; who waits for it to be may give up."""
        while True:
            await self._journal.progressed()
            self.regulate()
            if self._journal.trouble is not None:
                self._note_progress()

    def _hold(self, held: bool, why: str) -> None:
        if held:
            self._gate.hold(why)
        else:
            self._gate.release(why)

    async def seal_windows(self) -> None:
        """Seal at every interval, until cancelled."""
        while True:
            await trio.sleep(self._interval_s)
            self.seal()

    async def write_windows(self) -> None:
        """Write sealed windows until `finish` was called and none is left."""
        pause = FIRST_RETRY_S
        while self._windows or not self._finishing:
            if not self._windows:
                self._waiting = trio.Event()
                await self._waiting.wait()
                continue
            window = self._windows[0]
            try:
                written = await self._write(window)
            except (StoreError, CorruptRow) as error:
                self._note_trouble(error)
                await trio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311 - jitter
                pause = min(2 * pause, LAST_RETRY_S)
                continue
            pause = FIRST_RETRY_S
            if self.trouble is not None:
                log.info("the store takes cells again", windows_waiting=len(self._windows))
                self.trouble = None
            self._held.leave(self._windows.popleft())
            self._enter_in_ledger(window, written)  # in one step with the window's end: the account always balances
            self._written += 1
            self._note_progress()
            self.regulate()

    def _note_trouble(self, error: StoreError | CorruptRow) -> None:
        error.with_traceback(None)  # trio's frame of a call in a thread holds the error: together they held a window
        self.retries += 1
        if self.trouble is None:
            log.warning("the store does not take cells; points wait in the journal", error=str(error))
        self.trouble = str(error)
        self._note_progress()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def flush(self, *, patient: bool = True) -> bool:
        """Write everything that came before; whether it is stored. Unless `patient`, give up when the store
        or the journal's disk fails."""
        self.seal()
        return await self._reach(self._sealed, patient=patient)

    async def _reach(self, wanted: int, *, patient: bool) -> bool:
        """Whether so many windows are stored, once they are or nobody knows when."""
        while self._written < wanted and (patient or (self.trouble is None and self._journal.trouble is None)):
            await self._progress.wait()
        return self._written >= wanted

    async def show(self, metric: bytes) -> bool:
        """Write what came before of one metric, for whoever is about to read it; whether it is stored. Many may ask at
        once: no window is sealed for one of them while another's is being written."""
        waiting = self._rows.holds(metric)
        if not waiting and not any(self._may_hold(window, metric) for window in self._windows):
            return True
        wanted = self._sealed + waiting
        async with self._showing:
            if self._sealed < wanted:
                self.seal()
            return await self._reach(min(wanted, self._sealed), patient=False)

    def _may_hold(self, window: Window, metric: bytes) -> bool:
        if window.columns is None or metric in window.summaries.metrics:
            return True
        return self._rows.table.any_of(metric, window.columns.series)

    def finish(self) -> None:
        """Seal the last window, and let `write_windows` return when it is stored."""
        self.seal()
        self._finishing = True
        self._waiting.set()

    def _enter_in_ledger(self, window: Window, written: Written) -> None:
        self._ledger.stored += written.stored
        for _, error in written.refused:
            self._ledger.refuse(error.reason)
        if damaged := window.points - written.stored - len(written.refused):
            self._ledger.refuse(JOURNAL_DAMAGED, damaged)

    async def _write(self, window: Window) -> Written:
        """Put a window's cells into the store, for good. Repeated as a whole where a part of it fails."""
        columns, summaries, refused = await self._read_window(window)
        lines = len(columns.series) + summaries.lines
        slices = await trio.to_thread.run_sync(series_slices, columns)
        await together(slices, partial(self._write_slice, columns), at_once=SIDE_BY_SIDE)
        for table, puts in summaries.slices():
            await self._store.put(table, puts)
            self.cells += len(puts)
        await self._store.sync()
        if refused:
            await self._keep_refused(window, refused)
        with _asked_again():
            await self._journal.remove(window.segment)
        return Written(lines, refused)

    async def _write_slice(self, columns: Columns, points: Int32) -> None:
        """Put the cells of a slice of a window's points: another's are sorted and encoded while these are put."""
        for part in await trio.to_thread.run_sync(partial(sorted_parts, join=self._join), columns, points):
            puts = await trio.to_thread.run_sync(encode, part, self._rows.table, self._join)
            await self._store.put(self._table, puts)
            self.cells += len(puts)
            async with self._telling:
                await self._tell(puts)
                if self._on_points is not None:
                    await self._on_points(part)

    async def _tell(self, puts: Sequence[Put]) -> None:
        """Tell of cells that were put, a millisecond's work at a time."""
        for at in range(0, len(puts), NOTED_CELLS):
            self._note(puts[at : at + NOTED_CELLS])
            await trio.lowlevel.checkpoint()

    async def _read_window(self, window: Window) -> Contents:
        """A window's points, all of series with UIDs, and the lines that are refused by now."""
        table = self._rows.table
        forgotten = table.forgotten
        if window.columns is not None:
            contents = Contents(window.columns, window.summaries, [])
        else:
            contents = await self._read_again(window)
        while not await self._settle(contents.columns):  # line by line, those of such series are refused
            contents = await self._read_again(window)
        if table.forgotten != forgotten:
            columns = contents.columns
            contents = contents._replace(columns=columns._replace(series=table.as_one(columns.series)))
        return contents

    async def _settle(self, columns: Columns) -> bool:
        """Find the UIDs of series that were entered without; False where some may have none after all."""
        table = self._rows.table
        if not (table.unsettled or table.refused):
            return True
        present = set(np.unique(columns.series).tolist())
        wanted: dict[SeriesText, list[int]] = {}
        for number in present & table.unsettled.keys():
            wanted.setdefault(table.unsettled[number], []).append(number)
        for text, parts in (await self._names.resolve(self._names.judge(wanted).good)).items():
            for number in wanted[text]:
                if isinstance(parts, BadLine):
                    table.refuse(number)
                else:
                    table.settle(number, parts)
        return not table.refused & present

    async def _read_again(self, window: Window) -> Contents:
        """A window's points from its segment, and the lines that are refused by now."""
        rows = self._rows.another()
        refused: list[Refusal] = []
        await self._journal.wait_synced(window.segment.position)  # before that it is not whole
        pieces = window.segment.pieces()
        damages: list[Damage] = []  # it was whole when it was found or written
        while (piece := await _next_of(pieces, window.segment.path)) is not None:
            if isinstance(piece, Damage):
                damages.append(piece)
                continue
            absorbed = await absorb_whole(rows, self._names, piece.text, self._summaries)
            if absorbed.rejects:
                lines = piece.text.split(b"\n")
                refused += [Refusal(lines[at], error) for at, error in absorbed.rejects]
        if damages:
            with _asked_again():
                await trio.to_thread.run_sync(self._journal.set_aside, window.segment, damages)
        columns = rows.take()
        rows.table.touch(columns.series, self._uptime_s())
        return Contents(columns, rows.take_summaries(), refused)

    async def _keep_refused(self, window: Window, refused: list[Refusal]) -> None:
        """Lines that were acknowledged and cannot be stored are kept in a file, and said aloud."""
        text = b"".join(b"# %s\n%s\n" % (str(error).encode(), line) for line, error in refused)

        def write() -> Path:
            self._refused_folder.mkdir(parents=True, exist_ok=True)
            path = unused(self._refused_folder / f"{window.segment.path.stem}.lines")
            write_new(self._journal.disk, path, [text])
            return path

        with _asked_again():
            path = await trio.to_thread.run_sync(write)
        log.error("journaled lines are refused by now", lines=len(refused), first=str(refused[0].error), kept=str(path))


async def _next_of(pieces: Iterator[Block | Damage], path: Path) -> Block | Damage | None:
    with _asked_again():
        try:
            return await trio.to_thread.run_sync(next, pieces, None)
        except FileNotFoundError:
            log.error("journal segment is gone, and its lines with it", path=str(path))
            return None


@contextmanager
def _asked_again() -> Iterator[None]:
    """Around what the disk must do before a window is done with: where it cannot, as when it is full, the window waits,
    as for a store that is away."""
    try:
        yield
    except OSError as exc:
        raise StoreError(f"the state folder cannot be used: {exc}") from exc
