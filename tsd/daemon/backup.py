"""Backups of a state folder: their files, how they are made while the daemon runs, and how they are restored.

    FOLDER/2026-11-23T15-24-00Z/
        backup.json    the manifest: size of each file, and `complete` once all files are on disk
        state/         files of the state folder: its identity and format, refused and rejected lines
        journal/       lines that were not in the store yet
        store/         a snapshot of the embedded store

The journal is copied before the snapshot is taken. A line leaves the journal only when its point is in the store, so
every acknowledged line is in one of the two or in both. Segments leave it oldest first. A copy of one that has left
while others were copied is removed again: without the segments after it, its lines would replace newer values. If all
of them have left when the snapshot is taken, it may have newer values, or lack deleted points. Then both are made anew.
A refused line moves from the journal to a file of the state folder, so the state folder is copied second.

The store's files never change once they are written. A file that an earlier backup in the same FOLDER has is a hard
link to it, not a copy.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tsd import version
from tsd.config.files import exists, is_file, is_folder
from tsd.config.state_dir import RESTORATION, sync_folder, write_atomically
from tsd.errors import TsdError
from tsd.ingest.journal.folder import segment_paths
from tsd.ingest.journal.segment import HEADER_BYTES, Damage, header, read_header, read_pieces
from tsd.tables.opentsdb.rollup_progress import ROLLUPS_FILE, with_later_days

FORMAT = 1
MANIFEST = "backup.json"
STATE, JOURNAL, STORE = "state", "journal", "store"
SNAPSHOT = "snapshot.tmp"  # in the state folder, while a backup is made
LOCK = "backup.lock"  # in the state folder: one backup at a time
LOST_FOUND = "lost+found"  # in the root of a file system, of the user root: it has no file of the daemon
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ(?:-\d+)?")
_IMMUTABLE = re.compile(r"\d+\.(?:sst|blob)")
_NOT_COPIED = frozenset(
    {"store", "journal", "lock", "journal-path", "control.sock", "matplotlib", SNAPSHOT, LOCK, RESTORATION}
)


class BrokenBackup(TsdError):
    """A backup that cannot be restored: it is not complete, or files are missing."""


class Manifest(NamedTuple):
    """The manifest of a backup: its file `backup.json`."""

    identity: str  # of the state folder
    made: str  # UTC, ISO 8601
    complete: bool
    files: Mapping[str, int]  # bytes by path in the backup's folder

    @property
    def bytes(self) -> int:
        """Return the bytes of all files; those shared with other backups count as well."""
        return sum(self.files.values())


def read_manifest(backup: Path) -> Manifest:
    """Return a backup's manifest. Raise BrokenBackup."""
    path = backup / MANIFEST
    try:
        read = json.loads(path.read_bytes())
        if read["format"] != FORMAT:
            raise BrokenBackup(f"{path}: its format is {read['format']!r}, wanted {FORMAT}: another version made it")
        found = Manifest(
            read["identity"],
            read["made"],
            read["complete"] is True,
            {name: int(size) for name, size in read["files"].items()},
        )
    except OSError as exc:
        raise BrokenBackup(f"{backup} is no backup: {MANIFEST}: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise BrokenBackup(f"{path} is damaged: {exc!r}") from exc
    for name in found.files:
        _check_name(name, path)
    return found


def _check_name(name: str, manifest: Path) -> None:
    """Raise BrokenBackup for a file outside the folders of a backup: a restoration would write it anywhere."""
    parts = Path(name).parts
    if len(parts) < 2 or parts[0] not in (STATE, JOURNAL, STORE) or ".." in parts:
        raise BrokenBackup(
            f"{manifest} is damaged: got the file {name!r}, wanted one below {STATE}, {JOURNAL} or {STORE}"
        )


def write_manifest(backup: Path, manifest: Manifest) -> None:
    """Write a backup's manifest. Raise OSError."""
    about = {"format": FORMAT, "version": version(), **manifest._asdict()}
    write_atomically(backup / MANIFEST, json.dumps(about, indent=1).encode() + b"\n")


def missing_files(backup: Path, manifest: Manifest) -> list[str]:
    """Return what a backup lacks: one phrase for each missing or truncated file."""
    lacks = []
    for name, size in manifest.files.items():
        try:
            found = (backup / name).stat().st_size
        except OSError as exc:
            lacks.append(f"{name}: {exc.strerror}")
        else:
            if found != size:
                lacks.append(f"{name}: {found} bytes instead of {size}")
    if not any(name.startswith(f"{STORE}/") for name in manifest.files):
        lacks.append("the store: the backup ended before its snapshot was taken")
    elif not manifest.complete and not lacks:
        lacks.append("the end: its files may not be on disk")
    return lacks


def check_complete(backup: Path) -> Manifest:
    """Return the manifest of a complete backup. Raise BrokenBackup with what it lacks."""
    manifest = read_manifest(backup)
    lacks = missing_files(backup, manifest)
    if lacks:
        more = f", and {len(lacks) - 3} more" if len(lacks) > 3 else ""
        raise BrokenBackup(f"backup {backup} is not complete, it lacks {'; '.join(lacks[:3])}{more}")
    return manifest


def list_backups(folder: Path) -> list[tuple[Path, Manifest | BrokenBackup]]:
    """Return the backups in a folder, oldest first, each with its manifest or the error of reading it."""
    found: list[tuple[Path, Manifest | BrokenBackup]] = []
    for path in sorted(folder.iterdir() if is_folder(folder) else ()):
        if _NAME.fullmatch(path.name):
            try:
                found.append((path, read_manifest(path)))
            except BrokenBackup as exc:
                found.append((path, exc))
    return found


def newest_complete(folder: Path, owner: str | None = None) -> Path | None:
    """Return the newest complete backup in a folder, of the state folder with the identity `owner` (None: of any)."""
    complete = [
        path
        for path, found in list_backups(folder)
        if isinstance(found, Manifest) and found.complete and owner in (None, found.identity)
    ]
    return complete[-1] if complete else None


def new_backup(folder: Path, now_ms: int, identity: str) -> Path:
    """Make the folder of a new backup, marked as not complete. Raise OSError."""
    made = datetime.fromtimestamp(now_ms / 1000, UTC)
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    taken = {path.name for path in folder.iterdir()}
    backup = folder / next(name for name in _names(made) if name not in taken)
    backup.mkdir(mode=0o750)
    write_manifest(backup, Manifest(identity, made.isoformat(timespec="seconds"), False, {}))
    return backup


def _names(made: datetime) -> Iterator[str]:
    name = made.strftime("%Y-%m-%dT%H-%M-%SZ")
    yield name
    yield from (f"{name}-{number}" for number in count(2))


class BackupWriter:
    """Makes one backup, step by step. Each step may raise OSError; the manifest then still lists what is missing."""

    def __init__(self, backup: Path, previous: Path | None) -> None:
        """`previous` is an earlier complete backup in the same folder. One of another state folder is not used."""
        self.backup = backup
        self._manifest = read_manifest(backup)
        self._files: dict[str, int] = {}
        self._previous = previous if previous and read_manifest(previous).identity == self._manifest.identity else None
        self._newest: str | None = None  # the newest segment that was copied before the snapshot
        self.linked_bytes = self.copied_bytes = 0

    def copy_state(self, state: Path) -> None:
        """Copy the files of the state folder that are neither the store nor the journal."""
        for path in files_below(state, but=_NOT_COPIED):
            with suppress(FileNotFoundError):  # a rotated file
                self._add(path, Path(STATE) / path.relative_to(state))

    def copy_journal(self, journal: Path) -> None:
        """Copy the synced part of each segment, without those that disappear meanwhile: they are in the store."""
        for name in ("adopted", "pending-damage"):
            with suppress(FileNotFoundError):
                self._add(journal / name, Path(JOURNAL) / name)
        for path in files_below(journal / "quarantine"):
            self._add(path, Path(JOURNAL) / path.relative_to(journal))
        self._copy_segments(journal)
        left = set(segment_paths(journal))
        for path in segment_paths(self.backup / JOURNAL):
            if journal / path.name not in left:
                path.unlink()
                self.copied_bytes -= self._files.pop(f"{JOURNAL}/{path.name}", 0)
        self._newest = next((path.name for path in reversed(segment_paths(self.backup / JOURNAL))), None)

    def is_snapshot_newer(self, journal: Path) -> bool:
        """Return whether the journal has lost all segments that were copied before the snapshot: it may have values
        newer than those of the copies, or lack points of them that were deleted. Call after `copy_later`."""
        return self._newest is not None and not exists(journal / self._newest)

    def copy_later(self, state: Path, journal: Path) -> None:
        """Add what came while the snapshot was taken: lines of the journal, and days whose rollups lack late points.
        The daemon stores a late point, then records its day, then removes its line. So a late point that is in the
        snapshot has its line or its day here."""
        self._copy_segments(journal)
        copy, later = self.backup / STATE / ROLLUPS_FILE, state / ROLLUPS_FILE
        if exists(copy) and exists(later):
            copy.write_bytes(with_later_days(copy.read_bytes(), later.read_bytes()))
            with copy.open("rb") as written:
                os.fsync(written.fileno())
            self._record(Path(STATE) / ROLLUPS_FILE, copy.stat().st_size)

    def _copy_segments(self, journal: Path) -> None:
        """Copy the synced part of each segment that is not copied as far yet."""
        for path in segment_paths(journal):
            name = Path(JOURNAL) / path.name
            with suppress(FileNotFoundError):
                if read_header(path).synced != self._files.get(str(name), 0):
                    self._record(name, copy_segment(path, self.backup / name))

    def plan_store(self, snapshot: Path) -> None:
        """Record the snapshot's files in the manifest, so that it lists what an interrupted backup lacks."""
        for path in files_below(snapshot):
            self._files[f"{STORE}/{path.relative_to(snapshot)}"] = path.stat().st_size
        self._write_manifest(complete=False)

    def take_store(self, snapshot: Path) -> Iterator[int]:
        """Move the snapshot into the backup, or copy it to another file system. Yield the bytes of each file."""
        with FileCopier() as copier:
            for path in sorted(files_below(snapshot)):
                name = Path(STORE) / path.relative_to(snapshot)
                size = path.stat().st_size
                if self._link_to_previous(path, name) or self._move(path, name):
                    self.linked_bytes += size
                else:
                    self._record(name, copier.copy(path, self.backup / name))
                yield size

    def finish(self) -> Manifest:
        """Sync everything, and mark the backup as complete."""
        for folder in {self.backup / Path(name).parent for name in self._files}:
            sync_folder(folder)
        self._write_manifest(complete=True)
        sync_folder(self.backup.parent)
        return self._manifest

    def _add(self, source: Path, name: Path) -> None:
        """Copy a file into the backup."""
        self._record(name, copy_file(source, self.backup / name))

    def _record(self, name: Path, copied: int) -> None:
        self.copied_bytes += copied - self._files.get(str(name), 0)
        self._files[str(name)] = copied

    def _link_to_previous(self, source: Path, name: Path) -> bool:
        """Link a file that never changes to the same file of the previous backup, if it has one."""
        if self._previous is None or not _IMMUTABLE.fullmatch(name.name):
            return False
        earlier, about = self._previous / name, source.stat()
        try:
            found = earlier.stat()
            if (found.st_size, found.st_mtime_ns) != (about.st_size, about.st_mtime_ns):
                return False
            _make_parents(self.backup / name)
            os.link(earlier, self.backup / name)
        except OSError:
            return False
        return True

    def _move(self, source: Path, name: Path) -> bool:
        """Move a file of the snapshot into the backup, if both are on one file system."""
        try:
            _make_parents(self.backup / name)
            source.rename(self.backup / name)
        except OSError:
            return False
        return True

    def _write_manifest(self, *, complete: bool) -> None:
        self._manifest = self._manifest._replace(complete=complete, files=dict(sorted(self._files.items())))
        write_manifest(self.backup, self._manifest)


def prune(folder: Path, keep: int, owner: str) -> list[Path]:
    """Remove all but the newest `keep` complete backups of a state folder. Remove also backups that ended early before
    the newest of them, and what is left of an interrupted removal. Return what was removed. `owner` is the state
    folder's identity. The folder may have backups of others, and some that cannot be read now: these stay."""
    found = [
        (path, about)
        for path, about in list_backups(folder)
        if (about.identity == owner if isinstance(about, Manifest) else not exists(path / MANIFEST))
    ]
    complete = [path for path, about in found if isinstance(about, Manifest) and about.complete]
    kept = set(complete[-keep:])
    removed = [path for path, _ in found if complete and path not in kept and path < complete[-1]]
    for path in removed:
        _remove(path)
    return removed


def remove_interrupted(folder: Path, owner: str) -> list[Path]:
    """Remove the backups of a state folder that ended early, so that they do not take the space of the next one. None
    may be made now. Return what was removed."""
    found = list_backups(folder)
    removed = [
        path for path, about in found if isinstance(about, Manifest) and about.identity == owner and not about.complete
    ]
    for path in removed:
        _remove(path)
    return removed


def _remove(backup: Path) -> None:
    (backup / MANIFEST).unlink(missing_ok=True)  # first: a removal that is killed leaves no backup that looks whole
    shutil.rmtree(backup)


def restore_files(backup: Path, manifest: Manifest, state: Path, journal: Path) -> Iterator[int]:
    """Copy the files of a backup to a state folder and its journal's folder. Yield the bytes of each file."""
    with FileCopier() as copier:
        for name, target in restored_places(manifest, state, journal).items():
            yield copier.copy(backup / name, target)
    for folder in {state, *(path.parent for path in files_below(state)), *(p.parent for p in files_below(journal))}:
        sync_folder(folder)


def restored_places(manifest: Manifest, state: Path, journal: Path) -> dict[str, Path]:
    """Return the target path of each file of a backup."""
    places = {STATE: state, JOURNAL: journal, STORE: state / "store"}
    return {name: places[Path(name).parts[0]].joinpath(*Path(name).parts[1:]) for name in manifest.files}


def journal_lines(journal: Path) -> int:
    """Return the number of lines in a journal. Raise Damage for the first damaged part."""
    lines = 0
    for path in segment_paths(journal):
        for piece in read_pieces(path):
            if isinstance(piece, Damage):
                raise piece
            lines += piece.lines
    return lines


def files_below(folder: Path, but: frozenset[str] = frozenset()) -> Iterable[Path]:
    """Yield the regular files below a folder, without the entries `but` of it. Links are not followed. Raise OSError
    for a folder that exists and cannot be listed."""
    for parent, folders, names in os.walk(folder, onerror=_check_missing):
        left_out = but if Path(parent) == folder else frozenset()
        folders[:] = [name for name in folders if name != LOST_FOUND and name not in left_out]
        for name in names:
            path = Path(parent, name)
            if name not in left_out and not path.is_symlink() and is_file(path):
                yield path


def _check_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class FileCopier:
    """Copies files one after the other. Each is synced in a thread while the next one is copied, so that one disk is
    read while the other is written. All are on disk when the block ends."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._syncing: Future[None] | None = None

    def __enter__(self) -> "FileCopier":
        return self

    def __exit__(self, *_: object) -> None:
        with self._thread:
            self._wait()

    def copy(self, source: Path, target: Path) -> int:
        """Copy a file with its modification time. Return its size in bytes. Raise OSError, for the file before too."""
        copied = _copied(source, target)
        try:
            self._wait()
        except BaseException:
            os.close(copied.descriptor)
            raise
        self._syncing = self._thread.submit(_sync_and_close, copied.descriptor)
        return copied.size

    def _wait(self) -> None:
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()


class _Copied(NamedTuple):
    """A copy that is not synced yet."""

    descriptor: int  # open
    size: int


def copy_file(source: Path, target: Path) -> int:
    """Copy a file with its modification time, and sync it. Return its size in bytes. Raise OSError."""
    copied = _copied(source, target)
    _sync_and_close(copied.descriptor)
    return copied.size


def _copied(source: Path, target: Path) -> _Copied:
    """Copy a file with its modification time. Raise OSError."""
    _make_parents(target)
    with source.open("rb") as read:
        about = os.fstat(read.fileno())
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            _copy_range(read.fileno(), write, 0, about.st_size)
            os.utime(write, ns=(about.st_atime_ns, about.st_mtime_ns))
        except BaseException:
            os.close(write)
            raise
    return _Copied(write, about.st_size)


def _sync_and_close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_segment(source: Path, target: Path) -> int:
    """Copy the synced part of a journal segment, which may grow meanwhile. Return its size in bytes. Raise OSError."""
    head = read_header(source)
    if head.owner is None or head.synced is None:
        return copy_file(source, target)  # damaged: its lines are checked when it is replayed
    _make_parents(target)
    with source.open("rb") as read, target.open("wb") as write:
        write.write(header(head.synced, head.owner))  # the one in the file may be newer than what is copied
        write.flush()
        _copy_range(read.fileno(), write.fileno(), HEADER_BYTES, head.synced)
        os.fsync(write.fileno())
    return head.synced


def _copy_range(source: int, target: int, start: int, stop: int) -> None:
    """Append the bytes from `start` to before `stop` of one open file to another, within the kernel. Raise OSError."""
    os.posix_fadvise(source, start, stop - start, os.POSIX_FADV_SEQUENTIAL)
    while start < stop:
        copied = os.sendfile(target, source, start, stop - start)
        if not copied:
            raise OSError(errno.EIO, "a file became shorter while it was copied")
        start += copied


def _make_parents(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
