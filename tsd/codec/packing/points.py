"""Decodes packed cells straight to arrays of points, if the compiled loop is there.

What `tsd.codec.packing.cell` unpacks, and the layout's decoder then reads, is decoded in one step, which takes a third
of the time. It is for cells whose times ascend: others are unpacked.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.packing.cell import HAS_PACKING_LOOP
from tsd.codec.points import AlikePoints, Batch, Bool, Float64, Int64
from tsd.codec.putline import HOUR_MS

if HAS_PACKING_LOOP:
    from tsd.codec.packing import _packing


LEAST_BYTES = 9  # of a packed cell with its checksum


class RowPoints(NamedTuple):
    """The points of cells, one cell after the other."""

    counts: Int64  # of each cell
    times: Int64  # ms since the epoch, ascending in each cell
    bits: Int64  # integers, and the bits of doubles
    floats: Bool


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


class CellBuckets(NamedTuple):
    """The buckets of cells, one cell after the other, ascending in each."""

    points: Int64  # of each cell
    lasts: Int64  # ms since the epoch: the time of each cell's last point
    bounds: Int64  # (cells + 1,): where the buckets of each cell begin
    stamps: Int64  # ms since the epoch: the first moment of each bucket; if all cells have the same, of the first cell
    counts: Int64  # values of each bucket that are not NaN
    results: Float64  # of each bucket
    is_even: bool  # whether all cells have the same buckets


def downsample_points(
    stored: list[bytes], ahead: int, bases_s: Int64, interval_ms: int, function: int
) -> CellBuckets | None:
    """Return the buckets of packed cells, of `interval_ms`, which divides the hour. None without the compiled loop, and
    in the cases of `unpack_points`.

    `function`: the result of a bucket is 0: the sum, 1: the least, 2: the greatest, 3: the first, 4: the last value.
    NaN is skipped by the first three, unless there is no other value.
    """
    total = count_points(stored, 0, ahead)
    if total < 0:
        return None
    new = _new_buckets(np.empty(len(stored), np.int64), total, interval_ms)
    return _as_written(_packing.downsample_cells(stored, ahead, bases_s, interval_ms, function, *new[:-1]), new)


def continued_buckets(
    cells: CellBuckets, added: Batch, added_of: Int64, interval_ms: int, function: int
) -> CellBuckets | None:
    """Return the buckets of cells of one hour together with the points of added rows of this hour, as one cell has them
    that was downsampled in the same way. `added_of` has the index of each cell's added row, negative where there is
    none. None if an added point is not after all points of its cell."""
    if not HAS_PACKING_LOOP:
        return None
    new = _new_buckets(cells.points.copy(), len(cells.results) + len(added.times), interval_ms)
    starts, times, bits = (np.ascontiguousarray(part) for part in added[1:4])
    floats = np.ascontiguousarray(added.floats).view(np.uint8)
    even = _packing.continue_buckets(
        *cells[1:], starts, times, bits, floats, added_of, interval_ms, function, *new[:-1]
    )
    return _as_written(even, new)


def _new_buckets(points: Int64, most: int, interval_ms: int) -> CellBuckets:
    """Return room for the buckets of cells, `most` or those of an hour each."""
    cells = len(points)
    lasts, bounds = np.empty(cells, np.int64), np.empty(cells + 1, np.int64)
    room = min(most, cells * (HOUR_MS // interval_ms))
    return CellBuckets(
        points, lasts, bounds, np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room), is_even=False
    )


def _as_written(even: int, new: CellBuckets) -> CellBuckets | None:
    """Return the buckets that a loop has written. `even`: what it returned."""
    if even < 0:
        return None
    size, is_even = int(new.bounds[-1]), even > 0
    stamps = new.stamps[: int(new.bounds[1]) if is_even else size]
    return new._replace(stamps=stamps, counts=new.counts[:size], results=new.results[:size], is_even=is_even)


class JoinedCells(NamedTuple):
    """Packed cells that were checked, one after the other."""

    text: bytes
    ends: NDArray[np.int32]  # (cells + 1,): where each cell starts, then where the last one ends
    counts: NDArray[np.int32]  # points of each


def join_cells(stored: Sequence[bytes], ends: NDArray[np.int32]) -> JoinedCells | None:
    """Return cells that follow each other in some texts. None if one is damaged, or if its times do not ascend within
    an hour, or without the compiled loop."""
    text, counts = b"".join(stored), np.empty(len(ends) - 1, np.int32)
    if not HAS_PACKING_LOOP or (np.diff(ends) < LEAST_BYTES).any() or not _packing.check_joined(text, ends, counts):
        return None
    return JoinedCells(text, ends, counts)


def unpack_joined(cells: JoinedCells, rows: Int64) -> RowPoints:
    """Return the points of some of joined cells, with times as ms after the hour."""
    counts = cells.counts[rows].astype(np.int64)
    points = int(counts.sum())
    times, bits, floats = np.empty(points, np.int64), np.empty(points, np.int64), np.empty(points, np.uint8)
    most = int(counts.max(initial=0))
    done = _packing.unpack_joined(cells.text, cells.ends, rows, most, times, bits, floats)
    assert done, "cells that were checked"
    return RowPoints(counts, times, bits, floats.view(np.bool_))


def downsample_joined(
    cells: JoinedCells, rows: Int64, base_s: int, interval_ms: int, function: int
) -> CellBuckets | None:
    """Return the buckets of some of joined cells, as `downsample_points` does; `base_s` is their base time."""
    points = cells.counts[rows].astype(np.int64)
    new = _new_buckets(points, int(points.sum()), interval_ms)
    written = new[1:-1]
    return _as_written(
        _packing.downsample_joined(cells.text, cells.ends, rows, base_s, interval_ms, function, *written), new
    )


def unpack_joined_alike(cells: JoinedCells, rows: Int64) -> AlikePoints | None:
    """Return the points of some of joined cells, one or more. None if they do not have the same times."""
    width = int(cells.counts[rows[0]])
    offsets_ms = np.empty(width, np.int64)
    bits, floats = np.empty((len(rows), width), np.int64), np.empty((len(rows), width), np.uint8)
    if not _packing.unpack_joined_table(cells.text, cells.ends, rows, offsets_ms, bits, floats):
        return None
    return AlikePoints(offsets_ms, bits, floats.view(np.bool_))
