"""/api/query: requests → the query engine → JSON; and the list of queries."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cachetools import FIFOCache

from tsd.api.messages import answer, check_method, meant_method, warned
from tsd.errors import BadQuery, Refused, UnknownName
from tsd.lazy import LazyModule
from tsd.query.assemble import ANSWER_BYTES
from tsd.query.engine import QueryEngine
from tsd.query.limits import MemoryShare
from tsd.query.model import Query
from tsd.query.parse.body import read_body
from tsd.query.parse.times import MOST_DIGITS
from tsd.query.parse.uri import read_uri
from tsd.query.parse.validate import with_times
from tsd.query.registry import QueryRegistry, RunningQuery, cancelled_error
from tsd.query.result import Answer, SubAnswer, echo
from tsd.query.serialize import write_answer, written_answer
from tsd.query.workers import WorkerPool
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.server.http.security import NO_CORS, Cors, check_deletion
from tsd.tables.quirks import OPENTSDB, Quirks

if TYPE_CHECKING:
    from tsd.query.gexp import engine as gexp
else:  # few queries have `exp`
    gexp = LazyModule("tsd.query.gexp.engine")

KEPT_QUERIES, SHORT_QUERY = 1000, 300  # parsed queries that are kept, and the longest of them in bytes
_TIME = re.compile(r"[0-9]+|[0-9]+[a-z]{1,2}-ago|now")  # whose meaning depends on the present alone
LONG_QUERY = 2_000  # bytes of a body or target: a longer one is parsed in a thread
LARGE_POINTS = 5_000  # a larger answer is encoded in a thread, in chunks
GROUP_POINTS = 50  # encoding a group's head takes as long as this many points
# Of a request; any other header may carry a credential.
SHOWN_HEADERS = frozenset((
    "accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "connection", "content-encoding",
    "content-length", "content-type", "host", "transfer-encoding", "user-agent",
))  # fmt: skip
DISABLED = "Deleting data is not enabled (tsd.http.query.allow_delete=false)"


T = TypeVar("T")


class QueryRules(NamedTuple):
    """The configured defaults and limits of query requests."""

    quirks: Quirks = OPENTSDB  # the default of a request
    may_delete: bool = False
    cors: Cors = NO_CORS  # which pages may delete


class Queries(NamedTuple):
    """What all endpoints of queries use."""

    engine: QueryEngine
    registry: QueryRegistry
    rules: QueryRules
    now_ms: Callable[[], int]  # the wall clock


def routes(queries: Queries) -> dict[str, Endpoint]:
    """/api/query and /api/stats/query."""
    engine, registry, rules, now_ms = queries
    reader = QueryReader(rules, now_ms)

    async def query(request: Request) -> Response:
        is_short = _length(request) <= LONG_QUERY
        wanted = reader.read(request) if is_short else await engine.workers.run(partial(reader.read, request))

        arrays = "arrays" in request.params
        if not registry.may_refuse() and (written := engine.write(wanted, arrays=arrays)) is not None:
            registry.add_answered(wanted, request.peer.name, request.headers, (written.figures,), 200)
            return Response(200, written.text)

        async def run(running: RunningQuery) -> Response:
            return encode_answer(await engine.run(wanted, running=running, is_cut=True), engine, arrays=arrays)

        return await register(run, registry, wanted, request)

    async def listed(request: Request) -> Response:
        if check_method(request, "GET", "POST", "DELETE") == "DELETE":
            return cancel(registry, request)
        return await engine.workers.run(lambda: answer(list_queries(registry)))  # queries may have 2,000 parts each

    return {"api/query": query, "api/stats/query": listed}


async def parsed(request: Request, workers: WorkerPool, parse: Callable[[], T]) -> T:
    """Return what `parse` returns for a request; in a thread for a long one. Raise what `parse` raises."""
    return await workers.run(parse) if _length(request) > LONG_QUERY else parse()


async def register(
    run: Callable[[RunningQuery], Awaitable[Response]],
    registry: QueryRegistry,
    wanted: Query,
    request: Request,
    expressions: Hashable = None,
) -> Response:
    """Run a request, and keep its query in the registry until the response is sent. `expressions` are evaluated on the
    query's answer. Raise what `run` raises."""
    running = registry.begin(wanted, request.peer.name, request.headers, expressions)
    try:
        response = await run(running)
        running.status = response.status
        if not isinstance(response.body, bytes):
            assert isinstance(response.body, AnswerBody)
            response.body.keep_registered(running, registry)
            return response
    except Refused as error:
        running.status, running.error = error.status, error.message
        registry.end(running, error)
        if isinstance(error, UnknownName):  # OpenTSDB repeats the message
            raise BadQuery(error.message, details=error.message) from error
        raise
    except BaseException as error:
        registry.end(running, error)
        raise
    running.sent = True
    registry.end(running)
    return response


class QueryReader:
    """Reads the queries of requests. Those of short URIs are kept: clients repeat them, at other times too."""

    def __init__(self, rules: QueryRules, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._now_ms = now_ms
        self._kept: FIFOCache[str, Query | _AtTimes] = FIFOCache(KEPT_QUERIES)  # by what follows the question mark

    def read(self, request: Request) -> Query:
        """Return the query of a request, by its method. Raise Refused."""
        if request.method == "GET" and request.split is not None and not request.body:
            kept = self._kept.get(request.split.query) or self._keep(request, request.split.query)
            if isinstance(kept, Query):
                return kept
            if kept is not None:
                with suppress(BadQuery):  # the error names the times
                    return kept.at(self._now_ms())
        return read_query(request, self._rules, self._now_ms())

    def _keep(self, request: Request, text: str) -> "Query | _AtTimes | None":
        """Return what to keep of a request, None if its query depends on more than the time."""
        start, end = request.param("start"), request.param("end")
        if len(text) > SHORT_QUERY or not start or _TIME.fullmatch(start) is None or "exp" in request.params:
            return None
        if (end and _TIME.fullmatch(end) is None) or "method_override" in request.params:
            return None
        rest = tuple([(name, tuple(each)) for name, each in request.params.items() if name not in ("start", "end")])
        try:
            timed = _AtTimes(_read_rest(rest, self._rules.quirks), start, end or "")
            is_fixed = end and start.isdecimal() and end.isdecimal()
            kept: Query | _AtTimes = timed.at(0) if is_fixed else timed
        except BadQuery:
            return None
        self._kept[text] = kept
        return kept


class _AtTimes(NamedTuple):
    """A query without times, and its times as sent."""

    query: Query
    start: str
    end: str  # empty: now

    def at(self, now_ms: int) -> Query:
        """Return the query at a time of the wall clock. Raise BadQuery."""
        return with_times(self.query, self.start, self.end, now_ms)


def read_query(request: Request, rules: QueryRules, now_ms: int) -> Query:
    """Return the query of a request, by its method. Raise Refused."""
    method = check_method(request, "GET", "POST", "DELETE")
    if method == "DELETE":
        check_enabled(rules)
    if method == "POST":
        wanted = read_body(request.body, now_ms, params=request.params, quirks=rules.quirks)
        if wanted.delete:
            check_enabled(rules)  # OpenTSDB deletes without this check
            check_deletion(request, rules.cors)
        return wanted
    extra = gexp.read_extra(request.params, quirks=rules.quirks) if "exp" in request.params else ()
    wanted = read_uri(request.params, now_ms, quirks=rules.quirks, extra=extra)
    deletes = meant_method(request) == "DELETE"  # other overrides of a GET are ignored
    if deletes:
        check_enabled(rules)
    return replace(wanted, delete=True) if deletes else wanted


@lru_cache(KEPT_QUERIES)
def _read_rest(params: tuple[tuple[str, tuple[str, ...]], ...], quirks: Quirks) -> Query:
    """Return the query of a URI whose times do not count. Raise BadQuery."""
    return read_uri({"start": ["1"], "end": ["2"], **dict(params)}, 0, quirks=quirks)


def _length(request: Request) -> int:
    """Return the bytes that a request's query is parsed from."""
    return len(request.body) + (0 if request.split is None else len(request.split.query))


def check_enabled(rules: QueryRules) -> None:
    """Raise BadQuery unless queries may delete points."""
    if not rules.may_delete:
        raise BadQuery("Bad request", details=DISABLED)


def encode_answer(found: Answer, engine: QueryEngine, *, arrays: bool) -> Response:
    """Return the response of an answer, see `streamed`. A header has the warnings. Raise BadQuery for values that JSON
    cannot express."""
    size = sum([len(group.points.times) + GROUP_POINTS for sub in found.subs for group in sub.groups])
    headers = warned(found.warnings)
    if size <= LARGE_POINTS:
        return Response(200, written_answer(found, arrays=arrays), headers=headers)
    return streamed(lambda: write_answer(found, arrays=arrays), size * ANSWER_BYTES, engine, headers)


def streamed(
    write: Callable[[], Iterator[bytes]], size: int, engine: QueryEngine, headers: Sequence[tuple[str, str]] = ()
) -> Response:
    """Return the response of a large answer, which is encoded while it is sent. Until then its `size` in bytes counts
    against the engine's memory limit. Raise BadQuery if that is exceeded."""
    share = engine.memory.share()
    share.resize(size)
    return Response(200, AnswerBody(write, engine.workers, share), headers=headers)


class AnswerBody(AsyncIterator[bytes]):
    """A response body whose chunks are encoded in worker threads, one after the other.

    Until it is sent or closed, it reserves the memory of the answer, and its query stays in the registry, so that it
    can be cancelled.
    """

    def __init__(self, begin: Callable[[], Iterator[bytes]], workers: WorkerPool, share: MemoryShare) -> None:
        self._begin = begin
        self._workers = workers
        self._share = share
        self._chunks: Iterator[bytes] | None = None
        self._running: RunningQuery | None = None
        self._registry: QueryRegistry | None = None  # has the query until the body ends

    def keep_registered(self, running: RunningQuery, registry: QueryRegistry) -> None:
        """Keep the query registered until the body ends."""
        self._running = running
        self._registry = registry

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._workers.run(self._next)
            if self._running is not None and self._running.cancelled:
                raise cancelled_error()
        except BaseException as error:
            if isinstance(error, Refused) and self._running is not None:
                self._running.status, self._running.error = error.status, error.message
            self._end(error)
            raise
        if chunk is None:
            if self._running is not None:
                self._running.sent = True
            self._end(None)
            raise StopAsyncIteration
        return chunk

    def _next(self) -> bytes | None:
        if self._chunks is None:
            self._chunks = self._begin()
        return next(self._chunks, None)

    async def aclose(self) -> None:
        """End the body before all of it is sent; harmless after the last chunk."""
        self._end(GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        self._share.release()
        registry, self._registry = self._registry, None
        if registry is not None and self._running is not None:
            registry.end(self._running, error)


def cancel(registry: QueryRegistry, request: Request) -> Response:
    """Cancel a running query by the `id` in the list of queries. Raise Refused if there is none."""
    text = request.param("id") or ""
    if not text.isdecimal() or len(text) > MOST_DIGITS or not registry.cancel(int(text)):
        raise Refused(404, "No such query", f"No query with the id [{text}] is running")
    return Response(204, b"", None)


def list_queries(registry: QueryRegistry) -> Mapping[str, Sequence[Mapping[str, object]]]:
    """Return the running and the most recent queries in OpenTSDB's form, with an additional `id`."""
    return {
        "completed": [_show(one) for one in registry.ended],
        "running": [_show(one) for one in registry.running],
    }


def _show(one: RunningQuery) -> dict[str, object]:
    query = one.query
    shown: dict[str, object] = {
        "id": one.number,
        "query": {
            "start": query.start_text,
            "end": query.end_text or None,
            "timezone": query.zone,
            "queries": [echo(SubAnswer(sub, [])) for sub in query.queries],
            "msResolution": query.ms_resolution,
            "showTSUIDs": query.show_tsuids,
            "noAnnotations": query.no_annotations,
            "globalAnnotations": query.global_annotations,
            "delete": query.delete,
        },
        "exception": one.error or "null",
        "executed": 1,
        "user": None,
        "requestHeaders": {name: value for name, value in one.headers.items() if name.lower() in SHOWN_HEADERS},
        "endpoint": one.peer,
        "queryStartTimestamp": one.started_ms,
        "sentToClient": one.sent,
        "stats": dict(one.stats),
    }
    if one.ended_ms:
        answered = {"code": one.status, "reasonPhrase": HTTPStatus(one.status).phrase} if one.status else None
        shown |= {"httpResponse": answered, "queryCompletedTimestamp": one.ended_ms}
    return shown
