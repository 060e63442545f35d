"""A disk that loses unsynced writes: readers see the real disk, and a crash keeps a random part of the rest.

Each file has its content at the last sync and the changes since; each folder likewise has its names. A power loss keeps
the synced state and either the changes before a random moment or, for the content of a file, any of the changes.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tsd.ingest.journal.disk import Disk


class Crash(BaseException):
    """The process ends."""


class _Write(NamedTuple):
    at: int
    data: bytes


class _File:
    """One file: its synced content and the changes since."""

    def __init__(self) -> None:
        self.durable = b""
        self.changes: list[_Write | int] = []  # an int: truncated to that size


class _Named(NamedTuple):
    """A name was given to a file, or (None) removed."""

    path: Path
    file: _File | None


class SimulatedDisk(Disk):
    """The journal's disk. `full` and `broken` are its faults; `crash_in` counts calls down to a crash."""

    def __init__(self, rng: random.Random, on_death: Callable[[], None]) -> None:
        """`on_death` is called if a crash happens during a call."""
        super().__init__()
        self.full = False  # writes fail
        self.broken = False  # syncs fail
        self.crash_in: int | None = None
        self.dead = False
        self.calls = 0
        self._rng = rng
        self._on_death = on_death
        self._files: dict[Path, _File] = {}  # as readers see them
        self._durable: dict[Path, _File] = {}
        self._named: list[_Named] = []  # since the last sync of their folder
        self._fds: dict[int, _File] = {}

    def _enter(self) -> bool:
        """Count a call. Return whether the crash happens during it."""
        if self.dead:
            raise Crash
        self.calls += 1
        if self.crash_in is None:
            return False
        self.crash_in -= 1
        return self.crash_in <= 0

    def _die(self) -> None:
        self.dead = True
        self._on_death()
        raise Crash

    def create(self, path: Path, *, only_new: bool = False) -> int:
        if self._enter():
            self._die()
        if self.full and self._rng.random() < 0.2:
            raise OSError(errno.ENOSPC, "no room for a name", str(path))
        fd = super().create(path, only_new=only_new)
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = _File()
            self._named.append(_Named(path, file))
        else:
            file.changes.append(0)
        self._fds[fd] = file
        return fd

    def open(self, path: Path) -> int:
        if self._enter():
            self._die()
        fd = super().open(path)
        self._fds[fd] = self._files[path]
        return fd

    def write(self, fd: int, parts: Sequence[bytes | memoryview], at: int) -> int:
        dies = self._enter()
        data = b"".join(parts)
        cut = self._rng.randint(0, len(data)) if dies or self.full else len(data)
        self._fds[fd].changes.append(_Write(at, data[:cut]))
        super().write(fd, [data[:cut]], at)
        if dies:
            self._die()
        if self.full and data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return at + len(data)

    def truncate(self, fd: int, size: int) -> None:
        if self._enter():
            self._die()
        self._fds[fd].changes.append(size)
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        dies = self._enter()
        if dies and self._rng.random() < 0.5:
            self._die()
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        file = self._fds[fd]
        for change in file.changes:
            file.durable = _changed(file.durable, change)
        file.changes.clear()
        if dies:
            self._die()

    def close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        super().close(fd)  # a process that ends closes files too

    def rename(self, path: Path, to: Path) -> None:
        if self._enter():
            self._die()
        super().rename(path, to)
        file = self._files[to] = self._files.pop(path)
        self._named += [_Named(to, file), _Named(path, None)]

    def remove(self, path: Path) -> None:
        if self._enter():
            self._die()
        super().remove(path)
        if self._files.pop(path, None) is not None:
            self._named.append(_Named(path, None))

    def sync_folder(self, folder: Path) -> None:
        if self._enter():
            self._die()
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for named in self._named:
            if named.path.parent == folder:
                _name(self._durable, named)
        self._named = [named for named in self._named if named.path.parent != folder]

    def crash(self, *, power: bool) -> None:
        """Leave what the next process finds, and end all faults."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if power:
            self._lose()
        else:
            for file in self._files.values():
                for change in file.changes:
                    file.durable = _changed(file.durable, change)
                file.changes.clear()
        self._durable, self._named = dict(self._files), []
        self.dead = self.full = self.broken = False
        self.crash_in = None

    def _lose(self) -> None:
        found = dict(self._durable)
        for named in self._named[: self._rng.randint(0, len(self._named))]:
            _name(found, named)
        for path in self._files:
            path.unlink()
        ordered = self._rng.random() < 0.5
        for file in dict.fromkeys(found.values()):
            file.durable = self._left(file, ordered=ordered)
            file.changes = []
        for path, file in found.items():
            path.write_bytes(file.durable)
        self._files = found

    def _left(self, file: _File, *, ordered: bool) -> bytes:
        """Return what a power loss leaves of a file."""
        rng = self._rng
        if ordered:
            kept = file.changes[: rng.randint(0, len(file.changes))]
        else:
            kept = [change for change in file.changes if rng.random() < 0.5]
        if kept and isinstance(torn := kept[-1], _Write):
            kept[-1] = _Write(torn.at, torn.data[: rng.randint(0, len(torn.data))])
        content = file.durable
        for change in kept:
            content = _changed(content, change)
        return content


def _name(names: dict[Path, _File], named: _Named) -> None:
    if named.file is None:
        names.pop(named.path, None)
    else:
        names[named.path] = named.file


def _changed(content: bytes, change: _Write | int) -> bytes:
    if isinstance(change, int):
        return content[:change].ljust(change, b"\0")
    content = content.ljust(change.at, b"\0")
    return content[: change.at] + change.data + content[change.at + len(change.data) :]
