"""Annotations in the rows of the data table: read, merged and deleted (FORMATS.md §7)."""

from collections.abc import AsyncIterator, Collection, Sequence

from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import (
    ANNOTATION,
    annotation_qualifier,
    annotation_row,
    decode_annotation,
    encode_annotation,
)
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rowkey import Layout, after, base_bytes
from tsd.codec.putline import FIRST_MS, HOUR_S
from tsd.errors import CorruptRow
from tsd.store import Row, Store, scan
from tsd.tables.opentsdb.metadata import edit, read

ANNOTATION_COLUMN = COLUMN + ANNOTATION
HOURS_PER_GET = 500


class AnnotationRows:
    """The annotations of a data table."""

    def __init__(self, store: Store, table: str, layout: Layout) -> None:
        self._store = store
        self._table = table
        self._layout = layout

    async def get(self, start_time: int, series: bytes) -> Annotation | None:
        """Return the annotation with this start time, of a series or (empty TSUID) a global one. Raise StoreError,
        CorruptRow."""
        cell = await read(self._store, self._table, *self._place(start_time, series))
        return decode_annotation(cell.value) if cell else None

    async def put(self, annotation: Annotation, series: bytes, fields: Collection[str] | None = None) -> Annotation:
        """Store an annotation, and return what is stored. Of an existing annotation only `fields` change (None: all).
        If both share a column, the lower start time is kept. Raises StoreError, CorruptRow."""

        def merged(before: bytes | None) -> bytes:
            if before is None:
                return encode_annotation(annotation)
            stored = decode_annotation(before)
            start_time = annotation.start_time
            if stored.start_time > 0:
                start_time = min(stored.start_time, start_time)
            if fields is None:
                return encode_annotation(annotation._replace(start_time=start_time))
            changes = {name: value for name, value in annotation._asdict().items() if name in fields}
            return encode_annotation(stored._replace(**changes)._replace(start_time=start_time))

        row, column = self._place(annotation.start_time, series)
        value = await edit(self._store, self._table, row, column, merged)
        return decode_annotation(value or b"{}")

    async def delete(self, start_time: int, series: bytes) -> None:
        """Delete the annotation with this start time, if there is one. Raises StoreError."""
        row, column = self._place(start_time, series)
        cell = await read(self._store, self._table, row, column)
        if cell is not None:
            await self._store.delete(self._table, {row: [column]}, up_to_ms=cell.time_ms)
            await self._store.sync()

    async def global_between(self, start_ms: int, end_ms: int) -> list[Annotation]:
        """Return the global annotations that start and end between two times, in order. Raise StoreError."""
        found = []
        async for row in self._global_rows(start_ms, end_ms):
            for cell in row.cells:
                one = _decode(cell.column, cell.value)
                if one and start_ms <= _ms(one.start_time) <= end_ms and _ms(one.end_time) <= end_ms:
                    found.append(one)
        return found

    async def delete_between(self, start_ms: int, end_ms: int, series: Sequence[bytes], *, global_: bool) -> int:
        """Delete the annotations that start between two times, on some series and, with `global_`, global ones. Return
        how many. Raises StoreError."""
        deleted = 0
        for tsuid in series:
            async for row in self._series_rows(start_ms, end_ms, tsuid):
                deleted += await self._delete_of(row, start_ms, end_ms)
        if global_:
            async for row in self._global_rows(start_ms, end_ms):
                deleted += await self._delete_of(row, start_ms, end_ms)
        await self._store.sync()
        return deleted

    async def _delete_of(self, row: Row, start_ms: int, end_ms: int) -> int:
        deleted = 0
        for cell in row.cells:
            one = _decode(cell.column, cell.value)
            if one and start_ms <= _ms(one.start_time) <= end_ms:
                await self._store.delete(self._table, {row.key: [cell.column]}, up_to_ms=cell.time_ms)
                deleted += 1
        return deleted

    async def _global_rows(self, start_ms: int, end_ms: int) -> AsyncIterator[Row]:
        prefix = bytes(self._layout.metric_end)
        first, last = start_ms // 1000 // HOUR_S * HOUR_S, end_ms // 1000
        async for rows in scan(self._store, self._table, prefix + base_bytes(first), after(prefix + base_bytes(last))):
            for row in rows:
                if len(row.key) == self._layout.pairs_start:
                    yield row

    async def _series_rows(self, start_ms: int, end_ms: int, tsuid: bytes) -> AsyncIterator[Row]:
        bases = range(start_ms // 1000 // HOUR_S * HOUR_S, end_ms // 1000 + 1, HOUR_S)
        for at in range(0, len(bases), HOURS_PER_GET):
            keys = [annotation_row(self._layout, max(base, 1), tsuid) for base in bases[at : at + HOURS_PER_GET]]
            for key, cells in (await self._store.get(self._table, keys)).items():
                yield Row(key, cells)

    def _place(self, start_time: int, tsuid: bytes) -> tuple[bytes, bytes]:
        return annotation_row(self._layout, start_time, tsuid), COLUMN + annotation_qualifier(start_time)


def _decode(column: bytes, value: bytes) -> Annotation | None:
    """Return the annotation in a cell; None for a cell of another kind, or one that cannot be decoded."""
    if not column.startswith(ANNOTATION_COLUMN) or len(column) - len(COLUMN) not in (3, 5):
        return None
    try:
        return decode_annotation(value)
    except CorruptRow:
        return None


def _ms(time: int) -> int:
    return time if time >= FIRST_MS else time * 1000
