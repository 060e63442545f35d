"""Row keys of the data table (FORMATS.md §3), TSUIDs (FORMATS.md §2), and patterns of row keys.

A row key is [salt] metric UID, base time, tag pairs in order of their bytes. A TSUID identifies a time series by metric
UID and sorted tag pairs.

A pattern is a regular expression that a region server applies to row keys. HBase decodes keys as UTF-8 text with U+FFFD
for invalid bytes: any run of bytes from 0x80 up becomes an unknown number of characters. So a pattern matches all
wanted keys and some others; the reader checks each key again.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import gcd
from typing import NamedTuple, NewType

from tsd.codec.names import Widths
from tsd.codec.opentsdb.uid import Uid
from tsd.codec.putline import BaseTime
from tsd.codec.text import show_signed
from tsd.errors import ILLEGAL_ARGUMENT, BadLine, CorruptRow

RowKey = NewType("RowKey", bytes)
BASE_BYTES = 4
LAST_BASE = (1 << 8 * BASE_BYTES) - 1
LONGEST_HBASE_KEY = 32767  # bytes; HBase 2.6.1 answers "Row length 32768 is > 32767"
LONGEST_BIGTABLE_KEY = 4096
WIDEST_SALT = 8  # bytes
LARGEST_BUCKETS = 1 << 16  # that `bucket_counts` finds


class KeyLayout(NamedTuple):
    """The widths of the parts of a data table's row keys. A salt width of 0 means no salt."""

    widths: Widths = Widths()
    salt_width: int = 0
    salt_buckets: int = 20

    @property
    def metric_end(self) -> int:
        """Offset of the base time."""
        return self.salt_width + self.widths.metric

    @property
    def pairs_start(self) -> int:
        """Offset of the tag pairs: the length of a key without tags."""
        return self.metric_end + BASE_BYTES


class Series(NamedTuple):
    """One time series by UIDs: the contents of a TSUID."""

    metric: Uid
    pairs: tuple[tuple[Uid, Uid], ...]  # (tagk, tagv), sorted by their bytes


class SplitKey(NamedTuple):
    """A row key in parts."""

    salt: bytes
    series: Series
    base: BaseTime


def join_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the tag pairs of a key: joined, and sorted as whole pairs.

    >>> join_pairs([(b"\\2", b"\\1"), (b"\\1", b"\\7")]).hex()
    '01070201'
    """
    return b"".join(sorted(tagk + tagv for tagk, tagv in pairs))


def most_tags(layout: KeyLayout) -> int:
    """Return the largest number of tags in a row key.

    >>> most_tags(KeyLayout())
    5460
    """
    return (LONGEST_HBASE_KEY - layout.pairs_start) // layout.widths.pair


def salt_of(metric: bytes, pairs: bytes, width: int, buckets: int) -> bytes:
    """Return the salt of a series: Java's hash of metric and joined pairs, folded into `buckets`.

    A series without tags, or with the all-zero metric of global annotations, has a salt of zeros.

    >>> salt_of(bytes.fromhex("000003"), bytes.fromhex("000001000004"), 1, 20).hex()
    '03'
    """
    if not pairs or not any(metric):
        return bytes(width)
    return (_series_hash(metric + pairs) % buckets & (1 << 8 * width) - 1).to_bytes(width, "big")


def _series_hash(metric_and_pairs: bytes) -> int:
    """Return Java's hash of a series, without its sign."""
    h = 1
    for byte in metric_and_pairs:
        h = (31 * h + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return abs(h - (1 << 32) if h & 0x80000000 else h)


def bucket_counts(keys: Iterable["SplitKey"]) -> list[int]:
    """Return the numbers of salts with which all `keys` have the salt that their series gets, in ascending order. All
    have pairs, and a metric other than zero.

    >>> layout = KeyLayout(salt_width=1, salt_buckets=20)
    >>> series = [bytes((0, 0, 1, 0, 0, host)) for host in range(9)]
    >>> bucket_counts(split_key(layout, row_key(layout, bytes((0, 0, 3)), 0, pairs)) for pairs in series)
    [20]
    """
    divided, least, most = 0, 1, LARGEST_BUCKETS
    for key in keys:
        salt = int.from_bytes(key.salt, "big")
        pairs = b"".join(map(b"".join, key.series.pairs))
        divided = gcd(divided, _series_hash(key.series.metric + pairs) - salt)  # a multiple of each number of salts
        least, most = max(least, salt + 1), min(most, 1 << 8 * len(key.salt))
    return [count for count in range(least, min(most, divided) + 1) if divided % count == 0]


def salts(layout: KeyLayout) -> list[bytes]:
    """Return all salts in order; one empty salt for a table without salting.

    >>> [salt.hex() for salt in salts(KeyLayout(salt_width=2, salt_buckets=3))], salts(KeyLayout())
    (['0000', '0001', '0002'], [b''])
    """
    if not layout.salt_width:
        return [b""]
    width = layout.salt_width
    buckets = min(layout.salt_buckets, 1 << 8 * width)  # see salt_of
    return [bucket.to_bytes(width, "big") for bucket in range(buckets)]


def base_bytes(time_s: int) -> bytes:
    """Return the base time's bytes, clamped to the range of keys.

    >>> base_bytes(1356998400).hex(), base_bytes(-1).hex(), base_bytes(1 << 40).hex()
    ('50e22700', '00000000', 'ffffffff')
    """
    return min(max(time_s, 0), LAST_BASE).to_bytes(BASE_BYTES, "big")


def row_key(layout: KeyLayout, metric: bytes, base: int, pairs: bytes) -> RowKey:
    """Return the row key of one hour of one series; `pairs` as `join_pairs` returns them. Of the base time only the
    low 32 bits are used.

    >>> row_key(KeyLayout(), b"\\0\\0\\1", 1356998400, bytes.fromhex("000001000001")).hex()
    '00000150e22700000001000001'
    """
    salt = salt_of(metric, pairs, layout.salt_width, layout.salt_buckets) if layout.salt_width else b""
    return RowKey(salt + metric + (base & 0xFFFFFFFF).to_bytes(BASE_BYTES, "big") + pairs)


def split_key(layout: KeyLayout, key: bytes) -> SplitKey:
    """Return the parts of a row key. Raise CorruptRow for an invalid length.

    >>> split_key(KeyLayout(), bytes.fromhex("00000150e22700000001000001")).base
    1356998400
    """
    check_key(layout, key)
    return SplitKey(
        salt=key[: layout.salt_width],
        series=Series(
            metric=Uid(key[layout.salt_width : layout.metric_end]),
            pairs=split_pairs(layout.widths, key[layout.pairs_start :]),
        ),
        base=BaseTime(int.from_bytes(key[layout.metric_end : layout.pairs_start], "big")),
    )


def check_key(layout: KeyLayout, key: bytes) -> None:
    """Raise CorruptRow if a row key has an invalid length.

    >>> check_key(KeyLayout(), bytes.fromhex("00000150e22700000001000001"))
    """
    rest = len(key) - layout.pairs_start
    if rest < 0 or rest % layout.widths.pair:
        raise CorruptRow(
            f"row key {key.hex()}: got {len(key)} bytes, wanted {layout.pairs_start} and a multiple of "
            f"{layout.widths.pair}"
        )


def split_pairs(widths: Widths, pairs: bytes) -> tuple[tuple[Uid, Uid], ...]:
    """Return the (tagk, tagv) of joined pairs; the length must be a multiple of a pair's."""
    return tuple(
        (Uid(pairs[at : at + widths.tagk]), Uid(pairs[at + widths.tagk : at + widths.pair]))
        for at in range(0, len(pairs), widths.pair)
    )


def tsuid(layout: KeyLayout, key: bytes) -> bytes:
    """Return the TSUID of a row key: the key without salt and base time.

    >>> tsuid(KeyLayout(), bytes.fromhex("00000150e22700000001000001")).hex()
    '000001000001000001'
    """
    return key[layout.salt_width : layout.metric_end] + key[layout.pairs_start :]


def split_tsuid(widths: Widths, tsuid: bytes) -> Series:
    """Return the UIDs in a TSUID. Raise BadLine with OpenTSDB's text for an invalid length.

    >>> split_tsuid(Widths(), bytes.fromhex("000001000002000003"))
    Series(metric=b'\\x00\\x00\\x01', pairs=((b'\\x00\\x00\\x02', b'\\x00\\x00\\x03'),))
    """
    rest = len(tsuid) - widths.metric
    if rest <= 0:
        raise BadLine(ILLEGAL_ARGUMENT, f"TSUID is too short, may be missing tags: {show_signed(tsuid)}")
    if rest % widths.pair:
        raise BadLine(ILLEGAL_ARGUMENT, f"The TSUID appears to be malformed, improper tag width: {show_signed(tsuid)}")
    return Series(Uid(tsuid[: widths.metric]), split_pairs(widths, tsuid[widths.metric :]))


def tsuid_row(layout: KeyLayout, tsuid: bytes, base: int) -> RowKey:
    """Return the row key of an hour of a series.

    >>> tsuid_row(KeyLayout(), bytes.fromhex("000001000001000001"), 1356998400).hex()
    '00000150e22700000001000001'
    """
    return row_key(layout, tsuid[: layout.widths.metric], base, tsuid[layout.widths.metric :])


_HIGH = r"[^\x00-\x7f]"


def row_pattern(tags: Sequence[Iterable[bytes]]) -> str:
    """Return a pattern that matches every key with one of the alternatives of each of `tags`. An alternative is the
    joined UIDs of a tag's name and value; `tags` are ordered by name, as in keys.

    >>> row_pattern([[bytes.fromhex("000001000002"), bytes.fromhex("0000010000ff")]])
    '(?:\\\\x00\\\\x00\\\\x01\\\\x00\\\\x00\\\\x02|\\\\x00\\\\x00\\\\x01\\\\x00\\\\x00[^\\\\x00-\\\\x7f]{0,1})'
    """
    return ".*".join(f"(?:{'|'.join(map(_bytes_pattern, alternatives))})" for alternatives in tags)


def _bytes_pattern(text: bytes) -> str:
    """Return the pattern of bytes. At either end, high bytes may form one character with the bytes next to them."""
    runs = [(high, len(part := list(group)), part) for high, group in groupby(text, lambda byte: byte > 0x7F)]
    last = len(runs) - 1
    return "".join(
        f"{_HIGH}{{{int(0 < at < last)},{size}}}" if high else "".join(f"\\x{byte:02x}" for byte in part)
        for at, (high, size, part) in enumerate(runs)
    )
