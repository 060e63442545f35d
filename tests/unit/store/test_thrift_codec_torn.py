"""Answers of a gateway whose first part is right and whose rest is of another one, or of none.

A daemon ended by such a one: thriftpy2 skipped what it could not place, and a row had no key.
"""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import Hbase_thrift as api  # made by happybase when it is imported
import pytest
from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
from thriftpy2.thrift import TMessageType
from thriftpy2.transport import TMemoryBuffer

from tests.seeds import seeds
from tsd.store import Cell, Cursor
from tsd.store.hbase.connection import Connection
from tsd.store.hbase.pool import NoAnswer
from tsd.store.hbase.thrift_codec import all_steps, flat

KEYS = [b"\0\0\1%03d" % at for at in range(4)]
COLUMNS = (b"t:0", b"t:1", b"t:2")
PROTOCOLS = {"binary": TBinaryProtocol, "compact": TCompactProtocol}


class Reciter:
    """Sends one given part for each request of a connection, then closes it."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError):
                    for part in self.parts:
                        client.recv(1 << 20)
                        client.sendall(part)


@pytest.fixture
def reciter() -> Iterator[Reciter]:
    reciter = Reciter()
    yield reciter
    reciter.close()


def written(call: str, success: object, number: int, protocol: str) -> bytes:
    """An answer as a gateway gives it."""
    buffer = TMemoryBuffer()
    coded = PROTOCOLS[protocol](buffer, decode_response=False)
    coded.write_message_begin(call, TMessageType.REPLY, number)
    result = getattr(api.Hbase, f"{call}_result")
    (result() if success is None else result(success=success)).write(coded)
    coded.write_message_end()
    return bytes(buffer.getvalue())


def rows(chance: random.Random) -> dict[bytes, list[Cell]]:
    """Rows whose values are of several sizes."""
    return {
        key: [Cell(column, chance.randbytes(chance.choice((1, 8, 60))), 1_700_000_000_000 + at)
              for at, column in enumerate(COLUMNS)]
        for key in KEYS
    }  # fmt: skip


def results(found: dict[bytes, list[Cell]]) -> list[object]:
    return [
        api.TRowResult(row=key, columns={c.column: api.TCell(value=c.value, timestamp=c.time_ms) for c in cells})
        for key, cells in found.items()
    ]


def torn(answer: bytes, cut: int, chance: random.Random) -> bytes:
    """An answer up to a place, and then its beginning again, its bytes inverted, or some of them others."""
    how = chance.randrange(3)
    if how == 0:
        return answer[:cut] + answer[:cut]
    if how == 1:
        return answer[:cut] + bytes(byte ^ 0xFF for byte in answer[cut:])
    return answer[:cut] + chance.randbytes(chance.randrange(40))


@pytest.mark.parametrize("seed", seeds(300, fast=30))
def test_garbled_rows_raise_no_answer(reciter: Reciter, seed: int) -> None:
    chance = random.Random(seed)
    found = rows(chance)
    call, columns = chance.choice((("getRows", None), ("getRowsWithColumns", COLUMNS)))
    answer = written(call, results(found), 1, "binary")
    cut = chance.randrange(len(call) + 13, len(answer))
    for part, whole in ((answer, True), (torn(answer, cut, chance), False)):
        reciter.parts = [part]
        connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol="binary")
        if whole:
            assert all_steps(connection.get("tsdb", KEYS, columns)) == found
        else:
            with pytest.raises(NoAnswer):
                all_steps(connection.get("tsdb", KEYS, columns))
        connection.close()


@pytest.mark.parametrize("seed", seeds(100, fast=10))
def test_garbled_cells_raise_no_answer(reciter: Reciter, seed: int) -> None:
    chance = random.Random(seed)
    found = rows(chance)
    answer = written("getRows", results(found), 1, "binary")
    cut = chance.randrange(len("getRows") + 13, len(answer))
    for part, whole in ((answer, True), (torn(answer, cut, chance), False)):
        reciter.parts = [part]
        connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol="binary")
        if whole:
            page = all_steps(connection.get_cells("tsdb", KEYS))
            assert page.keys == [key for key in KEYS for _ in COLUMNS]
            assert [page.cell(at) for at in range(len(page.keys))] == [
                cell for cells in found.values() for cell in cells
            ]
        else:
            with pytest.raises(NoAnswer):
                all_steps(connection.get_cells("tsdb", KEYS))
        connection.close()


@pytest.mark.parametrize("wanted", [KEYS[:1], [KEYS[0], b"other"], [KEYS[1], KEYS[2]]], ids=["more", "another", "none"])
def test_cells_of_other_rows_raise(reciter: Reciter, wanted: list[bytes]) -> None:
    found = dict(list(rows(random.Random(0)).items())[:2])
    reciter.parts = [written("getRows", results(found), 1, "binary")]
    connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol="binary")
    with pytest.raises(NoAnswer):
        all_steps(connection.get_cells("tsdb", wanted))
    connection.close()


@pytest.mark.parametrize("seed", seeds(100, fast=10))
def test_garbled_scan_raises_no_answer(reciter: Reciter, seed: int) -> None:
    chance = random.Random(seed)
    found = rows(chance)
    answer = written("scannerGetList", results(found), 2, "binary")
    cut = chance.randrange(len("scannerGetList") + 13, len(answer))
    for part, whole in ((answer, True), (torn(answer, cut, chance), False)):
        closed = [written("scannerClose", None, 3, "binary")] if whole else []
        reciter.parts = [written("scannerOpenWithScan", 5, 1, "binary"), part, *closed]
        connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol="binary")
        if whole:
            page = connection.read_cells("tsdb", KEYS[0], None, 1 << 20, Cursor())
            assert page.keys == [key for key in KEYS for _ in COLUMNS]
            assert page.values == [cell.value for cells in found.values() for cell in cells]
        else:
            with pytest.raises(NoAnswer):
                connection.read_cells("tsdb", KEYS[0], None, 1 << 20, Cursor())
        connection.close()


@pytest.mark.parametrize("lacking", ["row", "value", "timestamp"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_struct_without_a_field_raises(reciter: Reciter, lacking: str, protocol: str) -> None:
    cell = api.TCell(value=b"*", timestamp=5)
    row = api.TRowResult(row=KEYS[0], columns={b"t:0": cell})
    setattr(row if lacking == "row" else cell, lacking, None)
    reciter.parts = [written("getRows", [row], 1, protocol)]
    connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol=protocol)
    with pytest.raises(NoAnswer):
        all_steps(connection.get("tsdb", KEYS[:1], None))
    connection.close()


def test_scanned_rows_without_cells_raise(reciter: Reciter) -> None:
    empty = [api.TRowResult(row=key, columns={}) for key in KEYS]
    reciter.parts = [written("scannerOpenWithScan", 5, 1, "binary"), written("scannerGetList", empty, 2, "binary")]
    connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol="binary")
    with pytest.raises(NoAnswer):
        connection.read_cells("tsdb", KEYS[0], None, 1 << 20, Cursor())
    connection.close()


@pytest.mark.parametrize("time_ms", [None, 1 << 80, -(1 << 70)], ids=str)
def test_row_without_cells_or_valid_time_raises(reciter: Reciter, time_ms: int | None) -> None:
    """One without cells, and one of a time that the compact protocol may be made to read: it bounds no number."""
    reciter.parts = [written("getRows", [api.TRowResult(row=KEYS[0], columns={})], 1, "compact")]
    connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol="compact")
    with pytest.raises(NoAnswer):
        all_steps(connection.get("tsdb", KEYS[:1], None))
    connection.close()
    with pytest.raises(NoAnswer):
        flat([api.TRowResult(row=KEYS[0], columns={b"t:0": api.TCell(value=b"*", timestamp=time_ms)})])


@pytest.mark.parametrize("values", [(b"12345", b"\0\0\0\1"), (b"\0" * 8, b"")], ids=["no lengths", "in all as many"])
def test_invalid_lengths_raise(reciter: Reciter, values: tuple[bytes, bytes]) -> None:
    found = [
        api.TRowResult(row=key, columns={b"t:0": api.TCell(value=value, timestamp=5)})
        for key, value in zip(KEYS, values, strict=False)
    ]
    reciter.parts = [written("scannerOpenWithScan", 5, 1, "compact"), written("scannerGetList", found, 2, "compact")]
    connection = Connection(reciter.address, timeout_s=20, transport="buffered", protocol="compact")
    with pytest.raises(NoAnswer):
        connection.signatures("tsdb", KEYS[0], None, 3, 10)
    connection.close()
