"""Rows out of the stream of a ReadRows call.

A chunk is a part of a cell: an absent key, family or qualifier is that of the chunk before. A row counts once it is
committed; a reset discards its chunks so far.
"""

from tsd.errors import StoreError
from tsd.store.bigtable.messages import MS
from tsd.store.bigtable.wire import fields, read_varint, signed
from tsd.store.cells import Cell, Row

_KEY, _FAMILY, _QUALIFIER, _TIME, _LABELS, _VALUE, _SIZE, _RESET, _COMMIT = range(1, 10)


class RowReader:
    """Collects rows. `rows` are committed ones in order, and their cells are in order, too."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0  # bytes of values in `rows`
        self.last_scanned = b""  # key up to which the server has looked, without a row for the caller
        self._key = b""
        self._family = b""
        self._qualifier = b""
        self._time_ms = 0
        self._cells: list[Cell] = []
        self._size = 0
        self._parts: list[bytes] = []  # of a value that is cut

    @property
    def is_torn(self) -> bool:
        """Whether a row has begun and is not committed."""
        return bool(self._cells or self._parts)

    def restart(self) -> None:
        """Forget what came of a row whose stream broke."""
        self._key = b""
        self._cells, self._parts, self._size = [], [], 0

    def feed(self, message: bytes) -> None:
        """Take a ReadRowsResponse. Raise StoreError for a damaged one."""
        for field, _, data in fields(message):
            if field == 1:
                self._chunk(data)
            elif field == 2:
                self.last_scanned = data

    def _chunk(self, data: bytes) -> None:
        value = b""
        size = 0
        ends = resets = False
        if not self._parts:  # a time of 0 is not sent; further parts of a value come without a time
            self._time_ms = 0
        at, end = 0, len(data)
        try:
            while at < end:
                tag = data[at]  # all fields are below 16: one byte
                at += 1
                if tag & 7 == 2:
                    length, at = read_varint(data, at)
                    part = data[at : at + length]
                    at += length
                    kind = tag >> 3
                    if kind == _VALUE:
                        value = part
                    elif kind == _QUALIFIER:
                        self._qualifier = _wrapped(part)
                    elif kind == _FAMILY:
                        self._family = _wrapped(part) + b":"
                    elif kind == _KEY:
                        self._key = part
                else:
                    number, at = read_varint(data, at)
                    kind = tag >> 3
                    if kind == _TIME:
                        self._time_ms = signed(number) // MS
                    elif kind == _SIZE:
                        size = number
                    elif kind == _RESET:
                        resets = bool(number)
                    elif kind == _COMMIT:
                        ends = bool(number)
        except IndexError:
            at = end + 1
        if at != end:
            raise StoreError("Bigtable: a chunk of a row ends too early")
        if resets:
            self.restart()
            return
        if size:
            self._parts.append(value)
            return
        if self._parts:
            value = b"".join([*self._parts, value])
            self._parts = []
        self._cells.append(Cell(self._family + self._qualifier, value, self._time_ms))
        self._size += len(value)
        if ends:
            if not self._key:
                raise StoreError("Bigtable: a row without a key")
            self._cells.sort()  # families come in any order
            self.rows.append(Row(self._key, self._cells))
            self.size += self._size
            self._cells, self._size = [], 0


def _wrapped(message: bytes) -> bytes:
    """Return field 1 of a message, empty if it is absent."""
    if not message:
        return b""
    size, at = read_varint(message, 1)
    return message[at : at + size]
