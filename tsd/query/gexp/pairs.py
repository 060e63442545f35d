"""`sum`, `difference`, `multiply` and `divide`: series of several operands, joined by their tags (query.md §19)."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import reduce

import numpy as np

from tsd.errors import BadQuery
from tsd.query.answers import Group
from tsd.query.points import Float64, Int64, Points, doubles_as_points


class Fold(Enum):
    """What two values become."""

    SUM = "+"
    DIFFERENCE = "-"
    PRODUCT = "*"
    QUOTIENT = "/"


def combined(
    operands: Sequence[Sequence[Group]], fold: Fold, *, corrected: bool, check: Callable[[], None] = lambda: None
) -> list[Group]:
    """One group for each set of tags that any operand has, in the order of their UIDs; an operand without it counts
    as 0. OpenTSDB pairs points by their places; corrected, by their times, those that all operands with the series
    have. `check` is called often, and raises what is to end it. Raises BadQuery."""
    sides = [{_key(group.tag_uids): group for group in groups} for groups in operands]
    found = []
    for key in sorted({key for side in sides for key in side}):
        check()
        groups = [side.get(key) for side in sides]
        found.append(_group(groups, fold, corrected=corrected))
    return found


def _key(tag_uids: Mapping[bytes, bytes]) -> bytes:
    return b"".join(tagk + tagv for tagk, tagv in sorted(tag_uids.items()))


def _group(groups: Sequence[Group | None], fold: Fold, *, corrected: bool) -> Group:
    """Named after the metric with the lowest UID, with the tags of the first operand."""
    there = [group for group in groups if group is not None]
    of_points = [group.points for group in there]
    times = _common_times(of_points) if corrected else _earliest_times(of_points)
    values = [_values(group, times, corrected=corrected) for group in groups]
    first = groups[0] if groups[0] or not corrected else there[0]
    return Group(
        min(there, key=lambda group: min(group.tsuids, default=b"\xff")).metric,
        dict(first.tags) if first else {},
        list(dict.fromkeys(tagk for group in there for tagk in group.aggregate_tags)),
        tsuids=sorted({tsuid for group in there for tsuid in group.tsuids}),
        points=doubles_as_points(times, reduce(lambda left, right: _folded(fold, left, right), values)),
        annotations=[],
        tag_uids=dict(first.tag_uids) if first else {},
        aggregate_tag_uids=sorted({uid for group in there for uid in group.aggregate_tag_uids}),
    )


def _earliest_times(series: Sequence[Points]) -> Int64:
    """The earliest time at each place; raises BadQuery where one series ends before another."""
    if len({len(points.times) for points in series}) > 1:
        raise BadQuery("No more elements")
    return reduce(np.minimum, [points.times for points in series])


def _common_times(series: Sequence[Points]) -> Int64:
    return reduce(lambda one, two: np.intersect1d(one, two, assume_unique=True), [points.times for points in series])


def _values(group: Group | None, times: Int64, *, corrected: bool) -> Float64:
    if group is None:
        return np.zeros(len(times))
    values = group.points.doubles()
    if not corrected:
        return np.where(np.isnan(values), 0.0, values)
    return values[np.searchsorted(group.points.times, times)]


def _folded(fold: Fold, left: Float64, right: Float64) -> Float64:
    with np.errstate(all="ignore"):
        match fold:
            case Fold.SUM:
                return left + right
            case Fold.DIFFERENCE:
                return left - right
            case Fold.PRODUCT:
                return left * right
            case Fold.QUOTIENT:
                return np.where(right == 0, 0.0, left / right)
