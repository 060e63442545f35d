"""The state folder: one daemon's journal, embedded store and control socket, under a lock."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tsd.errors import DaemonRuns, NewerState, TsdError

# Of the folder; in 1 the journal's segments do not say whose they are, up to 2 the embedded store packs no cells, up to
# 3 no series share entries of its index, and up to 4 the CRCs of the journal's blocks do not cover where they stand. A
# newer daemon's folder is not touched, an older one's is used, and is of this format once something is written to it.
FORMAT = 5
_NUMBER = re.compile(r"[0-9]{1,9}")
_SHOWN = 60  # of what is no number


class Kind(NamedTuple):
    """What a folder is for, and how another one is named, in the words of messages."""

    name: str
    option: str


STATE = Kind("state folder", "--data")


@contextmanager
def held(folder: Path, *, writes: bool = True) -> Iterator[None]:
    """The state folder is ours, made if it is absent; unless its owner `writes`, it may go on being of an older format.
    Raises DaemonRuns where another process has it, NewerState where another version does, TsdError where it cannot be
    used."""
    with locked(folder, "lock", STATE):
        with in_words(folder, STATE):
            _enter_format(folder, writes=writes)
        yield


@contextmanager
def locked(folder: Path, name: str, kind: Kind) -> Iterator[None]:
    """A folder that is made if it is absent, under the lock file `name` in it. Raises as `held` does."""
    with in_words(folder, kind):
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        with in_words(folder, kind):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
                raise DaemonRuns(f"{kind.name} {folder}: process {owner or '?'} uses it") from exc
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def lock_holder(path: Path) -> int | None:
    """The process that has locked a file, as the kernel lists it; None where that cannot be told. The file is not
    opened: a process that closes one loses its own locks on it."""
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    holders = [words[4] for line in lines if len(words := line.split()) > 5 and words[5] == place and words[1] != "->"]
    return int(holders[0]) if holders and int(holders[0]) > 0 else None


@contextmanager
def in_words(folder: Path, kind: Kind) -> Iterator[None]:
    """What the system says of a folder in this block, as a TsdError."""
    try:
        yield
    except OSError as exc:
        raise TsdError(f"{kind.name} {folder}: {exc.strerror}; give another with {kind.option}") from exc


def _enter_format(folder: Path, *, writes: bool) -> None:
    """Have the folder say that it is of FORMAT, if it may: one that says nothing is new, or was cut off in being made.
    One of an older format stays so for who only reads. Raises TsdError."""
    path = folder / "format"
    found = path.read_text("latin-1").strip() if path.exists() else ""
    if found and not _NUMBER.fullmatch(found):
        raise TsdError(
            f"state folder {folder}: its format is {found[:_SHOWN]!r}, wanted a number: {path} is damaged. If no "
            f"newer version has used the folder, write {FORMAT} into it"
        )
    if found and int(found) > FORMAT:
        raise NewerState(
            f"state folder {folder}: a newer version has used it, its format is {found}, this version knows {FORMAT}: "
            f"run the newer one, or give another folder with --data"
        )
    if not found or (writes and int(found) < FORMAT):
        write_whole(path, f"{FORMAT}\n".encode())


def write_whole(path: Path, text: bytes) -> None:
    """Have a file say `text`, on disk, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names in a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
