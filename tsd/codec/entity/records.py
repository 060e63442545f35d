"""Cells of the entity tables: columns of series and of metadata, values of points, and times of metadata.

A row is an entity, such as a host. A series of it is a metric with the tags other than the one that names the entity.
"""

from typing import NamedTuple, cast

import numpy as np

from tsd.codec.points import Int64, UInt8
from tsd.codec.putline import Tags
from tsd.codec.text import FLOAT, LENGTH, illegal_character
from tsd.errors import ILLEGAL_ARGUMENT, BadLine, CorruptRow

SERIES, METADATA = b"t", b"m"  # families
YEARS_MS = 50_000 * 31_556_952 * 1000  # added to the times of metadata: they are later than any point
LONGEST_METADATA = 64 << 10  # bytes of a value
FORM_ROW = b"\0"  # no name: it says how row keys are made
_NUMBER_BYTES = {False: (1, 2, 4, 8), True: (4, 8)}
_PADDED_BYTES = 9  # of a value with the longest number
_KEPT = np.array([[at == 0 or at > 7 - length for at in range(_PADDED_BYTES)] for length in range(8)])  # by length - 1


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
    lengths, values = join_values(flags, bits)
    ends = np.cumsum(lengths).tolist()
    return [values[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


def join_values(flags: UInt8, bits: Int64) -> tuple[Int64, bytes]:
    """Return the lengths of the values of the cells of several points, and the values joined.

    >>> lengths, values = join_values(np.array([0, 1], np.uint8), np.array([42, -2]))
    >>> lengths.tolist(), values.hex()
    ([2, 3], '002a01fffe')
    """
    lengths = (flags & LENGTH).astype(np.int64) + 2
    padded = np.empty((len(flags), _PADDED_BYTES), np.uint8)
    padded[:, 0] = flags & (FLOAT | LENGTH)
    padded[:, 1:] = bits.astype(">i8").view(np.uint8).reshape(-1, 8)
    kept = _KEPT[flags & LENGTH]
    return lengths, padded[kept].tobytes()


def split_values(ends: Int64, values: bytes) -> list[int | float]:
    """Return the numbers of the cells of several points, whose values are joined. Raise CorruptRow.

    >>> split_values(np.array([2, 7]), bytes.fromhex("002a0b422a0000"))
    [42, 42.5]
    """
    raw = np.frombuffer(values, np.uint8)
    lengths = np.diff(ends, prepend=0)
    starts = ends - lengths
    if not len(ends):
        return []
    flags = raw[starts] if lengths.all() else np.full(1, 0xFF, np.uint8)
    found: list[int | float] = [0] * len(ends)
    kinds = np.flatnonzero(np.bincount(flags)).tolist()
    for flag in kinds:
        chosen = np.arange(len(ends)) if len(kinds) == 1 else np.flatnonzero(flags == flag)
        width = (flag & LENGTH) + 1
        if flag & ~(FLOAT | LENGTH) or width not in _NUMBER_BYTES[bool(flag & FLOAT)]:
            raise CorruptRow(f"not the value of a point: flags {flag:#x}")
        if (lengths[chosen] != width + 1).any():
            raise CorruptRow(f"flags {flag:#x} want {width} bytes of a number")
        numbers = raw[starts[chosen, np.newaxis] + np.arange(1, width + 1)].view(
            f">{'f' if flag & FLOAT else 'i'}{width}"
        )
        if len(kinds) == 1:
            return cast(list[int | float], numbers[:, 0].tolist())
        for at, number in zip(chosen.tolist(), numbers[:, 0].tolist(), strict=True):
            found[at] = number
    return found


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
        raise BadLine(ILLEGAL_ARGUMENT, f"got the metadata key {shown!r} with {odd!r}, wanted the characters of tags")
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


def form_columns(period_s: int, salts: int) -> dict[bytes, tuple[bytes, str]]:
    """Return the value of each column of the row that says how row keys are made, and the setting it is from.

    >>> form_columns(86400, 0)
    {b'm:period': (b'86400s', 'tsd.entity.period'), b'm:salt': (b'0', 'tsd.entity.salt')}
    """
    return {
        METADATA + b":period": (b"%ds" % period_s if period_s else b"0", "tsd.entity.period"),
        METADATA + b":salt": (b"%d" % salts, "tsd.entity.salt"),
    }
