"""Buckets of rows and of packed cells, computed by the compiled loop, if it was built.

`HAS_LOOP` is true if it was. Without it, numpy computes bit-identical buckets, more slowly.
"""

import os
import threading

import numpy as np

from tsd.codec.packing.points import CellBuckets
from tsd.codec.points import Batch, Float64, Int64
from tsd.query.buckets import Bucketed

try:
    from tsd.query import _loops
except ImportError:  # no compiler when it was installed
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # to compare the two


FUNCTIONS = {"sum": 0, "zimsum": 0, "pfsum": 0, "avg": 0, "count": 0, "min": 1, "mimmin": 1, "max": 2, "mimmax": 2,
             "first": 3, "last": 4}  # fmt: skip


_KEPT_POINTS = 1 << 18  # a page of 2 MiB has about as many; 8 MiB for each thread that decodes


_buffers = threading.local()  # one set per thread: page faults of new memory would cost more than the loop


def _scratch(room: int) -> list[Int64]:
    """Return three arrays of `room` elements, valid until the next call in this thread."""
    if room > _KEPT_POINTS:
        return [np.empty(room, np.int64) for _ in range(3)]
    if not hasattr(_buffers, "arrays"):
        _buffers.arrays = [np.empty(_KEPT_POINTS, np.int64) for _ in range(3)]
    return [array[:room] for array in _buffers.arrays]


def has_loop_for(function: str) -> bool:
    """Return whether the loop knows a downsampling function."""
    return HAS_LOOP and function in FUNCTIONS


def buckets_of_batch(batch: Batch, interval_ms: int, function: str) -> Bucketed:
    """Return the buckets of every row of a batch, for an interval that divides the hour: no bucket spans rows."""
    room, rows = len(batch.times), len(batch.starts) - 1
    if not room:
        return Bucketed(np.zeros(rows + 1, np.int64), np.empty(0, np.int64), np.empty(0))
    bounds = np.empty(rows + 1, np.int64)
    stamps, counts, numbers = _scratch(room)
    floats, kind, results = batch.floats.view(np.uint8), FUNCTIONS[function], numbers.view(np.float64)
    is_even = _loops.downsample_rows(
        batch.starts, batch.times, batch.bits, floats, interval_ms, kind, bounds, stamps, counts, results
    )
    size = int(bounds[-1])
    stamps, results = stamps[: bounds[1] if is_even else size].copy(), results[:size].copy()
    return Bucketed(bounds, stamps, _results(function, counts[:size], results))


def buckets_of_cells(cells: CellBuckets, function: str) -> Bucketed:
    """Return the buckets of packed cells that were downsampled with the number of a function."""
    return Bucketed(cells.bounds, cells.stamps, _results(function, cells.counts, cells.results))


def _results(function: str, counts: Int64, results: Float64) -> Float64:
    """Return the results of a function, from what the loop found for each bucket. Change `results`."""
    match function:
        case "avg":
            with np.errstate(invalid="ignore"):  # without numbers: 0 / 0
                results /= counts
        case "count":
            results = counts.astype(np.float64)
        case "min" | "mimmin":
            results[np.isposinf(results)] = np.nan
        case "max" | "mimmax":
            results[np.isneginf(results)] = np.nan
    if function not in ("first", "last", "count") and np.count_nonzero(counts) < len(counts):
        results[counts == 0] = np.nan
    return results
