"""An index of a metric's series by each of their tags, so that a query for one host reads that host's rows only.

The index has a table of its own (FORMATS.md §13). Its rows start with a metric's UID and a tag's pair of UIDs, or zeros
for the metric as a whole. Series are added when they are first written. `rebuild` adds
series that were stored earlier or by other processes, from the row keys of the data table; until then the index
reports that it is incomplete. Series with deleted rows stay in the index until `stale_series` deletes them;
queries find no rows for them.

Each series has an entry of its own, which marks it as added. It is in the row of the tag whose value has the highest
UID, because frequent values get low UIDs: a host has fewer series than a data centre. In the rows of its other tags,
and of the metric, series that are added together share entries. So a new series costs one entry and a share of a few
others, instead of one entry per tag. A reader may find a series twice.

A series' own entry is written last: an interrupted `add` is repeated when the series is next written. The store's sync
at the end of a window covers the entries of its series.
"""

import math
import os
import secrets
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import aclosing, suppress
from hashlib import blake2b
from typing import NamedTuple

import trio
from cachetools import FIFOCache

from tsd.codec.names import Widths
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import DamagedBlock, NoTable, StoreError
from tsd.lazy import LazyLogger
from tsd.store import CELL_PAGE_BYTES, CellPage, Put, Store, cell_pages
from tsd.store.cells import prefix_end
from tsd.store.scheduling import next_time, sleep_until_next
from tsd.tables.opentsdb.tag_table import TagTable

try:
    from tsd.tables.opentsdb import _entries
except ImportError:  # no C compiler at installation
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare both

log = LazyLogger(__name__)


OWN = b"t:o"
ALONE = b"t:s"
SHARED = b"t:g"
PRESENT = b"\1"
_HASH_BYTES = 8  # hash of a shared entry's value in its column, so that a row can have several


def own_rows(series: dict[bytes, list[bytes]], widths: Widths, *, compiled: bool = HAS_LOOP) -> list[bytes]:
    """Return the row of each series' own entry. `series` has joined tag pairs by metric UID.

    >>> host, dc = b"\\0\\0\\1\\0\\0\\7", b"\\0\\0\\2\\0\\0\\3"
    >>> own_rows({b"met": [dc + host]}, Widths()) == [b"met" + host + dc + host]
    True
    """
    if compiled:
        return _entries.own_rows(series, widths.tagk, widths.pair)
    tagk, width = widths.tagk, widths.pair
    return [metric + _rarest_pair(pairs, tagk, width) + pairs for metric, some in series.items() for pairs in some]


def _rarest_pair(pairs: bytes, tagk: int, width: int) -> bytes:
    """Return the tag pair with the highest tag value UID."""
    best = pairs[:width]
    for at in range(width, len(pairs), width):
        if pairs[at + tagk : at + width] > best[tagk:]:
            best = pairs[at : at + width]
    return best


def own_entries(rows: Iterable[bytes]) -> list[Put]:
    """Return the own entries of rows, sorted: neighbouring keys are written faster."""
    return [Put(row, OWN, PRESENT) for row in sorted(rows)]


def other_entries(rows: list[bytes], widths: Widths, *, compiled: bool = HAS_LOOP) -> list[Put]:
    """Return all other entries of series that are added together, given the rows of their own entries."""
    found = (_entries.alike if compiled else _by_prefix)(rows, widths.metric, widths.pair)
    return sorted(entry for prefix, some in found.items() for entry in entries_of(prefix, some))


def _by_prefix(rows: list[bytes], start: int, width: int) -> dict[bytes, list[bytes]]:
    """Return series by the row prefixes of their other entries: the metric without a tag, and the metric with each tag
    except that of the own entry."""
    found: dict[bytes, list[bytes]] = {}
    none = bytes(width)
    for row in rows:
        metric, own, pairs = row[:start], row[start : start + width], row[start + width :]
        found.setdefault(metric + none, []).append(pairs)
        for at in range(0, len(pairs), width):
            pair = pairs[at : at + width]
            if pair != own:
                found.setdefault(metric + pair, []).append(pairs)
    return found


def entries_of(prefix: bytes, some: list[bytes]) -> Iterator[Put]:
    """Yield the entries of series with one row prefix: one for each number of tags."""
    sizes = {*map(len, some)}
    for size in sizes:
        same = some if len(sizes) == 1 else [pairs for pairs in some if len(pairs) == size]
        if len(same) == 1:
            yield Put(prefix + same[0], ALONE, PRESENT)
        else:
            joined = b"".join(same)
            yield Put(prefix + same[0], SHARED + blake2b(joined, digest_size=_HASH_BYTES).digest(), joined)


def series_in(page: CellPage, prefix_bytes: int) -> Iterator[bytes]:
    """Yield the joined tag pairs of all series in a page of entries, whose keys have a prefix of `prefix_bytes`."""
    for key, column, value in zip(page.keys, page.columns, page.values, strict=True):
        if column in (OWN, ALONE):
            yield key[prefix_bytes:]
        elif column.startswith(SHARED):
            size = len(key) - prefix_bytes
            yield from (value[at : at + size] for at in range(page.ahead, len(value), size))


def _add_series(parts: dict[int, list[bytes]], page: CellPage, prefix_bytes: int) -> int:
    """Add the series of a page of entries by the length of their tag pairs, several in one bytes object. Return their
    bytes."""
    added = 0
    for key, column, value in zip(page.keys, page.columns, page.values, strict=True):
        if column in (OWN, ALONE):
            some = key[prefix_bytes:]
        elif column.startswith(SHARED):
            some = value[page.ahead :]
        else:
            continue
        parts.setdefault(len(key) - prefix_bytes, []).append(some)
        added += len(some)
    return added


STATE_ROW = b"\0"  # shorter than rows of series, and below them: UIDs count from 1
WANTED, DONE = b"t:wanted", b"t:done"  # equal values: the index is complete
FIRST = b"0"
BATCH = 2000  # series added with one call
SORT_IN_THREAD = 20_000  # series
KNOWN_SERIES = 1_000_000  # kept in memory, so that they are added once
ENTRY_BYTES = 20  # least size of an entry
RETRY_S = 30.0  # at most, between a rebuild and the next check for completeness
CHECK_S = 600.0  # between two checks of a complete index, unless a query finds it incomplete; also at a damaged block
CACHE_S = 5.0  # how long reads are cached if other processes may write; own writes invalidate them at once
CACHED_SERIES = 200_000  # in all cached reads
TABLE_BYTES = 64 << 20  # of the series of a metric that are held as arrays
TABLES_BYTES = 128 << 20  # of all metrics, with the new series that wait for the next use of their table
ADDED_BYTES = 90  # of such a series
CHECKED_SHARE = 16  # new tables and series that take this part of the memory are followed by a look at all of it
MAX_ADDED = 100_000  # such series of one metric
TOO_LARGE_S = 60.0  # for which a metric with more is not read again


class _CachedRead(NamedTuple):
    """The cached series of one prefix."""

    series: list[bytes]
    expires: float


def _room_of(read: _CachedRead) -> int:
    """Return how much of CACHED_SERIES a read takes: also one without series takes some."""
    return len(read.series) + 1


class _HeldTable(NamedTuple):
    """All series of a metric."""

    table: TagTable | None  # None: more than TABLE_BYTES
    expires: float
    added: set[bytes]  # series since the table was made

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        return (0 if self.table is None else self.table.nbytes) + len(self.added) * ADDED_BYTES


class IndexState(NamedTuple):
    """The state of the index at a search for series."""

    adds: int
    expires: float


class SeriesIndex:
    """The index of one data table."""

    def __init__(self, store: Store, table: str, layout: KeyLayout, *, tables_bytes: int = TABLES_BYTES) -> None:
        """`tables_bytes`: of the metrics whose series are held in memory."""
        self._store = store
        self._table = table
        self._layout = layout
        self._all = bytes(layout.widths.pair)
        self._cache: FIFOCache[bytes, _CachedRead] = FIFOCache(CACHED_SERIES, getsizeof=_room_of)  # by row prefix
        self._adds = 0  # calls of add: a read that overlaps one may lack its series
        self._tables: OrderedDict[bytes, _HeldTable] = OrderedDict()  # by metric UID
        self._tables_bytes = tables_bytes
        self._unchecked_bytes = 0  # added to the tables since a look at all of them
        self._loading: list[tuple[bytes, set[bytes]]] = []  # metrics being read, and series added meanwhile
        self._follows = False
        self._complete_until = -math.inf
        self._is_incomplete = trio.Event()

    async def add(self, series: dict[bytes, list[bytes]], *, again: bool = False) -> None:
        """Add up to BATCH series: joined tag pairs by metric UID. With `again`, do not check whether they were added
        before. Raise StoreError."""
        widths = self._layout.widths
        rows = own_rows(series, widths)
        known = {} if again else await self._store.get(self._table, rows, columns=[OWN])
        new = [row for row in rows if row not in known] if known else rows
        shared = other_entries(new, widths)
        self._invalidate(series)
        if new:
            await self._store.put(self._table, shared)
            await self._store.put(self._table, own_entries(new))
        if self._store.change_feed is None:
            self._note_rows(rows)  # another process may have added the known ones since a table was read
        self._adds += 1
        self._invalidate(series)  # reads that overlapped may lack these series

    def _invalidate(self, series: dict[bytes, list[bytes]]) -> None:
        """Drop the cached reads of the prefixes of these series."""
        if not self._cache:
            return
        width = self._layout.widths.pair
        for metric, some in series.items():
            self._cache.pop(metric + self._all, None)
            for pair in {one[at : at + width] for one in some for at in range(0, len(one), width)}:
                self._cache.pop(metric + pair, None)

    def _note_rows(self, rows: Iterable[bytes] | None) -> None:
        """Add the series of written entries to the tables of their metrics, and drop cached reads of their prefixes;
        None: drop all."""
        self._adds += 1
        if rows is None:
            self._tables.clear()
            self._loading.clear()
            self._cache.clear()
            return
        metric_end, pairs_at = self._layout.widths.metric, self._layout.widths.metric + self._layout.widths.pair
        if self._cache:
            rows = list(rows)
            for prefix in {row[:pairs_at] for row in rows}:
                self._cache.pop(prefix, None)
        if not self._tables and not self._loading:
            return
        grown = 0
        for row in rows:
            metric, pairs = row[:metric_end], row[pairs_at:]  # the key of each entry has one series at its end
            held = self._tables.get(metric)
            if held is not None and held.table is not None:
                held.added.add(pairs)
                grown += ADDED_BYTES
                if len(held.added) > MAX_ADDED:  # queries do not use it
                    del self._tables[metric]
            for loading, added in self._loading:
                if loading == metric:
                    added.add(pairs)
        self._grow(grown)

    async def table(self, metric: bytes) -> TagTable | None:
        """Return all series of a metric, held in memory; None if they need too much of it. Series that other processes
        added may be missing for CACHE_S. Raise StoreError."""
        held = self._tables.get(metric)
        if held is None or held.expires <= trio.current_time():
            held = await self._load(metric)
        if held.table is None:
            return None
        if held.added:
            held = self._hold(metric, held._replace(table=held.table.with_added(held.added), added=set()))
        self._tables.move_to_end(metric)
        return held.table

    async def _load(self, metric: bytes) -> _HeldTable:
        """Read the series of a metric."""
        follows = self._follow()
        now = trio.current_time()
        loading = metric, set[bytes]()
        self._loading.append(loading)
        try:
            parts = await self._read_parts(metric)
            if parts is None:
                return self._hold(metric, _HeldTable(None, now + TOO_LARGE_S, loading[1]))
            table = await trio.to_thread.run_sync(TagTable.of_parts, parts, self._layout.widths)
        finally:
            is_whole = any(one is loading for one in self._loading)
            self._loading = [one for one in self._loading if one is not loading]
        held = _HeldTable(table, math.inf if follows else now + CACHE_S, loading[1])
        return self._hold(metric, held if is_whole else held._replace(expires=now))

    def _follow(self) -> bool:
        """Subscribe to all writes of the index's table. Return whether the store reports them: reads then stay valid
        until a write changes them."""
        feed = self._store.change_feed
        if feed is not None and not self._follows:
            feed.subscribe(self._table, self._note_rows)
            self._follows = True
        return feed is not None

    async def _read_parts(self, metric: bytes) -> dict[int, list[bytes]] | None:
        """Return the series of a metric by the length of their tag pairs; None if they exceed TABLE_BYTES."""
        parts: dict[int, list[bytes]] = {}
        size = 0
        prefix = metric + self._all
        async with aclosing(cell_pages(self._store, self._table, prefix, prefix_end(prefix))) as pages:
            async for page in pages:
                size += _add_series(parts, page, len(prefix))
                if size > TABLE_BYTES:
                    return None
        return parts

    def _hold(self, metric: bytes, held: _HeldTable) -> _HeldTable:
        """Keep a table."""
        self._tables[metric] = held
        self._tables.move_to_end(metric)
        self._grow(held.nbytes)
        return held

    def _grow(self, size: int) -> None:
        """Count bytes of the tables. Look at all of them from time to time: there may be tens of thousands."""
        self._unchecked_bytes += size
        if self._unchecked_bytes > self._tables_bytes // CHECKED_SHARE:
            self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop the tables that were not used for longest while all of them take too much memory."""
        self._unchecked_bytes = 0
        size = self.table_bytes
        while size > self._tables_bytes and len(self._tables) > 1:
            size -= self._tables.popitem(last=False)[1].nbytes

    def state(self) -> IndexState:
        """Return the state in which a search finds series now."""
        expires = math.inf if self._follow() else trio.current_time() + CACHE_S
        return IndexState(self._adds, expires)

    def is_current(self, state: IndexState) -> bool:
        """Return whether a search for the same series would find the same. Series that other processes added since may
        be missing for CACHE_S more than in a read."""
        return state.adds == self._adds and (state.expires == math.inf or trio.current_time() < state.expires)

    @property
    def table_bytes(self) -> int:
        """Bytes of the metrics whose series are held in memory."""
        return sum(held.nbytes for held in self._tables.values())

    async def complete(self) -> bool:
        """Return whether the index has every series with rows, or had a few seconds ago. Raise StoreError."""
        now = trio.current_time()
        if now < self._complete_until:
            return True
        wanted, done = await self._state()
        if done == wanted:
            self._complete_until = now + CACHE_S
        else:
            self._is_incomplete.set()
        return done == wanted

    async def _state(self) -> tuple[bytes, bytes | None]:
        rows = await self._store.get(self._table, [STATE_ROW])
        cells = {cell.column: cell.value for cell in rows.get(STATE_ROW, ())}
        return cells.get(WANTED, FIRST), cells.get(DONE)

    async def outdate(self) -> None:
        """Mark the index incomplete, because another process stored rows of new series. It is then rebuilt. Without a
        table there is no index. Raise StoreError."""
        self._complete_until = -math.inf
        self._note_rows(None)
        with suppress(NoTable):
            await self._state()  # HBase retries a put to a missing table for long, and no read
            await self._store.put(self._table, [Put(STATE_ROW, WANTED, secrets.token_bytes(8))])

    async def with_tag(self, metric: bytes, pair: bytes, limit: int) -> list[bytes] | None:
        """Return the series of a metric with one tag (a pair of UIDs; empty: all series), as joined tag pairs in order;
        None if there are more than `limit`. Series that other processes added may be missing for CACHE_S. Raise
        StoreError."""
        prefix = metric + (pair or self._all)
        if (cached := self._cache.get(prefix)) and cached.expires > trio.current_time():
            return cached.series if len(cached.series) <= limit else None
        found: set[bytes] = set()
        expires = math.inf if self._follow() else trio.current_time() + CACHE_S
        adds = self._adds
        limit_bytes = min(CELL_PAGE_BYTES, (limit + 1) * ENTRY_BYTES)
        pages_of = cell_pages(self._store, self._table, prefix, prefix_end(prefix), limit_bytes=limit_bytes)
        async with aclosing(pages_of) as pages:
            async for page in pages:
                found.update(series_in(page, len(prefix)))
                if len(found) > limit:
                    return None
        series = await trio.to_thread.run_sync(sorted, found) if len(found) > SORT_IN_THREAD else sorted(found)
        if adds == self._adds and len(series) < CACHED_SERIES:
            self._cache[prefix] = _CachedRead(series, expires)
        return series

    async def series_of(self, metric: bytes, pairs: Iterable[bytes]) -> Collection[bytes] | None:
        """Return the series of a metric that have all given tag pairs; None if the index is incomplete. Raise
        StoreError."""
        if not await self.complete():
            return None
        first, *others = [*pairs] or [b""]
        found = await self.with_tag(metric, first, 1 << 62) or []
        width = self._layout.widths.pair
        if not others:
            return found
        wanted = frozenset(others)
        return [one for one in found if wanted <= {one[at : at + width] for at in range(0, len(one), width)}]

    async def keep_complete(self, data_table: str) -> None:
        """Rebuild the index whenever it is incomplete: soon after a query has found that. Never returns."""
        while True:
            pause_s = RETRY_S
            self._is_incomplete = trio.Event()
            try:
                if await self.complete():
                    with trio.move_on_at(next_time(trio.current_time(), CHECK_S)):
                        await self._is_incomplete.wait()
                    continue
                await self.rebuild(data_table)
            except DamagedBlock as error:  # stays until an operator acts, and each attempt reads all rows before it
                log.error("series_index.rebuild_stopped", error=str(error), next_step="tsd fsck")
                pause_s = CHECK_S
            except StoreError as error:
                log.warning("series_index.rebuild_failed", error=str(error))
            await sleep_until_next(pause_s)

    async def rebuild(self, data_table: str) -> int:
        """Add every series with a row, and return how many. After each page, sleep for as long as the page took. Raise
        StoreError."""
        wanted, _ = await self._state()
        count = 0
        known: set[bytes] = set()
        async with aclosing(cell_pages(self._store, data_table, b"", None)) as pages:
            began = trio.current_time()
            async for page in pages:
                count += await self.add_rows(page.keys, known, again=True)
                await trio.sleep(trio.current_time() - began)
                began = trio.current_time()
        await self._store.put(self._table, [Put(STATE_ROW, DONE, wanted)])
        if count:
            log.info("series_index.rebuilt", series=count)
        return count

    async def add_rows(self, keys: Iterable[bytes], known: set[bytes], *, again: bool = False) -> int:
        """Add the series of rows by their keys, except for `known` TSUIDs, which get them. Return how many. `again`:
        see `add`. Raise StoreError; the call may then be repeated."""
        start, base_at, pairs_at = self._layout.salt_width, self._layout.metric_end, self._layout.pairs_start
        tsuids = {key[start:base_at] + key[pairs_at:] for key in keys} - known
        cut = base_at - start
        new = [one for one in tsuids if len(one) > cut and not (len(one) - cut) % self._layout.widths.pair]
        for at in range(0, len(new), BATCH):
            await self.add(_by_metric(new[at : at + BATCH], cut), again=again)
        if len(known) > KNOWN_SERIES:
            known.clear()
        known |= tsuids
        return len(new)


def _by_metric(tsuids: Iterable[bytes], width: int) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for one in tsuids:
        found.setdefault(one[:width], []).append(one[width:])
    return found
