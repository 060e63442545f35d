"""Lets a store derive columns from rollup rows (see `rollup_columns`), once the rows are over or a day of them is."""

from collections.abc import Mapping
from contextlib import aclosing
from functools import partial

import trio

from tsd.codec.opentsdb.rollup import Interval
from tsd.codec.opentsdb.rowkey import KeyLayout, base_bytes, salts
from tsd.store import DerivedValues, Store, cell_pages
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.rollup_columns import encode_chunk
from tsd.tables.opentsdb.rollup_scan import next_base
from tsd.tables.reading import ScanRange

DAY_S = 86_400
LOOKED_UP = 32  # base times at once
MOST_BYTES = 32 << 20  # of the values of one metric and base time; what has more is read by its cells


async def derive_rows(
    store: Store, layout: KeyLayout, interval: Interval, metric: bytes, span: ScanRange, closed_s: int
) -> None:
    """Derive the values of the rows of a metric that a build of a span may have changed. Rows of hours and minutes that
    end after `closed_s` are left out: they get more cells. Raise StoreError."""
    derived = store.derived_values
    assert derived is not None
    for salt in salts(layout):
        head = salt + metric
        base, with_rows = interval.row_start(span.start_s), -1
        while (base := await _first_without_values(derived, interval, head, base, span.stop_s)) < span.stop_s:
            if base != with_rows:
                found = await _first_base(store, layout, interval.table, head, base, span.stop_s)
                if found is None:
                    break
                base = with_rows = found
                continue
            end, prefix = next_base(interval, base), head + base_bytes(base)
            if end <= closed_s or interval.seconds >= DAY_S:
                await derived.derive(interval.table, prefix, partial(_columns, store, layout, interval.table, prefix))
            base = end


async def _first_without_values(
    derived: DerivedValues, interval: Interval, head: bytes, start_s: int, stop_s: int
) -> int:
    """Return the first base time without derived values, `stop_s` or later if there is none between two times. Most
    rows have them from the build: reading these values' keys takes less than reading a row."""
    base = start_s
    while base < stop_s:
        bases = [base]
        while len(bases) < LOOKED_UP:
            bases.append(next_base(interval, bases[-1]))
        prefixes = [head + base_bytes(each) for each in bases if each < stop_s]
        found = await derived.derived(interval.table, prefixes, b"")
        for base, prefix in zip(bases, prefixes, strict=False):
            if prefix not in found:
                return base
        base = next_base(interval, bases[len(prefixes) - 1])
    return base


async def _first_base(
    store: Store, layout: KeyLayout, table: str, head: bytes, start_s: int, stop_s: int
) -> int | None:
    """Return the base time of the first row of a metric between two times, None if there is none."""
    at: bytes | None = head + base_bytes(start_s)
    stop = head + base_bytes(stop_s)
    while at is not None and at < stop:
        page = await store.page(table, at, stop, limit=1)
        if page.rows:
            return int.from_bytes(page.rows[0].key[layout.metric_end : layout.pairs_start], "big")
        at = page.next_start
    return None


async def _columns(store: Store, layout: KeyLayout, table: str, prefix: bytes) -> Mapping[bytes, bytes] | None:
    """Return the cells of all rows with a prefix as columns; None if they are too many or of unusual forms."""
    values: dict[bytes, bytes] = {}
    size = number = 0
    async with aclosing(cell_pages(store, table, prefix, prefix_end(prefix))) as pages:
        async for page in pages:
            chunk = await trio.to_thread.run_sync(encode_chunk, page, layout, number)
            size += sum(map(len, chunk.values())) if chunk else 0
            if chunk is None or size > MOST_BYTES:
                return None
            values |= chunk
            number += 1
    return values or None
