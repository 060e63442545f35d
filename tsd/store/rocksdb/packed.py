"""Pages of cells that are decoded after the scan, in a thread, and to arrays of points if possible."""

from itertools import compress
from operator import eq

import numpy as np

from tsd.codec.packing.points import RowPoints, count_points, unpack_points
from tsd.codec.points import Bool, Int64
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
        self._page = page

    def sizes(self) -> Int64:
        """See PackedRows."""
        return np.fromiter(map(len, self._page.values), np.int64, len(self.keys)) - TIME_BYTES

    def decode(self, chosen: Bool | None = None) -> RowPoints | None:
        """See PackedRows."""
        keys, columns, values = self._page[:3]
        if len(find_digests(columns, 0)) < len(columns) or any(map(eq, keys[1:], keys)):
            return None
        if chosen is not None and np.count_nonzero(chosen) < len(chosen):
            values = list(compress(values, chosen.tolist()))
        points = count_points(values, 0, TIME_BYTES)
        return None if points < 0 else unpack_points(values, TIME_BYTES, points)

    def unpack(self) -> CellPage:
        """See PackedRows."""
        keys, columns, values = map(list, self._page[:3])
        decode_long_cells(keys, columns, values, 0)
        return self._page._replace(keys=keys, columns=columns, values=values)
