"""Notes: read, merged and deleted in the rows of the data table (FORMATS.md §7)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tsd.codec.annotation import (
    ANNOTATION,
    Annotation,
    annotation_qualifier,
    annotation_row,
    decode_annotation,
    encode_annotation,
)
from tsd.codec.cell import COLUMN
from tsd.codec.rowkey import Layout, after, base_bytes
from tsd.codec.times import FIRST_MS, HOUR_S
from tsd.errors import CorruptRow
from tsd.metadata.edit import edit, read
from tsd.store import Row, Store, scan

NOTE_COLUMN = COLUMN + ANNOTATION
GET_ROWS = 500  # hours asked for at once


class Notes:
    """The notes of a data table. Times are as sent: seconds, or milliseconds from 2^32 up."""

    def __init__(self, store: Store, table: str, layout: Layout) -> None:
        self._store = store
        self._table = table
        self._layout = layout

    async def get(self, start_time: int, tsuid: bytes) -> Annotation | None:
        """The note that starts then, on a series or (no TSUID) global. Raises StoreError, CorruptRow."""
        cell = await read(self._store, self._table, *self._place(start_time, tsuid))
        return decode_annotation(cell.value) if cell else None

    async def put(self, note: Annotation, changed: Mapping[str, Any], tsuid: bytes, *, replace: bool) -> Annotation:
        """The note as it is stored from now on: `note` where there is none or with `replace`, else the stored one with
        what is `changed`. The lower start time of one place wins. Raises StoreError, CorruptRow."""

        def merged(before: bytes | None) -> bytes:
            if before is None:
                return encode_annotation(note)
            stored = decode_annotation(before)
            start_time = min(stored.start_time, note.start_time) if stored.start_time > 0 else note.start_time
            return encode_annotation((note if replace else stored._replace(**changed))._replace(start_time=start_time))

        row, column = self._place(note.start_time, tsuid)
        value = await edit(self._store, self._table, row, column, merged)
        return decode_annotation(value or b"{}")

    async def delete(self, start_time: int, tsuid: bytes) -> None:
        """There is no such note any more. Raises StoreError."""
        row, column = self._place(start_time, tsuid)
        cell = await read(self._store, self._table, row, column)
        if cell is not None:
            await self._store.delete(self._table, {row: [column]}, up_to_ms=cell.time_ms)
            await self._store.sync()

    async def global_notes(self, start_ms: int, end_ms: int) -> list[Annotation]:
        """The global notes that start and end between two times, in order. Raises StoreError."""
        found = []
        async for row in self._global_rows(start_ms, end_ms):
            for cell in row.cells:
                note = _note(cell.column, cell.value)
                if note and start_ms <= _ms(note.start_time) <= end_ms and _ms(note.end_time) <= end_ms:
                    found.append(note)
        return found

    async def delete_between(self, start_ms: int, end_ms: int, tsuids: Sequence[bytes], *, global_: bool) -> int:
        """Delete the notes that start between two times, on some series and, if wanted, global ones; how many. Raises
        StoreError."""
        deleted = 0
        for tsuid in tsuids:
            async for row in self._series_rows(start_ms, end_ms, tsuid):
                deleted += await self._delete_of(row, start_ms, end_ms)
        if global_:
            async for row in self._global_rows(start_ms, end_ms):
                deleted += await self._delete_of(row, start_ms, end_ms)
        await self._store.sync()
        return deleted

    async def _delete_of(self, row: Row, start_ms: int, end_ms: int) -> int:
        gone = [
            cell
            for cell in row.cells
            if (note := _note(cell.column, cell.value)) and start_ms <= _ms(note.start_time) <= end_ms
        ]
        for cell in gone:
            await self._store.delete(self._table, {row.key: [cell.column]}, up_to_ms=cell.time_ms)
        return len(gone)

    async def _global_rows(self, start_ms: int, end_ms: int) -> AsyncIterator[Row]:
        prefix = bytes(self._layout.metric_end)
        first, last = start_ms // 1000 // HOUR_S * HOUR_S, end_ms // 1000
        async for rows in scan(self._store, self._table, prefix + base_bytes(first), after(prefix + base_bytes(last))):
            for row in rows:
                if len(row.key) == self._layout.pairs_start:
                    yield row

    async def _series_rows(self, start_ms: int, end_ms: int, tsuid: bytes) -> AsyncIterator[Row]:
        bases = range(start_ms // 1000 // HOUR_S * HOUR_S, end_ms // 1000 + 1, HOUR_S)
        for at in range(0, len(bases), GET_ROWS):
            keys = [annotation_row(self._layout, max(base, 1), tsuid) for base in bases[at : at + GET_ROWS]]
            for key, cells in (await self._store.get(self._table, keys)).items():
                yield Row(key, cells)

    def _place(self, start_time: int, tsuid: bytes) -> tuple[bytes, bytes]:
        return annotation_row(self._layout, start_time, tsuid), COLUMN + annotation_qualifier(start_time)


def _note(column: bytes, value: bytes) -> Annotation | None:
    """The note in a cell; None for a cell of another kind, or a note that cannot be read."""
    if not column.startswith(NOTE_COLUMN) or len(column) - len(COLUMN) not in (3, 5):
        return None
    try:
        return decode_annotation(value)
    except CorruptRow:
        return None


def _ms(time: int) -> int:
    return time if time >= FIRST_MS else time * 1000
