"""Puts and creates → requests in Thrift's binary protocol, byte for byte as thriftpy2 writes them.

A put is the call that is made most, and thriftpy2 wants two objects for each cell: that takes ten times as long as to
write the bytes. Creates are small calls, one a cell: written together they are sent together.
"""

import os
import struct
from collections.abc import Sequence

from tsd.store import Put
from tsd.store.limits import check_column, check_row

try:
    from tsd.store import _requests
except ImportError:  # no C compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two

CREATE = "checkAndPut"
VERSION, CALL = 0x8001, 1
BOOL, STRING, STRUCT, MAP = 2, 11, 12, 13
_HEAD = struct.Struct(">HxBI")  # version, kind of message, length of the name
_NUMBER = struct.Struct(">I")
_TEXT = struct.Struct(">BhI")  # a field of a kind, with its number and length
_IS_PUT = struct.pack(">BhBhB", STRUCT, 6, BOOL, 1, 0)  # a mutation; isDelete: false
_END = struct.pack(">BhBBBhBBIB", BOOL, 4, 1, 0, MAP, 7, STRING, STRING, 0, 0)  # writeToWAL: true; no attributes


def put_call(time_ms: int | None) -> str:
    """Which call puts cells."""
    return "mutateRows" if time_ms is None else "mutateRowsTs"


def put_request(number: int, table: str, cells: Sequence[Put], time_ms: int | None) -> bytes:
    """A `put_call` with that number for cells, those of a row beside each other. Raises StoreError for a cell that
    HBase would not take. Only where there is a compiled loop: else thriftpy2 does it."""
    return _requests.mutate_rows(number, table.encode(), cells if isinstance(cells, list) else list(cells), time_ms)


def create_requests(numbers: Sequence[int], table: str, cells: Sequence[Put]) -> bytes:
    """A call of checkAndPut for each cell, with those numbers: each writes its cell if there is none. Raises
    StoreError for a cell that HBase would not take.

    >>> create_requests([7], "tsdb-uid", [Put(b"web01", b"id:tagv", bytes(3))])[:23]
    b'\\x80\\x01\\x00\\x01\\x00\\x00\\x00\\x0bcheckAndPut\\x00\\x00\\x00\\x07'
    """
    name, coded_table = CREATE.encode(), table.encode()
    before = _HEAD.pack(VERSION, CALL, len(name)) + name
    to_table = _text(1, coded_table)
    parts: list[bytes] = []
    for number, (row, column, value) in zip(numbers, cells, strict=True):
        check_row(row)
        check_column(column)
        parts += (before, _NUMBER.pack(number), to_table, _text(2, row), _text(3, column))
        parts += (_IS_PUT, _text(2, column), _text(3, value), _END)
    return b"".join(parts)


def _text(field: int, text: bytes) -> bytes:
    return _TEXT.pack(STRING, field, len(text)) + text
