"""Evaluates the expressions of `/api/query/exp`: nested ones first, each over whole series (docs/compat/query.md §20).

Series of several variables are joined by their tags, and aligned in tables of times and values.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Float64, Int64
from tsd.errors import BadQuery
from tsd.query.exp.evaluate import BadResult, depth, evaluate
from tsd.query.exp.request import ExpMetric, ExpRequest, Formula, Join, by_dependency, needed
from tsd.query.plan import output_range
from tsd.query.result import Answer, Group

MAX_ROWS = 1024  # of a block, because each row has a fixed cost


@dataclass(slots=True)
class ExpSeries:
    """One series of a variable: a group of a metric, or a result of an expression."""

    times: Int64  # ms, ascending
    values: Float64
    metrics: frozenset[str]
    tags: Mapping[str, str]
    aggregate_tags: Sequence[str]
    tag_uids: Mapping[bytes, bytes] = field(default_factory=dict)  # tagk → tagv
    aggregate_tag_uids: Sequence[bytes] = ()


@dataclass
class ExpTable:
    """The series of a variable or an output, over one set of times."""

    times: Int64  # (rows,), ascending
    values: Float64  # (series, rows)
    series: Sequence[ExpSeries]  # their own times and values are not used any more


def series_of(group: Group) -> ExpSeries:
    """Convert a group to a series of doubles."""
    return ExpSeries(
        group.points.times,
        group.points.doubles(),
        frozenset({group.metric}),
        group.tags,
        tuple(group.aggregate_tags),
        group.tag_uids,
        group.aggregate_tag_uids,
    )


def join_key(series: ExpSeries, join: Join, query_tagks: Sequence[bytes]) -> bytes:
    """Return the key by which series are joined: their tag pairs, then the names of aggregated tags; empty without
    tags."""
    if not series.tag_uids:
        return b""
    pairs = sorted(series.tag_uids.items())
    if join.use_query_tags:
        pairs = [pair for pair in pairs if pair[0] in query_tagks]
    key = b"".join(tagk + tagv for tagk, tagv in pairs)
    return key + b"".join(sorted(series.aggregate_tag_uids)) if join.include_agg_tags else key


def joined(variables: Iterable[Mapping[bytes, object]], operator: str) -> list[bytes]:
    """Return the keys that have series, in order: in any variable, or in all for an intersection."""
    sets = [frozenset(of_one) for of_one in variables]
    return sorted(frozenset.intersection(*sets) if operator == "intersection" else frozenset().union(*sets))


def all_times(series: Sequence[ExpSeries]) -> Int64:
    """Return every time of any series, once, ascending."""
    if not series:
        return np.empty(0, np.int64)
    first = series[0].times
    if all(each.times is first or np.array_equal(first, each.times) for each in series[1:]):
        return first
    return np.unique(np.concatenate([each.times for each in series]))


def spread(table: Float64, series: Sequence[ExpSeries | None], times: Int64, fill: float, absent: float) -> None:
    """Write the values at `times` into a table, one row for each series: `fill` replaces missing values and NaN, and
    `absent` is the whole row of a missing series."""
    table.fill(fill)
    for row, each in zip(table, series, strict=True):
        if each is None:
            row[:] = absent
            continue
        first, stop = np.searchsorted(each.times, (times[0], times[-1] + 1)) if len(times) else (0, 0)
        values = each.values[first:stop]
        usable = ~np.isnan(values)
        if usable.all() and len(values) == len(times):  # it has all times
            row[:] = values
        else:
            row[places(each.times[first:stop], times)[usable]] = values[usable]


def blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, slice]]:
    """Split a table into parts of about `most` values: some rows, or part of a row.

    >>> list(blocks((3, 4), 8))
    [(slice(0, 2, None), slice(0, 4, None)), (slice(2, 3, None), slice(0, 4, None))]
    """
    rows, columns = shape
    high, wide = min(max(1, most // max(1, columns)), MAX_ROWS), max(1, most)
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            yield slice(top, min(top + high, rows)), slice(left, min(left + wide, columns))


def places(some: Int64, times: Int64) -> NDArray[np.intp]:
    """Return the places of some of `times`."""
    return np.searchsorted(times, some)


T = TypeVar("T")

SERIES_BYTES = 1500  # of a series, in addition to its values
VALUE_BYTES = 48  # of a value on the stack, without the digits of an integer
BLOCK_BYTES = 16 << 20  # used to evaluate one block of values
CHECK_EVERY = 1024  # series


@dataclass
class OutputTable:
    """One output and its series."""

    id: str
    alias: str | None
    table: ExpTable
    is_metric: bool


class Evaluation:
    """Evaluates the variables of one request that its outputs need. It may run in a thread."""

    def __init__(
        self,
        request: ExpRequest,
        answer: Answer,
        subs: Sequence[int],
        *,
        add_memory: Callable[[int], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """`subs`: the number of each metric's sub answer. `add_memory` is called with bytes before they are used, and
        raises if there is no memory; negative numbers release. `check` is called often and raises to stop the work.
        Values are evaluated in blocks of about `block_bytes`."""
        self._request = request
        self._quirks = request.quirks
        self._add_memory, self._check = add_memory, check
        self._block_bytes = block_bytes
        self._range = output_range(
            answer.query.start_ms,
            answer.query.end_ms,
            answer.subs[0].sub.downsample if answer.subs else None,
            quirks=request.quirks,
        )
        self._metrics = {metric.id: metric for metric in request.metrics}
        self._formulas = {formula.id: formula for formula in request.formulas or ()}
        self._answers = answer.subs
        self._subs = dict(zip(self._metrics, subs, strict=True))
        self._query_tagks = {name: tuple(answer.subs[sub].filter_tagks or ()) for name, sub in self._subs.items()}
        self._every_tagk = tuple({tagk for tagks in self._query_tagks.values() for tagk in tagks})
        self._series: dict[int, list[ExpSeries]] = {}  # by sub answer
        self._done: dict[str, ExpTable] = {}

    def outputs(self) -> list[OutputTable]:
        """Return the outputs in the order of the request. Raise BadQuery."""
        wanted = self._request.outputs
        if wanted:
            pairs = [(out.id or "", out.alias) for out in wanted]
        else:
            pairs = [(name, None) for name in self._formulas or self._metrics]
        known = [(name, alias) for name, alias in pairs if name in self._formulas or name in self._metrics]
        for formula in needed((name for name, _ in known), by_dependency(self._request.formulas or ())):
            self._done[formula.id] = self._evaluated(formula)
        tables: dict[str, ExpTable] = {}
        return [self._shown(name, alias, tables) for name, alias in known]

    def _shown(self, name: str, alias: str | None, tables: dict[str, ExpTable]) -> OutputTable:
        """Return an output. `tables` are those of earlier outputs, which a repeated one shares."""
        is_metric = name in self._metrics
        table = tables.get(name)
        if table is None:
            table = tables[name] = self._shown_table(name, is_metric=is_metric)
        elif not is_metric and self._quirks.rows_once:
            table = ExpTable(table.times[:0], table.values[:, :0], table.series)
        return OutputTable(name, alias, table, is_metric)

    def _shown_table(self, name: str, *, is_metric: bool) -> ExpTable:
        table = self._metric_table(name) if is_metric else self._done[name]
        return table if is_metric and self._quirks.uncut_metrics else self._cut(table)

    def _metric_table(self, name: str) -> ExpTable:
        series = self._metric_series(name)
        times = self._times(series)
        fill = 0.0 if self._quirks.ignores_fills else self._fill(name)
        table = self._new_table(len(series), len(times))
        for rows, columns in blocks(table.shape, self._block_bytes // 8):
            self._check()
            spread(table[rows, columns], series[rows], times[columns], fill, fill)
        return ExpTable(times, table, series)

    def _cut(self, table: ExpTable) -> ExpTable:
        low, high = np.searchsorted(table.times, (self._range.start, self._range.stop))
        return ExpTable(table.times[low:high], table.values[:, low:high], table.series)

    def _metric_series(self, name: str) -> list[ExpSeries]:
        sub = self._subs[name]
        if sub not in self._series:
            groups = self._answers[sub].groups
            self._add_memory(sum(len(group.points.times) * 8 + SERIES_BYTES for group in groups))
            self._series[sub] = [series_of(group) for group in self._each(groups)]
        return self._series[sub]

    def _times(self, series: Sequence[ExpSeries]) -> Int64:
        """Return every time of some series, once."""
        size = 3 * 8 * sum(len(each.times) for each in series)  # joined, sorted, and the result
        self._add_memory(size)
        times = all_times(series)
        self._add_memory(times.nbytes - size)
        return times

    def _new_table(self, series: int, times: int) -> Float64:
        self._add_memory(series * times * 8)
        return np.empty((series, times))

    def _evaluated(self, formula: Formula) -> ExpTable:
        """Evaluate an expression over all times that were read."""
        names = hash_order(formula.expression.names)
        meanwhile = sum(self._count(name) for name in names) * SERIES_BYTES
        self._add_memory(meanwhile)
        variables = {name: self._keyed(name, formula) for name in names}
        keys = joined(variables.values(), formula.join.operator)
        if not keys and any(variables.values()):
            raise BadQuery(f"No intersections found: {formula.id}: {formula.text}")
        # Of several series with one key OpenTSDB takes the values of the last, and the times of all.
        groups = [
            {name: of_one[key][-1] for name, of_one in variables.items() if key in of_one} for key in self._each(keys)
        ]
        times = self._times([each for of_one in variables.values() for key in keys for each in of_one.get(key, ())])
        try:
            values = self._values(formula, groups, times)
        except BadResult as exc:
            raise BadQuery(f"{exc} for {formula.id}: {formula.text}") from exc
        self._add_memory(len(groups) * SERIES_BYTES)
        merged = [self._merged(group, names) for group in self._each(groups)]
        self._add_memory(-meanwhile)
        return ExpTable(times, values, merged)

    def _values(self, formula: Formula, groups: Sequence[Mapping[str, ExpSeries]], times: Int64) -> Float64:
        """Evaluate in blocks, so that temporary memory does not grow with the answer."""
        table = self._new_table(len(groups), len(times))
        names = formula.expression.names
        value_bytes = 8 * len(names) + depth(formula.expression) * (VALUE_BYTES + len(formula.text) // 2)
        for rows, columns in blocks(table.shape, self._block_bytes // value_bytes):
            self._check()
            part = table[rows, columns]
            variables = {name: np.empty(part.shape) for name in names}
            for name, values in variables.items():
                series = [group.get(name) for group in groups[rows]]
                spread(values, series, times[columns], self._fill(name), self._absent(name))
            part[:] = evaluate(formula.expression, variables, part.shape)
        return table

    def _count(self, name: str) -> int:
        return len(self._done[name].series if name in self._formulas else self._metric_series(name))

    def _keyed(self, name: str, formula: Formula) -> dict[bytes, list[ExpSeries]]:
        """Return the series of a variable by their join keys."""
        nested = name in self._formulas
        tagks = self._every_tagk if nested else self._query_tagks[name]
        if name != name.lower() and self._quirks.loses_capitals:
            raise BadQuery(f"Missing results for variable {name}")
        found: dict[bytes, list[ExpSeries]] = {}
        for each in self._each(self._nested(name) if nested else self._metric_series(name)):
            found.setdefault(join_key(each, formula.join, tagks), []).append(each)
        return found

    def _nested(self, name: str) -> Iterator[ExpSeries]:
        table = self._done[name]
        for row, of in zip(table.values, table.series, strict=True):
            yield replace(of, times=table.times, values=row)

    def _each(self, many: Iterable[T]) -> Iterator[T]:
        """Iterate, and call `check` now and then."""
        for number, one in enumerate(many):
            if not number % CHECK_EVERY:
                self._check()
            yield one

    def _fill(self, name: str) -> float:
        """Return what replaces missing values of a variable."""
        of: ExpMetric | Formula = self._metrics[name] if name in self._metrics else self._formulas[name]
        if of.fill is not None:
            return of.fill.value
        return 0.0 if name in self._metrics else math.nan

    def _absent(self, name: str) -> float:
        """Return what replaces a series that a variable lacks: in OpenTSDB always 0."""
        return 0.0 if self._quirks.ignores_fills else self._fill(name)

    def _merged(self, group: Mapping[str, ExpSeries], names: Sequence[str]) -> ExpSeries:
        """Return the tags of an output series: those of the first variable, in the order of Java's hash table."""
        first = group.get(names[0])
        every = [group[name] for name in names if name in group]
        if first is None and not self._quirks.tags_of_first_variable:
            first = every[0]
        return ExpSeries(
            every[0].times[:0],
            every[0].values[:0],
            frozenset().union(*(each.metrics for each in every)),
            first.tags if first else {},
            tuple(dict.fromkeys(tag for each in every for tag in each.aggregate_tags)),
            first.tag_uids if first else {},
            tuple(sorted({uid for each in every for uid in each.aggregate_tag_uids})) if first else (),
        )


def hash_order(names: Sequence[str]) -> list[str]:
    """Sort variables as OpenTSDB iterates over them: by two of Java's hash tables. The first one's tags are shown.

    >>> hash_order(["c", "d"]), hash_order(["a", "b", "c"])
    (['d', 'c'], ['a', 'b', 'c'])
    """
    size = 16
    while len(names) > size * 3 // 4:
        size *= 2
    once = sorted(names, key=lambda name: _hash(name) % size)
    size = 1
    while size < len(names):
        size *= 2
    while len(names) > size * 3 // 4:
        size *= 2
    return sorted(once, key=lambda name: _hash(name) % size)


def _hash(name: str) -> int:
    """Return Java's hash of a text, spread as its hash table does."""
    found = 0
    for letter in name:
        found = (31 * found + ord(letter)) & 0xFFFFFFFF
    return found ^ found >> 16
