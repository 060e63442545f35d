"""A cell as a key and a value: how an engine keeps it that knows neither rows nor write times.

The key sorts as (row, column) does. A row's zero bytes are written 00 ff, and 00 01 ends it, so no row's keys start as
a longer row's do, rows sort as unsigned bytes, and within a row so do the columns, which follow as they are. The value
has the write time in front, in ms.
"""

import os

from tsd.errors import CorruptRow
from tsd.store import Cell

try:
    from tsd.store import _split
except ImportError:  # no C compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two

END = b"\0\1"
ZERO = b"\0\xff"
TIME_BYTES = 8
ABSENT = bytes(TIME_BYTES)  # the value to compare with where there is none: empty, and older than any


def row_head(row: bytes) -> bytes:
    """What the keys of all cells of a row start with, and no other key does. It is also the place in the order where
    the row starts, whether it is there or not.

    >>> row_head(bytes.fromhex("000001")).hex()
    '00ff00ff010001'
    """
    return row.replace(b"\0", ZERO) + END


def row_of(key: bytes) -> tuple[bytes, bytes]:
    """The row of a key, and its head: the column is what follows. CorruptRow where it is no key.

    >>> row_of(row_head(b"ab") + b"t:q")
    (b'ab', b'ab\\x00\\x01')
    """
    escaped, end, _ = key.partition(END)
    row = escaped.replace(ZERO, b"\0")
    if not row or not end or row.replace(b"\0", ZERO) != escaped:
        raise CorruptRow(f"not the key of a cell: {key.hex()}")
    return row, escaped + END


def with_time(time_ms: int, content: bytes) -> bytes:
    """The value of a cell.

    >>> with_time(1356998400000, b"*").hex()
    '0000013bf36858002a'
    """
    return time_ms.to_bytes(TIME_BYTES, "big") + content


def time_of(value: bytes) -> int:
    """The write time in a value, in ms."""
    return int.from_bytes(value[:TIME_BYTES], "big")


def cell_of(column: bytes, value: bytes) -> Cell:
    """The cell that a value stands for.

    >>> cell_of(b"t:q", with_time(1356998400000, b"*"))
    Cell(column=b't:q', value=b'*', time_ms=1356998400000)
    """
    return Cell(column, value[TIME_BYTES:], int.from_bytes(value[:TIME_BYTES], "big"))


def split_cells(
    part: list[tuple[bytes, bytes]],
    keys: list[bytes],
    columns: list[bytes],
    values: list[bytes],
    *,
    by_loop: bool = HAS_LOOP,
) -> int:
    """Append the row and the column of each key, and its value, to three lists; how many bytes they are in all.

    Keys are taken at their word: what is none gets some row and an empty column.

    >>> keys, columns, values = [], [], []
    >>> split_cells([(row_head(b"a\\0b") + b"t:q", b"*")], keys, columns, values), keys, columns, values
    (10, [b'a\\x00b'], [b't:q'], [b'*'])
    """
    if by_loop:
        return _split.split_cells(part, keys, columns, values)
    size = 0
    for key, value in part:
        escaped, _, column = key.partition(END)
        keys.append(escaped.replace(ZERO, b"\0"))
        columns.append(column)
        values.append(value)
        size += len(key) + len(value)
    return size
