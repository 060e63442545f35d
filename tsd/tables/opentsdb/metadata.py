"""Metadata of names and series: read, changed and deleted where it is stored (FORMATS.md §10)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from tsd.codec.metadata import TsMeta, UidMeta
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.meta import (
    TS_COUNTER,
    TS_META,
    decode_count,
    decode_ts_meta,
    decode_uid_meta,
    encode_ts_meta,
    encode_uid_meta,
)
from tsd.codec.opentsdb.rowkey import Series, split_tsuid
from tsd.codec.opentsdb.uid import meta_column
from tsd.errors import BadLine, NoSuchName, StoreBusy
from tsd.store import Cell, Store, scan
from tsd.store.cells import prefix_end
from tsd.tables.catalog import NamedUid, NoSuchMetadata, SeriesMetadata, SeriesSelector
from tsd.tables.opentsdb.lookup import resolve
from tsd.tables.opentsdb.uids import Uids

MAX_EDITS = 10


async def edit(
    store: Store, table: str, row: bytes, column: bytes, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """Apply `change` to the value of a cell (None: absent), and return the new value, durably stored.

    `change` returns None to leave the cell as it is. It is called again if another process changed the cell meanwhile.
    Raise StoreError.
    """
    for _ in range(MAX_EDITS):
        cell = await read(store, table, row, column)
        before = cell.value if cell else None
        after = change(before)
        if after is None or after == before:
            await store.sync()  # the sync of the request that wrote the cell may go on, or have failed
            return before
        if await store.check_and_put(table, row, column, after, expected=before):
            return after
    raise StoreBusy(f"{table}: row {row.hex()}, {column.decode('latin-1')}: other processes keep changing the cell")


async def read(store: Store, table: str, row: bytes, column: bytes) -> Cell | None:
    """Return one cell. Raise StoreError."""
    rows = await store.get(table, [row], columns=[column])
    return rows[row][0] if row in rows else None


class StoredTsMeta(NamedTuple):
    """The metadata of a series as one row of the meta table has it."""

    meta: TsMeta
    points: int = 0  # 1 while points are not counted
    last_received_s: int = 0  # write time of the counter; 0: none


class UidMetas:
    """The metadata of names in a UID table."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table

    async def get(self, kind: Kind, uids: list[bytes]) -> dict[bytes, UidMeta]:
        """Return the metadata of each UID; empty where nothing is stored. Raise StoreError, CorruptRow."""
        rows = await self._store.get(self._table, uids, columns=[meta_column(kind)])
        return {uid: decode_uid_meta(rows[uid][0].value) if uid in rows else UidMeta(kind) for uid in uids}

    async def edit(self, kind: Kind, uid: bytes, change: Callable[[UidMeta], UidMeta]) -> UidMeta:
        """Change the metadata of a UID, and return it. Raise StoreError, CorruptRow."""

        def changed(before: bytes | None) -> bytes:
            return encode_uid_meta(change(decode_uid_meta(before) if before else UidMeta(kind)))

        value = await edit(self._store, self._table, uid, meta_column(kind), changed)
        return decode_uid_meta(value or b"{}")

    async def delete(self, kind: Kind, uid: bytes) -> None:
        """Delete the metadata of a UID. Raise StoreError."""
        await _delete(self._store, self._table, uid, meta_column(kind))


class MetaTable:
    """The metadata of series in the meta table."""

    def __init__(self, store: Store, table: str, widths: Widths, now_s: Callable[[], int]) -> None:
        self._store = store
        self._table = table
        self._widths = widths
        self._now_s = now_s

    async def get(self, tsuid: bytes) -> StoredTsMeta | None:
        """Return the metadata of a series. Raise StoreError, CorruptRow."""
        rows = await self._store.get(self._table, [tsuid], columns=[TS_META, TS_COUNTER])
        return _ts_meta(rows.get(tsuid, []))

    async def of_metric(self, metric: bytes) -> AsyncGenerator[tuple[bytes, Series, StoredTsMeta], None]:
        """Return the metadata of a metric's series, in order of their TSUIDs. Raise StoreError, CorruptRow."""
        async with aclosing(scan(self._store, self._table, metric, prefix_end(metric))) as pages:
            async for rows in pages:
                for key, cells in rows:
                    found = _ts_meta(cells)
                    if found is None:
                        continue
                    try:
                        series = split_tsuid(self._widths, key)
                    except BadLine:
                        continue  # not the row of a series
                    yield key, series, found

    async def edit(self, tsuid: bytes, change: Callable[[TsMeta], TsMeta], *, create: bool) -> TsMeta:
        """Change the metadata of a series, and return it. Raise NoSuchMetadata if there is none and `create` is
        not set, StoreError, CorruptRow."""

        def changed(before: bytes | None) -> bytes:
            if before is None and not create:
                raise NoSuchMetadata("Requested TSMeta did not exist")
            stored = decode_ts_meta(before) if before else TsMeta(tsuid.hex().upper(), created_s=self._now_s())
            return encode_ts_meta(change(stored))

        return decode_ts_meta(await edit(self._store, self._table, tsuid, TS_META, changed) or b"{}")

    async def delete(self, tsuid: bytes) -> None:
        """Delete the metadata of a series, but not its counter. Raise StoreError."""
        await _delete(self._store, self._table, tsuid, TS_META)


def _ts_meta(cells: list[Cell]) -> StoredTsMeta | None:
    """Return the metadata in a row's cells; None for a counter alone."""
    found = {cell.column: cell for cell in cells}
    if TS_META not in found:
        return None
    meta = decode_ts_meta(found[TS_META].value)
    counter = found.get(TS_COUNTER)
    return StoredTsMeta(meta, decode_count(counter.value), counter.time_ms // 1000) if counter else StoredTsMeta(meta)


async def _delete(store: Store, table: str, row: bytes, column: bytes) -> None:
    cell = await read(store, table, row, column)
    if cell is not None:
        await store.delete(table, {row: [column]}, up_to_ms=cell.time_ms)
        await store.sync()


async def named(uids: Uids, metas: UidMetas, kind: Kind, wanted: list[bytes]) -> list[NamedUid]:
    """Return UIDs with their names and metadata. Raise NoSuchName for a UID without name, StoreError, CorruptRow."""
    names = await uids.names(kind, wanted)
    stored = await metas.get(kind, wanted)
    found = []
    for uid in wanted:
        name = names[uid]
        if isinstance(name, NoSuchName):
            raise name
        found.append(NamedUid(uid, name.decode("latin-1"), stored[uid]))
    return found


class MetadataTables:
    """Metadata of names, in the UID table, and of series, in the meta table: implements
    `tsd.tables.catalog.Metadata`."""

    def __init__(self, uids: Uids, names: UidMetas, series: MetaTable, widths: Widths) -> None:
        self._uids = uids
        self._names = names
        self._series = series
        self._widths = widths

    async def get_uid(self, kind: Kind, uid: bytes) -> NamedUid:
        """Return the metadata of a UID. Raise NoSuchName, StoreError, CorruptRow."""
        return (await named(self._uids, self._names, kind, [uid]))[0]

    async def edit_uid(self, kind: Kind, uid: bytes, change: Callable[[UidMeta], UidMeta]) -> NamedUid:
        """Change the metadata of a UID, and return it. Raise NoSuchName, StoreError, CorruptRow."""
        found = await self.get_uid(kind, uid)
        return found._replace(meta=await self._names.edit(kind, uid, change))

    async def delete_uid(self, kind: Kind, uid: bytes) -> None:
        """Delete the metadata of a UID. Raise StoreError."""
        await self._names.delete(kind, uid)

    async def has_series(self, series: bytes) -> bool:
        """Return whether a series has metadata. Raise StoreError, CorruptRow."""
        return await self._series.get(series) is not None

    async def get_series(self, series: bytes) -> SeriesMetadata | None:
        """Return the metadata of a series. Raise NoSuchName, StoreError, CorruptRow."""
        found = await self._series.get(series)
        return None if found is None else await self._with_names(series, split_tsuid(self._widths, series), found)

    async def find_series(self, selector: SeriesSelector) -> AsyncGenerator[SeriesMetadata, None]:
        """Return the metadata of a metric's series that a selector matches, in order of their TSUIDs. Raise NoSuchName,
        StoreError, CorruptRow."""
        wanted = await resolve(self._uids, selector)
        async with aclosing(self._series.of_metric(wanted.metric or b"")) as all_of_metric:
            async for tsuid, series, found in all_of_metric:
                if wanted.matches(series.pairs):
                    yield await self._with_names(tsuid, series, found)

    async def edit_series(self, series: bytes, change: Callable[[TsMeta], TsMeta], *, create: bool) -> SeriesMetadata:
        """Change the metadata of a series, and return it. Raise NoSuchName, NoSuchMetadata, StoreError, CorruptRow."""
        split = split_tsuid(self._widths, series)
        names = await self._with_names(series, split, StoredTsMeta(TsMeta("")))  # every UID must have a name
        meta = await self._series.edit(series, change, create=create)
        found = await self._series.get(series) or StoredTsMeta(meta)
        return names._replace(meta=found.meta, points=found.points, last_received_s=found.last_received_s)

    async def delete_series(self, series: bytes) -> None:
        """Delete the metadata of a series. Raise StoreError."""
        await self._series.delete(series)

    async def _with_names(self, tsuid: bytes, series: Series, found: StoredTsMeta) -> SeriesMetadata:
        [metric] = await named(self._uids, self._names, Kind.METRIC, [series.metric])
        tagks = await named(self._uids, self._names, Kind.TAGK, [tagk for tagk, _ in series.pairs])
        tagvs = await named(self._uids, self._names, Kind.TAGV, [tagv for _, tagv in series.pairs])
        tags = [one for pair in zip(tagks, tagvs, strict=True) for one in pair]
        return SeriesMetadata(tsuid, metric, tags, *found)
