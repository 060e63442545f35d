"""Parameters of requests for entities, and the choice of series and entities."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from tsd.api.messages import is_true, words_of_all
from tsd.api.query import AnswerBody
from tsd.codec.dates import BadDate, duration_ms, parse_date
from tsd.codec.points import Bool
from tsd.codec.text import encode_name
from tsd.errors import BadLine, Refused
from tsd.query.engine import QueryEngine
from tsd.query.limits import MemoryShare
from tsd.server.http.messages import Request, Response
from tsd.store.versions import VersionColumns, take
from tsd.tables.entities import POINTS_END_MS
from tsd.tables.entity_decode import series_of

MOST_VERSIONS = 100_000  # points of one series in an answer
MOST_ENTITIES = 10_000  # in an answer
DEFAULT_ENTITIES = 1000
DEFAULT_MANY = 100  # entities in an answer with their series
MOST_PATTERNS = 100
DEFAULT_START = "1d-ago"
LARGE_POINTS = 20_000  # of a larger answer, parts are sent while others are encoded
POINT_BYTES = 250  # of a point while its answer is made: a cell, numbers and JSON
PLACE_POINTS = 20  # of a query that take as long as to encode the names of a series, or to match them with a pattern
POINTS_PER_QUERY_POINT, BYTES_PER_QUERY_POINT = 4, 50  # that are encoded as fast as a point of a query is merged


class RangeRequest(NamedTuple):
    """A request for one entity."""

    start_ms: int
    end_ms: int | None  # exclusive; None: without end
    metrics: Sequence[str]  # patterns; empty: all
    versions: int | None  # points of each series, the newest; None: all
    limit: int | None  # series


class ManyRequest(NamedTuple):
    """A request for the series of many entities."""

    range: RangeRequest
    prefix: bytes
    first: bytes  # name at which the page starts
    limit: int  # entities


class InventoryRequest(NamedTuple):
    """A request for the newest values of entities."""

    prefix: bytes
    first: bytes  # name at which the page starts
    metrics: Sequence[str]  # patterns; empty: all
    metric: bytes | None  # by whose value the entities are ordered; None: by names
    is_descending: bool
    oldest_ms: int | None  # values before it are old
    stale: bool  # wanted are entities that have old values only
    limit: int


def read_range(request: Request, now_ms: int) -> RangeRequest:
    """Return the request for one entity. Raise Refused."""
    versions = _count(request, "versions", MOST_VERSIONS)
    start = _time(request, "start", now_ms)
    if start is None:
        start = parse_date(DEFAULT_START, now_ms) if versions is None else 0
    end = _time(request, "end", now_ms)
    if start >= POINTS_END_MS:
        raise Refused(400, "Invalid start", f"got {request.param('start')!r}, wanted a time before {POINTS_END_MS} ms")
    if end is not None and end <= start:
        raise Refused(400, "Invalid range", f"got start={start} and end={end} (ms), wanted an end after the start")
    return RangeRequest(start, end, _patterns(request), versions, _count(request, "limit", None))


def read_many(request: Request, now_ms: int) -> ManyRequest:
    """Return the request for the series of many entities. Raise Refused."""
    for name in ("order", "max_age", "stale", "versions"):
        if request.has(name):
            raise Refused(400, f"Invalid parameter {name}", f"got {name} and start, wanted one of them")
    prefix = _encoded(request, "prefix")
    limit = _count(request, "limit", MOST_ENTITIES) or DEFAULT_MANY
    return ManyRequest(read_range(request, now_ms), prefix, max(prefix, _encoded(request, "from")), limit)


def read_inventory(request: Request, now_ms: int) -> InventoryRequest:
    """Return the request for newest values. Raise Refused."""
    if request.has("end"):
        raise Refused(400, "Missing parameter start", "got end without start, wanted both, or none for newest values")
    prefix = _encoded(request, "prefix")
    metric, descending = _order(request)
    if metric is not None and request.has("from"):
        raise Refused(400, "Invalid parameter from", "got from and an order by values, wanted the order name")
    age, stale = request.param("max_age"), request.has("stale") and is_true(request.param("stale") or True)
    if stale and not age:
        raise Refused(400, "Missing parameter max_age", "got stale without max_age, wanted e.g. max_age=10m")
    try:
        oldest = now_ms - duration_ms(age) if age else None
    except (BadDate, ValueError) as error:
        raise Refused(400, "Invalid max_age", f"got {age[:100] if age else ''!r}, wanted e.g. 10m") from error
    return InventoryRequest(
        prefix=prefix,
        first=max(prefix, _encoded(request, "from")),
        metrics=_patterns(request),
        metric=metric,
        is_descending=descending,
        oldest_ms=oldest,
        stale=stale,
        limit=_count(request, "limit", MOST_ENTITIES) or DEFAULT_ENTITIES,
    )


def _time(request: Request, name: str, now_ms: int) -> int | None:
    text = request.param(name)
    if not text:
        return None
    try:
        return max(0, parse_date(text[:100], now_ms, UTC))
    except (BadDate, ValueError, OverflowError) as error:
        raise Refused(400, f"Invalid {name}", str(error)) from error


def _count(request: Request, name: str, most: int | None) -> int | None:
    text = request.param(name)
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
    if number < 1 or (most is not None and number > most):
        wanted = "a positive integer" if most is None else f"an integer from 1 to {most}"
        raise Refused(400, f"Invalid {name}", f"got {text[:100]!r}, wanted {wanted}")
    return number


def _patterns(request: Request) -> list[str]:
    patterns = words_of_all(request.params.get("metrics", ()))
    if len(patterns) > MOST_PATTERNS:
        raise Refused(400, "Too many metrics", f"got {len(patterns)} patterns, wanted {MOST_PATTERNS} at most")
    return patterns


def _order(request: Request) -> tuple[bytes | None, bool]:
    """Return the metric of an order by values (None: by names), and whether it is descending."""
    text = request.param("order") or "name"
    if text == "name":
        return None, False
    metric, _, direction = text.rpartition(":")
    if not metric or direction not in ("asc", "desc"):
        raise Refused(400, "Invalid order", f"got {text[:100]!r}, wanted name, METRIC:asc or METRIC:desc")
    return _bytes("order", metric), direction == "desc"


def _encoded(request: Request, name: str) -> bytes:
    return _bytes(name, request.param(name) or "")


def _bytes(name: str, text: str) -> bytes:
    try:
        return encode_name(text)
    except BadLine as error:
        raise Refused(400, f"Invalid {name}", f"got {text[:100]!r}, wanted characters up to U+00FF") from error


def matching(places: Sequence[tuple[bytes, bytes]], patterns: Sequence[str]) -> Bool:
    """Return which places are of a metric that a pattern matches; without patterns all."""
    if not patterns:
        return np.ones(len(places), np.bool_)
    verdicts = {column: _matches(series_of(column).metric, patterns) for column in {column for _, column in places}}
    return np.array([verdicts[column] for _, column in places], np.bool_)


def _matches(metric: bytes, patterns: Sequence[str]) -> bool:
    name = metric.decode("latin-1")
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def select_series(columns: VersionColumns, wanted: RangeRequest) -> tuple[VersionColumns, int]:
    """Return the wanted series, and how many `limit` left out. Raise Refused for a series with too many points."""
    found = np.flatnonzero(matching(columns.places, wanted.metrics))
    chosen = found[: wanted.limit]
    long = np.flatnonzero(np.diff(columns.bounds)[chosen] > MOST_VERSIONS)
    if len(long):
        name = series_of(columns.places[chosen[long[0]]][1]).metric.decode("latin-1")
        raise Refused(
            413,
            "Too many points",
            f"got more than {MOST_VERSIONS} points of a series of {name}, wanted a shorter range or versions=N",
        )
    kept = columns if len(chosen) == len(columns.places) else take(columns, chosen)
    return kept, len(found) - len(chosen)


def encoding_points(columns: VersionColumns, wanted: RangeRequest) -> int:
    """Return how many points of a query take as long as the choice of series of an entity and their encoding."""
    names = len(columns.places) * (1 + len(wanted.metrics)) * PLACE_POINTS
    values = len(columns.values) // BYTES_PER_QUERY_POINT
    return names + values + len(columns.times_ms) // POINTS_PER_QUERY_POINT


async def respond(
    prepare: Callable[[], Callable[[], Iterator[bytes]]],
    count: int,
    engine: QueryEngine,
    share: MemoryShare,
    *,
    encoding: int | None = None,
) -> Response:
    """Return the response with `count` points. `prepare` runs in a thread, as the encoding that it returns, unless both
    take as long as `encoding` points of a query, and these are few. A large answer is encoded while it is sent.
    Releases `share` at its end."""
    if count > LARGE_POINTS:
        return Response(200, AnswerBody(await engine.workers.run(prepare), engine.workers, share))

    def encode() -> bytes:
        return b"".join(prepare()())

    body = await (engine.workers.run(encode) if encoding is None else engine.workers.run_sized(encoding, encode))
    share.release()
    return Response(200, body)
