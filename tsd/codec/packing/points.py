"""Decodes packed cells straight to arrays of points, if the compiled loop is there.

What `tsd.codec.packing.cell` unpacks, and the layout's decoder then reads, is decoded in one step, which takes a third
of the time. It is for cells whose times ascend: others are unpacked.
"""

from typing import NamedTuple

import numpy as np

from tsd.codec.packing.cell import HAS_PACKING_LOOP
from tsd.codec.points import Bool, Int64

if HAS_PACKING_LOOP:
    from tsd.codec.packing import _packing


class RowPoints(NamedTuple):
    """The points of cells, one cell after the other."""

    counts: Int64  # of each cell
    offsets_ms: Int64  # after the hour, ascending in each cell
    bits: Int64  # integers, and the bits of doubles
    floats: Bool


def count_points(stored: list[bytes], since: int, ahead: int) -> int:
    """Return the number of points of packed cells, from index `since` on. Each is in `stored` after `ahead` bytes.
    -1 if one does not look like a packed cell, or without the compiled loop."""
    return _packing.count_points(stored, since, ahead) if HAS_PACKING_LOOP else -1


def unpack_points(stored: list[bytes], ahead: int, points: int) -> RowPoints | None:
    """Return the points of packed cells that have `points` in all (see `count_points`). None if a cell is damaged, or
    if its times do not ascend within an hour: `unpack` says which."""
    counts = np.empty(len(stored), np.int64)
    offsets_ms, bits, floats = np.empty(points, np.int64), np.empty(points, np.int64), np.empty(points, np.uint8)
    if not _packing.unpack_points(stored, ahead, counts, offsets_ms, bits, floats):
        return None
    return RowPoints(counts, offsets_ms, bits, floats.view(np.bool_))
