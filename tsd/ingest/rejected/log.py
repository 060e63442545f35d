"""Refused lines → a folder of bounded size, by a thread, a batch at a time.

Nothing waits for it: what comes faster than may be kept, or while the disk takes none, is counted, and the count is
itself a record. Records are not synced to disk: a crash of the daemon loses none that it has written, one of the
machine may lose the last seconds' and cut the last record off.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from tsd.errors import LINE_TOO_LONG
from tsd.ingest.limits import Origin, RefusedLine, TokenBucket
from tsd.ingest.lines import START_BYTES
from tsd.ingest.rejected.files import (
    LINE_BYTES,
    UNCOUNTED,
    LeftOut,
    Outcome,
    Record,
    Replayed,
    encode_records,
    file_path,
    files,
    is_unstored,
    mark_unstored,
    refused,
)

log = structlog.get_logger(__name__)

BURST_S = 10  # so many seconds' worth of lines may come at once
BATCH_S = 0.25  # between two batches
BATCH_LINES = 500  # the thread works on them a millisecond or so, in which the event loop has to wait for it
WAITING_BYTES = 4 << 20  # for the thread, at most
FILES = 8  # the folder's bytes in so many parts: the oldest leaves as a whole
LEAST_FILE = 64 << 10
PEERS = 500  # with a recorded share


class RejectedStats(NamedTuple):
    """The log's counters."""

    kept: int
    left_out: int
    size: int
    failures: int


class _WaitingLine(NamedTuple):
    """A refused line that waits for the thread."""

    time_ms: int
    reason: str
    message: str
    peer: str
    account: str
    line: bytes
    cut: int  # bytes that are missing at its end


class RejectedLog:
    """The log of refused lines that a daemon writes."""

    def __init__(
        self, folder: Path, unstored: Path, *, max_bytes: int, per_second: int, now_ms: Callable[[], int]
    ) -> None:
        """`max_bytes` 0: nothing is kept. `unstored` is where the writer keeps lines that it could not store."""
        self.folder = folder
        self._unstored = unstored
        self._max_bytes = max_bytes
        self._per_second = per_second
        self._now_ms = now_ms
        self._all: TokenBucket | None = None
        self._shares: dict[str, TokenBucket] = {}
        self._waiting: list[_WaitingLine] = []
        self._marks: list[Record] = []
        self._waiting_bytes = 0
        self._left_out: Counter[str] = Counter()
        self._left_out_since_ms = 0
        self._work = trio.Event()
        self._written = trio.Event()
        self._writing = False
        self._failing = False
        self._number = 0
        self._size = 0  # of the open file
        self._fd: int | None = None
        self._sizes: dict[int, int] = {}  # of the files, by number
        self._kept = self._left_out_total = self._failures = 0

    def note(self, origin: Origin, refusals: Sequence[RefusedLine]) -> None:
        """Keep as many refused lines as the limits allow, and count the others."""
        if not self._max_bytes:
            return
        now_ms = self._now_ms()
        count = self._room_for(origin, len(refusals))
        peer, account = origin.name, origin.account
        for line, error in refusals[:count]:
            # Not the error itself: its frames hold a whole block.
            kept = line[:LINE_BYTES]
            only_start = error.reason == LINE_TOO_LONG and len(line) <= START_BYTES
            cut = UNCOUNTED if only_start else len(line) - len(kept)
            self._waiting.append(_WaitingLine(now_ms, error.reason, str(error), peer, account, kept, cut))
            self._waiting_bytes += len(kept)
        if count < len(refusals):
            self._leave_out(Counter([error.reason for _, error in refusals[count:]]))
        self._work.set()

    def _room_for(self, origin: Origin, wanted: int) -> int:
        """Return how many of an origin's lines may be kept now."""
        if self._waiting_bytes >= min(WAITING_BYTES, self._max_bytes // FILES):
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

    def _leave_out(self, reasons: Counter[str]) -> None:
        if not self._left_out:
            self._left_out_since_ms = self._now_ms()
        self._left_out.update(reasons)
        self._left_out_total += reasons.total()

    async def mark(self, outcomes: Sequence[tuple[str, Outcome]]) -> None:
        """Note what became of records that were sent again, by name; returns once it was tried to write that."""
        now_ms = self._now_ms()
        marks = [Replayed(now_ms, name, *outcome) for name, outcome in outcomes]
        if unstored := [mark for mark in marks if is_unstored(mark.of)]:
            try:
                await trio.to_thread.run_sync(mark_unstored, self._unstored, unstored)
            except OSError as exc:
                self._failures += 1
                log.warning("rejected.mark_failed", error=str(exc))
        if self._max_bytes:
            self._marks += [mark for mark in marks if not is_unstored(mark.of)]
            await self.flush()

    async def flush(self) -> None:
        """Return once what was noted is in the folder, or could not be put there."""
        self._work.set()
        while self._waiting or self._marks or self._writing:
            await self._written.wait()

    async def run(self) -> None:
        """Write what is noted, until cancelled."""
        if not self._max_bytes:
            await trio.sleep_forever()
        try:
            await trio.to_thread.run_sync(self._look_around)
            while True:
                await self._work.wait()
                await self._write_batch()
                await trio.sleep(BATCH_S / 10 if self._waiting else BATCH_S)
        finally:
            with trio.CancelScope(shield=True):
                await self._write_batch()
                while self._waiting and not self._failing:
                    await self._write_batch()
                await trio.to_thread.run_sync(self._close)

    async def _write_batch(self) -> None:
        letters, self._waiting = self._waiting[:BATCH_LINES], self._waiting[BATCH_LINES:]
        self._waiting_bytes -= sum(len(letter.line) for letter in letters)
        if not self._waiting:
            self._work = trio.Event()
        marks, self._marks = self._marks, []
        left_out, since_ms, self._left_out = self._left_out, self._left_out_since_ms, Counter()
        if not (letters or marks or left_out):
            return
        count = LeftOut(since_ms, self._now_ms(), dict(left_out)) if left_out else None
        self._writing = True
        written = False
        try:
            with trio.CancelScope(
                shield=True
            ):  # a thread's work is not cut off, but it could be kept from its beginning
                await trio.to_thread.run_sync(self._write, letters, marks, count)
            written, self._failing = True, False
            self._kept += len(letters)
        except OSError as exc:
            self._failures += 1
            if not self._failing:
                log.warning("rejected.write_failed", folder=str(self.folder), error=str(exc))
            self._failing = True
        finally:
            if not written:  # after a defect too, which has this run again: each line is kept or counted
                self._leave_out(Counter([letter.reason for letter in letters]))
                self._left_out.update(left_out)
                self._left_out_since_ms = since_ms or self._left_out_since_ms
            self._writing = False
            self._written.set()
            self._written = trio.Event()

    # ---- in a thread

    def _look_around(self) -> None:
        """See what an earlier run left; go on in its last file."""
        with suppress(OSError):
            self._sizes = {number: path.stat().st_size for number, path in files(self.folder)}
            self._number = max(self._sizes, default=0)

    def _write(self, letters: list[_WaitingLine], marks: list[Record], left_out: LeftOut | None) -> None:
        """Append records, all or none of them, and make room. Raises OSError."""
        records: list[Record] = [refused(*letter) for letter in letters]
        records += marks
        records += [left_out] if left_out is not None else []
        text = encode_records(records)
        fd = self._open()
        try:
            view = memoryview(text)
            while view:
                view = view[os.write(fd, view) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, self._size)
            self._close()
            raise
        self._size += len(text)
        self._sizes[self._number] = self._size
        if self._size >= max(self._max_bytes // FILES, LEAST_FILE):
            self._close()
            self._number += 1
            self._make_room()

    def _open(self) -> int:
        if self._fd is not None:
            return self._fd
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._number = max(self._number, 1)
        path = file_path(self.folder, self._number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            self._size = _whole(fd)
            os.ftruncate(fd, self._size)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def _make_room(self) -> None:
        """Have the oldest leave where there is too much."""
        for number in sorted(self._sizes):
            if sum(self._sizes.values()) <= self._max_bytes - max(self._max_bytes // FILES, LEAST_FILE):
                return
            file_path(self.folder, number).unlink(missing_ok=True)
            del self._sizes[number]

    def _close(self) -> None:
        fd, self._fd = self._fd, None  # closed, whatever the close says: its number may be another's next
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def statistics(self) -> RejectedStats:
        """Return the numbers of this moment."""
        return RejectedStats(self._kept, self._left_out_total, sum(self._sizes.values()), self._failures)


def _whole(fd: int) -> int:
    """Return how many bytes of a file are whole records: what a crash cut off at its end is none."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - LINE_BYTES)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
