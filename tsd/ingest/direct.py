"""Much at once → a file, past the kernel's page cache: it is read again after a crash alone.

To copy it into the page cache, and to find memory for it there, costs up to a third of all that is done for a put line,
and drives out what others read. Here it is copied to a place that the processor's caches hold.
"""

import errno
import fcntl
import os
import threading
from mmap import mmap
from typing import NamedTuple

PAGE_BYTES = 4096  # what offsets, lengths and memory are multiples of; hardly a disk wants more
_BUFFER_BYTES = 1 << 20


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
        """Write what it can of `parts` from byte `at` on, a multiple of PAGE_BYTES. Raises OSError, and then a part may
        be written."""
        left = Left(parts, at)
        if self._refused or not self._in_use.acquire(blocking=False):
            return left
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            try:
                while size := min(sum(map(len, left.parts)), _BUFFER_BYTES) // PAGE_BYTES * PAGE_BYTES:
                    begun, left = left.at, self._write(fd, left, size)
                    if left.at < begun + size:  # the disk is nearly full
                        break
            finally:
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            self._refused = True
        finally:
            self._in_use.release()
        return left

    def _write(self, fd: int, left: Left, size: int) -> Left:
        """Write so many bytes, at most."""
        self._buffer = self._buffer or mmap(-1, _BUFFER_BYTES)
        filled = 0
        for part in cut(left.parts, size)[0]:
            self._buffer[filled : filled + len(part)] = part
            filled += len(part)
        with memoryview(self._buffer) as buffer, buffer[:size] as whole:
            written = os.pwrite(fd, whole, left.at)
        return Left(cut(left.parts, written)[1], left.at + written)


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
