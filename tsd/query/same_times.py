"""Aggregates series that all have the same times: nothing is aligned or interpolated.

One compiled pass adds each row of values to its group. Results are those of `tsd.query.merge` bit by bit, as long as
rows come in the order in which a group's series are merged.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Bool, Float64, Int64, Points
from tsd.query.columns import CHUNK, Chosen, SeriesColumns, rows_at
from tsd.query.java_arithmetic import quotient
from tsd.query.row_buckets import HAS_LOOP
from tsd.tables.reading import ScanRange

if HAS_LOOP:
    from tsd.query import _loops

SUM, LOW, HIGH = range(3)  # functions of the loop
FUNCTIONS: Mapping[str, int] = MappingProxyType(
    {"sum": SUM, "zimsum": SUM, "pfsum": SUM, "avg": SUM, "count": SUM,
     "min": LOW, "mimmin": LOW, "max": HIGH, "mimmax": HIGH}
)  # fmt: skip
DOUBLE, INTEGER = 1, 2  # kinds of values
_LIMITS = np.iinfo(np.int64)
STARTS = {SUM: (0.0, 0), LOW: (np.inf, _LIMITS.max), HIGH: (-np.inf, _LIMITS.min)}  # of doubles and of integers


def results(
    aggregator: str, doubles: Float64, integers: Int64, kinds: NDArray[np.uint8], counts: int | Int64
) -> tuple[Int64, Bool]:
    """Return the bits of groups at their times, and which are doubles. The arguments are arrays of (times,) or of
    (groups, times), as `_loops.add_rows` left them. `counts`: the series of each group."""
    wanted = _are_doubles(kinds)
    if wanted.all():
        return _of_doubles(aggregator, doubles, counts).view(np.int64), wanted
    whole = _of_integers(aggregator, integers, counts)
    return np.where(wanted, _of_doubles(aggregator, doubles, counts).view(np.int64), whole), wanted


def _are_doubles(kinds: NDArray[np.uint8]) -> Bool:
    """Return at which times the result is a double: where a value of the group, or its next one, is a double."""
    if not (kinds & INTEGER).any():
        return np.ones(kinds.shape, np.bool_)
    found = (kinds & DOUBLE) > 0
    found[..., :-1] |= found[..., 1:].copy()
    return found


def _of_doubles(aggregator: str, found: Float64, counts: int | Int64) -> Float64:
    match aggregator:
        case "avg":
            return found / counts
        case "count":
            return np.broadcast_to(np.asarray(counts, np.float64), found.shape).copy()
    worst = {SUM: None, LOW: np.inf, HIGH: -np.inf}[FUNCTIONS[aggregator]]
    return found if worst is None else np.where(found == worst, np.nan, found)


def _of_integers(aggregator: str, found: Int64, counts: int | Int64) -> Int64:
    match aggregator:
        case "avg":
            return quotient(found, np.broadcast_to(np.asarray(counts, np.int64), found.shape))
        case "count":
            return np.broadcast_to(np.asarray(counts, np.int64), found.shape).copy()
    return found


def summed_table(chosen: Chosen, aggregator: str, scan: ScanRange) -> Points | None:
    """Return what `merge` returns for few values of series that share all times; None for others, for aggregators that
    need more than a pass, and without the compiled loop."""
    columns, width, count = chosen.columns, len(chosen.columns.times), len(chosen.numbers)
    if not columns.shares_times or not _may_sum(columns.times, aggregator, scan) or not 0 < width * count <= CHUNK:
        return None
    firsts = columns.bounds[chosen.numbers]
    if np.count_nonzero(columns.bounds[chosen.numbers + 1] - firsts != width):
        return None
    bits, floats = rows_at(columns.bits, firsts, 0, width, width), rows_at(columns.floats, firsts, 0, width, width)
    found = _summed(columns.times, bits, floats, np.zeros(count, np.int64), np.array([count]), aggregator)
    return None if found is None else found[0]


def summed_groups(
    columns: SeriesColumns, groups: Sequence[Int64], aggregator: str, scan: ScanRange
) -> list[Points | None]:
    """Return what `merge` returns for each group of few values whose series all have the times that most series have.
    Return None for other groups, and where `summed_table` does. `groups` are the series of each, one or more, in the
    order in which they are merged; no series is in two."""
    found: list[Points | None] = [None] * len(groups)
    counts = np.array([len(group) for group in groups])
    rows, places = np.concatenate(groups), np.arange(len(groups))
    sizes = np.add.reduceat(columns.bounds[rows + 1] - columns.bounds[rows], np.cumsum(counts) - counts)
    rows, counts, places = _of_groups(sizes <= CHUNK, rows, counts, places)  # before times are compared
    if not len(places):
        return found
    times, has_times = _common_times(columns, rows)
    if not _may_sum(times, aggregator, scan):
        return found
    fits = np.logical_and.reduceat(has_times, np.cumsum(counts) - counts)
    rows, counts, places = _of_groups(fits, rows, counts, places)
    if len(places):
        bits, floats, group_of = _table_of(columns, rows, np.repeat(np.arange(len(places)), counts), len(times))
        summed = _summed(times, bits, floats, group_of, counts, aggregator)
        for place, points in zip(places.tolist(), summed or (), strict=summed is not None):
            found[place] = points
    return found


def _of_groups(chosen: Bool, rows: Int64, counts: Int64, places: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the rows of some groups, the number of each group's rows, and its place."""
    if chosen.all():
        return rows, counts, places
    return rows[np.repeat(chosen, counts)], counts[chosen], places[chosen]


def _common_times(columns: SeriesColumns, rows: Int64) -> tuple[Int64, Bool]:
    """Return times that most of some series have, and which series have them."""
    firsts = columns.bounds[rows]
    widths = columns.bounds[rows + 1] - firsts
    if columns.shares_times:
        return columns.times, widths == len(columns.times)
    width = int(np.bincount(widths).argmax())
    has_times = widths == width
    firsts = firsts[has_times]
    times = columns.times[firsts[0] : firsts[0] + width]
    has_times[has_times] = (rows_at(columns.times, firsts, 0, width, width) == times).all(axis=1)
    return times, has_times


def _table_of(
    columns: SeriesColumns, rows: Int64, group_of: Int64, width: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], Int64]:
    """Return the bits of series of the same width, one row each, which of these are doubles, and the group of each row:
    those of a group in their order."""
    if not columns.shares_times or len(columns.bits) != len(columns) * width:
        firsts = columns.bounds[rows]
        bits = rows_at(columns.bits, firsts, 0, width, width)
        return bits, rows_at(columns.floats, firsts, 0, width, width), group_of
    bits, floats = columns.bits.reshape(-1, width), columns.floats.reshape(-1, width)
    falls = rows[1:] < rows[:-1]
    if len(rows) < len(columns) or (falls & (group_of[1:] == group_of[:-1])).any():
        return bits[rows], floats[rows], group_of
    every = np.empty(len(columns), np.int64)
    every[rows] = group_of
    return bits, floats, every


def _may_sum(times: Int64, aggregator: str, scan: ScanRange) -> bool:
    """Return whether series of these times may be summed in one pass: all are within a scan."""
    if not HAS_LOOP or aggregator not in FUNCTIONS or not len(times):
        return False
    return bool(times[0] >= scan.start_ms and times[-1] <= scan.stop_ms)


def _summed(
    times: Int64, bits: Int64, floats: Bool, group_of: Int64, counts: Int64, aggregator: str
) -> list[Points] | None:
    """Return the points of groups of rows; None if a value is NaN, which counts for nothing."""
    function, shape = FUNCTIONS[aggregator], (len(counts), len(times))
    double, integer = STARTS[function]
    doubles, integers = np.full(shape, double), np.full(shape, integer, np.int64)
    kinds = np.zeros(shape, np.uint8)
    with np.errstate(all="ignore"):
        if not _loops.add_rows(function, bits, floats.view(np.uint8), group_of, doubles, integers, kinds):
            return None
        found, wanted = results(aggregator, doubles, integers, kinds, counts[:, None])
    return [Points(times, *row) for row in zip(found, wanted, strict=True)]
