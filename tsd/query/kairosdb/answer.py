"""Points of a metric's series → the results of a KairosDB query → JSON."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tsd.query.kairosdb.column import EMPTY, Column, in_runs, joined
from tsd.query.kairosdb.groups import ResultGroup, TaggedColumn, limited, result_groups
from tsd.query.kairosdb.model import MetricQuery
from tsd.query.kairosdb.steps import Frame, apply_all
from tsd.query.serialize import joined_parts

SLICE_POINTS = 5000  # written at once
RESULT_POINTS = 10  # that take as long to write as a result without its points


class Result(NamedTuple):
    """One group of an answer."""

    name: str
    groups: Sequence[Mapping[str, Any]] | None  # None: not shown, as there are no points
    tags: Mapping[str, Sequence[str]] | None  # None: not shown
    column: Column


class MetricAnswer(NamedTuple):
    """The answer to one metric."""

    sample_size: int | None  # points read; None: not shown
    results: Sequence[Result]

    @property
    def points(self) -> int:
        """Number of points in the answer."""
        return sum(len(one.column) for one in self.results)


def evaluate(series: Sequence[TaggedColumn], metric: MetricQuery, frame: Frame) -> MetricAnswer:
    """Return the answer to a metric from the points of its series. Raise BadQuery."""
    read = [limited(one, metric) for one in series]
    size = sum(len(one.column) for one in read)
    groups = list(result_groups(read, metric))
    columns = [group.column.at(slice(0, metric.limit)) if metric.limit else group.column for group in groups]
    results = [
        _result(group, column, metric) for group, column in zip(groups, _applied(columns, metric, frame), strict=True)
    ]
    if not results and all(one.kind == "tag" for one in metric.groupings):
        [column] = _applied([EMPTY], metric, frame)
        results = [Result(metric.name, None, None if metric.exclude_tags else {}, column)]
    return MetricAnswer(size, results)


def _result(group: ResultGroup, column: Column, metric: MetricQuery) -> Result:
    kind = {"name": "type", "type": "text" if group.is_text else "number"}
    tags = None if metric.exclude_tags else group.tags
    return Result(metric.name, [*group.groups, kind], tags, column)


def _applied(columns: Sequence[Column], metric: MetricQuery, frame: Frame) -> Sequence[Column]:
    """Return the points of each group after all aggregators."""
    for step in metric.steps:
        columns = apply_all(columns, step, frame)
    return columns


def write_answer(answers: Sequence[MetricAnswer]) -> Iterator[bytes]:
    """Yield the JSON in parts of about 128 KiB. NaN and infinities are null."""
    return joined_parts(_pieces(answers))


def _pieces(answers: Sequence[MetricAnswer]) -> Iterator[bytes]:
    yield b'{"queries":['
    for at, answer in enumerate(answers):
        size = b"" if answer.sample_size is None else b'"sample_size":%d,' % answer.sample_size
        yield (b"," if at else b"") + b"{" + size + b'"results":['
        sizes = [RESULT_POINTS + len(one.column) for one in answer.results]
        for place, some in enumerate(in_runs(answer.results, sizes, SLICE_POINTS)):
            yield b"," if place else b""
            yield from _large(some[0]) if len(some[0].column) > SLICE_POINTS else [_small(some)]
        yield b"]}"
    yield b"]}"


def _small(results: Sequence[Result]) -> bytes:
    """Return results with few points: a call for each of them costs more than its points."""
    columns = [one.column for one in results]
    times = np.concatenate([one.times for one in columns]).tolist()
    pairs = list(zip(times, _listed_all(columns), strict=True))
    edges = itertools.pairwise(itertools.accumulate(map(len, columns), initial=0))
    shown = [_members(one) | {"values": pairs[first:stop]} for one, (first, stop) in zip(results, edges, strict=True)]
    return msgspec.json.encode(shown)[1:-1]


def _large(result: Result) -> Iterator[bytes]:
    yield msgspec.json.encode(_members(result))[:-1] + b',"values":['
    column = result.column
    for first in range(0, len(column), SLICE_POINTS):
        part = column.at(slice(first, first + SLICE_POINTS))
        pairs = list(zip(part.times.tolist(), _listed(part), strict=True))
        yield (b"," if first else b"") + msgspec.json.encode(pairs)[1:-1]
    yield b"]}"


def _members(result: Result) -> dict[str, Any]:
    """Return the members of a result before its values."""
    members: dict[str, Any] = {"name": result.name}
    if result.groups is not None:
        members["group_by"] = result.groups
    if result.tags is not None:
        members["tags"] = result.tags
    return members


def _listed_all(columns: Sequence[Column]) -> list[Any]:
    """Return the values of all points as JSON has them."""
    if any(one.texts is not None or one.nulls is not None for one in columns):
        return [value for one in columns for value in _listed(one)]
    return _listed(joined(list(columns)))


def _listed(column: Column) -> list[Any]:
    """Return the values of points as JSON has them."""
    if column.texts is not None:
        return list(column.texts)
    points = column.points
    values: list[Any]
    if points.floats.all():
        values = points.doubles().tolist()  # NaN and infinities become null
    else:
        values = points.bits.tolist()
        doubles = points.bits.view(np.float64)
        for at in np.flatnonzero(points.floats).tolist():
            values[at] = float(doubles[at])
    if column.nulls is not None:
        for at in np.flatnonzero(column.nulls).tolist():
            values[at] = None
    return values
