"""What the journal has the disk do, call by call.

It stands for itself so that a simulation can put one in its place that is slow, refuses, and forgets at a crash what
was not synced. All calls may raise OSError, and block.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from tsd.ingest.direct import PAGE_BYTES, DirectWriter, cut
from tsd.state import sync_folder

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
