"""The journal's folder: one daemon's alone, even on a disk of its own. It says whose it is, and the state folder says
where it is while lines may wait in it, so that no line is replayed into another store, or forgotten in an old folder.

    state folder    id              32 hex digits, drawn once
                    journal-path    the journal's folder; absent where the last daemon left nothing in it
    journal folder  owner           the id, and the path of that state folder
                    adopted         ids of others whose segments are to be stored here; absent where there are none
                    journal.lock    the process that uses it
                    N.journal       segments, N of 16 digits; N.new while one is made
                    aside/          what was damaged, or another's
                    untold          how much was damaged, until a daemon is ready that counts it

A segment says whose daemon wrote it (segment.py). One of another that turns up beside ours, by a copy or a mount, is
put aside. Where the folder has no owner, an operator has renamed that file to have the segments stored here: its id is
what tells whose they are where they are damaged.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from tsd.errors import TsdError
from tsd.ingest.segment import read_header
from tsd.state import STATE, Kind, in_words, locked, write_whole

log = structlog.get_logger(__name__)

JOURNAL = Kind("journal folder", "tsd.journal.path")
_SEGMENT = re.compile(r"[0-9]{16}")
_IDENTITY = re.compile(r"[0-9a-f]{32}")


def segment_path(folder: Path, number: int) -> Path:
    """Where a segment is."""
    return folder / f"{number:016d}.journal"


def number_of(path: Path) -> int | None:
    """The number that segment_path was given; None for a file that is not the journal's."""
    return int(path.stem) if _SEGMENT.fullmatch(path.stem) else None


def segment_paths(folder: Path) -> list[Path]:
    """The segments in a folder, oldest first."""
    return [path for path in sorted(folder.glob("*.journal")) if number_of(path) is not None]


@contextmanager
def held_journal(folder: Path, state: Path) -> Iterator[None]:
    """The journal's folder is ours, made if it is absent; `state`, which must be held, remembers it until nothing waits
    in it. Raises DaemonRuns where another process has it, TsdError where it belongs to another state folder, where
    lines wait in an earlier one, and where it cannot be used."""
    with in_words(state, STATE):
        own = identity(state)
        _check_left(folder, state, own)
    with locked(folder, "journal.lock", JOURNAL):
        with in_words(folder, JOURNAL):
            _claim(folder, state, own)
            # Last: where this names a folder, there was an owner in it.
            write_whole(_remembered(state), os.fsencode(_named(folder, state)))
        try:
            yield
        finally:
            with suppress(OSError):  # it is only remembered longer than need be
                if not segment_paths(folder):
                    _adopted(folder).unlink(missing_ok=True)
                    _remembered(state).unlink()


def identity(state: Path) -> str:
    """What tells a state folder from others, wherever it is moved."""
    path = state / "id"
    if not path.exists() or not path.read_bytes().strip():
        write_whole(path, f"{secrets.token_hex(16)}\n".encode())
    return path.read_text("latin-1").strip()


def adopted(folder: Path) -> frozenset[str]:
    """Whose segments are stored here although another daemon wrote them."""
    try:
        return frozenset(_adopted(folder).read_text("latin-1").split())
    except FileNotFoundError:
        return frozenset()


def _adopted(folder: Path) -> Path:
    return folder / "adopted"


def _adopt(folder: Path, own: str) -> None:
    """Take what others wrote into a folder without owner for ours, from now on."""
    found = {read_header(path).owner for path in segment_paths(folder) if path.is_file()}
    former = _owner(folder, "owner.was")
    if found and former is not None and _IDENTITY.fullmatch(former[0]):
        found.add(former[0])
    others = sorted(other for other in found if other is not None and other != own)
    if others:
        log.warning("the journal had no owner: segments of other daemons are stored here", of=", ".join(others))
        write_whole(_adopted(folder), "".join(f"{other}\n" for other in others).encode())


def _owner(folder: Path, name: str = "owner") -> tuple[str, Path] | None:
    """Id and path of the state folder that a journal belongs to; None where nobody has claimed it."""
    try:
        text = (folder / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last is of a name that no folder can have
        return None
    identity, _, state = text.partition(b"\n")
    return (identity.decode("latin-1"), Path(os.fsdecode(state))) if identity else None


def _claim(folder: Path, state: Path, own: str) -> None:
    """Make the folder say that it is ours, unless it is another's."""
    owner = _owner(folder)
    if owner is not None and owner[0] != own:
        if owner[1] == state:
            raise TsdError(
                f"state folder {state}: its identity is {own!r}, and {folder / 'owner'} has another one for it: one of "
                f"the two files is damaged ({state / 'id'} should be the other's first line), or the state folder was "
                f"made anew. To have the lines there stored here, rename {folder / 'owner'} to owner.was"
            )
        raise TsdError(
            f"journal folder {folder}: it belongs to state folder {owner[1]}, not to {state}; give another with "
            f"tsd.journal.path, or, to have its lines stored here, rename {folder / 'owner'} to "
            "owner.was"
        )
    if not _IDENTITY.fullmatch(own):
        raise TsdError(
            f"state folder {state}: its identity is {own!r}, wanted 32 hex digits: {state / 'id'} is damaged"
        )
    if owner is None:
        _adopt(folder, own)  # before the folder is ours, or a crash would have them put aside
    if owner is None or owner[1] != state:
        write_whole(folder / "owner", f"{own}\n".encode() + os.fsencode(state))


def _check_left(folder: Path, state: Path, own: str) -> None:
    """Raise TsdError where lines may wait in the folder that the last daemon used, and `folder` is not that."""
    remembered = _remembered(state)
    if not remembered.exists() or not (text := remembered.read_bytes()):
        return
    left = state / os.fsdecode(text)
    owner = _owner(left)
    if owner is None:
        raise TsdError(
            f"journal folder {left}: the last daemon was cut off while it used it, and it is not there now; bring it "
            f"back, or, if lines that wait in it may be lost, remove {remembered}"
        )
    if os.path.realpath(left) == os.path.realpath(folder) or owner[0] != own:
        return
    if segment_paths(left):
        raise TsdError(
            f"journal folder {left}: accepted lines wait in it, and tsd.journal.path is {folder} now; start once with "
            f"tsd.journal.path={left}"
        )


def _remembered(state: Path) -> Path:
    return state / "journal-path"


def _named(folder: Path, state: Path) -> Path:
    """The journal's folder, in a way that holds when the state folder is moved with the journal in it."""
    return folder.relative_to(state) if folder.is_relative_to(state) else folder
