"""Much at once → a file, past the kernel's page cache: it is read again after a crash alone.

To copy it into the page cache, and to find memory for it there, costs up to a third of all that is done for a put line,
and drives out what others read. Here it is copied to a place that the processor's caches hold.
"""

import errno
import fcntl
import os
import threading
from collections import deque
from mmap import mmap
from typing import NamedTuple

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
