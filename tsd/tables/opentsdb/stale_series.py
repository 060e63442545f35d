"""Series without rows in the series index and in the meta table: found, and deleted.

A series' own entry in the index marks it as added, and is deleted first. So an interrupted deletion leaves entries that
the next one finds, and a series that gets points again is added whole. No daemon may run meanwhile: it remembers the
series that it has added.
"""

from collections.abc import Collection, Mapping
from contextlib import aclosing
from typing import NamedTuple

from tsd.codec.metadata import TsMeta
from tsd.codec.names import Widths
from tsd.codec.opentsdb.meta import TS_COUNTER, TS_META, decode_ts_meta, encode_ts_meta
from tsd.errors import CorruptRow
from tsd.store import Cell, Put, Store, cell_pages, scan
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.series_index import ALONE, BATCH, OWN, SHARED, entries_of, own_rows

_UNEDITED = encode_ts_meta(TsMeta(""))


class StaleSeries(NamedTuple):
    """Series of one metric without rows, as joined tag pairs."""

    old: set[bytes]  # to be deleted
    kept: set[bytes]  # recorded lately, or described by a user


async def stale_in_index(
    store: Store, table: str, widths: Widths, metric: bytes, live: Collection[bytes], before_ms: int
) -> StaleSeries:
    """Return the indexed series of a metric that are not `live`; those with an entry after `before_ms` are kept.
    Raise StoreError."""
    newest: dict[bytes, int] = {}
    prefix_bytes = widths.metric + widths.pair
    async with aclosing(cell_pages(store, table, metric, prefix_end(metric))) as pages:
        async for page in pages:
            for at in range(len(page.keys)):
                cell = page.cell(at)
                for pairs in _series_of(page.keys[at], cell, prefix_bytes):
                    if pairs not in live:
                        newest[pairs] = max(newest.get(pairs, 0), cell.time_ms)
    old = {pairs for pairs, time_ms in newest.items() if time_ms <= before_ms}
    return StaleSeries(old, newest.keys() - old)


async def delete_from_index(
    store: Store, table: str, widths: Widths, metric: bytes, old: Collection[bytes], before_ms: int
) -> None:
    """Delete all entries of series, none of them younger than `before_ms`. Raise StoreError; the call may then be
    repeated."""
    rows = own_rows({metric: sorted(old)}, widths)
    for at in range(0, len(rows), BATCH):
        await store.delete(table, {row: [OWN] for row in rows[at : at + BATCH]}, up_to_ms=before_ms)
    prefix_bytes = widths.metric + widths.pair
    async with aclosing(cell_pages(store, table, metric, prefix_end(metric))) as pages:
        async for page in pages:
            puts: list[Put] = []
            deletes: dict[bytes, list[bytes]] = {}
            for at, key in enumerate(page.keys):
                cell = page.cell(at)
                some = _series_of(key, cell, prefix_bytes)
                left = [pairs for pairs in some if pairs not in old]
                if len(left) < len(some):
                    puts += entries_of(key[:prefix_bytes], left)
                    deletes.setdefault(key, []).append(cell.column)
            if puts:  # before the entries that they replace are deleted: no reader misses a series
                await store.put(table, sorted(puts))
            if deletes:
                await store.delete(table, deletes, up_to_ms=before_ms)


def _series_of(key: bytes, cell: Cell, prefix_bytes: int) -> list[bytes]:
    """Return the joined tag pairs of the series in an entry; none for a cell that is no entry."""
    if cell.column in (OWN, ALONE):
        return [key[prefix_bytes:]]
    if cell.column.startswith(SHARED) and (size := len(key) - prefix_bytes):
        return [cell.value[at : at + size] for at in range(0, len(cell.value), size)]
    return []


async def stale_in_meta(
    store: Store, table: str, metric: bytes, live: Collection[bytes], before_ms: int
) -> StaleSeries:
    """Return the series of a metric in the meta table that are not `live`. Those that were written after `before_ms` or
    whose metadata a user has edited are kept. Raise StoreError."""
    found = StaleSeries(set(), set())
    async with aclosing(scan(store, table, metric, prefix_end(metric))) as pages:
        async for rows in pages:
            for key, cells in rows:
                pairs = key[len(metric) :]
                if pairs not in live:
                    is_old = all(cell.time_ms <= before_ms and _is_automatic(cell) for cell in cells)
                    (found.old if is_old else found.kept).add(pairs)
    return found


async def delete_from_meta(store: Store, table: str, metric: bytes, old: Collection[bytes], before_ms: int) -> None:
    """Delete the rows of series from the meta table if they are no younger than `before_ms`. Raise StoreError."""
    keys = sorted(metric + pairs for pairs in old)
    for at in range(0, len(keys), BATCH):
        deletes: Mapping[bytes, Collection[bytes]] = {key: [TS_META, TS_COUNTER] for key in keys[at : at + BATCH]}
        await store.delete(table, deletes, up_to_ms=before_ms)


def _is_automatic(cell: Cell) -> bool:
    """Return whether a cell of the meta table is as daemons write it for a new series."""
    if cell.column != TS_META:
        return cell.column == TS_COUNTER
    try:
        meta = decode_ts_meta(cell.value)
    except CorruptRow:
        return False
    return encode_ts_meta(meta._replace(tsuid="", created_s=0)) == _UNEDITED
