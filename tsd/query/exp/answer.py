"""Outputs of `/api/query/exp` → the JSON that OpenTSDB answers (query.md §20)."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tsd.query.exp.echo import echo
from tsd.query.exp.engine import Shown
from tsd.query.exp.request import ExpRequest
from tsd.query.exp.series import Series, Table

_NO_TIME = (1 << 63) - 1  # the first timestamp of a metric without any


def write_outputs(outputs: Sequence[Shown], request: ExpRequest) -> bytes:
    """The whole answer."""
    return msgspec.json.encode({"outputs": [_output(each) for each in outputs], "query": echo(request)})


def _output(shown: Shown) -> dict[str, Any]:
    found: dict[str, Any] = {"id": shown.id}
    if shown.alias is not None:
        found["alias"] = shown.alias
    found["dps"] = _rows(shown.table)
    found["dpsMeta"] = _meta(shown)
    if shown.table.series:
        found["meta"] = [{"index": 0, "metrics": ["timestamp"]}, *_series_meta(shown.table.series)]
    return found


def _rows(table: Table) -> list[list[Any]]:
    """[time in ms, value of each series …] for every time."""
    columns = [row.tolist() for row in table.values]
    for column, row in zip(columns, table.values, strict=True):
        for index in np.flatnonzero(~np.isfinite(row)).tolist():
            column[index] = _word(column[index])
    return list(map(list, zip(table.times.tolist(), *columns, strict=True)))


def _word(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _meta(shown: Shown) -> dict[str, int]:
    times = shown.table.times
    if shown.is_metric:
        first, last = (int(times[0]), int(times[-1])) if len(times) else (_NO_TIME, 0)
    else:
        first = int(times[0]) if len(times) else 0
        last = int(times[-1]) if len(times) > 1 else 0
    return {
        "firstTimestamp": first,
        "lastTimestamp": last,
        "setCount": len(times),
        "series": len(shown.table.series),
    }


def _series_meta(series: Sequence[Series]) -> list[dict[str, Any]]:
    metrics = sorted(series[0].metrics)
    return [
        {"index": index, "metrics": metrics, "commonTags": each.tags, "aggregatedTags": each.aggregate_tags}
        for index, each in enumerate(series, 1)
    ]
