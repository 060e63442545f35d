"""What the compiled and the pure parser share: their results, and parsing of one put line at a time."""

from collections.abc import Mapping
from typing import NamedTuple

from tsd.codec.putline import NameRules, instant, parse_put
from tsd.codec.text import FLOAT
from tsd.errors import BadLine
from tsd.ingest.series import SeriesTable
from tsd.tables.writing import SeriesText

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


# Unknown series that must not be inserted, each with the error for its lines. None: the lines are valid, and kept only
# in the journal.
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
