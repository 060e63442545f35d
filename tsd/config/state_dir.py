"""The state folder: one daemon's journal, embedded store and control socket, under a lock."""

import errno
import fcntl
import json
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tsd.config.files import exists, is_file
from tsd.errors import BadConfig, DaemonRuns, NewerState, TsdError

RESTORATION = "restoration"  # file in a state folder whose restoration from a backup has not ended
IDENTITY = "id"  # file with a random number, which the folder keeps when it is moved
FIRST_FORMAT = 1
FORMAT = 2  # written to the folder's file `format`; since 2 the journal may have lines as columns
STATE_FOLDERS = ("store", "journal", "refused")  # of files that may be older than their folder's permissions
# What a folder may have before its first use: a mount, an interrupted start or a command on a remote store made it, or
# an operator put it back.
PARTS = frozenset(
    """
    lock format.new id journal journal-path refused rejected control.sock matplotlib
    lost+found aquota.user aquota.group CACHEDIR.TAG
    """.split()
)
_USUAL = re.compile(r"[.]|.*[.](conf|json|log)\b", re.DOTALL)  # also tsd.conf~, daemon.log.1 and compact.json.lock
OTHERS = 0o027  # permissions that no file of a state folder has
_NUMBER = re.compile(r"[0-9]{1,9}")
ROOT = 0  # the user
_SHOWN_NAMES = 5  # of files in an error
_SHOWN_CHARS = 60  # characters of a damaged file in an error


class FolderKind(NamedTuple):
    """Name of a folder in errors, and the option that sets another folder."""

    name: str
    option: str


STATE = FolderKind("state folder", "--data")
JOURNAL = FolderKind("journal folder", "tsd.journal.path")


def absolute(path: str) -> Path:
    """Return the path of a folder of settings. Raise TsdError if it depends on a working folder that was removed."""
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError as exc:
        raise TsdError(
            f"folder {path}: the working folder was removed; change to another, or set a whole path"
        ) from exc


@contextmanager
def lock_state(folder: Path, kind: FolderKind = STATE, files: Iterable[Path] = ()) -> Iterator[None]:
    """Make the state folder if it is absent, lock it for the block, and check its format. `files` are those that
    settings name, which may be in it before its first use.

    Raise BadConfig if it is probably a wrong one, DaemonRuns if another process has locked it, and NewerState if its
    format is newer. Raise TsdError if it cannot be used.
    """
    check_content(folder, kind, files)
    check_owner(folder, kind)
    with private_files(), lock_folder(folder, "lock", kind):
        with folder_errors(folder, kind):
            _check_restored(folder)
            _restrict(folder)
            _check_format(folder, kind)
        yield


def check_content(folder: Path, kind: FolderKind = STATE, files: Iterable[Path] = ()) -> None:
    """Raise BadConfig if a folder has no state and other files than `files`: it is probably a wrong one. Hidden files,
    configuration files, checkpoints, logs, parts of a state folder and empty folders may be there. One that cannot be
    read is not checked."""
    others: list[str] = []
    with suppress(OSError):
        if not any(exists(folder / name) for name in ("format", "store", RESTORATION)):
            known = {*PARTS, *_names_below(folder, files)}
            found = [path for path in folder.iterdir() if path.name not in known and not _USUAL.match(path.name)]
            others = sorted(path.name for path in found if not _is_empty_folder(path))
    if others:
        named = ", ".join(others[:_SHOWN_NAMES]) + (", …" if len(others) > _SHOWN_NAMES else "")
        wanted = (
            f"wanted a folder that tsd has used, or an empty or missing one: give it with {kind.option}, or move the "
            "files to another folder"
        )
        raise BadConfig([f"{kind.name} {folder}: it has other files ({named}) and no store, {wanted}"])


def _is_empty_folder(path: Path) -> bool:
    with suppress(OSError):  # it is a file, or its files belong to another user
        return not any(path.iterdir())
    return False


def _names_below(folder: Path, files: Iterable[Path]) -> Iterator[str]:
    """Yield the names in a folder that lead to files, also where one path has links and the other has not."""
    real = folder.resolve()
    for path in files:
        for place, file in ((folder, path), (real, path.parent.resolve() / path.name)):
            if place in file.parents:
                yield file.relative_to(place).parts[0]


def check_owner(folder: Path, kind: FolderKind = STATE) -> None:
    """Raise TsdError if root would make files in another user's state folder: that user's daemon could not write them.
    One that root has used before is root's."""
    with folder_errors(folder, kind):
        owner = folder.stat().st_uid if exists(folder) else ROOT
        lock = folder / "lock"
        if os.geteuid() == ROOT != owner and not (exists(lock) and lock.stat().st_uid == ROOT):
            raise TsdError(
                f"{kind.name} {folder} belongs to user {_user(owner)}, who could not write the files of this process, "
                "which is of user 0 (root). Run it as that user, for example with sudo -u, or while the daemon runs"
            )


@contextmanager
def private_files() -> Iterator[None]:
    """Create files in the block without permissions for other users, and without write permission for the group."""
    before = os.umask(0o077)
    os.umask(before | OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def _restrict(folder: Path) -> None:
    """Remove other users' permissions from a state folder that existed before, and from its files.

    Only the folder and what is in STATE_FOLDERS: with a wrong --data, the folder may have other content.
    """
    if exists(folder / "format") or {path.name for path in folder.iterdir()} <= {"lock"}:
        _restrict_one(folder)
    for name in STATE_FOLDERS:
        for parent, _, files in os.walk(folder / name):  # does not follow links
            _restrict_one(Path(parent))
            for file in files:
                _restrict_one(Path(parent, file))


def _restrict_one(path: Path) -> None:
    """Restrict a file or folder of this user. Links, and what belongs to another user, are left as they are."""
    status = path.lstat()
    mode = _restricted(status.st_mode)
    if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and mode != stat.S_IMODE(status.st_mode):
        path.chmod(mode)


def _restricted(mode: int) -> int:
    """Return permissions without those of other users, and without the group's to write.

    >>> oct(_restricted(0o100664)), oct(_restricted(0o40777))
    ('0o640', '0o750')
    """
    return stat.S_IMODE(mode) & ~OTHERS


@contextmanager
def lock_folder(folder: Path, name: str, kind: FolderKind) -> Iterator[None]:
    """Make a folder if it is absent, and lock its lock file `name` for the block. Raise DaemonRuns, TsdError."""
    with folder_errors(folder, kind):
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        is_new = not exists(folder / name)
        lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if is_new:
            _give(lock, folder)
    try:
        with folder_errors(folder, kind):
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


def check_folder(folder: Path, kind: FolderKind) -> None:
    """Raise TsdError, as `lock_folder` does, if a file has the path of a folder or of one above it. The folder may be
    absent, or accessible only to another user."""
    with folder_errors(folder, kind), suppress(FileNotFoundError, PermissionError):
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def _give(file: int, folder: Path) -> None:
    """Have an open file of root belong to the owner of its folder, whose processes use it later. Raise OSError."""
    if os.geteuid() == ROOT and os.fstat(file).st_uid == ROOT != (status := folder.stat()).st_uid:
        os.fchown(file, status.st_uid, status.st_gid)


def lock_holder(path: Path) -> int | None:
    """Return the process that has locked a file, as the kernel lists it; None if it is unknown.

    The file is not opened: a process that closes a file loses its own locks on it.
    """
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    holders = [words[4] for line in lines if len(words := line.split()) > 5 and words[5] == place and words[1] != "->"]
    return int(holders[0]) if holders and int(holders[0]) > 0 else None


@contextmanager
def folder_errors(folder: Path, kind: FolderKind) -> Iterator[None]:
    """Raise OSErrors of the block as TsdErrors that name the folder."""
    try:
        yield
    except OSError as exc:
        hint = "run this as its user, for example with sudo -u, or " if _is_denied(exc, folder) else ""
        raise TsdError(f"{kind.name} {folder}: {_reason(exc, folder)}; {hint}set another with {kind.option}") from exc


def _is_denied(error: OSError, folder: Path) -> bool:
    """Return whether the folder of another user, who is not root, denies access."""
    try:
        return isinstance(error, PermissionError) and folder.stat().st_uid not in (os.geteuid(), ROOT)
    except OSError:
        return False


def _user(number: int) -> str:
    """Return the number and the name of a user."""
    try:
        return f"{number} ({pwd.getpwuid(number).pw_name})"
    except KeyError:
        return str(number)


def _reason(error: OSError, folder: Path) -> str:
    """Return an error with the file below the folder that it is about, and where that denies access its owner."""
    path = Path(os.fsdecode(error.filename or folder))
    text = str(error.strerror) if path == folder else f"{path}: {error.strerror}"
    own = os.geteuid()
    for known in (path, *path.parents):
        with suppress(OSError):  # there is no such file, or it is in a folder without access
            owner = known.stat().st_uid
            if isinstance(error, PermissionError) and owner != own:
                text += f" ({known} belongs to user {_user(owner)}, and this process is of user {_user(own)})"
            break
    return text


def write_restoration(folder: Path, backup: Path, files: Mapping[str, int]) -> None:
    """Mark a state folder as lacking files until they are restored: `files` are sizes by path. Raise OSError."""
    about = {"backup": str(backup), "files": files}
    write_atomically(folder / RESTORATION, json.dumps(about).encode())


def lacking(folder: Path) -> str | None:
    """Return what a folder lacks whose restoration has not ended. None: there is no such restoration."""
    try:
        about = json.loads((folder / RESTORATION).read_bytes())
        lacks = [path for path, size in about["files"].items() if not _has_size(Path(path), size)]
        backup = about["backup"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return "it was being restored from a backup, and it is not known what it lacks"
    named = f", among them {lacks[0]}" if lacks else ""
    return f"it was being restored from {backup}, and lacks {len(lacks)} of {len(about['files'])} files{named}"


def restored_files(folder: Path) -> list[Path]:
    """Return the files of a folder's restoration that has not ended; none if they are not known."""
    try:
        return [Path(path) for path in json.loads((folder / RESTORATION).read_bytes())["files"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def remove_restored(folder: Path) -> None:
    """Remove the files of a restoration that has not ended, for one of another backup. Raise OSError."""
    real = os.path.realpath(folder)
    for path in restored_files(folder):
        if Path(os.path.realpath(path)).is_relative_to(real):
            path.unlink(missing_ok=True)


def _has_size(path: Path, size: int) -> bool:
    return is_file(path) and path.stat().st_size == size


def _check_restored(folder: Path) -> None:
    """Raise TsdError if the folder's restoration has not ended."""
    if lacks := lacking(folder):
        raise TsdError(f"state folder {folder}: {lacks}. Run tsd restore again, which starts over")


def _check_format(folder: Path, kind: FolderKind) -> None:
    """Check the folder's format, and write this version's into a folder of an earlier one, or without one: a new
    folder. Raise TsdError."""
    path = folder / "format"
    found = path.read_text("latin-1").strip() if exists(path) else ""
    if found and not _NUMBER.fullmatch(found):
        raise TsdError(
            f"state folder {folder}: its format is {found[:_SHOWN_CHARS]!r}, wanted a number: {path} is damaged. If "
            f"no newer version has used the folder, write {FORMAT} into it"
        )
    number = int(found or FIRST_FORMAT)
    if number > FORMAT:
        raise NewerState(
            f"state folder {folder}: a newer version has used it, its format is {found}, this version knows {FORMAT}: "
            f"run the newer one, or give another folder with {kind.option}"
        )
    if number < FIRST_FORMAT:
        raise TsdError(f"state folder {folder}: its format is {found}, wanted {FORMAT}: {path} is damaged")
    if not found or number < FORMAT:  # without one it is new, or the process that made it was killed
        write_atomically(path, f"{FORMAT}\n".encode())


def write_atomically(path: Path, text: bytes) -> None:
    """Replace a file's contents and sync them: after a crash it has all of the text or the old contents."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        _give(file.fileno(), path.parent)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names of a folder's files to disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address for a socket at `path`, which may exceed the kernel's limit of 107 bytes."""
    if len(os.fsencode(path)) <= 107:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
