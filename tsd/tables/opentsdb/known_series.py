"""The series of a metric that ingest knows, as a table that filters are tested on.

A query of one host then looks at the open points of its series only, however many others the metric has.
"""

from typing import NamedTuple

import numpy as np

from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.points import Int64, UInt8
from tsd.tables.opentsdb.tag_table import TagTable
from tsd.tables.reading import Places
from tsd.tables.writing import SeriesKeys


class KnownTable(NamedTuple):
    """Series of one metric."""

    table: TagTable
    places: Places  # by row of the table: the place of the series in the keys


def known_table(keys: SeriesKeys, metric: bytes, layout: KeyLayout) -> KnownTable | None:
    """Return the table of those series whose keys have a metric's UID. None if two of them are equal, or the tags of
    one are not pairs of UIDs.

    >>> from tsd.tables.writing import NO_KEY, SeriesKey
    >>> tags = [bytes((0, 0, 1, 0, 0, value)) for value in (9, 8)]
    >>> series = [SeriesKey(b"met", tags[0]), NO_KEY, SeriesKey(b"met", tags[1]), SeriesKey(b"tem", tags[1])]
    >>> keys = SeriesKeys.of(series)
    >>> known_table(keys, b"met", KeyLayout()).places.tolist()
    [2, 0]
    """
    text = np.frombuffer(keys.joined, np.uint8)
    starts, middles, ends = keys.bounds[:-1:2], keys.bounds[1::2], keys.bounds[2::2]
    own = np.flatnonzero(middles - starts == layout.metric_end)
    heads = _windows(text, starts[own] + layout.salt_width, len(metric))
    own = own[(heads == np.frombuffer(metric, np.uint8)).all(axis=1)]
    sizes = ends[own] - middles[own]
    blocks, places = {}, []
    for size in np.unique(sizes).tolist():
        if not size or size % layout.widths.pair:
            return None
        some = own[sizes == size]
        pairs = np.ascontiguousarray(_windows(text, middles[some], size)).view(f"S{size}").reshape(-1)
        blocks[size], first = np.unique(pairs, return_index=True)
        if len(first) < len(some):
            return None
        places.append(some[first])
    return KnownTable(TagTable(blocks, layout.widths), np.concatenate([np.empty(0, np.intp), *places]))


def _windows(text: UInt8, starts: Int64, size: int) -> UInt8:
    """Return the bytes from each start on: (starts, size)."""
    found: UInt8 = text[starts[:, None] + np.arange(size)]
    return found
