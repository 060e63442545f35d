"""Outputs of `/api/query/exp` → the JSON that OpenTSDB answers, in parts (query.md §20).

Beyond OpenTSDB, and never where a client would take it for data: warnings of any sub query are the last key of the
answer, `warnings`, where there are some.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tsd.query.answer import gathered
from tsd.query.exp.echo import echo
from tsd.query.exp.engine import Shown
from tsd.query.exp.request import ExpRequest
from tsd.query.exp.series import Series, Table

SLICE = 16_000  # values that are written at once
SERIES_VALUES = 50  # that the metadata of a series takes the time of
_NO_TIME = (1 << 63) - 1  # the first timestamp of a metric without any
_encode = msgspec.json.Encoder().encode


def write_outputs(outputs: Sequence[Shown], request: ExpRequest, warnings: Sequence[str] = ()) -> Iterator[bytes]:
    """The whole answer, in parts of about 128 KiB."""
    return gathered(_pieces(outputs, request, warnings))


def written_values(outputs: Sequence[Shown]) -> int:
    """How many values there are to be written, about: metadata count as so many."""
    return sum(each.table.values.size + (len(each.table.series) + 1) * SERIES_VALUES for each in outputs)


def _pieces(outputs: Sequence[Shown], request: ExpRequest, warnings: Sequence[str]) -> Iterator[bytes]:
    separator = b'{"outputs":['
    for shown in outputs:
        yield separator
        separator = b","
        yield from _output(shown)
    yield b'],"query":' if outputs else b'{"outputs":[],"query":'
    yield _encode(echo(request))
    yield b',"warnings":' + _encode(warnings) + b"}" if warnings else b"}"


def _output(shown: Shown) -> Iterator[bytes]:
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
    """The elements of an array, of lists that are not empty."""
    separator = b""
    for part in parts:
        yield separator + _encode(part)[1:-1]
        separator = b","


def _rows(table: Table) -> Iterator[list[list[Any]]]:
    """[time in ms, value of each series …] for every time, some at once."""
    step = max(1, SLICE // (len(table.series) + 1))
    for first in range(0, len(table.times), step):
        times, values = table.times[first : first + step], table.values[:, first : first + step].T
        rows = [[time, *row] for time, row in zip(times.tolist(), values.tolist(), strict=True)]
        for row, place in np.argwhere(~np.isfinite(values)).tolist():
            rows[row][place + 1] = _word(rows[row][place + 1])
        yield rows


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


def _series_meta(series: Sequence[Series]) -> Iterator[list[dict[str, Any]]]:
    """What the columns are: the times, and each series, some at once."""
    yield [{"index": 0, "metrics": ["timestamp"]}]
    metrics = sorted(series[0].metrics)
    step = SLICE // SERIES_VALUES
    for first in range(0, len(series), step):
        yield [
            {"index": index, "metrics": metrics, "commonTags": each.tags, "aggregatedTags": each.aggregate_tags}
            for index, each in enumerate(series[first : first + step], first + 1)
        ]
