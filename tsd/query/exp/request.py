"""Parses and checks the body of `/api/query/exp` (docs/compat/query.md §20), and orders expressions by dependency.

Mistakes have status 500, as in OpenTSDB.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tsd.errors import BadQuery, json_mistake
from tsd.query.exp.parser import BadExpression, Expression, parse
from tsd.query.model import AGGREGATORS, NONE, Fill, Query, SubQuery
from tsd.query.parse.body import LARGEST, LONE_SURROGATE, NO_PARAMS
from tsd.query.parse.times import read_duration, read_time
from tsd.query.parse.uri import Params, quirks_in, quirks_in_body
from tsd.query.parse.validate import MAX_SUB_QUERIES, Draft, as_client_error, check, deduplicated, identity_of
from tsd.tables.filters import Filter, make_filter
from tsd.tables.quirks import Quirks

_ID = re.compile(r"[A-Za-z][A-Za-z0-9]*|[0-9][A-Za-z0-9]+")
_POLICIES = ("none", "nan", "null", "zero", "scalar")
_T = TypeVar("_T")


class NumericFill(NamedTuple):
    """What replaces missing values of a series."""

    policy: str
    value: float


@dataclass(frozen=True)
class ExpDownsampler:
    """The downsampler of `time`; OpenTSDB reads its fill but does not use it."""

    interval: str
    aggregator: str
    fill: NumericFill | None


@dataclass(frozen=True)
class ExpTime:
    """The range, and how series are merged unless a metric says otherwise."""

    start: str
    end: str | None
    zone: str | None
    downsampler: ExpDownsampler | None
    aggregator: str
    rate: bool


@dataclass(frozen=True)
class FilterSet:
    """Filters that metrics refer to by id."""

    id: str
    filters: tuple[Filter, ...]
    explicit_tags: bool


@dataclass(frozen=True)
class ExpMetric:
    """A variable: the result of a sub query."""

    id: str
    name: str
    filter: str | None
    aggregator: str | None
    offset: str | None
    fill: NumericFill | None


class Join(NamedTuple):
    """How series of an expression's variables are joined."""

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


class ExpOutput(NamedTuple):
    """A variable to show."""

    id: str | None
    alias: str | None


@dataclass(frozen=True)
class ExpRequest:
    """A whole request. None: the section is missing."""

    name: str | None
    time: ExpTime
    filters: Sequence[FilterSet] | None
    metrics: Sequence[ExpMetric]
    formulas: Sequence[Formula] | None
    outputs: Sequence[ExpOutput] | None
    quirks: Quirks


def read_request(body: bytes, *, params: Params = NO_PARAMS, quirks: Quirks) -> ExpRequest:
    """Parse a body and check it as far as possible without data. `quirks` is the default, which the body and `params`
    may change. Raise BadQuery, with the quirk `mistakes_as_500` with status 500."""
    if len(body) > LARGEST:
        raise BadQuery(f"Query of {len(body)} bytes, wanted at most {LARGEST}", status=413)
    quirks = quirks_in(params, default=quirks)
    try:
        top = _members(body)
        quirks = quirks_in_body(top, _flag, quirks)
        found = _request(top, quirks=quirks)
        _check_ids(found)
    except BadQuery as exc:
        raise as_client_error(exc, quirks=quirks) from exc.__cause__
    return found


def _members(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise _wrong("Incoming data was null or empty")
    try:
        return _object(json.loads(body), "the query")
    except (ValueError, RecursionError) as exc:
        raise _wrong(json_mistake(exc)) from exc


def _request(top: Mapping[str, Any], *, quirks: Quirks) -> ExpRequest:
    if top.get("time") is None:
        raise _wrong("missing time")
    return ExpRequest(
        name=_text(top.get("name")),
        time=_time(_object(top["time"], "time")),
        filters=_each(top.get("filters"), partial(_filter_set, quirks=quirks), "filters"),
        metrics=_each(top.get("metrics"), _metric, "metrics") or (),
        formulas=_each(top.get("expressions"), partial(_formula, singles=quirks.single_literals), "expressions"),
        outputs=_each(top.get("outputs"), _output, "outputs"),
        quirks=quirks,
    )


def to_query(request: ExpRequest, now_ms: int) -> tuple[Query, list[int]]:
    """Convert the metrics to distinct sub queries; return also the number of each metric's. Raise BadQuery."""
    try:
        return _to_query(request, now_ms)
    except BadQuery as exc:
        raise as_client_error(exc, quirks=request.quirks) from exc.__cause__


def _to_query(request: ExpRequest, now_ms: int) -> tuple[Query, list[int]]:
    time = request.time
    sets = {each.id: each for each in request.filters or ()}
    drafts = [_draft(request, metric, sets) for metric in request.metrics]
    kept = deduplicated(drafts, quirks=request.quirks)
    places = {identity_of(one, quirks=request.quirks): at for at, one in enumerate(kept)}
    frame = Query(0, 0, (), time.start, time.end or "", no_annotations=True, quirks=request.quirks)
    _check_range(request, now_ms)
    query = check(frame, kept, now_ms, time.zone or "")
    return _with_scalar(query, request), [places[identity_of(each, quirks=request.quirks)] for each in drafts]


def _with_scalar(query: Query, request: ExpRequest) -> Query:
    """Add the scalar of the fill policy to downsamplers."""
    downsampler = request.time.downsampler
    if request.quirks.ignores_fills or downsampler is None or downsampler.fill is None:
        return query
    scalar = downsampler.fill.value
    subs = [
        replace(sub, downsample=sub.downsample and sub.downsample._replace(scalar=scalar))
        if sub.downsample and sub.downsample.fill is Fill.SCALAR
        else sub
        for sub in query.queries
    ]
    return replace(query, queries=tuple(subs))


def _draft(request: ExpRequest, metric: ExpMetric, sets: Mapping[str, FilterSet]) -> Draft:
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
    if fill is not None and not request.quirks.ignores_fills:
        words.append(fill.policy)
    return Draft(sub, "-".join(words))


def _check_range(request: ExpRequest, now_ms: int) -> None:
    """Check the range. Raise BadQuery with status 500."""
    time = request.time
    try:
        read = partial(read_time, now_ms=now_ms, zone=time.zone or "", quirks=request.quirks)
        start, end = read(time.start), read(time.end) if time.end else now_ms
    except BadQuery as exc:
        raise _wrong("Invalid time") from exc
    if end <= start:
        raise _wrong(f"End time [{end}] must be greater than the start time [{start}]")


def _time(found: Mapping[str, Any]) -> ExpTime:
    start, aggregator = _text(found.get("start")), _text(found.get("aggregator"))
    if not start or aggregator not in AGGREGATORS:
        raise _wrong("Invalid time")
    downsampler = found.get("downsampler")
    return ExpTime(
        start=start,
        end=_text(found.get("end")),
        zone=_text(found.get("timezone")),
        downsampler=None if downsampler is None else _downsampler(_object(downsampler, "downsampler")),
        aggregator=aggregator,
        rate=_flag(found.get("rate")),
    )


def _downsampler(found: Mapping[str, Any]) -> ExpDownsampler:
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
    return ExpDownsampler(interval, aggregator, fill)


def _filter_set(found: Mapping[str, Any], index: int, *, quirks: Quirks) -> FilterSet:
    name = _text(found.get("id")) or ""
    if not _ID.fullmatch(name) or found.get("tags") is None:
        raise _wrong(f"Invalid filter at index {index}")
    filters = _each(found["tags"], lambda tag, _: _filter(tag, quirks=quirks), "tags") or ()
    return FilterSet(name, tuple(filters), _flag(found.get("explicitTags")))


def _filter(found: Mapping[str, Any], *, quirks: Quirks) -> Filter:
    tagk, kind, expression = (_text(found.get(name)) or "" for name in ("tagk", "type", "filter"))
    group_by = _flag(found.get("groupBy")) or _flag(found.get("group_by"))
    try:
        return make_filter(tagk, kind, expression, group_by=group_by, quirks=quirks)
    except BadQuery as exc:
        raise _wrong(exc.message) from exc


def _metric(found: Mapping[str, Any], index: int) -> ExpMetric:
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
    return ExpMetric(name, metric, _text(found.get("filter")), aggregator, offset, fill)


def _formula(found: Mapping[str, Any], index: int, *, singles: bool) -> Formula:
    name, text = _text(found.get("id")), _text(found.get("expr"))
    join, fill = found.get("join"), _fill(found.get("fillPolicy"))
    if not name or not _ID.fullmatch(name) or not text:
        raise _wrong(f"Invalid expression at index {index}")
    try:
        expression = parse(text, singles=singles)
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


def _output(found: Mapping[str, Any], _: int) -> ExpOutput:
    return ExpOutput(_text(found.get("id")), _text(found.get("alias")))


def _fill(found: Any) -> NumericFill | None:
    """Parse a fill policy: by its name, or without one by its value."""
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
    """Check that ids are unique, and that everything referred to exists."""
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
    if len(formulas) > MAX_SUB_QUERIES:
        raise BadQuery(f"{len(formulas)} expressions, wanted at most {MAX_SUB_QUERIES}", status=413)
    if len(request.outputs or ()) > MAX_SUB_QUERIES:
        raise BadQuery(f"{len(request.outputs or ())} outputs, wanted at most {MAX_SUB_QUERIES}", status=413)
    variables = [each.id for each in request.metrics] + [each.id for each in formulas]
    _unique(variables, "Duplicated variable or expression id: ")
    names = set(variables)
    for formula in formulas:
        for name in formula.expression.names:
            if name not in names:
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
    if isinstance(found, str) and LONE_SURROGATE.search(found):
        raise BadQuery(f"wanted a text, got half of a surrogate pair: {json.dumps(found)[:100]}")
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, bool | int | float):
        return json.dumps(found)
    raise _wrong(f"wanted a text, got {json.dumps(found)[:100]}")


def _flag(found: Any) -> bool:
    """Parse a boolean, also from a number or a text."""
    if isinstance(found, str):
        return found.lower() == "true"
    return bool(found)


def _wrong(message: str) -> BadQuery:
    return BadQuery(message, status=500)


def by_dependency(formulas: Sequence[Formula]) -> list[Formula]:
    """Sort expressions so that each is after those that it uses. Raise BadQuery for a cycle.

    Each is visited once, without recursion: a chain may be longer than Python's stack.
    """
    by_id = {formula.id: formula for formula in formulas}
    order: dict[str, Formula] = {}
    for top in by_id:
        above: dict[str, Iterator[str]] = {} if top in order else {top: iter(by_id[top].expression.names)}
        while above:
            name = next(reversed(above))
            for inner in above[name]:
                _check_not_above(inner, name, above)
                if inner in by_id and inner not in order:
                    above[inner] = iter(by_id[inner].expression.names)
                    break
            else:
                del above[name]
                order[name] = by_id[name]
    return list(order.values())


def _check_not_above(inner: str, name: str, above: Mapping[str, object]) -> None:
    if inner == name:
        raise BadQuery(f"Self referencing expression found: {name}")
    if inner in above:
        raise BadQuery(f"Circular reference found: {name}")


def needed(outputs: Iterable[str], order: Sequence[Formula]) -> list[Formula]:
    """Return what `outputs` use, themselves included, in the same order."""
    wanted = set(outputs)
    for formula in reversed(order):
        if formula.id in wanted:
            wanted.update(formula.expression.names)
    return [formula for formula in order if formula.id in wanted]
