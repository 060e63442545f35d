"""Points as the engine moves them: parallel arrays, integers and doubles side by side, nothing rounded.

A value's `bits` are the integer itself, or the raw bits of a double; `floats` says which. So `bits.view(float64)` is
the values where all are doubles, and `bits` itself where none is.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Points(NamedTuple):
    """Points of one series, or of one group: arrays of one length, times ascending, each time once."""

    times: Int64  # ms since the epoch
    bits: Int64
    floats: Bool

    def doubles(self) -> Float64:
        """All values as doubles: integers are converted, as Java's (double) does.

        >>> Points(np.array([0, 1]), np.array([2, 0]), np.array([False, True])).doubles().tolist()
        [2.0, 0.0]
        """
        if self.floats.all():
            return self.bits.view(np.float64)
        return np.where(self.floats, self.bits.view(np.float64), self.bits.astype(np.float64))

    def at(self, index: slice | NDArray[np.bool_] | NDArray[np.intp]) -> "Points":
        """The points an index picks."""
        return Points(self.times[index], self.bits[index], self.floats[index])


class Batch(NamedTuple):
    """Points of several rows, row after row: one series and one hour each, in time order within a row.

    `series` numbers the series of a sub query from 0 (dense, whatever order); rows of one series come in order of time,
    within a batch and from one batch to the next. A row without points is allowed: it makes its series known.
    """

    series: NDArray[np.int32]  # (rows,): whose row it is
    starts: Int64  # (rows + 1,): where each row's points are in the arrays below
    times: Int64  # (points,): ms since the epoch
    bits: Int64
    floats: Bool


def doubles_as_points(times: Int64, values: Float64) -> Points:
    """Points that are all doubles."""
    return Points(times, np.ascontiguousarray(values).view(np.int64), np.ones(len(times), np.bool_))


NO_POINTS = Points(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
