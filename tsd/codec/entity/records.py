"""Cells of the entity tables: columns of series and of metadata, values of points, and times of metadata.

A row is an entity, such as a host. A series of it is a metric with the tags other than the one that names the entity.
"""

from typing import NamedTuple

import numpy as np

from tsd.codec.points import Int64, UInt8
from tsd.codec.putline import Tags
from tsd.codec.text import FLOAT, LENGTH, illegal_character
from tsd.errors import ILLEGAL_ARGUMENT, BadLine, CorruptRow

SERIES, METADATA = b"t", b"m"  # families
YEARS_MS = 50_000 * 31_556_952 * 1000  # added to the times of metadata: they are later than any point
LONGEST_METADATA = 64 << 10  # bytes of a value
_NUMBER_BYTES = {False: (1, 2, 4, 8), True: (4, 8)}


class EntitySeries(NamedTuple):
    """A series of an entity, without the tag that names the entity."""

    metric: bytes
    tags: Tags  # in order of their names


def entity_series(metric: bytes, tags: Tags, tag: bytes) -> tuple[bytes, EntitySeries] | None:
    """Return the entity that the tag named `tag` gives, and its series. None if the tags lack it.

    >>> entity_series(b"sys.cpu", ((b"host", b"web01"), (b"dc", b"eu"), (b"cpu", b"0")), b"host")
    (b'web01', EntitySeries(metric=b'sys.cpu', tags=((b'cpu', b'0'), (b'dc', b'eu'))))
    """
    entity = dict(tags).get(tag)
    if entity is None:
        return None
    return entity, EntitySeries(metric, tuple(sorted(pair for pair in tags if pair[0] != tag)))


def series_column(series: EntitySeries) -> bytes:
    """Return the column of a series. Raise BadLine for a name that would make it ambiguous.

    >>> series_column(EntitySeries(b"sys.cpu.user", ((b"cpu", b"0"), (b"dc", b"eu"))))
    b't:sys.cpu.user cpu=0 dc=eu'
    """
    for name in (series.metric, *(word for pair in series.tags for word in pair)):
        if b" " in name or (b"=" in name and name != series.metric):
            shown = name.decode("latin-1")
            raise BadLine(ILLEGAL_ARGUMENT, f"got the name {shown!r}, wanted one without blanks and equals signs")
    return b" ".join((SERIES + b":" + series.metric, *(b"%b=%b" % pair for pair in series.tags)))


def parse_series_column(column: bytes) -> EntitySeries:
    """Return the series of a column. Raise CorruptRow.

    >>> parse_series_column(b"t:sys.cpu.user cpu=0")
    EntitySeries(metric=b'sys.cpu.user', tags=((b'cpu', b'0'),))
    """
    family, _, name = column.partition(b":")
    metric, *words = name.split(b" ")
    pairs = [word.partition(b"=") for word in words]
    if family != SERIES or not metric or not all(tagk and tagv for tagk, _, tagv in pairs):
        raise CorruptRow(f"not the column of a series: {column.hex()}")
    return EntitySeries(metric, tuple((tagk, tagv) for tagk, _, tagv in pairs))


def point_value(flags: int, value: bytes) -> bytes:
    """Return the value of a point's cell: a byte of OpenTSDB's flags, then the number as in OpenTSDB's cells.

    >>> point_value(FLOAT | 3, bytes.fromhex("422a0000")).hex()
    '0b422a0000'
    """
    return bytes((flags & (FLOAT | LENGTH),)) + value


def point_values(flags: UInt8, bits: Int64) -> list[bytes]:
    """Return the values of the cells of several points, see `Columns`.

    >>> [value.hex() for value in point_values(np.array([0, 1], np.uint8), np.array([42, -2]))]
    ['002a', '01fffe']
    """
    kept = flags & (FLOAT | LENGTH)
    raw = bits.astype(">i8").tobytes()
    ends = np.arange(8, 8 * len(bits) + 1, 8)
    starts = ends - 1 - (flags & LENGTH)
    heads = [bytes((flag,)) for flag in range((FLOAT | LENGTH) + 1)]
    return [
        heads[flag] + raw[start:end]
        for flag, start, end in zip(kept.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]


def split_point_value(stored: bytes) -> tuple[int, bytes]:
    """Return the flags and the number's bytes of a point's cell. Raise CorruptRow.

    >>> split_point_value(bytes.fromhex("002a"))
    (0, b'*')
    """
    flags, value = stored[0] if stored else 0, stored[1:]
    if flags & ~(FLOAT | LENGTH) or len(value) not in _NUMBER_BYTES[bool(flags & FLOAT)]:
        raise CorruptRow(f"not the value of a point: {stored.hex()}")
    if len(value) != (flags & LENGTH) + 1:
        raise CorruptRow(f"flags {flags:#x} want {(flags & LENGTH) + 1} bytes, got {stored.hex()}")
    return flags, value


def metadata_column(key: bytes) -> bytes:
    """Return the column of a metadata key. Raise BadLine for a key with characters that tags may not have."""
    shown = key.decode("latin-1")
    if not key:
        raise BadLine(ILLEGAL_ARGUMENT, "got an empty metadata key, wanted a name")
    if odd := illegal_character(key):
        raise BadLine(ILLEGAL_ARGUMENT, f"got the metadata key {shown!r} with {odd}, wanted the characters of tags")
    return METADATA + b":" + key


def metadata_value(value: str) -> bytes:
    """Return the stored value of metadata. Raise BadLine if it is too long."""
    stored = value.encode()
    if len(stored) > LONGEST_METADATA:
        raise BadLine(ILLEGAL_ARGUMENT, f"got metadata of {len(stored)} bytes, wanted {LONGEST_METADATA} at most")
    return stored


def metadata_time(written_ms: int) -> int:
    """Return the time of the cell of metadata that was written at `written_ms`, in Unix milliseconds.

    >>> metadata_time(1356998400000)
    1579204598400000
    """
    return written_ms + YEARS_MS


def is_metadata(column: bytes) -> bool:
    """Return whether a column has metadata."""
    return column.startswith(METADATA + b":")
