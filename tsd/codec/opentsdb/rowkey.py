"""Row keys of the data table (FORMATS.md §3): [salt] metric UID, base time, tag pairs in order of their bytes."""

from collections.abc import Iterable
from typing import NamedTuple, NewType

from tsd.codec.times import BaseTime
from tsd.codec.uid import Uid, Widths
from tsd.errors import CorruptRow

RowKey = NewType("RowKey", bytes)
BASE_BYTES = 4
LAST_BASE = (1 << 8 * BASE_BYTES) - 1
LONGEST_KEY = 32767  # bytes; HBase 2.6.1 answers "Row length 32768 is > 32767"


class Layout(NamedTuple):
    """The widths of a data table's keys. A salt width of 0 means no salt."""

    widths: Widths = Widths()
    salt_width: int = 0
    salt_buckets: int = 20

    @property
    def metric_end(self) -> int:
        """Where the base time starts."""
        return self.salt_width + self.widths.metric

    @property
    def pairs_start(self) -> int:
        """Where the tag pairs start: the length of a key without tags."""
        return self.metric_end + BASE_BYTES


class Series(NamedTuple):
    """One time series by UIDs: what a TSUID holds."""

    metric: Uid
    pairs: tuple[tuple[Uid, Uid], ...]  # (tagk, tagv), sorted by their bytes


class SplitKey(NamedTuple):
    """A row key in parts."""

    salt: bytes
    series: Series
    base: BaseTime


def join_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Tag pairs as a key holds them: sorted as whole pairs.

    >>> join_pairs([(b"\\2", b"\\1"), (b"\\1", b"\\7")]).hex()
    '01070201'
    """
    return b"".join(sorted(tagk + tagv for tagk, tagv in pairs))


def most_tags(layout: Layout) -> int:
    """How many tags a row key has room for.

    >>> most_tags(Layout())
    5460
    """
    return (LONGEST_KEY - layout.pairs_start) // layout.widths.pair


def salt_of(metric: bytes, pairs: bytes, width: int, buckets: int) -> bytes:
    """The salt of a series: Java's hash of metric and joined pairs, folded into `buckets`.

    A series without tags, or with the all-zero metric of global annotations, has a salt of zeros.

    >>> salt_of(bytes.fromhex("000003"), bytes.fromhex("000001000004"), 1, 20).hex()
    '03'
    """
    if not pairs or not any(metric):
        return bytes(width)
    h = 1
    for byte in metric + pairs:
        h = (31 * h + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    if h & 0x80000000:
        h -= 1 << 32
    return (abs(h) % buckets & (1 << 8 * width) - 1).to_bytes(width, "big")


def salts(layout: Layout) -> list[bytes]:
    """All that a key may start with, in order: of a table without salt nothing.

    >>> [salt.hex() for salt in salts(Layout(salt_width=2, salt_buckets=3))], salts(Layout())
    (['0000', '0001', '0002'], [b''])
    """
    if not layout.salt_width:
        return [b""]
    width = layout.salt_width
    buckets = min(layout.salt_buckets, 1 << 8 * width)  # more fold into these: see salt_of
    return [bucket.to_bytes(width, "big") for bucket in range(buckets)]


def base_bytes(time_s: int) -> bytes:
    """A time as keys hold it; one that they cannot hold as the nearest that they can.

    >>> base_bytes(1356998400).hex(), base_bytes(-1).hex(), base_bytes(1 << 40).hex()
    ('50e22700', '00000000', 'ffffffff')
    """
    return min(max(time_s, 0), LAST_BASE).to_bytes(BASE_BYTES, "big")


def after(prefix: bytes) -> bytes | None:
    """The first key behind all that start with `prefix`; None where there is none.

    >>> after(bytes.fromhex("0001ff")).hex(), after(b"\\xff"), after(b"")
    ('000200', None, None)
    """
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> 8 * len(prefix) else number.to_bytes(len(prefix), "big")


def row_key(layout: Layout, metric: bytes, base: int, pairs: bytes) -> RowKey:
    """The key of one hour of one series; `pairs` as `join_pairs` makes them. The base time keeps its low 32 bits.

    >>> row_key(Layout(), b"\\0\\0\\1", 1356998400, bytes.fromhex("000001000001")).hex()
    '00000150e22700000001000001'
    """
    salt = salt_of(metric, pairs, layout.salt_width, layout.salt_buckets) if layout.salt_width else b""
    return RowKey(salt + metric + (base & 0xFFFFFFFF).to_bytes(BASE_BYTES, "big") + pairs)


def split_key(layout: Layout, key: bytes) -> SplitKey:
    """The parts of a row key; raises CorruptRow where its length fits no key.

    >>> split_key(Layout(), bytes.fromhex("00000150e22700000001000001")).base
    1356998400
    """
    rest = len(key) - layout.pairs_start
    if rest < 0 or rest % layout.widths.pair:
        raise CorruptRow(
            f"row key {key.hex()}: got {len(key)} bytes, wanted {layout.pairs_start} and a multiple of "
            f"{layout.widths.pair}"
        )
    return SplitKey(
        salt=key[: layout.salt_width],
        series=Series(
            metric=Uid(key[layout.salt_width : layout.metric_end]),
            pairs=split_pairs(layout.widths, key[layout.pairs_start :]),
        ),
        base=BaseTime(int.from_bytes(key[layout.metric_end : layout.pairs_start], "big")),
    )


def split_pairs(widths: Widths, pairs: bytes) -> tuple[tuple[Uid, Uid], ...]:
    """(tagk, tagv) of joined pairs whose length is a multiple of a pair's."""
    return tuple(
        (Uid(pairs[at : at + widths.tagk]), Uid(pairs[at + widths.tagk : at + widths.pair]))
        for at in range(0, len(pairs), widths.pair)
    )


def tsuid(layout: Layout, key: bytes) -> bytes:
    """The TSUID of a row key: the key without salt and base time.

    >>> tsuid(Layout(), bytes.fromhex("00000150e22700000001000001")).hex()
    '000001000001000001'
    """
    return key[layout.salt_width : layout.metric_end] + key[layout.pairs_start :]
