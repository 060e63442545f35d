"""Journals of one folder, and segments as a crashed daemon leaves them."""

from collections.abc import Collection
from pathlib import Path
from random import Random

import trio

from tsd.ingest.journal.disk import REAL, Disk
from tsd.ingest.journal.journal import Journal, JournalSettings, Segment
from tsd.ingest.journal.segment import Block

PATIENCE_S = 60  # bounds a failure
LINE = b"put m 1356998400 1 host=web01\n"
OWN, OTHER = "0123456789abcdef" * 2, "f" * 32  # state folders


def make(
    folder: Path,
    sync_interval_s: float = 0.001,
    gather_s: float = 0,
    owner: str = OWN,
    adopted: Collection[str] = (),
    disk: Disk = REAL,
    max_bytes: int = 1 << 30,
) -> Journal:
    return Journal(
        folder,
        JournalSettings(sync_interval_s, max_bytes, gather_s, retry_s=0.001),
        owner=owner,
        adopted=adopted,
        disk=disk,
    )


async def written(folder: Path, groups: list[bytes], disk: Disk = REAL) -> Path:
    """A segment of several groups, as a crashed daemon leaves it."""
    journal = make(folder, disk=disk)
    journal.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for group in groups:
            await journal.wait_synced(journal.append(group, group.count(b"\n")))
        journal.close()
    [path] = folder.glob("*.journal")
    return path


def various(count: int) -> bytes:
    """Return lines that take some 30 bytes each on disk, compressed or not."""
    random = Random(1)
    return b"".join(b"put m 1356998400 1 host=%s\n" % random.randbytes(24).hex().encode() for _ in range(count))


def lines_of(segment: Segment) -> bytes:
    return b"".join(piece.text for piece in segment.pieces() if isinstance(piece, Block))
