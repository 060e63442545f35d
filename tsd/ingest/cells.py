"""A window's points → the cells to be written, row keys and all."""

from collections.abc import Iterator

import numpy as np

from tsd.codec.cell import COLUMN
from tsd.codec.columns import Columns, encode_cells, layers
from tsd.codec.rowkey import BASE_BYTES
from tsd.ingest.series import SeriesTable
from tsd.store import Put

SLICE_POINTS = 50_000  # encoded in one go


def slices(columns: Columns) -> Iterator[Columns]:
    """Sorted points in parts that do not cut a series, to be written one after the other."""
    start, count = 0, len(columns.series)
    while start < count:
        end = min(start + SLICE_POINTS, count)
        end = int(np.searchsorted(columns.series, columns.series[end - 1], side="right"))
        yield from layers(columns.at(slice(start, end)))
        start = end


def encode(columns: Columns, table: SeriesTable, join: bool) -> list[Put]:
    """The cells of sorted points, with their row keys."""
    puts: list[Put] = []
    bases: dict[int, bytes] = {}
    for number, base, qualifier, value in encode_cells(columns, join=join):
        parts = table.parts(number)
        assert parts is not None, number  # the caller settled every series
        base_bytes = bases.get(base) or bases.setdefault(base, base.to_bytes(BASE_BYTES, "big"))
        puts.append(Put(parts.before + base_bytes + parts.after, COLUMN + qualifier, value))
    return puts
