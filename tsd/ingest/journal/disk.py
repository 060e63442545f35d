"""The journal's calls of the disk. All may block and raise OSError.

They are a class so that a simulation can replace them by a disk that is slow, fails, and loses unsynced data.

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

from tsd.config.state_dir import sync_folder

PAGE_BYTES = 4096  # what offsets, lengths and memory are multiples of; hardly a disk wants more
_BUFFER_BYTES = 1 << 20
_CANNOT = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}  # as some file systems answer


class Left(NamedTuple):
    """What is still to be written, and where."""

    parts: list[memoryview]
    at: int


class DirectWriter:
    """Writes whole pages. Where a file system cannot, nothing from then on."""

    def __init__(self) -> None:
        self._buffer: mmap | None = None
        self._in_use = threading.Lock()
        self._refused = not hasattr(os, "O_DIRECT")

    def write(self, fd: int, parts: list[memoryview], at: int) -> Left:
        """Write what it can of `parts` from byte `at` on, a multiple of PAGE_BYTES. What is left is for the page cache,
        which says what is wrong if anything is: a part of it may be written already."""
        if self._refused or not self._in_use.acquire(blocking=False):
            return Left(parts, at)
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
            self._refused = exc.errno in _CANNOT
        finally:
            self._in_use.release()
        return Left(list(left), at)

    def _write(self, fd: int, left: deque[memoryview], wanted: int, at: int) -> int:
        """Write so many bytes, at most: how many. They are no longer `left`."""
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
    """The first `size` bytes of them, and the others.

    >>> [[bytes(part) for part in some] for some in cut([memoryview(b"ab"), memoryview(b"cde")], 3)]
    [[b'ab', b'c'], [b'de']]
    """
    for number, part in enumerate(parts):
        if len(part) > size:
            return [*parts[:number], part[:size]], [part[size:], *parts[number + 1 :]]
        size -= len(part)
    return parts, []


_PARTS = 512  # of one writev
_MUCH_BYTES = 256 << 10  # of one write


class Disk:
    """The real one. A change is there for readers at once, and survives a crash once its file, or where a name changed
    its folder, was synced."""

    def __init__(self) -> None:
        self._direct = DirectWriter()

    def create(self, path: Path, *, only_new: bool = False) -> int:
        """A descriptor of an empty file; with `only_new` there must be none of that name."""
        way = os.O_EXCL if only_new else os.O_TRUNC
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | way, 0o640)

    def open(self, path: Path) -> int:
        """A descriptor of a file that is there."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, fd: int, parts: Sequence[bytes], at: int) -> int:
        """Write all of `parts` from byte `at` on, and where they end. A short write, as on a nearly full disk, is gone
        on with until it fails: a part may then be written."""
        views = [memoryview(part) for part in parts if part]
        if sum(map(len, views)) >= _MUCH_BYTES:
            head, views = cut(views, -at % PAGE_BYTES)
            views, at = self._direct.write(fd, views, self._write(fd, head, at))
        return self._write(fd, views, at)

    def _write(self, fd: int, parts: list[memoryview], at: int) -> int:
        """By way of the page cache."""
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
        """Cut a file to a size."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return once what a file holds is on disk."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def rename(self, path: Path, to: Path) -> None:
        """Give a file another name."""
        path.rename(to)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Return once the names in a folder are on disk."""
        sync_folder(folder)


REAL = Disk()


def write_new(disk: Disk, path: Path, chunks: Iterable[bytes]) -> int:
    """A new file of these bytes, on disk when this returns; its size. Where anything fails nothing is left of it."""
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
    """`path`, and without end others of its kind: segments are counted anew after a start with an empty journal, and
    what an earlier one left must not be overwritten."""
    return chain([path], (path.with_stem(f"{path.stem}-{number}") for number in count(2)))


def unused(path: Path) -> Path:
    """`path`, or where that is taken the first of its kind that is free."""
    return next(candidate for candidate in numbered(path) if not candidate.exists())
