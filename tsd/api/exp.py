"""`/api/query/exp` and `/api/query/gexp`: expressions over what queries find."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tsd.api.messages import check_method, meant_method, not_allowed, warned
from tsd.api.query import LARGE, InThreads, Rules, until_sent, written
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.query.engine import Engine, Job
from tsd.query.exp.answer import write_outputs, written_values
from tsd.query.exp.engine import Evaluation, Shown
from tsd.query.exp.order import in_order
from tsd.query.exp.request import ExpRequest, read_request, to_query
from tsd.query.gexp.engine import read_gexp, run_gexp
from tsd.query.model import Query
from tsd.query.running import Registry, Running

LONG = 10_000  # bytes: a longer body is read in a thread


def routes(engine: Engine, registry: Registry, rules: Rules, now_ms: Callable[[], int]) -> dict[str, Endpoint]:
    """`now_ms` is the wall clock."""

    async def exp(request: Request) -> Response:
        check_method(request, "GET", "POST", "DELETE")
        read = partial(_read, request, rules, now_ms())
        asked = await engine.threads.run(read) if len(request.body) > LONG else read()

        async def answered(running: Running) -> Response:
            found = await engine.work(partial(_evaluated, asked), running=running)
            return _written(found, engine)

        return await until_sent(answered, registry, asked.query, request, request.body)

    async def gexp(request: Request) -> Response:
        if check_method(request, "GET", "POST", "DELETE") != "GET":
            raise not_allowed(request.method)
        asked = read_gexp(request.params, now_ms(), corrected=rules.corrected)
        if meant_method(request) == "DELETE":
            raise not_allowed("DELETE")

        async def answered(running: Running) -> Response:
            found = await engine.work(partial(run_gexp, asked), running=running)
            return written(found, engine, arrays=request.has("arrays"))

        return await until_sent(answered, registry, asked.query, request, tuple(request.params.get("exp", ())))

    return {"api/query/exp": exp, "api/query/gexp": gexp}


class _Asked(NamedTuple):
    """A request, read."""

    request: ExpRequest
    query: Query
    subs: Sequence[int]  # which sub query each metric has


class _Found(NamedTuple):
    """What is answered."""

    request: ExpRequest
    outputs: Sequence[Shown]
    warnings: Sequence[str]
    size: int  # bytes that all of it takes

    def parts(self) -> Iterator[bytes]:
        """The JSON."""
        return write_outputs(self.outputs, self.request, self.warnings)


def _read(request: Request, rules: Rules, now: int) -> _Asked:
    """The request, checked as far as it can be before anything is read. Raises BadQuery."""
    asked = read_request(request.body, params=request.params, corrected=rules.corrected)
    query, subs = to_query(asked, now)
    in_order(asked.formulas or ())
    return _Asked(asked, query, subs)


async def _evaluated(asked: _Asked, job: Job) -> _Found:
    """The outputs of a request. Raises BadQuery, StoreError."""
    answer = await job.answer(asked.query)
    evaluation = Evaluation(asked.request, answer, asked.subs, hold=job.hold, check=job.check)
    outputs = await job.in_thread(LARGE + 1, evaluation.outputs)  # however few points: steps may be many
    return _Found(asked.request, outputs, list(dict.fromkeys(answer.warnings)), job.held)


def _written(found: _Found, engine: Engine) -> Response:
    """The response, written while it is sent if it is large: until then it is held."""
    headers = warned(found.warnings)
    if written_values(found.outputs) <= LARGE:
        return Response(200, b"".join(found.parts()), headers=headers)
    share = engine.memory.share()
    share.hold(found.size)
    return Response(200, InThreads(found.parts, engine.threads, share), headers=headers)
