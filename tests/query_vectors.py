"""The recorded vectors as series in memory, and their requests as far as they are numeric."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np

from tsd.codec.points import Batch, Points
from tsd.query.columns import Chosen
from tsd.query.downsample import Downsampler, PointJoiner
from tsd.query.merge import merge
from tsd.query.merge import rate as rate_of
from tsd.query.model import NO_COUNTER_MAX, Downsample, RateOptions
from tsd.query.parse.times import read_downsample, read_time
from tsd.query.plan import output_range, scan_range
from tsd.query.row_buckets import HAS_LOOP
from tsd.tables.quirks import OPENTSDB, Quirks
from tsd.tables.reading import ScanRange

VECTORS = Path(__file__).parent / "vectors" / "query_vectors.json"
Tags = Mapping[str, str]
Value = int | float


class Series(NamedTuple):
    """One series of the vectors: its tags by name, and its points by time in ms."""

    tags: Tags
    points: dict[int, Value]


class QueryRequest(NamedTuple):
    """One sub query whose groups and numbers are judged."""

    metric: str
    aggregator: str
    start_ms: int
    end_ms: int
    downsample: Downsample | None
    rate: RateOptions | None
    group_by: Mapping[str, str]  # tag name → literals or `*`
    also: Mapping[str, str]  # the same, without grouping
    in_ms: bool


@cache
def vectors() -> dict[str, Any]:
    """The whole file."""
    loaded: dict[str, Any] = json.loads(VECTORS.read_text("utf-8"))
    return loaded


@cache
def stored() -> Mapping[str, Sequence[Series]]:
    """The series of each metric, in the order in which UIDs put them."""
    uids: dict[tuple[str, str], int] = {}
    found: dict[str, dict[tuple[tuple[int, int], ...], Series]] = {}
    for line in vectors()["lines"]:
        _, metric, time, value, *pairs = line.split()
        tags = dict(pair.split("=") for pair in pairs)
        for kind, name in [*(("k", key) for key in tags), *(("v", name) for name in tags.values())]:
            uids.setdefault((kind, name), len(uids))
        key = tuple(sorted((uids["k", k], uids["v", v]) for k, v in tags.items()))
        series = found.setdefault(metric, {}).setdefault(key, Series(tags, {}))
        time_ms = int(time) * (1 if int(time) >= 1 << 32 else 1000)
        series.points[time_ms] = float(value) if set(value) & set(".eE") else int(value)
    return {metric: [own[key] for key in sorted(own)] for metric, own in found.items()}


def to_points(values: Mapping[int, Value]) -> Points:
    """Points as the engine has them."""
    times = sorted(values)
    floats = np.array([isinstance(values[time], float) for time in times], np.bool_)
    bits = [np.float64(v).view(np.int64) if isinstance(v := values[time], float) else v for time in times]
    return Points(np.array(times, np.int64), np.array(bits, np.int64), floats)


def from_points(points: Points) -> dict[int, Value]:
    """The other way round."""
    doubles = points.bits.view(np.float64).tolist()
    whole = points.bits.tolist()
    flags = points.floats.tolist()
    return {
        time: double if is_float else integer
        for time, double, integer, is_float in zip(points.times.tolist(), doubles, whole, flags, strict=True)
    }


def batches(series: Sequence[Mapping[int, Value]], scan: ScanRange, rows: int) -> Iterator[Batch]:
    """What a scan delivers: hour by hour the rows of all series, so many rows at once."""
    cells: dict[tuple[int, int], dict[int, Value]] = {}
    for number, values in enumerate(series):
        for time, value in values.items():
            if scan.start_s * 1000 <= time < scan.stop_s * 1000:
                cells.setdefault(((time - scan.start_s * 1000) // 3_600_000, number), {})[time] = value
    found = [(number, to_points(cells[hour, number])) for hour, number in sorted(cells)]
    for first in range(0, len(found), rows):
        part = found[first : first + rows]
        columns = (np.concatenate([getattr(points, name) for _, points in part]) for name in Points._fields)
        starts = np.cumsum([0, *(len(points.times) for _, points in part)])
        yield Batch(np.array([number for number, _ in part], np.int32), starts, *columns)


def answer(
    series: Sequence[Mapping[int, Value]],
    groups: Sequence[Sequence[int]],
    query: QueryRequest,
    *,
    rows: int = 7,
    quirks: Quirks = OPENTSDB,
    compiled: bool = HAS_LOOP,
) -> list[dict[int, Value]]:
    """What the engine makes of series, group by group, in the answered range."""
    bounds = (query.start_ms, query.end_ms)
    scan = scan_range(*bounds, query.downsample, quirks=quirks)
    taking = (
        Downsampler(query.downsample, *bounds, scan, quirks=quirks, compiled=compiled)
        if query.downsample
        else PointJoiner()
    )
    for batch in batches(series, scan, rows):
        taking.feed(batch)
    points = taking.finish(len(series))
    shown = output_range(*bounds, query.downsample, quirks=quirks)
    answers = []
    for group in groups:
        if query.rate is None:
            merged = merge(Chosen(points, np.array(group)), query.aggregator, scan, quirks=quirks)
        else:
            rates = [rate_of(points[number], query.rate, scan.start_ms, quirks=quirks) for number in group]
            merged = merge(rates, query.aggregator, scan, quirks=quirks)
        answers.append({time: value for time, value in from_points(merged.points).items() if time in shown})
    return answers


def chosen_groups(series: Sequence[Series], query: QueryRequest) -> list[list[int]]:
    """The places of the series that pass, group by group."""
    scan = scan_range(query.start_ms, query.end_ms, query.downsample)
    wanted = {**query.also, **query.group_by}
    passing = [
        number
        for number, one in enumerate(series)
        if any(scan.start_ms <= time < scan.stop_ms for time in one.points)
        and all(
            key in one.tags and (expected == "*" or one.tags[key] in expected.split("|"))
            for key, expected in wanted.items()
        )
    ]
    if query.aggregator == "none":
        return [[number] for number in passing]
    found: dict[tuple[str, ...], list[int]] = {}
    for number in passing:
        found.setdefault(tuple(series[number].tags[key] for key in query.group_by), []).append(number)
    return list(found.values())


def read_request(request: Mapping[str, Any]) -> QueryRequest | None:
    """The one sub query of a request of numbers; None if there is more to it than this file knows."""
    split = urlsplit(request["path"])
    if split.path != "/api/query":
        return None
    body = request.get("body")
    if body is None:
        return _read_uri(parse_qs(split.query, keep_blank_values=True))
    return _read_body(body) if isinstance(body, dict) else None


def _read_uri(params: Mapping[str, list[str]]) -> QueryRequest | None:
    if len(params.get("m", ())) != 1 or "tsuid" in params or params.keys() & {"arrays"} or "end" not in params:
        return None
    aggregator, *between, named = params["m"][0].split(":")
    metric, _, braces = named.partition("{")
    downsample = next((read_downsample(part) for part in between if part[0].isdigit()), None)
    rate = next((read_rate(part) for part in between if part.lower().startswith("rate")), None)
    lists = [[p.split("=") for p in part.split(",") if p] for part in braces[:-1].split("}{")]
    filters = [pair for part in lists for pair in part]
    if len(dict(filters)) < len(filters) or any("(" in v or ("*" in v and v != "*") for _, v in filters):
        return None
    group_by, also = (dict(part) for part in (*lists, [], [])[:2])
    start, end = (read_time(params[name][0], 0) for name in ("start", "end"))
    return QueryRequest(metric, aggregator, start, end, downsample, rate, group_by, also, "ms" in params)


def read_rate(text: str) -> RateOptions:
    """`rate{counter,max,reset}`."""
    words = text[5:-1].split(",") if "{" in text else [""]
    limit, reset = (*words[1:], "", "")[:2]
    return RateOptions(
        words[0].endswith("counter"), int(limit or NO_COUNTER_MAX), int(reset or 0), words[0] == "dropcounter"
    )


def _read_body(body: Mapping[str, Any]) -> QueryRequest | None:
    if len(body.get("queries", ())) != 1 or body.get("delete") or "rateOptions" in body["queries"][0]:
        return None
    sub = body["queries"][0]
    filters = sub.get("filters", [])
    if sub.keys() - {"aggregator", "metric", "downsample", "filters"} or any(f["filter"] != "*" for f in filters):
        return None
    zone, by_calendar = body.get("timezone", "UTC"), body.get("useCalendar", False)
    start, end = (read_time(str(body[name]), 0, zone) for name in ("start", "end"))
    downsample = (
        read_downsample(sub["downsample"], zone=zone, use_calendar=by_calendar) if "downsample" in sub else None
    )
    group_by = {f["tagk"]: "*" for f in filters if f.get("groupBy")}
    return QueryRequest(
        sub["metric"], sub["aggregator"], start, end, downsample, None, group_by, {}, "msResolution" in body
    )
