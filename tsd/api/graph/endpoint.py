"""`/q`: the points of a query as lines of text or as a graph (docs/compat/query.md, docs/compat/wire.md §12.9)."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import numpy as np
import trio

from tsd.api.graph.picture import Picture, axis_options, curve, read_picture
from tsd.api.graph.process import DrawnPicture, PictureCache, check_can_draw, draw_picture
from tsd.api.messages import required, warned
from tsd.api.query import Queries, QueryRules, parsed
from tsd.codec.dates import find_zone
from tsd.codec.putline import HOUR_MS
from tsd.errors import BadQuery, Refused, UnknownName
from tsd.query.model import Query
from tsd.query.parse.times import read_time
from tsd.query.parse.uri import read_uri
from tsd.query.result import Answer, Group
from tsd.query.serialize import in_range, number_texts
from tsd.server.http import pages
from tsd.server.http.messages import HTML, Endpoint, Request, Response

CACHE_BYTES = 32 << 20
MAX_PROCESSES = 2  # concurrent drawing processes
DAY_S = 86_400
MEDIA = {"png": "image/png", "svg": "image/svg+xml"}
_FORMS = ("json", "png", "svg", "ascii")
_NOT_IN_KEY = frozenset(
    {"json", "png", "ascii", "nocache", "ignore", "traceid"}
)  # parameters that do not change the picture


def routes(queries: Queries, fonts: Path) -> dict[str, Endpoint]:
    """/q. `fonts` is a folder for matplotlib's font list."""
    return {"q": GraphEndpoint(queries, fonts).answer}


class GraphEndpoint:
    """/q, with a cache of pictures."""

    def __init__(self, queries: Queries, fonts: Path) -> None:
        self._engine, self._registry, self._rules, self._now_ms = queries
        self._fonts = fonts
        self._cache = PictureCache(CACHE_BYTES)
        self._drawing = trio.CapacityLimiter(MAX_PROCESSES)

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raise Refused, StoreError."""
        if not any(map(request.has, _FORMS)):
            location = f"/#{request.split.query if request.split else ''}"
            # Browsers follow the page and not the header, which is OpenTSDB's: a proxy may serve both below a path.
            return Response(200, pages.moved(f".{location}"), HTML, [("Location", location)])
        parse = partial(parse_query, request, self._rules, self._now_ms())
        query = await parsed(request, self._engine.workers, parse)
        age = max_age_s(request, query, self._now_ms())
        if request.has("ascii"):
            found = await self._run(query, request)
            return Response(
                200, b"".join(text_lines(found)), "text/plain", [*_caching(0, age), *warned(found.warnings)]
            )
        return await self._picture(request, query, age)

    async def _picture(self, request: Request, query: Query, age: int) -> Response:
        picture = read_picture(request.params, query.start_ms, query.end_ms)
        second_axis = axis_options(request.params.get("o", ()))
        check_can_draw()
        key = urlencode([(k, v) for k in sorted(request.params) if k not in _NOT_IN_KEY for v in request.params[k]])
        async with self._drawing:
            hit = None if request.has("nocache") else self._cache.get(key, self._now_ms())
            drawn = hit or await self._draw(request, query, picture, second_axis, age)
        self._cache.put(key, drawn)
        headers = _caching((self._now_ms() - drawn.drawn_ms) // 1000, drawn.max_age_s)
        if request.has("json"):
            summary = drawn.summary | ({"cachehit": "memory"} if hit else {})
            return Response(200, msgspec.json.encode(summary), "application/json", headers)
        return Response(200, drawn.file, MEDIA[picture.kind], headers)

    async def _draw(
        self, request: Request, query: Query, picture: Picture, second_axis: list[bool], age: int
    ) -> DrawnPicture:
        started = trio.current_time()
        answer = await self._run(query, request)
        picture = with_curves(picture, answer, second_axis)
        file = await draw_picture(picture, self._fonts)
        summary = {
            "plotted": sum(
                len(in_range(group.points, query, sub.sub.downsample).times)
                for sub in answer.subs
                for group in sub.groups
            ),
            "points": sum(sub.stats.get("dpsPreFilter", 0) for sub in answer.subs),
            "etags": [
                list(dict.fromkeys(tag for group in sub.groups for tag in group.aggregate_tags)) for sub in answer.subs
            ],
            "timing": int((trio.current_time() - started) * 1000),
        }
        return DrawnPicture(file, summary, self._now_ms(), age)

    async def _run(self, query: Query, request: Request) -> Answer:
        with self._registry.register(query, request.peer.name, request.headers) as running:
            try:
                found = await self._engine.run(query, running=running)
            except Refused as error:
                running.status, running.error = error.status, error.message
                if isinstance(error, UnknownName):
                    raise Refused(500, error.message) from error
                raise
            running.status, running.sent = 200, True
            return found


def parse_query(request: Request, rules: QueryRules, now_ms: int) -> Query:
    """Return the query of a request, with start and end truncated to seconds. Raise Refused."""
    zone = request.param("tz") or ""
    read_time(required(request, "start"), now_ms, zone)
    if zone and find_zone(zone) is None:
        raise BadQuery(f"Invalid timezone name: {zone}")
    try:
        query = read_uri(request.params, now_ms, quirks=rules.quirks, local=find_zone(zone) if zone else None)
    except BadQuery as error:
        if error.status != 500:
            raise
        raise BadQuery(error.message, details=error.details) from error  # OpenTSDB's API alone answers 500
    return replace(query, start_ms=query.start_ms // 1000 * 1000, end_ms=query.end_ms // 1000 * 1000)


def max_age_s(request: Request, query: Query, now_ms: int) -> int:
    """Return how long an answer may be cached: a day for settled ranges, not at all if the end is in the future."""
    if query.end_ms > now_ms:
        return 0
    relative = any((request.param(name) or "now").lower().endswith(("ago", "now")) for name in ("start", "end"))
    if not relative and query.end_ms < now_ms - HOUR_MS:
        return DAY_S
    return (query.end_ms - query.start_ms) // 1000 // 1024


def text_lines(answer: Answer) -> Iterator[bytes]:
    """Yield a line `metric seconds value k=v …` for every point read, also outside the requested range."""
    for sub in answer.subs:
        if sub.sub.downsample and sub.sub.downsample.is_all:
            continue  # OpenTSDB returns no lines for it
        for group in sub.groups:
            tags = "".join(f" {tagk}={tagv}" for tagk, tagv in group.tags.items()).encode()
            name = group.metric.encode()
            points = group.points.at(~np.isnan(group.points.doubles()))
            times = (points.times // 1000).tolist()
            texts = number_texts(points)
            yield b"".join(b"%s %d %s%s\n" % (name, *pair, tags) for pair in zip(times, texts, strict=True))


def with_curves(picture: Picture, answer: Answer, second_axis: list[bool]) -> Picture:
    """Return the picture with the curves of an answer. `second_axis` says for each sub query whether it uses the right
    axis."""
    right = dict(enumerate(second_axis))
    curves = [
        curve(label(group), group.points.times, group.points.doubles(), picture, second=right.get(number, False))
        for number, sub in enumerate(answer.subs)
        for group in sub.groups
    ]
    return msgspec.structs.replace(picture, curves=curves)


def label(group: Group) -> str:
    """Return the label of a curve."""
    tags = ", ".join(f"{tagk}={tagv}" for tagk, tagv in group.tags.items())
    return f"{group.metric}{{{tags}}}" if tags else group.metric


def _caching(age: int, max_age: int) -> list[tuple[str, str]]:
    return [("Age", str(age)), ("Cache-Control", f"max-age={max_age}")]
