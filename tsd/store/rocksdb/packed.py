"""Pages of cells that are decoded after the scan, in a thread: to arrays of points, where all cells are packed."""

from itertools import compress

import numpy as np

from tsd.codec.packing.points import (
    CellBuckets,
    RowPoints,
    count_points,
    downsample_points,
    unpack_alike,
    unpack_points,
)
from tsd.codec.points import AlikePoints, Bool, Int64
from tsd.store import CellPage
from tsd.store.rocksdb.keys import TIME_BYTES, decode_long_cells, find_digests

POINT_BYTES = 10  # of a point's column and value


def points_size(keys: list[bytes], columns: list[bytes], values: list[bytes], since: int) -> int:  # noqa: ARG001
    """Return the bytes that packed cells have when they are decoded, from index `since` on. Change nothing."""
    return POINT_BYTES * max(count_points(values, since, TIME_BYTES), 0)


class PackedCells:
    """A page of cells with the columns and values of a key: PackedRows."""

    def __init__(self, page: CellPage) -> None:
        self.keys = page.keys
        self.page = page

    def sizes(self) -> Int64:
        """See PackedRows."""
        return np.fromiter(map(len, self.page.values), np.int64, len(self.keys)) - TIME_BYTES

    def decode(self, bases_s: Int64, chosen: Bool | None = None) -> RowPoints | None:
        """See PackedRows."""
        columns, values = self.page[1:3]
        if len(find_digests(columns, 0)) < len(columns):
            return None
        if chosen is not None:
            values, bases_s = list(compress(values, chosen.tolist())), bases_s[chosen]
        points = count_points(values, 0, TIME_BYTES)
        return None if points < 0 else unpack_points(values, TIME_BYTES, bases_s, points)

    def decode_alike(self, first: int, stop: int, chosen: Bool | None = None) -> AlikePoints | None:
        """See PackedRows."""
        columns, values = (part[first:stop] for part in self.page[1:3])
        if len(find_digests(columns, 0)) < len(columns):
            return None
        if chosen is not None:
            values = list(compress(values, chosen.tolist()))
        return unpack_alike(values, TIME_BYTES)

    def downsample(self, bases_s: Int64, chosen: Bool | None, interval_ms: int, function: int) -> CellBuckets | None:
        """See PackedRows."""
        columns, values = self.page[1:3]
        if len(find_digests(columns, 0)) < len(columns):
            return None
        if chosen is not None:
            values, bases_s = list(compress(values, chosen.tolist())), bases_s[chosen]
        return downsample_points(values, TIME_BYTES, bases_s, interval_ms, function)

    def unpack(self) -> CellPage:
        """See PackedRows."""
        keys, columns, values = map(list, self.page[:3])
        decode_long_cells(keys, columns, values, 0)
        return self.page._replace(keys=keys, columns=columns, values=values)
