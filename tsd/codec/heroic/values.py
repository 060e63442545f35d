"""Columns and values of Heroic's cells (FORMATS.md in this folder)."""

from collections.abc import Sequence

import numpy as np

from tsd.codec.points import Float64, Int64
from tsd.errors import CorruptRow

POINTS, DISTRIBUTIONS, EVENTS = b"points", b"distributionPoints", b"events"
PERIOD_MS = 1 << 32  # that a row covers, from a multiple of it on
OFFSET_BYTES, VALUE_BYTES = 4, 8
CANONICAL_NAN = 0x7FF8000000000000
POINTS_PREFIX = POINTS + b":"


def base_of(time_ms: int) -> int:
    """Return the base time of a time, which is not before 1970. Raise ValueError.

    >>> base_of(1300000000000)
    1297080123392
    """
    if time_ms < 0:
        raise ValueError(f"time: got {time_ms} ms, wanted 1970 or later")
    return time_ms // PERIOD_MS * PERIOD_MS


def point_columns(offsets: Int64) -> list[bytes]:
    """Return the columns of points at offsets of 0 to 2^32 - 1 ms.

    >>> [column.removeprefix(POINTS_PREFIX).hex() for column in point_columns(np.array([2919876608]))]
    ['ae09c800']
    """
    data = offsets.astype(">u4").tobytes()
    return [POINTS_PREFIX + data[at : at + OFFSET_BYTES] for at in range(0, len(data), OFFSET_BYTES)]


def offset_of(qualifier: bytes) -> int:
    """Return the offset of a point in ms. Raise CorruptRow."""
    if len(qualifier) != OFFSET_BYTES:
        raise CorruptRow(f"qualifier: got {qualifier.hex()}, wanted {OFFSET_BYTES} bytes")
    return int.from_bytes(qualifier, "big")


def encode_values(values: Float64) -> list[bytes]:
    """Return doubles as stored. Every NaN has the same bits.

    >>> [value.hex() for value in encode_values(np.array([42.0, -np.nan]))]
    ['4045000000000000', '7ff8000000000000']
    """
    bits = np.where(np.isnan(values), np.int64(CANONICAL_NAN), np.ascontiguousarray(values).view(np.int64))
    data = bits.astype(">i8").tobytes()
    return [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)]


def decode_values(values: Sequence[bytes]) -> Float64:
    """Return the doubles of some cells. Raise CorruptRow."""
    if wrong := [value for value in values if len(value) != VALUE_BYTES]:
        raise CorruptRow(f"value: got {wrong[0].hex()}, wanted {VALUE_BYTES} bytes of a double")
    return np.frombuffer(b"".join(values), ">f8").astype(np.float64)
