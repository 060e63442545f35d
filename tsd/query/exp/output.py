"""Writes the outputs of `/api/query/exp` as OpenTSDB's JSON, in parts (docs/compat/query.md §20).

Unlike OpenTSDB, an answer ends with the key `warnings` if a sub query has some.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tsd.query.exp.engine import ExpSeries, ExpTable, OutputTable
from tsd.query.exp.request import ExpRequest, FilterSet, Formula, NumericFill
from tsd.query.serialize import joined_parts


def echo(request: ExpRequest) -> dict[str, object]:
    """Return the `query` of an answer: all fields, also those that were not sent."""
    time, formulas, outputs = request.time, request.formulas, request.outputs
    downsampler = time.downsampler
    return {
        "name": request.name,
        "time": {
            "start": time.start,
            "end": time.end,
            "timezone": time.zone,
            "downsampler": downsampler
            and {
                "interval": downsampler.interval,
                "aggregator": downsampler.aggregator,
                "fillPolicy": _echo_fill(downsampler.fill),
            },
            "aggregator": time.aggregator,
            "rate": time.rate,
        },
        "filters": None if request.filters is None else [_echo_filters(each) for each in request.filters],
        "metrics": [
            {
                "metric": each.name,
                "id": each.id,
                "filter": each.filter,
                "aggregator": each.aggregator,
                "timeOffset": each.offset,
                "fillPolicy": _echo_fill(each.fill),
            }
            for each in request.metrics
        ],
        "expressions": None if formulas is None else [_echo_formula(each) for each in formulas],
        "outputs": None if outputs is None else [each._asdict() for each in outputs],
    }


def _echo_filters(found: FilterSet) -> dict[str, object]:
    tags = [
        {"tagk": each.tagk, "filter": each.expression, "group_by": each.group_by, "type": each.type}
        for each in found.filters
    ]
    return {"id": found.id, "tags": tags, "explicitTags": found.explicit_tags}


def _echo_formula(found: Formula) -> dict[str, object]:
    operator, use_query_tags, include_agg_tags = found.join
    join = {"operator": operator, "useQueryTags": use_query_tags, "includeAggTags": include_agg_tags}
    return {"id": found.id, "expr": found.text, "join": join, "fillPolicy": _echo_fill(found.fill)}


def _echo_fill(found: NumericFill | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {"policy": found.policy, "value": "NaN" if math.isnan(found.value) else found.value}


SLICE = 16_000  # values encoded with one call
SERIES_VALUES = 50  # values that take as long to write as the metadata of a series
_NO_TIME = (1 << 63) - 1  # the first timestamp of a metric without points
_encode = msgspec.json.Encoder().encode


def write_outputs(outputs: Sequence[OutputTable], request: ExpRequest, warnings: Sequence[str] = ()) -> Iterator[bytes]:
    """Write the answer in parts of about 128 KiB."""
    return joined_parts(_pieces(outputs, request, warnings))


def written_values(outputs: Sequence[OutputTable]) -> int:
    """Return about how many values are written, with metadata counted as SERIES_VALUES."""
    return sum(each.table.values.size + (len(each.table.series) + 1) * SERIES_VALUES for each in outputs)


def _pieces(outputs: Sequence[OutputTable], request: ExpRequest, warnings: Sequence[str]) -> Iterator[bytes]:
    separator = b'{"outputs":['
    for shown in outputs:
        yield separator
        separator = b","
        yield from _output(shown)
    yield b'],"query":' if outputs else b'{"outputs":[],"query":'
    yield _encode(echo(request))
    yield b',"warnings":' + _encode(warnings) + b"}" if warnings else b"}"


def _output(shown: OutputTable) -> Iterator[bytes]:
    named = {"id": shown.id} if shown.alias is None else {"id": shown.id, "alias": shown.alias}
    yield _encode(named)[:-1] + b',"dps":['
    yield from _joined(_rows(shown.table))
    yield b'],"dpsMeta":' + _encode(_meta(shown))
    if shown.table.series:
        yield b',"meta":['
        yield from _joined(_series_meta(shown.table.series))
        yield b"]"
    yield b"}"


def _joined(parts: Iterator[list[Any]]) -> Iterator[bytes]:
    """Join lists, none empty, to the elements of one array."""
    separator = b""
    for part in parts:
        yield separator + _encode(part)[1:-1]
        separator = b","


def _rows(table: ExpTable) -> Iterator[list[list[Any]]]:
    """Yield [time in ms, value of each series …] for each time, in slices."""
    step = max(1, SLICE // (len(table.series) + 1))
    for first in range(0, len(table.times), step):
        times, values = table.times[first : first + step], table.values[:, first : first + step].T
        rows = [[time, *row] for time, row in zip(times.tolist(), values.tolist(), strict=True)]
        for row, place in np.argwhere(~np.isfinite(values)).tolist():
            rows[row][place + 1] = _word(rows[row][place + 1])
        yield rows


def _word(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _meta(shown: OutputTable) -> dict[str, int]:
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


def _series_meta(series: Sequence[ExpSeries]) -> Iterator[list[dict[str, Any]]]:
    """Describe the columns, in slices: the times, and each series."""
    yield [{"index": 0, "metrics": ["timestamp"]}]
    metrics = sorted(series[0].metrics)
    step = SLICE // SERIES_VALUES
    for first in range(0, len(series), step):
        yield [
            {"index": index, "metrics": metrics, "commonTags": each.tags, "aggregatedTags": each.aggregate_tags}
            for index, each in enumerate(series[first : first + step], first + 1)
        ]
