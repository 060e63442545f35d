"""Reads the rows of a rollup table: values that the store derived from them where it has any, else their cells."""

from collections.abc import Mapping
from functools import partial

from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rollup import Interval
from tsd.codec.opentsdb.rowkey import base_bytes
from tsd.store import CellPage
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.rollup_columns import DIRECTORY, DerivedRollups
from tsd.tables.opentsdb.scan import EncodedCells, KeyRange, key_ranges, read_ranges
from tsd.tables.opentsdb.selection import ResolvedRequest
from tsd.tables.opentsdb.summary_cells import RollupColumns, decode_rollups
from tsd.tables.reading import RollupPage, ScanRange, Take

AT_ONCE = 4  # base times whose values are read by one call


async def read_rollups(
    table: DataTable,
    resolved: ResolvedRequest,
    span: ScanRange,
    columns: RollupColumns,
    numbers: Mapping[bytes, int],
    take: Take[RollupPage],
) -> None:
    """Pass the rows of a span to `take`, those of a series in order of time. `numbers` has each series that `take` has
    matched, by its pairs. Raise StoreError and what `take` raises."""
    store, name, layout = table
    decode_page = partial(decode_rollups, numbers, layout, columns)

    async def take_cells(page: CellPage) -> None:
        await take(EncodedCells(page, layout, decode_page))

    derived = store.derived_values
    ranges = key_ranges(layout, resolved, span)
    if derived is None:
        await read_ranges(store, name, ranges, take_cells, parallel=1)
        return
    kinds = [starts[0][len(COLUMN)] for starts in columns.starts]
    for part in ranges:
        head = part.start[: layout.metric_end]
        every = [head + base_bytes(base) for base in row_bases(columns.interval, span)]
        prefixes = [one for one in every if part.start <= one and (part.stop is None or one < part.stop)]
        at, lacking = part.start, False
        for some in (prefixes[first : first + AT_ONCE] for first in range(0, len(prefixes), AT_ONCE)):
            found = await derived.derived(name, some, bytes((*kinds, DIRECTORY)))
            for prefix in some:
                if prefix not in found:
                    lacking = True
                    continue
                if lacking:
                    await read_ranges(store, name, [KeyRange(at, prefix)], take_cells, parallel=1)
                await take(DerivedRollups(found[prefix], prefix, kinds, columns.interval, numbers))
                at, lacking = prefix_end(prefix) or prefix, False
        if lacking:
            await read_ranges(store, name, [KeyRange(at, part.stop)], take_cells, parallel=1)


def row_bases(interval: Interval, span: ScanRange) -> list[int]:
    """Return the base times of all possible rows of a span."""
    found = []
    base = interval.row_start(span.start_s)
    while base < span.stop_s:
        if base >= span.start_s:
            found.append(base)
        base = next_base(interval, base)
    return found


def next_base(interval: Interval, base: int) -> int:
    """Return the base time of the row after one."""
    return interval.row_start(base + interval.row_s + interval.seconds - 1)
