"""Names and their ids: kinds of names, widths of ids, and ids as text."""

import enum
import re
from typing import NamedTuple

from tsd.errors import ILLEGAL_ARGUMENT, BadLine


class Kind(enum.Enum):
    """Kind of a name. The value is OpenTSDB's spelling, which is also the qualifier in the UID table."""

    METRIC = "metrics"
    TAGK = "tagk"
    TAGV = "tagv"

    __hash__ = object.__hash__  # Enum's own calls Python code


class Widths(NamedTuple):
    """Bytes of a UID of each kind: 1 to 8, fixed for the life of the tables."""

    metric: int = 3
    tagk: int = 3
    tagv: int = 3

    @property
    def pair(self) -> int:
        """Bytes of one tag in a row key."""
        return self.tagk + self.tagv

    def of(self, kind: Kind) -> int:
        """Return the width of one kind."""
        return self.metric if kind is Kind.METRIC else self.tagk if kind is Kind.TAGK else self.tagv

    def tags(self, pairs: bytes) -> dict[bytes, bytes]:
        """Return the tags of a series, whose joined pairs of UIDs are given.

        >>> {tagk.hex(): tagv.hex() for tagk, tagv in Widths().tags(bytes.fromhex("000001000002")).items()}
        {'000001': '000002'}
        """
        name, step = self.tagk, self.pair
        return {pairs[at : at + name]: pairs[at + name : at + step] for at in range(0, len(pairs), step)}


_HEX = re.compile("[0-9a-fA-F]+")


def show_uid(uid: bytes) -> str:
    """Return a UID or TSUID as OpenTSDB writes it: in upper-case hex.

    >>> show_uid(bytes.fromhex("00000a"))
    '00000A'
    """
    return uid.hex().upper()


def parse_uid(text: str, width: int = 0) -> bytes:
    """Return the bytes of a UID or TSUID in hex of any case, padded with leading zeros to `width`. Raise BadLine.

    >>> parse_uid("a", 3).hex(), parse_uid("00000A").hex()
    ('00000a', '00000a')
    """
    if not _HEX.fullmatch(text):
        raise BadLine(ILLEGAL_ARGUMENT, f"got {text!r}, wanted a UID in hex")
    return bytes.fromhex("0" * (len(text) % 2) + text).rjust(width, b"\0")


def java_order(text: str) -> bytes:
    """Return a key that sorts texts as Java's String.compareTo does, by UTF-16 code units.

    >>> sorted(["\\uff5e", "\\U0001f600"], key=java_order) == ["\\U0001f600", "\\uff5e"]
    True
    """
    return text.encode("utf-16-be", "surrogatepass")
