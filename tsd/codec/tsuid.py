"""TSUIDs: one time series as bytes, metric UID then sorted tag pairs, and how they are spelled (FORMATS.md §2)."""

import re

from tsd.codec.rowkey import Layout, RowKey, Series, row_key, split_pairs
from tsd.codec.uid import Uid, Widths
from tsd.codec.words import show_signed
from tsd.errors import ILLEGAL_ARGUMENT, BadLine

_HEX = re.compile("[0-9a-fA-F]+")


def split_tsuid(widths: Widths, tsuid: bytes) -> Series:
    """The UIDs in a TSUID; raises BadLine with OpenTSDB's words where its length fits no series.

    >>> split_tsuid(Widths(), bytes.fromhex("000001000002000003"))
    Series(metric=b'\\x00\\x00\\x01', pairs=((b'\\x00\\x00\\x02', b'\\x00\\x00\\x03'),))
    """
    rest = len(tsuid) - widths.metric
    if rest <= 0:
        raise BadLine(ILLEGAL_ARGUMENT, f"TSUID is too short, may be missing tags: {show_signed(tsuid)}")
    if rest % widths.pair:
        raise BadLine(ILLEGAL_ARGUMENT, f"The TSUID appears to be malformed, improper tag width: {show_signed(tsuid)}")
    return Series(Uid(tsuid[: widths.metric]), split_pairs(widths, tsuid[widths.metric :]))


def join_tsuid(series: Series) -> bytes:
    """The TSUID of a series whose pairs are sorted.

    >>> join_tsuid(Series(Uid(b"\\0\\0\\1"), ((Uid(b"\\0\\0\\2"), Uid(b"\\0\\0\\3")),))).hex()
    '000001000002000003'
    """
    return series.metric + b"".join(tagk + tagv for tagk, tagv in series.pairs)


def tsuid_row(layout: Layout, tsuid: bytes, base: int) -> RowKey:
    """The row of a series' hour.

    >>> tsuid_row(Layout(), bytes.fromhex("000001000001000001"), 1356998400).hex()
    '00000150e22700000001000001'
    """
    return row_key(layout, tsuid[: layout.widths.metric], base, tsuid[layout.widths.metric :])


def show_uid(uid: bytes) -> str:
    """A UID or TSUID as OpenTSDB spells it.

    >>> show_uid(bytes.fromhex("00000a"))
    '00000A'
    """
    return uid.hex().upper()


def parse_uid(text: str, width: int = 0) -> bytes:
    """The bytes of a UID or TSUID in hex of any case, zeros in front up to `width` bytes; raises BadLine.

    >>> parse_uid("a", 3).hex(), parse_uid("00000A").hex()
    ('00000a', '00000a')
    """
    if not _HEX.fullmatch(text):
        raise BadLine(ILLEGAL_ARGUMENT, f"got {text!r}, wanted a UID in hex")
    return bytes.fromhex("0" * (len(text) % 2) + text).rjust(width, b"\0")
