"""Points of series, in the order of rows → the cells to write.

`HAS_LOOP` says whether the compiled loop was built. Its Python twin writes the same cells, slower.
"""

import os
from typing import NamedTuple

import numpy as np

from tsd.codec.points import Bool, Int64
from tsd.codec.tall.fields import CLOCK, COLUMN
from tsd.codec.tall.rules import Place, TableRule
from tsd.codec.tall.template import RowTime
from tsd.codec.tall.times import clock_text, day_text, event_text
from tsd.codec.tall.values import number_texts
from tsd.store import Put

try:
    from tsd.tables.tall import _encode
except ImportError:  # no C compiler at installation
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare both


class ColumnPlace(NamedTuple):
    """Where the points of a series go."""

    prefix: bytes  # of row keys
    column: bytes  # in a row of a day, what is before the time of the day
    is_day: bool
    labels: tuple[tuple[bytes, bytes], ...]  # columns that have tags, with their values


class RowPoints(NamedTuple):
    """Points of one table. Those of one row follow one another."""

    numbers: Int64  # of each point's series
    rows: Int64  # time of each point's row
    times: Int64
    bits: Int64
    floats: Bool

    def at(self, part: slice) -> "RowPoints":
        """Return some of the points."""
        numbers, rows, times, bits, floats = self
        return RowPoints(numbers[part], rows[part], times[part], bits[part], floats[part])


def column_place(rule: TableRule, place: Place) -> ColumnPlace:
    """Return where the points of a place go.

    >>> from tsd.codec.tall.rules import parse_rules
    >>> [rule] = parse_rules("SENSOR {meter:05=ID}#{day} meter.*")
    >>> column_place(rule, Place(b"00042#", b"kwh"))
    ColumnPlace(prefix=b'00042#', column=b't:kwh#', is_day=True, labels=((b't:ID', b'42'),))
    """
    is_day = rule.template.time is RowTime.DAY
    column = COLUMN + place.field + (CLOCK if is_day and place.field else b"")
    if not rule.labels:
        return ColumnPlace(place.prefix, column, is_day, ())
    tags = rule.template.parse_prefix(place.prefix)
    labels = [(field.label, tags[field.tag]) for field in rule.template.fields if field.label]
    encoded = tuple((COLUMN + label.encode(), value.encode("latin-1")) for label, value in labels)
    return ColumnPlace(place.prefix, column, is_day, encoded)


def encode(places: list[ColumnPlace], points: RowPoints, *, compiled: bool = HAS_LOOP) -> list[Put]:
    """Return the cells of points of series at some places. Columns that have tags come before the points of a row."""
    if compiled:
        numbers, rows, times, bits, floats = points
        return _encode.encode(places, numbers, rows, times, bits, floats.view(np.uint8), day_text, Put)
    found: list[Put] = []
    row, row_of = b"", (-1, b"")
    values = number_texts(points.bits, points.floats)
    arrays = points.numbers.tolist(), points.rows.tolist(), points.times.tolist()
    for number, row_ms, time_ms, value in zip(*arrays, values, strict=True):
        prefix, column, is_day, labels = places[number]
        if row_of != (row_ms, prefix):
            row_of = row_ms, prefix
            row = prefix + (day_text(row_ms) if is_day else event_text(row_ms))
            found += [Put(row, *label) for label in labels]
        found.append(Put(row, column + clock_text(time_ms - row_ms) if is_day else column, value))
    return found
