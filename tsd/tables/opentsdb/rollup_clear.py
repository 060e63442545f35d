"""Deletes rollups of intervals that are built again: those that have no points any more are not written again."""

from contextlib import aclosing

from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rollup import Interval, rollup_time
from tsd.codec.opentsdb.rowkey import Layout, base_bytes, salts
from tsd.store import CellPage, Row, Store, cell_pages
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.reading import ScanRange

_COLUMN_BYTES = len(COLUMN) + 3


async def delete_cells(
    store: Store, layout: Layout, interval: Interval, metric: bytes, span: ScanRange, *, read_ms: int
) -> None:
    """Delete the cells of a metric's intervals that begin in a span. Cells with the name of an aggregator stay. Raise
    StoreError."""
    for salt in salts(layout):
        head = salt + metric
        start, stop = head + base_bytes(interval.row_start(span.start_s)), head + base_bytes(span.stop_s)
        async with aclosing(cell_pages(store, interval.table, start, stop)) as pages:
            async for page in pages:
                await remove_rows(store, interval.table, _rows(page, layout, interval, span), read_ms=read_ms)


def _rows(page: CellPage, layout: Layout, interval: Interval, span: ScanRange) -> list[Row]:
    """Return the rows of a page with the cells of a span, without their values."""
    rows: dict[bytes, Row] = {}
    for at, (key, column) in enumerate(zip(page.keys, page.columns, strict=True)):
        if len(column) != _COLUMN_BYTES:
            continue
        base = int.from_bytes(key[layout.metric_end : layout.pairs_start], "big")
        time_s = rollup_time(base, interval, int.from_bytes(column[-2:], "big") >> 4)
        if span.start_s <= time_s < span.stop_s:
            rows.setdefault(key, Row(key, [])).cells.append(page.cell(at)._replace(value=b""))
    return list(rows.values())
