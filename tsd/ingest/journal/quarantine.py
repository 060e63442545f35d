"""Quarantine: parts of the journal that must not be stored are moved to `quarantine/` in its folder, under new names.

A start counts the damage that it finds, after it has repaired the segments. If it ends before the daemon is ready, the
next start finds nothing damaged; so the counts are kept in a file until a daemon is ready.
"""

import re
from collections.abc import Sequence
from operator import eq
from pathlib import Path
from typing import NamedTuple

from tsd.config.files import exists
from tsd.ingest.journal.disk import Disk, numbered, unused, write_new
from tsd.ingest.journal.segment import HEADER_BYTES, Damage, chunks, filler, header, lines_in, read_header
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)


_ENTRY = re.compile(r"(\S+) (\d+)\n")


def pending_damage(folder: Path) -> dict[str, int]:
    """Return estimates of acknowledged lines in damaged parts, by the place of the damage."""
    try:
        text = _file(folder).read_text("latin-1")
    except FileNotFoundError:
        return {}
    return {place: int(lines) for place, lines in _ENTRY.findall(text)}


def add_pending_damage(disk: Disk, folder: Path, found: dict[str, int]) -> None:
    """Add damage that is not repaired yet. It is on disk when this returns. Damage that an interrupted start has added
    before counts once, with the larger number, because a part may be repaired by then. Raise OSError."""
    before = pending_damage(folder)
    counts = before | {place: max(lines, before.get(place, 0)) for place, lines in found.items() if lines}
    if counts == before:
        return
    draft = folder / "pending-damage.new"
    disk.remove(draft)
    write_new(disk, draft, ["".join(f"{place} {lines}\n" for place, lines in counts.items()).encode("latin-1")])
    disk.rename(draft, _file(folder))
    disk.sync_folder(folder)


def clear_pending_damage(disk: Disk, folder: Path) -> None:
    """Remove the file, once the damage is counted. Raise OSError."""
    disk.remove(_file(folder))


def _file(folder: Path) -> Path:
    return folder / "pending-damage"


CHUNK_BYTES = 1 << 20  # copied or overwritten at once


class _Kept(NamedTuple):
    """A damaged part of a segment."""

    lines: int  # estimate of acknowledged lines in it; at least 1 if there were any bytes to lose
    kept: Path | None  # its copy; None if there is nothing to copy


def quarantine_damage(
    disk: Disk,
    path: Path,
    damages: Sequence[Damage],
    owner: str,
    *,
    is_counted: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Path]:
    """Move damaged parts out of a segment and return their copies.

    A damaged end is cut off; blocks of no lines replace damage before whole blocks. A segment that was cut in its
    header is moved as a whole; `owner` is then taken as its writer. The lines in the damage are recorded as pending,
    unless `is_counted`. Damage is overwritten in chunks of `chunk_bytes`. Raise OSError; the call may be repeated
    then."""
    size, last = path.stat().st_size, damages[-1]
    writer = read_header(path).owner or last.sealed_for or owner
    moved = [_keep(disk, damage) for damage in damages]
    if not is_counted:
        places = (f"{path.stem}-from-byte-{damage.offset}" for damage in damages)
        add_pending_damage(disk, path.parent, {place: one.lines for place, one in zip(places, moved, strict=True)})
    whole = max(last.offset, HEADER_BYTES) if last.end == size else size
    fd = disk.open(path)
    try:
        for damage in damages:
            if damage.end < size:
                _fill(disk, fd, damage, chunk_bytes)
        disk.truncate(fd, whole)
        disk.write(fd, [header(whole, writer)], 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
    return [one.kept for one in moved if one.kept is not None]


def _keep(disk: Disk, damage: Damage) -> _Kept:
    """Copy a damaged part, and log it."""
    offset = damage.offset if damage.offset >= HEADER_BYTES else 0
    size = damage.end - offset
    copy = _copy(disk, damage, offset) if size or not offset else None
    lines = max(lines_in(damage.path, offset, damage.end), 1) if damage.acknowledged else 0
    (log.error if damage.acknowledged else log.warning)(
        "journal.segment_damaged",
        path=str(damage.path),
        offset=damage.offset,
        error=str(damage),
        lines=lines,
        bytes=size,
        kept_in=str(copy) if copy is not None else None,
    )
    return _Kept(lines, copy)


def _copy(disk: Disk, damage: Damage, offset: int) -> Path:
    """Copy a damaged part, and sync the copy. Return its path.

    The copy of an earlier attempt is used if there is one: a disk on which only the repair fails would otherwise be
    filled by attempts."""
    for path in numbered(_place(damage.path, f"from-byte-{offset}")):
        if not exists(path):
            write_new(disk, path, chunks(damage.path, offset, damage.end, CHUNK_BYTES))
            return path
        earlier = chunks(path, 0, damage.end - offset, CHUNK_BYTES)
        found = chunks(damage.path, offset, damage.end, CHUNK_BYTES)
        if path.stat().st_size == damage.end - offset and all(map(eq, earlier, found)):
            break
    fd = disk.open(path)  # a crash may have come before its sync
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.sync_folder(path.parent)
    return path


def _fill(disk: Disk, fd: int, damage: Damage, chunk_bytes: int) -> None:
    """Write blocks of no lines, of at most two chunks each, over a damaged part."""
    assert damage.sealed_for is not None  # or no block behind it would have been found
    at = damage.offset
    while left := damage.end - at:
        size = left if left <= 2 * chunk_bytes else chunk_bytes
        at = disk.write(fd, filler(size, at, damage.sealed_for), at)


def quarantine_foreign(disk: Disk, path: Path, owner: str) -> Path:
    """Move a segment that the daemon of state folder `owner` wrote, and return its new path. Raise OSError."""
    copy = unused(_place(path, f"of-{owner}"))
    disk.rename(path, copy)
    disk.sync_folder(copy.parent)
    disk.sync_folder(path.parent)
    log.error("journal.foreign_segment", path=str(path), of=owner, kept_in=str(copy))
    return copy


def _place(path: Path, why: str) -> Path:
    folder = path.parent / "quarantine"
    folder.mkdir(exist_ok=True)
    return folder / f"{path.stem}-{why}.journal"
