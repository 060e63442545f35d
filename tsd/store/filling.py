"""Cells → the keys and values that RocksDB is given for them: the hot loop of every write. A long column stands under
its name (see tsd.store.packing)."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tsd.codec.rowkey import LONGEST_KEY
from tsd.store import Put
from tsd.store.keyvalue import TIME_BYTES, row_head
from tsd.store.limits import check_row
from tsd.store.packing import NAME_BYTES, closed, is_name, stands_as

try:
    from tsd.store import _keys
except ImportError:  # no C compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two


class Keys(NamedTuple):
    """Of some cells, and which of them are names of columns: their places and the names."""

    keys: list[bytes]
    named: list[tuple[int, bytes]]


def fill(
    put: Callable[[bytes, bytes], None],
    delete: Callable[[bytes], None] | None,
    cells: Sequence[Put],
    time_ms: int,
    *,
    by_loop: bool = HAS_LOOP,
) -> None:
    """Have `put` take each cell, written at a time. Of a column that is put under its name `delete` takes the key that
    an older database has; None: there is none. Raises StoreError for a row that is none, and then some are put."""
    stamp = time_ms.to_bytes(TIME_BYTES, "big")

    def put_other(cell: Put) -> None:
        row, column, value = cell
        check_row(row)
        head = row_head(row)
        name = stands_as(column)
        if name is column:
            put(head + column, stamp + value)
        else:
            put(head + name, stamp + closed(column, value))
            if delete is not None:
                delete(head + column)

    if by_loop:
        _keys.put_cells(put, cells, stamp, NAME_BYTES, LONGEST_KEY, put_other)
        return
    last = head = b""
    for cell in cells:
        row, column, value = cell
        if len(column) >= NAME_BYTES:
            put_other(cell)
            continue
        if row != last or not row:
            check_row(row)
            last, head = row, row_head(row)
        put(head + column, stamp + value)


def keys_of(places: Sequence[tuple[bytes, bytes]], *, by_loop: bool = HAS_LOOP) -> Keys:
    """The keys of cells, of each its row and its column.

    >>> keys_of([(b"a", b"t:q")])
    Keys(keys=[b'a\\x00\\x01t:q'], named=[])
    """
    if by_loop:
        others: list[int] = []
        keys = _keys.keys_of(places, NAME_BYTES, others)
    else:
        keys = [row_head(row) + column for row, column in places]
        others = [at for at, (_, column) in enumerate(places) if len(column) >= NAME_BYTES]
    named = []
    for at in others:
        row, column = places[at]
        name = stands_as(column)
        if is_name(name):
            keys[at] = row_head(row) + name
            named.append((at, name))
    return Keys(keys, named)
