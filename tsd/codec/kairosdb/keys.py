"""Row keys of KairosDB's data_points (FORMATS.md in this folder)."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from tsd.codec.kairosdb.rows import FIRST_MS, LAST_MS
from tsd.codec.names import java_order
from tsd.errors import CorruptRow

LONG, DOUBLE, STRING, LEGACY = "kairos_long", "kairos_double", "kairos_string", "kairos_legacy"
LONGEST_PARTITION_KEY = 65_535  # bytes of a partition key of Cassandra
TIME_BYTES = 8


class DataRow(NamedTuple):
    """A row of points of one series and one type of values."""

    metric: str
    row_ms: int
    type: str
    tags: bytes  # see encode_tags

    def encode(self) -> bytes:
        """Return the bytes.

        >>> DataRow("a.b", 1355356800000, LONG, b"host=x:").encode().hex()
        '612e62000000013b918f8400000b6b6169726f735f6c6f6e67686f73743d783a'
        """
        if not FIRST_MS <= self.row_ms <= LAST_MS:
            raise ValueError(f"row time: got {self.row_ms}, wanted 64 bits")
        start = (
            self.metric.encode("utf-8", "surrogatepass") + b"\0" + self.row_ms.to_bytes(TIME_BYTES, "big", signed=True)
        )
        if self.type == LEGACY:
            return start + self.tags
        name = self.type.encode("ascii")
        return b"%b\0%c%b%b" % (start, len(name), name, self.tags)


def parse_row_key(key: bytes) -> DataRow:
    """Return a row key. Raise CorruptRow.

    >>> parse_row_key(bytes.fromhex("612e62000000013b918f8400000b6b6169726f735f6c6f6e67686f73743d783a"))
    DataRow(metric='a.b', row_ms=1355356800000, type='kairos_long', tags=b'host=x:')
    >>> parse_row_key(b"a" + bytes(9) + b"host=x:").type
    'kairos_legacy'
    """
    metric, nul, rest = key.partition(b"\0")
    if not nul or len(rest) < TIME_BYTES:
        raise CorruptRow(f"row key: got {key.hex()}, wanted a metric, 00 and 8 bytes of time")
    row_ms = int.from_bytes(rest[:TIME_BYTES], "big", signed=True)
    name, tags = LEGACY, rest[TIME_BYTES:]
    if tags[:1] == b"\0":
        length = tags[1] if len(tags) > 1 else 0
        if len(tags) < 2 + length or not tags[2 : 2 + length].isascii():
            raise CorruptRow(f"row key: got {key.hex()}, wanted a type of {length} ASCII letters")
        name, tags = tags[2 : 2 + length].decode("ascii"), tags[2 + length :]
    try:
        return DataRow(metric.decode("utf-8", "surrogatepass"), row_ms, name, tags)
    except UnicodeDecodeError:
        raise CorruptRow(f"row key: got {key.hex()}, wanted a metric in UTF-8") from None


def encode_tags(tags: Mapping[str, str]) -> bytes:
    """Return the tags at the end of a row key: sorted by names, and escaped.

    >>> encode_tags({"b": "2", "a:b": "c=d"})
    b'a::b=c==d:b=2:'
    """
    words = [
        f"{name.replace(':', '::').replace('=', ':=')}={tags[name].replace('=', '==').replace(':', '=:')}:"
        for name in sorted(tags, key=java_order)
    ]
    return "".join(words).encode("utf-8", "surrogatepass")


_TAG = re.compile(rb"((?::.|[^:=])*)=((?:=.|[^=:])*):", re.DOTALL)


def parse_tags(text: bytes) -> dict[str, str]:
    """Return the tags at the end of a row key. Raise CorruptRow.

    >>> parse_tags(b"a::b=c==d:b=2:")
    {'a:b': 'c=d', 'b': '2'}
    """
    tags: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _TAG.match(text, at)
        try:
            if match is None:
                raise ValueError
            name = re.sub(rb":(.)", rb"\1", match[1], flags=re.DOTALL).decode("utf-8", "surrogatepass")
            tags[name] = re.sub(rb"=(.)", rb"\1", match[2], flags=re.DOTALL).decode("utf-8", "surrogatepass")
        except ValueError:
            raise CorruptRow(f"tags of a row key: got {text.hex()}, wanted name=value: in UTF-8") from None
        at = match.end()
    return tags
