"""The HBase engine. `tsd.store.hbase.calls` makes its calls, and retries all but check_and_put, create and increment.

The region server's clock sets the timestamps.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import MappingProxyType

import trio

from tsd.errors import StoreDown, StoreError
from tsd.store import (
    Capabilities,
    Cell,
    CellPage,
    Cursor,
    OptionalParts,
    Page,
    Put,
    Table,
)
from tsd.store.cells import HAS_CELL_LOOP, joined_pages
from tsd.store.hbase.calls import GatewayCalls
from tsd.store.hbase.connection import Connection, disabled
from tsd.store.hbase.pool import Address
from tsd.store.hbase.stamped import HBaseStamped
from tsd.store.hbase.thrift2 import VersionsConnection
from tsd.store.hbase.versions import HBaseVersions
from tsd.store.retry import backoff
from tsd.store.rules import whole_rows
from tsd.store.timing import new_latencies, timed, timed_as

BATCH_CELLS = 1000  # per mutateRows: 140,000 cells/s, larger batches are not faster
BATCH_BYTES = 1 << 20  # of values: a gateway with a framed transport accepts 2 MiB at once
GET_ROWS = 100  # per call, with all their columns, about: a call for few more costs half a millisecond
GET_PARTS = 10  # parts of rows in turn, before another call has the connection
GET_CELLS = 1000  # per call, if columns are named
CREATE_CELLS = 50  # per lease of a connection
CONCURRENT_CREATES = 8  # each waits for a sync of HBase's log, and concurrent ones share a sync
NOT_IDEMPOTENT: frozenset[Callable[..., object]] = frozenset(
    {Connection.check_and_put, Connection.create, Connection.increment}
)
UNUSED_ROW = b"\0"  # of no data; in the UID table it has no column without a qualifier
NEXT_MS_S = 0.002  # wait until the region server's clock shows a later millisecond


class HBaseStore(OptionalParts):
    """Store on HBase. HBase need not be up yet: calls open connections as they need them.

    A delete in HBase leaves a marker, which hides later puts with timestamps up to its own until a major compaction
    removes both.
    """

    def __init__(
        self,
        gateways: Sequence[Address],
        *,
        versions_gateways: Sequence[Address] = (),
        connections: int = 8,
        timeout_s: float = 15.0,
        transport: str = "buffered",
        protocol: str = "binary",
        expected: Sequence[Table] = (),
    ) -> None:
        """`gateways` are (host, port); `connections` is the limit for all of them together. A call fails if its gateway
        sends nothing for `timeout_s`. `transport` ("buffered", "framed") and `protocol` ("binary", "compact") must be
        those of the gateways. `versions_gateways` speak Thrift 2, and read and write cells of several versions; without
        any there are none. `tables` checks the families of `expected` tables, and whether they are enabled."""
        self._count: Counter[str] = Counter()
        open_connection = partial(Connection, timeout_s=timeout_s, transport=transport, protocol=protocol)
        self._calls = GatewayCalls(open_connection, gateways, connections, self._count, once=NOT_IDEMPOTENT)
        self._stamped = HBaseStamped(self, self._calls)
        self._versions: HBaseVersions | None = None
        self._version_calls: GatewayCalls[VersionsConnection] | None = None
        if versions_gateways:
            open_second = partial(VersionsConnection, timeout_s=timeout_s, transport=transport, protocol=protocol)
            self._version_calls = GatewayCalls(open_second, versions_gateways, connections, self._count)
            self._versions = HBaseVersions(self._version_calls, self.create_tables)
        self.capabilities = Capabilities(
            ascending_timestamps=False,
            shared=True,
            filters_rows=True,
            parallel_scans=connections,
            call_timeout_s=timeout_s,
            endpoints=tuple("{}:{}".format(*address) for address in gateways),
        )
        self.latencies = new_latencies()
        self._expected = expected
        self._unanswered: set[str] = set()  # tables whose last put got no answer
        self._next_ms_at = 0.0  # a put from this time on gets later timestamps than all before

    @property
    def stamped_cells(self) -> HBaseStamped:
        """See Store."""
        return self._stamped

    @property
    def versioned_cells(self) -> HBaseVersions | None:
        """See Store."""
        return self._versions

    @property
    def cell_reader(self) -> "HBaseStore":
        """See Store."""
        return self

    @property
    def cell_signatures(self) -> "HBaseStore | None":
        """See Store."""
        return self if HAS_CELL_LOOP else None

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """See Store. Raise StoreError if a table exists but is disabled, or lacks a family."""
        existing = await self._calls.call(Connection.tables)
        absent = [table for table in tables if table.name not in existing]
        made = [table.name for table in absent if await self._calls.call(Connection.create_table, table, compression)]
        for table in tables:
            await self._wait_for(table.name)
            await self._check(table)
        return made

    async def _wait_for(self, table: str) -> None:
        """Wait until a table can be used. While another process creates it, it is visible before it is usable."""
        for wait_s in backoff(0.05, 1.0, 20):
            if await self._calls.call(Connection.is_enabled, table):
                return
            await trio.sleep(wait_s)
        raise disabled(table)

    async def _check(self, table: Table) -> None:
        """Raise WrongTable for a table that is disabled, or lacks a family: HBase refuses to read it."""
        await self.get(table.name, [UNUSED_ROW], columns=[family.name + b":" for family in table.families])

    async def drop_tables(self, tables: Iterable[str]) -> None:
        """Delete these tables and their contents. Not part of Store: for temporary tables of tests."""
        for table in tables:
            await self._calls.call(Connection.drop_table, table)

    async def tables(self) -> list[str]:
        """See Store. Raise WrongTable for an expected table that is disabled, or lacks a family."""
        found = await self._calls.call(Connection.tables)
        for table in self._expected:
            if table.name in found:
                await self._check(table)
        return found

    @timed
    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        if columns is not None and not columns:
            return {}
        keys = [row for row in dict.fromkeys(rows) if row]  # HBase refuses an empty row key
        size = _rows_of_get(len(keys)) if columns is None else max(GET_CELLS // len(columns), 1)
        parts = (keys[at : at + size] for at in range(0, len(keys), size))
        wanted = None if columns is None else frozenset(columns)
        found = await self._calls.spread_gets(Connection.get, ((table, part, wanted) for part in parts))
        return {row: cells for part in found for row, cells in part.items()}

    @property
    def cell_gets(self) -> "HBaseStore":
        """See Store."""
        return self

    @timed_as("get")
    async def get_cells(self, table: str, rows: Sequence[bytes]) -> CellPage:
        """See CellGets."""
        keys = list(dict.fromkeys(rows))
        size = _rows_of_get(len(keys))
        parts = [(table, keys[at : at + size]) for at in range(0, len(keys), size)]
        return joined_pages(await self._calls.spread_gets(Connection.get_cells, parts))

    @property
    def wide_rows(self) -> "HBaseStore":
        """See Store."""
        return self

    @timed
    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """See WideRows."""
        keys = [row for row in dict.fromkeys(rows) if row]
        parts = ((table, keys[at : at + GET_PARTS], first, last) for at in range(0, len(keys), GET_PARTS))
        found = await self._calls.spread(Connection.get_between, parts)
        return {row: cells for part in found for row, cells in part.items()}

    @timed
    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """See WideRows."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return []
        return await self._calls.call(Connection.row_keys, table, start, stop, limit)

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """See WideRows. HBase drops older versions itself."""
        await self.put(table, cells)

    @timed
    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store. Rows are written in parallel, in any order."""
        if time_ms is None:
            await trio.sleep_until(self._next_ms_at)
        # a gateway does not answer a put to a disabled table for minutes, but says at once that it is disabled
        if table in self._unanswered and not await self._calls.call(Connection.is_enabled, table):
            raise disabled(table)
        parts = whole_rows(cells, most_cells=BATCH_CELLS, most_bytes=BATCH_BYTES)
        try:
            await self._calls.spread(Connection.put, ((table, part, time_ms) for part in parts))
            self._unanswered.discard(table)
        except StoreDown:
            self._unanswered.add(table)
            raise
        finally:
            self._next_ms_at = trio.current_time() + NEXT_MS_S
        self._count["cells_put"] += len(cells)

    @timed
    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        rows = iter(columns.items())
        parts = iter(lambda: dict(islice(rows, GET_ROWS)), {})
        await self._calls.spread(Connection.delete, ((table, part, up_to_ms) for part in parts))
        if up_to_ms is None:  # HBase 2.6.1 hid 682 of 3,000 puts in the same millisecond as the delete before them
            await trio.sleep(NEXT_MS_S)

    @timed
    async def page(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        columns: Collection[bytes] | None = None,
    ) -> Page:
        """See Store. Each page opens, reads and closes a scanner."""
        if (stop is not None and start >= stop) or (columns is not None and not columns):
            await trio.lowlevel.checkpoint()
            return Page([], None)  # HBase takes an empty range (start = stop) for that single row
        wanted = None if columns is None else frozenset(columns)
        return await self._calls.call(Connection.page, table, start, stop, limit, wanted)

    @timed
    async def read_cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """See CellReader. One scanner reads all pages unless it fails."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return CellPage([], [], [], 0, [], None)
        return await self._calls.call_near(
            cursor.address, Connection.read_cells, table, start, stop, limit_bytes, cursor
        )

    async def signatures(
        self, table: str, start: bytes, stop: bytes | None, *, width: int, rows: int
    ) -> dict[bytes, bytes]:
        """See CellSignatures. The range is read in one call: the caller keeps it small."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return {}
        return await self._calls.call(Connection.signatures, table, start, stop, width, rows)

    async def close_cursor(self, table: str, cursor: Cursor) -> None:
        """See CellReader. Otherwise the region server keeps the scanner for a minute."""
        if cursor.scanner is not None:
            with suppress(StoreError):
                await self._calls.call_near(cursor.address, Connection.close_scanner, table, cursor)

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store. The result may be False although the cell was written: HBase's client in the gateway may send the
        request twice, and the second one fails."""
        return await self._calls.call(Connection.check_and_put, table, Put(row, column, value), expected)

    @timed
    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        parts = (cells[at : at + CREATE_CELLS] for at in range(0, len(cells), CREATE_CELLS))
        done = await self._calls.spread(Connection.create, ((table, part) for part in parts), limit=CONCURRENT_CREATES)
        return [new for part in done for new in part]

    @timed
    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        return await self._calls.call(Connection.increment, table, row, column, by)

    @timed
    async def sync(self) -> None:
        """See Store. This does nothing: HBase acknowledges a put after the region server has logged it."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See Store."""
        self._calls.close()
        if self._version_calls is not None:
            self._version_calls.close()
        await trio.lowlevel.checkpoint()

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        opened, down = self._calls.pool.opened, self._calls.pool.down
        if self._version_calls is not None:
            opened, down = opened + self._version_calls.pool.opened, down + self._version_calls.pool.down
        return MappingProxyType({**self._count, "connections_opened": opened, "gateways_down": down})


def _rows_of_get(count: int) -> int:
    """Return how many of `count` rows each call reads with all their columns: as many as the others, or one less."""
    return max(-(-count // max(round(count / GET_ROWS), 1)), 1)
