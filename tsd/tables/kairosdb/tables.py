"""KairosDB's tables in a keyspace of Cassandra: typed calls, each of which may be repeated.

Write timestamps are milliseconds of this process's clock and never repeat here. Other programs share the tables: they
must write milliseconds, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import trio
from cachetools import LRUCache

from tsd.codec.kairosdb.index import METRIC_NAMES, PRESENT, TABLE_NAME, tag_hash, tag_pair
from tsd.codec.kairosdb.keys import LEGACY, DataRow, encode_tags, parse_row_key
from tsd.codec.kairosdb.rows import (
    COLUMN_BYTES,
    COLUMNS,
    DEFAULT_WIDTH_MS,
    FIRST_MS,
    RowSpec,
    Unit,
    UnknownRows,
    parse_spec,
)
from tsd.errors import CorruptRow, NoTable, StoreError, bare
from tsd.store.cassandra.schema import KEYSPACES, PEERS, VERSION, create_keyspace
from tsd.store.cassandra.session import BadStatement, BatchTooLarge, Connector, Parameters, ReadFailed, Rows
from tsd.store.cassandra.wire import LENGTH, LENGTH_BYTES, RawRows, find_values
from tsd.store.retry import run_bounded
from tsd.tables.kairosdb import schema
from tsd.tables.kairosdb.points import PutBatch, RowsAnswer, StoredPoints, parse_points

CONCURRENT = 16  # requests of one call
ROWS_AT_ONCE = 12  # of points, read with one request: Cassandra reads them one after the other
FEW_INDEX_ROWS = 500  # that are parsed on the event loop
LEAST_COLUMNS = 1 << 16  # a read of fewer columns that fails is not divided: they cannot have too many expired points
MOST_TAGS = 20_000  # sets of tags that stay parsed
PARSED_BYTES = 4 << 20  # of answers with index rows that stay parsed
MOST_FOUND = 10_000  # lists of row times that are cached
MIXED_ROWS = 100  # index rows of a batch, of several partitions
LIST_STRINGS = 1000  # per request
LAST_EXPIRY_S = (1 << 31) - 2  # the last second at which every version of Cassandra can expire a cell
NEVER = 0  # as time to live


class SeriesRow(NamedTuple):
    """An index row: which series has points of a type in a row."""

    type: str
    tags: Mapping[str, str]


class ListedSeries(NamedTuple):
    """An index row as read."""

    type: str
    tags: Mapping[str, str]
    encoded: bytes  # the tags as in a row key


class ParsedSeries(NamedTuple):
    """An answer with index rows. An equal one is not parsed again."""

    raw: RawRows
    series: Sequence[ListedSeries]


class RowGroup(NamedTuple):
    """Rows of points that are read together."""

    rows: dict[bytes, DataRow]  # by their keys
    first: int  # column
    last: int
    timed: bool


class FoundTimes(NamedTuple):
    """The first row times of a metric that a request found in the index, from the row on at which it began."""

    times: Sequence[int]  # ascending
    complete: bool  # whether the old index had no other rows that are read first


class KairosTables:
    """The tables of one keyspace. Nothing is read or written before `spec` has found them in order."""

    def __init__(self, cql: Connector, keyspace: str, clock_ms: Callable[[], int]) -> None:
        self._cql = cql
        self.keyspace = keyspace
        self._clock_ms = clock_ms
        self.statements = schema.statements(keyspace)
        self._spec: RowSpec | None = None
        self._lock = trio.Lock()
        self._last_ms = 0
        self._parsed = LRUCache[tuple[str, int], ParsedSeries](PARSED_BYTES, getsizeof=lambda one: len(one.raw.body))
        self.found_times = LRUCache[tuple[str, int], FoundTimes](MOST_FOUND)  # by metric and earliest row time
        self._joins = True  # whether several rows can be read with one request

    def now_s(self) -> int:
        """Return the clock in seconds."""
        return self._clock_ms() // 1000

    def stamps(self, count: int = 1) -> int:
        """Return the first of some new write timestamps."""
        first = max(self._clock_ms(), self._last_ms + 1)
        self._last_ms = first + count - 1
        return first

    def most_ttl_s(self) -> int:
        """Return the longest time to live that Cassandra accepts now."""
        return max(LAST_EXPIRY_S - self.now_s(), 1)

    # ---- Schema

    async def create(self, compression: str) -> list[str]:
        """Create the missing tables, with their keyspace, and return their names. Raise StoreError."""
        if not await self._cql.command(KEYSPACES, (self.keyspace,)):
            local = await self._cql.command(VERSION)
            nodes = [str(row[-1]) for row in [*local, *await self._cql.command(PEERS)]]
            await self._cql.command(create_keyspace(self.keyspace, nodes))
        found = await self._columns()
        wrong = schema.wrong_shape({**schema.TABLES, **found})
        if wrong is not None:
            raise StoreError(f"keyspace {self.keyspace}: {wrong}")
        texts = schema.create_tables(self.keyspace, compression)
        made = [name for name in texts if name not in found]
        for name in made:
            await self._cql.command(texts[name])
        if await self._read_spec() is None:
            rows = [(schema.UNIT_NAME, Unit.MILLISECONDS.value), (schema.WIDTH_NAME, str(DEFAULT_WIDTH_MS))]
            stamp = self.stamps()
            put: list[Parameters] = [(schema.CLUSTER_CONFIG, *row, NEVER, stamp) for row in rows]
            await self._cql.batch(self.statements.put_spec, put)
        return made

    async def drop(self) -> None:
        """Delete the keyspace with its tables. Raise StoreError."""
        await self._cql.command(f'DROP KEYSPACE "{self.keyspace}"')

    async def spec(self) -> RowSpec:
        """Return how the tables divide time, once they are found in order. Raise StoreError."""
        if self._spec is None:
            async with self._lock:
                if self._spec is None:
                    self._spec = await self.check()
        return self._spec

    async def check(self) -> RowSpec:
        """Read from the tables whether they are in order, and how they divide time. Raise StoreError."""
        if not await self._cql.command(KEYSPACES, (self.keyspace,)):
            raise NoTable(f"there is no keyspace {self.keyspace}: `tsd create-tables` creates it")
        wrong = schema.wrong_shape(await self._columns())
        if wrong is not None:
            raise NoTable(f"keyspace {self.keyspace}: {wrong}. `tsd create-tables` creates missing tables")
        found = await self._read_spec()
        if found is None:
            raise NoTable(f"keyspace {self.keyspace}: table spec is empty. `tsd create-tables` fills it")
        return found

    async def _columns(self) -> dict[str, dict[str, tuple[str, str]]]:
        found: dict[str, dict[str, tuple[str, str]]] = {}
        for name, column, kind, type_ in await self._cql.command(schema.ALL_COLUMNS, (self.keyspace,)):
            found.setdefault(str(name), {})[str(column)] = str(kind), str(type_)
        return found

    async def _read_spec(self) -> RowSpec | None:
        """Return what `spec` says. Without a row it is LEGACY if there are metrics; None if there are none."""
        named = {
            str(name): str(value) for name, value in await self.ask(self.statements.spec, (schema.CLUSTER_CONFIG,))
        }
        if named:
            try:
                return parse_spec(named.get(schema.UNIT_NAME, ""), named.get(schema.WIDTH_NAME, ""))
            except UnknownRows as exc:
                raise StoreError(f"keyspace {self.keyspace}: {exc}") from bare(exc)
        if await self.ask(self.statements.strings, (METRIC_NAMES, "", 1)):
            return RowSpec(Unit.LEGACY)
        return None

    async def ask(self, text: str, parameters: Parameters) -> Rows:
        """Execute a statement and return its rows. Raise StoreError."""
        return await self._cql.ask(text, parameters)

    # ---- Points

    async def put_points(self, batches: Sequence[PutBatch]) -> None:
        """Put points. Raise StoreError."""
        await run_bounded(batches, self._put_points, limit=CONCURRENT)

    async def _put_points(self, batch: PutBatch) -> None:
        try:
            await self._cql.batch_encoded(self.statements.put_point, batch.points, batch.key)
        except BatchTooLarge:
            if len(batch.points) == 1:
                raise
        else:
            return
        middle = len(batch.points) // 2
        for part in (batch.points[:middle], batch.points[middle:]):
            await self._put_points(PutBatch(part, batch.key))

    async def points(self, key: bytes, first: int, last: int, limit: int, *, timed: bool = False) -> StoredPoints:
        """Return the points of a row from one column to another, both included. Raise StoreError."""
        text = self.statements.timed_points if timed else self.statements.points
        return parse_points(await self._read_row(text, key, first, last, limit), timed=timed)

    async def _read_row(self, text: str, key: bytes, first: int, last: int, limit: int) -> RawRows:
        """Return the first points of a row from one column to another, at most `limit`. Raise StoreError.

        Cassandra fails a read of more than 100,000 points that expired within ten days, or were deleted one by one.
        Then each half of the columns is read."""
        try:
            return await self._cql.ask_raw(text, (key, *_bounds(first, last), limit))
        except ReadFailed:
            if last - first < LEAST_COLUMNS:
                raise
        middle = (first + last) // 2
        found = await self._read_row(text, key, first, middle, limit)
        if found.rows >= limit:
            return found
        rest = await self._read_row(text, key, middle + 1, last, limit - found.rows)
        return RawRows(found.rows + rest.rows, found.body + rest.body)

    async def read_rows(
        self,
        rows: Mapping[DataRow, tuple[int, int]],
        limit: int,
        *,
        timed: Callable[[DataRow], bool],
        slots: trio.Semaphore,
    ) -> list[RowsAnswer]:
        """Return the points of several rows, each from one column to another; at most `limit` of each row. `timed` says
        of which rows the write timestamps and times to live are read. Each request needs one of `slots`. Raise
        StoreError."""
        found: list[RowsAnswer] = []

        async def read(group: RowGroup) -> None:
            async with slots:
                found.extend(await self._read_group(group, limit))

        groups = await self._groups(rows, timed)
        await run_bounded(groups, read, limit=len(groups))
        return found

    async def _groups(
        self, rows: Mapping[DataRow, tuple[int, int]], timed: Callable[[DataRow], bool]
    ) -> list[RowGroup]:
        """Return the rows that are read with one request each: rows of one node, from and to the same columns."""
        keys = [row.encode() for row in rows]
        nodes = await self._cql.nodes(self.keyspace, keys) if self._joins and len(rows) > 1 else None
        open_groups: dict[object, RowGroup] = {}
        groups: list[RowGroup] = []
        for row, key, node in zip(rows, keys, nodes or map(str, range(len(keys))), strict=True):
            kind = node, rows[row], timed(row)
            group = open_groups.get(kind)
            if group is None or len(group.rows) >= ROWS_AT_ONCE:
                group = open_groups[kind] = RowGroup({}, *rows[row], kind[-1])
                groups.append(group)
            group.rows[key] = row
        return groups

    async def _read_group(self, group: RowGroup, limit: int) -> list[RowsAnswer]:
        """Return the points of some rows. Raise StoreError."""
        if len(group.rows) > 1 and self._joins:
            keys = list(group.rows)
            text = self.statements.joined_timed_points if group.timed else self.statements.joined_points
            try:
                raw = await self._cql.ask_raw(text, (keys, *_bounds(group.first, group.last), limit), keys[0])
            except BadStatement:
                self._joins = False  # Cassandra before 3.6
            except ReadFailed:
                pass  # of one of the rows
            else:
                return [RowsAnswer(group.rows, raw, keyed=True, timed=group.timed)]
        text = self.statements.timed_points if group.timed else self.statements.points
        answers = []
        for key, row in group.rows.items():
            raw = await self._read_row(text, key, group.first, group.last, limit)
            answers.append(RowsAnswer({key: row}, raw, keyed=False, timed=group.timed))
        return answers

    async def newest(self, key: bytes) -> StoredPoints:
        """Return the last point of a row, or none. Raise StoreError."""
        return await self._newest(key, 0, COLUMNS - 1)

    async def _newest(self, key: bytes, first: int, last: int) -> StoredPoints:
        """Return the last point from one column to another. Reads are divided as by `_read_row`."""
        try:
            raw = await self._cql.ask_raw(self.statements.newest_point, (key, *_bounds(first, last)))
            return parse_points(raw, timed=True)
        except ReadFailed:
            if last - first < LEAST_COLUMNS:
                raise
        middle = (first + last) // 2
        return await self._newest(key, middle + 1, last) or await self._newest(key, first, middle)

    async def delete_points(self, key: bytes, first: int, last: int, stamp_ms: int) -> None:
        """Delete the points of a row from one column to another that were not written after `stamp_ms`."""
        await self.ask(self.statements.delete_points, (stamp_ms, key, *_bounds(first, last)))

    async def delete_row(self, row: DataRow, stamp_ms: int) -> None:
        """Delete a row of points."""
        await self.ask(self.statements.delete_row, (stamp_ms, row.encode()))

    # ---- Indexes

    async def metric_exists(self, metric: str) -> bool:
        """Return whether a metric is listed. Raise StoreError."""
        return bool(await self.ask(self.statements.has_string, (METRIC_NAMES, metric)))

    async def strings(self, kind: bytes, prefix: str, limit: int) -> list[str]:
        """Return listed names of a kind with a prefix, in order of their bytes, at most `limit`. Raise StoreError."""
        found: list[str] = []
        start = prefix
        while len(found) < limit:
            count = min(LIST_STRINGS, limit - len(found))
            names = [str(name) for (name,) in await self.ask(self.statements.strings, (kind, start, count))]
            matching = [name for name in names if name.startswith(prefix)]
            found += matching
            if len(matching) < count:
                break
            start = names[-1] + "\0"
        return found

    async def put_strings(self, kind: bytes, names: Iterable[str], stamp_ms: int) -> None:
        """List names of a kind."""
        rows: list[Parameters] = [(kind, name, PRESENT, NEVER, stamp_ms) for name in names]
        await self._batches(self.statements.put_string, rows)

    async def put_row_time(self, metric: str, row_ms: int, ttl_s: int, stamp_ms: int) -> None:
        """List a row time of a metric."""
        await self.ask(self.statements.put_row_time, (metric, TABLE_NAME, row_ms, ttl_s, stamp_ms))

    async def put_row_keys(
        self, metric: str, row_ms: int, rows: Iterable[tuple[SeriesRow, int]], stamp_ms: int, *, by_tag: bool
    ) -> None:
        """List series of a row time, each with a time to live; `by_tag`: also by each of their tags."""
        put: list[Parameters] = []
        tagged: dict[str, list[Parameters]] = {}
        for (kind, tags), ttl_s in rows:
            put.append((metric, TABLE_NAME, row_ms, kind, tags, ttl_s, stamp_ms))
            for tag in tags.items() if by_tag else ():
                pair = tag_pair(*tag)
                place: Parameters = (metric, TABLE_NAME, row_ms, pair, tag_hash(tags), kind, tags, ttl_s, stamp_ms)
                tagged.setdefault(pair, []).append(place)
        await self._batches(self.statements.put_row_key, put)
        for rows_of_pair in tagged.values():
            await self._batches(self.statements.put_tag_row_key, rows_of_pair)

    async def put_old_keys(self, metric: str, rows: Iterable[tuple[bytes, int]], stamp_ms: int) -> None:
        """List row keys in the index of KairosDB 1.2 and older, each with a time to live."""
        put: list[Parameters] = [(_name(metric), key, PRESENT, ttl_s, stamp_ms) for key, ttl_s in rows]
        await self._batches(self.statements.put_old_key, put)

    async def _batches(self, text: str, rows: Sequence[Parameters]) -> None:
        for at in range(0, len(rows), MIXED_ROWS):
            await self._cql.batch(text, rows[at : at + MIXED_ROWS])

    async def row_times(self, metric: str, first_ms: int, last_ms: int) -> list[int]:
        """Return the listed row times of a metric, both ends included, in order. Raise StoreError."""
        rows = await self.ask(self.statements.row_times, (metric, TABLE_NAME, first_ms, last_ms))
        return [row_ms for (row_ms,) in rows if isinstance(row_ms, int)]

    async def row_keys(self, metric: str, row_ms: int) -> Sequence[ListedSeries]:
        """Return the series that are listed for a row time. Raise StoreError."""
        raw = await self._cql.ask_raw(self.statements.row_keys, (metric, TABLE_NAME, row_ms))
        place = metric, row_ms
        known = self._parsed.get(place)
        if known is not None and known.raw == raw:
            return known.series
        series = parse_listed(raw) if raw.rows <= FEW_INDEX_ROWS else await trio.to_thread.run_sync(parse_listed, raw)
        if len(raw.body) <= PARSED_BYTES:
            self._parsed[place] = ParsedSeries(raw, series)
        return series

    def known_row_keys(self, metric: str, row_ms: int) -> Sequence[ListedSeries]:
        """Return what `row_keys` returned when an earlier request called it; none if that is not cached."""
        known = self._parsed.get((metric, row_ms))
        return () if known is None else known.series

    async def old_keys(self, metric: str, first_ms: int, last_ms: int) -> tuple[list[DataRow], list[str]]:
        """Return the rows in the old index, and what is wrong with others. Raise StoreError."""
        name = _name(metric)
        rows: list[DataRow] = []
        wrong: list[str] = []
        spans = [(first_ms, min(last_ms, -1)), (max(first_ms, 0), last_ms)]  # negative times sort after the others
        for first, last in spans:
            if first > last:
                continue
            low, high = (name + b"\0" + max(time, FIRST_MS).to_bytes(8, "big", signed=True) for time in (first, last))
            for (key,) in await self.ask(self.statements.old_keys, (name, low, high + b"\xff")):
                assert isinstance(key, bytes)
                try:
                    rows.append(parse_row_key(key))
                except CorruptRow as exc:
                    wrong.append(f"table {schema.OLD_INDEX}: {exc}")
        return rows, wrong

    async def delete_row_key(self, row: DataRow, tags: Mapping[str, str], stamp_ms: int) -> None:
        """Remove a row from every index but that of row times."""
        if row.type != LEGACY:
            place: Parameters = (stamp_ms, row.metric, TABLE_NAME, row.row_ms)
            await self.ask(self.statements.delete_row_key, (*place, row.type, tags))
            for tag in tags.items():
                await self.ask(
                    self.statements.delete_tag_row_key, (*place, tag_pair(*tag), row.type, tag_hash(tags), tags)
                )
        await self.ask(self.statements.delete_old_key, (stamp_ms, _name(row.metric), row.encode()))

    async def delete_row_time(self, metric: str, row_ms: int, stamp_ms: int) -> None:
        """Remove a row time of a metric from the index."""
        await self.ask(self.statements.delete_row_time, (stamp_ms, metric, TABLE_NAME, row_ms))

    async def delete_metric(self, metric: str, stamp_ms: int) -> None:
        """Remove a metric's name, and its rows in the old index."""
        await self.ask(self.statements.delete_old_keys, (stamp_ms, _name(metric)))
        await self.ask(self.statements.delete_string, (stamp_ms, METRIC_NAMES, metric))


def _bounds(first: int, last: int) -> tuple[bytes, bytes]:
    """Return two columns as Cassandra has them."""
    return first.to_bytes(COLUMN_BYTES, "big"), last.to_bytes(COLUMN_BYTES, "big")


def _name(metric: str) -> bytes:
    return metric.encode("utf-8", "surrogatepass")


def parse_listed(raw: RawRows) -> list[ListedSeries]:
    """Return the index rows of an answer. Raise CorruptRow."""
    starts, lengths = (part.tolist() for part in find_values(raw, 2))
    body = raw.body
    return [
        ListedSeries(body[kind : kind + size].decode(), *_listed_tags(body[tags : tags + tags_size]))
        for (kind, tags), (size, tags_size) in zip(starts, lengths, strict=True)
        if size >= 0  # a partition may have no rows but a value of its own
    ]


@lru_cache(maxsize=MOST_TAGS)
def _listed_tags(value: bytes) -> tuple[Mapping[str, str], bytes]:
    """Return tags from a map as Cassandra sends it, and as in a row key.

    >>> _listed_tags(bytes.fromhex("00000001" "00000001" "61" "00000002") + b"b:")
    (mappingproxy({'a': 'b:'}), b'a=b=::')
    """
    texts = []
    at = LENGTH_BYTES
    for _ in range(2 * LENGTH.unpack_from(value)[0]):
        (size,) = LENGTH.unpack_from(value, at)
        at += LENGTH_BYTES + size
        texts.append(value[at - size : at].decode())
    tags = dict(zip(texts[::2], texts[1::2], strict=True))
    return MappingProxyType(tags), encode_tags(tags)
