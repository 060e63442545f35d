"""The zstd frames (RFC 8878) of a segment, which is a valid zstd file.

Each block has its put lines in one frame, as columns (line_columns.py) if it is compressed. The segment's own lines are
in skippable frames, which zstd leaves out.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

from tsd.ingest.journal.line_columns import MARK, columns_of, first_lines, lines_of
from tsd.lazy import LazyModule

zstandard = LazyModule("zstandard")  # most commands read no segment

LEVEL = 1  # 3.8 bytes a line of agents at 0.07 µs, 6.8 at 0.10 without columns; 2: 3.8 at 0.10 µs; -1: 7.5 at 0.09
COMPRESSED_BYTES_PER_S = 16 << 20  # lines that come faster for a while are not compressed: writing them costs less CPU
MAX_BYTES = 8 << 20  # of text in a compressed frame
RAW_BYTES = 128 << 10  # in a block of an uncompressed frame, at most

SKIPPABLE = b"\x50\x2a\x4d\x18"  # magic number; the length of the content follows
_CHECKSUM = 4  # bit of the byte after the magic number: compressed frames have a checksum
_MAGIC = b"\x28\xb5\x2f\xfd"
_RAW_FRAME = _MAGIC + b"\xa0"  # one segment with a size of four bytes, which follows


class Readable(NamedTuple):
    """Text of a frame that may be damaged."""

    lines: int  # lines that end in it
    is_whole: bool
    is_checked: bool = False  # whole, with a checksum


def skippable(text: bytes, behind: int = 0) -> bytes:
    """Return a skippable frame with `text`, and with `behind` more bytes that the caller appends."""
    return SKIPPABLE + (len(text) + behind).to_bytes(4, "little") + text


def uncompressed(texts: Sequence[bytes]) -> list[bytes | memoryview]:
    """Return a frame with texts as they are, in parts that share their memory.

    >>> b"".join(uncompressed([b"put a 1 1 b=c", b"\\n"]))
    b'(\\xb5/\\xfd\\xa0\\x0e\\x00\\x00\\x00q\\x00\\x00put a 1 1 b=c\\n'
    """
    parts: list[bytes | memoryview] = [_RAW_FRAME + sum(map(len, texts)).to_bytes(4, "little")]
    block: list[memoryview] = []
    size = 0
    for text in texts:
        left = memoryview(text)
        while size + len(left) > RAW_BYTES:
            parts += [_raw_block(RAW_BYTES), *block, left[: RAW_BYTES - size]]
            left, block, size = left[RAW_BYTES - size :], [], 0
        block.append(left)
        size += len(left)
    return [*parts, _raw_block(size, last=True), *block]


def _raw_block(size: int, *, last: bool = False) -> bytes:
    """Return the header of a block of `size` bytes that are not compressed."""
    return (size << 3 | last).to_bytes(3, "little")


class FrameMaker:
    """Makes a frame of each group of lines. For one thread.

    Groups are compressed unless more than MAX_BYTES have come faster than COMPRESSED_BYTES_PER_S."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._excess = 0.0  # bytes that came faster
        self._last_s = -inf

    def frame_of(self, texts: Sequence[bytes], now_s: float) -> Sequence[bytes | memoryview]:
        """Return a frame with a group's texts, in parts. `now_s` is the time of a monotonic clock."""
        size = sum(map(len, texts))
        left = self._excess - (now_s - self._last_s) * COMPRESSED_BYTES_PER_S
        self._excess, self._last_s = min(max(left, 0) + size, 2 * MAX_BYTES), now_s
        text = b"".join(texts) if self._excess <= MAX_BYTES else MARK
        if text.startswith(MARK):
            return uncompressed(texts)
        return [self._compressor.compress(columns_of(text) or text)]


def text_of(frame: bytes) -> bytes:
    """Return the text of a frame. Raise ValueError if it is none that was made here."""
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 < size <= max(2 * MAX_BYTES, len(frame)):
            raise ValueError(f"a frame of {len(frame)} bytes says that it has {size} bytes of text")
        text: bytes = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise ValueError(str(exc)) from exc
    return lines_of(text) if text.startswith(MARK) and _has_checksum(frame) else text


def _has_checksum(frame: bytes) -> bool:
    """Return whether a frame, of which there is at least some text, has a checksum: an uncompressed one has none."""
    return bool(frame[len(_MAGIC)] & _CHECKSUM)


def readable(data: Iterator[bytes], write: Callable[[bytes], object] = len) -> Readable:
    """Read what can be read of a damaged frame at the start of `data`: call `write` with its lines, and return how many
    there are. Data comes in pieces of a few KiB: so none of them decompresses to more than some 100 MiB."""
    lines, head, columns, is_whole = 0, b"", b"", False
    are_columns: bool | None = None  # not known before the first text
    reader = zstandard.ZstdDecompressor(max_window_size=2 * MAX_BYTES).decompressobj()
    with suppress(zstandard.ZstdError):
        for piece in data:
            head = head or piece
            text = reader.decompress(piece)
            if text and are_columns is None:
                are_columns = text.startswith(MARK) and _has_checksum(head)
            if are_columns:
                columns += text[: 2 * MAX_BYTES - len(columns)]
            else:
                lines += text.count(b"\n")
                write(text)
            if is_whole := reader.eof:
                break
    text = first_lines(columns)
    write(text)
    return Readable(lines + text.count(b"\n"), is_whole, is_whole and _has_checksum(head))
