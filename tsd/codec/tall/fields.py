"""Columns of rows: a column is a field, with further tags, and in rows of a day the time of the day (FORMATS.md in this
folder)."""

from collections.abc import Mapping

from tsd.codec.tall.times import clock_text, parse_clock
from tsd.errors import CorruptRow

FAMILY = b"t"
COLUMN = FAMILY + b":"
CLOCK = b"#"  # before the time of the day
LONGEST_COLUMN = 4096  # bytes of field and tags; Bigtable takes 16 KiB


def encode_field(field: str, tags: Mapping[str, str]) -> bytes:
    """Return a field with the tags that are not in the row key, in order of their names. Raise ValueError.

    >>> encode_field("CPU/CPU1_USR", {"dc": "lga"}), encode_field("", {})
    (b'CPU/CPU1_USR dc=lga', b'')
    """
    words = [field, *(f"{name}={tags[name]}" for name in sorted(tags))]
    if any(" " in word for word in words) or any("=" in name for name in tags):
        raise ValueError(f"got {' '.join(words)!r}, wanted names without blanks and equals signs")
    found = " ".join(words).encode("latin-1")
    if len(found) > LONGEST_COLUMN:
        raise ValueError(f"got {len(found)} bytes of a metric and its other tags, wanted up to {LONGEST_COLUMN}")
    return found


def parse_field(data: bytes) -> tuple[str, dict[str, str]]:
    """Return a field and its tags. Raise CorruptRow.

    >>> parse_field(b"CPU/CPU1_USR dc=lga")
    ('CPU/CPU1_USR', {'dc': 'lga'})
    """
    field, *words = data.decode("latin-1").split(" ")
    pairs = [word.partition("=") for word in words]
    if not all(name and value for name, _, value in pairs):
        raise CorruptRow(f"column: got {data!r}, wanted a field and TAG=VALUE after blanks")
    return field, {name: value for name, _, value in pairs}


def day_column(field: bytes, offset_ms: int) -> bytes:
    """Return the column of a point in a row of a day.

    >>> day_column(b"", 900_000), day_column(b"kwh phase=1", 900_000)
    (b't:0015', b't:kwh phase=1#0015')
    """
    return COLUMN + (field + CLOCK if field else b"") + clock_text(offset_ms)


def parse_day_column(column: bytes) -> tuple[bytes, int]:
    """Return field and tags, and the milliseconds since the start of the day. Raise CorruptRow."""
    field, _, clock = column.removeprefix(COLUMN).rpartition(CLOCK)
    try:
        return field, parse_clock(clock)
    except ValueError as exc:
        raise CorruptRow(f"column {column!r}: {exc}") from None
