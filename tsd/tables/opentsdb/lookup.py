"""Finds existing series in the series index, the meta table, this daemon's writes, and rows of recent hours.

Selectors by names are resolved to UIDs first (docs/compat/query.md §17).
"""

import math
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import trio
from cachetools import FIFOCache

from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import KeyLayout, base_bytes, join_pairs, salts, split_pairs
from tsd.codec.opentsdb.uid import COUNTER_ROW, id_column
from tsd.codec.putline import HOUR_S
from tsd.codec.text import encode_name
from tsd.errors import BadLine, NoSuchName, TsdError
from tsd.store import Store, scan
from tsd.store.cells import prefix_end
from tsd.tables.catalog import SeriesSelector
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.opentsdb.uids import Uids

ANY = ("", "*")


class ResolvedSelector(NamedTuple):
    """Series by UIDs."""

    metric: bytes | None  # None: every metric
    values: Mapping[
        bytes | None, frozenset[bytes] | None
    ]  # by tag name UID; a name of None is any tag, values of None are any value

    def fixed_pairs(self) -> list[bytes]:
        """Return the tag pairs, as row keys have them, that every matching series has."""
        return [
            tagk + next(iter(tagvs))
            for tagk, tagvs in self.values.items()
            if tagk is not None and tagvs is not None and len(tagvs) == 1
        ]

    def exact(self) -> bytes | None:
        """Return the TSUID of the series with exactly these tags; None unless each tag has one name and one value."""
        pairs = []
        for tagk, tagvs in self.values.items():
            if tagk is None or (tagvs is not None and len(tagvs) > 1):
                return None
            pairs += [(tagk, tagv) for tagv in tagvs or ()]
        return self.metric + join_pairs(pairs) if self.metric is not None and pairs else None

    def matches(self, pairs: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a series with these pairs (tagk, tagv) matches."""
        tags = dict(pairs)
        for tagk, tagvs in self.values.items():
            if tagk is None:
                if tagvs is not None and tagvs.isdisjoint(tags.values()):
                    return False
            elif tagk not in tags or (tagvs is not None and tags[tagk] not in tagvs):
                return False
        return True


async def resolve(uids: Uids, selector: SeriesSelector) -> ResolvedSelector:
    """Return the UIDs of a selector's names. Raise NoSuchName, StoreError."""
    any_name = () if selector.is_literal else ANY
    metric = None
    if selector.metric not in (*any_name, ""):
        metric = (await _found(uids, Kind.METRIC, [selector.metric]))[selector.metric]
    tagks = await _found(uids, Kind.TAGK, [tagk for tagk, _ in selector.tags if tagk not in any_name])
    tagvs = await _found(uids, Kind.TAGV, [tagv for _, tagv in selector.tags if tagv not in any_name])
    values: dict[bytes | None, frozenset[bytes] | None] = {}
    for tagk, tagv in selector.tags:
        key = tagks.get(tagk)
        before = values.get(key, frozenset())
        value = tagvs.get(tagv)
        values[key] = None if value is None or before is None else before | {value}
    return ResolvedSelector(metric, values)


async def _found(uids: Uids, kind: Kind, names: Sequence[str]) -> dict[str, bytes]:
    raw: dict[str, bytes] = {}
    for name in names:
        try:
            raw[name] = encode_name(name)
        except BadLine as error:
            raise NoSuchName(f"No such name for '{kind.value}': '{name}'") from error
    there = await uids.find(kind, raw.values())
    found: dict[str, bytes] = {}
    for name, as_bytes in raw.items():
        uid = there[as_bytes]
        if isinstance(uid, TsdError):
            raise uid
        found[name] = uid
    return found


PAGE_SERIES = 1000  # series per page, which take the lookup and its caller a few milliseconds
PAGE_ROWS = 5000
CACHED_SERIES = 2_000_000  # series found in rows, of all metrics together


class LookupTables(NamedTuple):
    """The tables that may name series."""

    data: str
    uids: str
    meta: str | None  # None: series are not recorded in it


class RowScanRules(NamedTuple):
    """How series are found in rows of points: without an index and a meta table."""

    look_back_h: int  # whose rows are scanned
    cache_s: int | None  # a scan is repeated after this time; None: never, no other process writes


class _RowScan(NamedTuple):
    """The series that a scan of a metric's rows found."""

    series: set[bytes]
    at_s: int  # time of the scan
    missing_changes: int  # of the cache of this daemon's writes, at the start of the scan


class SeriesFinder:
    """Finds the series that a selector matches."""

    def __init__(
        self,
        store: Store,
        tables: LookupTables,
        layout: KeyLayout,
        recent: LastPointCache,
        now_s: Callable[[], int],
        row_scans: RowScanRules,
        index: SeriesIndex | None = None,
    ) -> None:
        """`recent` has the series that this daemon wrote."""
        self._store = store
        self._tables = tables
        self._layout = layout
        self._recent = recent
        self._now_s = now_s
        self._row_scans = row_scans
        self._index = index
        self._scans: FIFOCache[bytes, _RowScan] = FIFOCache(CACHED_SERIES, getsizeof=_series_of)

    def clear(self) -> None:
        """Drop the cached scans."""
        self._scans.clear()

    async def select(
        self, wanted: ResolvedSelector, limit: int | None = None
    ) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        """Yield matching series in pages, at most `limit` in all, as (metric UID, joined tag pairs) in order of their
        TSUIDs. Raise StoreError."""
        left = limit
        metrics = [wanted.metric] if wanted.metric is not None else await self._metrics()
        for metric in metrics:
            series = sorted(await self._of_metric(metric, wanted, left))
            for at in range(0, len(series), PAGE_SERIES):
                page = self._matching(metric, series[at : at + PAGE_SERIES], wanted)[:left]
                await trio.lowlevel.checkpoint()
                if page:
                    yield page
                if left is not None:
                    left -= len(page)
                    if left <= 0:
                        return

    def _matching(self, metric: bytes, series: Iterable[bytes], wanted: ResolvedSelector) -> list[tuple[bytes, bytes]]:
        if not wanted.values:
            return [(metric, pairs) for pairs in series]
        widths = self._layout.widths
        return [(metric, pairs) for pairs in series if wanted.matches(split_pairs(widths, pairs))]

    async def _metrics(self) -> list[bytes]:
        """Return the metrics that may have series, in order."""
        found = {*self._recent.metrics(), *self._scans}
        if self._index is not None:
            async for rows in scan(self._store, self._tables.uids, columns=[id_column(Kind.METRIC)]):
                found.update(row.cells[0].value for row in rows if row.key != COUNTER_ROW)
        if self._tables.meta is not None:
            width = self._layout.widths.metric
            async for rows in scan(self._store, self._tables.meta):
                found.update(row.key[:width] for row in rows)
        return sorted(found)

    async def _of_metric(self, metric: bytes, wanted: ResolvedSelector, limit: int | None) -> Collection[bytes]:
        """Return series of a metric, among them all that match, or at least `limit` of these."""
        if self._index is not None:
            indexed = await self._index.series_of(metric, wanted.fixed_pairs())
            if indexed is not None:
                return indexed
        if self._tables.meta is not None:
            return {*self._recent.pairs_of(metric), *await self._in_meta_table(self._tables.meta, metric)}
        return {*self._recent.pairs_of(metric), *await self._in_rows(metric, wanted, limit)}

    async def _in_meta_table(self, table: str, metric: bytes) -> set[bytes]:
        """Return the series of a metric in the meta table."""
        width, pair = self._layout.widths.metric, self._layout.widths.pair
        found: set[bytes] = set()
        async for rows in scan(self._store, table, metric, prefix_end(metric), limit=PAGE_ROWS):
            found.update(row.key[width:] for row in rows if not (len(row.key) - width) % pair)
        return found

    async def _in_rows(self, metric: bytes, wanted: ResolvedSelector, limit: int | None) -> set[bytes]:
        """Return the series of a metric with rows in the last hours, newest hour first; at least `limit` matching
        ones."""
        now = self._now_s()
        this_hour = now - now % HOUR_S
        since = this_hour - self._row_scans.look_back_h * HOUR_S
        before = self._scans.get(metric)
        changes = self._recent.missing_changes
        if before is not None and before.missing_changes == changes:
            cache_s = self._row_scans.cache_s
            if cache_s is None or now - before.at_s < cache_s:
                return before.series
            since = max(since, before.at_s - before.at_s % HOUR_S)
        found = set(before.series) if before else set[bytes]()
        missing = math.inf if limit is None else limit
        for base in range(this_hour, since - 1, -HOUR_S):
            for salt in salts(self._layout):
                prefix = salt + metric + base_bytes(base)
                at: bytes | None = prefix
                while at is not None:
                    page = await self._store.page(self._tables.data, at, prefix_end(prefix), limit=PAGE_ROWS)
                    at = page.next_start
                    new = {row.key[len(prefix) :] for row in page.rows if len(row.key) > len(prefix)} - found
                    found |= new
                    missing -= len(self._matching(metric, new, wanted))
                    if missing <= 0:
                        return found  # incomplete: not cached
        self._scans[metric] = _RowScan(found, now, changes)
        return found


def _series_of(found: _RowScan) -> int:
    """Return how many of CACHED_SERIES a scan has: at most all."""
    return min(len(found.series), CACHED_SERIES)
