"""Rows of the tables of entities become entities, in a compiled loop where there is one."""

import os
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tsd.codec.entity.records import EntitySeries, is_metadata, parse_series_column, split_values
from tsd.codec.points import Bool, Int64
from tsd.store.versions import VersionColumns, first_places, take
from tsd.tables.entities import Entity

try:
    from tsd.tables import _entity_decode
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both


def numbers_of(ends: Int64, values: bytes, *, compiled: bool = HAS_LOOP) -> list[int | float]:
    """Return the numbers of points, whose values are joined. Raise CorruptRow."""
    if compiled:
        found = _entity_decode.numbers(ends, values)
        if found is not None:
            return found
    return split_values(ends, values)


def split_metadata(columns: VersionColumns) -> tuple[Mapping[str, str], VersionColumns]:
    """Return the metadata and the points of one row. Columns of metadata come first."""
    count = bisect_left(columns.places, True, key=lambda place: not is_metadata(place[1]))
    if not count:
        return {}, columns
    [found] = decode_rows(first_places(columns, count))
    return found.metadata, take(columns, np.arange(count, len(columns.places)))


def decode_rows(columns: VersionColumns, *, compiled: bool = HAS_LOOP) -> list[Entity]:
    """Return the entities of rows. Raise CorruptRow."""
    if compiled:
        found = _entity_decode.decode_rows(*columns, series_of)
        if found is not None:
            return [Entity(*one) for one in found]
    return decode_rows_python(columns)


def decode_rows_python(columns: VersionColumns) -> list[Entity]:
    """Return the entities of rows without the compiled loop. Raise CorruptRow."""
    is_text = np.array([is_metadata(column) for _, column in columns.places], np.bool_)
    counts = np.diff(columns.bounds)
    texts = np.repeat(is_text, counts)
    numbers = _numbers(columns, texts)
    points = list(zip(columns.times_ms.tolist(), numbers, strict=True))
    bounds, ends = columns.bounds.tolist(), columns.ends
    found: list[Entity] = []
    name: bytes | None = None
    for at, (row, column) in enumerate(columns.places):
        if row != name:
            name, metadata, series = row, dict[str, str](), dict[EntitySeries, list[tuple[int, int | float]]]()
            found.append(Entity(row, metadata, series))
        if is_text[at]:
            last = bounds[at + 1] - 1
            value = columns.values[int(ends[last - 1]) if last else 0 : int(ends[last])]
            metadata[column.partition(b":")[2].decode("latin-1")] = value.decode("utf-8", "replace")
        else:
            series[series_of(column)] = points[bounds[at] : bounds[at + 1]]
    return found


def _numbers(columns: VersionColumns, texts: Bool) -> list[int | float]:
    """Return the number of each version, 0 for texts."""
    if not texts.any():
        return split_values(columns.ends, columns.values)
    ends = columns.ends.tolist()
    starts = [0, *ends]
    chosen = np.flatnonzero(~texts).tolist()
    values = b"".join(columns.values[starts[at] : ends[at]] for at in chosen)
    lengths = np.diff(columns.ends, prepend=0)[~texts]
    found: list[int | float] = [0] * len(ends)
    for at, number in zip(chosen, split_values(np.cumsum(lengths), values), strict=True):
        found[at] = number
    return found


@lru_cache(100_000)
def series_of(column: bytes) -> EntitySeries:
    """Return the series of a column; many entities have the same."""
    return parse_series_column(column)
