"""What a start finds in the journal's folder that must not be stored is moved to `aside/` in it, whole and named."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from tsd.ingest.disk import Disk, numbered, unused, write_new
from tsd.ingest.segment import (
    BLOCK_BYTES,
    HEADER_BYTES,
    SEALED,
    Damage,
    Header,
    frame,
    header,
    lines_in,
    read_header,
)
from tsd.ingest.untold import note_untold

log = structlog.get_logger(__name__)

_CHUNK_BYTES = 1 << 20  # copied at once


class _Kept(NamedTuple):
    """What is damaged in a segment."""

    lines: int  # confirmed ones in it, as far as can be told: where there was anything to lose, one at least
    kept: Path | None  # its copy, where there is anything to copy


def move_damage(disk: Disk, path: Path, damages: Sequence[Damage], owner: str, *, is_told: bool = False) -> list[Path]:
    """Move what is damaged out of a segment: an end is cut off, and blocks of no lines take the place of what stands
    before whole ones; where the copies are. A segment that was cut in its header is moved as a whole, even if nothing
    is left of it but its name; it is `owner`'s then. How many lines that are is noted (untold.py), unless `is_told`.
    Raises OSError: the same may be done again."""
    head, size, last = read_header(path), path.stat().st_size, damages[-1]
    moved = [_keep(disk, damage, head) for damage in damages]
    if not is_told:
        places = (f"{path.stem}-from-byte-{damage.offset}" for damage in damages)
        note_untold(disk, path.parent, {place: one.lines for place, one in zip(places, moved, strict=True)})
    whole = max(last.offset, head.size) if last.end == size else size
    fd = disk.open(path)
    try:
        for damage in damages:
            if damage.end < size:
                _fill(disk, fd, damage)
        disk.truncate(fd, whole)
        disk.write(fd, [_mended(head, whole, last.sealed_for, owner)], 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
    return [one.kept for one in moved if one.kept is not None]


def _keep(disk: Disk, damage: Damage, head: Header) -> _Kept:
    """Copy what is damaged, and say so."""
    offset = damage.offset if damage.offset >= head.size else 0
    size = damage.end - offset
    aside = _copy(disk, damage, offset) if size or not offset else None
    lines = max(_lines_of(damage, offset), 1) if damage.acknowledged else 0
    say = log.error if damage.acknowledged else log.warning
    say(
        "journal segment damaged",
        what=str(damage),
        lines=lines,
        bytes_set_aside=size,
        kept_in=str(aside) if aside is not None else None,
    )
    return _Kept(lines, aside)


def _copy(disk: Disk, damage: Damage, offset: int) -> Path:
    """A copy of what is damaged, on disk: the one that an earlier try left, if it did, or a disk that takes copies and
    not what is mended would be filled by tries."""
    for path in numbered(_place(damage.path, f"from-byte-{offset}")):
        if not path.exists():
            write_new(disk, path, _chunks(damage.path, offset, damage.end))
            return path
        if path.stat().st_size == damage.end - offset and all(
            one == other
            for one, other in zip(
                _chunks(path, 0, damage.end - offset), _chunks(damage.path, offset, damage.end), strict=True
            )
        ):
            break
    fd = disk.open(path)  # a crash may have come before its sync
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.sync_folder(path.parent)
    return path


def _lines_of(damage: Damage, offset: int) -> int:
    """How many lines end in what is damaged, as far as can be told."""
    lines, own = 0, BLOCK_BYTES  # a block's own line comes first, whatever is left of it
    last = b"\n"
    for chunk in _chunks(damage.path, offset, damage.end):
        lines += lines_in(chunk[own:])
        own, last = 0, chunk[-1:]
    return lines + (last != b"\n")


def _chunks(path: Path, start: int, end: int) -> Iterator[bytes]:
    """The bytes of a part of a file."""
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(min(_CHUNK_BYTES, end - file.tell())):
            yield chunk


def _fill(disk: Disk, fd: int, damage: Damage) -> None:
    """Put blocks of no lines where damage was, none of more than two chunks."""
    at = damage.offset
    while left := damage.end - at:
        size = left if left <= 2 * _CHUNK_BYTES else _CHUNK_BYTES
        at = disk.write(fd, frame([b" " * (size - BLOCK_BYTES)], 0, at, damage.sealed_for), at)


def _mended(head: Header, whole: int, sealed_for: str | None, owner: str) -> bytes:
    """The header of a segment of so many bytes: of its version, as far as that can be told."""
    if head.synced is not None:
        return header(whole, head.owner, head.version)
    if head.size < HEADER_BYTES:
        return header(whole, None)
    return header(whole, owner, SEALED - 1) if sealed_for is None else header(whole, sealed_for)


def move_foreign(disk: Disk, path: Path, owner: str) -> Path:
    """Move a segment that the daemon of state folder `owner` wrote; where to. Raises OSError."""
    aside = unused(_place(path, f"of-{owner}"))
    disk.rename(path, aside)
    disk.sync_folder(aside.parent)
    disk.sync_folder(path.parent)
    log.error(
        "journal segment of another daemon, nothing of it is stored", path=str(path), of=owner, kept_in=str(aside)
    )
    return aside


def _place(path: Path, why: str) -> Path:
    folder = path.parent / "aside"
    folder.mkdir(exist_ok=True)
    return folder / f"{path.stem}-{why}.journal"
