"""Parses queries in JSON (docs/compat/query.md §5) as leniently as OpenTSDB.

Numbers, texts and booleans replace one another where that makes sense, text after the object is ignored, and the last
of equal keys counts.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache
from typing import Any, TypeAlias

from tsd.errors import BadQuery, json_mistake
from tsd.query.model import NO_COUNTER_MAX, Query, RateOptions, SubQuery
from tsd.query.parse.uri import Params, quirks_in, quirks_in_body, read_float, rollup_usage, shortest_float
from tsd.query.parse.validate import NULL_DRAFT, Draft, as_client_error, check, check_filters, deduplicated, with_times
from tsd.tables.filters import Filter, make_filter, read_filter
from tsd.tables.quirks import OPENTSDB, Quirks

MISSING = "Missing message content"
SUPPLY = "Supply valid JSON formatted data in the body of your request"
LARGEST = 1 << 20  # bytes; more would take over a sixth of a second
UNPARSABLE = "Unable to parse the given JSON"
NULL = "An internal null pointer exception was thrown"
NO_PARAMS: Params = {}
KEPT, SHORT = 1000, 2000  # bodies that are kept without their times, and the longest of them in bytes
_BLANK, _TIME = rb"[ \t\r\n]*", rb"([1-9][0-9]{0,12})"
_TIMES = re.compile(
    _BLANK.join((b"", rb"\{", b'"start"', b":", _TIME, b",", b'"end"', b":", _TIME, b",", b"(.*)")), re.DOTALL
)
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # which UTF-8 cannot encode
_BLANKS = " \t\r\n"


class _Number(str):
    """A number, as its digits."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """An object's members in order, with equal keys."""


class _Wrong(Exception):
    """A value has the wrong type for its field."""


Value: TypeAlias = "_Object | list[Value] | _Number | str | bool | None"
_decode = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_Number
).raw_decode


def read_body(
    body: bytes, now_ms: int, *, params: Params = NO_PARAMS, quirks: Quirks = OPENTSDB, local: tzinfo | None = None
) -> Query:
    """Return the checked query of a request's body. `quirks` is the default, which the body and `params` may change;
    `local` the zone of dates if the body names none (None: the machine's). Raise BadQuery.

    >>> read_body(b'{"start":1,"end":"2s-ago","queries":[{"aggregator":"sum","metric":"m"}]}', 9000).end_ms
    7000
    """
    if (repeated := _with_other_times(body, quirks_in(params, default=quirks))) is not None:
        return repeated
    return _read_whole(body, now_ms, params, quirks, local)


def _read_whole(body: bytes, now_ms: int, params: Params, quirks: Quirks, local: tzinfo | None) -> Query:
    """Return the checked query of a whole body, see `read_body`. Raise BadQuery."""
    if not body:
        raise BadQuery(MISSING, details=SUPPLY)
    if len(body) > LARGEST:
        raise BadQuery(f"Query of {len(body)} bytes, wanted at most {LARGEST}", status=413)
    quirks = quirks_in(params, default=quirks)
    try:
        top = dict(_members(body))
        quirks = quirks_in_body(top, lambda value: _flag(value, "corrected"), quirks)
        query, zone = _frame(top, quirks=quirks)
        drafts = _drafts(top.get("queries"), quirks=quirks)
        if drafts is None:
            raise BadQuery(NULL, status=500)
        return check(query, deduplicated(drafts, quirks=quirks), now_ms, zone, local=local)
    except _Wrong as exc:
        raise BadQuery(UNPARSABLE, details=str(exc)) from exc
    except BadQuery as exc:
        raise as_client_error(exc, quirks=quirks) from exc.__cause__


def _with_other_times(body: bytes, quirks: Quirks) -> Query | None:
    """Return the query of a body that differs from an earlier one in its times only, as those of dashboards do. None if
    it must be read as a whole: it has another form, or an error."""
    if len(body) > SHORT or (found := _TIMES.match(body)) is None:
        return None
    start, end, rest = found.groups()
    if b'"start"' in rest or b'"end"' in rest or b"\\" in rest:  # the last of equal keys counts; escapes may spell them
        return None
    try:
        return with_times(_read_rest(rest, quirks), start.decode(), end.decode())
    except BadQuery:
        return None


@lru_cache(KEPT)
def _read_rest(rest: bytes, quirks: Quirks) -> Query:
    """Return the query of what follows the times in a body. Raise BadQuery."""
    return _read_whole(b'{"start":1,"end":2,' + rest, 0, NO_PARAMS, quirks, None)


def _members(body: bytes) -> Iterable[tuple[str, Value]]:
    text = body.decode("utf-8", "replace").lstrip(_BLANKS)
    try:
        found, _ = _decode(text)
    except (ValueError, RecursionError) as exc:
        raise _Wrong(json_mistake(exc)) from exc
    if found is None:
        raise BadQuery(NULL, status=500)
    return _object(found, "the query")


def _frame(top: Mapping[str, Value], *, quirks: Quirks) -> tuple[Query, str]:
    """Return the body's query without sub queries, and its time zone."""

    def flag(name: str) -> bool:
        return _flag(top[name], name) if name in top else False

    flag("padding")  # no effect, but it must be one
    _check_options(top.get("options"))
    query = Query(
        0,
        0,
        (),
        start_text=_text(top.get("start")) or "",
        end_text=_text(top.get("end")) or "",
        use_calendar=flag("useCalendar"),
        ms_resolution=flag("msResolution"),
        show_tsuids=flag("showTSUIDs"),
        show_query=flag("showQuery"),
        show_stats=flag("showStats"),
        show_summary=flag("showSummary"),
        no_annotations=flag("noAnnotations"),
        global_annotations=flag("globalAnnotations"),
        delete=flag("delete"),
        override_byte_limit=flag("overrideByteLimit"),
        override_point_limit=flag("overrideDataPointLimit"),
        quirks=quirks,
    )
    return query, _text(top.get("timezone")) or ""


def _check_options(options: Value) -> None:
    if options is not None:
        for name, values in _object(options, "options"):
            _list(values, _text, f"options.{name}")


def _drafts(queries: Value, *, quirks: Quirks) -> list[Draft] | None:
    """Return the sub queries; None if there is no list."""
    if queries is None:
        return None
    if not isinstance(queries, list) or isinstance(queries, _Object):
        raise _Wrong("queries: wanted a list")
    return [NULL_DRAFT if each is None else _draft(_object(each, "queries"), quirks=quirks) for each in queries]


def _draft(members: _Object, *, quirks: Quirks) -> Draft:
    """Parse one sub query. `tags` and `filters` fill one list: with the quirk `last_filter_list` the later counts."""
    found: dict[str, Any] = {"aggregator": ""}
    downsample = ""
    lists: dict[str, tuple[Filter, ...] | None] = {}
    for name, value in members:
        if name in _READERS:
            field, read = _READERS[name]
            found[field] = read(value)
        elif name == "downsample":
            downsample = _text(value) or ""
        elif name in ("tags", "filters"):
            lists = {} if quirks.last_filter_list else lists
            lists[name] = (_tags if name == "tags" else _filters)(value, quirks=quirks)
        elif name == "rateOptions":
            options = _rate_options(value)
            found |= {"rate_options": options or RateOptions(), "has_rate_options": options is not None}
        elif name == "rollupUsage":
            found |= {"rollup_usage": rollup_usage(_text(value) or ""), "has_rollup_usage": True}
        elif name == "index":
            _long(value, name)  # no effect, but it must be one
    filters = tuple(each for part in lists.values() for each in part or ())
    given = dict(members)
    present = {name for name in ("tsuids", "percentiles", "downsample") if given.get(name) is not None}
    present |= {"filters" for part in lists.values() if part is not None}
    return Draft(SubQuery(**found, filters=filters), downsample, frozenset(present))


def _tags(value: Value, *, quirks: Quirks) -> tuple[Filter, ...]:
    """Parse the old form of filters: a map of values, all of which group."""
    members = _object(value, "tags")
    check_filters(len(members))
    texts = {tagk: _text(each) for tagk, each in members}
    return tuple(_checked(read_filter, tagk, text or "", group_by=True, quirks=quirks) for tagk, text in texts.items())


def _filters(value: Value, *, quirks: Quirks) -> tuple[Filter, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or isinstance(value, _Object):
        raise _Wrong("filters: wanted a list")
    check_filters(len(value))
    return tuple(_filter(each, quirks=quirks) for each in value)


def _filter(value: Value, *, quirks: Quirks) -> Filter:
    if value is None:
        raise BadQuery(NULL, status=500)
    members = dict(_object(value, "filters"))
    kind, tagk, expression = (_text(members.get(name)) or "" for name in ("type", "tagk", "filter"))
    group_by = any(_flag(members[name], name) for name in ("groupBy", "group_by") if name in members)
    return _checked(make_filter, tagk, kind, expression, group_by=group_by, quirks=quirks)


def _checked(make: Callable[..., Filter], *words: str, **how: Any) -> Filter:
    """Make a filter; in a body its mistakes count as invalid JSON."""
    try:
        return make(*words, **how)
    except BadQuery as exc:
        raise _Wrong(exc.message) from exc


def _rate_options(value: Value) -> RateOptions | None:
    if value is None:
        return None
    counter, most, reset, drop = False, NO_COUNTER_MAX, 0, False
    for name, each in _object(value, "rateOptions"):
        if name in ("counter", "isCounter"):
            counter = _flag(each, name)
        elif name == "counterMax":
            most = _long(each, name)
        elif name == "resetValue":
            reset = _long(each, name)
        elif name == "dropResets":
            drop = _flag(each, name)
        else:
            raise _Wrong(f"unknown field {name!r} of rateOptions: wanted counter, counterMax, resetValue, dropResets")
    return RateOptions(counter, most, reset, drop)


def _object(value: Value, name: str) -> _Object:
    if not isinstance(value, _Object):
        raise _Wrong(f"{name}: wanted an object")
    return value


def _text(value: Value) -> str | None:
    """Return a text, also of a number or boolean."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and LONE_SURROGATE.search(value):
        raise _Wrong("got half of a surrogate pair, wanted a text")
    if value is None or isinstance(value, str):
        return None if value is None else str(value)  # without the subclass, which JSON would refuse
    raise _Wrong("got a list or an object, wanted a text")


def _flag(value: Value, name: str = "") -> bool:
    """Return a boolean, also of an integer, or of a word in two spellings."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, _Number) and value.lstrip("-").isdigit():
        return bool(value.strip("-0"))  # of any length: `int` refuses thousands of digits
    if isinstance(value, str) and not isinstance(value, _Number):
        word = value.strip()
        if word in ("", "true", "True", "false", "False"):
            return word.lower() == "true"
    raise _Wrong(f"{name}: got {value!r}, wanted true or false")


def _long(value: Value, name: str = "") -> int:
    """Return a 64-bit integer; decimals are truncated in numbers but not in texts."""
    if value is None:
        return 0
    if isinstance(value, str):
        text = value.strip()
        try:
            number = _truncated(text) if isinstance(value, _Number) else int(text or "0")
        except (ValueError, OverflowError) as exc:
            raise _Wrong(f"{name}: got {value!r}, wanted an integer") from exc
        if -(1 << 63) <= number < 1 << 63:
            return number
    raise _Wrong(f"{name}: got {value!r}, wanted an integer of 64 bits")


def _truncated(digits: str) -> int:
    return int(digits) if digits.lstrip("-").isdigit() else math.trunc(float(digits))


def _percentiles(value: Value) -> tuple[float, ...]:
    return tuple(sorted(_list(value, _float, "percentiles"))) if value is not None else ()


def _float(value: Value) -> float:
    if value is None:
        raise BadQuery("percentiles: got null, wanted a number")
    if isinstance(value, _Number):
        return shortest_float(float(value))
    if isinstance(value, str):
        try:
            return read_float(value)
        except BadQuery as exc:
            raise _Wrong(f"percentiles: {exc.message}") from exc
    raise _Wrong(f"percentiles: got {value!r}, wanted a number")


def _list(value: Value, read: Callable[[Value], Any], name: str) -> Sequence[Any]:
    if not isinstance(value, list) or isinstance(value, _Object):
        raise _Wrong(f"{name}: wanted a list")
    return [read(each) for each in value]


def _tsuids(value: Value) -> tuple[str, ...]:
    return tuple(text or "" for text in _list(value, _text, "tsuids")) if value is not None else ()


_READERS: Mapping[str, tuple[str, Callable[[Value], Any]]] = {
    "aggregator": ("aggregator", lambda value: _text(value) or ""),
    "metric": ("metric", _text),
    "tsuids": ("tsuids", _tsuids),
    "rate": ("rate", _flag),
    "explicitTags": ("explicit_tags", _flag),
    "percentiles": ("percentiles", _percentiles),
    "showHistogramBuckets": ("show_histogram_buckets", _flag),
    "preAggregate": ("pre_aggregate", _flag),
    "useFuzzyFilter": ("use_fuzzy_filter", _flag),
    "useMultiGets": ("use_multi_gets", _flag),
}
