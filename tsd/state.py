"""The state folder: one daemon's journal, embedded store and control socket, under a lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsd.errors import DaemonRuns, TsdError

FORMAT = "1"  # of the folder; a newer daemon's is not touched


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder is ours, made if it is absent. Raises DaemonRuns where another process has it, TsdError where it
    cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as exc:
        raise TsdError(f"state folder {folder}: {exc.strerror}; give another with --data") from exc
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            raise DaemonRuns(f"state folder {folder}: process {owner or '?'} uses it") from exc
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        _check_format(folder)
        yield
    finally:
        os.close(lock)


def _check_format(folder: Path) -> None:
    path = folder / "format"
    if not path.exists():
        path.write_text(FORMAT + "\n")
    found = path.read_text().strip()
    if found != FORMAT:
        raise TsdError(
            f"state folder {folder}: its format is {found!r}, this version knows {FORMAT!r}: "
            f"run the version that made it, or give another folder with --data"
        )


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A name for a socket at `path` that the kernel takes: it has room for 107 bytes only."""
    if len(os.fsencode(path)) <= 107:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
