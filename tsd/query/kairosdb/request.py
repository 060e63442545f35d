"""Parse and check the JSON of KairosDB's queries, in its order and with its messages."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC

from tsd.codec.lenient_json import BadJson, Lenient, Members, read_value
from tsd.codec.regex import BadPattern, compile_pattern
from tsd.query.kairosdb.model import FOREVER_MS, PATTERN, BadRequest, Grouping, KairosQuery, MetricQuery
from tsd.query.kairosdb.properties import LONGEST_MS, read_step
from tsd.query.kairosdb.times import find_zone, plus
from tsd.query.kairosdb.values import double, flag, integer, items, sampling, shown, text

MOST_METRICS = 500  # of a request: each takes some 50 us to check
MOST_TAGS = 500  # names of a metric


def read_request(text: str, now_ms: int) -> KairosQuery:
    """Return the query of a body. Without a zone it is in UTC. Raise BadRequest."""
    try:
        body = read_value(text)
    except BadJson as error:
        raise BadRequest(str(error)) from error
    if not isinstance(body, Members):
        raise BadRequest(f"Not a JSON Object: {text[:40] or 'null'}")
    start, end = read_span(body, now_ms)
    if "cache_time" in body and integer(body["cache_time"], "cache_time") < 0:
        raise BadRequest("cache_time must be greater than or equal to 0")
    zone = UTC if body.get("time_zone") is None else find_zone(str(body["time_zone"]))
    if "metrics" not in body:
        raise BadRequest("query.metric[] must have a size of at least 1")
    _refuse_plugins(body, "")
    found = items(body["metrics"], "metrics")
    if len(found) > MOST_METRICS:
        raise BadRequest(f"query.metrics: got {len(found)} metrics, wanted at most {MOST_METRICS}")
    return KairosQuery(tuple(_metric(one, f"query.metric[{at}]", start, end) for at, one in enumerate(found)), zone)


def read_span(body: Members, now_ms: int) -> tuple[int | None, int]:
    """Return the first and the last moment of a request; None: it has no start. Raise BadRequest."""
    start: int | None = None
    if "start_absolute" in body:
        start = integer(body["start_absolute"], "start_absolute")
    elif "start_relative" in body:
        start = _relative(body["start_relative"], "start_relative", now_ms)
    if start is not None and start < -LONGEST_MS:
        raise BadRequest(f"query.start_time: got {start} ms, wanted at least {-LONGEST_MS}")
    if "end_absolute" in body:
        return start, integer(body["end_absolute"], "end_absolute")
    if "end_relative" in body:
        return start, _relative(body["end_relative"], "end_relative", now_ms)
    return start, FOREVER_MS


def _relative(value: Lenient, name: str, now_ms: int) -> int:
    found = sampling(value, "query", at=f"{name}.")
    return plus(now_ms, -found.value, found.unit, UTC)


def _refuse_plugins(members: Members, place: str) -> None:
    for at, one in enumerate(items(members.get("plugins") or [], f"{place}.plugins")):
        name = one.get("name") if isinstance(one, Members) else one
        raise BadRequest(f"{place}.plugins[{at}].{name} invalid query plugin name")


def _metric(value: Lenient, place: str, start: int | None, end: int) -> MetricQuery:
    if not isinstance(value, Members):
        raise BadRequest(f"{place}: Not a JSON Object: {shown(value)}")
    name = value.get("name")
    if name is None:
        raise BadRequest(f"{place}.name may not be null")
    if not name:
        raise BadRequest(f"{place}.name may not be empty")
    if start is None:
        raise BadRequest(f"{place}.start_time relative or absolute time must be set")
    if end < start:
        raise BadRequest(f"{place}.end_time must be greater than the start time")
    tags = _tags(value["tags"], place) if "tags" in value else {}
    steps = [
        read_step(one, f"{place}.aggregators[{at}]")
        for at, one in enumerate(items(value.get("aggregators", []), f"{place}.aggregators"))
    ]
    groupings = [
        _grouping(one, f"{place}.group_by[{at}]")
        for at, one in enumerate(items(value.get("group_by", []), f"{place}.group_by"))
    ]
    _refuse_plugins(value, place)
    order = value.get("order", "asc")
    if not isinstance(order, str) or order.lower() not in ("asc", "desc"):
        raise BadRequest(f"{place}.order must be either 'asc' or 'desc'")
    limit = integer(value["limit"], f"{place}.limit") if "limit" in value else 0
    if limit < 0:
        raise BadRequest(f"{place}.limit must be greater than or equal to 0")
    excludes = flag(value["exclude_tags"]) if "exclude_tags" in value else False
    return MetricQuery(
        name=text(name, f"{place}.name"),
        start_ms=start,
        end_ms=end,
        tags=tags,
        steps=tuple(steps),
        groupings=tuple(groupings),
        limit=limit,
        descending=order.lower() == "desc",
        exclude_tags=excludes,
    )


def _tags(value: Lenient, place: str) -> Mapping[str, Sequence[str]]:
    if not isinstance(value, Members):
        raise BadRequest(f"{place}.tags: Not a JSON Object: {shown(value)}")
    found: dict[str, Sequence[str]] = {}
    if len(value) > MOST_TAGS:
        raise BadRequest(f"{place}.tags: got {len(value)} names, wanted at most {MOST_TAGS}")
    for at, (name, alternatives) in enumerate(value.items()):
        if not name:
            raise BadRequest(f"{place}.tags[{at}] name must not be empty")
        each = alternatives if isinstance(alternatives, list) else [alternatives]
        if any(one is None or one == "" for one in each):
            raise BadRequest(f"{place}.tags[{at}].{name} value must not be null or empty")
        values = tuple(text(one, f"{place}.tags[{at}].{name}") for one in each)
        for one in values:
            _check_pattern(one, f"{place}.tags[{at}].{name}")
        if values:
            found[name] = values
    return found


def _check_pattern(value: str, place: str) -> None:
    if value.startswith(PATTERN):
        try:
            compile_pattern(value.removeprefix(PATTERN))
        except BadPattern as error:
            raise BadRequest(f"{place} {error}") from error


def _grouping(value: Lenient, place: str) -> Grouping:
    if not isinstance(value, Members):
        raise BadRequest(f"{place}: Not a JSON Object: {shown(value)}")
    kind = value.get("name")
    if not kind:
        raise BadRequest(f"{place} must have a name")
    readers: Mapping[str, tuple[tuple[str, ...], Callable[[Members, str], Grouping]]] = {
        "tag": (("tags",), _by_tags),
        "time": (("range_size", "group_count"), _by_time),
        "value": (("range_size",), _by_value),
        "bin": (("bins",), _by_bins),
    }
    if not isinstance(kind, str) or kind not in readers:
        raise BadRequest(f"{place}.{shown(kind)} invalid group_by name")
    names, read = readers[kind]
    for name in value:
        if name != "name" and name not in names:
            raise BadRequest(f"Property '{name}' was specified for object '{kind}' but no matching setter was found")
    return read(value, place)


def _by_tags(value: Members, place: str) -> Grouping:
    if value.get("tags") is None:
        raise BadRequest(f"{place}.tags may not be null")
    names = items(value["tags"], f"{place}.tags")
    if not names:
        raise BadRequest(f"{place}.tags may not be empty")
    return Grouping("tag", tags=tuple(text(one, f"{place}.tags") for one in names))


def _by_time(value: Members, place: str) -> Grouping:
    mistakes = []
    count = integer(value["group_count"], f"{place}.group_count") if "group_count" in value else 0
    if count < 1:
        mistakes.append(f"{place}.groupCount must be greater than or equal to 1")
    if value.get("range_size") is None:
        mistakes.append(f"{place}.rangeSize may not be null")
    if mistakes:
        raise BadRequest(*mistakes)
    size = sampling(value["range_size"], place, at=f"{place}.range_size.")
    if size.value < 1:
        raise BadRequest(f"{place}.range_size.value must be greater than or equal to 1")
    if size.nominal_ms > LONGEST_MS:
        raise BadRequest(f"{place}.range_size: got {size.nominal_ms} ms, wanted at most {LONGEST_MS}")
    return Grouping("time", range_size=size, group_count=count)


def _by_value(value: Members, place: str) -> Grouping:
    size = integer(value["range_size"], f"{place}.range_size") if "range_size" in value else 0
    if size < 1:
        raise BadRequest(f"{place}.rangeSize must be greater than or equal to 1")
    return Grouping("value", size=size)


def _by_bins(value: Members, place: str) -> Grouping:
    if value.get("bins") is None:
        raise BadRequest(f"{place}.bins may not be null")
    bins = tuple(double(one, f"{place}.bins") for one in items(value["bins"], f"{place}.bins"))
    if not bins:
        raise BadRequest(f"{place}.bins may not be empty")
    return Grouping("bin", bins=bins)
