"""Answers to queries of KairosDB's API in plain Python, one point at a time; it shares nothing with the daemon's code.

It follows KairosDB 1.3, with the departures of docs/kairosdb.md. Queries are the members of their JSON; only the forms
that `tests.fuzz.kairos_queries` makes are known. least_squares is left out: its last digits are an accident.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

Value = int | float | str | None
Tags = tuple[tuple[str, str], ...]
Point = tuple[int, Value]  # time in ms
Body = Mapping[str, Any]
UNITS_MS = {"milliseconds": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000}
DAYS = {"days": 1, "weeks": 7}
MONTHS = {"months": 1, "years": 12}
ROW_MS = 1_814_400_000
FOREVER_MS = (1 << 63) - 1


class Refused(Exception):
    """A query that is answered with status 400."""


class Key(NamedTuple):
    """One series of numbers, or of texts."""

    metric: str
    tags: Tags
    is_text: bool


Stored = Mapping[Key, Mapping[int, Value]]


class Frame(NamedTuple):
    """What aggregators know of their query."""

    start_ms: int
    end_ms: int
    zone: ZoneInfo
    is_text: bool = False  # the values that the next aggregator gets


# ---- Times


def plus(time_ms: int, number: int, unit: str, zone: ZoneInfo) -> int:
    """Return the time some units later."""
    if unit in UNITS_MS:
        return time_ms + number * UNITS_MS[unit]
    moment = datetime.fromtimestamp(time_ms // 1000, zone)
    if unit in DAYS:
        moment += timedelta(days=number * DAYS[unit])
    else:
        year, month = divmod(moment.year * 12 + moment.month - 1 + number * MONTHS[unit], 12)
        for day in range(moment.day, 0, -1):
            try:
                moment = moment.replace(year=year, month=month + 1, day=day)
                break
            except ValueError:
                continue
    return int(moment.timestamp()) * 1000 + time_ms % 1000


def aligned(time_ms: int, unit: str, zone: ZoneInfo) -> int:
    """Return the start of the first bucket."""
    if unit == "milliseconds":
        return time_ms - time_ms % 1000
    day = datetime.fromtimestamp(time_ms // 1000, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if unit == "weeks":
        day -= timedelta(days=day.weekday())
    elif unit in MONTHS:
        day = day.replace(day=1, month=1 if unit == "years" else day.month)
    return int(day.timestamp()) * 1000


def span_of(body: Body, now_ms: int) -> tuple[int, int]:
    """Return the first and the last time of a query."""
    return _time(body, "start", now_ms, 0), _time(body, "end", now_ms, FOREVER_MS)


def _time(body: Body, which: str, now_ms: int, default: int) -> int:
    if f"{which}_absolute" in body:
        return int(body[f"{which}_absolute"])
    if f"{which}_relative" in body:
        length = body[f"{which}_relative"]
        return plus(now_ms, -length["value"], length["unit"], ZoneInfo("UTC"))
    return default


# ---- Selection and groups


def passes(tags: Tags, wanted: Mapping[str, Any]) -> bool:
    """Return whether a series passes the filters of a metric."""
    own = dict(tags)
    for name, values in wanted.items():
        each = [values] if isinstance(values, str) else values
        patterns = [one.removeprefix("regex:") for one in each if one.startswith("regex:")]
        is_match = own.get(name) in each or any(re.fullmatch(one, own.get(name, "")) for one in patterns[-1:])
        if each and not (name in own and is_match):
            return False
    return True


def answer(stored: Stored, body: Body, now_ms: int) -> dict[str, Any]:
    """Return the answer to a query. Raise Refused."""
    start_ms, end_ms = span_of(body, now_ms)
    frame = Frame(start_ms, max(start_ms, min(end_ms, now_ms)), ZoneInfo(body.get("time_zone") or "UTC"))
    return {"queries": [_metric(stored, one, start_ms, end_ms, frame) for one in body["metrics"]]}


def _metric(stored: Stored, metric: Body, start_ms: int, end_ms: int, frame: Frame) -> dict[str, Any]:
    series: list[tuple[Key, list[Point]]] = []
    for key, points in stored.items():
        if key.metric == metric["name"] and passes(key.tags, metric.get("tags", {})):
            found = sorted((at, value) for at, value in points.items() if start_ms <= at <= end_ms)
            if found := _limited(found, metric):
                series.append((key, found))
    results: list[dict[str, Any]] = []
    for is_text in (False, True):
        results += _groups([one for one in series if one[0].is_text == is_text], metric, frame, is_text=is_text)
    others = [one for one in metric.get("group_by", []) if one["name"] != "tag"]
    if not results and not others:
        results = [{"name": metric["name"], "tags": {}, "values": _steps([], metric, frame, is_text=False)}]
    if metric.get("exclude_tags"):
        for one in results:
            del one["tags"]
    return {"sample_size": sum(len(points) for _, points in series), "results": results}


def _limited(points: list[Point], metric: Body) -> list[Point]:
    """Return as many points of each row of KairosDB's tables as the limit allows."""
    if not metric.get("limit"):
        return points
    counts: dict[tuple[int, str], int] = {}
    kept = []
    for at, value in reversed(points) if _descends(metric) else points:
        row = at // ROW_MS, type(value).__name__
        counts[row] = counts.get(row, 0) + 1
        if counts[row] <= metric["limit"]:
            kept.append((at, value))
    return sorted(kept)


def _descends(metric: Body) -> bool:
    return bool(metric.get("order", "asc") == "desc")


def _groups(
    series: Sequence[tuple[Key, list[Point]]], metric: Body, frame: Frame, *, is_text: bool
) -> Iterator[dict[str, Any]]:
    groupings = metric.get("group_by", [])
    by_tag = next((one for one in groupings if one["name"] == "tag"), None)
    names = by_tag["tags"] if by_tag else []
    groups: dict[str, list[tuple[Key, list[Point]]]] = {}
    for key, points in series:
        groups.setdefault("".join(name + dict(key.tags).get(name, "") for name in names), []).append((key, points))
    for _, members in sorted(groups.items()):
        merged = sorted(
            (point for _, points in members for point in points),
            key=lambda point: (point[0], 0.0 if isinstance(point[1], str) else float(point[1] or 0)),
            reverse=_descends(metric),
        )
        tags: dict[str, set[str]] = {}
        for key, _ in members:
            for name, value in key.tags:
                tags.setdefault(name, set()).add(value)
        own = [dict(by_tag, group={name: dict(members[0][0].tags).get(name, "") for name in names})] if by_tag else []
        others = [one for one in groupings if one["name"] != "tag"]
        parts: dict[tuple[int, ...], list[Point]] = {}
        for point in merged:
            parts.setdefault(tuple(_number(point, one, frame) for one in others), []).append(point)
        for numbers, part in parts.items():
            shown = [_shown(one, number) for one, number in zip(others, numbers, strict=True)]
            kind = {"name": "type", "type": "text" if is_text else "number"}
            cut = part[: metric["limit"]] if metric.get("limit") else part
            yield {
                "name": metric["name"],
                "group_by": [*shown, *own, kind],
                "tags": {name: sorted(values) for name, values in tags.items()},
                "values": _steps(cut, metric, frame, is_text=is_text),
            }


def _number(point: Point, grouping: Body, frame: Frame) -> int:
    time_ms, value = point
    if grouping["name"] == "time":
        size = grouping["range_size"]
        days = {"days": 1, "weeks": 7, "years": 364}
        length = UNITS_MS.get(size["unit"]) or days[size["unit"]] * 86_400_000
        return int((time_ms - frame.start_ms) // (size["value"] * length) % grouping["group_count"])
    if isinstance(value, str) or value is None:
        return -1
    if grouping["name"] == "value":
        return int(math.trunc(value) / grouping["range_size"])
    bins = grouping["bins"]
    if value < bins[0]:
        return 0
    return next((at + 1 for at in range(len(bins) - 1) if bins[at] <= value < bins[at + 1]), len(bins))


def _shown(grouping: Body, number: int) -> dict[str, Any]:
    name = "bin_number" if grouping["name"] == "bin" else "group_number"
    found = dict(grouping, group={name: number})
    if grouping["name"] == "time":
        found["range_size"] = {"value": grouping["range_size"]["value"], "unit": grouping["range_size"]["unit"].upper()}
    return found


# ---- Aggregators


def _steps(points: list[Point], metric: Body, frame: Frame, *, is_text: bool) -> list[list[Any]]:
    """Return the points of a group after all aggregators, as the answer shows them."""
    frame = frame._replace(is_text=is_text)
    for step in metric.get("aggregators", []):
        name = step["name"]
        if frame.is_text and name not in _ANY:
            continue
        if name not in _ANY and any(value is None for _, value in points):
            raise Refused("null")
        if name in _BUCKETS:
            points = _in_buckets(points, step, frame)
        elif name == "gaps":
            points = _gaps(points, step, frame)
        else:
            points = _OTHERS[name](points, step, frame)
        if name == "count":
            frame = frame._replace(is_text=False)
    return [[at, value if not isinstance(value, float) or math.isfinite(value) else None] for at, value in points]


_ANY = ("count", "first", "last", "gaps", "trim", "filter")


class _Buckets:
    def __init__(self, step: Body, frame: Frame) -> None:
        sampling = step.get("sampling") or {"value": 1, "unit": "milliseconds"}
        self._value: int = sampling["value"]
        self._unit: str = sampling["unit"]
        self._zone = frame.zone
        is_aligned = step.get("align_sampling", True)
        self._start_ms = aligned(frame.start_ms, self._unit, frame.zone) if is_aligned else frame.start_ms

    def edge(self, number: int) -> int:
        return plus(self._start_ms, number * self._value, self._unit, self._zone)

    def number(self, time_ms: int) -> int:
        """Return the bucket of a time; one less than a bucket before the start is in the first."""
        if self._unit in UNITS_MS:
            units = abs(time_ms - self._start_ms) // UNITS_MS[self._unit] // self._value
            return units if time_ms >= self._start_ms else -units
        days = self._value * (DAYS.get(self._unit) or MONTHS[self._unit] * 31) + 1
        number = max((time_ms - self._start_ms) // (days * 86_400_000) - 1, 0)
        while time_ms >= self._start_ms and self.edge(number + 1) <= time_ms:
            number += 1
        while time_ms < self._start_ms and self.edge(number - 1) >= time_ms:
            number -= 1
        return number


def _in_buckets(points: list[Point], step: Body, frame: Frame) -> list[Point]:
    buckets = _Buckets(step, frame)
    found: list[Point] = []
    at = 0
    while at < len(points):
        number = buckets.number(points[at][0])
        begin, end = buckets.edge(number), buckets.edge(number + 1)
        part = [points[at]]
        while at + len(part) < len(points) and points[at + len(part)][0] < end:
            part.append(points[at + len(part)])
        at += len(part)
        is_last = step["name"] == "last"
        time_ms = begin if step.get("align_start_time") else end if step.get("align_end_time") else part[-is_last][0]
        found.append((time_ms, _BUCKETS[step["name"]]([value for _, value in part], step)))
    return found


def _percentile(values: list[Any], step: Body) -> float:
    ordered = sorted(map(float, values))
    place = float(step["percentile"]) * (len(ordered) + 1)
    if place < 1:
        return ordered[0]
    if place >= len(ordered):
        return ordered[-1]
    lower, upper = ordered[math.floor(place) - 1], ordered[math.floor(place)]
    return lower + (place - math.floor(place)) * (upper - lower)


def _dev(values: list[Any], step: Body) -> float:
    mean = power = 0.0
    for n, value in enumerate(map(float, values), 1):
        mean += (value - mean) / n
        power += (value * value - power) / n
    n = len(values)
    spread = (power * n - n * mean * mean) / (n - 1) if n > 1 else 0.0
    return math.sqrt(spread) if spread > 0 else 0.0


_BUCKETS: Mapping[str, Callable[[list[Any], Body], Value]] = {
    "avg": lambda values, _: sum(map(float, values)) / len(values),
    "sum": lambda values, _: sum(map(float, values)),
    "min": lambda values, _: float(min(values)),
    "max": lambda values, _: float(max(values)),
    "count": lambda values, _: len(values),
    "first": lambda values, _: values[0],
    "last": lambda values, _: values[-1],
    "percentile": _percentile,
    "dev": _dev,
}


def _gaps(points: list[Point], step: Body, frame: Frame) -> list[Point]:
    if step.get("trim") and not points:
        return points
    times = [at for at, _ in points]
    buckets = _Buckets(step, frame)
    first, last = (min(times), max(times)) if step.get("trim") else (frame.start_ms, frame.end_ms)
    numbers = range(buckets.number(first), buckets.number(last) + 1)
    used = {buckets.number(at) for at in times}
    missing: list[Point] = [(buckets.edge(number), None) for number in numbers if number not in used]
    return sorted([*points, *missing], key=lambda point: point[0])


def _rate(points: list[Any], step: Body, frame: Frame) -> list[Point]:
    sampling = step.get("sampling") or {"value": 1, "unit": step.get("unit", "milliseconds")}
    found: list[Point] = []
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if t0 == t1:
            raise Refused("rate")
        length = plus(t0, sampling["value"], sampling["unit"], frame.zone) - t0
        change = v1 if step["name"] == "sampler" else float(v1) - float(v0)
        found.append((t1, float(change) / (t1 - t0) * length))
    return found


def _trim(points: list[Point], step: Body, _frame: Frame) -> list[Point]:
    first, last = step.get("trim") in ("first", "both"), step.get("trim") in ("last", "both")
    return points[first : max(first, len(points) - last)]


_COMPARES: Mapping[str, Callable[[Any, Any], bool]] = {
    "lt": lambda value, limit: value < limit,
    "lte": lambda value, limit: value <= limit,
    "gt": lambda value, limit: value > limit,
    "gte": lambda value, limit: value >= limit,
    "equal": lambda value, limit: value == limit,
    "ne": lambda value, limit: value != limit,
}


def _filter(points: list[Point], step: Body, frame: Frame) -> list[Point]:
    limit, compare = step["threshold"], _COMPARES[step["filter_op"]]
    if isinstance(limit, str) != frame.is_text:
        return []
    return [(at, value) for at, value in points if value is None or not compare(value, limit)]


def _sma(points: list[Any], step: Body, _frame: Frame) -> list[Point]:
    size = step["size"]
    return [
        (points[at][0], sum(float(value) for _, value in points[at - size + 1 : at + 1]) / size)
        for at in range(size - 1, len(points))
    ]


_OTHERS: Mapping[str, Callable[[list[Any], Body, Frame], list[Point]]] = {
    "diff": lambda points, _step, _frame: [
        (after[0], float(after[1]) - float(before[1])) for before, after in itertools.pairwise(points)
    ],
    "div": lambda points, step, _: [(at, value / float(step["divisor"])) for at, value in points],
    "scale": lambda points, step, _: [(at, value * float(step["factor"])) for at, value in points],
    "rate": _rate,
    "sampler": _rate,
    "trim": _trim,
    "filter": _filter,
    "sma": _sma,
}
