"""Parses queries of URIs (docs/compat/query.md §3, §4): `start`, `end`, flags, and any number of `m` and `tsuid`.

Also those of OpenTSDB's command line: `START [END] (FUNC [rate [counter,max,reset]] [downsample MS FUNC]
METRIC [TAGK=TAGV …])+`.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from functools import lru_cache
from typing import Any, TypeVar

from tsd.codec.text import parse_double
from tsd.errors import BadLine, BadQuery
from tsd.query.model import AGGREGATORS, NO_COUNTER_MAX, PLAIN_RATE, Query, RateOptions, SubQuery
from tsd.query.parse.times import MOST_DIGITS
from tsd.query.parse.validate import Draft, as_client_error, check, check_filters, deduplicated
from tsd.tables.filters import Filter, identity, read_filter
from tsd.tables.quirks import OPENTSDB, Quirks, quirks_for

CORRECTED_KEYS = ("corrected", "tsd.query.corrected")  # in parameters and bodies
_ON, _OFF = ("", "true", "1", "yes", "on"), ("false", "0", "no", "off")
_LONG = re.compile(rf"[-+]?[0-9]{{1,{MOST_DIGITS}}}")
_ROLLUPS = ("ROLLUP_RAW", "ROLLUP_NOFALLBACK", "ROLLUP_FALLBACK", "ROLLUP_FALLBACK_RAW")
MAX_KEPT, SHORT = 1000, 300  # parsed sub queries that are kept, and the length of each

T = TypeVar("T")
Params = Mapping[str, Sequence[str]]


def read_uri(
    params: Params,
    now_ms: int,
    *,
    quirks: Quirks = OPENTSDB,
    local: tzinfo | None = None,
    extra: Sequence[Draft] = (),
) -> Query:
    """Return the checked query of a URI's parameters. `quirks` is the default; `local` the zone of dates (None: the
    machine's); `extra` are the metric queries of `exp`. Raise BadQuery."""
    quirks = quirks_in(params, default=quirks)
    try:
        query = read_frame(params, quirks=quirks)
        drafts = [*read_drafts(params, quirks=quirks), *extra]
        if not drafts:
            raise BadQuery("Missing sub queries")
        return check(query, deduplicated(drafts, quirks=quirks), now_ms, local=local)
    except BadQuery as exc:
        raise as_client_error(exc, quirks=quirks) from exc.__cause__


def read_frame(params: Params, *, quirks: Quirks = OPENTSDB) -> Query:
    """Return a URI's query without sub queries, unchecked. Raise BadQuery without a start."""
    start = _last(params, "start")
    if not start:
        raise BadQuery("Missing parameter <code>start</code>")
    return Query(
        0,
        0,
        (),
        start_text=start,
        end_text=_last(params, "end"),
        ms_resolution="ms" in params,
        show_tsuids="show_tsuids" in params,
        show_query="show_query" in params,
        show_stats="show_stats" in params,
        show_summary="show_summary" in params,
        no_annotations="no_annotations" in params,
        global_annotations="global_annotations" in params,
        quirks=quirks,
    )


def read_drafts(params: Params, *, quirks: Quirks = OPENTSDB) -> list[Draft]:
    """Return the sub queries of `tsuid` and `m`, in this order, with duplicates. Raise BadQuery."""
    return [
        *(read_tsuid(text, quirks=quirks) for text in params.get("tsuid", ())),
        *((_read_short_m if len(text) <= SHORT else read_m)(text, quirks=quirks) for text in params.get("m", ())),
    ]


def quirks_in(params: Params, *, default: Quirks) -> Quirks:
    """Return the quirks that a request's parameters choose. Raise BadQuery for a word that is no yes or no.

    >>> quirks_in({"corrected": [""]}, default=OPENTSDB).loose_wildcards
    False
    """
    given = [(name, values[-1]) for name in CORRECTED_KEYS if (values := params.get(name))]
    if not given:
        return default
    name, text = given[0]
    if (word := text.lower()) not in _ON + _OFF:
        raise BadQuery(f"{name}: got {text!r}, wanted true or false")
    return quirks_for(word in _ON)


def quirks_in_body(members: Mapping[str, T], is_true: Callable[[T], bool], default: Quirks) -> Quirks:
    """Return the quirks that a body's members choose; `is_true` reads a flag."""
    given = [members[name] for name in CORRECTED_KEYS if name in members]
    return quirks_for(is_true(given[0])) if given else default


def read_m(text: str, *, quirks: Quirks = OPENTSDB) -> Draft:
    """Parse one `m`: aggregator, options, metric and filters. Raise BadQuery."""
    if not text:
        raise BadQuery("The query string was empty")
    aggregator, *middle, last = _split(text)
    metric, filters = read_metric(last, quirks=quirks)
    return _with_parts({"aggregator": aggregator, "metric": metric, "filters": filters}, middle, of_metric=True)


_read_short_m = lru_cache(MAX_KEPT)(read_m)


def read_tsuid(text: str, *, quirks: Quirks = OPENTSDB) -> Draft:  # noqa: ARG001  the same shape as read_m
    """Parse one `tsuid`. Raise BadQuery."""
    if not text:
        raise BadQuery("The tsuid query string was empty")
    aggregator, *middle, last = _split(text)
    tsuids = tuple(last.rstrip(",").split(",")) if last.strip(",") or not last else ()
    return _with_parts({"aggregator": aggregator, "tsuids": tsuids}, middle, of_metric=False)


def _split(text: str) -> list[str]:
    pieces = text.split(":")
    if not 2 <= len(pieces) <= 5:
        which = "not enough" if len(pieces) < 2 else "too many"
        raise BadQuery(f"Invalid parameter m={text} ({which} :-separated parts)")
    return pieces


def _with_parts(found: dict[str, Any], parts: Sequence[str], *, of_metric: bool) -> Draft:
    """Return a draft from the members that were found, and the options between aggregator and metric. Unknown ones are
    ignored."""
    downsample = ""
    for part in parts:
        word = part.lower()
        if not part:
            raise BadQuery("String index out of range: 0", status=500)
        if word.startswith("rate"):
            found["rate"] = True
            if "{" in part:
                found |= {"rate_options": read_rate_options(part), "has_rate_options": True}
        elif part[0].isdecimal():
            downsample = part
        elif word.startswith("percentiles"):
            found["percentiles"] = read_percentiles(part)
        elif word.startswith("show-histogram-buckets"):
            found["show_histogram_buckets"] = True
        elif of_metric and word == "pre-agg":
            found["pre_aggregate"] = True
        elif of_metric and word.startswith("rollup_"):
            found |= {"rollup_usage": rollup_usage(part), "has_rollup_usage": True}
        elif of_metric and word.startswith("explicit_tags"):
            found["explicit_tags"] = True
    return Draft(SubQuery(**found), downsample)


def rollup_usage(text: str) -> str:
    """Return one of OpenTSDB's four words, the default for any other text.

    >>> rollup_usage("rollup_raw"), rollup_usage("x")
    ('ROLLUP_RAW', 'ROLLUP_NOFALLBACK')
    """
    word = text.upper()
    return word if word in _ROLLUPS else "ROLLUP_NOFALLBACK"


def read_rate_options(text: str) -> RateOptions:
    """Parse `rate{counter[,max[,reset]]}`. Raise BadQuery.

    >>> read_rate_options("rate{dropcounter,65535}")
    RateOptions(counter=True, counter_max=65535, reset_value=0, drop_resets=True)
    """
    if len(text) < 6:
        raise BadQuery(f"Invalid rate options specification: {text}")
    parts = text[5:-1].split(",")
    if len(parts) > 3:
        raise BadQuery(
            "Incorrect number of values in rate options specification, must be counter[,counter max value,reset value],"
            f" recieved: {len(parts)} parts"
        )
    kind, most, reset = (*parts, "", "")[:3]
    return RateOptions(
        kind.endswith("counter"),
        _long(most, "Max value of counter") if most else NO_COUNTER_MAX,
        _long(reset, "Reset value of counter") if reset else 0,
        kind == "dropcounter",
    )


def _long(text: str, what: str) -> int:
    if _LONG.fullmatch(text) and -(1 << 63) <= (number := int(text)) < 1 << 63:
        return number
    raise BadQuery(f"{what} was not a number, received '{text}'")


def read_percentiles(text: str) -> tuple[float, ...]:
    """Parse `percentiles[99,50.5]`, ascending. Raise BadQuery."""
    first, last = text.find("["), text.find("]")
    if first < 0 or last < first:
        raise BadQuery(f"Malformated percentile query paramater: {text}")
    return tuple(sorted(read_float(word) for word in text[first + 1 : last].split(",")))


def read_float(text: str) -> float:
    """Parse a 32-bit float, with the digits that OpenTSDB shows. Raise BadQuery.

    >>> read_float("99.90000001")
    99.9
    """
    try:
        number = parse_double(text.encode("latin-1", "replace"))
        return shortest_float(number)
    except BadLine as exc:
        raise BadQuery(str(exc).removeprefix("invalid value: "), status=500) from exc


def shortest_float(number: float) -> float:
    """Return the decimal with the fewest digits that is the same 32-bit float."""
    try:
        single = struct.pack("f", number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    for digits in range(1, 10):
        short = float(f"{number:.{digits}g}")
        if struct.pack("f", short) == single:
            return short
    return number


def read_metric(text: str, *, quirks: Quirks = OPENTSDB) -> tuple[str, tuple[Filter, ...]]:
    """Parse `metric[{group by}[{others}]]`; the others are first in the result. Raise BadQuery, 500.

    >>> metric, filters = read_metric("sys.cpu{host=*}{dc=lga}")
    >>> metric, [(f.tagk, f.group_by) for f in filters]
    ('sys.cpu', [('dc', False), ('host', True)])
    """
    if not text:
        raise BadQuery("Metric cannot be null or empty", status=500)
    metric, brace, rest = text.partition("{")
    if not brace:
        return text, ()
    if not text.endswith("}"):
        raise BadQuery(f"Missing '}}' at the end of: {text}", status=500)
    if rest == "}":
        return metric, ()
    close = text.index("}")
    behind = close < len(text) - 1
    filters: list[Filter] = []
    check_filters(text.count(",") + 1)
    if behind:
        for word in text[text.rindex("{") + 1 : -1].split(","):
            if not word:
                break
            filters.append(_read_pair(word, "filter", group_by=False, quirks=quirks))
    places: dict[object, int] = {}
    for place, one in enumerate(filters):
        places.setdefault(identity(one), place)
    if close <= len(metric):
        raise BadQuery(f"begin {len(metric) + 1}, end {close}, length {len(text)}", status=500)  # Java's words
    for word in text[len(metric) + 1 : close].split(","):
        if not word and behind:
            break
        found = _read_pair(word, "tag", group_by=True, quirks=quirks)
        place = places.setdefault(identity(found), len(filters))
        if place == len(filters):
            filters.append(found)
        else:  # an equal filter groups, too
            other = filters[place]
            filters[place] = Filter(other.tagk, other.type, other.expression, True, other.ignore_case)
    return metric, tuple(filters)


def _read_pair(word: str, what: str, *, group_by: bool, quirks: Quirks) -> Filter:
    try:
        tagk, *values = word.split("=")
        if len(values) != 1 or not tagk or not values[0]:
            raise BadQuery(f"invalid tag: {word}")
        return read_filter(tagk, values[0], group_by=group_by, quirks=quirks)
    except BadQuery as exc:
        raise BadQuery(f"When parsing {what} '{word}': {exc.message}", status=500) from exc


def _last(params: Params, name: str) -> str:
    values = params.get(name)
    return values[-1] if values else ""


_END = re.compile(r".*[:/-].*|\d+(ms)?|now")
NOT_ENOUGH = "Not enough arguments."


def read_words(words: Sequence[str], now_ms: int, *, quirks: Quirks = OPENTSDB) -> Query:
    """Parse the words of a command line. Raise BadQuery.

    >>> words = "1356998400 sum rate downsample 60000 avg sys.cpu host=*".split()
    >>> read_words(words, 1356999000000).queries[0].rate
    True
    """
    if len(words) < 3:
        raise BadQuery(NOT_ENOUGH)
    start, rest = words[0], list(words[1:])
    end = rest.pop(0) if len(words) > 3 and _END.fullmatch(rest[0].lower()) else ""
    drafts = []
    while rest:
        drafts.append(_draft(rest, quirks=quirks))
    frame = Query(0, 0, (), start, end, no_annotations=True, quirks=quirks)
    return check(frame, drafts, now_ms)


def _draft(words: list[str], *, quirks: Quirks) -> Draft:
    """Parse one sub query and remove it from the front of `words`."""
    aggregator = words.pop(0)
    if aggregator not in AGGREGATORS:
        raise BadQuery(f"No such aggregator: {aggregator}")
    sub, downsample = SubQuery(aggregator), ""
    if words[:1] == ["rate"]:
        words.pop(0)
        options = words.pop(0) if words and words[0].startswith("counter") else ""
        sub = replace(
            sub,
            rate=True,
            rate_options=read_rate_options(f"rate{{{options}}}") if options else PLAIN_RATE,
            has_rate_options=bool(options),
        )
    if words[:1] == ["downsample"]:
        if len(words) < 3:
            raise BadQuery("downsample: wanted an interval and a function")
        _, interval, function = words[:3]
        del words[:3]
        downsample = f"{interval}ms-{function}" if interval.isdigit() else f"{interval}-{function}"
    if not words:
        raise BadQuery("Missing the metric: wanted FUNC METRIC [TAGK=TAGV …]")
    metric = words.pop(0)
    filters = []
    while words and "=" in words[0]:
        tagk, _, value = words.pop(0).partition("=")
        filters.append(read_filter(tagk, value, group_by=True, quirks=quirks))
    return Draft(replace(sub, metric=metric, filters=tuple(filters)), downsample)
