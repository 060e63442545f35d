"""`/api/query/exp` and `/api/query/gexp`: expressions over what queries find."""

from collections.abc import Callable

import trio

from tsd.api.messages import check_method, meant_method, not_allowed
from tsd.api.query import Rules, told_twice, written
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import Refused
from tsd.query.answers import Answer
from tsd.query.engine import Engine
from tsd.query.exp.answer import write_outputs
from tsd.query.exp.engine import Evaluation
from tsd.query.exp.request import ExpRequest, read_request, to_query
from tsd.query.gexp.engine import read_gexp, run_gexp
from tsd.query.model import Query
from tsd.query.running import Registry


def routes(engine: Engine, registry: Registry, rules: Rules, now_ms: Callable[[], int]) -> dict[str, Endpoint]:
    """`now_ms` is the wall clock."""

    async def run(query: Query, request: Request) -> Answer:
        with registry.entered(query, request.peer, request.headers) as running:
            try:
                found = await engine.run(query, running=running)
            except Refused as error:
                running.status, running.error = error.status, error.message
                raise told_twice(error) from error
            running.status, running.sent = 200, True
            return found

    async def exp(request: Request) -> Response:
        check_method(request, "GET", "POST", "DELETE")
        asked = read_request(request.body, corrected=rules.corrected)
        query, subs = to_query(asked, now_ms())
        found = await run(query, request)
        return Response(body=await trio.to_thread.run_sync(evaluated, asked, found, subs))

    async def gexp(request: Request) -> Response:
        if check_method(request, "GET", "POST", "DELETE") != "GET":
            raise not_allowed(request.method)
        asked = read_gexp(request.params, now_ms(), corrected=rules.corrected)
        if meant_method(request) == "DELETE":
            raise not_allowed("DELETE")

        async def answered(query: Query) -> Answer:
            return await run(query, request)

        return await written(await run_gexp(asked, answered), engine, arrays=request.has("arrays"))

    return {"api/query/exp": exp, "api/query/gexp": gexp}


def evaluated(asked: ExpRequest, found: Answer, subs: list[int]) -> bytes:
    """The JSON of what was asked; `subs` says which sub answer each metric has. Raises BadQuery."""
    return write_outputs(Evaluation(asked, found, subs).outputs(), asked)
