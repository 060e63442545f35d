"""Points of a metric's series → the results of a KairosDB query → JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tsd.query.kairosdb.column import EMPTY, Column
from tsd.query.kairosdb.groups import ResultGroup, TaggedColumn, limited, result_groups
from tsd.query.kairosdb.model import MetricQuery
from tsd.query.kairosdb.steps import Frame, apply_all

SLICE_POINTS = 5000  # written at once
CHUNK_BYTES = 64 << 10


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
    """Return the answer to a metric from the points of its series. Raises BadQuery."""
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
    """Yield the JSON in chunks: each takes a change of threads, whatever its size. NaN and infinities are null."""
    parts: list[bytes] = []
    size = 0
    for part in _parts(answers):
        parts.append(part)
        size += len(part)
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


def _parts(answers: Sequence[MetricAnswer]) -> Iterator[bytes]:
    yield b'{"queries":['
    for at, answer in enumerate(answers):
        size = b"" if answer.sample_size is None else b'"sample_size":%d,' % answer.sample_size
        yield (b"," if at else b"") + b"{" + size + b'"results":['
        for place, result in enumerate(answer.results):
            yield (b"," if place else b"") + _head(result)
            yield from _values(result.column)
            yield b"]}"
        yield b"]}"
    yield b"]}"


def _head(result: Result) -> bytes:
    members: dict[str, Any] = {"name": result.name}
    if result.groups is not None:
        members["group_by"] = result.groups
    if result.tags is not None:
        members["tags"] = result.tags
    return msgspec.json.encode(members)[:-1] + b',"values":['


def _values(column: Column) -> Iterator[bytes]:
    for first in range(0, len(column), SLICE_POINTS):
        part = column if len(column) <= SLICE_POINTS else column.at(slice(first, first + SLICE_POINTS))
        pairs = list(zip(part.times.tolist(), _listed(part), strict=True))
        yield (b"," if first else b"") + msgspec.json.encode(pairs)[1:-1]


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
