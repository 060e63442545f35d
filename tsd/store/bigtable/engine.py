"""The Bigtable engine: the tables, families and cells of HBase.

Write timestamps are whole milliseconds of this process's clock, strictly rising over its calls, so that a repeated put
changes nothing. Those of increments are the server's. A read returns the newest version only: Bigtable collects older
ones late, or never.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

import trio

from tsd.codec.opentsdb.rowkey import LONGEST_BIGTABLE_KEY
from tsd.errors import InvalidCell, StoreBusy, StoreDown, StoreError
from tsd.lazy import LazyModule
from tsd.store import (
    Capabilities,
    Cell,
    CellPage,
    Cursor,
    OptionalParts,
    Page,
    Put,
    Table,
    cells_of_rows,
)
from tsd.store.bigtable import messages
from tsd.store.bigtable.chunks import RowReader
from tsd.store.bigtable.rate_limit import RateLimit, RateLimitInfo
from tsd.store.bigtable.session import (
    ALREADY_EXISTS,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    Caller,
    CallError,
    Contact,
    Session,
)
from tsd.store.bigtable.versions import BATCH_CELLS, LONGEST_QUALIFIER, MOST_FILTER, BigtableVersions
from tsd.store.retry import run_bounded
from tsd.store.rules import check_column, check_row, whole_rows
from tsd.store.timing import new_latencies, timed

if TYPE_CHECKING:
    from tsd.store.bigtable import credentials, transport
else:  # optional, and grpcio takes 0.1 s and 30 MB
    credentials = LazyModule("tsd.store.bigtable.credentials")
    transport = LazyModule("tsd.store.bigtable.transport")

DATA, ADMIN = "/google.bigtable.v2.Bigtable/", "/google.bigtable.admin.v2.BigtableTableAdmin/"
SERVICE = "bigtable.googleapis.com:443"

MOST_VALUE = 100 << 20
MOST_MUTATIONS = 100_000  # of one request
LATEST_MS = (2**63 - 1) // 1000 - 2
BATCH_BYTES = 1 << 20  # of one request
GET_ROWS, GET_KEY_BYTES = 1000, 100_000  # of one request
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it
CONCURRENT_PARTS = 4  # of one call
CONCURRENT_CREATES = 100  # a connection carries as many at once
DELETE_ROWS = 1000  # of one request


class BigtableStore(OptionalParts):
    """Store on Bigtable. The service need not answer yet: the first call connects.

    A delete removes versions and leaves no marker: a later put with an older timestamp shows.
    """

    def __init__(self, contact: Contact, clock_ms: Callable[[], int], *, expected: Sequence[Table] = ()) -> None:
        """`clock_ms` is the wall clock in Unix milliseconds. `tables` checks the families of `expected` tables, and
        whether the app profile can assign UIDs in the first one."""
        self.capabilities = Capabilities(
            ascending_timestamps=False,
            shared=True,
            filters_rows=False,
            parallel_scans=4,
            call_timeout_s=contact.timeout_s,
            longest_key=LONGEST_BIGTABLE_KEY,
            endpoints=(contact.emulator or SERVICE,),
        )
        self.latencies = new_latencies()
        self._contact = contact
        self._profile = contact.app_profile
        self._count: Counter[str] = Counter()
        self._caller = Caller(contact, connect, self._count)
        self._clock_ms = clock_ms
        self._last_ms = 0
        self._rate_limit = RateLimit()
        self._expected = expected
        self._versions = BigtableVersions(self)

    @property
    def cell_reader(self) -> "BigtableStore":
        """See Store."""
        return self

    @property
    def versioned_cells(self) -> BigtableVersions:
        """See Store."""
        return self._versions

    # ---- Tables

    async def create_tables(
        self,
        tables: Sequence[Table],
        *,
        compression: str = "NONE",  # noqa: ARG002
    ) -> list[str]:
        """See Store. Raise StoreError if an existing table lacks a family, or if the app profile cannot assign UIDs.
        Bigtable compresses by itself."""
        existing = await self._tables()
        made: list[str] = []
        for name, families in tables:
            if name in existing:
                await self._check_families(name, {family.name for family in families})
            elif await self._create_table(name, messages.create_table(self._contact.name, name, families)):
                made.append(name)
        for name, families in tables[:1]:
            await self._check_profile(name, families[0].name)
        return made

    async def _create_table(self, name: str, request: bytes) -> bool:
        """Create a table. Return False if another process has."""

        async def attempt(session: Session, left_s: float) -> bool:
            try:
                await session.unary(f"{ADMIN}CreateTable", request, f"parent={_quoted(self._contact.name)}", left_s)
            except CallError as exc:
                if exc.code == ALREADY_EXISTS:
                    return False
                raise
            return True

        return await self._caller.run(name, attempt)

    async def _check_families(self, table: str, wanted: Collection[bytes]) -> None:
        """Raise StoreError if a table lacks a family."""
        versions = await self.family_limits(table)
        if missing := sorted(set(wanted) - versions.keys()):
            raise StoreError(
                f"table {table} of {self._contact.name} lacks a column family: "
                f"got {_listed(versions)}, wanted also {_listed(missing)}"
            )

    async def family_limits(self, table: str) -> dict[bytes, int]:
        """Return how many versions each family keeps, 0: all, or by another rule. For BigtableVersions."""
        return messages.family_versions(await self._admin("GetTable", self._name(table), table))

    async def drop_tables(self, tables: Iterable[str]) -> None:
        """Delete these tables and their contents. Not part of Store: for temporary tables of tests."""
        for table in tables:
            await self._admin("DeleteTable", self._name(table), table)

    async def _admin(self, method: str, name: str, table: str) -> bytes:
        """Call a method on a table."""
        request = messages.by_name(name)

        async def attempt(session: Session, left_s: float) -> bytes:
            return await session.unary(ADMIN + method, request, f"name={_quoted(name)}", left_s)

        return await self._caller.run(table, attempt)

    async def tables(self) -> list[str]:
        """See Store. Raise StoreError also for an expected table without a family of its own, and for an app profile
        that cannot assign UIDs."""
        found = await self._tables()
        for at, (name, families) in enumerate(table for table in self._expected if table.name in found):
            await self._check_families(name, {family.name for family in families})
            if at == 0:
                await self._check_profile(name, families[0].name)
        return found

    async def _tables(self) -> list[str]:
        found: list[str] = []
        token = b""
        while True:
            request = messages.list_tables(self._contact.name, token)

            async def attempt(session: Session, left_s: float, request: bytes = request) -> bytes:
                return await session.unary(
                    f"{ADMIN}ListTables", request, f"parent={_quoted(self._contact.name)}", left_s
                )

            names, token = messages.table_names(await self._caller.run("", attempt))
            found += names
            if not token:
                break
        return sorted(found)

    async def _check_profile(self, table: str, family: bytes) -> None:
        """Raise StoreError if the app profile has no single-row transactions, which UIDs need. Nothing is changed."""
        await self._once("CheckAndMutateRow", table, messages.probe(self._name(table), self._profile, family))

    def _name(self, table: str) -> str:
        return f"{self._contact.name}/tables/{table}"

    # ---- Reading

    @timed
    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """See Store."""
        return await self.read_rows(table, rows, list(_filters(columns)))

    async def read_rows(self, table: str, rows: Collection[bytes], filters: Sequence[bytes]) -> dict[bytes, list[Cell]]:
        """Return what each of some filters leaves of rows. For BigtableVersions, too."""
        found: dict[bytes, list[Cell]] = {}
        keys = sorted({row for row in rows if 0 < len(row) <= LONGEST_BIGTABLE_KEY})

        async def read(part: tuple[Sequence[bytes], bytes]) -> None:
            some, filter_ = part
            reader = RowReader()

            def request() -> bytes | None:
                last = reader.rows[-1].key if reader.rows else b""
                rest = [key for key in some if key > last]
                return messages.read_keys(self._name(table), self._profile, rest, filter_) if rest else None

            await self._read(table, reader, request, lambda: False)
            for key, cells in reader.rows:
                if key in found:
                    found[key] = sorted(found[key] + cells)
                else:
                    found[key] = cells

        parts = ((some, filter_) for some in _key_parts(keys) for filter_ in filters)
        await run_bounded(parts, read, limit=CONCURRENT_PARTS)
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
        filters = list(_filters(columns))
        if len(filters) > 1:  # more columns than a filter may name
            page = await self.read_page(table, start, stop, limit, messages.NEWEST, PAGE_BYTES)
            wanted = frozenset(columns or ())
            kept = [row._replace(cells=[cell for cell in row.cells if cell.column in wanted]) for row in page.rows]
            return Page([row for row in kept if row.cells], page.next_start)
        if not filters:
            await trio.lowlevel.checkpoint()
            return Page([], None)
        return await self.read_page(table, start, stop, limit, filters[0], PAGE_BYTES)

    @timed
    async def read_cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """See CellReader. The average size of a row bounds what is read ahead."""
        limit = max(limit_bytes // cursor.row_bytes, 1) if cursor.row_bytes else 0
        page = await self.read_page(table, start, stop, limit, messages.NEWEST, limit_bytes)
        if page.rows:
            cursor.row_bytes = max(sum(len(cell.value) for row in page.rows for cell in row.cells) // len(page.rows), 1)
        return cells_of_rows(page.rows, page.next_start)

    async def close_cursor(self, table: str, cursor: Cursor) -> None:  # noqa: ARG002
        """See CellReader. No page leaves a call open."""
        await trio.lowlevel.checkpoint()

    @property
    def wide_rows(self) -> "BigtableStore":
        """See Store."""
        return self

    @timed
    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """See WideRows."""
        return await self.read_rows(table, rows, [messages.newest_between(first, last)])

    @timed
    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """See WideRows."""
        found: list[bytes] = []
        at: bytes | None = start
        while at is not None and len(found) < limit:
            page = await self.read_page(table, at, stop, limit - len(found), messages.KEYS, PAGE_BYTES)
            found += [row.key for row in page.rows]
            at = page.next_start
        return found

    async def read_page(
        self, table: str, start: bytes, stop: bytes | None, limit: int, filter_: bytes, most_bytes: int
    ) -> Page:
        """Return a page of up to `limit` rows (0: any number), which ends with the row that reaches `most_bytes`, or
        with the last one that a slow server sent in time."""
        if stop is not None and start >= stop:
            await trio.lowlevel.checkpoint()
            return Page([], None)
        reader = RowReader()
        enough = False

        def is_full() -> bool:
            nonlocal enough
            enough = reader.size >= most_bytes or (limit > 0 and len(reader.rows) >= limit)
            return enough

        def request() -> bytes | None:
            last = max(reader.rows[-1].key if reader.rows else b"", reader.last_scanned)
            at = max(start, last + b"\0" if last else b"")
            left = limit - len(reader.rows) if limit else 0
            if is_full() or (stop is not None and at >= stop):
                return None
            return messages.read_range(self._name(table), self._profile, at, stop, filter_, left)

        try:
            await self._read(table, reader, request, is_full)
        except (StoreDown, StoreBusy):
            if not reader.rows:
                raise
            enough = True
        else:
            is_full()
        rows = reader.rows
        return Page(rows, rows[-1].key + b"\0" if enough else None)

    async def _read(
        self, table: str, reader: RowReader, request: Callable[[], bytes | None], is_full: Callable[[], bool]
    ) -> None:
        """Read rows until the end or until `is_full`. A stream that broke goes on with what `request` returns for the
        rest, None if there is none."""

        def take(message: bytes) -> bool:
            reader.feed(message)
            return is_full()

        async def attempt(session: Session, left_s: float) -> None:
            reader.restart()
            wanted = request()
            if wanted is None:
                return
            await session.stream(f"{DATA}ReadRows", wanted, self._params(table), left_s, take)
            if reader.is_torn and not is_full():
                raise CallError(UNAVAILABLE, "a stream of rows ended within a row")

        before = len(reader.rows)
        await self._caller.run(table, attempt)
        self._count["rows_read"] += len(reader.rows) - before

    # ---- Writing

    @timed
    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store. Rows are written in parallel, in any order."""
        await self._put(table, cells, time_ms, replace=False)

    @timed
    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """See WideRows."""
        await self._put(table, cells, None, replace=True)

    async def _put(self, table: str, cells: Sequence[Put], time_ms: int | None, *, replace: bool) -> None:
        """Write cells; with `replace` in place of all their versions."""
        for row, column, value in cells:
            is_short = 0 < len(row) <= LONGEST_BIGTABLE_KEY and len(column) + len(value) <= LONGEST_QUALIFIER
            if not is_short or b":" not in column:
                _check(row, column, value)
        if time_ms is not None and not 0 <= time_ms <= LATEST_MS:
            raise StoreError(f"write timestamp: got {time_ms} ms, wanted 0 to {LATEST_MS}")
        if not cells:
            await trio.lowlevel.checkpoint()
            return
        stamp = self._stamp() if time_ms is None else time_ms

        async def write(part: Sequence[Put]) -> None:
            if len(part) > (most := MOST_MUTATIONS // (1 + replace)):
                raise InvalidCell(f"got {len(part)} cells of row {part[0].row[:32].hex()}, wanted {most}")
            await self.mutate(table, messages.put_entries(part, stamp, replace=replace))

        await run_bounded(
            whole_rows(cells, most_cells=BATCH_CELLS, most_bytes=BATCH_BYTES), write, limit=CONCURRENT_PARTS
        )
        self._count["cells_put"] += len(cells)

    @timed
    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """See Store."""
        for row, names in columns.items():
            for name in names:
                _check(row, name, b"")
        bound = max(self._clock_ms(), self._last_ms) if up_to_ms is None else min(up_to_ms, LATEST_MS)
        rows = [(row, names) for row, names in columns.items() if names]

        async def remove(at: int) -> None:
            entries = [messages.delete_entry(row, names, bound) for row, names in rows[at : at + DELETE_ROWS]]
            await self.mutate(table, entries)

        await run_bounded(range(0, len(rows), DELETE_ROWS), remove, limit=CONCURRENT_PARTS)

    async def mutate(self, table: str, entries: Sequence[bytes]) -> None:
        """Apply the mutations of rows. Those that failed, or that were not answered, are repeated.
        For BigtableVersions, too."""
        pending = list(entries)

        async def attempt(session: Session, left_s: float) -> None:
            nonlocal pending
            verdicts: dict[int, messages.Status] = {}
            asked: list[RateLimitInfo] = []

            def take(message: bytes) -> bool:
                verdicts.update((status.entry, status) for status in messages.statuses(message))
                if (info := messages.rate_limit_of(message)) is not None:
                    asked.append(info)
                return False

            begin_s = trio.current_time()
            if not await self._rate_limit.wait(left_s):
                raise CallError(RESOURCE_EXHAUSTED, f"it asks for {self._rate_limit.per_s:.1f} requests a second")
            left_s -= trio.current_time() - begin_s
            request = messages.mutate_rows(self._name(table), self._profile, pending)
            try:
                await session.stream(f"{DATA}MutateRows", request, self._params(table), left_s, take)
            finally:
                done = {index for index, status in verdicts.items() if status.code == 0}
                failed = [CallError(status.code, status.message) for status in verdicts.values() if status.code]
                pending = [entry for index, entry in enumerate(pending) if index not in done]
                for info in asked:
                    self._rate_limit.follow(info)
            for error in failed:
                if not (error.is_transient or error.is_busy):
                    raise error
            if pending:
                raise failed[0] if failed else CallError(UNAVAILABLE, f"no verdict on {len(pending)} rows")

        await self._caller.run(table, attempt)

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """See Store."""
        _check(row, column, value)
        cell = Put(row, column, value)
        request = messages.check_and_mutate(self._name(table), self._profile, cell, expected, self._stamp())
        matched = messages.is_matched(await self._once("CheckAndMutateRow", table, request))
        return matched if expected else not matched

    @timed
    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """See Store."""
        done: dict[int, bool] = {}

        async def make(numbered: tuple[int, Put]) -> None:
            number, cell = numbered
            done[number] = await self.check_and_put(table, *cell, expected=None)

        for cell in cells:
            _check(*cell)
        await run_bounded(enumerate(cells), make, limit=min(CONCURRENT_CREATES, max(len(cells), 1)))
        return [done[number] for number in range(len(cells))]

    @timed
    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """See Store."""
        _check(row, column, b"")
        request = messages.increment(self._name(table), self._profile, row, column, by)
        cell = messages.counter_of(await self._once("ReadModifyWriteRow", table, request))
        return int.from_bytes(cell.value, "big", signed=True)

    async def _once(self, method: str, table: str, request: bytes) -> bytes:
        """Call a method that must not be repeated."""

        async def attempt(session: Session, left_s: float) -> bytes:
            return await session.unary(DATA + method, request, self._params(table), left_s)

        return await self._caller.run(table, attempt, once=True)

    def _stamp(self) -> int:
        """Return a timestamp in ms, later than all before."""
        self._last_ms = max(self._clock_ms(), self._last_ms + 1)
        return self._last_ms

    def _params(self, table: str) -> str:
        """Return the routing header."""
        return f"table_name={_quoted(self._name(table))}&app_profile_id={_quoted(self._profile)}"

    # ---- The rest

    @timed
    async def sync(self) -> None:
        """See Store. This does nothing: Bigtable answers a write once it is durable."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See Store."""
        await self._caller.aclose()

    def statistics(self) -> Mapping[str, int]:
        """See Store."""
        return MappingProxyType(dict(self._count))


def connect(contact: Contact) -> Session:
    """Open channels to an instance. Raise StoreError, also if grpcio is not installed."""
    try:
        found = None if contact.emulator else credentials.log_in(contact.credentials)
        return transport.GrpcSession(contact, found)
    except ImportError as exc:
        raise StoreError(f"the engine bigtable lacks {exc.name}: pip install 'tsd-daemon[bigtable]'") from None


def _check(row: bytes, column: bytes, value: bytes) -> None:
    """Raise InvalidCell for what the service refuses, and the emulator takes."""
    check_row(row)
    check_column(column)
    if len(row) > LONGEST_BIGTABLE_KEY:
        limit = f"a row key on Bigtable has 1 to {LONGEST_BIGTABLE_KEY} bytes"
        raise InvalidCell(f"{limit}, this one {len(row)}: {row[:32].hex()}")
    if len(column) > LONGEST_QUALIFIER:
        raise InvalidCell(f"a qualifier on Bigtable has up to {LONGEST_QUALIFIER} bytes, this one {len(column)}")
    if len(value) > MOST_VALUE:
        raise InvalidCell(f"a value on Bigtable has up to {MOST_VALUE} bytes, this one {len(value)}")


def _filters(columns: Collection[bytes] | None) -> Iterator[bytes]:
    """Yield filters for the newest cells of some columns, None: of all. Each names as many as Bigtable allows."""
    if columns is None:
        yield messages.NEWEST
        return
    some: list[bytes] = []
    size = 0
    for column in sorted(set(columns)):
        wide = 2 * len(column) + 24  # a range has the qualifier twice
        if some and size + wide > MOST_FILTER:
            yield messages.newest_of(some)
            some, size = [], 0
        some.append(column)
        size += wide
    if some:
        yield messages.newest_of(some)


def _key_parts(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield row keys in slices that fit into a request."""
    some: list[bytes] = []
    size = 0
    for key in keys:
        if some and (len(some) >= GET_ROWS or size + len(key) > GET_KEY_BYTES):
            yield some
            some, size = [], 0
        some.append(key)
        size += len(key)
    if some:
        yield some


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _listed(names: Iterable[bytes]) -> str:
    return ", ".join(name.decode("latin-1") for name in names) or "none"
