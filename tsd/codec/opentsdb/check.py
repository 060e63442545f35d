"""Checks of a row of the data table (FORMATS.md §11). Repairs are in `tsd.codec.opentsdb.fsck`.

A trouble is anything that a correct writer would not write. Only those in `UNREADABLE` make a row unreadable.
"""

import enum
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from tsd.codec.opentsdb.annotation import annotation_qualifier, decode_annotation
from tsd.codec.opentsdb.cell import (
    APPEND,
    MIXED,
    READABLE,
    UNIFORM,
    CellKind,
    Point,
    kind_of,
    repair_encoding,
    split_append,
    split_qualifier,
)
from tsd.codec.opentsdb.merge import StoredCell, cell_points
from tsd.codec.opentsdb.rowkey import KeyLayout, salt_of, split_key
from tsd.codec.putline import HOUR_S
from tsd.codec.text import FLOAT, encode_integer
from tsd.errors import CorruptRow


class Trouble(enum.Enum):
    """Kinds of deviations."""

    ROW_KEY = "row key"  # invalid length, or a metric without tags
    BASE_TIME = "base time"  # not the start of an hour
    TAG_ORDER = "tag order"  # pairs unsorted, or a tag name twice
    SALT = "salt"  # not the salt of the series
    UNKNOWN_COLUMN = "unknown column"  # no version of OpenTSDB writes such a qualifier
    FUTURE_OBJECT = "future object"  # an object's qualifier with an unknown type
    BAD_ANNOTATION = "bad annotation"  # not the JSON of an annotation: OpenTSDB cannot read the row
    ODD_ANNOTATION = "annotation of another time"  # its qualifier has another time
    BAD_APPEND = "bad append column"
    EMPTY_APPEND = "empty append column"  # without points: OpenTSDB cannot read the row
    BAD_HISTOGRAM = "bad histogram"  # too short for a codec id and a payload
    BAD_COMPACT = "bad compacted column"  # qualifier and value of a cell with many points do not match
    BAD_VALUE = "bad value"  # a single point with invalid bytes
    OLD_ENCODING = "old encoding"  # a single point that every reader converts
    INFINITE = "infinite value"  # a point that makes queries of OpenTSDB fail
    SIGN_EXTENDED = (
        "sign-extended float"  # a 4-byte float in 8 bytes after ffffffff: fsck repairs it, readers refuse it
    )
    LAST_BYTE = "last byte"  # of a cell with many points: missing, or not the one for its points
    UNORDERED = "unordered"  # points of one cell not in time order
    BEYOND_HOUR = "beyond the hour"
    REPEATED = "repeated point"  # several points with one time and equal bytes
    CONFLICT = "conflicting points"  # several points with one time and different bytes
    WIDE_INTEGER = "wide integer"  # 8 bytes where fewer are sufficient


UNREADABLE = frozenset(
    (Trouble.BAD_APPEND, Trouble.BAD_COMPACT, Trouble.BAD_VALUE, Trouble.SIGN_EXTENDED)
)  # readers raise CorruptRow for these, and depending on the rules for Trouble.CONFLICT


class Problem(NamedTuple):
    """One deviation in a row."""

    trouble: Trouble
    qualifier: bytes  # of the cell; empty for the row key
    detail: str


def key_problems(layout: KeyLayout, key: bytes) -> list[Problem]:
    """Return the problems of a row key."""
    try:
        parts = split_key(layout, key)
    except CorruptRow as exc:
        return [Problem(Trouble.ROW_KEY, b"", str(exc))]
    found = []
    pairs = parts.series.pairs
    if not pairs and any(parts.series.metric):
        found.append(Problem(Trouble.ROW_KEY, b"", f"row key {key.hex()}: a metric needs at least one tag"))
    if parts.base % HOUR_S:
        found.append(Problem(Trouble.BASE_TIME, b"", f"{parts.base} is not a multiple of {HOUR_S}"))
    tagks = [tagk for tagk, _ in pairs]
    if list(pairs) != sorted(pairs) or len(set(tagks)) != len(tagks):
        found.append(Problem(Trouble.TAG_ORDER, b"", f"tag pairs {key[layout.pairs_start :].hex()}"))
    if layout.salt_width:
        wanted = salt_of(parts.series.metric, key[layout.pairs_start :], layout.salt_width, layout.salt_buckets)
        if parts.salt != wanted:
            found.append(Problem(Trouble.SALT, b"", f"got {parts.salt.hex()}, wanted {wanted.hex()}"))
    return found


def cell_problems(cell: StoredCell) -> list[Problem]:
    """Return the problems of a single cell."""
    return inspect(cell).problems


class Inspection(NamedTuple):
    """The points of a cell, as far as they can be decoded, and its problems."""

    points: list[Point]  # in the cell's order, old encodings converted
    problems: list[Problem]


def inspect(cell: StoredCell) -> Inspection:
    """Return the points of a cell, none if they are unreadable, and its problems."""
    qualifier = cell.qualifier
    kind = kind_of(qualifier)
    if len(qualifier) < 2 or (kind is not CellKind.POINTS and len(qualifier) not in (3, 5)):
        found = _only(Trouble.UNKNOWN_COLUMN, cell, "an object's qualifier has 3 or 5 bytes, a point's 2 or 4").problems
        if qualifier[:1] == APPEND[:1]:  # readers take it for an append column and refuse the row
            found += _inspect_append(cell).problems
        return Inspection([], found)
    if kind is CellKind.POINTS:
        return _inspect_points(cell)
    if kind is CellKind.ANNOTATION:
        return _inspect_annotation(cell)
    if qualifier[:1] == APPEND[:1]:
        return _inspect_append(cell)
    if kind is CellKind.HISTOGRAM:
        short = len(cell.value) < 6
        return _only(Trouble.BAD_HISTOGRAM, cell, "wanted at least 6 bytes") if short else Inspection([], [])
    return _only(Trouble.FUTURE_OBJECT, cell, f"type {qualifier[0]}")


def _only(trouble: Trouble, cell: StoredCell, detail: str) -> Inspection:
    return Inspection([], [Problem(trouble, cell.qualifier, f"{detail}; value {cell.value.hex()}")])


def _inspect_annotation(cell: StoredCell) -> Inspection:
    try:
        note = decode_annotation(cell.value)
    except CorruptRow as exc:
        return _only(Trouble.BAD_ANNOTATION, cell, str(exc))
    if note.start_time < 1 or annotation_qualifier(note.start_time) != cell.qualifier:
        return _only(Trouble.ODD_ANNOTATION, cell, f"start time {note.start_time} belongs to another column")
    return Inspection([], [])


def _inspect_append(cell: StoredCell) -> Inspection:
    if kind_of(cell.qualifier) is not CellKind.APPEND:
        return _only(Trouble.BAD_APPEND, cell, "an append column's qualifier has 3 bytes")
    try:
        cell_points(cell)
        found = split_append(cell.value)
    except CorruptRow as exc:
        return _only(Trouble.BAD_APPEND, cell, str(exc))
    if not found:
        return _only(Trouble.EMPTY_APPEND, cell, "wanted points")
    return Inspection(found, _points_beyond(cell, found))


def _inspect_points(cell: StoredCell) -> Inspection:
    try:
        lone = len(split_qualifier(cell.qualifier)) == 1
    except CorruptRow as exc:
        # OpenTSDB's summary also counts a truncated single qualifier as a bad value.
        return _only(Trouble.BAD_VALUE if len(cell.qualifier) == 2 else Trouble.BAD_COMPACT, cell, str(exc))
    return _inspect_lone(cell) if lone else _inspect_joined(cell)


def _inspect_lone(cell: StoredCell) -> Inspection:
    qualifier, value, _ = cell
    sign_extended = (
        len(qualifier) == 2 and qualifier[1] & 0xF == FLOAT | 3 and len(value) == 8 and value[:4] == b"\xff\xff\xff\xff"
    )
    try:
        point = repair_encoding(qualifier, value[4:] if sign_extended else value)
    except CorruptRow as exc:
        return _only(Trouble.BAD_VALUE, cell, str(exc))
    if point.flags not in READABLE:
        return _only(Trouble.BAD_VALUE, cell, f"invalid flags {point.flags:#x}")
    found = _of_points(cell, [point])
    if sign_extended:
        found.insert(0, Problem(Trouble.SIGN_EXTENDED, qualifier, f"value {value.hex()}"))
    elif (point.qualifier, point.value) != (qualifier, value):
        found.insert(0, Problem(Trouble.OLD_ENCODING, qualifier, f"value {value.hex()}"))
    return Inspection([point], found)


def _inspect_joined(cell: StoredCell) -> Inspection:
    try:
        points = cell_points(cell)
    except CorruptRow as exc:
        return _only(Trouble.BAD_COMPACT, cell, str(exc))
    found = []
    surplus = cell.value[sum(len(point.value) for point in points) :]
    wanted = UNIFORM if len({point.in_ms for point in points}) == 1 else MIXED
    if surplus != wanted:
        found.append(Problem(Trouble.LAST_BYTE, cell.qualifier, f"got {surplus.hex()!r}, wanted {wanted.hex()!r}"))
    times = [point.offset_ms for point in points]
    if backward := next(((a, b) for a, b in pairwise(times) if a > b), None):
        found.append(Problem(Trouble.UNORDERED, cell.qualifier, f"{backward[1]} ms after {backward[0]} ms"))
    return Inspection(points, found + _of_points(cell, points))


def _of_points(cell: StoredCell, points: list[Point]) -> list[Problem]:
    return _points_beyond(cell, points) + _wide_integers(cell, points) + _infinite(cell, points)


def _infinite(cell: StoredCell, points: list[Point]) -> list[Problem]:
    found = [point for point in points if is_infinite(point)]
    return [Problem(Trouble.INFINITE, cell.qualifier, f"at {[p.offset_ms for p in found]} ms")] if found else []


def is_infinite(point: Point) -> bool:
    """Return whether a point's value is infinite. (All readers accept NaN.)

    >>> is_infinite(Point(b"\\0\\x0b", bytes.fromhex("7f800000")))
    True
    """
    return bool(point.flags & FLOAT) and math.isinf(point.number)


def _points_beyond(cell: StoredCell, points: list[Point]) -> list[Problem]:
    late = [point.offset_ms for point in points if point.offset_ms >= HOUR_S * 1000]
    return [Problem(Trouble.BEYOND_HOUR, cell.qualifier, f"offsets {late} ms")] if late else []


def _wide_integers(cell: StoredCell, points: list[Point]) -> list[Problem]:
    wide = [point for point in points if narrow(point) != point]
    return [Problem(Trouble.WIDE_INTEGER, cell.qualifier, f"values {[p.number for p in wide]}")] if wide else []


def narrow(point: Point) -> Point:
    """Return the point with an 8-byte integer in as few bytes as possible; other points unchanged.

    >>> narrow(Point(b"\\0\\7", bytes(7) + b"\\5"))
    Point(qualifier=b'\\x00\\x00', value=b'\\x05')
    """
    if point.flags != 7:
        return point
    flags, value = encode_integer(int(point.number))
    return Point(point.qualifier[:-1] + bytes((point.qualifier[-1] & ~7 | flags,)), value)


def repeated_times(cells: Iterable[StoredCell]) -> list[Problem]:
    """Return the problems of times with several points in a row. Repeats within an append column are normal."""
    seen: dict[int, list[tuple[bytes, bytes]]] = {}
    for cell in sorted(cells):
        points = inspect(cell).points
        if kind_of(cell.qualifier) is CellKind.APPEND and points:
            points = cell_points(cell)
        for point in points:
            seen.setdefault(point.offset_ms, []).append((cell.qualifier, point.value))
    found = []
    for time_ms, places in sorted(seen.items()):
        if len(places) > 1:
            trouble = Trouble.REPEATED if len({value for _, value in places}) == 1 else Trouble.CONFLICT
            where = ", ".join(f"{value.hex()} in {qualifier.hex()}" for qualifier, value in places)
            found.append(Problem(trouble, places[-1][0], f"{time_ms} ms: {where}"))
    return found
