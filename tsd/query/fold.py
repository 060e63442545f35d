"""The innermost loops of a query in compiled form, where a C compiler was there when the package was installed.

`HAS` says whether they are. Everything works without them, in numpy: the same answers, to the last bit, slower.
"""

import os
import threading
from typing import NamedTuple

import numpy as np

from tsd.query.points import Batch, Bool, Float64, Int64

try:
    from tsd.query import _fast
except ImportError:  # no compiler when it was installed
    HAS = False
else:
    HAS = not os.environ.get("TSD_PURE")  # to compare the two

FUNCTIONS = {"sum": 0, "zimsum": 0, "pfsum": 0, "avg": 0, "count": 0, "min": 1, "mimmin": 1, "max": 2, "mimmax": 2,
             "first": 3, "last": 4}  # fmt: skip


_KEPT_POINTS = 1 << 18  # a page of 2 MiB has about as many; 8 MiB for each thread that decodes


class Read(NamedTuple):
    """Points of rows that were read by rote, row by row."""

    times: Int64
    bits: Int64
    floats: Bool
    counts: Int64  # of points of each row
    slow: Bool  # rows that have none of these: they must be read another way


def read_cells(
    columns: list[bytes], values: list[bytes], skip: int, ahead: int, row_of: Int64, bases_ms: Int64, slow: Bool
) -> Read:
    """The points of cells, those of a row beside each other and in order of their columns.

    `row_of` is the row of each cell, `bases_ms` the base time of each row. A column has its qualifier behind `skip`
    bytes, a value starts behind `ahead`. Rows that are `slow` are passed over.
    """
    room = (sum(map(len, columns)) - skip * len(columns)) // 2
    times, bits, floats = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
    counts, marked = np.zeros(len(bases_ms), np.int64), slow.astype(np.uint8)
    size = 0
    if columns:
        size = _fast.decode_cells(columns, values, skip, ahead, row_of, bases_ms, times, bits, floats, counts, marked)
    return Read(times[:size], bits[:size], floats[:size].view(np.bool_), counts, marked.view(np.bool_))


class Folded(NamedTuple):
    """What whole buckets of rows came to, row by row."""

    rows: Int64  # whose: the row's place in its batch
    stamps: Int64  # the bucket's first moment, ms
    values: Float64


_own = threading.local()  # each thread's working memory: to fault new memory in for every page costs more than the loop


def _scratch(room: int) -> list[Int64]:
    """Four arrays of so many places, whose content means nothing after the next call in this thread."""
    if room > _KEPT_POINTS:
        return [np.empty(room, np.int64) for _ in range(4)]
    if not hasattr(_own, "arrays"):
        _own.arrays = [np.empty(_KEPT_POINTS, np.int64) for _ in range(4)]
    return [array[:room] for array in _own.arrays]


def folds(function: str) -> bool:
    """Whether `fold` knows a downsampling function."""
    return HAS and function in FUNCTIONS


def fold(batch: Batch, interval_ms: int, function: str) -> Folded:
    """Every bucket of every row of a batch, for an interval that divides the hour: none goes on in another row."""
    room = len(batch.times)
    rows, stamps, counts, numbers = _scratch(room)
    results = numbers.view(np.float64)
    size = 0
    if room:
        floats = batch.floats.view(np.uint8)
        size = _fast.fold_runs(
            batch.starts,
            batch.times,
            batch.bits,
            floats,
            interval_ms,
            FUNCTIONS[function],
            rows,
            stamps,
            counts,
            results,
        )
    rows, stamps, counts, results = rows[:size].copy(), stamps[:size].copy(), counts[:size], results[:size].copy()
    match function:
        case "avg":
            with np.errstate(invalid="ignore"):  # no numbers: nothing by nothing
                results /= counts
        case "count":
            results = counts.astype(np.float64)
        case "min" | "mimmin":
            results[np.isposinf(results)] = np.nan
        case "max" | "mimmax":
            results[np.isneginf(results)] = np.nan
    if function not in ("first", "last", "count"):
        results[counts == 0] = np.nan
    return Folded(rows, stamps, results)
