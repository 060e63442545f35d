"""The bytes of a journal segment: a header, then blocks of put lines, each under a line of its own with length and CRC.

    tsd-journal 1 synced 000000000531 crc 856737cd
    block 000000000431 lines 00000008 crc 9e83a3b2
    put sys.cpu.user 1700000000 42.5 host=web01 cpu=0
    ...

The header says how long the segment was when it was last on disk for sure, so that a segment cut at the end of a block
is found as well. It is written after the sync that it speaks of, and never promises too much; after a power loss it may
still speak of the group before the last one. A segment gets its name when its header is on disk, so that one that is
shorter than that was cut. All of it is text: `less` reads it, and `grep '^put '` gives the lines back.
"""

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tsd.errors import CorruptJournal

_HEADER = re.compile(rb"tsd-journal 1 synced (\d{12}) crc ([0-9a-f]{8})\n")
_BLOCK = re.compile(rb"block (\d{12}) lines (\d{8}) crc ([0-9a-f]{8})\n")
HEADER_BYTES = len(b"tsd-journal 1 synced 000000000000 crc 00000000\n")
BLOCK_BYTES = len(b"block 000000000000 lines 00000000 crc 00000000\n")


class Block(NamedTuple):
    """Whole put lines that were accepted together."""

    text: bytes
    lines: int


class Damage(CorruptJournal):
    """A segment stops being what was written at byte `offset`; `acknowledged` where that had been on disk for sure."""

    def __init__(self, path: Path, offset: int, what: str, *, acknowledged: bool) -> None:
        super().__init__(f"{path}: at byte {offset}: {what}")
        self.path = path
        self.offset = offset
        self.acknowledged = acknowledged


def header(synced: int) -> bytes:
    """The first line of a segment of which `synced` bytes are on disk.

    >>> header(531)
    b'tsd-journal 1 synced 000000000531 crc 856737cd\\n'
    """
    text = b"tsd-journal 1 synced %012d" % synced
    return text + b" crc %08x\n" % zlib.crc32(text)


def frame(blocks: Sequence[bytes], lines: int) -> list[bytes]:
    """A block's bytes, in parts: its own line, then `blocks` as they are."""
    text = b"block %012d lines %08d" % (sum(map(len, blocks)), lines)
    crc = zlib.crc32(text)
    for block in blocks:
        crc = zlib.crc32(block, crc)
    return [text + b" crc %08x\n" % crc, *blocks]


def read_blocks(path: Path) -> Iterator[Block]:
    """The blocks of a segment, each checked; raises Damage at the first byte that is not as written."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEADER_BYTES:
            raise Damage(path, size, "the segment ends before its header does", acknowledged=True)
        synced = _read_header(file)
        at = HEADER_BYTES
        while at < size:
            block = _read_block(path, file, at, size, acknowledged=synced is None or at < synced)
            yield block
            at += BLOCK_BYTES + len(block.text)
        if synced is None:
            raise Damage(path, at, "the blocks are whole, but the header is not one", acknowledged=False)
        if at < synced:
            raise Damage(
                path, at, f"the segment ends, {synced - at} bytes that were on disk are gone", acknowledged=True
            )


def _read_header(file: BinaryIO) -> int | None:
    """How many bytes were on disk; None where the header is damaged."""
    match = _HEADER.fullmatch(file.read(HEADER_BYTES))
    if match is None or header(int(match[1])) != match[0]:
        return None
    return int(match[1])


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
