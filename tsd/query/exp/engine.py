"""Expressions over what a query found: nested ones first, each over whole series at once (query.md §20)."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tsd.errors import BadQuery
from tsd.query.answers import Answer
from tsd.query.exp.evaluation import BadResult, depth, evaluate
from tsd.query.exp.order import in_order, needed
from tsd.query.exp.request import ExpRequest, Formula, Metric
from tsd.query.exp.series import Series, Table, all_times, blocks, join_key, joined, series_of, spread
from tsd.query.points import Float64, Int64
from tsd.query.ranges import output_range

T = TypeVar("T")

SERIES_BYTES = 1500  # of a series, beside its values
VALUE_BYTES = 48  # of a value on the stack, beside the digits of one that is an integer
BLOCK_BYTES = 16 << 20  # that the evaluation of some values takes
CHECK_EVERY = 1024  # series


@dataclass
class Shown:
    """One output: its table, and whose tags stand for each series."""

    id: str
    alias: str | None
    table: Table
    is_metric: bool


class Evaluation:
    """The variables of one request, those that are needed evaluated one after the other; it may be in a thread."""

    def __init__(
        self,
        request: ExpRequest,
        answer: Answer,
        subs: Sequence[int],
        *,
        hold: Callable[[int], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`subs`: which sub answer each metric has. `hold` is told of bytes before they are needed, and raises what
        refuses them, and of fewer with a minus; `check` is called often, and raises what is to end the work."""
        self._request = request
        self._hold, self._check = hold, check
        self._range = output_range(
            answer.query.start_ms,
            answer.query.end_ms,
            answer.subs[0].sub.downsample if answer.subs else None,
            corrected=request.corrected,
        )
        self._metrics = {metric.id: metric for metric in request.metrics}
        self._formulas = {formula.id: formula for formula in request.formulas or ()}
        self._answers = answer.subs
        self._subs = dict(zip(self._metrics, subs, strict=True))
        self._query_tagks = {name: tuple(answer.subs[sub].filter_tagks or ()) for name, sub in self._subs.items()}
        self._every_tagk = tuple({tagk for tagks in self._query_tagks.values() for tagk in tagks})
        self._series: dict[int, list[Series]] = {}  # of the sub answers that were needed
        self._done: dict[str, Table] = {}

    def outputs(self) -> list[Shown]:
        """What is to be shown, in the order asked for. Raises BadQuery."""
        wanted = self._request.outputs
        if wanted:
            pairs = [(out.id or "", out.alias) for out in wanted]
        else:
            pairs = [(name, None) for name in self._formulas or self._metrics]
        seen = {name: alias for name, alias in pairs if name in self._formulas or name in self._metrics}
        for formula in needed(seen, in_order(self._request.formulas or ())):
            self._done[formula.id] = self._evaluated(formula)
        return [self._shown(name, alias) for name, alias in seen.items()]

    def _shown(self, name: str, alias: str | None) -> Shown:
        is_metric = name in self._metrics
        table = self._metric_table(name) if is_metric else self._done[name]
        if not is_metric or self._request.corrected:
            table = self._cut(table)
        return Shown(name, alias, table, is_metric)

    def _metric_table(self, name: str) -> Table:
        series = self._metric_series(name)
        times = self._times(series)
        fill = self._fill(name) if self._request.corrected else 0.0
        table = self._new_table(len(series), len(times))
        for rows, columns in blocks(table.shape, BLOCK_BYTES // 8):
            self._check()
            spread(table[rows, columns], series[rows], times[columns], fill, fill)
        return Table(times, table, series)

    def _cut(self, table: Table) -> Table:
        low, high = np.searchsorted(table.times, (self._range.start, self._range.stop))
        return Table(table.times[low:high], table.values[:, low:high], table.series)

    def _metric_series(self, name: str) -> list[Series]:
        sub = self._subs[name]
        if sub not in self._series:
            groups = self._answers[sub].groups
            self._hold(sum(len(group.points.times) * 8 + SERIES_BYTES for group in groups))
            self._series[sub] = [series_of(group) for group in self._each(groups)]
        return self._series[sub]

    def _times(self, series: Sequence[Series]) -> Int64:
        """Every time of any of them, once."""
        size = 3 * 8 * sum(len(each.times) for each in series)  # all of them, sorted, and what is kept
        self._hold(size)
        times = all_times(series)
        self._hold(times.nbytes - size)
        return times

    def _new_table(self, series: int, times: int) -> Float64:
        self._hold(series * times * 8)
        return np.empty((series, times))

    def _evaluated(self, formula: Formula) -> Table:
        """An expression's results over all times that were read."""
        names = hash_order(formula.expression.names)
        meanwhile = sum(self._count(name) for name in names) * SERIES_BYTES
        self._hold(meanwhile)
        variables = {name: self._keyed(name, formula) for name in names}
        keys = joined(variables.values(), formula.join.operator)
        if not keys and any(variables.values()):
            raise BadQuery(f"No intersections found: {formula.id}: {formula.text}")
        # Of series with one key the last has the values, but the times of all are rows.
        groups = [
            {name: of_one[key][-1] for name, of_one in variables.items() if key in of_one} for key in self._each(keys)
        ]
        times = self._times([each for of_one in variables.values() for key in keys for each in of_one.get(key, ())])
        try:
            values = self._values(formula, groups, times)
        except BadResult as exc:
            raise BadQuery(f"{exc} for {formula.id}: {formula.text}") from exc
        self._hold(len(groups) * SERIES_BYTES)
        merged = [self._merged(group, names) for group in self._each(groups)]
        self._hold(-meanwhile)
        return Table(times, values, merged)

    def _values(self, formula: Formula, groups: Sequence[Mapping[str, Series]], times: Int64) -> Float64:
        """The results, in parts: what they need meanwhile does not grow with the answer."""
        table = self._new_table(len(groups), len(times))
        names = formula.expression.names
        moment = 8 * len(names) + depth(formula.expression) * (VALUE_BYTES + len(formula.text) // 2)
        for rows, columns in blocks(table.shape, BLOCK_BYTES // moment):
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

    def _keyed(self, name: str, formula: Formula) -> dict[bytes, list[Series]]:
        """The series of a variable by what they are joined by."""
        nested = name in self._formulas
        tagks = self._every_tagk if nested else self._query_tagks[name]
        if name != name.lower() and not self._request.corrected:
            raise BadQuery(f"Missing results for variable {name}")
        found: dict[bytes, list[Series]] = {}
        for each in self._each(self._nested(name) if nested else self._metric_series(name)):
            found.setdefault(join_key(each, formula.join, tagks), []).append(each)
        return found

    def _nested(self, name: str) -> Iterator[Series]:
        table = self._done[name]
        for row, of in zip(table.values, table.series, strict=True):
            yield replace(of, times=table.times, values=row)

    def _each(self, many: Iterable[T]) -> Iterator[T]:
        """The same ones; now and then it looks whether to go on."""
        for number, one in enumerate(many):
            if not number % CHECK_EVERY:
                self._check()
            yield one

    def _fill(self, name: str) -> float:
        """What stands for a variable's value where there is none."""
        of: Metric | Formula = self._metrics[name] if name in self._metrics else self._formulas[name]
        if of.fill is not None:
            return of.fill.value
        return 0.0 if name in self._metrics else math.nan

    def _absent(self, name: str) -> float:
        """The same for a series that the variable lacks: 0 whatever was asked for, in OpenTSDB."""
        return self._fill(name) if self._request.corrected else 0.0

    def _merged(self, group: Mapping[str, Series], names: Sequence[str]) -> Series:
        """What an output series is called: tags of the first variable, in the order of Java's hash table."""
        first = group.get(names[0])
        every = [group[name] for name in names if name in group]
        if first is None and self._request.corrected:
            first = every[0]
        return Series(
            every[0].times[:0],
            every[0].values[:0],
            frozenset().union(*(each.metrics for each in every)),
            first.tags if first else {},
            tuple(dict.fromkeys(tag for each in every for tag in each.aggregate_tags)),
            first.tag_uids if first else {},
            tuple(sorted({uid for each in every for uid in each.aggregate_tag_uids})) if first else (),
        )


def hash_order(names: Sequence[str]) -> list[str]:
    """Variables in the order in which OpenTSDB goes through them: that of two hash tables of Java's, one after the
    other, which shows in whose tags an answer names.

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
    """As Java's hash table spreads the hash of a text."""
    found = 0
    for letter in name:
        found = (31 * found + ord(letter)) & 0xFFFFFFFF
    return found ^ found >> 16
