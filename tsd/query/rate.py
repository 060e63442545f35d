"""Values → their change a second (query.md §10)."""

from typing import NamedTuple

import numpy as np

from tsd.query.model import RateOptions
from tsd.query.points import Bool, Float64, Int64, Points, doubles_as_points


class Rates(NamedTuple):
    """The rates of a series, each at the time of the later of its two points.

    `first` is what OpenTSDB takes for the rate at the series' first point, as if there had been a 0 in 1970: no
    answer shows it, but it is added to other series' rates until this one's own begin (query.md §11).
    """

    first: float | None  # None: nothing of the kind
    points: Points


def rate(points: Points, options: RateOptions, start_ms: int = 0, *, corrected: bool = False) -> Rates:
    """Rates of a series. Corrected: without the meaningless first one.

    Of a filled series the bucket before `start_ms`, where merging begins, may lead: its rates are none, but the next is
    then the first, and a rate from what it was filled with.
    """
    early = int(np.searchsorted(points.times, start_ms))
    if len(points.times) - early < 2:
        return Rates(None, points.at(slice(0, 0)))
    if not options.counter:
        return _plain(points.at(slice(early, None)), corrected)  # filled, it has no gap in which the first could show
    origin = Points(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    with np.errstate(all="ignore"):
        led = Points(*(np.concatenate(pair) for pair in zip(origin, points, strict=True)))
        rates, kept = _rates(led, options)
    if corrected:
        kept[0] = True  # it is left out for certain, and no real one in its stead
    kept[:early] = False
    times, rates = points.times[kept], rates[kept]
    if len(times) < 2:
        return Rates(None, points.at(slice(0, 0)))
    return Rates(None if corrected else float(rates[0]), doubles_as_points(times[1:], rates[1:]))


def _plain(points: Points, corrected: bool) -> Rates:
    """The rates of what is no counter."""
    with np.errstate(all="ignore"):
        change, _, _ = _changes(points)
        rates = change / (np.diff(points.times) / 1000.0)
        first = points.at(slice(0, 1)).doubles() / (points.times[:1] / 1000.0)
    return Rates(None if corrected else float(first[0]), doubles_as_points(points.times[1:], rates))


def _rates(points: Points, options: RateOptions) -> tuple[Float64, Bool]:
    """The rate of each pair of neighbours, and which of them count."""
    seconds = np.diff(points.times) / 1000.0
    change, whole, fell = _changes(points)
    kept = np.ones(len(change), np.bool_)
    if not fell.any():
        return change / seconds, kept
    if options.drop_resets:
        return change / seconds, ~fell
    rates = np.where(fell, _wrapped(points, whole, options.counter_max), change) / seconds
    if options.reset_value > 0:
        rates[fell & (rates > options.reset_value)] = 0.0
    return rates, kept


def _changes(points: Points) -> tuple[Float64, Bool, Bool]:
    """v1 - v0 as doubles; whether both are integers, which are subtracted as such; whether the change is below 0."""
    values = points.doubles()
    change = values[1:] - values[:-1]
    whole = ~(points.floats[1:] | points.floats[:-1])
    if whole.any():
        exact: Int64 = points.bits[1:] - points.bits[:-1]
        change = np.where(whole, exact.astype(np.float64), change)
    return change, whole, change < 0


def _wrapped(points: Points, whole: Bool, counter_max: int) -> Float64:
    """The change of a counter that began again: max - v0 + v1."""
    values = points.doubles()
    exact = counter_max - points.bits[:-1] + points.bits[1:]
    return np.where(whole, exact.astype(np.float64), float(counter_max) - values[:-1] + values[1:])
