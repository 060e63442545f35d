"""Queries as URIs spell them (query.md §3, §4): `start`, `end`, flags, and any number of `m` and `tsuid`."""

import re
import struct
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import TypeVar

from tsd.codec.words import parse_double
from tsd.errors import BadLine, BadQuery
from tsd.query.durations import MOST_DIGITS
from tsd.query.filters import identity, read_filter
from tsd.query.model import NO_COUNTER_MAX, Filter, Query, RateOptions, SubQuery
from tsd.query.validate import Draft, as_mistake, check, check_sub, without_duplicates

CORRECTED = ("corrected", "tsd.query.corrected")  # among parameters, and in bodies
_OFF = ("false", "0", "no", "off")
_LONG = re.compile(rf"[-+]?[0-9]{{1,{MOST_DIGITS}}}")
_ROLLUPS = ("ROLLUP_RAW", "ROLLUP_NOFALLBACK", "ROLLUP_FALLBACK", "ROLLUP_FALLBACK_RAW")

T = TypeVar("T")
Params = Mapping[str, Sequence[str]]


def read_uri(
    params: Params,
    now_ms: int,
    *,
    corrected: bool = False,
    local: tzinfo | None = None,
    extra: Sequence[Draft] = (),
) -> Query:
    """The query of a URI's parameters, checked. `corrected` is the configured default; `local` the zone of dates (None:
    the machine's); `extra` are the metric queries of `exp`. Raises BadQuery."""
    corrected = is_corrected(params, default=corrected)
    try:
        query = read_frame(params, corrected=corrected)
        drafts = [*read_drafts(params, corrected=corrected), *extra]
        if not drafts:
            raise BadQuery("Missing sub queries")
        return check(query, without_duplicates(drafts, corrected=corrected), now_ms, local=local)
    except BadQuery as exc:
        raise as_mistake(exc, corrected=corrected) from exc


def read_frame(params: Params, *, corrected: bool = False) -> Query:
    """What a URI says beside its sub queries, unchecked; raises BadQuery without a start."""
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
        corrected=corrected,
    )


def read_drafts(params: Params, *, corrected: bool = False) -> list[Draft]:
    """The sub queries of `tsuid` and `m`, in this order, those that are equal included; raises BadQuery."""
    return [
        *(read_tsuid(text, corrected=corrected) for text in params.get("tsuid", ())),
        *(read_m(text, corrected=corrected) for text in params.get("m", ())),
    ]


def read_sub_query(text: str, *, corrected: bool = False) -> SubQuery:
    """One `m`, checked; raises BadQuery.

    >>> read_sub_query("sum:1m-avg:rate:sys.cpu{host=*}").metric
    'sys.cpu'
    """
    return check_sub(read_m(text, corrected=corrected), Query(0, 0, (), corrected=corrected))


def is_corrected(params: Params, *, default: bool) -> bool:
    """Whether a request wants OpenTSDB's harmful accidents left out.

    >>> is_corrected({"corrected": [""]}, default=False), is_corrected({"corrected": ["false"]}, default=True)
    (True, False)
    """
    said = [values[-1] for name in CORRECTED if (values := params.get(name))]
    return said[0].lower() not in _OFF if said else default


def said_of_corrected(members: Mapping[str, T], default: T) -> T:
    """The same of a body's members: what stands there, whatever it is.

    >>> said_of_corrected({"tsd.query.corrected": "true"}, False)
    'true'
    """
    return next((members[name] for name in CORRECTED if name in members), default)


def read_m(text: str, *, corrected: bool = False) -> Draft:
    """The sub query of one `m`: aggregator, what is to be done, metric and filters. Raises BadQuery."""
    if not text:
        raise BadQuery("The query string was empty")
    aggregator, *middle, last = _split(text)
    metric, filters = read_metric(last, corrected=corrected)
    return _with_parts(SubQuery(aggregator, metric, filters=filters), middle, of_metric=True)


def read_tsuid(text: str, *, corrected: bool = False) -> Draft:  # noqa: ARG001  the same shape as read_m
    """The sub query of one `tsuid`; raises BadQuery."""
    if not text:
        raise BadQuery("The tsuid query string was empty")
    aggregator, *middle, last = _split(text)
    tsuids = tuple(last.rstrip(",").split(",")) if last.strip(",") or not last else ()
    return _with_parts(SubQuery(aggregator, tsuids=tsuids), middle, of_metric=False)


def _split(text: str) -> list[str]:
    pieces = text.split(":")
    if not 2 <= len(pieces) <= 5:
        which = "not enough" if len(pieces) < 2 else "too many"
        raise BadQuery(f"Invalid parameter m={text} ({which} :-separated parts)")
    return pieces


def _with_parts(sub: SubQuery, parts: Sequence[str], *, of_metric: bool) -> Draft:
    """A sub query with what stands between its aggregator and its metric. What is unknown is passed over."""
    found: dict[str, object] = {}
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
    return Draft(_replaced(sub, found), downsample)


def _replaced(sub: SubQuery, found: Mapping[str, object]) -> SubQuery:
    return SubQuery(**{**vars(sub), **found}) if found else sub


def rollup_usage(text: str) -> str:
    """One of OpenTSDB's four words; the default for any other.

    >>> rollup_usage("rollup_raw"), rollup_usage("x")
    ('ROLLUP_RAW', 'ROLLUP_NOFALLBACK')
    """
    word = text.upper()
    return word if word in _ROLLUPS else "ROLLUP_NOFALLBACK"


def read_rate_options(text: str) -> RateOptions:
    """The options of `rate{counter[,max[,reset]]}`; raises BadQuery.

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
    """The percentiles of `percentiles[99,50.5]`, ascending; raises BadQuery."""
    first, last = text.find("["), text.find("]")
    if first < 0 or last < first:
        raise BadQuery(f"Malformated percentile query paramater: {text}")
    return tuple(sorted(read_float(word) for word in text[first + 1 : last].split(",")))


def read_float(text: str) -> float:
    """A number that OpenTSDB keeps in 32 bits, with the digits it shows; raises BadQuery.

    >>> read_float("99.90000001")
    99.9
    """
    try:
        number = parse_double(text.encode("latin-1", "replace"))
        return shortest_float(number)
    except BadLine as exc:
        raise BadQuery(str(exc).removeprefix("invalid value: "), status=500) from exc


def shortest_float(number: float) -> float:
    """The decimal with the fewest digits that is the same 32-bit float."""
    try:
        single = struct.pack("f", number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    for digits in range(1, 10):
        short = float(f"{number:.{digits}g}")
        if struct.pack("f", short) == single:
            return short
    return number


def read_metric(text: str, *, corrected: bool = False) -> tuple[str, tuple[Filter, ...]]:
    """A metric and its filters, `metric[{group by}[{others}]]`: the others come first. Raises BadQuery, 500.

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
    if behind:
        for word in text[text.rindex("{") + 1 : -1].split(","):
            if not word:
                break
            filters.append(_read_pair(word, "filter", group_by=False, corrected=corrected))
    if close <= len(metric):
        raise BadQuery(f"begin {len(metric) + 1}, end {close}, length {len(text)}", status=500)  # as Java says it
    for word in text[len(metric) + 1 : close].split(","):
        if not word and behind:
            break
        _group_by(filters, _read_pair(word, "tag", group_by=True, corrected=corrected))
    return metric, tuple(filters)


def _read_pair(word: str, what: str, *, group_by: bool, corrected: bool) -> Filter:
    try:
        tagk, *values = word.split("=")
        if len(values) != 1 or not tagk or not values[0]:
            raise BadQuery(f"invalid tag: {word}")
        return read_filter(tagk, values[0], group_by=group_by, corrected=corrected)
    except BadQuery as exc:
        raise BadQuery(f"When parsing {what} '{word}': {exc.message}", status=500) from exc


def _group_by(filters: list[Filter], found: Filter) -> None:
    """Add a filter that groups; one that is there already groups from now on."""
    for at, other in enumerate(filters):
        if identity(other) == identity(found):
            filters[at] = Filter(other.tagk, other.type, other.expression, True, other.ignore_case)
            return
    filters.append(found)


def _last(params: Params, name: str) -> str:
    values = params.get(name)
    return values[-1] if values else ""
