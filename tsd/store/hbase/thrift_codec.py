"""Thrift messages to and from HBase's gateway: puts and creates as bytes, rows from bytes, and checks of answers.

Put is the most frequent call. thriftpy2 creates two objects for each cell, which takes ten times as long as writing
Thrift's binary protocol in a compiled loop. Creates are small calls of one cell each; several are encoded into one
buffer and sent at once.

A query may read tens of megabytes. thriftpy2, which creates an object for every struct, takes twice the processor time
of the compiled loop that reads rows from a receive buffer. The layout is Hbase.thrift's: list<TRowResult>,
TRowResult = {1: row, 2: map<column, TCell>}, TCell = {1: value, 2: timestamp}. Any other answer, such as an exception
of the gateway, goes to thriftpy2 with all bytes received so far. An answer that starts as a list of rows but is not one
raises NoAnswer: thriftpy2, which skips unknown fields, might accept it as rows without keys.
"""

import os
import struct
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter, lt
from typing import Any, NamedTuple, TypeAlias, TypeVar

from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
from thriftpy2.transport import TSocket, TTransportException

from tsd.store import Cell, Put
from tsd.store.cells import HAS_CELL_LOOP, CellSigner
from tsd.store.hbase.pool import NoAnswer
from tsd.store.rules import check_column, check_row

try:
    from tsd.store.hbase import _encode
except ImportError:  # installed without a C compiler
    HAS_ENCODE_LOOP = False
else:
    HAS_ENCODE_LOOP = not os.environ.get("TSD_PURE")  # see tsd.store.cells

if HAS_CELL_LOOP:
    from tsd.store import _cells


class CheckedProtocol:
    """Numbers each request and accepts only the answer with its number and name.

    Otherwise a later call could get the answer of an earlier one. thriftpy2 numbers every message 0 and checks neither.
    """

    requests = 0  # numbered since the start

    def number(self, name: str) -> int:
        """Return the number for a request; the next answer must have the same."""
        self.requests += 1
        number = self.requests & 0x7FFFFFFF
        self.sent = name, number
        return number

    def write_message_begin(self, name: str, kind: int, _: int) -> None:
        """Begin a request."""
        super().write_message_begin(name, kind, self.number(name))  # type: ignore[misc]

    def read_message_begin(self) -> tuple[str, int, int]:
        """Begin an answer."""
        with _unreadable():
            name, kind, number = super().read_message_begin()  # type: ignore[misc]
            if isinstance(name, bytes):  # in the compact protocol
                name = name.decode()
        if (name, number) != self.sent:
            raise NoAnswer(f"sent call {self.sent}, got an answer to {name, number}")
        return name, kind, number

    def read_struct(self, result: object) -> None:
        """Read an answer."""
        with _unreadable():
            super().read_struct(result)  # type: ignore[misc]


class Socket(TSocket):
    """A socket with a way to unread bytes: `returned` is read again before any others."""

    returned = b""

    def send(self, *requests: bytes, framed: bool) -> None:
        """Send requests without Thrift's buffer, which is empty between calls; `framed`: each in a frame."""
        parts = [part for one in requests for part in (_NUMBER.pack(len(one)), one)] if framed else requests
        self.sock.sendall(parts[0] if len(parts) == 1 else b"".join(parts))

    def receive_into(self, buffer: memoryview) -> int:
        """Read some bytes without Thrift's buffer, which is empty before an answer."""
        return int(self.sock.recv_into(buffer))

    def read(self, size: int) -> bytes:
        """Read bytes for Thrift's buffer."""
        if not self.returned:
            return bytes(super().read(size))  # type: ignore[no-untyped-call]
        part, self.returned = self.returned[:size], self.returned[size:]
        return part


class _Binary(CheckedProtocol, TBinaryProtocol):
    pass


class _Compact(CheckedProtocol, TCompactProtocol):
    pass


PROTOCOLS = {"binary": _Binary, "compact": _Compact}


@contextmanager
def _unreadable() -> Iterator[None]:
    """Raise NoAnswer for whatever error thriftpy2 raises on bytes that are not Thrift."""
    try:
        yield
    except (OSError, TTransportException):
        raise
    except Exception as exc:
        raise NoAnswer(f"not an answer in Thrift: {exc!r}") from exc


CREATE = "checkAndPut"
VERSION, CALL, REPLY = 0x8001, 1, 2
BOOL, STRING, STRUCT, MAP, LIST = 2, 11, 12, 13, 15
_HEAD = struct.Struct(">HxBI")  # version, kind of message, length of the name
_NUMBER = struct.Struct(">I")
_TEXT = struct.Struct(">BhI")  # type, number and length of a field
_IS_PUT = struct.pack(">BhBhB", STRUCT, 6, BOOL, 1, 0)  # a mutation; isDelete: false
_LIST = struct.Struct(">BhBI")  # type and number of a field, type and number of items
_NO_ATTRIBUTES = struct.Struct(">BhBBIB")
_END = struct.pack(">BhBBBhBBIB", BOOL, 4, 1, 0, MAP, 7, STRING, STRING, 0, 0)  # writeToWAL: true; no attributes


def put_call(time_ms: int | None) -> str:
    """Return the name of the Thrift call that puts cells."""
    return "mutateRows" if time_ms is None else "mutateRowsTs"


def put_request(number: int, table: str, cells: Sequence[Put], time_ms: int | None) -> bytes:
    """Encode a `put_call` with that number; the cells of a row follow each other. Raise StoreError for a cell that
    HBase would refuse. Needs the compiled loop."""
    return _encode.mutate_rows(number, table.encode(), cells if isinstance(cells, list) else list(cells), time_ms)


def create_requests(numbers: Sequence[int], table: str, cells: Sequence[Put]) -> list[bytes]:
    """Encode a checkAndPut call for each cell, with the given numbers. Each call writes its cell if it is absent. Raise
    StoreError for a cell that HBase would refuse.

    >>> create_requests([7], "tsdb-uid", [Put(b"web01", b"id:tagv", bytes(3))])[0][:23]
    b'\\x80\\x01\\x00\\x01\\x00\\x00\\x00\\x0bcheckAndPut\\x00\\x00\\x00\\x07'
    """
    name, coded_table = CREATE.encode(), table.encode()
    before = _HEAD.pack(VERSION, CALL, len(name)) + name
    to_table = _text(1, coded_table)
    requests: list[bytes] = []
    for number, (row, column, value) in zip(numbers, cells, strict=True):
        check_row(row)
        check_column(column)
        parts = [before, _NUMBER.pack(number), to_table, _text(2, row), _text(3, column)]
        requests.append(b"".join([*parts, _IS_PUT, _text(2, column), _text(3, value), _END]))
    return requests


def get_request(number: int, table: str, rows: Sequence[bytes], columns: Collection[bytes] | None) -> bytes:
    """Encode a call for rows with that number: getRows, or getRowsWithColumns if columns are named.

    >>> get_request(7, "tsdb", [b"row"], None)[4:15]
    b'\\x00\\x00\\x00\\x07getRows'
    """
    name = get_call(columns).encode()
    parts = [_HEAD.pack(VERSION, CALL, len(name)), name, _NUMBER.pack(number), _text(1, table.encode())]
    lists = [rows] if columns is None else [rows, columns]
    for field, texts in enumerate(lists, 2):
        parts.append(_LIST.pack(LIST, field, STRING, len(texts)))
        parts += [_NUMBER.pack(len(text)) + text for text in texts]
    parts.append(_NO_ATTRIBUTES.pack(MAP, 2 + len(lists), STRING, STRING, 0, 0))
    return b"".join(parts)


def get_call(columns: Collection[bytes] | None) -> str:
    """Return the name of the Thrift call that reads rows by their keys."""
    return "getRows" if columns is None else "getRowsWithColumns"


def _text(field: int, text: bytes) -> bytes:
    return _TEXT.pack(STRING, field, len(text)) + text


TIME_BITS = 63  # without the sign; the compact protocol can encode larger numbers


class RawCells(NamedTuple):
    """The cells of whole rows as parallel lists, in the gateway's order, and the number of rows."""

    keys: list[bytes]
    columns: list[bytes]
    values: list[bytes]
    times_ms: list[int]
    rows: int


def flat(results: Sequence[Any]) -> RawCells:
    """Return rows read by thriftpy2 as cells. Raise NoAnswer if a field is missing. thriftpy2 accepts that: a truncated
    struct, or a field of another type."""
    cells = RawCells([], [], [], [], len(results))
    for result in results:
        if result.row is None or not result.columns:
            raise NoAnswer("got a row without a key or without cells")
        for column, cell in result.columns.items():
            if cell.value is None or cell.timestamp is None or cell.timestamp.bit_length() > TIME_BITS:
                raise NoAnswer("got a cell without a value, or without a valid timestamp")
            cells.keys.append(result.row)
            cells.columns.append(column)
            cells.values.append(cell.value)
            cells.times_ms.append(cell.timestamp)
    return cells


def in_order(cells: RawCells, start: bytes, stop: bytes | None) -> RawCells:
    """Return the cells of a scan, sorted by column within each row: the gateway sorts columns as signed bytes. Raise
    NoAnswer if rows are outside the range or out of order."""
    places = list(zip(cells.keys, cells.columns, strict=True))
    if not all(map(lt, places, places[1:])):
        order = sorted(range(len(places)), key=places.__getitem__)
        places = [places[at] for at in order]
        keys = [key for key, _ in places]
        if keys != cells.keys or not all(map(lt, places, places[1:])):
            raise NoAnswer(f"requested rows from {start.hex()}, got some out of order")
        values, times_ms = [cells.values[at] for at in order], [cells.times_ms[at] for at in order]
        cells = RawCells(keys, [column for _, column in places], values, times_ms, cells.rows)
    if places and not start <= cells.keys[0]:
        raise NoAnswer(f"requested rows from {start.hex()}, got {cells.keys[0].hex()}")
    if places and stop is not None and cells.keys[-1] >= stop:
        raise NoAnswer(f"requested rows before {stop.hex()}, got {cells.keys[-1].hex()}")
    return cells


def rows_of(raw: RawCells, columns: Collection[bytes] | None) -> Iterator[tuple[bytes, list[Cell]]]:
    """Yield rows with their cells sorted by column. Raise NoAnswer for a column outside `columns`, a row without cells,
    or a repeated row."""
    found = zip(raw.keys, map(Cell, raw.columns, raw.values, raw.times_ms), strict=True)
    rows = 0
    for key, group in groupby(found, key=itemgetter(0)):
        rows += 1
        cells = sorted(cell for _, cell in group)
        if columns is not None and any(cell.column not in columns for cell in cells):
            raise NoAnswer(f"row {key.hex()}: requested columns {columns}, got {[c.column for c in cells[:8]]}")
        yield key, cells
    if rows != raw.rows:
        raise NoAnswer(f"got {raw.rows} rows, {raw.rows - rows} of them without cells or repeated")


T = TypeVar("T")
Steps: TypeAlias = Generator[bool, None, T]  # a call that may wait, or be long, after each yield of True


def all_steps(steps: Steps[T]) -> T:
    """Return what the steps return. Waits in them block."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found


FEW_BYTES = 512 << 10  # of an answer that is read in short steps
BUFFER_BYTES = 1 << 20  # at first; the buffer grows to the largest answer
_ANSWER = struct.Struct(">HxBI")  # version, kind of message, length of the name
_RESULT = struct.Struct(">bhbI")  # field 0, a list, and its number of structs


class OtherAnswer(Exception):
    """An answer does not start as a list of rows. `received` has all its bytes so far."""

    def __init__(self, received: bytes) -> None:
        super().__init__(received[:64].hex())
        self.received = received


class RowReader:
    """Reads lists of rows from the answers of one connection. It needs the compiled loop."""

    def __init__(self, receive_into: Callable[[memoryview], int], *, framed: bool = False) -> None:
        """`receive_into` reads into a buffer and returns the number of bytes. 0 means the end of the stream: a call
        then raises EOFError. `framed`: each answer is a frame."""
        self._receive_into = receive_into
        self._start = _NUMBER.size if framed else 0  # of an answer, after the length of its frame
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._have = 0

    def read(self, name: bytes, number: int) -> RawCells:
        """Return the answer to the call `name` with that number. Raise OtherAnswer, NoAnswer, EOFError, OSError."""
        return all_steps(self.reading(name, number))

    def reading(self, name: bytes, number: int) -> Steps[RawCells]:
        """Read the answer to a call, see `read`, in steps. Each begins with a receive. A step is short unless much has
        been received."""
        at, count = yield from self._begin(name, number)
        cells = RawCells([], [], [], [], count)
        left = count
        while left:
            done, at, valid = _cells.parse_rows(self._buffer, at, self._have, left, *cells[:4])
            left -= done
            yield from self._continue(at, left, valid=valid)
        yield from self._end(at)
        return cells

    def sign(self, name: bytes, number: int, signer: CellSigner, before: bytes) -> tuple[int, bytes]:
        """Add the rows of an answer to signatures. Its values must be lengths of the stored values, and its row keys
        must ascend from above `before`. Return the number of rows and the last key. Raise OtherAnswer, NoAnswer,
        EOFError, OSError."""
        return all_steps(self._signing(name, number, signer, before))

    def _signing(self, name: bytes, number: int, signer: CellSigner, before: bytes) -> Steps[tuple[int, bytes]]:
        at, count = yield from self._begin(name, number)
        left = count
        while left:
            done, at, valid, before = signer.add_rows(self._buffer, at, self._have, left, before)
            left -= done
            yield from self._continue(at, left, valid=valid)
        yield from self._end(at)
        return count, before

    def _begin(self, name: bytes, number: int) -> Steps[tuple[int, int]]:
        """Read the head of an answer; return where its rows start, and their number."""
        self._have = 0
        names = self._start + _ANSWER.size
        head = names + len(name) + 4
        yield from self._need(head + 1)
        version, kind, length = _ANSWER.unpack_from(self._buffer, self._start)
        echo = bytes(self._buffer[names:head])
        if version != VERSION or kind != REPLY or length != len(name) or echo != name + number.to_bytes(4, "big"):
            raise OtherAnswer(self._received())
        if self._buffer[head] != LIST:
            raise OtherAnswer(self._received())
        yield from self._need(head + _RESULT.size)
        field_type, field, item_type, count = _RESULT.unpack_from(self._buffer, head)
        if (field_type, field, item_type) != (LIST, 0, STRUCT):
            raise self._invalid(head)
        return head + _RESULT.size, count

    def _continue(self, at: int, left: int, *, valid: bool) -> Steps[None]:
        """Receive more bytes if `left` rows are missing. Raise NoAnswer unless `valid`: no row can start at `at`."""
        if not valid:
            raise self._invalid(at)
        if left:
            yield from self._need(self._have + 1)

    def _end(self, at: int) -> Steps[None]:
        """Raise NoAnswer if anything follows the rows."""
        yield from self._need(at + 1)
        if self._buffer[at] != 0 or self._have != at + 1:
            raise self._invalid(at)
        if self._start and int.from_bytes(self._buffer[: self._start], "big") != self._have - self._start:
            raise self._invalid(0)

    def _need(self, size: int) -> Steps[None]:
        """Receive until the buffer has `size` bytes of the answer."""
        while self._have < size:
            if self._have == len(self._buffer) or size > len(self._buffer):
                larger = memoryview(bytearray(max(2 * len(self._buffer), size)))
                larger[: self._have] = self._buffer[: self._have]
                self._buffer = larger
            yield self._have > FEW_BYTES
            got = self._receive_into(self._buffer[self._have :])
            if not got:
                raise EOFError(f"the gateway closed the connection after {self._have} bytes of an answer")
            self._have += got

    def _invalid(self, at: int) -> NoAnswer:
        part = bytes(self._buffer[at : min(at + 32, self._have)])
        return NoAnswer(f"wanted a list of rows in order, got {part.hex()} at byte {at} of {self._have}")

    def _received(self) -> bytes:
        return bytes(self._buffer[: self._have])
