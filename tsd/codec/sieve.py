"""Row keys that may be wanted, as a regular expression that a region server applies.

HBase's Thrift gateway makes of such an expression a comparator that takes keys for UTF-8 text, and what is none for
U+FFFD: bytes from 0x80 up, alone or together, become an unknown number of characters. So the expression passes some
keys too many, never one too few; whoever reads looks at the keys again.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

_HIGH = r"[^\x00-\x7f]"


def row_pattern(tags: Sequence[Iterable[bytes]]) -> str:
    """An expression that is found in every key that has, for each of `tags`, one of its alternatives: joined UIDs of a
    tag's name and value. `tags` ascend by their names, as keys have them.

    >>> row_pattern([[bytes.fromhex("000001000002"), bytes.fromhex("0000010000ff")]])
    '(?:\\\\x00\\\\x00\\\\x01\\\\x00\\\\x00\\\\x02|\\\\x00\\\\x00\\\\x01\\\\x00\\\\x00[^\\\\x00-\\\\x7f]{0,1})'
    """
    return ".*".join(f"(?:{'|'.join(map(_bytes_pattern, alternatives))})" for alternatives in tags)


def _bytes_pattern(text: bytes) -> str:
    """Bytes as characters. At an end, high bytes may be one character with what stands beside them."""
    runs = [(high, len(part := list(group)), part) for high, group in groupby(text, lambda byte: byte > 0x7F)]
    last = len(runs) - 1
    return "".join(
        f"{_HIGH}{{{int(0 < at < last)},{size}}}" if high else "".join(f"\\x{byte:02x}" for byte in part)
        for at, (high, size, part) in enumerate(runs)
    )
