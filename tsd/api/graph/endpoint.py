"""`/q`: what a query finds as lines of text, or as a picture (query.md, wire.md §12.9)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import numpy as np
import trio

from tsd.api.messages import required, warned
from tsd.api.query import Rules
from tsd.doors import pages
from tsd.doors.exchange import HTML, Endpoint, Request, Response
from tsd.errors import BadQuery, Refused
from tsd.graphs.cache import Cache, Drawn
from tsd.graphs.picture import Picture, axis_options, curve, read_picture
from tsd.graphs.process import check_can_draw, drawn
from tsd.query.answer import in_range
from tsd.query.answers import Answer, Group
from tsd.query.engine import Engine
from tsd.query.model import Query
from tsd.query.numbers import number_texts
from tsd.query.running import Registry
from tsd.query.times import find_zone, read_time
from tsd.query.uri import read_uri

CACHE_BYTES = 32 << 20
AT_ONCE = 2  # processes that draw; others wait
HOUR_MS, DAY_S = 3_600_000, 86_400
MEDIA = {"png": "image/png", "svg": "image/svg+xml"}
_FORMS = ("json", "png", "svg", "ascii")
_NO_PART = frozenset({"json", "png", "ascii", "nocache", "ignore", "traceid"})  # of what a picture is


def routes(
    engine: Engine, registry: Registry, rules: Rules, now_ms: Callable[[], int], fonts: Path
) -> dict[str, Endpoint]:
    """`now_ms` is the wall clock, `fonts` a folder for the list of fonts of what draws."""
    return {"q": Graphs(engine, registry, rules, now_ms, fonts).answer}


class Graphs:
    """Answers /q, and keeps pictures for a while."""

    def __init__(
        self, engine: Engine, registry: Registry, rules: Rules, now_ms: Callable[[], int], fonts: Path
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._rules = rules
        self._now_ms = now_ms
        self._fonts = fonts
        self._cache = Cache(CACHE_BYTES)
        self._drawing = trio.CapacityLimiter(AT_ONCE)

    async def answer(self, request: Request) -> Response:
        """The endpoint."""
        if not any(map(request.has, _FORMS)):
            location = f"/#{request.split.query if request.split else ''}"
            return Response(200, pages.moved(location), HTML, [("Location", location)])
        query = read(request, self._rules, self._now_ms())
        age = max_age_s(request, query, self._now_ms())
        if request.has("ascii"):
            found = await self._run(query, request)
            return Response(200, b"".join(lines(found)), "text/plain", [*_caching(0, age), *warned(found.warnings)])
        return await self._picture(request, query, age)

    async def _picture(self, request: Request, query: Query, age: int) -> Response:
        picture = read_picture(request.params, query.start_ms, query.end_ms)
        seconds = axis_options(request.params.get("o", ()))
        check_can_draw()
        key = urlencode([(k, v) for k in sorted(request.params) if k not in _NO_PART for v in request.params[k]])
        async with self._drawing:
            hit = None if request.has("nocache") else self._cache.find(key, self._now_ms())
            made = hit or await self._made(request, query, picture, seconds, age)
        self._cache.keep(key, made)
        headers = _caching((self._now_ms() - made.made_ms) // 1000, made.max_age_s)
        if request.has("json"):
            told = made.told | ({"cachehit": "memory"} if hit else {})
            return Response(200, msgspec.json.encode(told), "application/json", headers)
        return Response(200, made.picture, MEDIA[picture.kind], headers)

    async def _made(self, request: Request, query: Query, picture: Picture, seconds: list[bool], age: int) -> Drawn:
        started = trio.current_time()
        answer = await self._run(query, request)
        picture = with_curves(picture, answer, seconds)
        file = await drawn(picture, self._fonts)
        told = {
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
        return Drawn(file, told, self._now_ms(), age)

    async def _run(self, query: Query, request: Request) -> Answer:
        with self._registry.entered(query, request.peer, request.headers) as running:
            try:
                found = await self._engine.run(query, running=running)
            except Refused as error:
                running.status, running.error = error.status, error.message
                if error.message.startswith("No such name for "):
                    raise Refused(500, error.message) from error
                raise
            running.status, running.sent = 200, True
            return found


def read(request: Request, rules: Rules, now_ms: int) -> Query:
    """The query of a request, start and end cut to seconds; raises Refused."""
    zone = request.param("tz") or ""
    read_time(required(request, "start"), now_ms, zone)
    if zone and find_zone(zone) is None:
        raise BadQuery(f"Invalid timezone name: {zone}")
    query = read_uri(request.params, now_ms, corrected=rules.corrected, local=find_zone(zone) if zone else None)
    return replace(query, start_ms=query.start_ms // 1000 * 1000, end_ms=query.end_ms // 1000 * 1000)


def max_age_s(request: Request, query: Query, now_ms: int) -> int:
    """How long an answer may be kept: not at all where its end is to come, a day where it is settled."""
    if query.end_ms > now_ms:
        return 0
    relative = any((request.param(name) or "now").lower().endswith(("ago", "now")) for name in ("start", "end"))
    if not relative and query.end_ms < now_ms - HOUR_MS:
        return DAY_S
    return (query.end_ms - query.start_ms) // 1000 // 1024


def lines(answer: Answer) -> Iterator[bytes]:
    """`metric seconds value k=v …` for every point that was read, within the times asked for or not."""
    for sub in answer.subs:
        if sub.sub.downsample and sub.sub.downsample.is_all:
            continue  # OpenTSDB has none
        for group in sub.groups:
            tags = "".join(f" {tagk}={tagv}" for tagk, tagv in group.tags.items()).encode()
            name = group.metric.encode()
            points = group.points.at(~np.isnan(group.points.doubles()))
            times = (points.times // 1000).tolist()
            texts = number_texts(points)
            yield b"".join(b"%s %d %s%s\n" % (name, *pair, tags) for pair in zip(times, texts, strict=True))


def with_curves(picture: Picture, answer: Answer, seconds: list[bool]) -> Picture:
    """The picture with what was found; `seconds` tells which sub queries go to the axis at the right."""
    right = dict(enumerate(seconds))
    curves = [
        curve(label(group), group.points.times, group.points.doubles(), picture, second=right.get(number, False))
        for number, sub in enumerate(answer.subs)
        for group in sub.groups
    ]
    return msgspec.structs.replace(picture, curves=curves)


def label(group: Group) -> str:
    """What a curve is called."""
    tags = ", ".join(f"{tagk}={tagv}" for tagk, tagv in group.tags.items())
    return f"{group.metric}{{{tags}}}" if tags else group.metric


def _caching(age: int, max_age: int) -> list[tuple[str, str]]:
    return [("Age", str(age)), ("Cache-Control", f"max-age={max_age}")]
