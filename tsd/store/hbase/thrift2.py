"""One connection to an HBase gateway of Thrift API version 2, which reads and writes versions of cells.

Thrift 1 has neither a time range nor versions in a get of a row. As in `connection`, all calls block, and after any
exception the caller closes the connection.
"""

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport, TTransportException

from tsd.errors import StoreError, bare
from tsd.store.hbase.connection import (
    BUFFER_BYTES,
    FAST,
    FRAMED,
    PROBE_S,
    TRANSPORTS,
    first_line,
    reason,
    refusal,
    translated,
)
from tsd.store.hbase.gateway import GatewayConnection
from tsd.store.hbase.pool import Address, NoAnswer
from tsd.store.hbase.results import HAS_RESULT_LOOP, ResultReader, Results, read_by_thriftpy
from tsd.store.hbase.thrift_codec import PROTOCOLS, CheckedProtocol, OtherAnswer, Socket
from tsd.store.versions import VersionColumns, VersionPage, VersionPut, concatenate

FIRST_ROWS = 32  # first request of a scan, to measure the size of its rows
PAGE_BYTES = 4 << 20  # of values: approximate size of a page
CACHED_ROWS = 500  # per request of the gateway to the region server
LATEST = 2**63 - 1  # HBase's end of a range without one
ALL_VERSIONS = 2**31 - 1

# The parts of HBase's Thrift 2 interface that are used here.
INTERFACE = """
struct TTimeRange { 1: required i64 minStamp, 2: required i64 maxStamp }
struct TColumn { 1: required binary family, 2: optional binary qualifier, 3: optional i64 timestamp }
struct TColumnValue {
  1: required binary family, 2: required binary qualifier, 3: required binary value, 4: optional i64 timestamp
}
struct TResult { 1: optional binary row, 2: required list<TColumnValue> columnValues }
struct TGet {
  1: required binary row, 2: optional list<TColumn> columns, 4: optional TTimeRange timeRange,
  5: optional i32 maxVersions
}
struct TPut { 1: required binary row, 2: required list<TColumnValue> columnValues }
struct TDelete { 1: required binary row, 2: optional list<TColumn> columns, 4: optional i32 deleteType }
struct TScan {
  1: optional binary startRow, 2: optional binary stopRow, 3: optional list<TColumn> columns,
  4: optional i32 caching, 5: optional i32 maxVersions, 6: optional TTimeRange timeRange,
  13: optional map<binary, TTimeRange> colFamTimeRangeMap
}
struct TTableName { 1: optional binary ns, 2: required binary qualifier }
struct TColumnFamilyDescriptor { 1: required binary name, 10: optional i32 maxVersions }
struct TTableDescriptor { 1: required TTableName tableName, 2: optional list<TColumnFamilyDescriptor> columns }
exception TIOError { 1: optional string message }
exception TIllegalArgument { 1: optional string message }
service THBaseService {
  list<TResult> getMultiple(1: binary table, 2: list<TGet> tgets) throws (1: TIOError io)
  void putMultiple(1: binary table, 2: list<TPut> tputs) throws (1: TIOError io)
  void deleteSingle(1: binary table, 2: TDelete tdelete) throws (1: TIOError io)
  i32 openScanner(1: binary table, 2: TScan tscan) throws (1: TIOError io)
  list<TResult> getScannerRows(1: i32 scannerId, 2: i32 numRows) throws (1: TIOError io, 2: TIllegalArgument ia)
  void closeScanner(1: i32 scannerId) throws (1: TIOError io, 2: TIllegalArgument ia)
  TTableDescriptor getTableDescriptor(1: TTableName table) throws (1: TIOError io)
}
"""
api: Any = thriftpy2.load_fp(io.StringIO(INTERFACE), "tsd_hbase_thrift2_thrift")
DELETE_COLUMN = 0  # deletes one version
DELETE_COLUMNS = 1  # deletes also all older versions


class _FastBinary(CheckedProtocol, TCyBinaryProtocol):
    pass


FAST_TRANSPORTS = {"buffered": TCyBufferedTransport, FRAMED: TCyFramedTransport}


class Selection(NamedTuple):
    """Versions that HBase selects: columns of some families (None: of all) within a range of times."""

    columns: Sequence[bytes] | None  # a family: all of its columns
    since_ms: int
    until_ms: int
    versions: int
    family_since: Mapping[bytes, int] = {}  # families without an end, in scans


class VersionsConnection(GatewayConnection):
    """A connection to one gateway of Thrift 2."""

    CLOSE_SCANNER = "closeScanner"

    def __init__(
        self, address: Address, *, timeout_s: float, transport: str, protocol: str, probe: bool = False
    ) -> None:
        """Connect, as `connection.Connection` does."""
        first_ms, timeout_ms = (max(round(wait_s * 1000), 1) for wait_s in (min(PROBE_S, timeout_s), timeout_s))
        self._endpoint = "{}:{}".format(*address)
        self._socket = Socket(*address, socket_timeout=first_ms if probe else timeout_ms)  # type: ignore[no-untyped-call]
        if protocol == "binary":
            self._transport: Any = FAST_TRANSPORTS[transport](self._socket)
            self._coded: Any = _FastBinary(self._transport, decode_response=False)  # type: ignore[no-untyped-call]
        else:
            self._transport = TRANSPORTS[transport](self._socket, BUFFER_BYTES)
            self._coded = PROTOCOLS[protocol](self._transport, decode_response=False)
        self._client = TClient(api.THBaseService, self._coded)
        is_fast, framed = protocol == FAST and HAS_RESULT_LOOP, transport == FRAMED
        self._reader = ResultReader(self._socket.receive_into, framed=framed) if is_fast else None
        try:
            self._transport.open()
        except (OSError, TTransportException, UnicodeError) as exc:  # UnicodeError: an invalid host name
            raise NoAnswer(f"cannot connect: {reason(exc)}", sent=False) from bare(exc)
        if probe:
            self._probe()
            self._socket.set_timeout(timeout_ms)  # type: ignore[no-untyped-call]

    def family_versions(self, table: str) -> dict[bytes, int]:
        """Return how many versions each family of a table keeps."""
        descriptor = self._call("getTableDescriptor", table, api.TTableName(qualifier=table.encode()))
        return {family.name: family.maxVersions for family in descriptor.columns}

    def get_versions(self, table: str, rows: Sequence[bytes], selections: Sequence[Selection]) -> VersionColumns:
        """Return the versions of each row that any of the selections finds: row after row, and selection after
        selection."""
        gets = [
            api.TGet(row=row, columns=_columns(chosen.columns), timeRange=_range(chosen), maxVersions=chosen.versions)
            for row in rows
            for chosen in selections
        ]
        answer = self._results("getMultiple", table, table=table.encode(), tgets=gets)
        if len(answer.rows) != len(gets):
            raise NoAnswer(f"requested {len(gets)} rows, got {len(answer.rows)}")
        for get, row in zip(gets, answer.rows, strict=True):
            if row is not None and row != get.row:
                raise NoAnswer(f"requested row {get.row.hex()}, got {row.hex()}")
        return answer.columns

    def put_versions(self, table: str, cells: Sequence[VersionPut]) -> None:
        """Write versions."""
        puts = [
            api.TPut(row=row, columnValues=[_column_value(cell) for cell in of_row])
            for row, of_row in groupby(cells, attrgetter("row"))
        ]
        self._call("putMultiple", table, table.encode(), puts)

    def delete_versions(self, table: str, row: bytes, times: Mapping[bytes, int]) -> None:
        """Delete the version of each column with a time, and all older ones."""
        columns = [api.TColumn(*column.split(b":", 1), time_ms) for column, time_ms in times.items()]
        self._call("deleteSingle", table, table.encode(), api.TDelete(row, columns, DELETE_COLUMNS))

    def delete_exact(self, table: str, row: bytes, places: Sequence[tuple[bytes, int]]) -> None:
        """Delete versions of columns, each with its time."""
        columns = [api.TColumn(*column.split(b":", 1), time_ms) for column, time_ms in places]
        self._call("deleteSingle", table, table.encode(), api.TDelete(row, columns, DELETE_COLUMN))

    def page_versions(self, table: str, start: bytes, stop: bytes | None, limit: int, chosen: Selection) -> VersionPage:
        """Return up to `limit` rows from `start` to before `stop`."""
        ranges = {family: api.TTimeRange(since, LATEST) for family, since in chosen.family_since.items()}
        scan = api.TScan(
            startRow=start,
            stopRow=stop,
            columns=_columns(chosen.columns),
            caching=min(limit, CACHED_ROWS),
            maxVersions=chosen.versions,
            timeRange=_range(chosen),
            colFamTimeRangeMap=ranges or None,
        )
        scanner = self._call("openScanner", table, table.encode(), scan)
        try:
            return self._read_rows(table, scanner, limit)
        finally:
            with suppress(StoreError):
                self._call("closeScanner", table, scanner)

    def _read_rows(self, table: str, scanner: int, limit: int) -> VersionPage:
        parts: list[VersionColumns] = []
        rows = size = 0
        wanted = min(limit, FIRST_ROWS)
        while True:
            answer = self._results("getScannerRows", table, scannerId=scanner, numRows=wanted)
            parts.append(answer.columns)
            rows += len(answer.rows)
            size += len(answer.columns.values)
            if len(answer.rows) < wanted:
                return VersionPage(concatenate(parts), None)
            if rows >= limit or size >= PAGE_BYTES:
                last = answer.rows[-1]
                if last is None:
                    raise NoAnswer("got a row of a scan without a key")
                return VersionPage(concatenate(parts), last + b"\0")
            wanted = min(limit - rows, max((PAGE_BYTES - size) * rows // (size + 1), 1))

    def _results(self, call: str, table: str, /, **arguments: object) -> Results:
        """Return the answer to a call for rows. `table` is for error messages."""
        with self._errors(table), translated(self._endpoint, call):
            self._client._send(call, **arguments)
            if self._reader is None:
                return read_by_thriftpy(self._client._recv(call))
            name, number = self._coded.sent
            try:
                return self._reader.read_results(name.encode(), number)
            except EOFError as exc:
                raise TTransportException(TTransportException.END_OF_FILE, str(exc)) from exc
            except OtherAnswer as other:
                self._socket.returned = other.received
                return read_by_thriftpy(self._client._recv(call))

    def _call(self, call: str, table: str, *arguments: object) -> Any:
        """Return the answer to a call. `table` is for error messages."""
        with self._errors(table), translated(self._endpoint, call):
            return getattr(self._client, call)(*arguments)

    @contextmanager
    def _errors(self, table: str) -> Iterator[None]:
        """Raise StoreErrors for HBase's exceptions."""
        try:
            yield
        except api.TIOError as exc:
            raise refusal(table, first_line(exc.message)) from bare(exc)
        except api.TIllegalArgument as exc:
            raise StoreError(f"HBase's gateway refused the arguments: {first_line(exc.message)}") from bare(exc)


def _range(chosen: Selection) -> Any:
    return api.TTimeRange(chosen.since_ms, chosen.until_ms)


def _columns(columns: Collection[bytes] | None) -> list[Any] | None:
    """Return columns and whole families as Thrift has them."""
    if columns is None:
        return None
    return [api.TColumn(*column.split(b":", 1)) for column in columns]


def _column_value(cell: VersionPut) -> Any:
    family, _, qualifier = cell.column.partition(b":")
    return api.TColumnValue(family, qualifier, cell.value, cell.time_ms)
