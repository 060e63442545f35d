"""HBase's Thrift API (version 1), through happybase: one connection to a gateway, and what is asked over it.

Everything here blocks, and runs in worker threads. What a gateway says no with becomes a StoreError, or StoreBusy where
it may say yes later; where it says nothing that can be used, NoAnswer. Then, as after any other exception, the
connection must be closed: nobody knows what would come over it next.

The Thrift client is asked directly: happybase's Batch takes twice the time per cell.
"""

import re
import select
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import happybase
import Hbase_thrift as api  # type: ignore[import-not-found] # made by happybase when it is imported
import numpy as np
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TBufferedTransport, TFramedTransport, TTransportException

from tsd.errors import NoTable, StoreBusy, StoreError, bare
from tsd.store import Cell, Page, Put, Row, Table
from tsd.store.cells import CellPage, Cursor
from tsd.store.changes import Signing
from tsd.store.gateways import Address, NoAnswer
from tsd.store.limits import check_column, check_row
from tsd.store.messages import PROTOCOLS, Socket
from tsd.store.rawcells import RawCells, flat, in_order, rows_of
from tsd.store.requests import CREATE, HAS_LOOP, create_requests, put_call, put_request
from tsd.store.rowanswers import OtherAnswer, RowAnswers

BUFFER_BYTES = 64 << 10  # happybase's 4 KiB cost a fifth of the time of a put
CACHED_ROWS = 500  # that the gateway asks the region server for at once
MOST_ROWS = 2000  # of a page of cells
MOST_NAMES = 8000  # rows of an answer without values
CACHED_NAMES = 2000
NO_VALUES = b"KeyOnlyFilter(true)"  # of each value only its length
LENGTH_BYTES = 4
FIRST_ROWS = 32  # of a page, to learn how large its rows are
PAGE_BYTES = 4 << 20  # of values: a page ends near it
NEXT_MS_S = 0.002  # until the server's millisecond is another one for sure
TEXT_CHARS = 300  # of an error that is passed on: what follows is Java's stack

# First lines of IOErrors that no repetition mends. All others mean: busy, or a region moves.
LASTING = re.compile(
    r"DoNotRetryIOException|NoSuchColumnFamilyException|TableNotEnabledException|AccessDeniedException"
    r"|NamespaceNotFoundException|FailedSanityCheckException|InvalidTableNameException"
)
PLAIN = ("buffered", "binary")  # what RowAnswers reads, and requests are written in
TRANSPORTS = {"buffered": TBufferedTransport, "framed": TFramedTransport}


class Connection:
    """A connection to a gateway."""

    def __init__(self, address: Address, *, timeout_s: float, transport: str, protocol: str) -> None:
        """Open it. NoAnswer, not sent, where that fails or takes more than `timeout_s`; later calls may take as long
        between two parts of their answers."""
        timeout_ms = max(round(timeout_s * 1000), 1)
        self._place = address
        self._address = "{}:{}".format(*address)
        self._happybase = happybase.Connection(*address, timeout=timeout_ms, autoconnect=False)
        self._socket = Socket(*address, socket_timeout=timeout_ms)  # type: ignore[no-untyped-call]
        self._happybase.transport = TRANSPORTS[transport](self._socket, BUFFER_BYTES)
        coded = PROTOCOLS[protocol](self._happybase.transport, decode_response=False)  # all is bytes, texts too
        self._happybase.client = TClient(api.Hbase, coded)
        self._coded = coded
        self._plain = (transport, protocol) == PLAIN
        self._answers = RowAnswers(self._socket.receive_into) if self._plain else None
        try:
            self._happybase.open()
        except (OSError, TTransportException, UnicodeError) as exc:  # UnicodeError: a host name that cannot be one
            raise NoAnswer(f"cannot connect: {_reason(exc)}", sent=False) from bare(exc)

    def close(self) -> None:
        """Hang up."""
        self._happybase.close()

    def stale(self) -> bool:
        """Whether something can be read though nothing was asked: the gateway hung up, or sends what nobody awaits."""
        poll = select.poll()
        poll.register(self._happybase.transport.sock, select.POLLIN)
        return bool(poll.poll(0))

    def tables(self) -> list[str]:
        """Names of all tables, in order."""
        return sorted(name.decode("utf-8", "replace") for name in self._ask("getTableNames", ""))

    def create_table(self, table: Table, compression: str) -> bool:
        """Make a table; False where it is there already. When this returns it can be used.

        Thrift 1 has no word for DATA_BLOCK_ENCODING: OpenTSDB's own script sets DIFF, this leaves NONE.
        """
        families = [
            api.ColumnDescriptor(
                name=family.name + b":",
                maxVersions=family.versions,
                bloomFilterType=family.bloom,
                compression=compression,
                blockCacheEnabled=True,  # HBase's default; Thrift's own is False
            )
            for family in table.families
        ]
        try:
            self._ask("createTable", table.name, table.name.encode(), families)
        except _Exists:
            return False
        return True

    def is_enabled(self, table: str) -> bool:
        """Whether a table can be used."""
        return bool(self._ask("isTableEnabled", table, table.encode()))

    def drop_table(self, table: str) -> None:
        """Delete a table and all that is in it."""
        if self.is_enabled(table):
            self._ask("disableTable", table, table.encode())
        self._ask("deleteTable", table, table.encode())

    def get(self, table: str, rows: Sequence[bytes], columns: Collection[bytes] | None) -> dict[bytes, list[Cell]]:
        """The cells of those `rows`, all different, that exist."""
        if columns is None:
            answer = self._rows("getRows", table, tableName=table.encode(), rows=list(rows), attributes={})
        else:
            named = {"tableName": table.encode(), "rows": list(rows), "columns": list(columns), "attributes": {}}
            answer = self._rows("getRowsWithColumns", table, **named)
        found = dict(rows_of(answer, columns))
        left = iter(rows)
        for key in found:
            if key not in left:  # goes on where the last one was found
                raise NoAnswer(f"got row {key.hex()} that was not asked for, or not there")
        return found

    def put(self, table: str, cells: Sequence[Put], time_ms: int | None) -> None:
        """Write cells, those of a row beside each other."""
        if self._plain and HAS_LOOP:
            call = put_call(time_ms)
            with self._naming(call, table):
                self._socket.send(put_request(self._coded.number(call), table, cells, time_ms))
                self._happybase.client._recv(call)
            return
        batches = []
        mutations: list[Any] = []
        last = None
        for row, column, value in cells:
            if row != last:
                check_row(row)
                last, mutations = row, []
                batches.append(api.BatchMutation(row, mutations))
            check_column(column)
            mutations.append(api.Mutation(False, column, value))
        self._mutate(table, batches, time_ms)

    def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], up_to_ms: int | None) -> None:
        """Delete columns of rows, as they are up to that time (None: to the server's present), that included.

        Without a time it returns a moment later: HBase 2.6.1 hid 682 of 3,000 puts that followed at once, because they
        got the millisecond of the delete.
        """
        batches = []
        for row, names in columns.items():
            check_row(row)
            for name in names:
                check_column(name)
            batches.append(api.BatchMutation(row, [api.Mutation(True, name) for name in names]))
        self._mutate(table, batches, up_to_ms)
        if up_to_ms is None:
            threading.Event().wait(NEXT_MS_S)  # here, not on trio's clock, which tests stop

    def _mutate(self, table: str, batches: list[Any], time_ms: int | None) -> None:
        if time_ms is None:
            self._ask("mutateRows", table, table.encode(), batches, {})
        else:
            self._ask("mutateRowsTs", table, table.encode(), batches, time_ms, {})

    def check_and_put(self, table: str, cell: Put, expected: bytes | None) -> bool:
        """Write a cell if it holds `expected`. None and an empty value mean the same: it is absent or empty."""
        check_row(cell.row)
        check_column(cell.column)
        mutation = api.Mutation(False, cell.column, cell.value)
        return bool(
            self._ask("checkAndPut", table, table.encode(), cell.row, cell.column, expected or None, mutation, {})
        )

    def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """Write each cell if it is absent; which were. All are asked for before the first answer is read."""
        if not self._plain:
            return [self.check_and_put(table, cell, None) for cell in cells]
        with self._naming(CREATE, table):
            numbers = [self._coded.number(CREATE) for _ in cells]
            self._socket.send(create_requests(numbers, table, cells))
            return [self._created(number) for number in numbers]

    def _created(self, number: int) -> bool:
        """The answer to a create, in the order in which they were sent."""
        self._coded.sent = CREATE, number
        return bool(self._happybase.client._recv(CREATE))

    def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """Add to a counter; the sum."""
        check_row(row)
        check_column(column)
        return int(self._ask("atomicIncrement", table, table.encode(), row, column, by))

    def page(self, table: str, start: bytes, stop: bytes | None, limit: int, columns: Collection[bytes] | None) -> Page:
        """The first rows from `start` to before `stop`: `limit` of them, fewer where they are large."""
        named = None if columns is None else list(columns)
        scan = api.TScan(startRow=start, stopRow=stop, columns=named, caching=min(limit, 1000))
        scanner = self._ask("scannerOpenWithScan", table, table.encode(), scan, {})
        try:
            page = self._read_page(table, scanner, limit, columns)
        except StoreError as exc:
            if not isinstance(exc, NoAnswer):
                with suppress(StoreError):
                    self._ask("scannerClose", table, scanner)
            raise
        self._ask("scannerClose", table, scanner)
        keys = [row.key for row in page.rows]
        if keys != sorted(set(keys)) or (keys and not (start <= keys[0] and (stop is None or keys[-1] < stop))):
            raise NoAnswer(f"asked for rows from {start.hex()}, got {len(keys)} others, or not in order")
        return page

    def cells(self, table: str, start: bytes, stop: bytes | None, limit_bytes: int, cursor: Cursor) -> CellPage:
        """The cells of the first rows from `start` to before `stop`, until they have `limit_bytes` of values."""
        scanner, cursor.scanner = cursor.scanner, None  # where anything goes wrong, nobody goes on with it
        if scanner is not None and cursor.address == self._place:
            try:
                return self._read_cells(table, scanner, start, stop, limit_bytes, cursor)
            except NoAnswer:
                raise
            except StoreError:  # the gateway has forgotten it, or cannot go on: from the first row again
                pass
        sieve = f"RowFilter(=, 'regexstring:{cursor.sieve}')".encode() if cursor.sieve else None
        scan = api.TScan(startRow=start, stopRow=stop, caching=CACHED_ROWS, filterString=sieve)
        scanner = self._ask("scannerOpenWithScan", table, table.encode(), scan, {})
        return self._read_cells(table, scanner, start, stop, limit_bytes, cursor)

    def signatures(self, table: str, start: bytes, stop: bytes | None, width: int, rows: int) -> dict[bytes, bytes]:
        """The signatures of groups of rows; `rows` is how many there are, about."""
        scan = api.TScan(startRow=start, stopRow=stop, caching=CACHED_NAMES, filterString=NO_VALUES)
        scanner = self._ask("scannerOpenWithScan", table, table.encode(), scan, {})
        signing = Signing(width)
        wanted, last = min(rows + 1, MOST_NAMES), b""
        while True:
            found, last = self._sign(table, scanner, wanted, signing, last)
            if found < wanted:
                self._ask("scannerClose", table, scanner)
                break
        signatures = signing.finish()
        if any(not start[:width] <= prefix or (stop is not None and prefix >= stop) for prefix in signatures):
            raise NoAnswer(f"asked for rows from {start.hex()}, got others")
        return signatures

    def _sign(self, table: str, scanner: int, wanted: int, signing: Signing, before: bytes) -> tuple[int, bytes]:
        """Have the next rows of a scanner signed, all behind the row `before`: how many there are, and the last."""
        if self._answers is not None and signing.by_loop:
            with self._naming("scannerGetList", table):
                self._happybase.client._send("scannerGetList", id=scanner, nbRows=wanted)
                name, number = self._coded.sent
                try:
                    return self._answers.sign(name.encode(), number, signing, before)
                except EOFError as exc:
                    raise TTransportException(TTransportException.END_OF_FILE, str(exc)) from exc
                except OtherAnswer as other:
                    self._socket.given_back = other.received
                    self._happybase.client._recv("scannerGetList")  # raises what the gateway said, if it did
                    raise NoAnswer(f"asked for rows behind {before.hex()}, got no list of rows") from other
        cells = in_order(self._list(table, scanner, wanted), before + b"\0" if before else b"", None)
        if any(len(value) != LENGTH_BYTES for value in cells.values):
            raise NoAnswer(f"asked for {len(cells.values)} lengths of values, got other values")
        lengths = np.frombuffer(b"".join(cells.values), ">i4").astype(np.int64)
        signing.add(cells.keys, cells.columns, lengths, cells.times_ms)
        return cells.rows, cells.keys[-1] if cells.keys else before

    def close_scan(self, table: str, cursor: Cursor) -> None:
        """Close the scanner of a scan that is given up, if it is this gateway's."""
        scanner, cursor.scanner = cursor.scanner, None
        if scanner is not None and cursor.address == self._place:
            self._ask("scannerClose", table, scanner)

    def _read_cells(
        self, table: str, scanner: int, start: bytes, stop: bytes | None, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """Go on with a scanner, which is closed at the end and else left in `cursor`."""
        wanted = min(limit_bytes // cursor.row_bytes + 1, MOST_ROWS) if cursor.row_bytes else FIRST_ROWS
        cells = in_order(self._list(table, scanner, wanted), start, stop)
        if cells.rows and not cells.keys:
            raise NoAnswer(f"asked for rows from {start.hex()}, got {cells.rows} without cells")
        if cells.rows < wanted:
            self._ask("scannerClose", table, scanner)
            return CellPage(*cells[:3], 0, cells.times_ms, None)
        cursor.scanner, cursor.address = scanner, self._place
        cursor.row_bytes = max(sum(map(len, cells.values)) // cells.rows, 1)
        return CellPage(*cells[:3], 0, cells.times_ms, cells.keys[-1] + b"\0")

    def _read_page(self, table: str, scanner: int, limit: int, columns: Collection[bytes] | None) -> Page:
        rows: list[Row] = []
        size = 0
        wanted = min(limit, FIRST_ROWS)
        while True:
            answer = self._list(table, scanner, wanted)
            for key, cells in rows_of(answer, columns):
                rows.append(Row(key, cells))
                size += sum(len(cell.value) for cell in cells)
            if answer.rows < wanted:
                return Page(rows, None)
            if len(rows) >= limit or size >= PAGE_BYTES:
                return Page(rows, rows[-1].key + b"\0")
            wanted = min(limit - len(rows), max((PAGE_BYTES - size) * len(rows) // (size + 1), 1))

    def _list(self, table: str, scanner: int, wanted: int) -> RawCells:
        """The next rows of a scanner, `wanted` of them where there are so many."""
        return self._rows("scannerGetList", table, id=scanner, nbRows=wanted)

    def _rows(self, call: str, table: str, **arguments: object) -> RawCells:
        """What a gateway answers to a call for rows."""
        with self._naming(call, table):
            client = self._happybase.client
            client._send(call, **arguments)
            if self._answers is None:
                return flat(client._recv(call))
            name, number = self._coded.sent
            try:
                return self._answers.read(name.encode(), number)
            except EOFError as exc:
                raise TTransportException(TTransportException.END_OF_FILE, str(exc)) from exc
            except OtherAnswer as other:
                self._socket.given_back = other.received
                return flat(client._recv(call))

    def _ask(self, call: str, table: str, *arguments: object) -> Any:
        """What a gateway answers. `table` is for the message where it says no."""
        with self._naming(call, table):
            return getattr(self._happybase.client, call)(*arguments)

    @contextmanager
    def _naming(self, call: str, table: str) -> Iterator[None]:
        """Around a call: what goes wrong, named by who must act."""
        try:
            yield
        except api.AlreadyExists as exc:
            raise _Exists(f"table {table} is there already") from bare(exc)
        except api.IOError as exc:
            raise refusal(table, _text(exc.message)) from bare(exc)
        except api.IllegalArgument as exc:
            raise StoreError(f"HBase's gateway does not take this: {_text(exc.message)}") from bare(exc)
        except TApplicationException as exc:  # something in the gateway broke on what we sent
            raise StoreError(f"{self._address} cannot answer {call}: {_text(exc.message)}") from bare(exc)
        except TimeoutError as exc:
            raise NoAnswer(f"{self._address} did not answer {call} in time", timed_out=True) from bare(exc)
        except (OSError, TTransportException) as exc:
            raise NoAnswer(f"{self._address} gave no answer to {call}: {_reason(exc)}") from bare(exc)


class _Exists(StoreError):
    """The table is there already."""


def refusal(table: str, text: str) -> StoreError:
    """What an IOError means, which has no code but Java's text. Where a put finds no table, the text has just its name.

    >>> refusal("tsdb", "org.apache.hadoop.hbase.NotServingRegionException: tsdb,,1795 is not online")
    StoreBusy('HBase asks to wait: org.apache.hadoop.hbase.NotServingRegionException: tsdb,,1795 is not online')
    >>> refusal("tsdb", "RetriesExhaustedWithDetailsException: Failed 3 actions: tsdb: 3 times, servers with…")
    NoTable('there is no table tsdb in HBase: `tsd create-tables` makes it')
    """
    if "TableNotFoundException" in text or re.search(rf"actions?: {re.escape(table)}: \d+ time", text):
        return NoTable(f"there is no table {table} in HBase: `tsd create-tables` makes it")
    if "TableExistsException" in text:
        return _Exists(f"table {table} is there already")
    if LASTING.search(text):
        return StoreError(f"HBase refuses: {text}")
    return StoreBusy(f"HBase asks to wait: {text}")


def _text(message: bytes | str | None) -> str:
    """The first line of a message, which is bytes where thriftpy2 decodes nothing."""
    shown = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    return (shown.splitlines() or [""])[0][:TEXT_CHARS]


def _reason(exc: Exception) -> str:
    return _text(exc.message) if isinstance(exc, TTransportException) else str(exc)
