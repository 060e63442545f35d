"""Series of several variables side by side: which belong together, and tables of their times and values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tsd.query.answers import Group
from tsd.query.exp.request import Join
from tsd.query.points import Float64, Int64


@dataclass
class Series:
    """One series of a variable: of a metric a group, of an expression a result."""

    times: Int64  # ms, ascending
    values: Float64
    metrics: frozenset[str]
    tags: Mapping[str, str]
    aggregate_tags: Sequence[str]
    tag_uids: Mapping[bytes, bytes] = field(default_factory=dict)  # tagk → tagv
    aggregate_tag_uids: Sequence[bytes] = ()


@dataclass
class Table:
    """What a variable or an output holds: series over one set of times."""

    times: Int64  # (rows,), ascending
    values: Float64  # (series, rows)
    series: Sequence[Series]  # whose times and values nobody looks at any more


def series_of(group: Group) -> Series:
    """A group as a series of doubles."""
    return Series(
        group.points.times,
        group.points.doubles(),
        frozenset({group.metric}),
        group.tags,
        tuple(group.aggregate_tags),
        group.tag_uids,
        group.aggregate_tag_uids,
    )


def join_key(series: Series, join: Join, query_tagks: Sequence[bytes]) -> bytes:
    """What series that belong together have in common: their tag pairs, then the names of aggregated tags; nothing for
    one without tags."""
    if not series.tag_uids:
        return b""
    pairs = sorted(series.tag_uids.items())
    if join.use_query_tags:
        pairs = [pair for pair in pairs if pair[0] in query_tagks]
    key = b"".join(tagk + tagv for tagk, tagv in pairs)
    return key + b"".join(sorted(series.aggregate_tag_uids)) if join.include_agg_tags else key


def joined(variables: Iterable[Mapping[bytes, object]], operator: str) -> list[bytes]:
    """The keys that there are series for, in order: of any variable, or for an intersection of all."""
    sets = [frozenset(of_one) for of_one in variables]
    return sorted(frozenset.intersection(*sets) if operator == "intersection" else frozenset().union(*sets))


def all_times(series: Sequence[Series]) -> Int64:
    """Every time of any series, once."""
    if not series:
        return np.empty(0, np.int64)
    first = series[0].times
    if all(np.array_equal(first, each.times) for each in series[1:]):
        return first
    return np.unique(np.concatenate([each.times for each in series]))


def spread(series: Sequence[Series | None], times: Int64, fill: float, absent: float) -> Float64:
    """Values at `times`, one row of them for each series: `fill` where one has none there, or NaN; `absent` in all of
    one that there is not."""
    table = np.full((len(series), len(times)), fill)
    for row, each in zip(table, series, strict=True):
        if each is None:
            row[:] = absent
            continue
        usable = ~np.isnan(each.values)
        if usable.all() and len(each.times) == len(times):  # its times are all there are
            row[:] = each.values
        else:
            row[places(each.times, times)[usable]] = each.values[usable]
    return table


def places(some: Int64, times: Int64) -> NDArray[np.intp]:
    """Where some of `times` are among them."""
    return np.searchsorted(times, some)
