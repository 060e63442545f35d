"""The series of a group → one series: at every time of any of them their values become one (query.md §11, §12)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tsd.query.aggregators import BY_NAME, Aggregator, Missing
from tsd.query.folds import Numbers
from tsd.query.merging import Held, Lane, lined_up
from tsd.query.points import NO_POINTS, Bool, Int64, Points
from tsd.query.ranges import ScanRange
from tsd.query.rate import Rates

_BLOCK = 1 << 16  # so many times at once: a block's arrays stay near the processor
_HELD = 1 << 20  # values that an aggregator that needs them all gets at once


class Merged(NamedTuple):
    """A group's points, and how many values of its series were made up for them between two points."""

    points: Points
    interpolated: int


def merge(
    series: Sequence[Points | Rates],
    aggregator: str,
    scan: ScanRange,
    *,
    rate: bool = False,
    corrected: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Merged:
    """One series out of those of a group, in their order, over the scan range.

    With `rate` all of them are Rates, else Points. Corrected: estimated percentiles of doubles are what they say.
    `check` is called every few milliseconds and raises what is to end it.
    """
    how = BY_NAME[aggregator]
    with np.errstate(all="ignore"):
        times, lanes = _rate_lanes(series) if rate else _lanes(series, scan, how.missing)
        if not len(times):
            return Merged(NO_POINTS, 0)
        stop = int(np.searchsorted(times, scan.stop_ms, "right"))
        doubles = np.ones(len(times), np.bool_) if rate else _doubles(lanes, len(times))
        step = max(64, _HELD // len(lanes)) if how.needs_all else _BLOCK
        parts = [
            _aggregated(lanes, how, (first, min(first + step, stop)), doubles, corrected, check)
            for first in range(0, stop, step)
        ]
    if not parts:
        return Merged(NO_POINTS, 0)
    bits = parts[0][0] if len(parts) == 1 else np.concatenate([part[0] for part in parts])
    return Merged(Points(times[:stop], bits, doubles[:stop]), sum(part[1] for part in parts))


def _lanes(series: Sequence[Points | Rates], scan: ScanRange, missing: Missing) -> tuple[Int64, list[Lane | Held]]:
    alive = []
    for points in series:
        assert isinstance(points, Points)
        if not len(points.times):
            continue
        early = 0 if points.times[0] >= scan.start_ms else int(np.searchsorted(points.times, scan.start_ms))
        if early < len(points.times):
            alive.append(points.at(slice(early, None)) if early else points)
    if not alive:
        return NO_POINTS.times, []
    times, places = lined_up(alive)
    return times, [Lane(points, own, times, missing) for points, own in zip(alive, places, strict=True)]


def _rate_lanes(series: Sequence[Points | Rates]) -> tuple[Int64, list[Lane | Held]]:
    alive = [rates for rates in series if isinstance(rates, Rates) and len(rates.points.times)]
    if not alive:
        return NO_POINTS.times, []
    times, places = lined_up([rates.points for rates in alive])
    return times, [Held(rates, own) for rates, own in zip(alive, places, strict=True)]


def _doubles(lanes: Sequence[Lane | Held], size: int) -> Bool:
    """At which times the result is a double: where a live series has one now, or will have next."""
    counts = [np.count_nonzero(lane.points.floats) for lane in lanes]
    having = [lane for lane, count in zip(lanes, counts, strict=True) if count]
    if all(count == len(lane.points.floats) for lane, count in zip(lanes, counts, strict=True)):
        return np.ones(size, np.bool_)
    found = np.zeros(size, np.bool_)
    for lane in having:
        assert isinstance(lane, Lane)
        found |= lane.near_doubles(size)
    return found


def _aggregated(
    lanes: Sequence[Lane | Held],
    how: Aggregator,
    part: tuple[int, int],
    doubles: Bool,
    corrected: bool,
    check: Callable[[], None],
) -> tuple[Int64, int]:
    """The bits of the results at some of the times, and how many values were made up for them."""
    wanted = doubles[slice(*part)]
    found: list[Numbers] = []
    made_up = 0
    for integers in (False, True):
        if wanted.all() if integers else not wanted.any():
            continue
        fold = how.make(integers=integers, corrected=corrected)
        fold.grow(len(wanted))
        made_up = 0
        for lane in lanes:
            check()
            piece = lane.part(*part, integers)
            if piece:
                fold.column(piece.first - part[0], piece.values)
                made_up += piece.made_up
        found.append(fold.result().view(np.int64))
    return (found[0] if len(found) == 1 else np.where(wanted, found[0], found[1])), made_up
