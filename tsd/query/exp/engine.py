"""Expressions over what a query found: nested ones first, each over whole series at once (query.md §20)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tsd.errors import BadQuery
from tsd.query.answers import Answer
from tsd.query.exp.evaluation import BadResult, evaluate
from tsd.query.exp.request import ExpRequest, Formula, Metric
from tsd.query.exp.series import Series, Table, all_times, join_key, joined, series_of, spread
from tsd.query.ranges import output_range


@dataclass
class Shown:
    """One output: its table, and whose tags stand for each series."""

    id: str
    alias: str | None
    table: Table
    is_metric: bool


class Evaluation:
    """The variables of one request, evaluated as they are asked for."""

    def __init__(self, request: ExpRequest, answer: Answer, subs: Sequence[int]) -> None:
        """`subs`: which sub answer each metric has."""
        self._request = request
        self._range = output_range(
            answer.query.start_ms,
            answer.query.end_ms,
            answer.subs[0].sub.downsample if answer.subs else None,
            corrected=request.corrected,
        )
        self._metrics = {metric.id: metric for metric in request.metrics}
        self._formulas = {formula.id: formula for formula in request.formulas or ()}
        found = dict(zip(self._metrics, (answer.subs[sub] for sub in subs), strict=True))
        self._series = {name: [series_of(group) for group in sub.groups] for name, sub in found.items()}
        self._query_tagks = {name: tuple(sub.filter_tagks or ()) for name, sub in found.items()}
        self._done: dict[str, Table] = {}
        self._under_way: list[str] = []

    def outputs(self) -> list[Shown]:
        """What is to be shown, in the order asked for. Raises BadQuery."""
        for name in self._formulas:  # those that nobody shows too: a circle anywhere is told
            self._check_circle(name, ())
        wanted = self._request.outputs
        if wanted:
            pairs = [(out.id or "", out.alias) for out in wanted]
        else:
            pairs = [(name, None) for name in self._formulas or self._metrics]
        seen = dict(pairs)
        return [
            self._shown(name, alias) for name, alias in seen.items() if name in self._formulas or name in self._metrics
        ]

    def _shown(self, name: str, alias: str | None) -> Shown:
        is_metric = name in self._metrics
        table = self._metric_table(name) if is_metric else self._table(name)
        if not is_metric or self._request.corrected:
            table = self._cut(table)
        return Shown(name, alias, table, is_metric)

    def _check_circle(self, name: str, above: tuple[str, ...]) -> None:
        for inner in self._formulas[name].expression.names:
            if inner == name:
                raise BadQuery(f"Self referencing expression found: {name}")
            if inner in above:
                raise BadQuery(f"Circular reference found: {name}")
            if inner in self._formulas:
                self._check_circle(inner, (*above, name))

    def _metric_table(self, name: str) -> Table:
        series = self._series[name]
        times = all_times(series)
        fill = self._fill(name) if self._request.corrected else 0.0
        return Table(times, spread(series, times, fill, fill), series)

    def _cut(self, table: Table) -> Table:
        low, high = np.searchsorted(table.times, (self._range.start, self._range.stop))
        return Table(table.times[low:high], table.values[:, low:high], table.series)

    def _table(self, name: str) -> Table:
        """An expression's results over all times that were read."""
        if name not in self._done:
            self._done[name] = self._evaluated(self._formulas[name])
        return self._done[name]

    def _evaluated(self, formula: Formula) -> Table:
        names = hash_order(formula.expression.names)
        variables = {name: self._keyed(name, formula) for name in names}
        keys = joined(variables.values(), formula.join.operator)
        if not keys and any(variables.values()):
            raise BadQuery(f"No intersections found: {formula.id}: {formula.text}")
        # Of series with one key the last has the values, but the times of all are rows.
        groups = [{name: of_one[key][-1] for name, of_one in variables.items() if key in of_one} for key in keys]
        times = all_times([each for of_one in variables.values() for key in keys for each in of_one.get(key, ())])
        values = {
            name: spread([group.get(name) for group in groups], times, self._fill(name), self._absent(name))
            for name in names
        }
        try:
            found = evaluate(formula.expression, values, (len(groups), len(times)))
        except BadResult as exc:
            raise BadQuery(f"{exc} for {formula.id}: {formula.text}") from exc
        return Table(times, found, [self._merged(group, names) for group in groups])

    def _keyed(self, name: str, formula: Formula) -> dict[bytes, list[Series]]:
        """The series of a variable by what they are joined by."""
        tagks = self._all_query_tagks() if name in self._formulas else self._query_tagks[name]
        if name != name.lower() and not self._request.corrected:
            raise BadQuery(f"Missing results for variable {name}")
        found: dict[bytes, list[Series]] = {}
        for each in self._nested(name) if name in self._formulas else self._series[name]:
            found.setdefault(join_key(each, formula.join, tagks), []).append(each)
        return found

    def _nested(self, name: str) -> list[Series]:
        table = self._table(name)
        return [
            Series(
                table.times, row, of.metrics, of.tags, of.aggregate_tags, of.tag_uids, of.aggregate_tag_uids
            )
            for row, of in zip(table.values, table.series, strict=True)
        ]  # fmt: skip

    def _all_query_tagks(self) -> tuple[bytes, ...]:
        return tuple({tagk for tagks in self._query_tagks.values() for tagk in tagks})

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
