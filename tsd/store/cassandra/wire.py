"""Bytes of Cassandra's native protocol, for large batches and answers: without a Python object for each value.

A value is a length, four bytes, big-endian, and that many bytes. The length of null is -1.
"""

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tsd.codec.points import Int64
from tsd.errors import CorruptRow

try:
    from tsd.store.cassandra import _wire
except ImportError:  # installed without a C compiler
    HAS_WIRE_LOOP = False
else:
    HAS_WIRE_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

LENGTH_BYTES = 4
LENGTH = struct.Struct(">i")
_SMALL = [LENGTH.pack(length) for length in range(256)]


def encode_value(value: bytes) -> bytes:
    """Return a value with its length.

    >>> encode_value(b"ab").hex()
    '000000026162'
    """
    size = len(value)
    return (_SMALL[size] if size < len(_SMALL) else LENGTH.pack(size)) + value


class RawRows(NamedTuple):
    """Rows of an answer as sent: the values of each row one after the other, without gaps."""

    rows: int
    body: bytes


class ValuePlaces(NamedTuple):
    """Where the values of rows are in an answer's body, shape (rows, columns). The length of null is -1."""

    starts: Int64
    lengths: Int64


def find_values(raw: RawRows, columns: int, *, compiled: bool = HAS_WIRE_LOOP) -> ValuePlaces:
    """Return where the values of rows are. Raise CorruptRow for a body that ends early. Not `compiled`: use the Python
    code.

    >>> places = find_values(RawRows(2, b"".join(map(encode_value, [b"a", b"", b"bc", b"d"]))), 2)
    >>> places.starts.tolist(), places.lengths.tolist()
    ([[4, 9], [13, 19]], [[1, 0], [2, 1]])
    """
    shape = raw.rows, columns
    find = _find_each_compiled if compiled else _find_each
    found = _find_equal(raw, columns) if raw.rows else None
    if found is None:
        found = find(raw.body, raw.rows * columns)
    return ValuePlaces(*(part.reshape(shape) for part in found))


def _find_equal(raw: RawRows, columns: int) -> tuple[Int64, Int64] | None:
    """Return starts and lengths if all rows look like the first one, otherwise None. Such rows need no loop."""
    try:
        starts, lengths = _find_each(raw.body, columns)  # of one row
    except CorruptRow:
        return None
    stride = int(starts[-1] + max(int(lengths[-1]), 0))
    if stride * raw.rows != len(raw.body):
        return None
    table = np.frombuffer(raw.body, np.uint8).reshape(raw.rows, stride)
    for start in (starts - LENGTH_BYTES).tolist():
        if (table[:, start : start + LENGTH_BYTES] != table[0, start : start + LENGTH_BYTES]).any():
            return None
    first = np.arange(raw.rows, dtype=np.int64)[:, None] * stride
    return (first + starts[None, :]).ravel(), np.tile(lengths, raw.rows)


def _find_each_compiled(body: bytes, count: int) -> tuple[Int64, Int64]:
    starts, lengths, end = _wire.find_each(body, count)
    if end < 0:
        raise CorruptRow(f"answer: got {len(body)} bytes, wanted more for {count} values")
    return np.frombuffer(starts, np.int64), np.frombuffer(lengths, np.int64)


def _find_each(body: bytes, count: int) -> tuple[Int64, Int64]:
    """Return starts and lengths of the first values of a body. Raise CorruptRow."""
    starts, lengths = [], []
    at = 0
    unpack = LENGTH.unpack_from
    try:
        for _ in range(count):
            (length,) = unpack(body, at)
            at += LENGTH_BYTES
            starts.append(at)
            lengths.append(length)
            if length > 0:
                at += length
    except struct.error:
        raise CorruptRow(f"answer: got {len(body)} bytes, wanted {count} values") from None
    if at > len(body):
        raise CorruptRow(f"answer: got {len(body)} bytes, wanted {at} or more for {count} values")
    return np.array(starts, np.int64), np.array(lengths, np.int64)


def fixed_values(body: bytes, starts: Int64, size: int) -> bytes:
    """Return the first `size` bytes of values, joined.

    >>> fixed_values(b"..ab.cd", np.array([2, 5]), 2)
    b'abcd'
    """
    taken: bytes = np.frombuffer(body, np.uint8)[starts[:, None] + np.arange(size)].tobytes()
    return taken


def values_at(body: bytes, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Return values as bytes."""
    return [body[start : start + length] for start, length in zip(starts, lengths, strict=True)]
