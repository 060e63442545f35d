"""The hours of a scan range after the end of a query: which series need their points, if the answer is cut at the end.

OpenTSDB reads these hours, because a series counts between its last point up to the end and its next one
(docs/compat/query.md §7 and §11). They are not needed where every series of a group has a point at the group's last
time: it then counts at all times up to the end.
"""

from collections.abc import Sequence

import numpy as np

from tsd.codec.points import Batch, Int64
from tsd.query.columns import SeriesColumns
from tsd.query.model import Fill, SubQuery

WHOLE_READS = 8  # queries that read all hours at once, after one that needed many later points
MANY = 4  # many: those of a quarter of the series

_NEVER = -(1 << 62)


class LaterReads:
    """Whether the next query of some series reads the later hours at once, or only where they are needed."""

    def __init__(self) -> None:
        self._left = 0  # queries that read all hours at once

    def are_apart(self) -> bool:
        """Return whether the next query reads the hours up to its end first."""
        if self._left:
            self._left -= 1
            return False
        return True

    def needed(self, series: int, of: int) -> None:
        """Note that `series` of `of` series needed later points: with many, a second read costs more than it saves."""
        if series * MANY > of:
            self._left = WHOLE_READS


def is_settled(batch: Batch, sub: SubQuery, end_ms: int) -> bool:
    """Return whether the only series, whose points in the hours before are a batch, needs no later ones, see
    `unsettled_series`."""
    if not len(batch.times) or sub.rate or sub.downsample is not None:
        return len(batch.times) > 0
    return bool(batch.floats[-1]) or int(batch.times[-1]) > end_ms


def unsettled_series(
    columns: SeriesColumns, counts: Int64, groups: Sequence[Int64], sub: SubQuery, end_ms: int
) -> Int64:
    """Return the numbers of the series whose points in later hours can change the answer up to `end_ms`, ascending.

    `columns` has the points or buckets of the hours before, `counts` how many points were read of each series. `groups`
    are the numbers of the series of each group. A series without points may be in a group by later ones. A rate needs
    two points, and a dropped reset leaves its series without one. The value before a double is a double.
    """
    found = counts == 0
    spec = sub.downsample
    drops = sub.rate and sub.rate_options.counter and sub.rate_options.drop_resets
    has_same_times = spec is not None and (spec.is_all or spec.fill is not Fill.NONE)
    if not groups or not len(columns.bits):
        return np.arange(len(counts))
    if has_same_times and not drops:
        return np.flatnonzero(found)
    members = np.concatenate(groups)
    sizes = np.array([len(group) for group in groups])
    starts = np.cumsum(sizes) - sizes
    firsts, stops = columns.bounds[members], columns.bounds[members + 1]
    ends = np.maximum(stops, 1) - 1
    times = columns.times[-1] if columns.shares_times else columns.times[ends]
    last = np.where(stops > firsts, times, _NEVER)
    newest = np.repeat(np.maximum.reduceat(last, starts), sizes)
    if spec is None and not sub.rate:
        doubles = np.logical_or.reduceat(columns.floats[ends] & (last == newest), starts)
        needed = (last < newest) | (~np.repeat(doubles, sizes) & (newest <= end_ms))
    else:
        alive = np.add.reduceat((counts[members] > 0).astype(np.int64), starts)
        needed = np.repeat(alive > 1, sizes)
        if sub.rate:
            needed &= drops | (last < newest) | (stops - firsts < 2)
        else:
            needed &= (stops > firsts) & (last < newest)
    found[members[needed]] = True
    return np.flatnonzero(found)
