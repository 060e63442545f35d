"""The Cassandra engine: cells in tables of its own, ordered by directories of partitions (see keys, directory).

Write timestamps are microseconds of this process's clock, and never decrease; those of conditional writes come from a
node's clock (see conditional).

Of two values with the same timestamp Cassandra keeps the larger one. A put with a timestamp of its caller therefore
reads the cells first. It takes one of the 1,000 microseconds of its millisecond that is later than theirs.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import TypeVar

import trio

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.errors import NoTable, StoreDown, StoreError
from tsd.store import (
    Capabilities,
    Cell,
    OptionalParts,
    Page,
    Put,
    Row,
    Table,
)
from tsd.store.cassandra import schema
from tsd.store.cassandra.cells import (
    BATCH_BYTES,
    BATCH_CELLS,
    LAST_US,
    LATEST_MS,
    MS,
    cells_in,
    cells_of,
    encode_places,
    encode_stamp,
    grouped,
    put_batches,
    rows_of,
    sliced,
)
from tsd.store.cassandra.clocks import ClockCheck
from tsd.store.cassandra.conditional import ConditionalWrites, WriteClock
from tsd.store.cassandra.directory import Directory
from tsd.store.cassandra.keys import Prefixes, Shape, bounds, cassandra_name, parse_comment
from tsd.store.cassandra.ranges import read_range, read_rows
from tsd.store.cassandra.scan import CassandraScans
from tsd.store.cassandra.session import Connector, Contact, Parameters, Rows, Session
from tsd.store.cassandra.stamped import CassandraStamped
from tsd.store.cassandra.wide import CassandraWideRows
from tsd.store.cassandra.wire import RawRows, encode_value
from tsd.store.retry import backoff, retried, run_bounded
from tsd.store.rules import check_column, check_row, whole_rows
from tsd.store.timing import new_latencies, timed

try:
    from tsd.store.cassandra import driver
except ImportError:  # installed without the extra `cassandra`
    HAS_DRIVER = False
else:
    HAS_DRIVER = True

T = TypeVar("T")

IN_FLIGHT = 64  # requests without an answer
CONCURRENT = 16  # requests of one call
GET_ROWS = 50  # per request
PAGE_CELLS = 4000  # per request: more would occupy the event loop too long
PAGE_LEAST_CELLS = 8  # per row of the wanted page, while the size of rows is not known
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it
MOST_AHEAD = 8  # partitions that a page reads at once
NEXT_MS_S = 0.0011  # until the clock shows a later millisecond
FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES = 0.1, 2.0, 5  # while Cassandra is overloaded: 3 to 5 s in all


class CassandraStore(OptionalParts):
    """Store on Cassandra. The cluster need not be up yet: the first call connects.

    A delete leaves a marker, which hides later puts with timestamps up to its own until Cassandra drops it.
    """

    def __init__(
        self,
        contact: Contact,
        keyspace: str,
        clock_ms: Callable[[], int],
        widths: Callable[[str], Prefixes],
        *,
        elapsed_ms: Callable[[], float],
        clock_limit_ms: int = 0,
        longest_put_s: float = 120.0,
    ) -> None:
        """`clock_ms` is the wall clock in Unix milliseconds, `elapsed_ms` a monotonic one, `clock_limit_ms` the largest
        difference of the first one from the nodes' (see ClockCheck). A put that took longer than `longest_put_s` is an
        error. `widths` has the prefix lengths of a table by its name; it is asked when a table is created."""
        self.capabilities = Capabilities(
            ascending_timestamps=False,
            shared=True,
            filters_rows=False,
            parallel_scans=4,
            call_timeout_s=contact.timeout_s,
            endpoints=contact.endpoints,
            splits_scans=True,
            deletes_exact_spans=True,
            hides_for_days=True,
        )
        self.latencies = new_latencies()
        self._keyspace = keyspace
        self._connector = Connector(lambda: connect(contact), in_flight=IN_FLIGHT)
        self._directory = Directory(keyspace, self._connector)
        self._clock = WriteClock(clock_ms)
        self._elapsed_ms = elapsed_ms
        self._longest_put_s = longest_put_s
        self._next_ms_at = 0.0  # a put from this time on gets a later millisecond than all that have ended
        self._clock_check = ClockCheck(clock_limit_ms, clock_ms, elapsed_ms, lambda: self._connector.times(elapsed_ms))
        self._widths = widths
        self._shapes: dict[str, Shape] = {}
        self._cql: dict[str, schema.Statements] = {}
        self._row_cells: dict[str, int] = {}  # cells of a row in the last page of a table
        self._count: Counter[str] = Counter()
        self._conditional = ConditionalWrites(self._connector, self._ask, self._clock, self._count)
        self._stamped = CassandraStamped(
            self._checked_statements, self._clock_check.checked_ms, self._directory, self._ask_raw, self._batch
        )
        self._scans = CassandraScans(self._checked_statements, self._directory, self._ask_raw, self.latencies)
        self._wide_rows = CassandraWideRows(
            self._checked_statements, self._directory, self._ask_raw, self.put, self.latencies
        )

    @property
    def cql(self) -> Connector:
        """See Store."""
        return self._connector

    @property
    def stamped_cells(self) -> CassandraStamped:
        """See Store."""
        return self._stamped

    @property
    def cell_reader(self) -> CassandraScans:
        """See Store."""
        return self._scans

    @property
    def wide_rows(self) -> CassandraWideRows:
        """See Store."""
        return self._wide_rows

    # ---- Tables

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """See Store. Creates the keyspace, too, if it is missing."""
        if not await self._connector.command(schema.KEYSPACES, (self._keyspace,)):
            local = await self._connector.command(schema.VERSION)
            nodes = [str(row[-1]) for row in [*local, *await self._connector.command(schema.PEERS)]]
            await self._connector.command(schema.create_keyspace(self._keyspace, nodes))
        [(version, _)] = await self._connector.command(schema.VERSION)
        existing = await self._read_shapes()
        await self._connector.command(schema.create_directory(self._keyspace))
        made = []
        for name, families in tables:
            if name not in existing:
                await self._check_name(name)
                shape = Shape(name, tuple(family.name for family in families), self._widths(name))
                await self._connector.command(
                    schema.create_table(self._keyspace, shape, compression.upper(), str(version))
                )
                made.append(name)
        return made

    async def drop_tables(self, tables: Iterable[str]) -> None:
        """Delete these tables and their contents. Not part of Store: for temporary tables of tests."""
        for table in tables:
            await self._connector.command(f'DROP TABLE "{self._keyspace}"."{cassandra_name(table)}"')
            self._shapes.pop(table, None)

    async def tables(self) -> list[str]:
        """See Store. Raise NoTable if the keyspace is missing."""
        if not await self._connector.command(schema.KEYSPACES, (self._keyspace,)):
            raise NoTable(f"there is no keyspace {self._keyspace}: `tsd create-tables` creates it")
        return sorted(await self._read_shapes())

    async def _read_shapes(self) -> dict[str, Shape]:
        """Return all tables of the keyspace that belong to a store."""
        rows = await self._connector.command(schema.LIST_TABLES, (self._keyspace,))
        shapes = [shape for _, text in rows if (shape := parse_comment(str(text or ""))) is not None]
        return {shape.name: shape for shape in shapes}

    async def _check_name(self, name: str) -> None:
        """Raise StoreError if a table that is not this one has its name in Cassandra."""
        rows = await self._connector.command(schema.LIST_TABLES, (self._keyspace,))
        for own, text in rows:
            if own == cassandra_name(name):
                what = f"it belongs to table {shape.name}" if (shape := parse_comment(str(text))) else "it is not tsd's"
                raise StoreError(f"table {own} of keyspace {self._keyspace} is taken: {what}. Choose another name")

    async def _shape(self, table: str) -> Shape:
        """Return the shape of a table. Raise NoTable, or StoreError for a table of another shape."""
        if table not in self._shapes:
            shape = (await self._read_shapes()).get(table)
            if shape is None:
                await self.tables()  # names a missing keyspace
                await self._check_name(table)
                raise NoTable(f"there is no table {table} in keyspace {self._keyspace}")
            rows = await self._connector.command(schema.LIST_COLUMNS, (self._keyspace, cassandra_name(table)))
            columns = {str(name): str(kind) for name, kind, _ in rows}
            if columns != schema.COLUMNS or any(kind != "blob" for _, _, kind in rows):
                raise StoreError(
                    f"table {cassandra_name(table)} of keyspace {self._keyspace} has other columns than tsd's: "
                    f"got {', '.join(sorted(columns))}, wanted {', '.join(sorted(schema.COLUMNS))}, all of type blob"
                )
            self._shapes[table] = shape
            self._cql[table] = schema.statements(self._keyspace, table)
        return self._shapes[table]

    async def _checked(self, table: str, cells: Iterable[tuple[bytes, bytes]]) -> Shape:
        """Return the shape of a table. Raise StoreError for (row, column) that it cannot hold."""
        shape = await self._shape(table)
        for row, column in cells:
            check_row(row)
            check_column(column)
            if column.partition(b":")[0] not in shape.families:
                raise StoreError(f"table {table} has no family for column {column!r}")
        return shape

    async def _checked_statements(
        self, table: str, cells: Iterable[tuple[bytes, bytes]] = ()
    ) -> tuple[Shape, schema.Statements]:
        return await self._checked(table, cells), self._cql[table]

    # ---- Reading

    @timed
    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        shape = await self._shape(table)
        cql = self._cql[table]
        wanted = None if columns is None else sorted(set(columns))
        if wanted is not None and not wanted:
            return {}
        legal = [row for row in dict.fromkeys(rows) if 0 < len(row) <= LONGEST_HBASE_KEY]
        groups = grouped((shape.partition(row), row) for row in legal)
        found: dict[bytes, list[Cell]] = {}

        async def read(part: tuple[bytes, list[bytes]]) -> None:
            partition, keys = part
            rests = [key[len(partition) :] for key in keys]
            if wanted is None:
                answer = await read_rows(self._ask_raw, cql.rows, partition, rests)
            else:
                answer = await read_rows(self._ask_raw, cql.columns, partition, rests, wanted)
            found.update((row.key, row.cells) for row in rows_of(partition, answer))

        await run_bounded(sliced(groups, GET_ROWS), read, limit=CONCURRENT)
        return found

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
        """See Store."""
        shape = await self._shape(table)
        if (stop is not None and start >= stop) or (columns is not None and not columns):
            return Page([], None)
        found = PageRows(limit, None if columns is None else frozenset(columns))
        waiting: list[bytes] = []
        ahead = 1
        async with aclosing(self._directory.partitions(shape, start, stop)) as partitions:
            async for partition in partitions:
                if found.is_full:
                    return Page(found.rows, partition)
                waiting.append(partition)
                if len(waiting) >= ahead:
                    next_start = await self._take(table, waiting, start, stop, found)
                    if next_start is not None:
                        return Page(found.rows, next_start)
                    waiting = []
                    ahead = min(2 * ahead, MOST_AHEAD)
        return Page(found.rows, await self._take(table, waiting, start, stop, found))

    async def _take(
        self, table: str, partitions: Sequence[bytes], start: bytes, stop: bytes | None, found: "PageRows"
    ) -> bytes | None:
        """Read partitions and add their rows to a page. Return the first row key that does not fit, None if all do."""
        # one more cell tells that the last row is whole
        cells = min(PAGE_CELLS, self._row_cells.get(table, PAGE_LEAST_CELLS) * found.limit + 1)
        answers: dict[bytes, tuple[list[Row], bytes | None]] = {}

        async def read(partition: bytes) -> None:
            answers[partition] = await self._read_part(table, partition, bounds(partition, start, stop), cells)

        await run_bounded(partitions, read, limit=MOST_AHEAD)
        for partition in partitions:
            rows, next_start = answers[partition]
            for row in rows:
                if found.is_full:
                    return row.key
                found.add(row)
            if next_start is not None:
                return next_start
        return None

    async def _read_part(
        self, table: str, partition: bytes, part: tuple[bytes, bytes | None], cells: int
    ) -> tuple[list[Row], bytes | None]:
        """Return the rows of the first `cells` cells of a part of a partition, all whole, and the next row key."""
        cql = self._cql[table]
        answer = await read_range(self._ask_raw, cql, partition, part, cells)
        rows = rows_of(partition, answer)
        if rows:
            self._row_cells[table] = -(-answer.rows // len(rows))
        if answer.rows < cells:
            return rows, None
        last = rows.pop()  # may have more cells
        if rows:
            return rows, last.key
        rows = rows_of(partition, await self._ask_raw(cql.rows, (partition, [last.key[len(partition) :]])))
        return rows, last.key + b"\0"

    # ---- Writing

    @timed
    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store. Partitions are written in parallel, in any order.

        Readers compare milliseconds, so what is put after another put has ended gets a later one.
        """
        if time_ms is not None:
            await self._clock_check.checked_ms()
            await self._put(table, cells, time_ms * MS, time_ms)
            return
        await trio.sleep_until(self._next_ms_at)
        now_ms = await self._clock_check.checked_ms()
        stamp, begun_s, begun_ms = self._clock.next(now_ms), trio.current_time(), self._elapsed_ms()
        try:
            await self._put(table, cells, stamp, None)
        finally:
            self._clock.end(stamp)
            self._next_ms_at = max(self._next_ms_at, begun_s + NEXT_MS_S)
        self._check_age(begun_ms)

    async def _put(self, table: str, cells: Sequence[Put], stamp: int, time_ms: int | None) -> None:
        """Write cells with a timestamp in microseconds, or a later one of the millisecond `time_ms`."""
        if time_ms is None and cells:
            shape = await self._shape(table)
            batches = put_batches(shape, cells, stamp)
            if batches is not None:
                await self._directory.enter(shape, batches)
                flat = [(partition, rows) for partition, some in batches.items() for rows in some]
                put = self._cql[table].put
                await run_bounded(flat, lambda one: self._batch(put, one[1], one[0]), limit=CONCURRENT)
                self._count["cells_put"] += len(cells)
                return
        shape = await self._checked(table, ((cell.row, cell.column) for cell in cells))
        if time_ms is not None and not 0 <= time_ms <= LATEST_MS:
            raise StoreError(f"write timestamp: got {time_ms} ms, wanted 0 to {LATEST_MS}")
        if not cells:
            return
        latest = {(cell.row, cell.column): cell for cell in cells}  # of several puts to one cell the last one counts
        kept = cells if len(latest) == len(cells) else sorted(latest.values())
        groups = grouped((shape.partition(cell.row), cell) for cell in kept)
        await self._directory.enter(shape, groups)
        cql = self._cql[table]

        async def write(part: tuple[bytes, Sequence[Put]]) -> None:
            partition, puts = part
            ends = len(partition)
            stamps = {} if time_ms is None else await self._later_stamps(table, partition, puts, stamp)
            at, part_key = encode_stamp(stamp), encode_value(partition)
            rows = [
                (encode_stamp(stamps[row, column]) if (row, column) in stamps else at)
                + encode_value(value) + part_key + encode_value(row[ends:]) + encode_value(column)
                for row, column, value in puts
            ]  # fmt: skip
            await self._batch(cql.put, rows, partition)

        parts = (
            (partition, slice_)
            for partition, puts in groups.items()
            for slice_ in whole_rows(puts, most_cells=BATCH_CELLS, most_bytes=BATCH_BYTES)
        )
        await run_bounded(parts, write, limit=CONCURRENT)
        self._count["cells_put"] += len(cells)

    def _check_age(self, begun_ms: float) -> None:
        """Raise StoreDown for a put that took too long, as on a machine that was suspended. It is repeated, since a
        compaction may have deleted what is older than the newest cell of its row."""
        if (took_s := (self._elapsed_ms() - begun_ms) / 1000) > self._longest_put_s:
            raise StoreDown(f"Cassandra: a put took {took_s:.0f} s")

    async def _later_stamps(
        self, table: str, partition: bytes, puts: Sequence[Put], stamp: int
    ) -> dict[tuple[bytes, bytes], int]:
        """Return the timestamps of puts over other values of the same millisecond: later ones than the values have."""
        found: dict[tuple[bytes, bytes], int] = {}
        values = {(row, column): value for row, column, value in puts}
        rows = grouped((row, column) for row, column, _ in puts)

        async def read(row: tuple[bytes, list[bytes]]) -> None:
            key, columns = row
            for column, value, stamped in cells_of(
                await self._ask(self._cql[table].stored, (partition, key[len(partition) :], columns))
            ):
                place = key, column
                if stamped // MS == stamp // MS:
                    found[place] = stamped if value == values[place] else stamped + 1
                    if found[place] // MS > stamp // MS:
                        raise StoreError(
                            f"table {table}: row {key.hex()} column {column.hex()} was written {MS} times with the "
                            f"write timestamp {stamp // MS} ms: no later one is left in it"
                        )

        await run_bounded(rows.items(), read, limit=CONCURRENT)
        return found

    @timed
    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        now_ms = await self._clock_check.checked_ms()
        shape = await self._checked(table, ((row, column) for row, names in columns.items() for column in names))
        stamp = self._clock.next(now_ms) if up_to_ms is None else min(up_to_ms, LATEST_MS) * MS + LAST_US
        groups = grouped((shape.partition(row), (row, name)) for row, names in columns.items() for name in names)
        cql = self._cql[table]

        async def write(part: tuple[bytes, list[tuple[bytes, bytes]]]) -> None:
            partition, places = part
            ends = len(partition)
            listed = encode_value(encode_places([(row[ends:], name) for row, name in places]))
            await self._batch(cql.delete, [encode_stamp(stamp) + encode_value(partition) + listed], partition)

        await run_bounded(sliced(groups, BATCH_CELLS), write, limit=CONCURRENT)

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store. Raise StoreError if later timestamps hide the write for seconds: the clocks differ too much."""
        shape = await self._checked(table, [(row, column)])
        await self._directory.enter(shape, [shape.partition(row)])
        return await self._conditional.replace(shape, self._cql[table], Put(row, column, value), expected or b"")

    @timed
    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        shape = await self._checked(table, ((cell.row, cell.column) for cell in cells))
        await self._directory.enter(shape, dict.fromkeys(shape.partition(cell.row) for cell in cells))
        return await self._conditional.create(shape, self._cql[table], cells)

    @timed
    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store. The value is read, and replaced if it is still the same."""
        shape = await self._checked(table, [(row, column)])
        await self._directory.enter(shape, [shape.partition(row)])
        return await self._conditional.increment(shape, self._cql[table], row, column, by)

    @timed
    async def sync(self) -> None:
        """See Store. This does nothing: Cassandra acknowledges a write after enough replicas have logged it."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See Store."""
        await self._connector.aclose()

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        ahead_ms = self._clock_check.ahead_ms
        return MappingProxyType({**self._count, **({} if ahead_ms is None else {"clock_ahead_ms": ahead_ms})})

    async def _ask(self, cql: str, parameters: Parameters) -> Rows:
        """Execute a statement for cells, which may be repeated. Return key, column, value and timestamp of each."""
        return cells_in(await self._ask_raw(cql, parameters))

    async def _ask_raw(self, cql: str, parameters: Parameters) -> RawRows:
        """Execute a statement for cells, which may be repeated. Return its rows as sent."""
        return await self._retried(lambda: self._connector.ask_raw(cql, parameters))

    async def _batch(self, cql: str, rows: Sequence[bytes], partition: bytes) -> None:
        """Execute a statement for encoded rows of one partition."""
        await self._retried(lambda: self._connector.batch_encoded(cql, rows, partition))

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Execute a request, and repeat it while Cassandra is overloaded."""
        self._count["requests"] += 1
        return await retried(call, backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES), self._count)


def connect(contact: Contact) -> Session:
    """Connect to a cluster. Raise StoreError, also if the driver is not installed."""
    if not HAS_DRIVER:
        raise StoreError("the engine cassandra needs cassandra-driver: pip install 'tsd-daemon[cassandra]'")
    return driver.connect(contact)


class PageRows:
    """The rows of a page as they are found."""

    def __init__(self, limit: int, columns: frozenset[bytes] | None) -> None:
        self.limit = limit
        self.rows: list[Row] = []
        self._columns = columns
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether no row may be added."""
        return len(self.rows) >= self.limit or self._size >= PAGE_BYTES

    def add(self, row: Row) -> None:
        """Add a row with the wanted columns, if it has any."""
        if self._columns is not None:
            row = Row(row.key, [cell for cell in row.cells if cell.column in self._columns])
        if row.cells:
            self.rows.append(row)
            self._size += sum(len(cell.value) for cell in row.cells)
