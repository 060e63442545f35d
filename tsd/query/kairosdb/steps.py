"""Apply the aggregators of a KairosDB query to a group's points, in order.

Aggregators of numbers pass over texts.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

import numpy as np

from tsd.codec.points import Bool, Float64, Int64
from tsd.query.kairosdb.column import POINT_BYTES, Column, in_runs, of_doubles, of_integers
from tsd.query.kairosdb.model import BadRequest, Sampling, Step
from tsd.query.kairosdb.properties import RANGES
from tsd.query.kairosdb.ranges import aggregate, aggregate_all, buckets_of, gaps, ranges_of
from tsd.query.kairosdb.times import plus

ALONE = frozenset({"gaps", "least_squares"})  # a bucket has no result, or two
TOGETHER = 1 << 18  # points of groups that are aggregated in one pass
TAKES_TEXT = frozenset({"count", "first", "last", "gaps", "trim", "filter", "save_as"})


class Frame(NamedTuple):
    """What aggregators know of their query."""

    start_ms: int
    end_ms: int  # of the query, or the present time if that is earlier
    zone: tzinfo
    add_memory: Callable[[int], None]  # called with bytes; raises BadQuery
    check: Callable[[], None]  # called often; raises an exception to stop the work


def apply(column: Column, step: Step, frame: Frame) -> Column:
    """Return the points after one aggregator. Raise BadQuery."""
    frame.check()
    if column.texts is not None and step.name not in TAKES_TEXT:
        return column
    if step.name in RANGES:
        buckets = buckets_of(step, frame.start_ms, frame.zone)
        if step.name == "gaps":
            span = frame.start_ms, frame.end_ms
            return gaps(column, step, buckets, span, lambda nulls: frame.add_memory(nulls * POINT_BYTES), frame.check)
        return aggregate(column, step, ranges_of(column.times, buckets))
    with np.errstate(all="ignore"):
        return _STEPS[step.name](column, step, frame)


def apply_all(columns: Sequence[Column], step: Step, frame: Frame) -> list[Column]:
    """Return the points of each of several groups after one aggregator. Raise BadQuery.

    Small groups are taken together: each call on arrays costs more than its few points.
    """
    if step.name not in RANGES or step.name in ALONE:
        return [apply(column, step, frame) for column in columns]
    buckets = buckets_of(step, frame.start_ms, frame.zone)
    found: list[Column] = []
    for some in in_runs(columns, list(map(len, columns)), TOGETHER):
        frame.check()
        results = aggregate_all(some, step, buckets) if len(some) > 1 else None
        found += [apply(column, step, frame) for column in some] if results is None else results
    return found


def _diff(column: Column, _step: Step, _frame: Frame) -> Column:
    values = column.numbers()
    return of_doubles(column.times[1:], values[1:] - values[:-1])


def _div(column: Column, step: Step, _frame: Frame) -> Column:
    return of_doubles(column.times, column.numbers() / step.divisor)


def _scale(column: Column, step: Step, _frame: Frame) -> Column:
    return of_doubles(column.times, column.numbers() * step.factor)


def _rate(column: Column, step: Step, frame: Frame) -> Column:
    values, passed = column.numbers(), _passed(column, "rate")
    change = (values[1:] - values[:-1]) / passed
    return of_doubles(column.times[1:], change * _lengths(column.times, step.sampling, frame.zone))


def _sampler(column: Column, step: Step, frame: Frame) -> Column:
    values, passed = column.numbers(), _passed(column, "sampler")
    return of_doubles(column.times[1:], values[1:] / passed * _lengths(column.times, step.sampling, frame.zone))


def _passed(column: Column, name: str) -> Float64:
    """Return the time from each point to the next, in ms. Raise BadRequest if there is none."""
    passed = np.diff(column.times)
    if not passed.all():
        time_ms = int(column.times[1:][passed == 0][0])
        raise BadRequest(f"{name} needs one point at a time, got two at {time_ms} ms: aggregate them first")
    return passed.astype(np.float64)


def _lengths(times: Int64, sampling: Sampling, zone: tzinfo) -> Float64:
    """Return the length of a sampling from each point but the last on, in ms."""
    begins = times[:-1]
    if not sampling.is_calendar:
        return np.full(len(begins), float(sampling.nominal_ms))
    ends = [plus(begin, sampling.value, sampling.unit, zone) for begin in begins.tolist()]
    return (np.array(ends, np.int64) - begins).astype(np.float64)


def _sma(column: Column, step: Step, _frame: Frame) -> Column:
    values, size = column.numbers(), step.size
    if len(values) < size:
        return of_doubles(column.times[:0], values[:0])
    total = np.zeros(len(values) - size + 1)
    for first in range(size):  # in order, oldest first
        total += values[first : len(values) - size + 1 + first]
    return of_doubles(column.times[size - 1 :], total / size)


def _trim(column: Column, step: Step, _frame: Frame) -> Column:
    first = 1 if step.trim in ("first", "both") else 0
    last = len(column) - (1 if step.trim in ("last", "both") else 0)
    return column.at(slice(first, max(first, last)))


_COMPARES: Mapping[str, Callable[[Any, Any], Any]] = {
    "lt": operator.lt,
    "lte": operator.le,
    "gt": operator.gt,
    "gte": operator.ge,
    "equal": operator.eq,
    "ne": operator.ne,
}


def _filter(column: Column, step: Step, _frame: Frame) -> Column:
    """Remove the points for which the comparison holds, and those of another kind than the threshold."""
    compare, threshold = _COMPARES[step.filter_op], step.threshold
    removed: Bool = np.ones(len(column), np.bool_)
    if column.texts is not None and isinstance(threshold, str):
        each = (text is not None and bool(compare(text, threshold)) for text in column.texts)  # None: from `gaps`
        removed = np.fromiter(each, np.bool_, len(column))
    elif column.texts is None and isinstance(threshold, float):
        removed = compare(column.points.doubles(), threshold)
        if column.nulls is not None:
            removed &= ~column.nulls
    return column.at(~removed)


def _score(column: Column, step: Step, _frame: Frame) -> Column:
    """Return how many thresholds each value has passed."""
    values = column.numbers()
    passed: Int64 = np.zeros(len(values), np.int64)
    for threshold in sorted(step.thresholds):
        passed += (values >= threshold.value) if threshold.inferior else (values > threshold.value)
    return of_integers(column.times, len(step.thresholds) - passed if step.descending else passed)


def _save_as(_column: Column, step: Step, _frame: Frame) -> Column:
    raise BadRequest(f"save_as: queries do not write points (metric_name {step.metric_name})")


_STEPS: Mapping[str, Callable[[Column, Step, Frame], Column]] = {
    "diff": _diff,
    "div": _div,
    "filter": _filter,
    "rate": _rate,
    "sampler": _sampler,
    "save_as": _save_as,
    "scale": _scale,
    "score": _score,
    "sma": _sma,
    "trim": _trim,
}
