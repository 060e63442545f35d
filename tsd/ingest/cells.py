"""A window's points → the cells to be written, row keys and all."""

from operator import itemgetter

import numpy as np

from tsd.codec.cell import COLUMN
from tsd.codec.columns import CELL_POINTS, Columns, Int32, encode_cells, layers, series_order, sort_times
from tsd.codec.rowkey import BASE_BYTES
from tsd.ingest import compiled
from tsd.ingest.looped import columns_of
from tsd.ingest.series import SeriesTable, Texts
from tsd.store import Put

SLICE_POINTS = 50_000  # encoded in one go
SPARSE = 4  # times as many series as points: to count each one's points takes longer than to sort


def series_slices(columns: Columns, *, by_loop: bool = compiled.HAS) -> list[Int32]:
    """Which points go into each slice, by series and order of arrival: no series is in two of them, so they may be
    written side by side.

    Only the order is found for all at once. A slice's columns are of a size that the processor's caches hold and malloc
    has at hand; new memory for all of them takes longer to be zeroed than to be filled.
    """
    order = _counted_order(columns.series) if by_loop else series_order(columns.series).astype(np.int32)
    start, count = 0, len(order)
    slices = []
    while start < count:
        end = _end_of_series(columns.series, order, min(start + SLICE_POINTS, count))
        slices.append(order[start:end])
        start = end
    return slices


def sorted_parts(columns: Columns, points: Int32, *, join: bool, by_loop: bool = compiled.HAS) -> list[Columns]:
    """A slice's points sorted (see `sort_columns`), in parts to be written one after the other."""
    if by_loop:
        taken, tidy = compiled.picked(*columns, points)
        columns = columns_of(taken)
        if tidy:
            return [columns]
    else:
        columns = columns.at(points)
    return list(layers(sort_times(columns, join=join)))


def _counted_order(series: Int32) -> Int32:
    """What `series_order` says."""
    numbers = int(series.max()) + 1 if len(series) else 0
    if numbers > SPARSE * len(series):
        return series_order(series).astype(np.int32)
    return np.frombuffer(compiled.order(series, numbers), np.int32)


def _end_of_series(series: Int32, order: Int32, end: int) -> int:
    """The first place from `end` on where another series begins than the one before `end`."""
    last = series[order[end - 1]]
    while end < len(order):
        others = np.flatnonzero(series[order[end : end + SLICE_POINTS]] != last)
        if len(others):
            return end + int(others[0])
        end = min(end + SLICE_POINTS, len(order))
    return end


def encode(columns: Columns, table: SeriesTable, join: bool) -> list[Put]:
    """The cells of sorted points, in order of their rows: a store that keeps them so finds their places sooner (HBase
    takes a third less time for each). Those of one row are in order of time."""
    if not isinstance(table.texts, Texts):
        return compiled.encode(table.texts, *columns, CELL_POINTS if join else 1, COLUMN, Put)
    puts: list[Put] = []
    bases: dict[int, bytes] = {}
    for number, base, qualifier, value in encode_cells(columns, join=join):
        parts = table.parts(number)
        assert parts is not None, number  # the caller settled every series
        base_bytes = bases.get(base) or bases.setdefault(base, base.to_bytes(BASE_BYTES, "big"))
        puts.append(Put(parts.before + base_bytes + parts.after, COLUMN + qualifier, value))
    puts.sort(key=itemgetter(0))
    return puts
