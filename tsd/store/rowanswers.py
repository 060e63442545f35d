"""The gateway's answers to calls for rows, in Thrift's binary protocol → rows, straight from the socket's bytes.

A query may read tens of megabytes this way, and a general Thrift reader, which makes an object of every struct, takes
twice the processor time. The layout is Hbase.thrift's: list<TRowResult>, TRowResult = {1: row, 2: map<column, TCell>},
TCell = {1: value, 2: timestamp}. Whatever else comes, an exception of the gateway's included, is left to the general
reader: nothing is taken from the socket that it does not get back. What begins as a list of rows and is none is no
answer: to the general reader, which skips what it does not know, it might be one of rows without keys.
"""

import struct
from collections.abc import Callable

from tsd.store.changes import Signing
from tsd.store.gateways import NoAnswer
from tsd.store.keyvalue import HAS_LOOP
from tsd.store.rawcells import RawCells

if HAS_LOOP:
    from tsd.store import _split

BINARY, REPLY = 0x8001, 2
STRING, STRUCT, MAP, LIST, I64 = 11, 12, 13, 15, 10
ROOM = 1 << 20  # bytes; it grows to the largest answer
_ANSWER = struct.Struct(">HxBI")  # version, kind of message, length of the name
_RESULT = struct.Struct(">bhbI")  # field 0, a list of how many structs
_FIELD = struct.Struct(">bhI")  # a string's field and length
_COLUMNS = struct.Struct(">bhbbI")
_LENGTH = struct.Struct(">I")
_TIME = struct.Struct(">bhqb")
_ROW_HEAD = (STRING, 1)
_CELLS_HEAD = (MAP, 2, STRING, STRUCT)


class OtherAnswer(Exception):
    """What came does not begin as a list of rows: `received` is all of it so far."""

    def __init__(self, received: bytes) -> None:
        super().__init__(received[:64].hex())
        self.received = received


class RowAnswers:
    """Reads answers over one connection; `receive_into` fills a buffer with some bytes and says how many (0: the end,
    for which EOFError is raised)."""

    def __init__(self, receive_into: Callable[[memoryview], int], *, by_loop: bool = HAS_LOOP) -> None:
        """`by_loop`: rows are taken apart in the compiled loop."""
        self._receive_into = receive_into
        self._by_loop = by_loop
        self._room = memoryview(bytearray(ROOM))
        self._have = 0

    def read(self, name: bytes, number: int) -> RawCells:
        """The answer to the call `name` with that number. Raises OtherAnswer, NoAnswer, EOFError, OSError."""
        at, count = self._begin(name, number)
        cells = RawCells([], [], [], [], count)
        self._end(self._rows(at, cells))
        return cells

    def sign(self, name: bytes, number: int, signing: Signing, before: bytes) -> tuple[int, bytes]:
        """Have an answer signed, whose values are the lengths of values: how many rows it has, and the last one's key.
        Their keys ascend, all above `before`. Raises OtherAnswer, NoAnswer, EOFError, OSError."""
        at, count = self._begin(name, number)
        left = count
        while left:
            done, at, sound, before = signing.add_rows(self._room, at, self._have, left, before)
            left -= done
            if not sound:
                raise self._no_rows(at)
            if left:
                self._need(self._have + 1)
        self._end(at)
        return count, before

    def _begin(self, name: bytes, number: int) -> tuple[int, int]:
        """Where the rows of an answer start, and how many there are."""
        self._have = 0
        head = _ANSWER.size + len(name) + 4
        self._need(head + 1)
        version, kind, length = _ANSWER.unpack_from(self._room, 0)
        echo = bytes(self._room[_ANSWER.size : head])
        if version != BINARY or kind != REPLY or length != len(name) or echo != name + number.to_bytes(4, "big"):
            raise OtherAnswer(self._received())
        if self._room[head] != LIST:
            raise OtherAnswer(self._received())
        self._need(head + _RESULT.size)
        field_kind, field, of, count = _RESULT.unpack_from(self._room, head)
        if (field_kind, field, of) != (LIST, 0, STRUCT):
            raise self._no_rows(head)
        return head + _RESULT.size, count

    def _end(self, at: int) -> None:
        """Nothing follows the rows."""
        self._need(at + 1)
        if self._room[at] != 0 or self._have != at + 1:
            raise self._no_rows(at)

    def _rows(self, at: int, cells: RawCells) -> int:
        """Fill `cells` with the rows that start at a place; where they end."""
        if self._by_loop:
            return self._rows_by_loop(at, cells)
        read = 0
        while read < cells.rows:
            held = len(cells.keys)
            try:
                end = self._row(at, cells)
            except (IndexError, struct.error):  # a part of it only
                for column in cells[:4]:
                    del column[held:]
                self._need(self._have + 1)  # no more: what follows may be shorter, and nothing may come behind it
                continue
            read += 1
            at = end
        return at

    def _rows_by_loop(self, at: int, cells: RawCells) -> int:
        left = cells.rows
        while True:
            done, at, sound = _split.parse_rows(self._room, at, self._have, left, *cells[:4])
            left -= done
            if not sound:
                raise self._no_rows(at)
            if not left:
                return at
            self._need(self._have + 1)

    def _row(self, at: int, cells: RawCells) -> int:
        """Add a row; where it ends. IndexError or struct.error where it has not come whole."""
        room = self._room[: self._have]
        kind, field, length = _FIELD.unpack_from(room, at)
        at += _FIELD.size
        end = at + length
        if (kind, field) != _ROW_HEAD:
            raise self._no_rows(at)
        columns = _COLUMNS.unpack_from(room, end)
        if columns[:4] != _CELLS_HEAD:
            raise self._no_rows(at)
        key = bytes(room[at:end])
        at = end + _COLUMNS.size
        for _ in range(columns[4]):
            (length,) = _LENGTH.unpack_from(room, at)
            column, at = at + 4, at + 4 + length
            kind, field, length = _FIELD.unpack_from(room, at)
            value = at + _FIELD.size
            end = value + length
            time_kind, time_field, time_ms, stop = _TIME.unpack_from(room, end)
            if (kind, field, time_kind, time_field, stop) != (STRING, 1, I64, 2, 0):
                raise self._no_rows(at)
            cells.times_ms.append(time_ms)
            cells.keys.append(key)
            cells.columns.append(bytes(room[column:at]))
            cells.values.append(bytes(room[value:end]))
            at = end + _TIME.size
        if room[at]:
            raise self._no_rows(at)
        return at + 1

    def _need(self, size: int) -> None:
        """Have at least so many bytes of the answer."""
        while self._have < size:
            if self._have == len(self._room) or size > len(self._room):
                larger = memoryview(bytearray(max(2 * len(self._room), size)))
                larger[: self._have] = self._room[: self._have]
                self._room = larger
            got = self._receive_into(self._room[self._have :])
            if not got:
                raise EOFError(f"the gateway hung up after {self._have} bytes of an answer")
            self._have += got

    def _no_rows(self, at: int) -> NoAnswer:
        part = bytes(self._room[at : min(at + 32, self._have)])
        return NoAnswer(f"wanted a list of rows in order, got {part.hex()} at byte {at} of {self._have}")

    def _received(self) -> bytes:
        return bytes(self._room[: self._have])
