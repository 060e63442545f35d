"""The journal's system calls. All may block and raise OSError.

They are methods of a class, so that a simulation can pass a disk that is slow, fails, and loses unsynced data.

Large writes bypass the kernel's page cache, because segments are read again only after a crash. Copying lines into the
page cache takes up to a third of the CPU time of a put line and evicts other files. Here they are copied to a buffer
that fits in the processor's caches.
"""

import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from tsd.config.files import exists
from tsd.config.state_dir import sync_folder

PAGE_BYTES = 4096  # alignment of offsets, lengths and memory for O_DIRECT; few disks require more
_BUFFER_BYTES = 1 << 20
_UNSUPPORTED = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}  # errors of file systems without O_DIRECT


class Remainder(NamedTuple):
    """Data that is still to be written, from byte `at` of the file on."""

    parts: list[memoryview]
    at: int


class DirectWriter:
    """Writes whole pages with O_DIRECT. After a file system has refused O_DIRECT, it writes nothing."""

    def __init__(self) -> None:
        self._buffer: mmap | None = None
        self._in_use = threading.Lock()
        self._refused = not hasattr(os, "O_DIRECT")

    def write(self, fd: int, parts: list[memoryview], at: int) -> Remainder:
        """Write whole pages of `parts` from byte `at` on, a multiple of PAGE_BYTES. Return the rest.

        Raise nothing: the caller writes the rest through the page cache, which reports errors. A part of the rest may
        be written already."""
        if self._refused or not self._in_use.acquire(blocking=False):
            return Remainder(parts, at)
        left, size = deque(parts), sum(map(len, parts))
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            try:
                while wanted := min(size, _BUFFER_BYTES) // PAGE_BYTES * PAGE_BYTES:
                    written = self._write(fd, left, wanted, at)
                    size -= written
                    at += written
                    if written < wanted:  # the disk is nearly full
                        break
            finally:
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        except OSError as exc:
            self._refused = exc.errno in _UNSUPPORTED
        finally:
            self._in_use.release()
        return Remainder(list(left), at)

    def _write(self, fd: int, left: deque[memoryview], wanted: int, at: int) -> int:
        """Write up to `wanted` bytes, and remove them from `left`. Return how many were written."""
        self._buffer = self._buffer or mmap(-1, _BUFFER_BYTES)
        taken: list[memoryview] = []
        filled = written = 0
        while filled < wanted:
            part = left.popleft()
            if len(part) > wanted - filled:
                left.appendleft(part[wanted - filled :])
                part = part[: wanted - filled]
            self._buffer[filled : filled + len(part)] = part
            filled += len(part)
            taken.append(part)
        try:
            with memoryview(self._buffer) as buffer, buffer[:wanted] as whole:
                written = os.pwrite(fd, whole, at)
        finally:
            if written < wanted:
                left.extendleft(reversed(cut(taken, written)[1]))
        return written


def cut(parts: list[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """Split parts after `size` bytes.

    >>> [[bytes(part) for part in some] for some in cut([memoryview(b"ab"), memoryview(b"cde")], 3)]
    [[b'ab', b'c'], [b'de']]
    """
    for number, part in enumerate(parts):
        if len(part) > size:
            return [*parts[:number], part[:size]], [part[size:], *parts[number + 1 :]]
        size -= len(part)
    return parts, []


_PARTS = 512  # of one writev
_DIRECT_BYTES = 256 << 10  # size of a write from which DirectWriter is used


class Disk:
    """The real disk. Readers see a change at once. It survives a crash after `sync` of its file, or after `sync_folder`
    if it changed a name."""

    def __init__(self) -> None:
        self._direct = DirectWriter()

    def create(self, path: Path, *, only_new: bool = False) -> int:
        """Open a new or emptied file. With `only_new`, raise FileExistsError if it exists."""
        flag = os.O_EXCL if only_new else os.O_TRUNC
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flag, 0o640)

    def open(self, path: Path) -> int:
        """Open an existing file."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, fd: int, parts: Sequence[bytes | memoryview], at: int) -> int:
        """Write all of `parts` from byte `at` on, and return the offset of their end. A short write, as on a nearly
        full disk, is continued until a write fails. A part may be written if this raises OSError."""
        views = [memoryview(part) for part in parts if part]
        if sum(map(len, views)) >= _DIRECT_BYTES:
            head, views = cut(views, -at % PAGE_BYTES)
            views, at = self._direct.write(fd, views, self._write(fd, head, at))
        return self._write(fd, views, at)

    def _write(self, fd: int, parts: list[memoryview], at: int) -> int:
        """Write through the page cache."""
        for first in range(0, len(parts), _PARTS):
            left = parts[first : first + _PARTS]
            while left:
                written = os.pwritev(fd, left, at)
                at += written
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if left:
                    left[0] = left[0][written:]
        return at

    def truncate(self, fd: int, size: int) -> None:
        """Truncate a file to `size` bytes."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Wait until the content of a file is on disk."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def rename(self, path: Path, to: Path) -> None:
        """Rename a file. Replaces a file of the new name."""
        path.rename(to)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are on disk."""
        sync_folder(folder)


REAL = Disk()


def write_new(disk: Disk, path: Path, chunks: Iterable[bytes]) -> int:
    """Write a new file and sync it. Return its size in bytes. Raise OSError, and remove the file then."""
    fd = disk.create(path, only_new=True)
    size = 0
    try:
        try:
            for chunk in chunks:
                size = disk.write(fd, [chunk], size)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            disk.remove(path)
        raise
    return size


def numbered(path: Path) -> Iterator[Path]:
    """Yield `path`, and then names with -2, -3 and so on, without end.

    Segment numbers start again after a start with an empty journal: files of earlier segments must not be overwritten.
    """
    return chain([path], (path.with_stem(f"{path.stem}-{number}") for number in count(2)))


def unused(path: Path) -> Path:
    """Return the first path of `numbered` that does not exist."""
    return next(candidate for candidate in numbered(path) if not exists(candidate))
