"""Accepted put lines → a folder of segments on disk, before they are acknowledged.

Lines are appended in memory, compressed and written by a thread in groups, each group with one fdatasync. While no
caller waits for them, lines are gathered for up to `gather_s`: a group costs as much CPU time as thousands of lines.
After half of that time the next lines that arrive start the write: a timer would wake the event loop once more.

A segment holds one window's lines and is removed when the window's cells are in the store. Segments that exist at the
start were left by a crash or an outage: the writer stores their lines, oldest first. folder.py describes the folder's
other files.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, takewhile
from math import inf
from pathlib import Path
from typing import NamedTuple

import trio

from tsd.config.files import exists, with_suffix
from tsd.errors import TsdError
from tsd.ingest.journal.disk import REAL, Disk
from tsd.ingest.journal.folder import number_of, segment_path, segment_paths
from tsd.ingest.journal.frames import FrameMaker
from tsd.ingest.journal.quarantine import clear_pending_damage, pending_damage, quarantine_damage, quarantine_foreign
from tsd.ingest.journal.segment import (
    BLOCK_BYTES,
    HEADER_BYTES,
    Block,
    Damage,
    block_of,
    header,
    read_header,
    read_pieces,
)
from tsd.lazy import LazyLogger
from tsd.store.threads import QuietThread
from tsd.store.timing import Latency

log = LazyLogger(__name__)

GROUP_BYTES = 4 << 20  # a group of this size is written before the interval ends
GATHERED_BYTES = 256 << 10  # of lines that no caller waits for: more are written without further delay
RETRY_S = 1.0  # pause after an error of the disk


def hurried_after_s(took_s: float) -> float:
    """Return the delay between the starts of two groups while a client waits: twice the last write, 1 to 10 ms.

    A group costs about 0.3 ms of CPU. A client that waits for each request sends twice as many as with a fixed 10 ms.

    >>> [hurried_after_s(took_s) for took_s in (0.0002, 0.002, 0.1)]
    [0.001, 0.004, 0.01]
    """
    return min(max(2 * took_s, 0.001), 0.01)


@dataclass(frozen=True)
class JournalSettings:
    """How soon lines are written, and how many bytes the journal may take."""

    sync_interval_s: float  # least time between the starts of two groups
    max_bytes: int  # of all segments; `Journal.max_bytes` may change later
    gather_s: float = 0  # most time for which lines that no caller waits for are gathered
    retry_s: float = RETRY_S


class Segment:
    """One file of the journal."""

    def __init__(self, path: Path, owners: Sequence[str] = ()) -> None:
        """`owners`: possible writers, for a segment with a damaged header."""
        self.path = path
        self._owners = owners
        self.lines = 0  # appended, on disk or still in memory
        self.appended = HEADER_BYTES  # bytes if nothing were compressed
        self.saved = 0  # by compression, of what is on disk
        self.position = 0  # position of its last line in the journal
        self.good = HEADER_BYTES  # bytes known to be on disk
        self.exists = False  # it has a file
        self.is_stored = False  # all its lines are in the store
        self.found_s: int | None = None  # last write of an earlier run, by the wall clock; None: of this run

    @property
    def size(self) -> int:
        """Bytes on disk, and those in memory before they are compressed."""
        return self.appended - self.saved

    def pieces(self, end: int | None = None) -> Iterator[Block | Damage]:
        """Read the segment, its first `end` bytes if given: yield its blocks, and the damage between and after them."""
        return read_pieces(self.path, self._owners, end=end)


class WriteGroup(NamedTuple):
    """Blocks that are written with one fdatasync."""

    segment: Segment
    blocks: list[bytes]  # empty once they are on disk
    size: int  # bytes of the blocks
    lines: int
    last: bool  # the last group of its segment
    since: float  # arrival of its first line, by trio's clock


class JournalStats(NamedTuple):
    """A snapshot of the journal's counters. `size` and `pending` are bytes."""

    size: int
    segments: int
    pending: int
    syncs: int
    failures: int
    quarantined: int


class Journal:
    """The open journal. Positions count lines since the start: a line is on disk once `synced` reaches its position."""

    def __init__(
        self,
        folder: Path,
        settings: JournalSettings,
        *,
        owner: str,
        adopted: Collection[str] = (),
        disk: Disk = REAL,
    ) -> None:
        """`owner`: identity of the state folder that the journal belongs to. Segments of other owners are quarantined,
        except those of `adopted` ones."""
        self.folder = folder
        self.owner = owner
        self.disk = disk
        self.group_bytes = GROUP_BYTES
        self.max_bytes = settings.max_bytes
        self.position = 0
        self.synced = 0
        self.trouble: str | None = None  # error of the last write; None if it succeeded
        self.sync_times = Latency()  # of fdatasync
        self.wait_times = Latency()  # from the arrival of a group's first line until the group is on disk
        self.writing_since: float | None = None  # start of the current write, by trio's clock
        self.quarantined: list[Path] = []  # copies of damaged parts, and segments of other owners
        self.damaged = 0  # estimate of acknowledged lines that could not be read and are not counted yet
        self._is_counted = False
        self._known = (owner, *adopted)
        self._interval_s = settings.sync_interval_s
        self._gather_s = settings.gather_s
        self._retry_s = settings.retry_s
        self._segments: dict[Path, Segment] = {}
        self._size = 0  # bytes of all segments if nothing were compressed since the start
        self._saved = 0  # by compression since the start; of the journal's thread
        self._removals, self._synced_removals = 1, 0  # segments; an earlier run may have removed one
        self._full_at: int | None = None  # the limit that was reached since a segment was removed
        self._frames = FrameMaker()
        self._next = 0
        self._open: Segment | None = None
        self._blocks: list[bytes] = []
        self._lines = 0
        self._since = 0.0  # arrival of the first block, by trio's clock
        self._appended = 0  # bytes of all blocks
        self._written = 0  # bytes of them on disk
        self._thread = QuietThread[None]()
        self._write_wait = trio.CancelScope()  # around the wait for the last write, see QuietThread
        self._has_all = False  # the lines in memory are all that have arrived
        self._took_s = 0.0  # the last write
        self._groups: deque[WriteGroup] = deque()
        self._fd: tuple[Segment, int] | None = None
        self._work = trio.Event()
        self._awaited = trio.Event()  # a caller waits for appended lines, or they are many
        self._urgent = trio.Event()
        self._progress = trio.Event()
        self._failed = trio.Event()
        self._counting = threading.Lock()  # around the end of a write, and around reads of what is not on disk
        self._ending = False
        self._closing = False
        self._give_up_at = inf
        self._syncs = 0
        self._failures = 0

    @property
    def size(self) -> int:
        """Bytes of all segments: on disk, and in memory before they are compressed."""
        return self._size - self._saved

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached, or was reached since a segment was removed: lines in memory are compressed when
        they are written, so reading would resume and stop again many times."""
        return self._full_at == self.max_bytes or self.size >= self.max_bytes

    @property
    def pending(self) -> int:
        """Bytes that are not on disk yet, before they are compressed."""
        return self._appended - self._written

    @property
    def unsynced(self) -> int:
        """Lines that are not on disk yet."""
        return self.position - self.synced

    @property
    def lost(self) -> int:
        """Lines that would be lost if the daemon ended now: neither on disk nor in the store."""
        stored = [segment for segment in self._segments.values() if segment.is_stored]
        return self.unsynced - sum(min(one.lines, max(one.position - self.synced, 0)) for one in stored)

    def recover(self) -> list[Segment]:
        """Check the folder and return the segments with lines, oldest first. Call once, before anything else.

        Damaged parts are moved to `quarantine/`, under names with their offsets, and logged. So are segments that the
        daemons of other state folders wrote. Raise TsdError if the disk fails.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_drafts()
            for path in segment_paths(self.folder):
                self._recover(path)
            self.damaged = sum(pending_damage(self.folder).values())
        except OSError as exc:
            raise TsdError(f"journal {exc.filename or self.folder}: cannot be recovered: {exc.strerror}") from exc
        return list(self._segments.values())

    def _remove_drafts(self) -> None:
        """Remove segments that a crash left without their final name, and log unknown files."""
        for path in with_suffix(self.folder, ".new"):
            if number_of(path) is not None:
                self.disk.remove(path)
        for path in with_suffix(self.folder, ".journal"):
            if number_of(path) is None:
                log.warning("journal.file_unknown", path=str(path))

    def _recover(self, path: Path) -> None:
        """Check a segment, repair it, and register it if it has lines."""
        self._next = (number_of(path) or 0) + 1
        writer = read_header(path).owner
        if writer is not None and writer not in self._known:
            self.quarantined.append(quarantine_foreign(self.disk, path, writer))
            return
        segment = Segment(path, self._known)
        damages: list[Damage] = []
        for piece in segment.pieces():
            if isinstance(piece, Damage):
                damages.append(piece)
            else:
                segment.lines += piece.lines
        if damages:
            self.quarantine(segment, damages)
        if segment.lines:
            about = path.stat()
            segment.appended = segment.good = about.st_size
            segment.found_s = int(about.st_mtime)
            segment.exists = True
            self._size += segment.size
            self._segments[path] = segment
        else:
            self.disk.remove(path)

    def quarantine(self, segment: Segment, damages: Sequence[Damage]) -> None:
        """Move damaged parts out of a segment."""
        self.quarantined += quarantine_damage(self.disk, segment.path, damages, self.owner, is_counted=self._is_counted)

    def confirm_damage_counted(self) -> None:
        """Note that the daemon is ready and its counters include the damage: the next start does not count it again."""
        self._is_counted = True
        with suppress(OSError):  # the next start then counts it again
            clear_pending_damage(self.disk, self.folder)

    def append(self, lines: bytes, count: int) -> int:
        """Append `count` whole lines, in memory. Return the position of the last one."""
        if self._open is None:
            self._open = Segment(segment_path(self.folder, self._next), self._known)
            self._next += 1
            self._segments[self._open.path] = self._open
            self._size += self._open.appended
        size = len(lines)
        if not self._blocks:
            size += BLOCK_BYTES  # one for each group
            self._since = trio.current_time()
            self._work.set()
            self._write_wait.deadline = self._since + self._gather_s
        self._blocks.append(lines)
        self._lines += count
        self._appended += len(lines)
        self._open.lines += count
        self._open.appended += size
        self._size += size
        if self.size >= self.max_bytes:
            self._full_at = self.max_bytes
        self.position += count
        self._open.position = self.position
        if self.pending >= GATHERED_BYTES or self._are_gathered():
            self._write_soon()
        if self.pending >= self.group_bytes:
            self._urgent.set()
        return self.position

    def _are_gathered(self) -> bool:
        """Return whether the lines in memory are written with the next ones that come."""
        return trio.current_time() >= self._since + self._gather_s / 2

    def write_gathered(self) -> None:
        """Write the appended lines without gathering more: they were gathered before."""
        if self._blocks:
            self._has_all = True
            self._write_soon()

    def _write_soon(self) -> None:
        self._awaited.set()
        self._thread.want_running()

    def rotate(self) -> Segment | None:
        """End the open segment and return it; None if nothing was appended to it."""
        segment, self._open = self._open, None
        if segment is not None:
            self._add_group(segment, last=True)
            self._work.set()
            self._write_soon()
        return segment

    def _add_group(self, segment: Segment, *, last: bool) -> None:
        size = sum(map(len, self._blocks))
        self._groups.append(WriteGroup(segment, self._blocks, size, self._lines, last=last, since=self._since))
        self._blocks, self._lines = [], 0

    def hurry(self) -> None:
        """Write the appended lines before the interval ends, because a caller waits."""
        self._write_soon()
        self._urgent.set()

    async def wait_synced(self, position: int) -> None:
        """Wait until every line up to `position` is on disk."""
        while self.synced < position:
            await self.wait_progress()

    async def wait_progress(self) -> None:
        """Wait until a group is written, a write fails, or a segment is removed."""
        self._thread.want()
        self._awaited.set()
        await self._progress.wait()

    async def wait_failure(self) -> None:
        """Wait until a write fails."""
        await self._failed.wait()

    def end_waits(self) -> None:
        """End all waits for the disk: the daemon ends, and the store may take what the disk does not."""
        self._ending = True
        self._note_progress()

    async def wait_settled(self, segment: Segment) -> bool:
        """Wait until the lines of a segment are on disk, or until `end_waits`. Return whether they are on disk."""
        while self.synced < segment.position and not self._ending:
            await self.wait_progress()
        return self.synced >= segment.position

    async def read(self, segment: Segment) -> Iterator[Block | Damage]:
        """Return the pieces of an ended segment once its lines are on disk. After `end_waits`, those that are not come
        from memory."""
        if await self.wait_settled(segment):
            return segment.pieces()
        with self._counting:
            unwritten = [(list(group.blocks), group.lines) for group in self._groups if group.segment is segment]
            good = segment.good
        written = segment.pieces(good) if good > HEADER_BYTES else iter(())
        return chain(written, (Block(b"".join(blocks), lines) for blocks, lines in unwritten if blocks))

    async def remove(self, segment: Segment) -> bool:
        """Remove a segment once it is synced: its points are stored. Return whether it is removed: after `end_waits`
        it stays if it is not synced, and `run` removes it at its end. Raise OSError."""
        if not await self.wait_settled(segment):
            return False
        await trio.to_thread.run_sync(self.disk.remove, segment.path)
        self._removals += 1
        del self._segments[segment.path]
        self._size -= segment.size
        self._full_at = None
        self._note_progress()
        return True

    async def sync_removals(self) -> bool:
        """Sync the removals of segments. Return whether these are not found again after a loss of power."""
        removed = self._removals
        with suppress(OSError):
            if self._synced_removals < removed:
                await trio.to_thread.run_sync(self.disk.sync_folder, self.folder)
                self._synced_removals = removed
            return True
        return False

    def close(self, *, deadline: float = inf) -> None:
        """Have `run` write the remaining lines that are not stored, and return. Failing writes are retried until
        `deadline`, by trio's clock, and once after it. Lines that are `unsynced` afterwards were never acknowledged."""
        self._closing = True
        self._give_up_at = deadline
        self._work.set()
        self._write_soon()
        self._urgent.set()

    async def run(self) -> None:
        """Write appended lines in groups, until `close`."""
        last = -self._interval_s
        while True:
            if not self._work.is_set():
                await self._work.wait()
            if self._gather_s and not self._awaited.is_set():  # some lines were appended: else it is set
                with trio.move_on_at(self._since + self._gather_s):
                    await self._awaited.wait()
            if trio.current_time() < last + self._interval_s:
                await self._wait_due(last)
            elif not self._has_all and not (self._gather_s and self._are_gathered()):
                # A caller waits. Connections read the rest of what has arrived: one group for all of it.
                await trio.lowlevel.checkpoint()
            last, self._has_all = trio.current_time(), False
            self._work, self._awaited, self._urgent = trio.Event(), trio.Event(), trio.Event()
            if self._open is not None and self._blocks:
                self._add_group(self._open, last=False)
            await self._write_groups()
            if self._closing and not self._blocks:
                await trio.to_thread.run_sync(self._end_stored)
                return

    async def _wait_due(self, last: float) -> None:
        """Wait until the end of the interval since `last`, or less if a caller waits or a group is large."""
        with trio.move_on_at(last + self._interval_s):
            await self._urgent.wait()
            if not self._closing and self.pending < self.group_bytes:
                await trio.sleep_until(last + hurried_after_s(self._took_s))

    async def _write_groups(self) -> None:
        clock = trio.lowlevel.current_clock()
        while self._groups:
            group = self._groups[0]
            if self._closing and self._needs_no_replay(group.segment):
                self._pass_over(group)
                continue
            if self._closing or self.trouble is not None or self._blocks or len(self._groups) > 1:
                self._thread.want()
            self.writing_since = trio.current_time()
            try:
                with trio.CancelScope() as self._write_wait:  # `append` sets a deadline
                    await self._thread.run(self._write, group, clock)
            except OSError as exc:
                self._failures += 1
                if self.trouble is None:
                    log.error("journal.write_failed", error=str(exc))
                self.trouble = str(exc)
                self._failed.set()
                self._failed = trio.Event()
                self._note_progress()
                if self._closing and trio.current_time() >= self._give_up_at:
                    return
                await trio.sleep(self._retry_s)
                continue
            if self.trouble is not None:
                log.info("journal.write_recovered")
                self.trouble = None
            self._groups.popleft()
            self._note_progress()

    def _needs_no_replay(self, segment: Segment) -> bool:
        """Return whether a segment is stored, and all before it: the next start replays others, which may have older
        values of the same times."""
        earlier = takewhile(lambda one: one is not segment, self._segments.values())
        return segment.is_stored and all(one.is_stored for one in earlier)

    def _pass_over(self, group: WriteGroup) -> None:
        """Count a group whose lines are stored as written."""
        self._groups.popleft()
        self._written += group.size
        self.synced += group.lines
        self._note_progress()

    def _end_stored(self) -> None:
        """Close the open file, and remove the segments that are stored, in order."""
        self._close_file()
        with suppress(OSError):  # the next start then replays it
            for segment in list(self._segments.values()):
                if not segment.is_stored or segment.position > self.synced:
                    break
                self.disk.remove(segment.path)
                del self._segments[segment.path]
                self._size -= segment.size

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    def _write(self, group: WriteGroup, clock: trio.abc.Clock) -> None:
        """Write, sync and count a group, in a thread: the event loop need not notice that it is on disk. Raise OSError,
        and restore the segment then. `clock` is trio's."""
        begun, good = clock.current_time(), group.segment.good
        if group.lines:
            good = self._append_to(group.segment, group, begun)
        else:
            self._end(group.segment)
        now = clock.current_time()
        self._took_s = now - begun
        if group.lines:
            self.wait_times.record(now - group.since)
        with self._counting:
            group.segment.good = good
            group.blocks.clear()
        self._written += group.size
        self._syncs += 1
        self.writing_since = None
        self.synced += group.lines

    def _append_to(self, segment: Segment, group: WriteGroup, now_s: float) -> int:
        """Append a group to its segment and sync it. Return the segment's length. Raise OSError, and restore the
        segment then."""
        fd = self._file_of(segment)
        block = block_of(self._frames.frame_of(group.blocks, now_s), group.lines, segment.good, self.owner)
        try:
            good = self.disk.write(fd, block, segment.good)
            self._sync(fd)
            # After the sync: otherwise a power loss could leave a header with a larger length than the segment's.
            self.disk.write(fd, [header(good, self.owner)], 0)
            if group.last:
                self._sync(fd)
            saved = group.size + BLOCK_BYTES - (good - segment.good)
            segment.saved += saved
            self._saved += saved
        except OSError:
            with suppress(OSError):
                self.disk.truncate(fd, segment.good)
                self.disk.write(fd, [header(segment.good, self.owner)], 0)
            self._close_file()
            raise
        if group.last:
            self._close_file()
        return good

    def _end(self, segment: Segment) -> None:
        """Sync the last header of a segment whose lines are on disk.

        An error is ignored: the header then has a smaller length than the segment, which loses nothing. It is not
        retried, because the segment may be stored and removed by then."""
        with suppress(OSError):
            self._sync(self._file_of(segment))
        self._close_file()

    def _sync(self, fd: int) -> None:
        begun = time.monotonic()
        self.disk.sync(fd)
        self.sync_times.record(time.monotonic() - begun)

    def _file_of(self, segment: Segment) -> int:
        """Return the descriptor of a segment, truncated to the bytes that are known to be on disk. Raise OSError."""
        if self._fd is not None and self._fd[0] is segment:
            return self._fd[1]
        self._close_file()
        if not segment.exists:
            self._make_file(segment)
        fd = self.disk.open(segment.path)
        try:
            self.disk.truncate(fd, segment.good)
            if segment.good == HEADER_BYTES:
                self.disk.sync_folder(self.folder)
        except OSError:
            self.disk.close(fd)
            raise
        self._fd = segment, fd
        return fd

    def _make_file(self, segment: Segment) -> None:
        """Create a segment's file, and rename it once its header is on disk: an empty segment is always damage. Raise
        OSError."""
        draft = segment.path.with_suffix(".new")
        fd = self.disk.create(draft)
        try:
            self.disk.write(fd, [header(HEADER_BYTES, self.owner)], 0)
            self.disk.sync(fd)
        finally:
            self.disk.close(fd)
        if exists(segment.path):
            raise FileExistsError(errno.EEXIST, "a segment that is not this daemon's", str(segment.path))
        self.disk.rename(draft, segment.path)
        segment.exists = True

    def _close_file(self) -> None:
        """Close the open file. An error is ignored: the data was synced before, and the kernel has released the
        descriptor, which may soon be that of another file."""
        if self._fd is not None:
            (_, fd), self._fd = self._fd, None
            with suppress(OSError):
                self.disk.close(fd)

    def statistics(self) -> JournalStats:
        """Return the current counters."""
        return JournalStats(
            self.size, len(self._segments), self.pending, self._syncs, self._failures, len(self.quarantined)
        )
