"""What users say of names and series: read, changed and deleted where it is stored (FORMATS.md §10)."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from tsd.codec.meta import (
    TS_COUNTER,
    TS_META,
    TsMeta,
    UidMeta,
    decode_count,
    decode_ts_meta,
    decode_uid_meta,
    encode_ts_meta,
    encode_uid_meta,
)
from tsd.codec.rowkey import Series, after
from tsd.codec.tsuid import split_tsuid
from tsd.codec.uid import Kind, Widths
from tsd.errors import BadLine, NoSuchName
from tsd.metadata.edit import edit, read
from tsd.store import Cell, Store, scan
from tsd.uids import Uids

Changes = Mapping[str, Any]  # new values by field of UidMeta or TsMeta


class SeriesMeta(NamedTuple):
    """What the meta table holds of a series."""

    meta: TsMeta
    points: int = 0  # or 1 while they are not counted
    last_received_s: int = 0  # when the counter was last written; 0: never


class UidMetas:
    """What users say of names."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table

    async def get(self, kind: Kind, uids: list[bytes]) -> dict[bytes, UidMeta]:
        """What is said of each; of most nothing. Raises StoreError, CorruptRow."""
        rows = await self._store.get(self._table, uids, columns=[kind.meta_column])
        return {uid: decode_uid_meta(rows[uid][0].value) if uid in rows else UidMeta(kind) for uid in uids}

    async def change(self, kind: Kind, uid: bytes, changes: Changes, *, replace: bool) -> UidMeta:
        """What is said of a UID from now on; with `replace`, what is not among the changes is unsaid. Raises
        StoreError, CorruptRow."""

        def changed(before: bytes | None) -> bytes:
            old = decode_uid_meta(before) if before else UidMeta(kind)
            new = UidMeta(kind, created_s=old.created_s) if replace else old
            return encode_uid_meta(new._replace(**changes))

        value = await edit(self._store, self._table, uid, kind.meta_column, changed)
        return decode_uid_meta(value or b"{}")

    async def delete(self, kind: Kind, uid: bytes) -> None:
        """Nothing is said any more. Raises StoreError."""
        await _delete(self._store, self._table, uid, kind.meta_column)


class SeriesMetas:
    """What the meta table holds of series."""

    def __init__(self, store: Store, table: str, widths: Widths) -> None:
        self._store = store
        self._table = table
        self._widths = widths

    async def get(self, tsuid: bytes) -> SeriesMeta | None:
        """What there is of a series. Raises StoreError, CorruptRow."""
        rows = await self._store.get(self._table, [tsuid], columns=[TS_META, TS_COUNTER])
        return _series_meta(rows.get(tsuid, []))

    async def of_metric(self, metric: bytes) -> AsyncGenerator[tuple[Series, SeriesMeta], None]:
        """What there is of a metric's series, in order of their TSUIDs. Raises StoreError, CorruptRow."""
        async with aclosing(scan(self._store, self._table, metric, after(metric))) as pages:
            async for rows in pages:
                for key, cells in rows:
                    found = _series_meta(cells)
                    if found is None:
                        continue
                    try:
                        series = split_tsuid(self._widths, key)
                    except BadLine:
                        continue  # no row of a series
                    yield series, found

    async def change(self, tsuid: bytes, changes: Changes, *, replace: bool, create_s: int | None = None) -> TsMeta:
        """What is said of a series from now on. Where there is nothing it is NoSuchName, unless it may be created at
        `create_s`. Raises StoreError, CorruptRow."""

        def changed(before: bytes | None) -> bytes:
            if before is None and create_s is None:
                raise NoSuchName("Requested TSMeta did not exist")
            old = decode_ts_meta(before) if before else TsMeta(tsuid.hex().upper(), created_s=create_s or 0)
            new = TsMeta(old.tsuid, created_s=old.created_s) if replace else old
            return encode_ts_meta(new._replace(**changes))

        return decode_ts_meta(await edit(self._store, self._table, tsuid, TS_META, changed) or b"{}")

    async def delete(self, tsuid: bytes) -> None:
        """Nothing is said any more; that the series is there stays. Raises StoreError."""
        await _delete(self._store, self._table, tsuid, TS_META)


def _series_meta(cells: list[Cell]) -> SeriesMeta | None:
    """From a row's cells; a counter alone says nothing."""
    found = {cell.column: cell for cell in cells}
    if TS_META not in found:
        return None
    meta = decode_ts_meta(found[TS_META].value)
    counter = found.get(TS_COUNTER)
    return SeriesMeta(meta, decode_count(counter.value), counter.time_ms // 1000) if counter else SeriesMeta(meta)


async def _delete(store: Store, table: str, row: bytes, column: bytes) -> None:
    cell = await read(store, table, row, column)
    if cell is not None:
        await store.delete(table, {row: [column]}, up_to_ms=cell.time_ms)
        await store.sync()


class Named(NamedTuple):
    """A UID with its name and what is said of it."""

    uid: bytes
    name: str
    meta: UidMeta


async def named(uids: Uids, metas: UidMetas, kind: Kind, wanted: list[bytes]) -> list[Named]:
    """Names and what is said of them; raises NoSuchName for a UID without name, StoreError, CorruptRow."""
    names = await uids.names(kind, wanted)
    said = await metas.get(kind, wanted)
    found = []
    for uid in wanted:
        name = names[uid]
        if isinstance(name, NoSuchName):
            raise name
        found.append(Named(uid, name.decode("latin-1"), said[uid]))
    return found
