"""A window's points → the cells to be written, row keys and all."""

from collections.abc import Iterator

import numpy as np

from tsd.codec.cell import COLUMN
from tsd.codec.columns import CELL_POINTS, Columns, Int32, Int64, encode_cells, layers, series_order, sort_times
from tsd.codec.rowkey import BASE_BYTES
from tsd.ingest import compiled
from tsd.ingest.series import SeriesTable, Texts
from tsd.store import Put

SLICE_POINTS = 50_000  # encoded in one go


def sorted_parts(columns: Columns, *, join: bool) -> Iterator[Columns]:
    """The points sorted (see `sort_columns`), in parts that do not cut a series, to be written one after the other.

    Only the order is found for all at once. A part's columns are of a size that the processor's caches hold and malloc
    has at hand; new memory for all of them takes longer to be zeroed than to be filled.
    """
    order = series_order(columns.series)
    start, count = 0, len(order)
    while start < count:
        end = _end_of_series(columns.series, order, min(start + SLICE_POINTS, count))
        yield from layers(sort_times(columns.at(order[start:end]), join=join))
        start = end


def _end_of_series(series: Int32, order: Int64, end: int) -> int:
    """The first place from `end` on where another series begins than the one before `end`."""
    last = series[order[end - 1]]
    while end < len(order):
        others = np.flatnonzero(series[order[end : end + SLICE_POINTS]] != last)
        if len(others):
            return end + int(others[0])
        end = min(end + SLICE_POINTS, len(order))
    return end


def encode(columns: Columns, table: SeriesTable, join: bool) -> list[Put]:
    """The cells of sorted points, with their row keys."""
    if not isinstance(table.texts, Texts):
        return compiled.encode(table.texts, *columns, CELL_POINTS if join else 1, COLUMN, Put)
    puts: list[Put] = []
    bases: dict[int, bytes] = {}
    for number, base, qualifier, value in encode_cells(columns, join=join):
        parts = table.parts(number)
        assert parts is not None, number  # the caller settled every series
        base_bytes = bases.get(base) or bases.setdefault(base, base.to_bytes(BASE_BYTES, "big"))
        puts.append(Put(parts.before + base_bytes + parts.after, COLUMN + qualifier, value))
    return puts
