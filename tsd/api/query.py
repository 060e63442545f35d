"""/api/query: what was asked → the engine → its answer as JSON; and the list of the queries that run."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from tsd.api.messages import answer, check_method, meant_method, warned
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.doors.parts import MadeOf, ended
from tsd.doors.permits import check_deletion
from tsd.errors import BadQuery, Refused
from tsd.query.answer import write_answer
from tsd.query.answers import Answer, SubAnswer
from tsd.query.body import read_body
from tsd.query.durations import MOST_DIGITS
from tsd.query.echo import echo
from tsd.query.engine import ANSWER_BYTES, Engine
from tsd.query.gexp.engine import read_extra
from tsd.query.limits import Share
from tsd.query.model import Query
from tsd.query.running import Registry, Running, was_cancelled
from tsd.query.threads import Threads
from tsd.query.uri import read_uri

LARGE = 5_000  # points: an answer of more is written in a thread, part by part
GROUP_POINTS = 50  # that the head of a group takes the time of
PRIVATE = ("auth", "cookie", "token", "key", "secret", "pass")  # in names of headers that nobody else is to read
DISABLED = "Deleting data is not enabled (tsd.http.query.allow_delete=false)"


class Rules(NamedTuple):
    """What requests may ask for."""

    corrected: bool = False  # the default of a request
    may_delete: bool = False


def routes(engine: Engine, registry: Registry, rules: Rules, now_ms: Callable[[], int]) -> dict[str, Endpoint]:
    """`now_ms` is the wall clock."""

    async def query(request: Request) -> Response:
        wanted = read_query(request, rules, now_ms())

        async def answered(running: Running) -> Response:
            found = await engine.run(wanted, running=running)
            return written(found, engine, arrays=request.has("arrays"))

        return await until_sent(answered, registry, wanted, request)

    async def listed(request: Request) -> Response:
        if check_method(request, "GET", "POST", "DELETE") == "DELETE":
            return cancel(registry, request)
        return answer(queries(registry))

    return {"api/query": query, "api/stats/query": listed}


async def until_sent(
    answered: Callable[[Running], Awaitable[Response]],
    registry: Registry,
    wanted: Query,
    request: Request,
    made_of_it: Hashable = None,
) -> Response:
    """What `answered` makes of a request, listed as its query until that is sent; `made_of_it` is the text of what the
    query's answer is put to. Raises what `answered` does."""
    with ExitStack() as listing:
        running = listing.enter_context(registry.entered(wanted, request.peer, request.headers, made_of_it))
        try:
            response = await answered(running)
        except Refused as error:
            running.status, running.error = error.status, error.message
            raise told_twice(error) from error
        running.status = response.status
        if isinstance(response.body, bytes):
            running.sent = True
            return response
        parts = _listed(response.body, running, listing.pop_all())
        return replace(response, body=MadeOf(parts, response.body))


def read_query(request: Request, rules: Rules, now_ms: int) -> Query:
    """The query of a request, by its method; raises Refused."""
    method = check_method(request, "GET", "POST", "DELETE")
    if method == "DELETE":
        _check_enabled(rules)
    if method == "POST":
        wanted = read_body(request.body, now_ms, params=request.params, corrected=rules.corrected)
        if wanted.delete:
            _check_enabled(rules)  # OpenTSDB deletes all the same
            check_deletion(request)
        return wanted
    extra = read_extra(request.params, corrected=rules.corrected)
    wanted = read_uri(request.params, now_ms, corrected=rules.corrected, extra=extra)
    deletes = meant_method(request) == "DELETE"  # of what overrides a GET the only one that counts here
    if deletes:
        _check_enabled(rules)
    return replace(wanted, delete=True) if deletes else wanted


def _check_enabled(rules: Rules) -> None:
    if not rules.may_delete:
        raise BadQuery("Bad request", details=DISABLED)


def written(found: Answer, engine: Engine, *, arrays: bool) -> Response:
    """An answer as a response, written while it is sent if it is large: until then it counts as the engine's memory. A
    header tells of warnings, for where no group carries them. Raises BadQuery where JSON cannot hold it."""
    size = sum(len(group.points.times) + GROUP_POINTS for sub in found.subs for group in sub.groups)
    if size <= LARGE:
        return Response(200, b"".join(write_answer(found, arrays=arrays)), headers=warned(found.warnings))
    share = engine.memory.share()
    share.hold(size * ANSWER_BYTES)
    return Response(
        200,
        InThreads(lambda: write_answer(found, arrays=arrays), engine.threads, share),
        headers=warned(found.warnings),
    )


class InThreads(AsyncIterator[bytes]):
    """Parts that are made in threads, one after the other. What they are made of is held until nobody wants more."""

    def __init__(self, begin: Callable[[], Iterator[bytes]], threads: Threads, share: Share) -> None:
        self._begin = begin
        self._threads = threads
        self._share = share
        self._parts: Iterator[bytes] | None = None

    async def __anext__(self) -> bytes:
        try:
            part = await self._threads.run(self._next)
            if part is None:
                raise StopAsyncIteration
        except BaseException:
            self._share.release()
            raise
        return part

    def _next(self) -> bytes | None:
        if self._parts is None:
            self._parts = self._begin()
        return next(self._parts, None)

    async def aclose(self) -> None:
        """Nobody wants more."""
        self._share.release()


async def _listed(parts: AsyncIterator[bytes], running: Running, until_sent: ExitStack) -> AsyncGenerator[bytes, None]:
    """The parts of an answer whose query is listed, and can be cancelled, until they are sent."""
    with until_sent:
        try:
            async with ended(parts):
                async for part in parts:
                    if running.cancelled:
                        raise was_cancelled()
                    yield part
        except Refused as error:
            running.status, running.error = error.status, error.message
            raise
        running.sent = True


def told_twice(error: Refused) -> Refused:
    """OpenTSDB's error for a name that nobody has says it in the details too."""
    if error.message.startswith("No such name for ") and not error.details:
        return BadQuery(error.message, status=error.status, details=error.message)
    return error


def cancel(registry: Registry, request: Request) -> Response:
    """End a running query, by the `id` that the list shows; raises Refused where there is none."""
    text = request.param("id") or ""
    if not text.isdecimal() or len(text) > MOST_DIGITS or not registry.cancel(int(text)):
        raise Refused(404, "No such query", f"No query with the id [{text}] is running")
    return Response(204, b"", None)


def queries(registry: Registry) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The queries that run and those that ended last, in OpenTSDB's form; `id` is ours."""
    return {
        "completed": [_told(one) for one in registry.ended],
        "running": [_told(one) for one in registry.running],
    }


def _is_private(header: str) -> bool:
    return any(word in header for word in PRIVATE)


def _told(one: Running) -> dict[str, Any]:
    query = one.query
    told = {
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
        "requestHeaders": {name: value for name, value in one.headers.items() if not _is_private(name)},
        "endpoint": one.peer,
        "queryStartTimestamp": one.started_ms,
        "sentToClient": one.sent,
        "stats": dict(one.stats),
    }
    if one.ended_ms:
        told |= {"httpResponse": one.status, "queryCompletedTimestamp": one.ended_ms}
    return told
