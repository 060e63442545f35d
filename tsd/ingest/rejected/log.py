"""The log of refused lines: a thread appends them in batches to a folder of bounded size.

Ingest never waits for it: lines beyond its rate, or during a failure of the disk, are dropped and counted in a record.
Records are not synced: a crash of the daemon loses no written record; a crash of the machine may lose those of the last
seconds, and truncate the last one.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import trio
from msgspec.structs import replace

from tsd.codec.text import counted
from tsd.config.files import exists
from tsd.errors import LINE_TOO_LONG, StoreDown
from tsd.ingest.limits import Origin, RefusedLine, TokenBucket
from tsd.ingest.lines import START_BYTES
from tsd.ingest.rejected.files import (
    LINE_BYTES,
    UNCOUNTED,
    DroppedLines,
    Outcome,
    Record,
    RejectedBytes,
    RejectedLine,
    Replayed,
    encode_records,
    file_path,
    files,
    is_unstored,
    mark_unstored,
    read_line,
)
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)

BURST_S = 10  # a burst may hold the lines of this many seconds
BATCH_S = 0.25  # between two batches
BATCH_LINES = 500  # the thread encodes them in about a millisecond, during which it may hold the GIL
WAITING_BYTES = 4 << 20  # limit of lines that wait for the thread
MARK_BYTES = 1024  # of the record of a line's outcome, at most, roughly
FILES = 8  # the folder has about this many files; the oldest is deleted as a whole
MIN_FILE_BYTES = 64 << 10
NOTHING: Mapping[str, Sequence[RefusedLine]] = {}
PEERS = 500  # peers whose share of the rate is tracked
LOG_INTERVAL_S = 60.0  # between two events of refused lines
MAX_LOGGED_CHARS = 300  # of an error


class RejectedStats(NamedTuple):
    """A snapshot of the log's counters."""

    kept: int  # lines
    dropped: int  # lines
    size: int  # bytes of all files
    failures: int  # of writes


class RejectedLog:
    """The log of refused lines of a running daemon."""

    def __init__(
        self, folder: Path, unstored: Path, *, max_bytes: int, per_second: int, now_ms: Callable[[], int]
    ) -> None:
        """`max_bytes` 0: no log. `per_second` lines are kept, half of them of one peer. `unstored` is the writer's
        folder of acknowledged lines that it could not store."""
        self.folder = folder
        self._unstored = unstored
        self._max_bytes = max_bytes
        self._per_second = per_second
        self._now_ms = now_ms
        self._all: TokenBucket | None = None
        self._shares: dict[str, TokenBucket] = {}
        self._waiting: list[RejectedBytes] = []
        self._waiting_bytes = 0
        self._dropped: Counter[str] = Counter()  # lines by reason, since the last record of them
        self._dropped_since_ms = 0
        self._work = trio.Event()
        self._written = trio.Event()
        self._writing = False
        self._file = trio.Lock()
        self._failing = False
        self._number = 0
        self._size = 0  # of the open file
        self._fd: int | None = None
        self._sizes: dict[int, int] = {}  # bytes of the files, by number
        self._kept = self._dropped_total = self._failures = 0
        self._logged_at = -float("inf")
        self._unlogged = 0  # lines since the last event

    def add(self, origin: Origin, refusals: Sequence[RefusedLine]) -> None:
        """Keep as many refused lines as the limits allow, and count the others. Log the first one of a minute."""
        self._unlogged += len(refusals)
        if refusals and trio.current_time() - self._logged_at >= LOG_INTERVAL_S:
            self._log_event(origin, refusals)
        if not self._max_bytes:
            return
        now_ms = self._now_ms()
        room, count = self._room_for(origin, len(refusals)), 0
        peer, account = origin.name, origin.account
        for line, error, as_sent in refusals[:room]:
            if self._is_full():
                break
            count += 1
            # Not the error itself: the frames of its traceback hold a whole block.
            kept = line[:LINE_BYTES]
            only_start = error.reason == LINE_TOO_LONG and len(line) <= START_BYTES
            cut = UNCOUNTED if only_start else len(line) - len(kept)
            self._waiting.append(RejectedBytes(now_ms, error.reason, str(error), peer, account, kept, cut, as_sent))
            self._waiting_bytes += len(kept)
        if count < len(refusals):
            self._count_dropped(Counter([one.error.reason for one in refusals[count:]]))
        self._work.set()

    def _log_event(self, origin: Origin, refusals: Sequence[RefusedLine]) -> None:
        """Log the first of refused lines, and how many lines were refused since the last event."""
        error = refusals[0].error
        log.warning(
            "lines.refused",
            lines=self._unlogged,
            reason=error.reason,
            error=str(error)[:MAX_LOGGED_CHARS],
            peer=origin.name,
            account=origin.account or None,
            next_step="tsd rejected" if self._max_bytes else None,
        )
        self._logged_at, self._unlogged = trio.current_time(), 0

    def _room_for(self, origin: Origin, wanted: int) -> int:
        """Return how many of an origin's lines may be kept now."""
        if self._is_full():
            return 0
        now_s = trio.current_time()
        if self._all is None:
            self._all = TokenBucket(self._per_second, self._per_second * BURST_S, now_s=now_s)
        key = f"{origin.account}@{origin.name.rpartition(':')[0]}"
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= PEERS:
                self._shares.clear()
            half = max(self._per_second / 2, 1)
            share = self._shares[key] = TokenBucket(half, half * BURST_S, now_s=now_s)
        count = min(wanted, self._all.whole(now_s=now_s), share.whole(now_s=now_s))
        self._all.spend(count, now_s=now_s)
        share.spend(count, now_s=now_s)
        return count

    def _is_full(self) -> bool:
        """Return whether too many bytes wait for the thread."""
        return self._waiting_bytes >= min(WAITING_BYTES, self._max_bytes // FILES)

    def _count_dropped(self, reasons: Counter[str]) -> None:
        if not self._dropped:
            self._dropped_since_ms = self._now_ms()
        self._dropped.update(reasons)
        self._dropped_total += reasons.total()

    async def check_room(self, lines: Sequence[bytes]) -> None:
        """Raise StoreDown if the outcomes of lines, and their points, cannot be recorded: the disk is full or fails."""
        try:
            async with self._file:
                await trio.to_thread.run_sync(self._check_room, sum(map(len, lines)) + MARK_BYTES * len(lines))
        except OSError as exc:
            raise StoreDown(f"{self.folder}: the outcome of lines cannot be recorded: {exc}: nothing sent") from exc

    async def mark(
        self, outcomes: Sequence[tuple[str, Outcome]], left: Mapping[str, Sequence[RefusedLine]] = NOTHING
    ) -> None:
        """Record the outcomes of lines that were sent again, by the names of their records, and sync them. `left`:
        points that were refused again, of records whose other points were accepted. They get records of their own, in
        one write with the mark that the old record is accepted. Raise StoreDown."""
        now_ms = self._now_ms()
        marks = [Replayed(now_ms, name, *outcome) for name, outcome in outcomes]
        try:
            async with self._file:
                await trio.to_thread.run_sync(self._write_marks, marks, left)
        except OSError as exc:
            self._failures += 1
            log.warning("rejected.mark_failed", error=str(exc))
            lines = counted(len(marks), "line")
            raise StoreDown(f"{lines} sent, but not marked: {exc}: a further replay sends them again") from exc

    async def flush(self) -> None:
        """Wait until all added lines are in the folder, or the attempt to write them has failed."""
        self._work.set()
        while self._waiting or self._writing:
            await self._written.wait()

    async def run(self) -> None:
        """Write added lines in batches, until cancelled."""
        if not self._max_bytes:
            await trio.sleep_forever()
        try:
            async with self._file:
                await trio.to_thread.run_sync(self._find_files)
            while True:
                await self._work.wait()
                await self._write_batch()
                await trio.sleep(BATCH_S / 10 if self._waiting else BATCH_S)
        finally:
            with trio.CancelScope(shield=True):
                await self._write_batch()
                while self._waiting and not self._failing:
                    await self._write_batch()
                async with self._file:
                    await trio.to_thread.run_sync(self._close)

    async def _write_batch(self) -> None:
        lines, self._waiting = self._waiting[:BATCH_LINES], self._waiting[BATCH_LINES:]
        self._waiting_bytes -= sum(len(waiting.line) for waiting in lines)
        if not self._waiting:
            self._work = trio.Event()
        dropped, since_ms, self._dropped = self._dropped, self._dropped_since_ms, Counter()
        if not (lines or dropped):
            return
        count = DroppedLines(since_ms, self._now_ms(), dict(dropped)) if dropped else None
        self._writing = True
        written = False
        try:
            with trio.CancelScope(shield=True):  # otherwise a cancelled task would not start the thread
                async with self._file:
                    await trio.to_thread.run_sync(self._write_lines, lines, count)
            written, self._failing = True, False
            self._kept += len(lines)
        except OSError as exc:
            self._failures += 1
            if not self._failing:
                log.warning("rejected.write_failed", folder=str(self.folder), error=str(exc))
            self._failing = True
        finally:
            if not written:  # also after an unexpected error: each line is kept or counted
                self._count_dropped(Counter([waiting.reason for waiting in lines]))
                self._dropped.update(dropped)
                self._dropped_since_ms = since_ms or self._dropped_since_ms
            self._writing = False
            self._written.set()
            self._written = trio.Event()

    # ---- in a thread

    def _find_files(self) -> None:
        """Find the files of an earlier run, and continue its last one."""
        with suppress(OSError):
            self._sizes = {number: path.stat().st_size for number, path in files(self.folder)}
            self._number = max(self._sizes, default=0)

    def _write_lines(self, lines: list[RejectedBytes], dropped: DroppedLines | None) -> None:
        records: list[Record] = [waiting.record() for waiting in lines]
        self._write([*records, dropped] if dropped is not None else records)

    def _write_marks(self, marks: Sequence[Replayed], left: Mapping[str, Sequence[RefusedLine]]) -> None:
        """Write marks and sync them. Raise OSError."""
        if unstored := [mark for mark in marks if is_unstored(mark.of)]:
            mark_unstored(self._unstored, unstored)
        records: list[Record] = []
        for mark in marks:
            if not is_unstored(mark.of):
                records += [self._left(mark, one) for one in left.get(mark.of, ())]
                records.append(mark)
        if records and exists(self.folder):
            self._write(records, sync=True)

    def _check_room(self, size: int) -> None:
        """Write `size` bytes and remove them: not all file systems can allocate them. Raise OSError."""
        if exists(self.folder):
            fd = self._open()
            try:
                _write_whole(fd, bytes(size))
            finally:
                os.ftruncate(fd, self._size)

    def _left(self, mark: Replayed, one: RefusedLine) -> RejectedLine:
        """Return the record of a point that was refused again, with the sender of its old record."""
        new = RejectedBytes(mark.time, one.error.reason, str(one.error), "", "", one.line).record()
        old = read_line(self.folder, mark.of)
        return new if old is None else replace(new, time=old.time, peer=old.peer, account=old.account)

    def _write(self, records: list[Record], *, sync: bool = False) -> None:
        """Append all records or none, and delete the oldest files beyond `max_bytes`. Raise OSError."""
        text = encode_records(records)
        fd = self._open()
        try:
            _write_whole(fd, text)
            if sync:
                os.fsync(fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, self._size)
            self._close()
            raise
        self._size += len(text)
        self._sizes[self._number] = self._size
        if self._size >= max(self._max_bytes // FILES, MIN_FILE_BYTES):
            self._close()
            self._number += 1
            if self._max_bytes:
                self._delete_oldest()

    def _open(self) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink:
            return self._fd
        self._close()  # without a name, an operator has removed it
        if not self._number:
            self._find_files()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._number = max(self._number, 1)
        path = file_path(self.folder, self._number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            self._size = _whole_bytes(fd)
            os.ftruncate(fd, self._size)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def _delete_oldest(self) -> None:
        """Delete the oldest files, until there is space for one more file."""
        for number in sorted(self._sizes):
            if sum(self._sizes.values()) <= self._max_bytes - max(self._max_bytes // FILES, MIN_FILE_BYTES):
                return
            file_path(self.folder, number).unlink(missing_ok=True)
            del self._sizes[number]

    def _close(self) -> None:
        fd, self._fd = self._fd, None  # even if close fails, the kernel has released the descriptor
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def statistics(self) -> RejectedStats:
        """Return the current counters."""
        return RejectedStats(self._kept, self._dropped_total, sum(self._sizes.values()), self._failures)


def _write_whole(fd: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view) :]


def _whole_bytes(fd: int) -> int:
    """Return the size of a file without a record that a crash truncated at its end."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - LINE_BYTES)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
