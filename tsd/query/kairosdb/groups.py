"""Divide the points of a KairosDB query into its result groups: by kind, by tags, then by time, value and bin."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tsd.codec.points import Int64
from tsd.query.kairosdb.column import Column, merged
from tsd.query.kairosdb.model import UNITS_MS, Grouping, MetricQuery

ROW_MS = 1_814_400_000  # of KairosDB's tables; a limit counts for each of their rows


class TaggedColumn(NamedTuple):
    """The points of one series and one kind, by time."""

    tags: Mapping[str, str]
    column: Column


class ResultGroup(NamedTuple):
    """One group of a result."""

    is_text: bool
    tags: Mapping[str, Sequence[str]]  # all values of each tag name, sorted
    groups: Sequence[Mapping[str, Any]]  # the groupings, as the answer shows them
    column: Column


def limited(series: TaggedColumn, metric: MetricQuery) -> TaggedColumn:
    """Return a series with at most `limit` points of each of KairosDB's rows: one for three weeks and one type of
    value."""
    column, limit = series.column, metric.limit
    if not limit or not len(column):
        return series
    times = column.times
    rows = times - np.abs(times) % ROW_MS
    kept = np.zeros(len(column), np.bool_)
    for kind in (False, True):
        places = np.flatnonzero(column.points.floats == kind)
        if metric.descending:
            places = places[::-1]
        if not len(places):
            continue
        firsts = np.append(0, np.flatnonzero(np.diff(rows[places])) + 1)
        begins = np.repeat(firsts, np.diff(np.append(firsts, len(places))))
        kept[places[np.arange(len(places)) - begins < limit]] = True
    return TaggedColumn(series.tags, column.at(kept))


def result_groups(found: Sequence[TaggedColumn], metric: MetricQuery) -> Iterator[ResultGroup]:
    """Yield the groups of a metric, numbers first."""
    for is_text in (False, True):
        of_kind = [one for one in found if (one.column.texts is not None) == is_text and len(one.column)]
        if of_kind:
            yield from _by_tags(of_kind, metric, is_text=is_text)


def _by_tags(found: Sequence[TaggedColumn], metric: MetricQuery, *, is_text: bool) -> Iterator[ResultGroup]:
    names = metric.grouping_tags()
    groups: dict[str, list[TaggedColumn]] = {}
    for one in found:
        key = "".join(name + one.tags.get(name, "") for name in names)
        groups.setdefault(key, []).append(one)
    for key in sorted(groups):
        members = groups[key]
        alone = len(members) == 1 and not metric.descending  # by time already
        columns = [one.column for one in members]
        column = columns[0] if alone else merged(columns, descending=metric.descending)
        tags = all_tags([one.tags for one in members])
        shown: list[Mapping[str, Any]] = []
        if names:
            values = {name: members[0].tags.get(name, "") for name in names}
            shown.append({"name": "tag", "tags": list(names), "group": values})
        yield from _by_points(ResultGroup(is_text, tags, shown, column), metric)


def all_tags(each: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the values of each tag name, sorted.

    >>> all_tags([{"b": "2", "a": "1"}, {"a": "0"}])
    {'a': ['0', '1'], 'b': ['2']}
    """
    if len(each) == 1:  # as in most groups by tag: they may be thousands
        return {name: [value] for name, value in sorted(each[0].items())}
    found: dict[str, set[str]] = {}
    for tags in each:
        for name, value in tags.items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(found[name]) for name in sorted(found)}


def _by_points(group: ResultGroup, metric: MetricQuery) -> Iterator[ResultGroup]:
    """Divide a group by time, value and bin. The parts are in the order of their first points."""
    groupings = [one for one in metric.groupings if one.kind != "tag"]
    if not groupings:
        yield group
        return
    keys = np.stack([numbers_of(group.column, one, metric.start_ms) for one in groupings], axis=1)
    unique, firsts, places = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    for at in np.argsort(firsts, kind="stable").tolist():
        shown = [_shown(one, int(number)) for one, number in zip(groupings, unique[at], strict=True)]
        yield group._replace(groups=[*shown, *group.groups], column=group.column.at(places.reshape(-1) == at))


def numbers_of(column: Column, grouping: Grouping, start_ms: int) -> Int64:
    """Return the group of each point."""
    if grouping.kind == "time":
        return _time_numbers(column.times, grouping, start_ms)
    if column.texts is not None:
        return np.full(len(column), -1, np.int64)
    values = column.numbers()
    if grouping.kind == "bin":
        return _bin_numbers(values, grouping.bins)
    whole = np.where(column.points.floats, _as_ints(values), column.points.bits)
    size = np.int64(grouping.size)
    return np.sign(whole) * (np.abs(whole) // size)


def _as_ints(values: Any) -> Int64:
    """Return Java's `(int) value`."""
    limits = np.iinfo(np.int32)
    found: Int64 = np.clip(np.nan_to_num(values, nan=0.0), limits.min, limits.max).astype(np.int64)
    return found


def _bin_numbers(values: Any, bins: Sequence[float]) -> Int64:
    found: Int64 = np.full(len(values), len(bins), np.int64)
    for at in range(len(bins) - 2, -1, -1):
        found[(values >= bins[at]) & (values < bins[at + 1])] = at + 1
    found[values < bins[0]] = 0
    return found


def _time_numbers(times: Int64, grouping: Grouping, start_ms: int) -> Int64:
    size = grouping.range_size
    if size.unit == "MONTHS":
        months, first = _months(times), _months(np.array(start_ms, np.int64))
        return (months - first) % grouping.group_count
    return (times - start_ms) // (size.value * UNITS_MS[size.unit]) % grouping.group_count


def _months(times: Int64) -> Int64:
    """Return the number of the month of each time, in UTC."""
    return times.astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64)


def _shown(grouping: Grouping, number: int) -> dict[str, Any]:
    """Return a grouping and its group as the answer shows them."""
    if grouping.kind == "bin":
        return {"name": "bin", "bins": list(grouping.bins), "group": {"bin_number": number}}
    if grouping.kind == "value":
        return {"name": "value", "range_size": grouping.size, "group": {"group_number": number}}
    size = {"value": grouping.range_size.value, "unit": grouping.range_size.unit}
    return {
        "name": "time",
        "range_size": size,
        "group_count": grouping.group_count,
        "group": {"group_number": number},
    }
