"""One connection to an HBase Thrift gateway (Thrift API version 1), through happybase.

All calls block; they run in worker threads. An error from HBase raises StoreError, or StoreBusy if a retry may succeed.
Without a usable answer a call raises NoAnswer. After any exception the caller closes the connection, which may have
unread bytes of an answer.

Calls use happybase's Thrift client directly: happybase's Batch takes twice the time per cell.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import happybase
import Hbase_thrift as api  # type: ignore[import-not-found] # happybase creates this module when it is imported
import numpy as np
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TBufferedTransport, TFramedTransport, TTransportException

from tsd.errors import NoTable, StoreBusy, StoreError, WrongTable, bare
from tsd.store import Cell, CellPage, Cursor, Page, Put, Row, Table
from tsd.store.cells import HAS_CELL_LOOP, CellSigner
from tsd.store.hbase.gateway import GatewayConnection
from tsd.store.hbase.pool import Address, NoAnswer
from tsd.store.hbase.thrift_codec import (
    CREATE,
    HAS_ENCODE_LOOP,
    PROTOCOLS,
    OtherAnswer,
    RawCells,
    RowReader,
    Socket,
    Steps,
    all_steps,
    create_requests,
    flat,
    get_call,
    get_request,
    in_order,
    put_call,
    put_request,
    rows_of,
)
from tsd.store.rules import check_column, check_row

BUFFER_BYTES = 64 << 10  # happybase's 4 KiB cost a fifth of the time of a put
CACHED_ROWS = 500  # per request of the gateway to the region server
MAX_ROWS = 2000  # in a page of cells
MAX_KEYS = 8000  # rows in an answer with lengths instead of values
CACHED_KEYS = 2000  # CACHED_ROWS for such answers
LENGTHS_ONLY = b"KeyOnlyFilter(true)"  # replaces each value by its length
LENGTH_BYTES = 4
KEYS_ONLY = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"  # leaves one cell of a row, without its value
FEW_CELLS = 1000  # that are checked and sorted in a short step
FEW_SENT_BYTES = 8 << 10  # of a request that any socket takes at once
PIECE_CELLS, PIECES = 10_000, 4  # of a row in a result, and results in an answer
PROBE_S = 2.0  # wait for a gateway that has failed before; a call waits no longer after the gateway's return
FIRST_ROWS = 32  # first request of a scan, to measure the size of its rows
PAGE_BYTES = 4 << 20  # of values: approximate size of a page
TEXT_CHARS = 300  # of an error message; Java's stack trace follows

# First lines of IOErrors that are permanent. All others mean that HBase is busy, or that a region moves.
PERMANENT = re.compile(
    r"DoNotRetryIOException|NoSuchColumnFamilyException|AccessDeniedException"
    r"|NamespaceNotFoundException|FailedSanityCheckException|InvalidTableNameException"
)
NO_FAMILY = re.compile(r"NoSuchColumnFamilyException: Column family (\S+) does not exist")
FAST = "binary"  # protocol of the compiled loops
FRAMED = "framed"
TRANSPORTS = {"buffered": TBufferedTransport, FRAMED: TFramedTransport}


class Connection(GatewayConnection):
    """A connection to one gateway."""

    CLOSE_SCANNER = "scannerClose"

    def __init__(
        self, address: Address, *, timeout_s: float, transport: str, protocol: str, probe: bool = False
    ) -> None:
        """Connect. Raise NoAnswer (not sent) if that fails or takes longer than `timeout_s`. Later, this is the longest
        wait for each part of an answer.

        With `probe`, also ask the gateway for any answer, and wait for it no longer than PROBE_S. A call to a gateway
        that is still away would otherwise wait for `timeout_s`, even if the gateway returns meanwhile."""
        first_ms, timeout_ms = (max(round(wait_s * 1000), 1) for wait_s in (min(PROBE_S, timeout_s), timeout_s))
        first_ms = first_ms if probe else timeout_ms
        self._address = address
        self._endpoint = "{}:{}".format(*address)
        self._happybase = happybase.Connection(*address, timeout=timeout_ms, autoconnect=False)
        self._socket = Socket(*address, socket_timeout=first_ms)  # type: ignore[no-untyped-call]
        self._transport = self._happybase.transport = TRANSPORTS[transport](self._socket, BUFFER_BYTES)
        coded = PROTOCOLS[protocol](self._happybase.transport, decode_response=False)  # strings stay bytes
        self._happybase.client = TClient(api.Hbase, coded)
        self._coded = coded
        self._fast, self._framed = protocol == FAST, transport == FRAMED
        is_read = self._fast and HAS_CELL_LOOP
        self._reader = RowReader(self._socket.receive_into, framed=self._framed) if is_read else None
        try:
            self._happybase.open()
        except (OSError, TTransportException, UnicodeError) as exc:  # UnicodeError: an invalid host name
            raise NoAnswer(f"cannot connect: {reason(exc)}", sent=False) from bare(exc)
        if probe:
            self._probe()
            self._socket.set_timeout(timeout_ms)  # type: ignore[no-untyped-call]

    def tables(self) -> list[str]:
        """Return the names of all tables, in order."""
        return sorted(name.decode("utf-8", "replace") for name in self._call("getTableNames", ""))

    def create_table(self, table: Table, compression: str) -> bool:
        """Create a table and wait until it can be used; return False if it exists.

        DATA_BLOCK_ENCODING is NONE, because Thrift 1 has no field for it. OpenTSDB's script sets it to DIFF.
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
            self._call("createTable", table.name, table.name.encode(), families)
        except _Exists:
            return False
        return True

    def is_enabled(self, table: str) -> bool:
        """Return whether a table can be used."""
        return bool(self._call("isTableEnabled", table, table.encode()))

    def drop_table(self, table: str) -> None:
        """Delete a table and its contents."""
        if self.is_enabled(table):
            self._call("disableTable", table, table.encode())
        self._call("deleteTable", table, table.encode())

    def get(
        self, table: str, rows: Sequence[bytes], columns: Collection[bytes] | None
    ) -> Steps[dict[bytes, list[Cell]]]:
        """Return the cells of each of `rows` that exists, in steps. All `rows` are different."""
        answer = yield from self._getting(table, rows, columns)
        found = dict(rows_of(answer, columns))
        left = iter(rows)
        for key in found:
            if key not in left:  # `in` continues after the last match
                raise NoAnswer(f"got row {key.hex()}, which was not requested or is out of order")
        return found

    def get_cells(self, table: str, rows: Sequence[bytes]) -> Steps[CellPage]:
        """Return the cells of `rows`, whose keys ascend, in steps."""
        answer = yield from self._getting(table, rows, None)
        cells = in_order(answer, rows[0], None)
        if len(found := set(cells.keys)) != cells.rows or not found.issubset(rows):
            raise NoAnswer(f"requested {len(rows)} rows, got {cells.rows}, some others or without cells")
        return CellPage(*cells[:3], 0, cells.times_ms, None)

    def _getting(self, table: str, rows: Sequence[bytes], columns: Collection[bytes] | None) -> Steps[RawCells]:
        call = get_call(columns)
        with self._translated(call, table):
            if self._reader is None:
                yield True
                named = {} if columns is None else {"columns": list(columns)}
                self._happybase.client._send(call, tableName=table.encode(), rows=list(rows), attributes={}, **named)
            else:
                request = get_request(self._coded.number(call), table, rows, columns)
                if len(request) > FEW_SENT_BYTES:
                    yield True
                self._socket.send(request, framed=self._framed)
            answer = yield from self._receiving(call)
        if len(answer.keys) > FEW_CELLS:
            yield True
        return answer

    def put(self, table: str, cells: Sequence[Put], time_ms: int | None) -> None:
        """Write cells; those of one row follow each other."""
        if self._fast and HAS_ENCODE_LOOP:
            call = put_call(time_ms)
            with self._translated(call, table):
                request = put_request(self._coded.number(call), table, cells, time_ms)
                self._socket.send(request, framed=self._framed)
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
        """Delete columns of rows if their timestamps are at most `up_to_ms` (None: the server's clock)."""
        batches = []
        for row, names in columns.items():
            check_row(row)
            for name in names:
                check_column(name)
            batches.append(api.BatchMutation(row, [api.Mutation(True, name) for name in names]))
        self._mutate(table, batches, up_to_ms)

    def delete_families(self, table: str, rows: Sequence[bytes], families: Sequence[bytes], up_to_ms: int) -> None:
        """Delete all columns of families of rows if their timestamps are at most `up_to_ms`: a marker for each."""
        for row in rows:
            check_row(row)
        named = [api.Mutation(True, family) for family in families]  # a column without a colon is a family
        self._mutate(table, [api.BatchMutation(row, named) for row in rows], up_to_ms)

    def families(self, table: str) -> list[bytes]:
        """Return the families of a table."""
        found = self._call("getColumnDescriptors", table, table.encode())
        return sorted(name.rstrip(b":") for name in found)

    def _mutate(self, table: str, batches: list[Any], time_ms: int | None) -> None:
        if time_ms is None:
            self._call("mutateRows", table, table.encode(), batches, {})
        else:
            self._call("mutateRowsTs", table, table.encode(), batches, time_ms, {})

    def check_and_put(self, table: str, cell: Put, expected: bytes | None) -> bool:
        """Write a cell if its value is `expected`; return whether it was written. None and an empty value are equal."""
        check_row(cell.row)
        check_column(cell.column)
        mutation = api.Mutation(False, cell.column, cell.value)
        return bool(
            self._call("checkAndPut", table, table.encode(), cell.row, cell.column, expected or None, mutation, {})
        )

    def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """Write each cell if it is absent; return for each whether it was written. All requests are sent before the
        first answer is read."""
        if not self._fast:
            return [self.check_and_put(table, cell, None) for cell in cells]
        with self._translated(CREATE, table):
            numbers = [self._coded.number(CREATE) for _ in cells]
            self._socket.send(*create_requests(numbers, table, cells), framed=self._framed)
            return [self._created(number) for number in numbers]

    def _created(self, number: int) -> bool:
        """Read the answer to one create. Answers arrive in the order of the requests."""
        self._coded.sent = CREATE, number
        return bool(self._happybase.client._recv(CREATE))

    def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """Add to a counter and return the sum."""
        check_row(row)
        check_column(column)
        return int(self._call("atomicIncrement", table, table.encode(), row, column, by))

    def page(self, table: str, start: bytes, stop: bytes | None, limit: int, columns: Collection[bytes] | None) -> Page:
        """Return the first rows from `start` to before `stop`: up to `limit`, fewer if they are large."""
        named = None if columns is None else list(columns)
        scan = api.TScan(startRow=start, stopRow=stop, columns=named, caching=min(limit, 1000))
        scanner = self._call("scannerOpenWithScan", table, table.encode(), scan, {})
        try:
            page = self._read_page(table, scanner, limit, columns)
        except StoreError as exc:
            if not isinstance(exc, NoAnswer):
                with suppress(StoreError):
                    self._call("scannerClose", table, scanner)
            raise
        self._call("scannerClose", table, scanner)
        keys = [row.key for row in page.rows]
        if keys != sorted(set(keys)) or (keys and not (start <= keys[0] and (stop is None or keys[-1] < stop))):
            raise NoAnswer(f"requested rows from {start.hex()}, got {len(keys)} out of range or out of order")
        return page

    def read_cells(self, table: str, start: bytes, stop: bytes | None, limit_bytes: int, cursor: Cursor) -> CellPage:
        """Return the cells of the first rows from `start` to before `stop`, up to about `limit_bytes` of values."""
        scanner, cursor.scanner = cursor.scanner, None  # after an error the scanner must not be reused
        if scanner is not None and cursor.address == self._address:
            try:
                return self._read_scanner(table, scanner, start, stop, limit_bytes, cursor)
            except NoAnswer:
                raise
            except StoreError:  # the scanner expired or failed: open another at `start`
                pass
        key_filter = f"RowFilter(=, 'regexstring:{cursor.key_pattern}')".encode() if cursor.key_pattern else None
        scan = api.TScan(startRow=start, stopRow=stop, caching=CACHED_ROWS, filterString=key_filter)
        scanner = self._call("scannerOpenWithScan", table, table.encode(), scan, {})
        return self._read_scanner(table, scanner, start, stop, limit_bytes, cursor)

    def signatures(self, table: str, start: bytes, stop: bytes | None, width: int, rows: int) -> dict[bytes, bytes]:
        """Return the signatures of groups of rows, see `CellSignatures`."""
        scan = api.TScan(startRow=start, stopRow=stop, caching=CACHED_KEYS, filterString=LENGTHS_ONLY)
        scanner = self._call("scannerOpenWithScan", table, table.encode(), scan, {})
        signer = CellSigner(width)
        wanted, last = min(rows + 1, MAX_KEYS), b""
        while True:
            found, last = self._sign(table, scanner, wanted, signer, last)
            if found < wanted:
                self._call("scannerClose", table, scanner)
                break
        signatures = signer.finish()
        if any(not start[:width] <= prefix or (stop is not None and prefix >= stop) for prefix in signatures):
            raise NoAnswer(f"requested rows from {start.hex()}, got rows out of range")
        return signatures

    def _sign(self, table: str, scanner: int, wanted: int, signer: CellSigner, before: bytes) -> tuple[int, bytes]:
        """Add the next rows of a scanner to the signatures; all keys must be above `before`. Return the number of rows
        and the last key."""
        if self._reader is not None:
            with self._translated("scannerGetList", table):
                self._happybase.client._send("scannerGetList", id=scanner, nbRows=wanted)
                name, number = self._coded.sent
                try:
                    return self._reader.sign(name.encode(), number, signer, before)
                except EOFError as exc:
                    raise TTransportException(TTransportException.END_OF_FILE, str(exc)) from exc
                except OtherAnswer as other:
                    self._socket.returned = other.received
                    self._happybase.client._recv("scannerGetList")  # raises the gateway's exception, if it is one
                    raise NoAnswer(f"requested rows after {before.hex()}, got no list of rows") from other
        cells = in_order(self._list(table, scanner, wanted), before + b"\0" if before else b"", None)
        if any(len(value) != LENGTH_BYTES for value in cells.values):
            raise NoAnswer(f"requested {len(cells.values)} lengths of values, got other values")
        lengths = np.frombuffer(b"".join(cells.values), ">i4").astype(np.int64)
        signer.add(cells.keys, cells.columns, lengths, cells.times_ms)
        return cells.rows, cells.keys[-1] if cells.keys else before

    def get_between(self, table: str, rows: Sequence[bytes], first: bytes, last: bytes) -> dict[bytes, list[Cell]]:
        """Return the cells of rows between two columns of a family, both included. The region server selects them, and
        sends them in pieces: a row that is whole may need more memory than a gateway has."""
        family, _, low = first.partition(b":")
        wanted = b"ColumnRangeFilter(%b, true, %b, true)" % (_quoted(low), _quoted(last[len(family) + 1 :]))
        found: dict[bytes, list[Cell]] = {}
        for row in rows:
            scan = api.TScan(
                startRow=row, stopRow=row + b"\0", columns=[family], filterString=wanted, batchSize=PIECE_CELLS
            )
            scanner = self._call("scannerOpenWithScan", table, table.encode(), scan, {})
            cells: list[Cell] = []
            while True:
                answer = in_order(self._list(table, scanner, PIECES), row, row + b"\0")
                cells += map(Cell, answer.columns, answer.values, answer.times_ms)
                if answer.rows < PIECES:
                    break
            self._call("scannerClose", table, scanner)
            if any(not first <= cell.column <= last for cell in cells):
                raise NoAnswer(f"row {row.hex()}: requested columns from {first!r} to {last!r}, got others")
            if cells:
                found[row] = sorted(cells)
        return found

    def row_keys(self, table: str, start: bytes, stop: bytes | None, limit: int) -> list[bytes]:
        """Return the keys of the first rows from `start` to before `stop`, up to `limit`."""
        scan = api.TScan(startRow=start, stopRow=stop, caching=min(limit, CACHED_KEYS), filterString=KEYS_ONLY)
        scanner = self._call("scannerOpenWithScan", table, table.encode(), scan, {})
        keys: list[bytes] = []
        while len(keys) < limit:
            wanted = min(limit - len(keys), MAX_KEYS)
            answer = in_order(self._list(table, scanner, wanted), keys[-1] + b"\0" if keys else start, stop)
            keys += answer.keys
            if answer.rows < wanted:
                break
        self._call("scannerClose", table, scanner)
        return keys

    def close_scanner(self, table: str, cursor: Cursor) -> None:
        """Close the scanner of an unfinished scan if it belongs to this gateway."""
        scanner, cursor.scanner = cursor.scanner, None
        if scanner is not None and cursor.address == self._address:
            self._call("scannerClose", table, scanner)

    def _read_scanner(
        self, table: str, scanner: int, start: bytes, stop: bytes | None, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """Read the next page of a scanner. Close the scanner at the end of the range, otherwise keep it in `cursor`."""
        wanted = min(limit_bytes // cursor.row_bytes + 1, MAX_ROWS) if cursor.row_bytes else FIRST_ROWS
        cells = in_order(self._list(table, scanner, wanted), start, stop)
        if cells.rows and not cells.keys:
            raise NoAnswer(f"requested rows from {start.hex()}, got {cells.rows} without cells")
        if cells.rows < wanted:
            self._call("scannerClose", table, scanner)
            return CellPage(*cells[:3], 0, cells.times_ms, None)
        cursor.scanner, cursor.address = scanner, self._address
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
        """Return the next rows of a scanner, fewer than `wanted` only at its end."""
        return self._rows("scannerGetList", table, id=scanner, nbRows=wanted)

    def _rows(self, call: str, table: str, **arguments: object) -> RawCells:
        """Return the answer to a call for rows."""
        with self._translated(call, table):
            self._happybase.client._send(call, **arguments)
            return all_steps(self._receiving(call))

    def _receiving(self, call: str) -> Steps[RawCells]:
        """Return the answer to a call for rows, which has been sent, in steps."""
        if self._reader is not None:
            name, number = self._coded.sent
            try:
                return (yield from self._reader.reading(name.encode(), number))
            except EOFError as exc:
                raise TTransportException(TTransportException.END_OF_FILE, str(exc)) from exc
            except OtherAnswer as other:
                self._socket.returned = other.received
        yield True  # thriftpy2 waits for the rest
        return flat(self._happybase.client._recv(call))

    def _call(self, call: str, table: str, *arguments: object) -> Any:
        """Return the answer to a call. `table` is for error messages."""
        with self._translated(call, table):
            return getattr(self._happybase.client, call)(*arguments)

    @contextmanager
    def _translated(self, call: str, table: str) -> Iterator[None]:
        """Raise StoreErrors for the exceptions of a call."""
        try:
            with translated(self._endpoint, call):
                yield
        except api.AlreadyExists as exc:
            raise _Exists(f"table {table} already exists") from bare(exc)
        except api.IOError as exc:
            raise refusal(table, first_line(exc.message)) from bare(exc)
        except api.IllegalArgument as exc:
            raise StoreError(f"HBase's gateway refused the arguments: {first_line(exc.message)}") from bare(exc)


@contextmanager
def translated(endpoint: str, call: str) -> Iterator[None]:
    """Raise StoreErrors for the exceptions of a call that HBase did not make."""
    try:
        yield
    except TApplicationException as exc:  # an internal error of the gateway
        raise StoreError(f"{endpoint} failed to execute {call}: {first_line(exc.message)}") from bare(exc)
    except TimeoutError as exc:
        raise NoAnswer(f"{endpoint} did not answer {call} in time", timed_out=True) from bare(exc)
    except (OSError, TTransportException) as exc:
        raise NoAnswer(f"{endpoint} gave no answer to {call}: {reason(exc)}") from bare(exc)


class _Exists(StoreError):
    """The table already exists."""


def _quoted(value: bytes) -> bytes:
    """Return bytes as HBase's language of filters has them."""
    return b"'%b'" % value.replace(b"'", b"''")


def refusal(table: str, text: str) -> StoreError:
    """Return the error for a Thrift IOError, which has only a text from Java. After a put to a missing table the text
    names only the table, not the exception; Thrift 2's may be the table's name alone.

    >>> refusal("tsdb", "org.apache.hadoop.hbase.NotServingRegionException: tsdb,,1795 is not online")
    StoreBusy('HBase is busy: org.apache.hadoop.hbase.NotServingRegionException: tsdb,,1795 is not online')
    >>> refusal("tsdb", "RetriesExhaustedWithDetailsException: Failed 3 actions: tsdb: 3 times, servers with…")
    NoTable('there is no table tsdb in HBase: create it with `tsd create-tables`')
    """
    if text == table or "TableNotFoundException" in text or re.search(rf"actions?: {re.escape(table)}: \d+ time", text):
        return NoTable(f"there is no table {table} in HBase: create it with `tsd create-tables`")
    if "TableExistsException" in text:
        return _Exists(f"table {table} already exists")
    if "TableNotEnabledException" in text:
        return disabled(table)
    if family := NO_FAMILY.search(text):
        return WrongTable(f"table {table} in HBase has no family {family[1]}: add it in HBase's shell with `alter`")
    if PERMANENT.search(text):
        return StoreError(f"HBase refused the call: {text}")
    return StoreBusy(f"HBase is busy: {text}")


def disabled(table: str) -> WrongTable:
    """Return the error for a disabled table."""
    return WrongTable(f"table {table} in HBase is disabled: enable it in HBase's shell with `enable '{table}'`")


def first_line(message: bytes | str | None) -> str:
    """Return the first line of a message, which is bytes unless thriftpy2 decodes it."""
    shown = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    return (shown.splitlines() or [""])[0][:TEXT_CHARS]


def reason(exc: Exception) -> str:
    """Return the text of an exception, of a failed connect that of the system's error: thriftpy2 leaves it out."""
    if isinstance(exc, TTransportException) and isinstance(exc.__context__, OSError):
        exc = exc.__context__
    if isinstance(exc, TTransportException):
        return first_line(exc.message)
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
