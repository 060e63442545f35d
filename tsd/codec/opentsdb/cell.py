"""Cells of the data table: qualifiers, values, and cells of many points (FORMATS.md §4, §5).

A qualifier with an even number of bytes belongs to points, one with an odd number to another object: its type is the
first byte.
"""

import enum
from collections.abc import Iterable
from typing import NamedTuple, NewType

from tsd.codec.putline import HOUR, HOUR_S
from tsd.codec.text import FLOAT, LENGTH, decode_number
from tsd.errors import CorruptRow

Qualifier = NewType("Qualifier", bytes)

FAMILY = b"t"
COLUMN = FAMILY + b":"  # prefix of data columns in the store
MS_MARK = 0xF0  # the first byte's high bits in a millisecond qualifier; a seconds offset below 3600 never has them
APPEND = Qualifier(b"\x05\x00\x00")
MIXED = b"\x01"  # last byte of a joined cell that holds both seconds and milliseconds
UNIFORM = b"\x00"
READABLE = frozenset((0, 1, 3, 7, FLOAT | 3, FLOAT | 7))  # flags of valid numbers
# Length of the value by the qualifier's last byte; 0 for invalid flags.
VALUE_SIZES = bytes((low & LENGTH) + 1 if low & (FLOAT | LENGTH) in READABLE else 0 for low in range(256))


class CellKind(enum.Enum):
    """Kind of a cell of the data table, by its qualifier."""

    POINTS = enum.auto()
    ANNOTATION = enum.auto()
    APPEND = enum.auto()
    HISTOGRAM = enum.auto()
    OTHER = enum.auto()


class Point(NamedTuple):
    """One data point as stored: its 2- or 4-byte qualifier and its value's bytes."""

    qualifier: bytes
    value: bytes

    @property
    def offset_ms(self) -> int:
        """Milliseconds after the row's base time."""
        return offset_ms(self.qualifier)

    @property
    def in_ms(self) -> bool:
        """Return whether its time has milliseconds."""
        return len(self.qualifier) == 4

    @property
    def flags(self) -> int:
        """Float bit and length of the value."""
        return self.qualifier[-1] & (FLOAT | LENGTH)

    @property
    def number(self) -> int | float:
        """The value. Raise CorruptRow if flags and bytes do not match."""
        try:
            return decode_number(self.flags, self.value)
        except ValueError as exc:
            raise CorruptRow(f"qualifier {self.qualifier.hex()}: {exc}") from exc


def kind_of(qualifier: bytes) -> CellKind:
    """Return the kind of the cell with a qualifier.

    >>> kind_of(b"\\0\\x10"), kind_of(APPEND), kind_of(b"\\1\\0\\0")
    (<CellKind.POINTS: 1>, <CellKind.APPEND: 3>, <CellKind.ANNOTATION: 2>)
    """
    if len(qualifier) % 2 == 0:
        return CellKind.POINTS if qualifier else CellKind.OTHER
    if qualifier[0] == 5 and len(qualifier) == 3:
        return CellKind.APPEND
    return {1: CellKind.ANNOTATION, 6: CellKind.HISTOGRAM}.get(qualifier[0], CellKind.OTHER)


def seconds_qualifier(offset_s: int, flags: int) -> Qualifier:
    """Return the column of a point `offset_s` seconds (0..3599) after its base time: 2 bytes.

    >>> seconds_qualifier(1, FLOAT | 3).hex()
    '001b'
    """
    assert 0 <= offset_s < HOUR_S, offset_s
    return Qualifier((offset_s << 4 | flags).to_bytes(2, "big"))


def ms_qualifier(offset_ms: int, flags: int) -> Qualifier:
    """Return the column of a point `offset_ms` milliseconds (0..3599999) after its base time: 4 bytes.

    >>> ms_qualifier(500, 0).hex()
    'f0007d00'
    """
    assert 0 <= offset_ms < HOUR_S * 1000, offset_ms
    return Qualifier((MS_MARK << 24 | offset_ms << 6 | flags).to_bytes(4, "big"))


def qualifier_of(instant: int, flags: int) -> Qualifier:
    """Return the column of a point at `instant` in the row of its hour.

    >>> qualifier_of(1356998401 * 2000, 0).hex(), qualifier_of(1356998400500 << 1 | 1, 0).hex()
    ('0010', 'f0007d00')
    """
    after = instant % HOUR
    return ms_qualifier(after >> 1, flags) if instant & 1 else seconds_qualifier(after // 2000, flags)


def offset_ms(qualifier: bytes) -> int:
    """Return the milliseconds after the base time of one point's qualifier; reserved bits are ignored.

    >>> offset_ms(bytes.fromhex("0010")), offset_ms(bytes.fromhex("f0007d30"))
    (1000, 500)
    """
    if len(qualifier) == 4:
        return (int.from_bytes(qualifier, "big") & 0x0FFFFFC0) >> 6
    return (int.from_bytes(qualifier, "big") >> 4) * 1000


def join(points: Iterable[Point]) -> Point:
    """Return one cell of one or more `points` in time order; a single point is returned unchanged.

    >>> join([Point(b"\\0\\0", b"\\x2a"), Point(bytes.fromhex("f0007d00"), b"\\x2b")])
    Point(qualifier=b'\\x00\\x00\\xf0\\x00}\\x00', value=b'*+\\x01')
    """
    chosen = list(points)
    if len(chosen) == 1:
        return chosen[0]
    uniform = len({len(point.qualifier) for point in chosen}) == 1
    return Point(
        b"".join(point.qualifier for point in chosen),
        b"".join(point.value for point in chosen) + (UNIFORM if uniform else MIXED),
    )


def split_qualifier(qualifier: bytes) -> list[bytes]:
    """Return the qualifiers of a points cell, one for each point. Raise CorruptRow if the last one is truncated.

    >>> [q.hex() for q in split_qualifier(bytes.fromhex("0000f0007d0000a0"))]
    ['0000', 'f0007d00', '00a0']
    """
    parts = []
    at = 0
    while at < len(qualifier):
        size = 4 if qualifier[at] & MS_MARK == MS_MARK else 2
        part = qualifier[at : at + size]
        if len(part) != size:
            raise CorruptRow(f"qualifier {qualifier.hex()}: got {len(part)} bytes at {at}, wanted {size}")
        parts.append(part)
        at += size
    return parts


def split(qualifier: bytes, value: bytes) -> list[Point]:
    """Return the points of a points cell, in the cell's order. Raise CorruptRow if value and qualifier do not match.

    A cell of several points ends with one byte that is neither checked nor used. It may be missing, as in cells that
    OpenTSDB's batch writer writes. A single point in an old encoding is converted (`repair_encoding`).

    >>> split(bytes.fromhex("00000010"), bytes.fromhex("2a2b00"))
    [Point(qualifier=b'\\x00\\x00', value=b'*'), Point(qualifier=b'\\x00\\x10', value=b'+')]
    """
    parts = split_qualifier(qualifier)
    if len(parts) == 1:
        return [repair_encoding(parts[0], value)]
    points = []
    at = 0
    for part in parts:
        size = (part[-1] & LENGTH) + 1
        points.append(Point(part, value[at : at + size]))
        at += size
    if not len(value) - 1 <= at <= len(value):
        raise CorruptRow(
            f"cell {qualifier.hex()} = {value.hex()}: got {len(value)} bytes, "
            f"wanted {at} for {len(parts)} points and one more"
        )
    return points


def repair_encoding(qualifier: bytes, value: bytes) -> Point:
    """Return a single point with OpenTSDB's two historic encodings converted. Raise CorruptRow.

    A 4-byte float may have 8 bytes, the first four zero; a seconds qualifier's length may be wrong, and is then
    the value's.

    >>> repair_encoding(bytes.fromhex("000b"), bytes.fromhex("0000000042280000")).value.hex()
    '42280000'
    >>> repair_encoding(bytes.fromhex("0007"), b"\\x2a").qualifier.hex()
    '0000'
    """
    flags = qualifier[-1] & (FLOAT | LENGTH)
    if len(qualifier) == 2:
        if flags == FLOAT | 3 and len(value) == 8:
            if any(value[:4]):
                raise CorruptRow(
                    f"cell {qualifier.hex()} = {value.hex()}: a 4-byte float in 8 bytes must start with four zeros"
                )
            value = value[4:]
        if len(value) in ((4, 8) if flags & FLOAT else (1, 2, 4, 8)):
            qualifier = bytes((qualifier[0], qualifier[1] & ~LENGTH | len(value) - 1))
            flags = qualifier[-1] & (FLOAT | LENGTH)
    if len(value) != (flags & LENGTH) + 1:
        raise CorruptRow(
            f"cell {qualifier.hex()} = {value.hex()}: got {len(value)} bytes, wanted {(flags & LENGTH) + 1}"
        )
    return Point(qualifier, value)


def split_append(value: bytes) -> list[Point]:
    """Return the points of an append column, in order of arrival. Raise CorruptRow if the last one is truncated.

    >>> [p.qualifier.hex() for p in split_append(bytes.fromhex("000007001008"))]
    ['0000', '0010']
    """
    points = []
    at = 0
    while at < len(value):
        size = 4 if value[at] & MS_MARK == MS_MARK else 2
        part = value[at : at + size]
        end = at + size + (part[-1] & LENGTH) + 1
        if len(part) != size or end > len(value):
            raise CorruptRow(f"append column {value.hex()}: the record at {at} needs {end - at} bytes")
        points.append(Point(part, value[at + size : end]))
        at = end
    return points


def join_append(points: Iterable[Point]) -> bytes:
    """Return an append column's value.

    >>> join_append([Point(b"\\0\\0", b"\\7"), Point(b"\\0\\x10", b"\\x08")]).hex()
    '000007001008'
    """
    return b"".join(point.qualifier + point.value for point in points)
