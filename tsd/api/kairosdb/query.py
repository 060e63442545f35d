"""/api/v1/datapoints/query, /query/tags and /delete, and DELETE of /api/v1/metric/NAME."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from urllib.parse import unquote

from tsd.api.kairosdb.messages import DONE
from tsd.api.messages import check_method
from tsd.api.query import DISABLED, LARGE_POINTS, Queries, parsed, register, streamed
from tsd.errors import Refused
from tsd.query.assemble import ANSWER_BYTES
from tsd.query.engine import QueryEngine, QueryJob
from tsd.query.kairosdb.answer import MetricAnswer, write_answer
from tsd.query.kairosdb.model import FOREVER_MS, BadRequest, KairosQuery, MetricQuery
from tsd.query.kairosdb.reading import answer_metrics, answer_tags, built_query, delete_points
from tsd.query.kairosdb.request import read_request
from tsd.query.registry import RunningQuery
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.server.http.security import check_deletion
from tsd.tables.reading import PointDeleter

METRIC = "/metric/"


def routes(queries: Queries, deleter: PointDeleter | None) -> dict[str, Endpoint]:
    """Return the endpoints of queries and deletions. `deleter` deletes points of any times; None: the tables delete
    whole rows."""

    async def query(request: Request) -> Response:
        if len(request.segments) > 2 and request.segments[2] != "tags":
            raise Refused(404, "Endpoint not found")
        if len(request.segments) > 2:
            check_method(request, "POST")
            return await _answer(request, queries, answer_tags)
        check_method(request, "GET", "HEAD", "POST")
        return await _answer(request, queries, partial(_points, queries))

    async def delete(request: Request) -> Response:
        if len(request.segments) > 2:
            raise Refused(404, "Endpoint not found")
        check_method(request, "POST")
        wanted = await _read(request, queries)
        return await _delete(request, queries, deleter, wanted.metrics)

    async def metric(request: Request) -> Response:
        check_method(request, "DELETE")
        path = request.path if request.split is None else request.split.path
        name = unquote(path.partition(METRIC)[2])
        if not name:
            raise Refused(404, "Endpoint not found")
        return await _delete(request, queries, deleter, [MetricQuery(name, 0, FOREVER_MS)])

    return {"api/datapoints/query": query, "api/datapoints/delete": delete, "api/metric": metric}


async def _read(request: Request, queries: Queries) -> KairosQuery:
    """Return the query of a request. Raise BadRequest."""
    if request.method == "POST":
        text = request.body.decode("utf-8", "replace")
    else:
        found = request.param("query")
        if found is None:
            raise BadRequest("query json must not be null or empty")
        text = found
    return await parsed(request, queries.engine.workers, partial(read_request, text, queries.now_ms()))


async def _points(queries: Queries, wanted: KairosQuery, job: QueryJob) -> list[MetricAnswer]:
    return await answer_metrics(wanted, job, queries.now_ms())


async def _answer(
    request: Request,
    queries: Queries,
    work: Callable[[KairosQuery, QueryJob], Awaitable[list[MetricAnswer]]],
) -> Response:
    wanted = await _read(request, queries)

    async def run(running: RunningQuery) -> Response:
        found = await queries.engine.work(partial(work, wanted), running=running)
        return _encoded(found, queries.engine)

    query = await built_query(wanted.metrics)
    return await register(run, queries.registry, query, request, (request.path, request.body))


def _encoded(found: Sequence[MetricAnswer], engine: QueryEngine) -> Response:
    size = sum(one.points for one in found)
    if size <= LARGE_POINTS:
        return Response(200, b"".join(write_answer(found)))
    return streamed(lambda: write_answer(found), size * ANSWER_BYTES, engine)


async def _delete(
    request: Request, queries: Queries, deleter: PointDeleter | None, metrics: Sequence[MetricQuery]
) -> Response:
    """Delete points. Raise Refused."""
    if not queries.rules.may_delete:
        raise Refused(403, DISABLED)
    check_deletion(request, queries.rules.cors)

    async def run(running: RunningQuery) -> Response:
        await queries.engine.work(partial(delete_points, metrics, deleter), running=running)
        return DONE

    query = await built_query(metrics, delete=True)
    return await register(run, queries.registry, query, request, request.path)
