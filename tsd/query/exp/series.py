"""Series of several variables side by side: which belong together, and tables of their times and values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tsd.query.answers import Group
from tsd.query.exp.request import Join
from tsd.query.points import Float64, Int64

MOST_ROWS = 1024  # of a block: each of them takes its time


@dataclass(slots=True)
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
    if all(each.times is first or np.array_equal(first, each.times) for each in series[1:]):
        return first
    return np.unique(np.concatenate([each.times for each in series]))


def spread(table: Float64, series: Sequence[Series | None], times: Int64, fill: float, absent: float) -> None:
    """Write values at `times` into a table, one row of them for each series: `fill` where one has none there, or NaN;
    `absent` in all of one that there is not."""
    table.fill(fill)
    for row, each in zip(table, series, strict=True):
        if each is None:
            row[:] = absent
            continue
        first, stop = np.searchsorted(each.times, (times[0], times[-1] + 1)) if len(times) else (0, 0)
        values = each.values[first:stop]
        usable = ~np.isnan(values)
        if usable.all() and len(values) == len(times):  # its times are all there are
            row[:] = values
        else:
            row[places(each.times[first:stop], times)[usable]] = values[usable]


def blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, slice]]:
    """A table in parts of about so many values: some rows, or some of one.

    >>> list(blocks((3, 4), 8))
    [(slice(0, 2, None), slice(0, 4, None)), (slice(2, 3, None), slice(0, 4, None))]
    """
    rows, columns = shape
    high, wide = min(max(1, most // max(1, columns)), MOST_ROWS), max(1, most)
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            yield slice(top, min(top + high, rows)), slice(left, min(left + wide, columns))


def places(some: Int64, times: Int64) -> NDArray[np.intp]:
    """Where some of `times` are among them."""
    return np.searchsorted(times, some)
