"""The answer of /api/query as a table or as CSV. Values are printed as the daemon wrote them."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tsd.errors import TsdError


class Series(NamedTuple):
    """One series of an answer."""

    metric: str
    tags: Mapping[str, str]
    points: Sequence[tuple[int, str]]  # time in ms, and the value's text, empty for null
    sub_query: int  # its number, from 0; 0 if the answer does not say

    @property
    def label(self) -> str:
        """Its name: metric and tags."""
        tags = ", ".join(f"{tagk}={tagv}" for tagk, tagv in self.tags.items())
        return f"{self.metric}{{{tags}}}" if tags else self.metric


def read_answer(body: bytes) -> list[Series]:
    """Return the series of an answer in ms. Raise TsdError."""
    try:
        found = json.loads(body, parse_float=str, parse_int=str, parse_constant=str)
        return [_series(one) for one in found if "metric" in one]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _unexpected(body) from exc


def warnings_of(body: bytes) -> list[str]:
    """Return the warnings of an answer; OpenTSDB's have none. Raise TsdError."""
    try:
        return [str(text) for group in json.loads(body) for text in group.get("warnings", ())]
    except (ValueError, TypeError, AttributeError) as exc:
        raise _unexpected(body) from exc


def _unexpected(body: bytes) -> TsdError:
    return TsdError(f"wanted the answer of /api/query, got {body[:80]!r}")


def _series(group: Mapping[str, Any]) -> Series:
    points = [(int(time), "" if value is None else str(value)) for time, value in group["dps"].items()]
    return Series(group["metric"], group["tags"], sorted(points), int(group.get("query", {}).get("index", 0)))


def in_form(body: bytes, form: str) -> Iterator[str]:
    """Yield the parts of an answer in a form: lines, table, csv or json. Lines are `METRIC TIME VALUE {TAGS}`."""
    if form == "json":
        return iter([f"{body.decode().rstrip()}\n"])
    return {"lines": lines, "table": table, "csv": csv_lines}[form](read_answer(body))


def lines(found: Sequence[Series]) -> Iterator[str]:
    """Yield lines in the form of OpenTSDB's tool."""
    for series in found:
        tags = ", ".join(f"{tagk}={tagv}" for tagk, tagv in series.tags.items())
        for time, value in series.points:
            yield f"{series.metric} {time} {value} {{{tags}}}\n"


def table(found: Sequence[Series]) -> Iterator[str]:
    """Yield the lines of a table: each series with its points below it."""
    width = max((len(value) for series in found for _, value in series.points), default=0)
    for series in found:
        yield f"{series.label}\n"
        for time, value in series.points:
            yield f"  {time_text(time)}  {value.rjust(width)}\n"


def time_text(time_ms: int) -> str:
    """Return a time in this machine's zone, with its offset; with ms only where there are some."""
    whole = time_ms % 1000 == 0
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(" ", "seconds" if whole else "milliseconds")


def csv_lines(found: Sequence[Series]) -> Iterator[str]:
    """Yield CSV with a head: time in ms, metric, each tag key of the answer, value."""
    tagks = list(dict.fromkeys(tagk for series in found for tagk in series.tags))
    yield _row(["time", "metric", *tagks, "value"])
    for series in found:
        tags = [series.tags.get(tagk, "") for tagk in tagks]
        for time, value in series.points:
            yield _row([str(time), series.metric, *tags, value])


def _row(values: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
