"""Keys and values of the embedded store: each cell of a table is one entry of a RocksDB column family.

A key is a row and a column, and keys sort as these pairs do. Each zero byte of the row is written as 00 ff, and 00 01
ends the row. So the key prefix of one row is never a prefix of another row's keys. The column follows unchanged.
The value starts with the write timestamp in ms.

A long column (FORMATS.md §12) has two bytes or more for each point of its cell. In a key it would be part of RocksDB's
index and take more memory than the numbers. So the key has a digest of 15 bytes instead: the column's first six bytes,
a hash of the whole column, and ff. The value has the column itself, packed together with the cell's value by
`tsd.codec.packing.cell`, or unpacked if the cell has no packed form. Digests sort as columns do, except among columns
with the same first six bytes. Without the compiled loop no cell is packed, because packing in Python would cost more
than all other work on a point.
"""

import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.codec.packing.cell import FORM, HAS_PACKING_LOOP, pack, unpack
from tsd.errors import CorruptRow, StoreError
from tsd.store import Cell, Put
from tsd.store.cells import HAS_CELL_LOOP
from tsd.store.rules import check_row

if HAS_CELL_LOOP:
    from tsd.store import _cells

try:
    from tsd.store.rocksdb import _keys
except ImportError:  # installed without a C compiler
    HAS_KEY_LOOP = False
else:
    HAS_KEY_LOOP = not os.environ.get("TSD_PURE")  # see tsd.store.cells


ROW_END = b"\0\1"
ESCAPED_ZERO = b"\0\xff"
TIME_BYTES = 8
ABSENT = bytes(TIME_BYTES)  # used as the value of an absent cell: empty, with the lowest timestamp


def row_prefix(row: bytes) -> bytes:
    """Return the key prefix of a row's cells. No other row's keys start with it, and prefixes sort as their rows.

    >>> row_prefix(bytes.fromhex("000001")).hex()
    '00ff00ff010001'
    """
    return row.replace(b"\0", ESCAPED_ZERO) + ROW_END


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """Return the row of a key, and the key's prefix before the column. Raise CorruptRow for an invalid key.

    >>> split_key(row_prefix(b"ab") + b"t:q")
    (b'ab', b'ab\\x00\\x01')
    """
    escaped, end, _ = key.partition(ROW_END)
    row = escaped.replace(ESCAPED_ZERO, b"\0")
    if not row or not end or row.replace(b"\0", ESCAPED_ZERO) != escaped:
        raise CorruptRow(f"not the key of a cell: {key.hex()}")
    return row, escaped + ROW_END


def encode_value(time_ms: int, content: bytes) -> bytes:
    """Return the stored value of a cell.

    >>> encode_value(1356998400000, b"*").hex()
    '0000013bf36858002a'
    """
    return time_ms.to_bytes(TIME_BYTES, "big") + content


def time_of(value: bytes) -> int:
    """Return the write timestamp of a stored value, in ms."""
    return int.from_bytes(value[:TIME_BYTES], "big")


def decode_cell(column: bytes, value: bytes) -> Cell:
    """Return the cell with a stored value.

    >>> decode_cell(b"t:q", encode_value(1356998400000, b"*"))
    Cell(column=b't:q', value=b'*', time_ms=1356998400000)
    """
    return Cell(column, value[TIME_BYTES:], int.from_bytes(value[:TIME_BYTES], "big"))


def split_cells(
    part: list[tuple[bytes, bytes]],
    keys: list[bytes],
    columns: list[bytes],
    values: list[bytes],
    *,
    compiled: bool = HAS_CELL_LOOP,
) -> int:
    """Append the row and the column of each key, and its value, to three lists; return their size in bytes.

    Keys are not checked: one without the mark that ends a row gives the whole key as row, and an empty column.

    >>> keys, columns, values = [], [], []
    >>> split_cells([(row_prefix(b"a\\0b") + b"t:q", b"*")], keys, columns, values), keys, columns, values
    (10, [b'a\\x00b'], [b't:q'], [b'*'])
    """
    if compiled:
        return _cells.split_cells(part, keys, columns, values)
    size = 0
    for key, value in part:
        escaped, _, column = key.partition(ROW_END)
        keys.append(escaped.replace(ESCAPED_ZERO, b"\0"))
        columns.append(column)
        values.append(value)
        size += len(key) + len(value)
    return size


LONG_BYTES = 34  # length of a long column: sixteen points at full seconds
DIGEST_BYTES = 15
_START_BYTES, _HASH_BYTES = 6, 8
_MARK = 0xFF
_FAMILY_BYTES = 2  # the start of a packed cell's column, which is not packed
_LENGTH_BYTES = 4
_UNPACKED = b"\0"
_PACKED = bytes((FORM,))


def is_digest(column: bytes) -> bool:
    """Return whether the column in a key is a digest. This is unambiguous: `key_column` also replaces short columns
    that look like a digest."""
    return len(column) == DIGEST_BYTES and column[-1] == _MARK


def key_column(column: bytes) -> bytes:
    """Return the form of a column in a key: its digest if it is long or looks like a digest, otherwise the column.

    >>> key_column(b"t:\\0\\0"), key_column(bytes(34)).hex()
    (b't:\\x00\\x00', '0000000000003f027a2dc29b6cb7ff')
    """
    if len(column) < DIGEST_BYTES or (len(column) < LONG_BYTES and not is_digest(column)):
        return column
    return _digest_of(column)


def _digest_of(column: bytes) -> bytes:
    return b"%b%b\xff" % (column[:_START_BYTES], blake2b(column, digest_size=_HASH_BYTES).digest())


def _packed(column: bytes, value: bytes) -> bytes | None:
    """Return the packed form of a cell with a long column; None if there is none, or without the compiled loop."""
    return pack(column[_FAMILY_BYTES:], value) if HAS_PACKING_LOOP else None


def encode_long_cell(column: bytes, value: bytes, *, packing: bool = HAS_PACKING_LOOP) -> bytes:
    """Return the stored content of a cell with a digest in its key: column and value, packed if `packing` and shorter.

    >>> content = encode_long_cell(bytes(40), b"v")
    >>> decode_long_cell(key_column(bytes(40)), bytes(8) + content) == (bytes(40), bytes(8) + b"v")
    True
    """
    size = len(column) + len(value)
    packed = pack(column[_FAMILY_BYTES:], value) if packing and len(column) >= LONG_BYTES else None
    if packed is not None and len(packed) < size:
        return packed
    return _UNPACKED + len(column).to_bytes(_LENGTH_BYTES, "big") + column + value


def decode_long_cell(digest: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """Return the column that a digest replaces, and the timestamp and value of the cell. Raise StoreError for damaged
    bytes."""
    form = stored[TIME_BYTES : TIME_BYTES + 1]
    if form == _PACKED:
        try:
            return unpack(stored, TIME_BYTES, digest[:_FAMILY_BYTES])
        except CorruptRow as exc:
            raise StoreError(f"a cell is damaged: {exc}") from exc
    start = TIME_BYTES + 1 + _LENGTH_BYTES
    end = start + int.from_bytes(stored[start - _LENGTH_BYTES : start], "big")
    if form != _UNPACKED or end > len(stored):
        raise StoreError(f"a cell is damaged: its content is {stored[TIME_BYTES : TIME_BYTES + 40].hex()}")
    return stored[start:end], stored[:TIME_BYTES] + stored[end:]


def find_digests(columns: list[bytes], since: int, *, compiled: bool = HAS_KEY_LOOP) -> list[int]:
    """Return the indexes of the digests among columns, from `since` on.

    >>> find_digests([b"t:\\0\\0", key_column(bytes(34))], 0)
    [1]
    """
    if compiled:
        return _keys.find_digests(columns, since, DIGEST_BYTES, _MARK)
    return [at for at in range(since, len(columns)) if is_digest(columns[at])]


def slices(
    text: bytes, ends: NDArray[np.int32], first: int, last: int, *, compiled: bool = HAS_KEY_LOOP
) -> list[bytes]:
    """Return some of joined texts, from index `first` to before `last`; `ends` says where each starts, and where the
    last one ends.

    >>> slices(b"abc", np.array([0, 2, 2, 3], np.int32), 0, 2)
    [b'ab', b'']
    """
    if compiled:
        return _keys.slices(text, ends, first, last)
    return [text[at:end] for at, end in pairwise(ends[first : last + 1].tolist())]


def decode_long_cells(keys: list[bytes], columns: list[bytes], values: list[bytes], since: int) -> int:
    """Replace digests by their columns in parallel lists of cells in key order, from index `since` on, and sort the
    cells of each row by column. Return the growth in bytes."""
    long = find_digests(columns, since)
    grown = 0
    for at in long:
        digest, stored = columns[at], values[at]
        columns[at], values[at] = column, value = decode_long_cell(digest, stored)
        grown += len(column) + len(value) - len(digest) - len(stored)
    if 0 < since < len(keys):
        long.append(since)  # an earlier call sorted the cells before it without those from here on
    last = len(keys) - 1
    for at in long:  # is the cell out of order with a neighbour of its row?
        key = keys[at]
        if (at and keys[at - 1] == key and columns[at - 1] > columns[at]) or (
            at < last and keys[at + 1] == key and columns[at + 1] < columns[at]
        ):
            _sort_row(keys, columns, values, at)
    return grown


def _sort_row(keys: list[bytes], columns: list[bytes], values: list[bytes], at: int) -> None:
    first = last = at
    while first and keys[first - 1] == keys[at]:
        first -= 1
    while last < len(keys) and keys[last] == keys[at]:
        last += 1
    cells = sorted(zip(columns[first:last], values[first:last], strict=True))
    columns[first:last] = [column for column, _ in cells]
    values[first:last] = [value for _, value in cells]


class CellIterator(Protocol):
    """An iterator of RocksDB."""

    def seek(self, key: bytes) -> None:
        """Go to the first cell from a key on."""

    def valid(self) -> bool:
        """Return whether there is a cell."""
        ...

    def key(self) -> bytes:
        """Return its key."""
        ...

    def value(self) -> bytes:
        """Return its stored value."""
        ...

    def next(self) -> None:
        """Go to the next cell."""


class RowCells(NamedTuple):
    """The cells of a row, in order of their keys."""

    keys: list[bytes]
    cells: list[tuple[bytes, bytes, int]]  # column, value, and timestamp in ms
    size: int  # bytes of columns and stored values


def read_row(
    at: CellIterator, row: bytes, most: int, *, is_after_row: bool, compiled: bool = HAS_KEY_LOOP
) -> RowCells | None:
    """Read the cells of a row with an iterator over a table; None if there are more than `most`. Otherwise the iterator
    is behind them afterwards: `is_after_row` says that an earlier call left it behind its row. Rows that are neighbours
    are then read without a search."""
    if compiled:
        found = _keys.row_cells(at, row, most, is_after_row, DIGEST_BYTES, _MARK, decode_long_cell)
        return None if found is None else RowCells(*found)
    prefix, row_cells = row_prefix(row), RowCells([], [], 0)
    if not (is_after_row and at.valid() and at.key().startswith(prefix)):
        at.seek(prefix)
    size = 0
    while at.valid() and (key := at.key()).startswith(prefix):
        if len(row_cells.keys) == most:
            return None
        column, value = key[len(prefix) :], at.value()
        if is_digest(column):
            column, value = decode_long_cell(column, value)
        row_cells.keys.append(key)
        row_cells.cells.append((column, value[TIME_BYTES:], time_of(value)))
        size += len(column) + len(value)
        at.next()
    return row_cells._replace(size=size)


class Keys(NamedTuple):
    """Keys of cells, and each digest among their columns with the index of its key."""

    keys: list[bytes]
    digests: list[tuple[int, bytes]]


def encode_batch(
    put: Callable[[bytes, bytes], None], cells: Sequence[Put], time_ms: int, *, compiled: bool = HAS_KEY_LOOP
) -> None:
    """Call `put` with the key and the stored value of each cell. Raise StoreError at the first invalid row key; `put`
    was then called for the cells before it."""
    stamp = time_ms.to_bytes(TIME_BYTES, "big")

    def put_other(cell: Put) -> None:
        row, column, value = cell
        check_row(row)
        in_key = key_column(column)
        content = value if in_key is column else encode_long_cell(column, value)
        put(row_prefix(row) + in_key, stamp + content)

    if compiled:
        _keys.put_cells(put, cells, stamp, DIGEST_BYTES, LONG_BYTES, LONGEST_HBASE_KEY, _digest_of, _packed, put_other)
        return
    last = prefix = b""
    for cell in cells:
        row, column, value = cell
        if len(column) >= DIGEST_BYTES:
            put_other(cell)
            continue
        if row != last or not row:
            check_row(row)
            last, prefix = row, row_prefix(row)
        put(prefix + column, stamp + value)


def encode_keys(places: Sequence[tuple[bytes, bytes]], *, compiled: bool = HAS_KEY_LOOP) -> Keys:
    """Return the keys of cells, given by row and column.

    >>> encode_keys([(b"a", b"t:q")])
    Keys(keys=[b'a\\x00\\x01t:q'], digests=[])
    """
    if compiled:
        others: list[int] = []
        keys = _keys.keys_of(places, DIGEST_BYTES, others)
    else:
        keys = [row_prefix(row) + column for row, column in places]
        others = [at for at, (_, column) in enumerate(places) if len(column) >= DIGEST_BYTES]
    digests = []
    for at in others:
        row, column = places[at]
        in_key = key_column(column)
        if is_digest(in_key):
            keys[at] = row_prefix(row) + in_key
            digests.append((at, in_key))
    return Keys(keys, digests)
