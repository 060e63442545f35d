"""The bytes of a journal segment: a header, then blocks of put lines, each under a line of its own with length and CRC.

    tsd-journal 2 of 0123456789abcdef0123456789abcdef synced 000000000567 crc 78e1bc1c
    block 000000000431 lines 00000008 crc 9e83a3b2
    put sys.cpu.user 1700000000 42.5 host=web01 cpu=0
    ...

The header says which state folder's daemon wrote the segment (folder.py), and how long it was when it was last on disk
for sure, so that a segment cut at the end of a block is found as well. It is written after the sync that it speaks of,
and never promises too much; after a power loss it may still speak of the group before the last one. A segment gets its
name when its header is on disk, so that one that is shorter than that was cut. All of it is text: `less` reads it, and
`grep '^put '` gives the lines back.

Segments of the first version, whose header is `tsd-journal 1 synced … crc …`, do not say whose they are.
"""

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tsd.errors import CorruptJournal

_HEADERS = (
    re.compile(rb"tsd-journal 2 of (?P<owner>[0-9a-f]{32}) synced (?P<synced>\d{12}) crc (?P<crc>[0-9a-f]{8})\n"),
    re.compile(rb"tsd-journal 1 synced (?P<synced>\d{12}) crc (?P<crc>[0-9a-f]{8})\n"),
)
_BLOCK = re.compile(rb"block (\d{12}) lines (\d{8}) crc ([0-9a-f]{8})\n")
HEADER_BYTES = len(b"tsd-journal 2 of 00000000000000000000000000000000 synced 000000000000 crc 00000000\n")
_FIRST_BYTES = len(b"tsd-journal 1 synced 000000000000 crc 00000000\n")
BLOCK_BYTES = len(b"block 000000000000 lines 00000000 crc 00000000\n")


class Block(NamedTuple):
    """Whole put lines that were accepted together."""

    text: bytes
    lines: int


class Header(NamedTuple):
    """What a segment's first line says."""

    size: int  # of that line, bytes
    owner: str | None  # identity of the state folder whose daemon wrote it; None where it does not say
    synced: int | None  # bytes of the segment that were on disk; None where the header is damaged


class Damage(CorruptJournal):
    """A segment stops being what was written at byte `offset`; `acknowledged` where that had been on disk for sure."""

    def __init__(self, path: Path, offset: int, what: str, *, acknowledged: bool) -> None:
        super().__init__(f"{path}: at byte {offset}: {what}")
        self.path = path
        self.offset = offset
        self.acknowledged = acknowledged


def header(synced: int, owner: str | None) -> bytes:
    """The first line of a segment of which `synced` bytes are on disk. `owner`: the identity of the state folder, 32
    hexadecimal digits; without one it is a header of the first version.

    >>> header(567, "0123456789abcdef" * 2)
    b'tsd-journal 2 of 0123456789abcdef0123456789abcdef synced 000000000567 crc 78e1bc1c\\n'
    """
    version = b"1" if owner is None else b"2 of " + owner.encode("ascii")
    text = b"tsd-journal %b synced %012d" % (version, synced)
    return text + b" crc %08x\n" % zlib.crc32(text)


def frame(blocks: Sequence[bytes], lines: int) -> list[bytes]:
    """A block's bytes, in parts: its own line, then `blocks` as they are."""
    text = b"block %012d lines %08d" % (sum(map(len, blocks)), lines)
    crc = zlib.crc32(text)
    for block in blocks:
        crc = zlib.crc32(block, crc)
    return [text + b" crc %08x\n" % crc, *blocks]


def read_header(path: Path) -> Header:
    """What a segment's header says, or of a damaged one how long it is."""
    with path.open("rb") as file:
        return _read_header(file)


def read_blocks(path: Path) -> Iterator[Block]:
    """The blocks of a segment, each checked; raises Damage at the first byte that is not as written."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = _read_header(file)
        if size < head.size:
            raise Damage(path, size, "the segment ends before its header does", acknowledged=True)
        at = head.size
        file.seek(at)
        while at < size:
            block = _read_block(path, file, at, size, acknowledged=head.synced is None or at < head.synced)
            yield block
            at += BLOCK_BYTES + len(block.text)
        if head.synced is None:
            raise Damage(path, at, "the blocks are whole, but the header is not one", acknowledged=False)
        if at < head.synced:
            raise Damage(
                path, at, f"the segment ends, {head.synced - at} bytes that were on disk are gone", acknowledged=True
            )


def _read_header(file: BinaryIO) -> Header:
    """The header of a segment. One that is damaged is as long as the line of the first block lets it be."""
    start = file.read(_FIRST_BYTES + BLOCK_BYTES)
    for form in _HEADERS:
        if match := form.match(start):
            found = match.groupdict()
            owner = None if "owner" not in found else found["owner"].decode("ascii")
            if header(int(found["synced"]), owner) == match[0]:
                return Header(len(match[0]), owner, int(found["synced"]))
    return Header(_FIRST_BYTES if _BLOCK.match(start, _FIRST_BYTES) else HEADER_BYTES, None, None)


def _read_block(path: Path, file: BinaryIO, at: int, size: int, *, acknowledged: bool) -> Block:
    def damage(what: str) -> Damage:
        return Damage(path, at, what, acknowledged=acknowledged)

    head = file.read(BLOCK_BYTES)
    match = _BLOCK.fullmatch(head)
    if match is None:
        raise damage(f"wanted a block's line, got {head[:60]!r}")
    length, lines = int(match[1]), int(match[2])
    if at + BLOCK_BYTES + length > size:
        raise damage(f"wanted a block of {length} bytes, the segment ends after {size - at - BLOCK_BYTES}")
    text = file.read(length)
    if frame([text], lines)[0] != head:
        raise damage(f"a block of {length} bytes does not match its CRC")
    return Block(text, lines)
