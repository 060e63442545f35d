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
        raise _unusable(folder, exc) from exc
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            raise DaemonRuns(f"state folder {folder}: process {owner or '?'} uses it") from exc
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            found = _format(folder)
        except OSError as exc:
            raise _unusable(folder, exc) from exc
        if found != FORMAT:
            raise TsdError(
                f"state folder {folder}: its format is {found!r}, this version knows {FORMAT!r}: "
                f"run the version that made it, or give another folder with --data"
            )
        yield
    finally:
        os.close(lock)


def _unusable(folder: Path, error: OSError) -> TsdError:
    return TsdError(f"state folder {folder}: {error.strerror}; give another with --data")


def _format(folder: Path) -> str:
    """What the folder says of itself; a new one is made to say FORMAT, whole or not at all."""
    path = folder / "format"
    if not path.exists():
        draft = folder / "format.new"
        with draft.open("w") as file:
            file.write(FORMAT + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    return path.read_text("latin-1").strip()


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
