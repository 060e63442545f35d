"""Rows of KairosDB's data_points: which row holds a time, and which column (FORMATS.md in this folder).

Times are milliseconds since the epoch. A column is four bytes, unsigned and big-endian.
"""

import enum
from dataclasses import dataclass

import numpy as np

from tsd.codec.points import Int64, UInt32
from tsd.errors import TsdError

COLUMN_BYTES = 4
COLUMNS = 1 << 32
FIRST_MS, LAST_MS = -(1 << 63), (1 << 63) - 1
DEFAULT_WIDTH_MS = 1_814_400_000  # three weeks


class UnknownRows(TsdError):
    """Rows of a kind that this code does not know. Nothing may be read or written."""


class Unit(enum.Enum):
    """What a column counts. The value is KairosDB's name in the table `spec`."""

    MILLISECONDS = "MILLISECONDS"
    LEGACY = "LEGACY"  # milliseconds, shifted left by one: the last bit is 1 only in doubles of KairosDB up to 0.9.2
    SECONDS = "SECONDS"  # the width counts milliseconds all the same


@dataclass(frozen=True)
class RowSpec:
    """How the tables of a keyspace divide time. It never changes."""

    unit: Unit = Unit.MILLISECONDS
    width: int = DEFAULT_WIDTH_MS  # of a row, in ms

    @property
    def width_s(self) -> int:
        """By how many seconds an index row outlives the points with its time to live."""
        return self.width if self.unit is Unit.SECONDS else self.width // 1000

    def row_time(self, time_ms: int) -> int:
        """Return the time of the row that holds a time. Before 1970 most times have a row of their own.

        >>> RowSpec().row_time(1356998400000), RowSpec().row_time(-5)
        (1355356800000, -10)
        """
        return time_ms - abs(time_ms) % self.width

    def row_times(self, times: Int64) -> Int64:
        """Return the time of the row of each time."""
        rows: Int64 = times - np.abs(times) % self.width
        return rows

    def read_times(self, times: Int64) -> Int64:
        """Return the times with which points at some times are read: the same, unless columns count seconds.

        >>> RowSpec(Unit.SECONDS, 1814400).read_times(np.array([1999, 2000])).tolist()
        [1000, 2000]
        """
        if self.unit is not Unit.SECONDS:
            return times
        rows = self.row_times(times)
        return rows + (times - rows) // 1000 * 1000

    def first_row(self, time_ms: int) -> int:
        """Return a time that no row with points from `time_ms` on precedes.

        >>> RowSpec().first_row(1356998400000), RowSpec().first_row(0), RowSpec().first_row(-5)
        (1355356800000, 0, -1814400004)
        """
        return self.row_time(time_ms) if time_ms >= 0 else max(time_ms - self.width + 1, FIRST_MS)

    def column(self, time_ms: int, row_ms: int) -> int:
        """Return the column of a time in a row, as a number.

        >>> RowSpec().column(1356998400000, 1355356800000), RowSpec(Unit.LEGACY).column(5, 0)
        (1641600000, 10)
        """
        offset = time_ms - row_ms
        match self.unit:
            case Unit.MILLISECONDS:
                return offset % COLUMNS
            case Unit.LEGACY:
                return (offset << 1) % COLUMNS
            case Unit.SECONDS:
                return offset // 1000 % COLUMNS

    def time(self, column: int, row_ms: int) -> int:
        """Return the time of a column. In seconds it is the start of the second, counted from the row's time.

        >>> RowSpec(Unit.LEGACY).time(11, 100), RowSpec(Unit.SECONDS).time(2, 100)
        (105, 2100)
        """
        return int(self.times(np.array([column]), row_ms)[0])

    def columns(self, times: Int64, row_ms: int) -> list[bytes]:
        """Return the columns of times in one row.

        >>> [column.hex() for column in RowSpec().columns(np.array([1356998400000]), 1355356800000)]
        ['61d8d400']
        """
        joined = self.column_numbers(times - row_ms).astype(">u4").tobytes()
        return [joined[at : at + COLUMN_BYTES] for at in range(0, len(joined), COLUMN_BYTES)]

    def column_numbers(self, offsets: Int64) -> UInt32:
        """Return the columns of times after their row's time, as numbers."""
        if self.unit is Unit.LEGACY:
            offsets = offsets << 1
        elif self.unit is Unit.SECONDS:
            offsets = offsets // 1000
        return (offsets & (COLUMNS - 1)).astype(np.uint32)

    def times(self, columns: Int64, row_ms: int | Int64) -> Int64:
        """Return the times of columns of a row, or of columns that each have a row's time."""
        if self.unit is Unit.LEGACY:
            columns = columns >> 1
        elif self.unit is Unit.SECONDS:
            columns = columns * 1000
        return columns + row_ms

    def bounds(self, first_ms: int, last_ms: int, row_ms: int) -> tuple[int, int] | None:
        """Return the first and the last column of a row to read for some times, both ends included, None if the row
        begins after them. A column one past the row is read, too, as by KairosDB; so are a legacy double's columns.

        >>> RowSpec(Unit.LEGACY).bounds(5, 10, 0), RowSpec().bounds(5, 10, 11)
        ((10, 21), None)
        """
        if row_ms > last_ms:
            return None
        first = 0 if first_ms < row_ms else self.column(min(first_ms, row_ms + self.width), row_ms)
        last = self.column(min(last_ms, row_ms + self.width), row_ms)
        return first, min(last + (self.unit is Unit.LEGACY), COLUMNS - 1)

    def holds_row(self, first_ms: int, last_ms: int, row_ms: int) -> bool:
        """Return whether some times, both ends included, cover a whole row.

        >>> RowSpec().holds_row(0, 1814399999, 0), RowSpec().holds_row(0, 1814399998, 0)
        (True, False)
        """
        return first_ms <= row_ms and last_ms >= row_ms + self.width - 1


def parse_spec(unit: str, width: str) -> RowSpec:
    """Return the rows that the table `spec` describes. Raise UnknownRows.

    >>> parse_spec("SECONDS", "1814400").width_s
    1814400
    """
    try:
        found = Unit(unit)
    except ValueError:
        wanted = ", ".join(one.value for one in Unit)
        raise UnknownRows(f"table spec: row_time_unit: got {unit!r}, wanted one of {wanted}") from None
    most = COLUMNS >> 1 if found is not Unit.SECONDS else COLUMNS * 1000
    if not (width.isascii() and width.isdigit() and 0 < int(width) < most):
        raise UnknownRows(f"table spec: row_width: got {width!r}, wanted a number from 1 to {most - 1} for {unit}")
    return RowSpec(found, int(width))


def number_of(column: bytes) -> int | None:
    """Return a column as a number, None if it does not have four bytes.

    >>> number_of(bytes.fromhex("000003e8")), number_of(b"x")
    (1000, None)
    """
    return int.from_bytes(column, "big") if len(column) == COLUMN_BYTES else None
