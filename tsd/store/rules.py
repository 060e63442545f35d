"""Rules that all engines share: batches of whole rows, the limits of HBase for keys and columns, and counters.

A counter has 8 bytes, signed, big-endian, and wraps around.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.codec.points import Int64
from tsd.errors import InvalidCell
from tsd.store import Put
from tsd.store.versions import END_MS, VersionPut

_value = itemgetter(2)


def whole_rows(cells: Sequence[Put], *, most_cells: int, most_bytes: int) -> Iterator[Sequence[Put]]:
    """Yield `cells` in slices of at most `most_cells` and `most_bytes` of values, in order. The cells of one row follow
    each other and stay in one slice; a larger row is a slice of its own.

    >>> cells = [Put(row, b"t:", bytes(9)) for row in (b"a", b"b", b"b", b"b", b"c")]
    >>> [len(part) for part in whole_rows(cells, most_cells=2, most_bytes=100)]
    [1, 3, 1]
    >>> [len(part) for part in whole_rows(cells, most_cells=5, most_bytes=40)]
    [1, 4]
    """
    start = 0
    while start < len(cells):
        end = _boundary(cells, start, min(start + most_cells, len(cells)))
        while sum(map(len, map(_value, cells[start:end]))) > most_bytes:
            half = _boundary(cells, start, start + max((end - start) // 2, 1))
            if half == end:
                break
            end = half
        yield cells[start:end]
        start = end


def _boundary(cells: Sequence[Put], start: int, at: int) -> int:
    """Return the last end of a row after `start` and up to `at`, or else the first one after `at`."""
    end = at
    while start < end < len(cells) and cells[end].row == cells[end - 1].row:
        end -= 1
    if end > start:
        return end
    while at < len(cells) and cells[at].row == cells[at - 1].row:
        at += 1
    return at


def check_row(row: bytes) -> None:
    """Raise InvalidCell for a row key that HBase would refuse."""
    if not 0 < len(row) <= LONGEST_HBASE_KEY:
        raise InvalidCell(f"a row key has 1 to {LONGEST_HBASE_KEY} bytes, this one {len(row)}: {row[:32].hex()}")


def check_column(column: bytes) -> None:
    """Raise InvalidCell for a column without a family.

    HBase's gateway silently drops a put to such a column, and deletes the whole family instead of such a column.
    """
    if b":" not in column:
        raise InvalidCell(f"a column is family:qualifier, not {column.hex()}")


def check_version(families: Mapping[bytes, int], cell: VersionPut) -> None:
    """Raise InvalidCell for a version with an invalid row key, without one of the `families`, or with a time that is
    out of range."""
    check_place(families, cell.row, cell.column)
    if not 0 <= cell.time_ms < END_MS:
        raise _bad_time(cell.time_ms)


def check_place(families: Mapping[bytes, int], row: bytes, column: bytes) -> None:
    """Raise InvalidCell for an invalid row key, or a column without one of the `families`."""
    check_row(row)
    check_column(column)
    if column.partition(b":")[0] not in families:
        raise InvalidCell(f"no family for column {column!r}, only {b', '.join(sorted(families))!r}")


def check_times(times_ms: Int64) -> None:
    """Raise InvalidCell if the time of a version is out of range."""
    if len(times_ms) and not (times_ms.min() >= 0 and times_ms.max() < END_MS):
        raise _bad_time(int(times_ms[(times_ms < 0) | (times_ms >= END_MS)][0]))


def _bad_time(time_ms: int) -> InvalidCell:
    return InvalidCell(f"the time of a version is from 0 to before {END_MS} ms, not {time_ms}")


def add(stored: bytes | None, by: int) -> int:
    """Return the sum of a counter (None: absent, 0) and `by`. Raise InvalidCell if the cell is not a counter.

    >>> add(None, 1), add(bytes.fromhex("7fffffffffffffff"), 1) == -(2**63)
    (1, True)
    """
    if stored is not None and len(stored) != 8:
        raise InvalidCell(f"a counter has 8 bytes, this cell {len(stored)}: {stored[:32].hex()}")
    total = int.from_bytes(stored or b"", "big", signed=True) + by
    return (total + 2**63) % 2**64 - 2**63


def bytes_of(total: int) -> bytes:
    """Return the value of a counter's cell.

    >>> bytes_of(-1).hex()
    'ffffffffffffffff'
    """
    return total.to_bytes(8, "big", signed=True)
