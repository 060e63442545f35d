"""Gnuplot's ways to smooth a curve, as far as numpy goes."""

import math
from collections.abc import Callable

import numpy as np

from tsd.query.points import Float64

SAMPLES = 1000  # points of a curve that is computed
KNOTS = 1000  # points that one is computed from: of more, means of neighbours
_STIFFNESS = 10.0  # of acsplines: how much a bend costs against the distance from the points
_Curve = tuple[Float64, Float64]


def smoothed(kind: str, times: Float64, values: Float64) -> _Curve:
    """A curve for points with ascending times."""
    smooth = _KINDS.get(kind)
    if smooth is None or not len(times):
        return times, values
    times, values = smooth_same(times, values, mean=kind != "frequency")
    return smooth(times, values) if len(times) > 2 else (times, values)


def smooth_same(times: Float64, values: Float64, *, mean: bool) -> _Curve:
    """Points of one time as one: their mean, or their sum."""
    unique, place = np.unique(times, return_inverse=True)
    total: Float64 = np.bincount(place, weights=values, minlength=len(unique)).astype(np.float64)
    if mean:
        total = total / np.bincount(place, minlength=len(unique))
    return unique, total


def natural_spline(times: Float64, values: Float64) -> _Curve:
    """The cubic spline through all points whose ends do not bend."""
    times, values = _fewer(times, values)
    step, slope = np.diff(times), np.diff(values) / np.diff(times)
    count = len(times)
    matrix = np.zeros((count, count))
    inner = np.arange(1, count - 1)
    matrix[0, 0] = matrix[-1, -1] = 1
    matrix[inner, inner - 1], matrix[inner, inner], matrix[inner, inner + 1] = (
        step[:-1],
        2 * (step[:-1] + step[1:]),
        step[1:],
    )
    bend = np.linalg.solve(matrix, np.concatenate(([0], 6 * np.diff(slope), [0])))
    at = np.linspace(times[0], times[-1], SAMPLES)
    left = np.clip(np.searchsorted(times, at, "right") - 1, 0, count - 2)
    x, h = at - times[left], step[left]
    low, high = bend[left], bend[left + 1]
    return at, values[left] + x * (slope[left] - h * (2 * low + high) / 6) + x**2 * low / 2 + x**3 * (high - low) / (
        6 * h
    )


def smoothing_spline(times: Float64, values: Float64) -> _Curve:
    """A spline near the points that bends as little as it can."""
    times, values = _fewer(times, values)
    second = np.diff(np.eye(len(times)), 2, axis=0)
    near: Float64 = np.linalg.solve(np.eye(len(times)) + _STIFFNESS * second.T @ second, values).astype(np.float64)
    return natural_spline(times, near)


def bezier(times: Float64, values: Float64) -> _Curve:
    """The Bézier curve of all points: only its ends are on it."""
    times, values = _fewer(times, values)
    degree = len(times) - 1
    index = np.arange(degree + 1)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, degree + 1)))))
    ways = math.fsum((factorials[degree],)) - factorials - factorials[::-1]
    at = np.linspace(0, 1, SAMPLES)[1:-1, None]
    weights = np.exp(ways + index * np.log(at) + (degree - index) * np.log1p(-at))
    ends = ((times[:1], times[-1:]), (values[:1], values[-1:]))
    x, y = (
        np.concatenate((low, weights @ all_, high)) for (low, high), all_ in zip(ends, (times, values), strict=True)
    )
    return x, y


def _fewer(times: Float64, values: Float64) -> _Curve:
    """No more than can be computed with."""
    if len(times) <= KNOTS:
        return times, values
    place = np.arange(len(times)) * KNOTS // len(times)
    count = np.bincount(place)
    return np.bincount(place, weights=times) / count, np.bincount(place, weights=values) / count


_KINDS: dict[str, Callable[[Float64, Float64], _Curve]] = {
    "unique": lambda times, values: (times, values),
    "frequency": lambda times, values: (times, values),
    "csplines": natural_spline,
    "acsplines": smoothing_spline,
    "bezier": bezier,
    "sbezier": bezier,
}
