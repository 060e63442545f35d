"""Names without use: their UIDs are in no row, no kept series, no metadata that a user wrote, and no tree.

All row keys are read, one metric after the other. No daemon may run from the first read to the last delete, because it
may write points with the UID of any name in its caches. Names that were assigned lately stay: their first points may be
on the way. The counters of UIDs stay too, so that no UID is assigned twice.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from tsd.codec.metadata import UidMeta
from tsd.codec.names import Kind
from tsd.codec.opentsdb.meta import decode_uid_meta, encode_uid_meta
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.opentsdb.tree import COLLISION_PREFIX, LEAF_PREFIX, NOT_MATCHED_PREFIX, decode_leaf
from tsd.codec.opentsdb.uid import COUNTER_ROW, id_column, meta_column, name_column
from tsd.errors import CorruptRow
from tsd.store import Cell, Row, Store, cell_pages, scan
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.stale_series import (
    StaleSeries,
    delete_from_index,
    delete_from_meta,
    stale_in_index,
    stale_in_meta,
)

BATCH = 1000  # names deleted with one call


class PrunedTables(NamedTuple):
    """The tables that use UIDs; None: there is no such table."""

    rows: Sequence[str]  # points, rollups and pre-aggregates
    uid: str
    series: str | None  # the series index
    meta: str | None
    tree: str | None


class Ages(NamedTuple):
    """What may be deleted: what was written up to these times, in Unix milliseconds."""

    names_ms: int
    series_ms: int | None  # entries of series without rows; None: they stay, and so do their names


@dataclass
class KindNames:
    """The names of one kind that no row uses."""

    unused: dict[bytes, bytes] = field(default_factory=dict)  # to be deleted, with their UIDs
    leftover: list[bytes] = field(default_factory=list)  # UIDs to be deleted, whose names do not have them
    young: int = 0  # assigned lately
    described: int = 0  # a user wrote metadata
    inconsistent: int = 0  # `tsd uid fsck` reports them


@dataclass
class Pruned:
    """What a pass found, and deleted unless it was a dry run."""

    names: dict[Kind, KindNames] = field(default_factory=lambda: {kind: KindNames() for kind in Kind})
    cells: int = 0  # of rows that were read
    indexed: int = 0  # series deleted from the index
    described: int = 0  # series deleted from the meta table
    kept: int = 0  # series without rows that stay, and whose names stay


class _Place(NamedTuple):
    """Where rows of a metric are."""

    table: str
    prefix: bytes  # salt and metric


class _Cells(NamedTuple):
    """What the UID table has about names of one kind that are in no use."""

    forward: dict[bytes, Cell]  # by name
    reverse: dict[bytes, Cell]  # by UID
    metas: dict[bytes, Cell]  # by UID


class NamePruner:
    """Finds and deletes the names without use in a set of OpenTSDB's tables."""

    def __init__(
        self,
        store: Store,
        tables: PrunedTables,
        layout: KeyLayout,
        ages: Ages,
        *,
        pause_ratio: float = 0.0,
        on_cells: Callable[[int], None] = lambda _: None,
    ) -> None:
        """After each page of rows, sleep for `pause_ratio` times as long as it took. `on_cells` is called with the
        number of cells of each page."""
        self._store = store
        self._tables = tables
        self._layout = layout
        self._ages = ages
        self._pause_ratio = pause_ratio
        self._on_cells = on_cells
        self._used: dict[Kind, set[bytes]] = {kind: set() for kind in Kind}

    async def run(self, kinds: Collection[Kind], *, delete: bool) -> Pruned:
        """Find the series without rows and the names of some kinds without use; with `delete`, delete them. Raise
        StoreError; what was deleted is then complete in itself, and another run continues."""
        done = Pruned()
        for used in self._used.values():
            used.clear()
        places = await self._places()
        for metric in sorted(places):
            await self._take_metric(metric, places[metric], done, delete=delete)
        await self._take_trees()
        cells = await self._unused_cells(kinds)
        for kind, found in cells.items():
            self._sort_names(kind, found, done.names[kind])
            if delete:
                await self._delete_names(kind, done.names[kind], found.metas)
        if delete:
            await self._store.sync()
        return done

    async def _places(self) -> dict[bytes, list[_Place]]:
        """Return where each metric with rows, entries or metadata has rows, by its UID."""
        layout, metric = self._layout, self._layout.widths.metric
        found: dict[bytes, list[_Place]] = {}
        for table in self._tables.rows:
            async with aclosing(_prefixes(self._store, table, layout.metric_end, layout.pairs_start)) as prefixes:
                async for prefix in prefixes:
                    found.setdefault(prefix[layout.salt_width :], []).append(_Place(table, prefix))
        for other in (self._tables.series, self._tables.meta):
            if other is not None:
                async with aclosing(_prefixes(self._store, other, metric, metric)) as prefixes:
                    async for prefix in prefixes:
                        found.setdefault(prefix, [])
        found.pop(bytes(metric), None)  # global annotations
        return found

    async def _take_metric(self, metric: bytes, places: Sequence[_Place], done: Pruned, *, delete: bool) -> None:
        """Note the UIDs in use by a metric, and delete its series without rows."""
        live = await self._live(places, done)
        index, meta, widths = self._tables.series, self._tables.meta, self._layout.widths
        before_ms = -1 if self._ages.series_ms is None else self._ages.series_ms
        described = indexed = StaleSeries(set(), set())
        if meta is not None:
            described = await stale_in_meta(self._store, meta, metric, live, before_ms)
        if index is not None:
            indexed = await stale_in_index(self._store, index, widths, metric, live | described.kept, before_ms)
        if delete and index is not None and indexed.old:
            await delete_from_index(self._store, index, widths, metric, indexed.old, before_ms)
        if delete and meta is not None and described.old:
            await delete_from_meta(self._store, meta, metric, described.old, before_ms)
        done.indexed += len(indexed.old)
        done.described += len(described.old)
        kept = indexed.kept | described.kept
        done.kept += len(kept)
        self._use(metric, live | kept)

    async def _live(self, places: Sequence[_Place], done: Pruned) -> set[bytes]:
        """Return the series of a metric that have rows, as joined tag pairs."""
        found: set[bytes] = set()
        start = self._layout.pairs_start
        for table, prefix in places:
            async with aclosing(cell_pages(self._store, table, prefix, prefix_end(prefix))) as pages:
                begun = trio.current_time()
                async for page in pages:
                    found |= {key[start:] for key in page.keys if len(key) >= start}
                    done.cells += len(page.keys)
                    self._on_cells(len(page.keys))
                    await trio.sleep((trio.current_time() - begun) * self._pause_ratio)
                    begun = trio.current_time()
        return found

    def _use(self, metric: bytes, series: Collection[bytes]) -> None:
        """Note the UIDs of series, given as joined tag pairs."""
        width = self._layout.widths.pair
        if series:
            self._used[Kind.METRIC].add(metric)
        for pair in {pairs[at : at + width] for pairs in series for at in range(0, len(pairs), width)}:
            self._used[Kind.TAGK].add(pair[: self._layout.widths.tagk])
            self._used[Kind.TAGV].add(pair[self._layout.widths.tagk :])

    async def _take_trees(self) -> None:
        """Note the UIDs of the series in trees."""
        if self._tables.tree is None:
            return
        async with aclosing(scan(self._store, self._tables.tree)) as pages:
            async for rows in pages:
                for tsuid in _tsuids_in(rows):
                    metric = self._layout.widths.metric
                    self._use(tsuid[:metric], [tsuid[metric:]])

    async def _unused_cells(self, kinds: Collection[Kind]) -> dict[Kind, _Cells]:
        """Return the cells of the UID table about names that are in no use."""
        found = {kind: _Cells({}, {}, {}) for kind in kinds}
        columns = {
            column: (kind, place)
            for kind, unused in found.items()
            for column, place in zip((id_column(kind), name_column(kind), meta_column(kind)), unused, strict=True)
        }
        async with aclosing(scan(self._store, self._tables.uid, columns=[*columns])) as pages:
            async for rows in pages:
                for key, cell in ((key, cell) for key, cells in rows for cell in cells):
                    kind, place = columns[cell.column]
                    is_forward = place is found[kind].forward
                    uid = cell.value if is_forward else key
                    if uid not in self._used[kind] and not (is_forward and key == COUNTER_ROW):
                        place[key] = cell
        return found

    def _sort_names(self, kind: Kind, found: _Cells, names: KindNames) -> None:
        """Divide the names of a kind without use into those to be deleted, and the others."""
        shared: dict[bytes, int] = {}
        for cell in found.forward.values():
            shared[cell.value] = shared.get(cell.value, 0) + 1
        for name, cell in found.forward.items():
            uid = cell.value
            back, meta = found.reverse.get(uid), found.metas.get(uid)
            if back is None or back.value != name or shared[uid] > 1 or len(uid) != self._layout.widths.of(kind):
                names.inconsistent += 1
            elif max(cell.time_ms, back.time_ms, meta.time_ms if meta else 0) > self._ages.names_ms:
                names.young += 1
            elif meta is not None and _is_edited(meta):
                names.described += 1
            else:
                names.unused[name] = uid
        for uid, cell in found.reverse.items():
            meta = found.metas.get(uid)
            is_old = max(cell.time_ms, meta.time_ms if meta else 0) <= self._ages.names_ms
            if uid not in shared and is_old and not (meta and _is_edited(meta)):
                names.leftover.append(uid)

    async def _delete_names(self, kind: Kind, names: KindNames, metas: Collection[bytes]) -> None:
        """Delete names, then their UIDs. After a crash in between, the next run finds UIDs that no name has."""
        await self._delete({name: [id_column(kind)] for name in names.unused})
        column, meta = name_column(kind), meta_column(kind)
        uids = [*names.unused.values(), *names.leftover]
        await self._delete({uid: [column, meta] if uid in metas else [column] for uid in uids})

    async def _delete(self, columns: Mapping[bytes, Collection[bytes]]) -> None:
        """Delete columns of the UID table that were not written lately."""
        rows = list(columns)
        for at in range(0, len(rows), BATCH):
            chunk = {row: columns[row] for row in rows[at : at + BATCH]}
            await self._store.delete(self._tables.uid, chunk, up_to_ms=self._ages.names_ms)


async def _prefixes(store: Store, table: str, width: int, least: int) -> AsyncGenerator[bytes, None]:
    """Yield the different first `width` bytes of the row keys with `least` bytes or more, in order."""
    at: bytes | None = b""
    while at is not None:
        page = await store.page(table, at, None, limit=1)
        if not page.rows:
            at = page.next_start
            continue
        key = page.rows[0].key
        if len(key) < least:
            at = key + b"\0"
            continue
        yield key[:width]
        at = prefix_end(key[:width])


def _tsuids_in(rows: Sequence[Row]) -> Iterator[bytes]:
    """Yield the TSUIDs in rows of the tree table."""
    for row in rows:
        for cell in row.cells:
            for prefix in (COLLISION_PREFIX, NOT_MATCHED_PREFIX):
                if cell.column.startswith(prefix):
                    yield cell.column[len(prefix) :]
            if cell.column.startswith(LEAF_PREFIX):
                try:
                    yield bytes.fromhex(decode_leaf(cell.value).tsuid)
                except ValueError as exc:
                    raise CorruptRow(f"tree row {row.key.hex()}: got a TSUID that is not hex: {exc}") from exc


def _is_edited(cell: Cell) -> bool:
    """Return whether the metadata of a name differs from that which daemons write for a new name."""
    try:
        meta = decode_uid_meta(cell.value)
    except CorruptRow:
        return True
    return encode_uid_meta(meta._replace(created_s=0)) != encode_uid_meta(UidMeta(meta.kind))
