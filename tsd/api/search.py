"""`/api/search/lookup`: existing series by metric and tags (docs/compat/query.md §17, docs/compat/wire.md §12.5).

`/api/query/last`: the newest point of each series (docs/compat/query.md §17, docs/compat/wire.md §12.4).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from tsd.api.messages import (
    as_object,
    check_method,
    is_true,
    meant_method,
    number_in,
    object_of,
    required,
    text_in,
    tsuids_in,
    unparsable,
    warned,
    words_of_all,
)
from tsd.codec.names import show_uid
from tsd.codec.text import encode_name, show_double
from tsd.errors import BadLine, BadQuery, NoSuchName, Refused, TsdError
from tsd.query.parse.uri import CORRECTED_KEYS, quirks_in, quirks_in_body
from tsd.server.http.messages import Endpoint, Request, Response, StreamedBody
from tsd.tables.catalog import LastPoint, SelectedSeries, SeriesCatalog, SeriesName, SeriesSelector
from tsd.tables.quirks import OPENTSDB, Quirks

PLUGIN_TYPES = ("tsmeta", "tsmeta_summary", "tsuids", "uidmeta", "annotation")
DEFAULT_LIMIT = 25
ANY = ("", "*")

Stored = Callable[[bytes], Awaitable[None]]  # waits until the points received of a metric are stored; raises StoreDown


class BadSelector(TsdError):
    """A text that is not `metric{tagk=tagv,…}`."""


class LookupRequest(NamedTuple):
    """A lookup."""

    selector: SeriesSelector
    limit: int  # 0 or less: no limit
    has_metric: bool  # whether the answer repeats the metric
    has_tags: bool  # whether the answer repeats the tags


def parse_selector(text: str, *, strict: bool = False) -> SeriesSelector:
    """Return the series that a text selects. Raise BadSelector in OpenTSDB's words. With `strict` a tag needs a name
    and a value, and `*` is an ordinary name.

    >>> parse_selector("sys.cpu{host=*,=web}")
    SeriesSelector(metric='sys.cpu', tags=[('host', '*'), ('', 'web')], is_literal=False)
    """
    metric, brace, rest = text.partition("{")
    if not brace:
        if not metric:
            raise BadSelector("Missing metric and tags: " + text)
        return SeriesSelector(metric, [], strict)
    if not rest.endswith("}"):
        raise BadSelector(f"Missing '}}' at the end of: {text}")
    words = [word for word in rest[:-1].split(",") if word] if rest != "}" else []
    if not words and not metric:
        raise BadSelector(f"Missing metric and tags: {text}")
    return SeriesSelector(metric, [_tag(word, strict) for word in words], strict)


def _tag(word: str, strict: bool) -> tuple[str, str]:
    tagk, equals, tagv = word.partition("=")
    if not equals and not strict:
        raise BadSelector(f"When parsing tag '{word}': Missing tag pair")
    if "=" in tagv or (strict and not (tagk and tagv)):
        raise BadSelector(f"When parsing tag '{word}': invalid tag: {word}")
    if tagk in ANY and tagv in ANY and not strict:
        raise BadSelector(f"When parsing tag '{word}': Missing tag pair")
    return tagk, tagv


def lookup_routes(catalog: SeriesCatalog, stored: Stored) -> dict[str, Endpoint]:
    """`/api/search`."""

    async def search(request: Request) -> Response:
        kind = (*request.segments, "")[1].lower()
        method = meant_method(request)
        if method not in ("GET", "POST"):
            raise Refused(400, f"Unsupported method: {method}")
        if kind in PLUGIN_TYPES:
            raise Refused(400, "Searching is not enabled", "Searching has not been enabled on this TSD")
        if kind != "lookup":
            details = f"Unknown type: {kind}" if kind else "Type provided was null or empty"
            raise Refused(400, "Invalid search query type supplied", details)
        started = perf_counter()
        wanted = read_lookup(request)
        if wanted.selector.metric not in ANY:  # first: a layout may list series when their points are stored
            await stored(encode_name(wanted.selector.metric))
        try:
            selected = await catalog.select(wanted.selector)
        except NoSuchName as error:
            raise Refused(404, "Unable to resolve one or more UIDs", str(error)) from error
        limit = wanted.limit if wanted.limit > 0 else None
        return Response(200, _lookup_answer(wanted, _described(catalog, selected, limit), started))

    return {"api/search": search}


def read_lookup(request: Request) -> LookupRequest:
    """Return the lookup in a request's body, or without one in its parameters, whatever its method. Raise Refused.

    `useMeta` is ignored: the catalog chooses its source.
    """
    if request.body:
        try:
            members = object_of(request)
        except Refused as error:
            if error.status != 400:
                raise
            raise Refused(500, error.details or error.message) from error  # like OpenTSDB
        listed = members.get("tags") or []
        if not isinstance(listed, list):
            raise unparsable(f"tags: got {type(listed).__name__}, wanted an array")
        tags = [(text_in(tag, "key"), text_in(tag, "value")) for tag in listed if isinstance(tag, Mapping)]
        metric = text_in(members, "metric") or "*"
        return LookupRequest(SeriesSelector(metric, tags), number_in(members, "limit", DEFAULT_LIMIT), True, bool(tags))
    text = required(request, "m")
    try:
        limit = int(request.param("limit") or DEFAULT_LIMIT)
    except ValueError as exc:
        raise Refused(400, "Unable to convert 'limit' to a valid number") from exc
    try:
        selector = parse_selector(text)
    except BadSelector as error:
        raise Refused(400, "Unable to parse query", str(error)) from error
    return LookupRequest(selector, limit, bool(selector.metric), True)


async def _described(
    catalog: SeriesCatalog, selected: SelectedSeries, limit: int | None
) -> AsyncGenerator[list[SeriesName], None]:
    """Yield the names of selected series, page by page."""
    async with aclosing(selected.pages(limit)) as pages:
        async for page in pages:
            yield await catalog.describe(page)


async def _lookup_answer(
    wanted: LookupRequest, pages: AsyncGenerator[list[SeriesName], None], started: float
) -> AsyncIterator[bytes]:
    """Yield the JSON of the answer, in chunks: a metric may have a million series."""
    encode = msgspec.json.encode
    head: dict[str, object] = {"type": "LOOKUP"}
    if wanted.has_metric:
        head["metric"] = wanted.selector.metric
    if wanted.has_tags:
        head["tags"] = [{"key": key or "*", "value": value or "*"} for key, value in wanted.selector.tags]
    head["limit"] = wanted.limit
    count = 0
    empty: list[SeriesName] = []
    async with aclosing(pages):
        page: list[SeriesName] | None = await anext(pages, empty)  # errors occur before the first byte is sent
        head["time"] = round((perf_counter() - started) * 1000, 1)
        yield encode(head)[:-1] + b',"results":['
        while page is not None:
            if page:
                shown = [{"tsuid": show_uid(one.series), "metric": one.metric, "tags": one.tags} for one in page]
                yield (b"," if count else b"") + encode(shown)[1:-1]
                count += len(page)
            page = await anext(pages, None)
    yield b"]," + encode({"startIndex": 0, "totalResults": count})[1:]


HEAD_BYTES = 256 << 10  # built before the headers are sent; most answers are smaller
MAX_SUB_QUERIES = 1000  # of a request: each takes 10 us to parse
MAX_ROWS = 10_000_000  # series times hours that a request may read
MEMBERS = {"queries", "resolveNames", "backScan", *CORRECTED_KEYS}
SUB_MEMBERS = {"metric", "tags", "tsuids"}


class LastSubQuery(NamedTuple):
    """Series by their names, or by their TSUIDs."""

    selector: SeriesSelector | None = None
    tsuids: tuple[str, ...] = ()


class LastRequest(NamedTuple):
    """A request for newest points."""

    queries: list[LastSubQuery]
    resolve: bool = False
    back_h: int = 0  # 0: the configured range
    quirks: Quirks = OPENTSDB


class LastRules(NamedTuple):
    """How requests for newest points are answered."""

    exact_back_scans: bool  # a back scan reads one series, not all matches, like OpenTSDB without the meta table
    quirks: Quirks = OPENTSDB  # the default of requests


def last_routes(catalog: SeriesCatalog, stored: Stored, rules: LastRules) -> dict[str, Endpoint]:
    """`/api/query/last`."""

    async def last(request: Request) -> Response:
        quirks = quirks_in(request.params, default=rules.quirks)
        read = read_last_body if check_method(request, "GET", "POST") == "POST" else read_last_url
        wanted = read(request, quirks=quirks)
        if not wanted.queries:
            raise Refused(400, "Missing sub queries")
        if wanted.back_h < 0:
            raise Refused(400, "Backscan must be zero or a positive number")
        answer = LastAnswer(catalog, stored, rules, wanted)
        chunks = answer.chunks()
        first = b""
        while len(first) < HEAD_BYTES and (chunk := await anext(chunks, b"")):
            first += chunk
        # The header has the warnings of the series read so far. The log has all warnings.
        return Response(200, StreamedBody(chunks, first=[first]), headers=warned(answer.warnings))

    return {"api/query/last": last}


def read_last_url(request: Request, *, quirks: Quirks = OPENTSDB) -> LastRequest:
    """Return the sub queries of a GET. Raise Refused."""
    queries = []
    for text in request.params.get("timeseries", ()):
        try:
            queries.append(LastSubQuery(parse_selector(text, strict=True)))
        except BadSelector as error:
            raise Refused(500 if "Missing '}'" in str(error) else 400, str(error)) from error
    if tsuids := words_of_all(request.params.get("tsuids", ())):
        queries.append(LastSubQuery(tsuids=tuple(tsuids)))
    try:
        back_h = int(request.param("back_scan") or 0)
    except ValueError as exc:
        raise Refused(400, "Unable to parse back_scan parameter") from exc
    return LastRequest(queries, request.has("resolve"), back_h, quirks)


def read_last_body(request: Request, *, quirks: Quirks = OPENTSDB) -> LastRequest:
    """Return the sub queries of a POST; the body may choose other `quirks`. Raise Refused."""
    members = object_of(request)
    _check_members(members, MEMBERS)
    listed = members.get("queries") or []
    if not isinstance(listed, list):
        raise unparsable(f"queries: got {type(listed).__name__}, wanted an array")
    if len(listed) > MAX_SUB_QUERIES:
        raise Refused(413, f"got {len(listed)} queries, wanted at most {MAX_SUB_QUERIES}")
    queries = [_last_sub_query(as_object(one)) for one in listed]
    quirks = quirks_in_body(members, is_true, quirks)
    return LastRequest(queries, is_true(members.get("resolveNames")), number_in(members, "backScan"), quirks)


def _last_sub_query(members: Mapping[str, Any]) -> LastSubQuery:
    _check_members(members, SUB_MEMBERS)
    if tsuids := tsuids_in(members):
        return LastSubQuery(tsuids=tuple(tsuids))
    tags = as_object(members.get("tags") or {})
    metric = text_in(members, "metric")
    if not metric:
        raise Refused(400, "Missing metric or tsuids")
    return LastSubQuery(SeriesSelector(metric, [(tagk, text_in(tags, tagk)) for tagk in tags], is_literal=True))


def _check_members(members: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(members.keys() - known):
        raise unparsable(f'Unrecognized field "{unknown[0]}", not one of {", ".join(sorted(known))}')


class LastAnswer:
    """The answer to one request for newest points."""

    def __init__(self, catalog: SeriesCatalog, stored: Stored, rules: LastRules, wanted: LastRequest) -> None:
        self._catalog = catalog
        self._stored = stored
        self._rules = rules
        self._wanted = wanted
        self.warnings: list[str] = []  # grows while chunks are generated

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Return the JSON, in chunks. Raise BadQuery, Refused, StoreDown, StoreError."""
        await self._wait_stored()
        selections = [await self._select(query) for query in self._wanted.queries]
        count = 0
        rows = 0
        seen: set[bytes] = set()
        for selected in selections:
            async with aclosing(_pages(selected)) as pages:
                async for page in pages:
                    rows += len(page) * max(self._wanted.back_h, 1)
                    if rows > MAX_ROWS:
                        raise Refused(413, f"Too many series and hours: more than {MAX_ROWS} rows")
                    new = [one for one in page if one not in seen] if seen else page
                    if len(self._wanted.queries) > 1:
                        seen.update(new)
                    shown = await self._show(new)
                    if shown:
                        yield (b"," if count else b"[") + msgspec.json.encode(shown)[1:-1]
                        count += len(shown)
        yield b"]" if count else b"[]"

    async def _select(self, query: LastSubQuery) -> list[bytes] | SelectedSeries:
        """Return the series of a sub query. Raise BadQuery."""
        if query.selector is None:
            return [self._parse(text) for text in query.tsuids]
        try:
            selected = await self._catalog.select(query.selector)
        except NoSuchName as error:
            raise BadQuery(str(error), details=str(error)) from error
        is_exact = self._rules.exact_back_scans and self._wanted.quirks.scans_single_series
        if self._wanted.back_h and is_exact and query.selector.tags:
            series = selected.exact()
            return [] if series is None else [series]
        return selected

    def _parse(self, text: str) -> bytes:
        try:
            return self._catalog.parse_series(text)
        except BadLine as error:
            raise BadQuery(str(error).split(":")[0]) from error

    async def _wait_stored(self) -> None:
        """Wait until all points received before are stored: a layout may list series only then. Raise StoreDown."""
        queries = self._wanted.queries
        metrics = {encode_name(query.selector.metric) for query in queries if query.selector is not None}
        metrics |= await self._catalog.metrics_of(self._parse(text) for query in queries for text in query.tsuids)
        for metric in metrics:
            await self._stored(metric)

    async def _show(self, series: Sequence[bytes]) -> list[dict[str, object]]:
        """Return the newest points of series. Series without a point are omitted."""
        found = await self._catalog.last_points(series, self._wanted.back_h or None)
        self.warnings += found.warnings
        points = [(one, point) for one, point in zip(series, found.points, strict=True) if point is not None]
        if not self._wanted.resolve:
            return [
                {"timestamp": point.time_ms, "value": _text(point), "tsuid": show_uid(one)} for one, point in points
            ]
        names = {name.series: name for name in await self._catalog.describe([one for one, _ in points])}
        shown = []
        for one, point in points:
            if name := names.get(one):
                member = {"metric": name.metric, "timestamp": point.time_ms, "value": _text(point), "tags": name.tags}
                shown.append({**member, "tsuid": show_uid(one)})
        return shown


async def _pages(selected: list[bytes] | SelectedSeries) -> AsyncGenerator[list[bytes], None]:
    """Yield the series of a sub query, page by page."""
    if isinstance(selected, list):
        yield selected
        return
    async with aclosing(selected.pages()) as pages:
        async for page in pages:
            yield page


def _text(point: LastPoint) -> str:
    """Return a value as a text.

    >>> _text(LastPoint(0, 42)), _text(LastPoint(0, 4.5))
    ('42', '4.5')
    """
    return str(point.number) if isinstance(point.number, int) else show_double(point.number).strip('"')
