"""`/api/search/lookup`: which series there are, by metric and tags (query.md §17, wire.md §12.5). Grafana's variables
and its filters live on it."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from tsd.api.messages import is_true, meant_method, number_in, object_of, required, text_in, unparsable
from tsd.codec.rowkey import split_pairs
from tsd.codec.uid import Kind, Widths
from tsd.codec.words import encode_name
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import NoSuchName, Refused
from tsd.metadata.known import KnownSeries
from tsd.metadata.selection import BadSelection, Selection, Wanted, parse_selection, resolve
from tsd.uids import Uids

PLUGIN_TYPES = ("tsmeta", "tsmeta_summary", "tsuids", "uidmeta", "annotation")
FEW = 25  # results, unless more are asked for


class Asked(NamedTuple):
    """A lookup."""

    selection: Selection
    limit: int  # 0 or less: none
    has_metric: bool  # these two: whether the answer repeats it
    has_tags: bool


def routes(
    known: KnownSeries, uids: Uids, widths: Widths, written: Callable[[bytes], Awaitable[object]]
) -> dict[str, Endpoint]:
    """The endpoint. `written` returns once what came before of a metric (its name) is stored."""

    async def search(request: Request) -> Response:
        kind = (*request.segments, "")[1].lower()
        method = meant_method(request)
        if method not in ("GET", "POST"):
            raise Refused(400, f"Unsupported method: {method}")
        if kind in PLUGIN_TYPES:
            raise Refused(400, "Searching is not enabled", "Searching has not been enabled on this TSD")
        if kind != "lookup":
            told = f"Unknown type: {kind}" if kind else "Type provided was null or empty"
            raise Refused(400, "Invalid search query type supplied", told)
        began = perf_counter()
        asked = read_lookup(request)
        try:
            wanted = await resolve(uids, asked.selection)
        except NoSuchName as error:
            raise Refused(404, "Unable to resolve one or more UIDs", str(error)) from error
        if wanted.metric is not None:
            await written(encode_name(asked.selection.metric))
        names = SeriesNames(uids, widths)
        return Response(
            200, _answer(asked, _results(known, names, wanted, asked.limit if asked.limit > 0 else None), began)
        )

    return {"api/search": search}


def read_lookup(request: Request) -> Asked:
    """What a request looks for: in its body, or without one in its parameters, whatever its method. Raises Refused."""
    if request.body:
        try:
            members = object_of(request)
        except Refused as error:  # as OpenTSDB
            raise Refused(500, error.details or error.message) from error
        listed = members.get("tags") or []
        if not isinstance(listed, list):
            raise unparsable(f"tags: got {type(listed).__name__}, wanted an array")
        tags = [(text_in(tag, "key"), text_in(tag, "value")) for tag in listed if isinstance(tag, Mapping)]
        is_true(members.get("useMeta"))  # where series are looked for is the daemon's business
        metric = text_in(members, "metric") or "*"
        return Asked(Selection(metric, tags), number_in(members, "limit", FEW), True, bool(tags))
    text = required(request, "m")
    try:
        limit = int(request.param("limit") or FEW)
    except ValueError as exc:
        raise Refused(400, "Unable to convert 'limit' to a valid number") from exc
    try:
        selection = parse_selection(text)
    except BadSelection as error:
        raise Refused(400, "Unable to parse query", str(error)) from error
    return Asked(selection, limit, bool(selection.metric), True)


async def _results(
    known: KnownSeries, names: "SeriesNames", wanted: Wanted, limit: int | None
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The series that are wanted, as they are shown, in parts."""
    async with aclosing(known.select(wanted, limit)) as parts:
        async for part in parts:
            yield await names.show(part)


async def _answer(
    asked: Asked, results: AsyncGenerator[list[dict[str, Any]], None], began: float
) -> AsyncIterator[bytes]:
    """The answer's JSON, in parts: a metric may have a million series."""
    encode = msgspec.json.encode
    head: dict[str, Any] = {"type": "LOOKUP"}
    if asked.has_metric:
        head["metric"] = asked.selection.metric
    if asked.has_tags:
        head["tags"] = [{"key": key or "*", "value": value or "*"} for key, value in asked.selection.tags]
    head["limit"] = asked.limit
    count = 0
    nothing: list[dict[str, Any]] = []
    async with aclosing(results):
        part: list[dict[str, Any]] | None = await anext(results, nothing)  # what fails does so before anything is sent
        head["time"] = round((perf_counter() - began) * 1000, 1)
        yield encode(head)[:-1] + b',"results":['
        while part is not None:
            if part:
                yield (b"," if count else b"") + encode(part)[1:-1]
                count += len(part)
            part = await anext(results, None)
    yield b"]," + encode({"startIndex": 0, "totalResults": count})[1:]


class SeriesNames:
    """Series by UIDs → their names; each name is looked up once."""

    def __init__(self, uids: Uids, widths: Widths) -> None:
        self._uids = uids
        self._widths = widths
        self._names: dict[Kind, dict[bytes, str]] = {kind: {} for kind in Kind}

    async def learn(self, kind: Kind, wanted: Iterable[bytes]) -> dict[bytes, str]:
        """The names of a kind's UIDs by now. One that has none is not among them."""
        known = self._names[kind]
        missing = {uid for uid in wanted if uid not in known}
        if missing:
            for uid, name in (await self._uids.names(kind, missing)).items():
                if isinstance(name, bytes):
                    known[uid] = name.decode("latin-1")
        return known

    async def show(self, series: Sequence[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
        """`tsuid`, `metric` and `tags` of series (metric UID, tag pairs); those that have names no more are left
        out."""
        split = [split_pairs(self._widths, pairs) for _, pairs in series]
        metrics = await self.learn(Kind.METRIC, {metric for metric, _ in series})
        tagks = await self.learn(Kind.TAGK, {tagk for pairs in split for tagk, _ in pairs})
        tagvs = await self.learn(Kind.TAGV, {tagv for pairs in split for _, tagv in pairs})
        shown = []
        for (metric, joined), pairs in zip(series, split, strict=True):
            try:
                tags = {tagks[tagk]: tagvs[tagv] for tagk, tagv in pairs}
                shown.append({"tsuid": (metric + joined).hex().upper(), "metric": metrics[metric], "tags": tags})
            except KeyError:
                continue
        return shown
