"""/api/query/exp and /api/query/gexp: expressions and functions over the answers of queries."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tsd.api.messages import check_method, meant_method, not_allowed, warned
from tsd.api.query import LARGE_POINTS, Queries, QueryRules, check_enabled, encode_answer, parsed, register, streamed
from tsd.query.engine import QueryEngine, QueryJob
from tsd.query.exp.engine import Evaluation, OutputTable
from tsd.query.exp.output import write_outputs, written_values
from tsd.query.exp.request import ExpRequest, by_dependency, read_request, to_query
from tsd.query.gexp.engine import read_gexp, run_gexp
from tsd.query.model import Query
from tsd.query.registry import RunningQuery
from tsd.server.http.messages import Endpoint, Request, Response


def routes(queries: Queries) -> dict[str, Endpoint]:
    """/api/query/exp and /api/query/gexp."""
    engine, registry, rules, now_ms = queries

    async def exp(request: Request) -> Response:
        if check_method(request, "GET", "POST", "DELETE") == "DELETE":
            check_enabled(rules)
        wanted = await parsed(request, engine.workers, partial(_parse_exp, request, rules, now_ms()))

        async def run(running: RunningQuery) -> Response:
            found = await engine.work(partial(_evaluate, wanted), running=running)
            return _encode_exp(found, engine)

        return await register(run, registry, wanted.query, request, request.body)

    async def gexp(request: Request) -> Response:
        check_method(request, "GET")
        parse = partial(read_gexp, request.params, now_ms(), quirks=rules.quirks)
        wanted = await parsed(request, engine.workers, parse)
        if meant_method(request) == "DELETE":
            raise not_allowed("DELETE")

        async def run(running: RunningQuery) -> Response:
            found = await engine.work(partial(run_gexp, wanted), running=running)
            return encode_answer(found, engine, arrays=request.has("arrays"))

        return await register(run, registry, wanted.query, request, tuple(request.params.get("exp", ())))

    return {"api/query/exp": exp, "api/query/gexp": gexp}


class _ExpQuery(NamedTuple):
    """A parsed request for expressions, and its query."""

    request: ExpRequest
    query: Query
    subs: Sequence[int]  # the sub query of each metric


class _ExpAnswer(NamedTuple):
    """The outputs of a request for expressions."""

    request: ExpRequest
    outputs: Sequence[OutputTable]
    warnings: Sequence[str]
    size: int  # bytes of memory

    def chunks(self) -> Iterator[bytes]:
        """Yield the JSON in chunks."""
        return write_outputs(self.outputs, self.request, self.warnings)


def _parse_exp(request: Request, rules: QueryRules, now_ms: int) -> _ExpQuery:
    """Parse and check a request. Raise BadQuery."""
    wanted = read_request(request.body, params=request.params, quirks=rules.quirks)
    query, subs = to_query(wanted, now_ms)
    by_dependency(wanted.formulas or ())
    return _ExpQuery(wanted, query, subs)


async def _evaluate(wanted: _ExpQuery, job: QueryJob) -> _ExpAnswer:
    """Run the query and evaluate the expressions. Raise BadQuery, StoreError."""
    answer = await job.answer(wanted.query)
    evaluation = Evaluation(wanted.request, answer, wanted.subs, add_memory=job.add_memory, check=job.check)
    # Always in a thread: few points may need many steps.
    outputs = await job.in_thread(LARGE_POINTS + 1, evaluation.outputs)
    return _ExpAnswer(wanted.request, outputs, list(dict.fromkeys(answer.warnings)), job.held)


def _encode_exp(found: _ExpAnswer, engine: QueryEngine) -> Response:
    headers = warned(found.warnings)
    if written_values(found.outputs) <= LARGE_POINTS:
        return Response(200, b"".join(found.chunks()), headers=headers)
    return streamed(found.chunks, found.size, engine, headers)
