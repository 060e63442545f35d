"""Splitting of received bytes into blocks of whole lines, and the slow path of both parsers: one put line at a time."""

from collections.abc import Mapping
from typing import NamedTuple

from tsd.codec.putline import NameRules, instant, parse_put
from tsd.codec.text import FLOAT
from tsd.errors import BadLine
from tsd.ingest.series import SeriesTable
from tsd.tables.writing import SeriesText

MAX_LINE_BYTES = 16384  # a longer line is refused and skipped (OpenTSDB: 1024)
START_BYTES = 300  # of a line that is too long, to recognise it


class TooLong(NamedTuple):
    """A line of more than `limit` bytes was skipped here, except its `start`."""

    limit: int
    start: bytes


class LineBuffer:
    """Buffers an unterminated line, at most `max_line` bytes of it.

    >>> lines = LineBuffer(1024)
    >>> lines.feed(b"help\\r"), lines.feed(b"\\nversion\\nput m 17")
    ([], [b'help\\nversion\\n'])
    >>> lines.tail
    b'put m 17'
    """

    def __init__(self, max_line: int) -> None:
        self._max = max_line
        self._skipping = False
        self.tail = b""

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """Return the whole lines that `data` completes, in blocks: LF-terminated and without CR. A line that was too
        long is replaced by a TooLong."""
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return []
            self._skipping = False
            data = data[end + 1 :]
        cut = data.rfind(b"\n") + 1
        if not cut:
            self.tail += data
            return self._bound_tail([])
        block = b"".join((self.tail, memoryview(data)[:cut])) if self.tail else data[:cut]  # copied once, if at all
        self.tail = data[cut:]
        return self._bound_tail(self._without_long_lines(block.replace(b"\r\n", b"\n") if b"\r" in block else block))

    @property
    def is_between(self) -> bool:
        """Whether the next byte begins a line."""
        return not self.tail and not self._skipping

    def is_whole(self, data: bytes) -> bool:
        """Return whether `feed` would return `data` unchanged as one block and buffer nothing. The buffer is not
        changed.

        >>> lines = LineBuffer(1024)
        >>> lines.is_whole(b"put m 17 1 a=b\\n"), lines.is_whole(b"help\\r\\n"), lines.is_whole(b"put m 17")
        (True, False, False)
        """
        if self.tail or self._skipping or not data.endswith(b"\n") or b"\r" in data:
            return False
        return len(data) <= self._max + 1 or self._without_long_lines(data) == [data]

    def _bound_tail(self, found: list[bytes | TooLong]) -> list[bytes | TooLong]:
        if len(self.tail) > self._max + 1:  # its last byte may be a CR
            found.append(self._too_long(self.tail))
            self.tail = b""
            self._skipping = True
        return found

    def _too_long(self, start: bytes) -> TooLong:
        return TooLong(self._max, start[: min(START_BYTES, self._max)])

    def _without_long_lines(self, block: bytes) -> list[bytes | TooLong]:
        """Split a block at the lines that are too long. Searches about one LF for the bytes of the longest line."""
        found: list[bytes | TooLong] = []
        start = at = 0
        while at < len(block):
            end = block.rfind(b"\n", at, at + self._max + 1)
            if end < 0:
                if at > start:
                    found.append(block[start:at])
                found.append(self._too_long(block[at : at + START_BYTES]))
                start = at = block.index(b"\n", at) + 1
            else:
                at = end + 1
        if start < len(block):
            found.append(block[start:])
        return found


POINT_BYTES = 21  # size of a point in the columns
SLOW_LINES = 50  # lines parsed one by one between checkpoints: each may take 25 µs
SLOW_BYTES = 8192  # bytes of these lines: one with many tags may take 1 ms a KiB


class Reject(NamedTuple):
    """A line that was refused."""

    line: int  # in its block, counted from 0
    error: BadLine


class Absorbed(NamedTuple):
    """Result of absorbing a block."""

    accepted: int
    kept: bytes  # the accepted lines, whole
    rejects: list[Reject]  # in order
    unknown: list[SeriesText]  # unknown series: nothing was absorbed; insert them and try again
    rest: bytes  # starts with the first line that is no put line, or that is left for the next call
    journal_only: int = 0  # accepted lines that are only in the journal, not in memory


# Unknown series that must not be inserted, each with the error for its lines, or with None if its lines are valid and
# kept only in the journal.
Refusals = Mapping[SeriesText, BadLine | None]
Point = tuple[int, int, int, int]  # series, instant, flags, bits


def read_put(line: bytes, table: SeriesTable, rules: NameRules, refusals: Refusals) -> Point | SeriesText | None:
    """Return a line's point as `parse_put` parses it, or its series if that is unknown, or None if the line is kept
    only in the journal. Raise BadLine."""
    read = parse_put(line, rules)
    text = SeriesText(read.metric, line.split(b" ", 4)[4])
    number = table.find(text)
    if number is not None:
        return number, instant(read.time), read.flags, bits_of(read.flags, read.value)
    if text not in refusals:
        return text
    if error := refusals[text]:
        raise error
    return None


def bits_of(flags: int, value: bytes) -> int:
    """Return a value's bytes as the `bits` of `Columns`."""
    return int.from_bytes(value, "big", signed=flags != FLOAT | 3)


def is_put(line: bytes) -> bool:
    """Return whether a line, or the first line of a block, is a put line."""
    return line.startswith((b"put ", b"put\n")) or line == b"put"


def leading_others(block: bytes) -> tuple[bytes, bytes]:
    """Split a block before its first put line."""
    at = 0
    while at < len(block) and not is_put(block[at : at + 4]):
        at = block.index(b"\n", at) + 1
    return block[:at], block[at:]
