"""The bytes of a journal segment: a header, then blocks of put lines, each under a line of its own with length and CRC.

    tsd-journal 2 of 0123456789abcdef0123456789abcdef synced 000000000567 crc 78e1bc1c
    block 000000000438 lines 00000008 crc 9e83a3b2
    put sys.cpu.user 1700000000 42.5 host=web01 cpu=0
    ...

The put lines of a block are compressed in one frame, and the segment's own lines are in skippable ones (frames.py):
`tsd journal` prints the put lines, and `strings` the others. The length is that of the frame.

The header has the identity of the state folder whose daemon wrote the segment (folder.py), and the synced length of the
segment in bytes. The length shows whether a segment was cut, even at the end of a block. It is written after the sync
of these bytes, so it is never too large; after a power loss it may lack the last group. A segment gets its name when
its header is on disk: a segment that is shorter than a header was cut.

A block's CRC also covers that identity and the block's offset in the file, which are not in its line. So a reader can
search for the next whole block after damage: other text that looks like a block does not match. Such text may be part
of a damaged block, an old block on the disk, or a block of another file or offset. Senders do not know the identity.
Blocks of no lines (`lines 00000000`) replace damage that was moved to the quarantine. All their bytes are in the
skippable frame.
"""

import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tsd.errors import CorruptJournal
from tsd.ingest.journal.frames import SKIPPABLE, readable, skippable, text_of

_START = re.escape(SKIPPABLE) + rb"(?s:.{4})"
_HEADER = re.compile(_START + rb"tsd-journal 2 of ([0-9a-f]{32}) synced (\d{12}) crc [0-9a-f]{8}\n")
_BLOCK = re.compile(_START + rb"block (\d{12}) lines (\d{8}) crc [0-9a-f]{8}\n")
HEADER_BYTES = len(skippable(b"tsd-journal 2 of 00000000000000000000000000000000 synced 000000000000 crc 00000000\n"))
BLOCK_BYTES = len(skippable(b"block 000000000000 lines 00000000 crc 00000000\n"))
Part = bytes | memoryview
SEARCH_BYTES = 1 << 20  # searched at once for the next intact block
PIECE_BYTES = 4 << 10  # of a damaged frame that are decompressed at once


class Block(NamedTuple):
    """Whole put lines that were accepted together."""

    text: bytes
    lines: int


class _Stored(NamedTuple):
    """A block in its segment."""

    block: Block
    end: int  # offset of the byte after it


class _OwnLine(NamedTuple):
    """The fields of a block's own line: None if it is damaged."""

    at: int  # where it begins
    end: int | None  # of the block
    lines: int | None


class Header(NamedTuple):
    """The first line of a segment. Both fields are None if it is damaged."""

    owner: str | None  # identity of the state folder whose daemon wrote the segment
    synced: int | None  # bytes of the segment that are known to be on disk


class Damage(CorruptJournal):
    """A damaged part of a segment: the bytes from `offset` up to `end` are not those that were written.

    `acknowledged`: they were known to be on disk. `sealed_for`: the identity that the CRCs cover."""

    def __init__(
        self, path: Path, offset: int, what: str, *, end: int, acknowledged: bool, sealed_for: str | None = None
    ) -> None:
        super().__init__(f"{path}: at byte {offset}: {what}")
        self.path = path
        self.offset = offset
        self.end = end
        self.acknowledged = acknowledged
        self.sealed_for = sealed_for


def header(synced: int, owner: str) -> bytes:
    """Return the header of a segment of which `synced` bytes are on disk. `owner` is the identity of the state folder,
    32 hexadecimal digits.

    >>> header(567, "0123456789abcdef" * 2)
    b'P*M\\x18S\\x00\\x00\\x00tsd-journal 2 of 0123456789abcdef0123456789abcdef synced 000000000567 crc 78e1bc1c\\n'
    """
    text = b"tsd-journal 2 of %b synced %012d" % (owner.encode("ascii"), synced)
    return skippable(text + b" crc %08x\n" % zlib.crc32(text))


def block_of(frame: Sequence[Part], lines: int, at: int, owner: str) -> list[Part]:
    """Return a block's bytes, in parts: its own line, then the frame of its put lines. It is at byte `at` of a segment
    of `owner`."""
    return [_block_line(frame, lines, at, owner), *frame]


def filler(size: int, at: int, owner: str) -> list[Part]:
    """Return a block of no lines with `size` bytes, at least BLOCK_BYTES."""
    return block_of([b" " * (size - BLOCK_BYTES)], 0, at, owner)


def _block_line(frame: Sequence[Part], lines: int, at: int, owner: str) -> bytes:
    size = sum(map(len, frame))
    text = b"block %012d lines %08d" % (size, lines)
    crc = zlib.crc32(text, zlib.crc32(b"%b %012d" % (owner.encode("ascii"), at)))
    for part in frame:
        crc = zlib.crc32(part, crc)
    return skippable(text + b" crc %08x\n" % crc, 0 if lines else size)


def read_header(path: Path) -> Header:
    """Return the fields of a segment's header."""
    with path.open("rb") as file:
        return _read_header(file)


def lines_in(path: Path, start: int, end: int, *, chunk_bytes: int = SEARCH_BYTES) -> int:
    """Estimate how many put lines were in a damaged part of a segment, which starts with a block's own line.

    Lines that can be read are counted; else the number in the block's own line counts. `chunk_bytes` are read at
    once."""
    return sum(
        found.lines if found.is_whole or own.lines is None else own.lines
        for own in _own_lines(path, start, end, chunk_bytes)
        for found in [readable(chunks(path, own.at + BLOCK_BYTES, end, PIECE_BYTES))]
    )


def write_readable(path: Path, write: Callable[[bytes], object]) -> bool:
    """Call `write` with the put lines of a segment, or of a part of one, as far as they can be read. Return whether
    these are all lines that were on disk, each checked. Raise OSError."""
    with path.open("rb") as file:
        head, size = _HEADER.match(file.read(HEADER_BYTES)), os.fstat(file.fileno()).st_size
        owner = head[1].decode("ascii") if head else None  # CRCs of a part cannot be checked: its place is not known
        start = HEADER_BYTES if head else 0
        is_whole = size >= (int(head[2]) if head else 1)  # else the end is gone
        end: int | None = start
        for own in _own_lines(path, start, size, SEARCH_BYTES) if size > start else ():
            is_whole &= own.at == end or end is None
            end = own.end
            stored = None if owner is None else _read_block(file, own.at, size, owner)
            if isinstance(stored, _Stored):
                write(stored.block.text)
            else:
                found = readable(chunks(path, own.at + BLOCK_BYTES, size, PIECE_BYTES), write)
                is_whole &= owner is None and found.is_checked and own.lines in (None, found.lines)
    return is_whole and end in (None, size)


def _own_lines(path: Path, start: int, end: int, chunk_bytes: int) -> Iterator[_OwnLine]:
    """Yield the own lines of the blocks in a damaged part. That of the first one may be damaged."""
    at, text = start, b""
    is_first = True
    for chunk in chunks(path, start, end, chunk_bytes):
        text += chunk
        for match in _BLOCK.finditer(text):
            if is_first and at + match.start() > start:
                yield _OwnLine(start, None, None)
            is_first = False
            yield _OwnLine(at + match.start(), at + match.end() + int(match[1]), int(match[2]))
        at += max(len(text) - BLOCK_BYTES + 1, 0)
        text = text[-BLOCK_BYTES + 1 :]
    if is_first:
        yield _OwnLine(start, None, None)


def chunks(path: Path, start: int, end: int, size: int) -> Iterator[bytes]:
    """Yield the bytes of a part of a file, up to `size` at once."""
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(max(min(size, end - file.tell()), 0)):
            yield chunk


def read_pieces(
    path: Path, owners: Sequence[str] = (), *, end: int | None = None, search_bytes: int = SEARCH_BYTES
) -> Iterator[Block | Damage]:
    """Yield the blocks of a segment, each checked, and the damage between and after them. `owners`: possible writers,
    for a segment with a damaged header. `end`: what follows is being written. `search_bytes`: bytes searched at once
    for the block after damage."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = _read_header(file)
        if end is not None:
            size = min(size, end)
            head = head._replace(synced=end)
        at = HEADER_BYTES
        if size < at:
            yield Damage(path, size, "the segment ends before its header does", end=size, acknowledged=True)
            return
        owner = _sealed_for(file, head, size, owners, search_bytes)

        def damage(what: str, end: int, *, acknowledged: bool) -> Damage:
            return Damage(path, at, what, end=end, acknowledged=acknowledged, sealed_for=owner)

        whole, ends_whole = True, True
        while at < size:
            stored = "the identity of its writer is not known" if owner is None else _read_block(file, at, size, owner)
            ends_whole = isinstance(stored, _Stored)
            if isinstance(stored, _Stored):
                if stored.block.lines:
                    yield stored.block
                at = stored.end
            else:
                found = None if owner is None else _next_whole(file, at + BLOCK_BYTES, size, owner, search_bytes)
                sure = found is not None or head.synced is None or at < head.synced  # what follows was written later
                yield damage(stored, found or size, acknowledged=sure)
                at, whole = found or size, False
        if head.synced is None and whole:
            yield damage("the blocks are intact, the header is damaged", at, acknowledged=False)
        if head.synced is not None and at < head.synced and ends_whole:
            yield damage(
                f"the segment ends, {head.synced - at} bytes that were on disk are gone", at, acknowledged=True
            )


def _read_header(file: BinaryIO) -> Header:
    match = _HEADER.match(file.read(HEADER_BYTES))
    if match is not None:
        owner, synced = match[1].decode("ascii"), int(match[2])
        if header(synced, owner) == match[0]:
            return Header(owner, synced)
    return Header(None, None)


def _sealed_for(file: BinaryIO, head: Header, size: int, owners: Sequence[str], search_bytes: int) -> str | None:
    """Return the identity that the CRCs cover. If the header is damaged, find it by the first whole block."""
    if head.owner is not None:
        return head.owner
    for owner in owners:
        if isinstance(_read_block(file, HEADER_BYTES, size, owner), _Stored):
            return owner
    found = (one for one in owners if _next_whole(file, HEADER_BYTES, size, one, search_bytes) is not None)
    return next(found, owners[0] if owners else None)


def _read_block(file: BinaryIO, at: int, size: int, owner: str) -> _Stored | str:
    """Return the block at byte `at`, or why there is none."""
    file.seek(at)
    head = file.read(BLOCK_BYTES)
    match = _BLOCK.fullmatch(head)
    if match is None:
        return f"wanted a block's line, got {head[:60]!r}"
    length, lines = int(match[1]), int(match[2])
    end = at + BLOCK_BYTES + length
    if end > size:
        return f"wanted a block of {length} bytes, the segment ends after {size - at - BLOCK_BYTES}"
    frame = file.read(length)
    if _block_line([frame], lines, at, owner) != head:
        return f"a block of {length} bytes does not match its CRC"
    try:
        return _Stored(Block(text_of(frame) if lines else b"", lines), end)
    except ValueError as exc:
        return f"a block of {length} bytes cannot be decompressed: {exc}"


def _next_whole(file: BinaryIO, at: int, size: int, owner: str, search_bytes: int) -> int | None:
    """Return where the next whole block begins, from byte `at` on."""
    while at + BLOCK_BYTES <= size:
        file.seek(at)
        text = file.read(search_bytes)
        for match in _BLOCK.finditer(text):
            if isinstance(_read_block(file, at + match.start(), size, owner), _Stored):
                return at + match.start()
        at += len(text) - BLOCK_BYTES + 1
    return None
