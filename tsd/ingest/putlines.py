"""What becomes of a block of put lines, whoever reads it; and its lines one by one, as both ways need them."""

from collections.abc import Mapping
from typing import NamedTuple

from tsd.codec.putline import NameRules, parse_put
from tsd.codec.times import instant
from tsd.codec.words import FLOAT
from tsd.errors import BadLine
from tsd.ingest.series import SeriesTable, SeriesText

POINT_BYTES = 21  # of a point in the columns
SLOW_LINES = 100  # taken one by one at once: each may cost 25 µs, and all other connections wait


class Reject(NamedTuple):
    """A line that was refused."""

    line: int  # in its block, counted from 0
    error: BadLine


class Absorbed(NamedTuple):
    """What became of a block."""

    accepted: int
    kept: bytes  # the accepted lines, whole
    rejects: list[Reject]  # in order
    strangers: list[SeriesText]  # series never seen: nothing was absorbed, enter them and come again
    rest: bytes  # from the first line on that is not a put line, or is one too many for now
    journaled: int = 0  # accepted lines whose points are in the journal alone


# What is known of series that are strangers: why they may not be entered, or, None, that their lines are good and wait
# in the journal alone.
Verdicts = Mapping[SeriesText, BadLine | None]
Point = tuple[int, int, int, int]  # series, instant, flags, bits


def read_put(line: bytes, table: SeriesTable, rules: NameRules, verdicts: Verdicts) -> Point | SeriesText | None:
    """A line's point, as the reference reads it; or its series, where that is a stranger; None where it is left to the
    journal. Raises BadLine."""
    read = parse_put(line, rules)
    text = SeriesText(read.metric, line.split(b" ", 4)[4])
    known = table.find(text)
    if known is None:
        return _judged(text, verdicts)
    return known, instant(read.time), read.flags, bits_of(read.flags, read.value)


def _judged(stranger: SeriesText, verdicts: Verdicts) -> SeriesText | None:
    """A stranger's text while nothing is known of it, None where its lines are left to the journal; or raises why they
    are refused."""
    if stranger not in verdicts:
        return stranger
    if error := verdicts[stranger]:
        raise error
    return None


def bits_of(flags: int, value: bytes) -> int:
    """A value's bytes as the columns hold them."""
    return int.from_bytes(value, "big", signed=flags != FLOAT | 3)


def is_put(line: bytes) -> bool:
    """Whether a line, or a block's first, is a put line."""
    return line.startswith((b"put ", b"put\n")) or line == b"put"


def leading_others(block: bytes) -> tuple[bytes, bytes]:
    """The lines a block starts with that are no put lines, and its bytes from the first put line on."""
    at = 0
    while at < len(block) and not is_put(block[at : at + 4]):
        at = block.index(b"\n", at) + 1
    return block[:at], block[at:]
