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
    times: Int64  # ms since the epoch, ascending in each cell
    bits: Int64  # integers, and the bits of doubles
    floats: Bool


class AlikePoints(NamedTuple):
    """The points of cells that all have the same times."""

    offsets_ms: Int64  # after the hour, ascending
    bits: Int64  # (cells, times): integers, and the bits of doubles
    floats: Bool  # (cells, times)


def count_points(stored: list[bytes], since: int, ahead: int) -> int:
    """Return the number of points of packed cells, from index `since` on. Each is in `stored` after `ahead` bytes.
    -1 if one does not look like a packed cell, or without the compiled loop."""
    return _packing.count_points(stored, since, ahead) if HAS_PACKING_LOOP else -1


def unpack_points(stored: list[bytes], ahead: int, bases_s: Int64, points: int) -> RowPoints | None:
    """Return the points of packed cells that have `points` in all (see `count_points`), with the base time of each.
    None if a cell is damaged, or if its times do not ascend within an hour: `unpack` says which."""
    counts = np.empty(len(stored), np.int64)
    times, bits, floats = np.empty(points, np.int64), np.empty(points, np.int64), np.empty(points, np.uint8)
    if not _packing.unpack_points(stored, ahead, bases_s, counts, times, bits, floats):
        return None
    return RowPoints(counts, times, bits, floats.view(np.bool_))


def unpack_alike(stored: list[bytes], ahead: int) -> AlikePoints | None:
    """Return the points of packed cells that all have the same times. None if they do not, or if one is damaged, as in
    `unpack_points`."""
    width = count_points(stored[:1], 0, ahead)
    if width <= 0:
        return None
    offsets_ms = np.empty(width, np.int64)
    bits, floats = np.empty((len(stored), width), np.int64), np.empty((len(stored), width), np.uint8)
    if not _packing.unpack_table(stored, ahead, offsets_ms, bits, floats):
        return None
    return AlikePoints(offsets_ms, bits, floats.view(np.bool_))
