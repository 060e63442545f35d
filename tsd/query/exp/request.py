"""The body of `/api/query/exp`, read and checked (query.md §20). What is wrong is a 500, as it is in OpenTSDB."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tsd.errors import BadQuery
from tsd.query.body import LARGEST, NO_PARAMS
from tsd.query.durations import read_duration
from tsd.query.exp.language import BadExpression, Expression, parse
from tsd.query.filters import make_filter
from tsd.query.model import Fill, Filter, Query, SubQuery
from tsd.query.names import AGGREGATORS, NONE
from tsd.query.times import read_time
from tsd.query.uri import Params, is_corrected, said_of_corrected
from tsd.query.validate import MOST_SUBS, Draft, as_mistake, check, what_counts, without_duplicates

_ID = re.compile(r"[A-Za-z][A-Za-z0-9]*|[0-9][A-Za-z0-9]+")
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
_POLICIES = ("none", "nan", "null", "zero", "scalar")
_T = TypeVar("_T")


class NumericFill(NamedTuple):
    """What stands where a series has no value."""

    policy: str
    value: float


@dataclass(frozen=True)
class Downsampler:
    """The time's downsampler; OpenTSDB reads its fill, and does not use it."""

    interval: str
    aggregator: str
    fill: NumericFill | None


@dataclass(frozen=True)
class Time:
    """From when to when, and how series are merged where a metric says nothing else."""

    start: str
    end: str | None
    zone: str | None
    downsampler: Downsampler | None
    aggregator: str
    rate: bool


@dataclass(frozen=True)
class FilterSet:
    """Filters that metrics name by their id."""

    id: str
    filters: tuple[Filter, ...]
    explicit_tags: bool


@dataclass(frozen=True)
class Metric:
    """A variable: what a sub query finds."""

    id: str
    name: str
    filter: str | None
    aggregator: str | None
    offset: str | None
    fill: NumericFill | None


class Join(NamedTuple):
    """Which series of an expression's variables belong together."""

    operator: str = "union"
    use_query_tags: bool = False
    include_agg_tags: bool = True


@dataclass(frozen=True)
class Formula:
    """An expression and its id."""

    id: str
    text: str
    join: Join
    fill: NumericFill | None
    expression: Expression


class Output(NamedTuple):
    """What is to be shown."""

    id: str | None
    alias: str | None


@dataclass(frozen=True)
class ExpRequest:
    """A whole request. None: the section is not there."""

    name: str | None
    time: Time
    filters: Sequence[FilterSet] | None
    metrics: Sequence[Metric]
    formulas: Sequence[Formula] | None
    outputs: Sequence[Output] | None
    corrected: bool


def read_request(body: bytes, *, params: Params = NO_PARAMS, corrected: bool) -> ExpRequest:
    """The request of a body, checked as far as it can be without data. `corrected` is the configured default, which the
    body and `params` may change. Raises BadQuery, with status 500 unless corrected."""
    if len(body) > LARGEST:
        raise BadQuery(f"Query of {len(body)} bytes, wanted at most {LARGEST}", status=413)
    corrected = is_corrected(params, default=corrected)
    try:
        top = _members(body)
        corrected = _flag(said_of_corrected(top, corrected))
        found = _request(top, corrected=corrected)
        _check_ids(found)
    except BadQuery as exc:
        raise as_mistake(exc, corrected=corrected) from exc
    return found


def _members(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise _wrong("Incoming data was null or empty")
    try:
        return _object(json.loads(body), "the query")
    except (ValueError, RecursionError) as exc:
        raise _wrong(str(exc)) from exc


def _request(top: Mapping[str, Any], *, corrected: bool) -> ExpRequest:
    if top.get("time") is None:
        raise _wrong("missing time")
    return ExpRequest(
        name=_text(top.get("name")),
        time=_time(_object(top["time"], "time")),
        filters=_each(top.get("filters"), partial(_filter_set, corrected=corrected), "filters"),
        metrics=_each(top.get("metrics"), _metric, "metrics") or (),
        formulas=_each(top.get("expressions"), partial(_formula, doubles=corrected), "expressions"),
        outputs=_each(top.get("outputs"), _output, "outputs"),
        corrected=corrected,
    )


def to_query(request: ExpRequest, now_ms: int, *, local: tzinfo | None = None) -> tuple[Query, list[int]]:
    """The metrics as sub queries, those that are equal once, and which one each metric has. Raises BadQuery."""
    try:
        return _to_query(request, now_ms, local)
    except BadQuery as exc:
        raise as_mistake(exc, corrected=request.corrected) from exc


def _to_query(request: ExpRequest, now_ms: int, local: tzinfo | None) -> tuple[Query, list[int]]:
    time = request.time
    sets = {each.id: each for each in request.filters or ()}
    drafts = [_draft(request, metric, sets) for metric in request.metrics]
    kept = without_duplicates(drafts, corrected=request.corrected)
    places = {what_counts(one, corrected=request.corrected): at for at, one in enumerate(kept)}
    frame = Query(0, 0, (), time.start, time.end or "", no_annotations=True, corrected=request.corrected)
    _check_range(request, now_ms, local)
    query = check(frame, kept, now_ms, time.zone or "", local=local)
    return _with_scalar(query, request), [places[what_counts(each, corrected=request.corrected)] for each in drafts]


def _with_scalar(query: Query, request: ExpRequest) -> Query:
    """The query whose downsamplers know what they fill with."""
    downsampler = request.time.downsampler
    if not request.corrected or downsampler is None or downsampler.fill is None:
        return query
    scalar = downsampler.fill.value
    subs = [
        replace(sub, downsample=sub.downsample and sub.downsample._replace(scalar=scalar))
        if sub.downsample and sub.downsample.fill is Fill.SCALAR
        else sub
        for sub in query.queries
    ]
    return replace(query, queries=tuple(subs))


def _draft(request: ExpRequest, metric: Metric, sets: Mapping[str, FilterSet]) -> Draft:
    time = request.time
    chosen = sets.get(metric.filter or "")
    sub = SubQuery(
        metric.aggregator or time.aggregator,
        metric.name,
        rate=time.rate,
        filters=chosen.filters if chosen else (),
        explicit_tags=bool(chosen and chosen.explicit_tags),
    )
    if time.downsampler is None:
        return Draft(sub)
    words = [time.downsampler.interval, time.downsampler.aggregator]
    fill = time.downsampler.fill
    if request.corrected and fill is not None:
        words.append(fill.policy)
    return Draft(sub, "-".join(words))


def _check_range(request: ExpRequest, now_ms: int, local: tzinfo | None) -> None:
    """A range that is none is a 500 here."""
    time = request.time
    try:
        read = partial(read_time, now_ms=now_ms, zone=time.zone or "", local=local, corrected=request.corrected)
        start, end = read(time.start), read(time.end) if time.end else now_ms
    except BadQuery as exc:
        raise _wrong("Invalid time") from exc
    if end <= start:
        raise _wrong(f"End time [{end}] must be greater than the start time [{start}]")


def _time(found: Mapping[str, Any]) -> Time:
    start, aggregator = _text(found.get("start")), _text(found.get("aggregator"))
    if not start or aggregator not in AGGREGATORS:
        raise _wrong("Invalid time")
    downsampler = found.get("downsampler")
    return Time(
        start=start,
        end=_text(found.get("end")),
        zone=_text(found.get("timezone")),
        downsampler=None if downsampler is None else _downsampler(_object(downsampler, "downsampler")),
        aggregator=aggregator,
        rate=_flag(found.get("rate")),
    )


def _downsampler(found: Mapping[str, Any]) -> Downsampler:
    interval, aggregator = _text(found.get("interval")), _text(found.get("aggregator"))
    fill = _fill(found.get("fillPolicy"))
    if not interval or aggregator not in AGGREGATORS:
        raise _wrong("Invalid time")
    try:
        read_duration(interval)
    except BadQuery as exc:
        raise _wrong("Invalid time") from exc
    if aggregator == NONE:
        raise _wrong("cannot use the NONE aggregator for downsampling")
    return Downsampler(interval, aggregator, fill)


def _filter_set(found: Mapping[str, Any], index: int, *, corrected: bool) -> FilterSet:
    name = _text(found.get("id")) or ""
    if not _ID.fullmatch(name) or found.get("tags") is None:
        raise _wrong(f"Invalid filter at index {index}")
    filters = _each(found["tags"], lambda tag, _: _filter(tag, corrected=corrected), "tags") or ()
    return FilterSet(name, tuple(filters), _flag(found.get("explicitTags")))


def _filter(found: Mapping[str, Any], *, corrected: bool) -> Filter:
    tagk, kind, expression = (_text(found.get(name)) or "" for name in ("tagk", "type", "filter"))
    group_by = _flag(found.get("groupBy")) or _flag(found.get("group_by"))
    try:
        return make_filter(tagk, kind, expression, group_by=group_by, corrected=corrected)
    except BadQuery as exc:
        raise _wrong(exc.message) from exc


def _metric(found: Mapping[str, Any], index: int) -> Metric:
    name, metric, aggregator, offset = (_text(found.get(k)) for k in ("id", "metric", "aggregator", "timeOffset"))
    fill = _fill(found.get("fillPolicy"))
    wrong = _wrong(f"Invalid metric at index {index}")
    if not name or not _ID.fullmatch(name) or not metric or (aggregator and aggregator not in AGGREGATORS):
        raise wrong
    if offset:
        try:
            read_time(offset, 1 << 62)
        except BadQuery as exc:
            raise wrong from exc
    return Metric(name, metric, _text(found.get("filter")), aggregator, offset, fill)


def _formula(found: Mapping[str, Any], index: int, *, doubles: bool) -> Formula:
    name, text = _text(found.get("id")), _text(found.get("expr"))
    join, fill = found.get("join"), _fill(found.get("fillPolicy"))
    if not name or not _ID.fullmatch(name) or not text:
        raise _wrong(f"Invalid expression at index {index}")
    try:
        expression = parse(text, doubles=doubles)
    except BadExpression as exc:
        raise _wrong(str(exc)) from exc
    if not expression.names:
        raise _wrong("The expression didn't appear to have any variables")
    return Formula(name, text, Join() if join is None else _join(_object(join, "join")), fill, expression)


def _join(found: Mapping[str, Any]) -> Join:
    operator = _text(found.get("operator"))
    if operator is None:
        raise _wrong("The set operator cannot be null")
    if operator.lower() not in ("union", "intersection"):
        raise _wrong(f"Unrecognized set operator: {operator}")
    return Join(operator.lower(), _flag(found.get("useQueryTags")), _flag(found.get("includeAggTags", True)))


def _output(found: Mapping[str, Any], _: int) -> Output:
    return Output(_text(found.get("id")), _text(found.get("alias")))


def _fill(found: Any) -> NumericFill | None:
    """A fill policy: the name decides, or without one the value."""
    if found is None:
        return None
    members = _object(found, "fillPolicy")
    policy, value = _text(members.get("policy")), members.get("value")
    try:
        number = 0.0 if value is None else float(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise _wrong(f"fillPolicy: wanted a number, got {value!r}") from exc
    if policy is None:
        return NumericFill("zero" if number == 0 else "nan" if math.isnan(number) else "scalar", number)
    policy = policy.lower()
    if policy not in _POLICIES:
        raise _wrong(f"Unrecognized fill policy: {policy}")
    if policy == "scalar":
        return NumericFill(policy, number)
    if number != 0 and not (math.isnan(number) and policy != "zero"):
        what = "NULL" if policy == "null" else "ZERO" if policy == "zero" else "NONE and NAN"
        raise _wrong(f"The value for {what} must be {'NaN' if policy in ('none', 'nan') else 0}")
    return NumericFill(policy, 0.0 if policy == "zero" else math.nan)


def _check_ids(request: ExpRequest) -> None:
    """Every id once, and everything named there."""
    if not request.metrics:
        raise _wrong("missing or empty metrics")
    _unique([each.id for each in request.filters or ()], "duplicated filter id: ")
    _unique([each.id for each in request.metrics], "duplicated metric id: ")
    known = {each.id for each in request.filters or ()}
    for metric in request.metrics:
        if metric.filter and request.filters is None:
            raise _wrong(f"No filter defined: {metric.filter}")
        if metric.filter and metric.filter not in known:
            raise _wrong(f"unrecognized filter id {metric.filter} in metric {metric.id}")
    formulas = request.formulas or ()
    if len(formulas) > MOST_SUBS:
        raise BadQuery(f"{len(formulas)} expressions, wanted at most {MOST_SUBS}", status=413)
    variables = [each.id for each in request.metrics] + [each.id for each in formulas]
    _unique(variables, "Duplicated variable or expression id: ")
    there = set(variables)
    for formula in formulas:
        for name in formula.expression.names:
            if name not in there:
                raise _wrong(f"Expression [{formula.text}] was missing input {name}")


def _unique(ids: Sequence[str], message: str) -> None:
    seen = set()
    for each in ids:
        if each in seen:
            raise _wrong(message + each)
        seen.add(each)


def _each(found: Any, read: Callable[[Mapping[str, Any], int], _T], what: str) -> list[_T] | None:
    if found is None:
        return None
    if not isinstance(found, list):
        raise _wrong(f"{what}: wanted a list")
    return [read(_object(each, what), index) for index, each in enumerate(found)]


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(f"{what}: wanted an object")
    return found


def _text(found: Any) -> str | None:
    if isinstance(found, str) and _HALF.search(found):
        raise BadQuery(f"wanted a text, got half of a surrogate pair: {json.dumps(found)[:100]}")
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, bool | int | float):
        return json.dumps(found)
    raise _wrong(f"wanted a text, got {json.dumps(found)[:100]}")


def _flag(found: Any) -> bool:
    """Numbers and texts stand for truth too."""
    if isinstance(found, str):
        return found.lower() == "true"
    return bool(found)


def _wrong(message: str) -> BadQuery:
    return BadQuery(message, status=500)
