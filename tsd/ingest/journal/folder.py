"""The journal's folder, used by one daemon only; it may be on a disk of its own. The folder names its owner, and the
state folder names the folder while lines may wait in it. So no line is replayed into another store or forgotten in an
old folder.

    state folder    id              32 hex digits, drawn once
                    journal-path    the journal's folder; absent where the last daemon left nothing in it
    journal folder  owner           the id, and the path of that state folder
                    adopted         ids of other daemons; their segments are stored here. Absent if there are none
                    journal.lock    the process that uses it
                    N.journal       segments, N of 16 digits; N.new while one is made
                    quarantine/     damaged parts, and segments of other daemons
                    pending-damage  how many lines were damaged, until a daemon that counted them is ready

A segment says whose daemon wrote it (segment.py). One of another daemon, which a copy or a mount brought here, is
quarantined. If the folder has no owner, an operator has renamed that file to have its segments stored here. Then the
file's id identifies damaged ones.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path

from tsd.config.files import exists, is_file, with_suffix
from tsd.config.state_dir import IDENTITY, JOURNAL, STATE, folder_errors, lock_folder, sync_folder, write_atomically
from tsd.errors import TsdError
from tsd.ingest.journal.segment import read_header
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)

_SEGMENT = re.compile(r"[0-9]{16}")
_IDENTITY = re.compile(r"[0-9a-f]{32}")


class Conflict(Enum):
    """The reason why a daemon may not use a journal's folder."""

    OTHER_OWNER = auto()  # it belongs to another state folder
    OTHER_IDENTITY = auto()  # it belongs to this state folder, which has another identity now
    INVALID_IDENTITY = auto()  # the state folder's identity is damaged
    LINES_WAIT = auto()  # accepted lines wait in the folder that the last daemon used
    MISSING = auto()  # the folder that the last daemon used is not there


class JournalConflict(TsdError):
    """A journal's folder that this daemon may not use: `folder`, and the `conflict`."""

    def __init__(self, conflict: Conflict, folder: Path, message: str) -> None:
        super().__init__(message)
        self.conflict = conflict
        self.folder = folder


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of segment `number`."""
    return folder / f"{number:016d}.journal"


def number_of(path: Path) -> int | None:
    """Return the number in a segment's path, or None for another file."""
    return int(path.stem) if _SEGMENT.fullmatch(path.stem) else None


def segment_paths(folder: Path) -> list[Path]:
    """Return the paths of a folder's segments, oldest first."""
    return [path for path in with_suffix(folder, ".journal") if number_of(path) is not None]


@contextmanager
def held_journal(folder: Path, state: Path) -> Iterator[None]:
    """Lock the journal's folder for the block, and make it if it is absent. `state`, which must be locked, names it
    until no lines wait in it. Raise DaemonRuns if another process has locked it, TsdError if it cannot be used. Raise
    JournalConflict if it belongs to another state folder, or if lines wait in an earlier folder."""
    with folder_errors(state, STATE):
        own = identity(state)
        _check_left(folder, state, own)
    with lock_folder(folder, "journal.lock", JOURNAL):
        with folder_errors(folder, JOURNAL):
            _claim(folder, state, own)
            # Last: where this names a folder, there was an owner in it.
            write_atomically(_path_record(state), os.fsencode(_named(folder, state)))
        try:
            yield
        finally:
            with suppress(OSError):  # the record only stays longer than needed
                if not segment_paths(folder):
                    sync_folder(folder)  # a command may delete points of removed segments before the next start
                    _adopted(folder).unlink(missing_ok=True)
                    _path_record(state).unlink()


def identity(state: Path) -> str:
    """Return the identity of a state folder, which it keeps when it is moved. Draw one if it has none."""
    path = state / IDENTITY
    if not exists(path) or not path.read_bytes().strip():
        write_atomically(path, f"{secrets.token_hex(16)}\n".encode())
    return path.read_text("latin-1").strip()


def adopted(folder: Path) -> frozenset[str]:
    """Return the identities of other daemons whose segments are stored here."""
    try:
        return frozenset(_adopted(folder).read_text("latin-1").split())
    except FileNotFoundError:
        return frozenset()


def _adopted(folder: Path) -> Path:
    return folder / "adopted"


def _adopt(folder: Path, own: str) -> None:
    """Record the writers of the segments in a folder without owner as adopted."""
    found = {read_header(path).owner for path in segment_paths(folder) if is_file(path)}
    former = _owner(folder, "owner.was")
    if found and former is not None and _IDENTITY.fullmatch(former[0]):
        found.add(former[0])
    others = sorted(other for other in found if other is not None and other != own)
    if others:
        log.warning("journal.foreign_segments_adopted", of=", ".join(others))
        write_atomically(_adopted(folder), "".join(f"{other}\n" for other in others).encode())


def _owner(folder: Path, name: str = "owner") -> tuple[str, Path] | None:
    """Return id and path of the state folder that a journal belongs to, or None."""
    try:
        text = (folder / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last is of a name that no folder can have
        return None
    identity, _, state = text.partition(b"\n")
    return (identity.decode("latin-1"), Path(os.fsdecode(state))) if identity else None


def _claim(folder: Path, state: Path, own: str) -> None:
    """Write this daemon into the folder's owner file. Raise JournalConflict if it names another."""
    owner = _owner(folder)
    if owner is not None and owner[0] != own:
        if owner[1] == state:
            raise JournalConflict(
                Conflict.OTHER_IDENTITY,
                folder,
                f"state folder {state}: its identity is {own!r}, and {folder / 'owner'} has another one for it: one of "
                f"the two files is damaged ({state / 'id'} should be the other's first line), or the state folder was "
                f"recreated. To have the lines there stored here, rename {folder / 'owner'} to owner.was",
            )
        raise JournalConflict(
            Conflict.OTHER_OWNER,
            folder,
            f"journal folder {folder}: it belongs to state folder {owner[1]}, not to {state}; set another with "
            f"tsd.journal.path, or, to have its lines stored here, rename {folder / 'owner'} to "
            "owner.was",
        )
    if not _IDENTITY.fullmatch(own):
        raise JournalConflict(
            Conflict.INVALID_IDENTITY,
            folder,
            f"state folder {state}: its identity is {own!r}, wanted 32 hex digits: {state / 'id'} is damaged",
        )
    if owner is None:
        _adopt(folder, own)  # before the folder is ours, or a crash would have them quarantined
    if owner is None or owner[1] != state:
        write_atomically(folder / "owner", f"{own}\n".encode() + os.fsencode(state))


def used_journal(folder: Path, state: Path) -> Path:
    """Return the folder where accepted lines of a state folder may wait: that which its daemon uses or did not leave
    empty, or else `folder`. Raise JournalConflict if it is missing, TsdError if it cannot be read."""
    with folder_errors(state, STATE):
        left = _left(state)
        return folder if left is None or left[1] != identity(state) else left[0]


def _left(state: Path) -> tuple[Path, str] | None:
    """Return the folder that the last daemon uses or did not leave empty, and whose it is. Raise JournalConflict."""
    record = _path_record(state)
    if not exists(record) or not (text := record.read_bytes()):
        return None
    left = state / os.fsdecode(text)
    owner = _owner(left)
    if owner is None:
        raise JournalConflict(
            Conflict.MISSING,
            left,
            f"journal folder {left}: it is missing, and the last daemon did not stop cleanly while it used it; bring "
            f"it back, or, if lines that wait in it may be lost, remove {record}",
        )
    return left, owner[0]


def _check_left(folder: Path, state: Path, own: str) -> None:
    """Raise JournalConflict if lines may wait in the folder that the last daemon used, and `folder` is another."""
    found = _left(state)
    if found is None:
        return
    left, owner = found
    if os.path.realpath(left) == os.path.realpath(folder) or owner != own:
        return
    if segment_paths(left):
        raise JournalConflict(
            Conflict.LINES_WAIT,
            left,
            f"journal folder {left}: accepted lines wait in it, and tsd.journal.path is {folder} now; start once with "
            f"tsd.journal.path={left}",
        )


def _path_record(state: Path) -> Path:
    return state / "journal-path"


def _named(folder: Path, state: Path) -> Path:
    """Return the journal's folder, relative to a state folder that contains it, so that both can be moved."""
    return folder.relative_to(state) if folder.is_relative_to(state) else folder
