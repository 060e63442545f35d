"""Values of KairosDB's points (FORMATS.md in this folder)."""

import os
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Int64
from tsd.errors import CorruptRow

try:
    from tsd.codec.kairosdb import _values
except ImportError:  # installed without a C compiler
    HAS_VALUES_LOOP = False
else:
    HAS_VALUES_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

MOST_VARINT, DOUBLE_BYTES, LONGEST_TEXT = 10, 8, 65_535
MASK_64 = (1 << 64) - 1
CONTINUES, GROUP_BITS = 0x80, 7
CANONICAL_NAN = 0x7FF8000000000000
_LEGACY_FLOAT = 1  # first byte of a legacy single


def encode_long(number: int) -> bytes:
    """Return a whole number of 64 bits: zig-zag, then groups of seven bits, low ones first.

    >>> encode_long(63).hex(), encode_long(-1).hex(), encode_long(-(1 << 63)).hex()
    ('7e', '01', 'ffffffffffffffffff01')
    """
    rest = (number << 1 ^ number >> 63) & MASK_64
    groups = bytearray()
    while rest >= CONTINUES:
        groups.append(rest & 0x7F | CONTINUES)
        rest >>= GROUP_BITS
    groups.append(rest)
    return bytes(groups)


def decode_long(value: bytes) -> int:
    """Return a whole number. Longer forms than needed, and bytes after the number, are read. Raise CorruptRow.

    >>> decode_long(bytes.fromhex("8001")), decode_long(bytes.fromhex("8000")), decode_long(b"\\x01\\xff")
    (64, 0, -1)
    """
    number = 0
    for at, byte in enumerate(value[:MOST_VARINT]):
        number |= (byte & 0x7F) << GROUP_BITS * at
        if byte < CONTINUES:
            number &= MASK_64
            return (number >> 1) ^ -(number & 1)
    raise CorruptRow(f"whole number: got {value.hex() or 'no bytes'}, wanted 1 to {MOST_VARINT}, the last below 80")


def encode_longs(bits: Int64) -> list[bytes]:
    """Encode many numbers, each as `encode_long` does.

    >>> [value.hex() for value in encode_longs(np.array([64, -1]))]
    ['8001', '01']
    """
    rest = ((bits << 1) ^ (bits >> 63)).view(np.uint64)
    shifts = np.arange(MOST_VARINT, dtype=np.uint64) * np.uint64(GROUP_BITS)
    shifted = rest[:, None] >> shifts[None, :]
    lengths = np.maximum((shifted != 0).sum(axis=1), 1)
    groups = (shifted & np.uint64(0x7F)).astype(np.uint8) | np.uint8(CONTINUES)
    groups[np.arange(len(bits)), lengths - 1] &= 0x7F
    joined = groups.tobytes()
    return [
        joined[at : at + length]
        for at, length in zip(range(0, len(joined), MOST_VARINT), lengths.tolist(), strict=True)
    ]


def decode_longs_at(body: bytes, starts: Int64, lengths: Int64, *, compiled: bool = HAS_VALUES_LOOP) -> Int64:
    """Decode the values at some places of a body, each as `decode_long` does. Raise CorruptRow. Not `compiled`: use
    the Python code.

    >>> decode_longs_at(bytes.fromhex("80010101"), np.array([0, 3]), np.array([2, 1])).tolist()
    [64, -1]
    """
    if not compiled:
        ends = starts + np.maximum(lengths, 0)
        return decode_longs([body[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    found, wrong = _values.decode_longs_at(body, starts.tobytes(), lengths.tobytes())
    if wrong >= 0:
        decode_long(body[starts[wrong] : starts[wrong] + max(lengths[wrong], 0)])
    return np.frombuffer(found, np.int64)


def decode_longs(values: Sequence[bytes]) -> Int64:
    """Decode many values, each as `decode_long` does. Raise CorruptRow."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    joined = np.frombuffer(b"".join(values), np.uint8)
    ends = np.cumsum(lengths)
    plain = len(values) > 0 and lengths.min() > 0 and lengths.max() <= MOST_VARINT
    if plain:
        is_last = np.zeros(len(joined), np.bool_)
        is_last[ends - 1] = True
        plain = bool(((joined < CONTINUES) == is_last).all())
    if not plain:
        return np.array([decode_long(value) for value in values], np.int64)
    starts = ends - lengths
    places = np.arange(len(joined)) - np.repeat(starts, lengths)
    parts = (joined & 0x7F).astype(np.uint64) << (places * GROUP_BITS).astype(np.uint64)
    numbers = np.bitwise_or.reduceat(parts, starts)
    return (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)


def encode_double(number: float) -> bytes:
    """Return a double.

    >>> encode_double(-0.0).hex(), encode_double(float("nan")).hex()
    ('8000000000000000', '7ff8000000000000')
    """
    return CANONICAL_NAN.to_bytes(8, "big") if number != number else struct.pack(">d", number)


def encode_doubles(bits: Int64) -> list[bytes]:
    """Return doubles given by their raw bits."""
    joined = bits.astype(">i8").tobytes()
    return [joined[at : at + 8] for at in range(0, len(joined), 8)]


def decode_doubles(values: Sequence[bytes]) -> Int64:
    """Return the raw bits of doubles, which are the first 8 bytes of values. Raise CorruptRow.

    >>> decode_doubles([encode_double(1.5) + b"more"]).view(np.float64).tolist()
    [1.5]
    """
    short = next((value for value in values if len(value) < 8), None)
    if short is not None:
        raise CorruptRow(f"double: got {short.hex() or 'no bytes'}, wanted 8 bytes")
    found: NDArray[np.int64] = np.frombuffer(b"".join([value[:8] for value in values]), ">i8").astype(np.int64)
    return found


def encode_text(text: str) -> bytes:
    """Return a text in Java's modified UTF-8, after its length in two bytes. Raise ValueError for a longer one.

    >>> encode_text("a").hex(), encode_text("\\0").hex(), encode_text("\\U0001f600").hex()
    ('000161', '0002c080', '0006eda0bdedb880')
    """
    units = text.encode("utf-16-be", "surrogatepass")
    letters = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
    encoded = letters.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(encoded) > LONGEST_TEXT:
        raise ValueError(f"text: got {len(encoded)} bytes, wanted up to {LONGEST_TEXT}")
    return len(encoded).to_bytes(2, "big") + encoded


def decode_text(value: bytes) -> str:
    """Return a text. Raise CorruptRow.

    >>> decode_text(encode_text("x\\0\\U0001f600")) == "x\\0\\U0001f600", decode_text(bytes(2))
    (True, '')
    """
    length = int.from_bytes(value[:2], "big")
    encoded = value[2 : 2 + length]
    try:
        if len(value) < 2 or len(encoded) < length:
            raise ValueError
        letters = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except ValueError:
        raise CorruptRow(f"text: got {value.hex() or 'no bytes'}, wanted a length and modified UTF-8") from None
    return letters.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def decode_legacy(column: int, value: bytes) -> int | float:
    """Return a value of KairosDB up to 0.9.2: the last bit of its column says whether it is a double. Raise CorruptRow.

    >>> decode_legacy(2, b"\\x01\\x00"), decode_legacy(2, b""), decode_legacy(3, b"\\x01" + struct.pack(">f", 1.5))
    (256, 0, 1.5)
    """
    if not column & 1:
        if len(value) > 8:
            raise CorruptRow(f"legacy whole number: got {value.hex()}, wanted up to 8 bytes")
        return int.from_bytes(value, "big", signed=len(value) == 8)
    size, form = (4, ">f") if value[:1] == bytes([_LEGACY_FLOAT]) else (8, ">d")
    if len(value) < 1 + size:
        raise CorruptRow(f"legacy double: got {value.hex() or 'no bytes'}, wanted {1 + size} bytes")
    return float(struct.unpack(form, value[1 : 1 + size])[0])
