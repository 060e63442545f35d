"""The bytes of a journal segment: a header, then blocks of put lines, each under a line of its own with length and CRC.

    tsd-journal 3 of 0123456789abcdef0123456789abcdef synced 000000000567 crc 604b6e78
    block 000000000431 lines 00000008 crc 9e83a3b2
    put sys.cpu.user 1700000000 42.5 host=web01 cpu=0
    ...

The header says which state folder's daemon wrote the segment (folder.py), and how long it was when it was last on disk
for sure, so that a segment cut at the end of a block is found as well. It is written after the sync that it speaks of,
and never promises too much; after a power loss it may still speak of the group before the last one. A segment gets its
name when its header is on disk, so that one that is shorter than that was cut. All of it is text: `less` reads it, and
`grep '^put '` gives the lines back.

A block's CRC covers also that identity and the block's place in the file, which are not in its line. So behind damage
the next whole block can be looked for: what else looks like one (text within a damaged block, whoever sent it, as
nobody who sends knows the identity; an old block of the disk; one of another file or place) is none. Blocks of no
lines (`lines 00000000`) stand where damage was taken out.

Segments of the first version, whose header is `tsd-journal 1 synced … crc …`, do not say whose they are. In those of
the first and the second the CRCs are of line and lines only, and nothing behind damage is looked for.
"""

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tsd.errors import CorruptJournal

_OWNED = (
    rb"tsd-journal (?P<version>[23]) of (?P<owner>[0-9a-f]{32}) synced (?P<synced>\d{12}) crc (?P<crc>[0-9a-f]{8})\n"
)
_HEADERS = (
    re.compile(_OWNED),
    re.compile(rb"tsd-journal (?P<version>1) synced (?P<synced>\d{12}) crc (?P<crc>[0-9a-f]{8})\n"),
)
_BLOCK = re.compile(rb"block (\d{12}) lines (\d{8}) crc ([0-9a-f]{8})\n")
SEALED = 3  # the first version whose CRCs cover whose a block is, and where it stands
HEADER_BYTES = len(b"tsd-journal 3 of 00000000000000000000000000000000 synced 000000000000 crc 00000000\n")
_FIRST_BYTES = len(b"tsd-journal 1 synced 000000000000 crc 00000000\n")
BLOCK_BYTES = len(b"block 000000000000 lines 00000000 crc 00000000\n")
_LOOK_BYTES = 1 << 20  # looked through at once


class Block(NamedTuple):
    """Whole put lines that were accepted together."""

    text: bytes
    lines: int


class Header(NamedTuple):
    """What a segment's first line says."""

    size: int  # of that line, bytes
    owner: str | None  # identity of the state folder whose daemon wrote it; None where it does not say
    synced: int | None  # bytes of the segment that were on disk; None where the header is damaged
    version: int


class Damage(CorruptJournal):
    """From byte `offset` up to `end` a segment is not what was written; `acknowledged` where that had been on disk for
    sure. `sealed_for`: whose identity the CRCs cover."""

    def __init__(
        self, path: Path, offset: int, what: str, *, end: int, acknowledged: bool, sealed_for: str | None = None
    ) -> None:
        super().__init__(f"{path}: at byte {offset}: {what}")
        self.path = path
        self.offset = offset
        self.end = end
        self.acknowledged = acknowledged
        self.sealed_for = sealed_for


def header(synced: int, owner: str | None, version: int = SEALED) -> bytes:
    """The first line of a segment of which `synced` bytes are on disk. `owner`: the identity of the state folder, 32
    hexadecimal digits; without one it is a header of the first version.

    >>> header(567, "0123456789abcdef" * 2)
    b'tsd-journal 3 of 0123456789abcdef0123456789abcdef synced 000000000567 crc 604b6e78\\n'
    """
    whose = b"1" if owner is None else b"%d of %b" % (version, owner.encode("ascii"))
    text = b"tsd-journal %b synced %012d" % (whose, synced)
    return text + b" crc %08x\n" % zlib.crc32(text)


def frame(blocks: Sequence[bytes], lines: int, at: int, owner: str | None) -> list[bytes]:
    """A block's bytes, in parts: its own line, then `blocks` as they are. It stands at byte `at` of a segment of
    `owner`; without one it is a block of the first or the second version."""
    text = b"block %012d lines %08d" % (sum(map(len, blocks)), lines)
    crc = zlib.crc32(text, 0 if owner is None else zlib.crc32(b"%b %012d" % (owner.encode("ascii"), at)))
    for block in blocks:
        crc = zlib.crc32(block, crc)
    return [text + b" crc %08x\n" % crc, *blocks]


def read_header(path: Path) -> Header:
    """What a segment's header says, or of a damaged one how long it is."""
    with path.open("rb") as file:
        return _read_header(file)


def lines_in(text: bytes) -> int:
    """How many put lines end in damaged text, as far as can be told.

    >>> lines_in(b"...t a 1 1 b=c\\nblock 000000000015 lines 00000001 crc 9e83a3b2\\nput a 2 2 b=c\\n")
    2
    """
    return text.count(b"\n") - len(_BLOCK.findall(text))


def read_pieces(path: Path, owners: Sequence[str] = ()) -> Iterator[Block | Damage]:
    """The blocks of a segment, each checked, and between and behind them what is not as written. `owners`: whose it may
    be where its header is damaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = _read_header(file)
        at = head.size
        if size < at:
            yield Damage(path, size, "the segment ends before its header does", end=size, acknowledged=True)
            return
        owner = _sealed_for(file, head, size, owners)

        def damage(what: str, end: int, *, acknowledged: bool) -> Damage:
            return Damage(path, at, what, end=end, acknowledged=acknowledged, sealed_for=owner)

        whole, ends_whole = True, True
        while at < size:
            block = _read_block(file, at, size, owner)
            ends_whole = isinstance(block, Block)
            if isinstance(block, Block):
                if block.lines:
                    yield block
                at += BLOCK_BYTES + len(block.text)
            else:
                found = None if owner is None else _next_whole(file, at + BLOCK_BYTES, size, owner)
                sure = found is not None or head.synced is None or at < head.synced  # what is behind was written later
                yield damage(block, found or size, acknowledged=sure)
                at, whole = found or size, False
        if head.synced is None and whole:
            yield damage("the blocks are whole, but the header is not one", at, acknowledged=False)
        if head.synced is not None and at < head.synced and ends_whole:
            yield damage(
                f"the segment ends, {head.synced - at} bytes that were on disk are gone", at, acknowledged=True
            )


def _read_header(file: BinaryIO) -> Header:
    """The header of a segment. One that is damaged is as long as the line of the first block lets it be."""
    start = file.read(_FIRST_BYTES + BLOCK_BYTES)
    for form in _HEADERS:
        if match := form.match(start):
            found = match.groupdict()
            owner = None if "owner" not in found else found["owner"].decode("ascii")
            if header(int(found["synced"]), owner, int(found["version"])) == match[0]:
                return Header(len(match[0]), owner, int(found["synced"]), int(found["version"]))
    return Header(_FIRST_BYTES if _BLOCK.match(start, _FIRST_BYTES) else HEADER_BYTES, None, None, SEALED)


def _sealed_for(file: BinaryIO, head: Header, size: int, owners: Sequence[str]) -> str | None:
    """Whose identity the CRCs cover: none in segments of older versions. Behind a damaged header the first block tells,
    if that is whole, or else any."""
    if head.synced is not None:
        return head.owner if head.version >= SEALED else None
    for owner in (*owners, None):
        if isinstance(_read_block(file, head.size, size, owner), Block):
            return owner
    found = (owner for owner in owners if _next_whole(file, head.size, size, owner) is not None)
    return next(found, owners[0] if owners else None)


def _read_block(file: BinaryIO, at: int, size: int, owner: str | None) -> Block | str:
    """The block at byte `at`, or why there is none."""
    file.seek(at)
    head = file.read(BLOCK_BYTES)
    match = _BLOCK.fullmatch(head)
    if match is None:
        return f"wanted a block's line, got {head[:60]!r}"
    length, lines = int(match[1]), int(match[2])
    if at + BLOCK_BYTES + length > size:
        return f"wanted a block of {length} bytes, the segment ends after {size - at - BLOCK_BYTES}"
    text = file.read(length)
    if frame([text], lines, at, owner)[0] != head:
        return f"a block of {length} bytes does not match its CRC"
    return Block(text, lines)


def _next_whole(file: BinaryIO, at: int, size: int, owner: str) -> int | None:
    """Where the next whole block begins, from byte `at` on."""
    while at + BLOCK_BYTES <= size:
        file.seek(at)
        text = file.read(_LOOK_BYTES)
        for match in _BLOCK.finditer(text):
            if isinstance(_read_block(file, at + match.start(), size, owner), Block):
                return at + match.start()
        at += len(text) - BLOCK_BYTES + 1
    return None
