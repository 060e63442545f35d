"""Packed form of cells with many points, for the embedded store (FORMATS.md §12).

Times and numbers are separate sequences. Decimal numbers are stored as integers: 21.37 as 2137 if no number of the cell
has more than two decimals. Unpacking returns the exact cell; a cell for which that is impossible has no packed form.
The compiled _packing.pyx produces the same bytes; the Python code is its reference, and reads cells without it.
"""

import os
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tsd.codec.opentsdb.cell import MS_MARK
from tsd.codec.packing.sequence import (
    DIFFERENCES,
    EVEN_STEPS,
    NUMBERS,
    SECOND_DIFFERENCES,
    Int64,
    Reader,
    encode_sequence,
    varint,
)
from tsd.codec.text import FLOAT, LENGTH
from tsd.errors import CorruptRow

try:
    from tsd.codec.packing import _packing
except ImportError:  # installed without a C compiler
    HAS_PACKING_LOOP = False
else:
    HAS_PACKING_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

UInt8 = NDArray[np.uint8]
Doubles = NDArray[np.float64]

FORM = 1  # first byte of the packed form
CHECKSUM_BYTES = 4
LEAST_POINTS, MOST_POINTS = 1, 1 << 16
INTEGERS, DECIMALS, DOUBLE_BITS, SINGLE_BITS = range(4)  # kinds of numbers in the sequence
SHORTEST, WHOLE = 16, 17  # rules that derive flags from numbers; lower ones are the flags of all points
MOST_DECIMALS = 9
_SINGLE, _DOUBLE = FLOAT | 3, FLOAT | 7
_INTEGER_FLAGS, _FLOAT_FLAGS = (0, 1, 3, 7), (_SINGLE, _DOUBLE)
_TYPES = {0: "i1", 1: ">i2", 3: ">i4", 7: ">i8", _SINGLE: ">i4", _DOUBLE: ">i8"}  # floats as bits
_BEYOND = float(1 << 53)
_SECONDS_BEYOND, _MS_BEYOND = MS_MARK << 4, 1 << 22
_NO_TAIL = 0  # otherwise the last byte plus one


class _Points(NamedTuple):
    """The points of a cell."""

    in_ms: bool
    times: Int64
    flags: UInt8
    numbers: Int64  # integers, and the bits of floats
    tail: int


def pack(qualifier: bytes, value: bytes, *, compiled: bool = HAS_PACKING_LOOP) -> bytes | None:
    """Return the packed form of a cell, None if it has none: too few points, or an unusual one.

    >>> packed = pack(bytes.fromhex("000000a0014001e0"), bytes.fromhex("0102030400"))
    >>> packed.hex(), unpack(packed, 0, b"") == (bytes.fromhex("000000a0014001e0"), bytes.fromhex("0102030400"))
    ('010200000401001400010202000ec1d6be', True)
    """
    if compiled:
        found: bytes | None = _packing.pack(qualifier, value)
        return found
    with np.errstate(all="ignore"):  # unpacking detects overflows and NaN
        points = _read(qualifier, value)
        rule = None if points is None else _rule(points)
        if points is None or rule is None:
            return None
        kind, decimals, numbers = _whole_numbers(points, rule)
    head = bytes((FORM, points.in_ms | points.tail << 1 | kind << 3, rule, decimals)) + varint(len(numbers))
    times = encode_sequence(points.times, (DIFFERENCES, EVEN_STEPS))
    return with_checksum(head + times + encode_sequence(numbers, (NUMBERS, DIFFERENCES, SECOND_DIFFERENCES)))


def with_checksum(cell: bytes) -> bytes:
    """Return a packed form with its checksum."""
    return cell + crc32(cell).to_bytes(CHECKSUM_BYTES, "little")


def unpack(stored: bytes, ahead: int, prefix: bytes, *, compiled: bool = HAS_PACKING_LOOP) -> tuple[bytes, bytes]:
    """Return the qualifier after `prefix`, and the value, of the packed form in `stored` after `ahead` bytes.

    The value is prefixed with these bytes. Raise CorruptRow.
    """
    if compiled:
        found: tuple[bytes, bytes] = _packing.unpack(stored, ahead, prefix)
        return found
    packed, checksum = stored[ahead:-CHECKSUM_BYTES], stored[-CHECKSUM_BYTES:]
    if len(stored) < ahead + 9:
        raise CorruptRow(f"a packed cell of {len(stored) - ahead} bytes")
    if crc32(packed).to_bytes(CHECKSUM_BYTES, "little") != checksum:
        raise CorruptRow(f"a packed cell's checksum is wrong: {stored[ahead:].hex()}")
    form, what, rule, decimals = packed[:4]
    kind = what >> 3
    reader = Reader(packed, 4)
    count = reader.varint()
    is_head = form == FORM and _is_head(what, rule, decimals) and LEAST_POINTS <= count <= MOST_POINTS
    if not is_head or (count == 1 and what >> 1 & 3 != _NO_TAIL):
        raise CorruptRow(f"no packed cell starts like this: {packed[:8].hex()}")
    times, numbers = reader.sequence(count), reader.sequence(count)
    beyond = _MS_BEYOND if what & 1 else _SECONDS_BEYOND
    if reader.at != len(packed) or times.min() < 0 or times.max() >= beyond:
        raise CorruptRow(f"a packed cell breaks its form: {stored[ahead:].hex()}")
    with np.errstate(all="ignore"):
        flags, bits = _flags_and_bits(kind, rule, decimals, numbers)
    tail = what >> 1 & 3
    value = _value_of(flags, bits) + (bytes((tail - 1,)) if tail != _NO_TAIL else b"")
    return prefix + _qualifier_of(bool(what & 1), times, flags), stored[:ahead] + value


def _is_head(what: int, rule: int, decimals: int) -> bool:
    """Return whether kind, rule and decimals fit each other."""
    kind = what >> 3
    if what >> 1 & 3 > 2 or kind > SINGLE_BITS or decimals > MOST_DECIMALS or rule > WHOLE:
        return False
    rules = {
        INTEGERS: (*_INTEGER_FLAGS, SHORTEST),
        DECIMALS: (*_FLOAT_FLAGS, SHORTEST, WHOLE),
        DOUBLE_BITS: (_DOUBLE, SHORTEST, WHOLE),
        SINGLE_BITS: (_SINGLE,),
    }
    return rule in rules[kind]


def _read(qualifier: bytes, value: bytes) -> _Points | None:
    """Return the points of a cell with times of one kind; None for other cells, and if it violates FORMATS.md §5."""
    in_ms = qualifier[:1] >= bytes((MS_MARK,))
    width = 4 if in_ms else 2
    count = len(qualifier) // width
    if len(qualifier) % width or not LEAST_POINTS <= count <= MOST_POINTS:
        return None
    words = np.frombuffer(qualifier, ">u4" if in_ms else ">u2").astype(np.int64)
    if in_ms:
        if (words >> 28 != MS_MARK >> 4).any() or (words & 0x30).any():
            return None
        times = words >> 6 & _MS_BEYOND - 1
    else:
        times = words >> 4
        if times.max() >= _SECONDS_BEYOND:
            return None
    flags = (words & (FLOAT | LENGTH)).astype(np.uint8)
    ends = np.cumsum((flags & LENGTH).astype(np.int64) + 1)
    end, tail = int(ends[-1]), count > 1  # a cell of one point has no last byte
    if not set(np.unique(flags).tolist()) <= set(_TYPES) or not end <= len(value) <= end + tail or value[end:] > b"\1":
        return None
    content = np.frombuffer(value, np.uint8)
    numbers = np.empty(count, np.int64)
    for flag, at in _places(flags):
        size = (flag & LENGTH) + 1
        parts = content[(ends[at] - size)[:, None] + np.arange(size)]
        numbers[at] = parts.reshape(-1).view(_TYPES[flag])
    return _Points(in_ms, times, flags, numbers, value[end] + 1 if len(value) > end else _NO_TAIL)


def _places(flags: UInt8) -> list[tuple[int, NDArray[np.intp]]]:
    """Return the indexes of each kind of number."""
    return [(flag, np.flatnonzero(flags == flag)) for flag in np.unique(flags).tolist()]


def _rule(points: _Points) -> int | None:
    """Return the rule by which the flags follow from the numbers; None if there is none."""
    flags, numbers = points.flags, points.numbers
    if (flags == flags[0]).all():
        return int(flags[0])
    doubles, floats = _doubles(points), flags & FLOAT != 0
    bare = np.where(floats, 0, numbers)
    if (np.where(floats, _float_flags(doubles), _integer_flags(bare)) != flags).any():
        return None
    if floats.all() or not floats.any():
        return SHORTEST
    exact = (bare < 1 << 53) & (bare > -1 << 53)
    return WHOLE if np.where(floats, ~_is_whole(doubles), exact).all() else None


def _doubles(points: _Points) -> Doubles:
    """Return the numbers as doubles; numbers that are bits of a double are unchanged."""
    doubles = points.numbers.astype(np.float64)
    for flag, at in _places(points.flags):
        if flag == _SINGLE:
            doubles[at] = points.numbers[at].astype(np.int32).view(np.float32)
        elif flag == _DOUBLE:
            doubles.view(np.int64)[at] = points.numbers[at]
    return doubles


def _integer_flags(numbers: Int64) -> UInt8:
    """Return the flags of integers in the fewest bytes."""
    flags = np.full(len(numbers), 7, np.uint8)
    for flag, kind in ((3, np.int32), (1, np.int16), (0, np.int8)):
        flags[numbers.astype(kind) == numbers] = flag
    return flags


def _float_flags(doubles: Doubles) -> UInt8:
    """Return the flags of a single if it is exact, otherwise of a double."""
    return np.where(doubles.astype(np.float32) == doubles, np.uint8(_SINGLE), np.uint8(_DOUBLE))


def _is_whole(doubles: Doubles) -> NDArray[np.bool_]:
    whole: NDArray[np.bool_] = (np.abs(doubles) < _BEYOND) & (np.trunc(doubles) == doubles)
    return whole


def _whole_numbers(points: _Points, rule: int) -> tuple[int, int, Int64]:
    """Return the kind of the numbers, their decimals, and the integers to store."""
    if rule < _SINGLE or (rule == SHORTEST and not points.flags[0] & FLOAT):
        return INTEGERS, 0, points.numbers
    doubles = _doubles(points)
    if (found := _decimals(doubles, single=rule == _SINGLE)) is not None:
        return DECIMALS, *found
    if rule == _SINGLE:
        return SINGLE_BITS, 0, points.numbers ^ (points.numbers >> 63 & 0x7FFFFFFF)
    bits = doubles.view(np.int64)
    return DOUBLE_BITS, 0, bits ^ (bits >> 63 & 0x7FFFFFFFFFFFFFFF)


def _decimals(doubles: Doubles, *, single: bool) -> tuple[int, Int64] | None:
    """Return the number of decimals of all numbers, and the scaled integers; None if scaling is not exact."""
    decimals = at = 0
    whole, exact = _try_decimals(doubles, 0, single=single)
    while len(failing := np.flatnonzero(~exact[at:])):
        at += int(failing[0])
        one = doubles[at : at + 1]
        more = (d for d in range(decimals + 1, MOST_DECIMALS + 1) if _try_decimals(one, d, single=single)[1].all())
        if (found := next(more, None)) is None:
            return None
        decimals = found
        whole, exact = _try_decimals(doubles, decimals, single=single)
    return (decimals, whole) if exact.all() else None


def _try_decimals(doubles: Doubles, decimals: int, *, single: bool) -> tuple[Int64, NDArray[np.bool_]]:
    """Return integers, and which of them give the exact number when divided."""
    scaled = doubles * 10.0**decimals
    small = np.abs(scaled) < _BEYOND
    whole = np.rint(np.where(small, scaled, 0.0)).astype(np.int64)
    back = whole / 10.0**decimals
    if single:
        return whole, small & (back.astype(np.float32).view(np.int32) == doubles.astype(np.float32).view(np.int32))
    return whole, small & (back.view(np.int64) == doubles.view(np.int64))


def _flags_and_bits(kind: int, rule: int, decimals: int, numbers: Int64) -> tuple[UInt8, Int64]:
    """Return the flags of each number, and its bits."""
    if kind == INTEGERS:
        flags = _integer_flags(numbers)
        if rule < SHORTEST:
            if flags.max() > rule:
                raise CorruptRow(f"a packed cell's integer does not fit in {rule + 1} bytes")
            flags[:] = rule
        return flags, numbers
    if kind == SINGLE_BITS:
        return np.full(len(numbers), rule, np.uint8), numbers ^ (numbers >> 63 & 0x7FFFFFFF)
    if kind == DECIMALS:
        doubles = numbers / 10.0**decimals
    else:
        doubles = (numbers ^ (numbers >> 63 & 0x7FFFFFFFFFFFFFFF)).view(np.float64)
    flags = _float_flags(doubles) if rule >= SHORTEST else np.full(len(numbers), rule, np.uint8)
    if rule == WHOLE:
        whole = _is_whole(doubles)
        flags[whole] = _integer_flags(doubles[whole].astype(np.int64))
    bits = doubles.view(np.int64).copy()
    for flag, at in _places(flags):
        if flag == _SINGLE:
            bits[at] = doubles[at].astype(np.float32).view(np.int32)
        elif not flag & FLOAT:
            bits[at] = doubles[at].astype(np.int64)
    return flags, bits


def _qualifier_of(in_ms: bool, times: Int64, flags: UInt8) -> bytes:
    if in_ms:
        return (MS_MARK << 24 | times << 6 | flags).astype(">u4").tobytes()
    return (times << 4 | flags).astype(">u2").tobytes()


def _value_of(flags: UInt8, bits: Int64) -> bytes:
    sizes = (flags & LENGTH).astype(np.int64) + 1
    ends = np.cumsum(sizes)
    content = np.empty(int(ends[-1]), np.uint8)
    for flag, at in _places(flags):
        size = (flag & LENGTH) + 1
        content[(ends[at] - size)[:, None] + np.arange(size)] = (
            bits[at].astype(">i8").view(np.uint8).reshape(-1, 8)[:, 8 - size :]
        )
    return content.tobytes()
