"""Java's arithmetic where numpy's differs: division and casts that truncate toward zero."""

from typing import Any

import numpy as np

from tsd.codec.points import Float64, Int64

_LIMIT = 2.0**63


def quotient(numerator: Int64, denominator: Int64) -> Int64:
    """Return `numerator / denominator`, truncated toward zero; denominators are positive.

    >>> quotient(np.array([7, -7]), np.array([2, 2])).tolist()
    [3, -3]
    """
    floor = numerator // denominator
    floor += (numerator < 0) & (floor * denominator != numerator)
    return floor


def truncated(values: Float64) -> Int64:
    """Return Java's `(long) value`: toward zero, the nearest limit if it does not fit, 0 for NaN.

    >>> truncated(np.array([-1.5, 1e30, np.nan])).tolist()
    [-1, 9223372036854775807, 0]
    """
    inside = np.abs(values) < _LIMIT  # False for NaN
    whole: Any = np.where(inside, values, 0.0).astype(np.int64)
    limits = np.iinfo(np.int64)
    return np.where(inside, whole, np.where(values > 0, limits.max, np.where(values < 0, limits.min, 0)))
