"""Rows of KairosDB's indexes (FORMATS.md in this folder)."""

from collections.abc import Mapping

from tsd.codec.names import java_order

TABLE_NAME = "data_points"  # in every index row
METRIC_NAMES, TAG_NAMES, TAG_VALUES = b"metric_names", b"tag_names", b"tag_values"  # rows of string_index
PRESENT = b"\0"  # value of an entry
MASK = 0xFFFFFFFF


def tag_pair(name: str, value: str) -> str:
    """Return the text of one tag in tag_indexed_row_keys.

    >>> tag_pair("host", "a")
    'host=a'
    """
    return f"{name}={value}"


def tag_hash(tags: Mapping[str, str]) -> int:
    """Return the hash of the tags in tag_indexed_row_keys.

    >>> tag_hash({"host": "a"})
    -1147264974
    """
    text = "".join(name + tags[name] for name in sorted(tags, key=java_order)).encode("utf-8", "surrogatepass")
    hashed = murmur3(text)
    return hashed - (1 << 32) if hashed >> 31 else hashed


def murmur3(data: bytes) -> int:
    """Return MurmurHash3 of 32 bits with seed 0.

    >>> murmur3(b""), hex(murmur3(b"hello"))
    (0, '0x248bfa47')
    """
    hashed = 0
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        hashed ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        hashed = (_rotated(hashed, 13) * 5 + 0xE6546B64) & MASK
    if whole < len(data):
        hashed ^= _mixed(int.from_bytes(data[whole:], "little"))
    hashed ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = ((hashed ^ hashed >> shift) * factor) & MASK
    return hashed


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & MASK


def _mixed(word: int) -> int:
    return _rotated(word * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
