"""Annotations in the rows of the data table: read, merged and deleted (FORMATS.md §7)."""

from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence

import trio

from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import (
    ANNOTATION,
    annotation_qualifier,
    annotation_row,
    decode_annotation,
    encode_annotation,
)
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rowkey import BASE_BYTES, LAST_BASE, KeyLayout, base_bytes
from tsd.codec.putline import FIRST_MS, HOUR_S
from tsd.errors import CorruptRow
from tsd.store import CLOSE_S, PAGE_ROWS, Cell, CellPage, Cursor, Row, Store, cells_of_keys, cells_of_rows, scan
from tsd.store.cells import prefix_end
from tsd.store.retry import run_bounded
from tsd.tables.catalog import AnnotationChange
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.opentsdb.metadata import edit, read

ANNOTATION_COLUMN = COLUMN + ANNOTATION
KEYS_PER_GET = 500
SCAN_BYTES = 256 << 10  # of values in one page: few, as most of what is scanned may be points
STEP_CELLS = 1000  # looked at between two checkpoints
STEP_CHANGES = 250  # sorted between two checkpoints
SHARED_SYNCS = 500  # annotations written at a time where they share syncs


class AnnotationRows:
    """The annotations of a data table."""

    def __init__(self, store: Store, table: str, layout: KeyLayout) -> None:
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
        If both share a column, the lower start time is kept. Raise StoreError, CorruptRow."""

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

    async def put_many(self, changes: deque[AnnotationChange]) -> deque[Annotation]:
        """See Annotations. On the embedded store many are written at a time, which share syncs. On others they would
        only compete for the same rows."""
        places: dict[tuple[bytes, bytes], list[tuple[int, AnnotationChange]]] = {}
        while changes:
            if not len(changes) % STEP_CHANGES:
                await trio.lowlevel.checkpoint()
            number, change = len(changes), changes.popleft()
            place = self._place(change.annotation.start_time, change.series)
            places.setdefault(place, []).append((number, change))
        stored: dict[int, Annotation] = {}

        async def put(numbered: list[tuple[int, AnnotationChange]]) -> None:
            for number, change in numbered:
                stored[number] = await self.put(*change)
            numbered.clear()

        limit = 1 if self._store.capabilities.shared else SHARED_SYNCS
        await run_bounded(places.values(), put, limit=limit)
        return deque(stored[number] for number in sorted(stored, reverse=True))

    async def delete(self, start_time: int, series: bytes) -> None:
        """Delete the annotation with this start time, if there is one. Raise StoreError."""
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
        how many. Raise StoreError."""
        pairs_of: dict[bytes, set[bytes]] = {}  # by salt and metric, which scans have in common
        for tsuid in [*series, b""] if global_ else series:
            key = annotation_row(self._layout, 1, tsuid)
            pairs_of.setdefault(key[: self._layout.metric_end], set()).add(key[self._layout.pairs_start :])
        deleted = 0
        for prefix, series_pairs in pairs_of.items():
            deleted += await self._delete_of_metric(prefix, series_pairs, start_ms, end_ms)
        await self._store.sync()
        return deleted

    async def _delete_of_metric(
        self, prefix: bytes, series_pairs: Collection[bytes], start_ms: int, end_ms: int
    ) -> int:
        """Delete the annotations of some series with one salt and metric. Return how many. Raise StoreError.

        The range may be decades long, and each series may have few rows in it, or be one of many with rows in each
        hour. So scans and reads by key alternate: if a page covers fewer hours than one read by keys would, such a
        read follows.
        """
        deleted = 0
        first, last = max(start_ms // 1000 // HOUR_S * HOUR_S, 0), min(end_ms // 1000, LAST_BASE)
        stop, hours = prefix_end(prefix + base_bytes(last)), max(KEYS_PER_GET // len(series_pairs), 1)
        at: bytes | None = prefix + base_bytes(first)
        while first <= last:
            if last - first >= hours * HOUR_S:
                page = await self._page(at or b"", stop)
                deleted += await self._delete_of(page, series_pairs, start_ms, end_ms)
                if (at := page.next_start) is None:
                    break
                base = at[len(prefix) : self._layout.pairs_start].ljust(BASE_BYTES, b"\0")
                before, first = first, max(first, int.from_bytes(base, "big") // HOUR_S * HOUR_S)
                if first - before >= hours * HOUR_S:
                    continue
            bases = range(first, min(last + 1, first + hours * HOUR_S), HOUR_S)
            keys = [prefix + base_bytes(base) + one for base in bases for one in sorted(series_pairs)]
            for start in range(0, len(keys), KEYS_PER_GET):
                page = await cells_of_keys(self._store, self._table, keys[start : start + KEYS_PER_GET])
                deleted += await self._delete_of(page, series_pairs, start_ms, end_ms)
            first += hours * HOUR_S
            at = prefix + base_bytes(first)
        return deleted

    async def _page(self, start: bytes, stop: bytes | None) -> CellPage:
        """Return the first page of a range. Raise StoreError."""
        if (reader := self._store.cell_reader) is None:
            found = await self._store.page(self._table, start, stop, limit=PAGE_ROWS)
            return cells_of_rows(found.rows, found.next_start)
        cursor, is_open = Cursor(), True
        try:
            page = await reader.read_cells(self._table, start, stop, limit_bytes=SCAN_BYTES, cursor=cursor)
            is_open = page.next_start is not None
        finally:
            if is_open:
                with trio.move_on_after(CLOSE_S, shield=True):
                    await reader.close_cursor(self._table, cursor)
        return page

    async def _delete_of(self, page: CellPage, series_pairs: Collection[bytes], start_ms: int, end_ms: int) -> int:
        deleted = 0
        for step in range(0, len(page.keys), STEP_CELLS):
            await trio.lowlevel.checkpoint()
            chosen: dict[bytes, list[Cell]] = {}
            for at in range(step, min(step + STEP_CELLS, len(page.keys))):
                key, column = page.keys[at], page.columns[at]
                if not column.startswith(ANNOTATION_COLUMN) or key[self._layout.pairs_start :] not in series_pairs:
                    continue
                cell = page.cell(at)
                one = _decode(column, cell.value)
                if one and start_ms <= _ms(one.start_time) <= end_ms:
                    chosen.setdefault(key, []).append(cell)
                    deleted += 1
            rows = [Row(key, cells) for key, cells in chosen.items()]
            await remove_rows(self._store, self._table, rows, read_ms=0)  # each cell up to its own timestamp
        return deleted

    async def _global_rows(self, start_ms: int, end_ms: int) -> AsyncIterator[Row]:
        prefix = bytes(self._layout.metric_end)
        first, last = start_ms // 1000 // HOUR_S * HOUR_S, end_ms // 1000
        async for rows in scan(
            self._store, self._table, prefix + base_bytes(first), prefix_end(prefix + base_bytes(last))
        ):
            for row in rows:
                if len(row.key) == self._layout.pairs_start:
                    yield row

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
