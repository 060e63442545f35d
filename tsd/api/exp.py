"""`/api/query/exp` and `/api/query/gexp`: expressions over what queries find."""

from collections.abc import Awaitable, Callable

import trio

from tsd.api.messages import not_allowed
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.query.answers import Answer
from tsd.query.exp.answer import write_outputs
from tsd.query.exp.engine import Evaluation
from tsd.query.exp.request import ExpRequest, read_request, to_query
from tsd.query.model import Query

Run = Callable[[Query, Request], Awaitable[Answer]]


def routes(run: Run, now_ms: Callable[[], int], *, corrected: bool) -> dict[str, Endpoint]:
    """The endpoints. `run` answers the query of a request; `corrected` is the configured default."""

    async def exp(request: Request) -> Response:
        if request.method not in ("GET", "POST", "DELETE"):
            raise not_allowed(request.method)
        asked = read_request(request.body, corrected=corrected)
        query, subs = to_query(asked, now_ms())
        answer = await run(query, request)
        return Response(body=await trio.to_thread.run_sync(evaluated, asked, answer, subs))

    return {"api/query/exp": exp}


def evaluated(asked: ExpRequest, answer: Answer, subs: list[int]) -> bytes:
    """The JSON of what was asked; `subs` says which sub answer each metric has. Raises BadQuery."""
    return write_outputs(Evaluation(asked, answer, subs).outputs(), asked)
