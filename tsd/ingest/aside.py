"""What a start finds in the journal's folder that must not be stored is moved to `aside/` in it, whole and named."""

from pathlib import Path
from typing import NamedTuple

import structlog

from tsd.ingest.disk import Disk, unused, write_new
from tsd.ingest.segment import Damage, header, read_blocks, read_header

log = structlog.get_logger(__name__)

_CHUNK_BYTES = 1 << 20  # copied at once


class CutOff(NamedTuple):
    """A segment was damaged, and is whole now."""

    lines: int  # left in it
    kept: Path | None  # the damaged end; None where nothing is left of it


def cut_off(disk: Disk, damage: Damage, owner: str) -> CutOff:
    """Move a segment's damaged end out of it. One that was cut in its header is moved as a whole, even if nothing is
    left of it but its name; it is `owner`'s then. Raises OSError."""
    head = read_header(damage.path)
    offset = damage.offset if damage.offset >= head.size else 0
    whole = max(offset, head.size)
    aside = _place(damage.path, f"from-byte-{offset}")
    with damage.path.open("rb") as file:
        file.seek(offset)
        size = write_new(disk, aside, iter(lambda: file.read(_CHUNK_BYTES), b""))
    same = header(whole, head.owner)
    fd = disk.open(damage.path)
    try:
        disk.truncate(fd, whole)
        disk.write(fd, [same if len(same) == head.size else header(whole, owner)], 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
    kept = size > 0 or offset == 0
    if not kept:
        disk.remove(aside)
    say = log.error if damage.acknowledged else log.warning
    say("journal segment damaged", what=str(damage), bytes_set_aside=size, kept_in=str(aside) if kept else None)
    return CutOff(sum(block.lines for block in read_blocks(damage.path)), aside if kept else None)


def move_foreign(disk: Disk, path: Path, owner: str) -> Path:
    """Move a segment that the daemon of state folder `owner` wrote; where to. Raises OSError."""
    aside = _place(path, f"of-{owner}")
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
    return unused(folder / f"{path.stem}-{why}.journal")
