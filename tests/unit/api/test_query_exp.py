"""/api/query/exp and /api/query/gexp over HTTP: cancellation, memory and warnings."""

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from tests import layouts
from tests.running import Client
from tests.unit.query.engines import DATA, FEW, NOW_MS, START_S, QueryEnvironment
from tests.unit.server.web_parts import HttpResponse, Served, get, post, read_response, serving
from tsd.api import expressions, query, search
from tsd.api.query import AnswerBody
from tsd.codec.opentsdb.cell import COLUMN
from tsd.query.engine import EngineSettings
from tsd.query.gexp.functions import FUNCTIONS
from tsd.query.limits import Limits, QueryMemory
from tsd.query.parse.body import read_body
from tsd.query.parse.uri import read_uri
from tsd.query.registry import GONE, QueryRegistry
from tsd.query.result import Answer, Group
from tsd.query.serialize import write_answer
from tsd.query.workers import WorkerPool
from tsd.server.http.messages import Request
from tsd.store import Put, scan
from tsd.store.scheduling import IngestLoad
from tsd.tables.quirks import CORRECTED, OPENTSDB

pytestmark = layouts.on_all

SPAN = f"start={START_S}&end={START_S + 7199}"
WANTED: Mapping[str, Any] = {
    "time": {"start": START_S, "end": START_S + 7199, "aggregator": "sum"},
    "metrics": [{"id": "a", "metric": "sys.cpu"}],
}
SUM = "sum:sys.cpu"
# Few points, and many moments that are filled: without an end to it, some seconds' work.
MUCH = WANTED | {
    "time": {
        **WANTED["time"],
        "aggregator": "none",
        "downsampler": {"interval": "1s", "aggregator": "avg", "fillPolicy": {"policy": "zero"}},
    },
    "expressions": [{"id": f"e{n}", "expr": "a" + " + a * 2" * 80} for n in range(100)],
    "corrected": True,
}

PATIENCE_S = 60


class Place:
    """Endpoints over a store in memory."""

    def __init__(self, env: QueryEnvironment, registry: QueryRegistry, served: Served) -> None:
        self.env = env
        self.registry = registry
        self.served = served

    async def exp(self, body: Mapping[str, Any], params: str = "") -> HttpResponse:
        return await self.served.request(post(f"/api/query/exp?{params}", json.dumps(body).encode()))

    async def gexp(self, *texts: str, params: str = "") -> HttpResponse:
        exps = "".join(f"&exp={text}" for text in texts)
        return await self.served.request(get(f"/api/query/gexp?{SPAN}{exps}&{params}"))


@asynccontextmanager
async def place(
    lines: Sequence[str] = FEW, settings: EngineSettings | None = None, *, duplicates: bool = True
) -> AsyncIterator[Place]:
    env = await QueryEnvironment.build(lines, settings=settings)
    registry = QueryRegistry(lambda: NOW_MS, duplicates=duplicates)
    queries = query.Queries(env.engine, registry, query.QueryRules(), lambda: NOW_MS)
    async with serving({**query.routes(queries), **expressions.routes(queries)}) as served:
        yield Place(env, registry, served)


async def evaluating(place: Place, then: Callable[[Client], Awaitable[None]]) -> None:
    """Have an evaluation that takes long, and `then`; it is in a thread of the engine's, and in none of others."""
    with trio.fail_after(PATIENCE_S):
        await _evaluating(place, then)


async def _evaluating(place: Place, then: Callable[[Client], Awaitable[None]]) -> None:
    async with place.served.client() as client:
        await client.send(post("/api/query/exp", json.dumps(MUCH).encode()))
        while place.env.engine.memory.held < 16 << 20:  # more than the answer, and not yet all tables
            await trio.lowlevel.checkpoint()
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        await then(client)


@pytest.mark.slow
@pytest.mark.difference("query-resources")
async def test_an_evaluation_can_be_cancelled() -> None:
    async with place() as there:

        async def cancel(client: Client) -> None:
            [running] = there.registry.running
            running.cancel()
            assert (await read_response(client)).status == 503

        await evaluating(there, cancel)
        assert there.registry.counts == {"succeeded": 0, "failed": 0, "cancelled": 1}
        assert there.env.engine.memory.held == 0


@pytest.mark.slow
async def test_an_evaluation_ends_with_its_client() -> None:
    async with place() as there:

        async def leave(client: Client) -> None:
            client.reset()
            while there.registry.running:
                await trio.lowlevel.checkpoint()

        await evaluating(there, leave)
        assert [(one.error, one.status) for one in there.registry.ended] == [(GONE, 0)]
        assert there.env.engine.memory.held == 0


@pytest.mark.slow
async def test_an_evaluation_ends_when_its_time_is_over() -> None:
    async with place(settings=EngineSettings(Limits(timeout_ms=100))) as there:
        response = await there.exp(MUCH)
    assert response.status == 408
    assert response.json["error"]["message"].startswith("Sorry, your query timed out. Time limit: 100 ms")


async def test_functions_end_when_their_time_is_over() -> None:
    lines = [f"m {START_S + at // 2} {at}.1 host={at % 2}" for at in range(14_000)]
    async with place(lines, EngineSettings(Limits(timeout_ms=200))) as there:
        nested = "movingAverage(" * 30 + "none:m" + ",3500)" * 30
        response = await there.gexp(*[nested] * 5, params="corrected")
    assert response.status == 408


async def test_cycle_is_refused_before_reading() -> None:
    async with place() as there:
        response = await there.exp(WANTED | {"expressions": [{"id": "ee", "expr": "a + ee"}]})
        assert (response.status, response.json["error"]["message"]) == (400, "Self referencing expression found: ee")
        assert there.env.flushed == []


@pytest.mark.difference("query-resources")
async def test_tables_count_as_memory() -> None:
    """Series whose times are their own: a table of them is far larger than their points."""
    lines = [f"m {START_S * 1000 + at} 1 host=h{at % 100}" for at in range(3000)]
    settings = EngineSettings(memory_bytes=2 << 20)
    each = WANTED | {
        "time": {**WANTED["time"], "aggregator": "none"},
        "metrics": [{"id": "a", "metric": "m"}],
        "expressions": [{"id": "e1", "expr": "a * 2"}],
    }
    async with place(lines, settings) as there:
        for outputs in ([{"id": "e1"}], [{"id": "a"}]):
            response = await there.exp(each | {"outputs": outputs})
            assert response.status == 413
            assert "tsd.query.memory_limit" in response.json["error"]["message"]
        assert there.env.engine.memory.held == 0
        assert there.env.engine.memory.refused == 2
        assert (await there.exp(each | {"time": WANTED["time"]})).status == 200


@pytest.mark.difference("query-resources")
async def test_results_of_functions_count_as_memory() -> None:
    lines = [f"m {START_S + at} {at} host=x" for at in range(3000)]
    async with place(lines, EngineSettings(memory_bytes=1 << 20)) as there:
        assert (await there.gexp("scale(sum:m,2)", params="corrected")).status == 200
        for texts in (["scale(sum:m,2)"] * 30, [f"shift(sum:m,'{n}s')" for n in range(1, 20)]):
            response = await there.gexp(*texts, params="corrected")
            assert response.status == 413
            assert "tsd.query.memory_limit" in response.json["error"]["message"]
        assert there.env.engine.memory.held == 0


async def test_a_large_answer_is_held_until_it_is_sent() -> None:
    lines = [f"m {START_S + at} {at} host=x" for at in range(10_000)]
    wanted = WANTED | {
        "time": {**WANTED["time"], "end": START_S + 10_000},
        "metrics": [{"id": "a", "metric": "m"}],
    }
    async with place(lines) as there:
        response = await there.exp(wanted)
        assert response.headers["transfer-encoding"] == "chunked"
        [shown] = response.json["outputs"]
        assert shown["dps"] == [[(START_S + at) * 1000, float(at)] for at in range(10_000)]
        assert there.env.engine.memory.held == 0


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
async def test_cancelled_large_answer_releases_its_memory(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an answer cancelled before it was sent kept its memory, until no query was answered."""
    lines = [f"m {START_S + at} {at} host=x" for at in range(25_000)]
    async with place(lines) as there:

        def cancelled(found: Answer, *, arrays: bool) -> Iterator[bytes]:
            for place, written in enumerate(write_answer(found, arrays=arrays)):
                if place == part:
                    [running] = there.registry.running
                    trio.from_thread.run_sync(running.cancel)
                yield written

        monkeypatch.setattr(query, "write_answer", cancelled)
        response = await there.served.request(get(f"/api/query?start={START_S}&end={START_S + 25_000}&m=sum:m"))
        assert (response.status, response.json["error"]["message"]) == (503, "The query was cancelled")
        assert there.env.engine.memory.held == 0
    assert there.registry.counts == {"succeeded": 0, "failed": 0, "cancelled": 1}


@pytest.mark.parametrize("begun", [False, True])
async def test_abandoned_answer_releases_its_memory(begun: bool) -> None:
    """Also where nothing of it was asked for: a generator would not hear of that."""
    memory = QueryMemory(100)
    share = memory.share()
    share.resize(50)
    parts = AnswerBody(lambda: iter([b"a", b"b"]), WorkerPool(1, IngestLoad()), share)
    if begun:
        assert await anext(parts) == b"a"
    assert memory.held == 50
    await parts.aclose()
    assert memory.held == 0


async def test_evaluation_error_is_listed_with_its_query() -> None:
    async with place() as there:
        assert (await there.exp(WANTED | {"expressions": [{"id": "e1", "expr": "a > 1 ? 1 : 0"}]})).status == 400
        assert (await there.gexp(f"scale({SUM})")).status == 400
    assert there.registry.counts == {"succeeded": 0, "failed": 2, "cancelled": 0}
    assert [(one.status, one.error, one.sent) for one in there.registry.ended] == [
        (400, "Missing scaling factor", False),
        (400, "Expression returned a result of type: java.lang.Integer for e1: a > 1 ? 1 : 0", False),
    ]


async def test_shifts_are_one_query_and_read_what_they_need() -> None:
    async with place([*FEW, f"mem {START_S} 1 host=x"]) as there:
        texts = f"shift({SUM},'1min')", f"shift({SUM},'2min')", "absolute(sum:mem)"
        assert (await there.gexp(*texts, params="corrected")).status == 200
        assert there.registry.counts["succeeded"] == 1
        assert len(there.env.flushed) == 4  # one for each shift, and two for what is not shifted


@layouts.opentsdb_only
@pytest.mark.difference("query-warnings")
async def test_warnings_are_the_last_key() -> None:
    async with place() as there:
        assert list((await there.exp(WANTED)).json) == ["outputs", "query"]
        [key] = {row.key async for page in scan(there.env.store, DATA) for row in page[:1]}
        await there.env.store.put(DATA, [Put(key, COLUMN + b"\0\7", b"\1\2\3")])
        answer = (await there.exp(WANTED)).json
    assert list(answer) == ["outputs", "query", "warnings"]
    assert answer["warnings"]


@pytest.mark.parametrize("name", ["corrected", "tsd.query.corrected"])
async def test_parameter_and_body_select_corrected_answers(name: str) -> None:
    upper = WANTED | {"metrics": [{"id": "AA", "metric": "sys.cpu"}], "expressions": [{"id": "e1", "expr": "AA * 2"}]}
    async with place() as there:
        assert (await there.exp(upper)).status == 400
        assert (await there.exp(upper, name)).status == 200
        assert (await there.exp(upper | {name: True})).status == 200
        assert (await there.exp(upper | {name: False}, name)).status == 400
        shift = partial(there.gexp, f"shift({SUM},'1min')")
        assert (await shift()).status == 400
        assert (await shift(params=name)).status == 200
        assert (await shift(params=f"{name}=false")).status == 400


@pytest.mark.parametrize("name", ["corrected", "tsd.query.corrected"])
def test_both_names_of_corrected_are_accepted(name: str) -> None:
    params = {"start": ["1"], "m": ["sum:m"], name: [""]}
    members = json.dumps({"start": 1, "queries": [{"aggregator": "sum", "metric": "m"}], name: True}).encode()
    latest = json.dumps({"queries": [{"metric": "m"}], name: True}).encode()
    assert read_uri(params, NOW_MS).quirks == CORRECTED
    assert read_body(members, NOW_MS).quirks == CORRECTED
    assert read_body(members.replace(b"true", b"false"), NOW_MS, params=params).quirks == OPENTSDB
    last = Request("POST", "/api/query/last", ("query", "last"), {}, body=latest)
    assert search.read_last_body(last).quirks == CORRECTED


@pytest.mark.difference(
    "client-mistakes",
    topic="corrected",
    theirs="Malformed braces, TSUIDs, bodies and expressions are answered with 500",
    ours="they are answered with 400",
)
async def test_corrected_expression_error_is_a_client_error() -> None:
    wrong = WANTED | {"expressions": [{"id": "e1", "expr": "a +"}]}
    async with place() as there:
        for params, status in (("", 500), ("corrected", 400)):
            assert (await there.exp(wrong, params)).status == status
            for text in ("scale(sum:a", "nosuch(sum:a)", "scale(sum:sys.cpu{host=,2)"):
                assert (await there.gexp(text, params=params)).status == status
            extra = await there.served.request(get(f"/api/query?{SPAN}&exp=scale(sum:a&{params}"))
            assert extra.status == status


async def test_long_body_is_parsed_in_a_thread() -> None:
    async with place() as there:
        assert (await there.exp(WANTED | {"name": "n" * query.LONG_QUERY})).json["query"][
            "name"
        ] == "n" * query.LONG_QUERY
        assert (await there.exp(WANTED | {"name": "n" * query.LONG_QUERY, "time": None})).status == 500


async def test_lone_surrogate_is_a_client_error() -> None:
    """Regression: writing the answer or the list of queries caused an internal error."""
    half = "\ud800"
    of_host = {"tagk": "host", "type": "not_literal_or", "filter": half}
    sub = {"aggregator": "sum", "metric": "sys.cpu"}
    request = {"start": START_S, "queries": [sub]}
    async with place() as there:
        for wrong in ({"name": half}, {"outputs": [{"id": "a", "alias": half}]}):
            response = await there.exp(WANTED | wrong)
            assert (response.status, response.json["error"]["message"][:30]) == (400, "wanted a text, got half of a s")
        for extra in ({"timezone": half}, {"queries": [{**sub, "filters": [of_host]}]}):
            response = await there.served.request(post("/api/query", json.dumps(request | extra).encode()))
            assert (response.status, response.json["error"]["details"][:25]) == (400, "got half of a surrogate p")
        assert (await there.served.request(get("/api/stats/query"))).status == 200
        assert (await there.exp(WANTED | {"name": "\U0001f600"})).json["query"]["name"] == "\U0001f600"


@layouts.opentsdb_only
async def test_warning_of_functions_is_reported_once() -> None:
    async with place() as there:
        [key] = {row.key async for page in scan(there.env.store, DATA) for row in page[:1]}
        await there.env.store.put(DATA, [Put(key, COLUMN + b"\0\7", b"\1\2\3")])
        response = await there.gexp(f"sumSeries({SUM},{SUM},{SUM})", params="corrected")
    assert response.status == 200
    assert response.headers["x-tsd-warnings"].startswith("1; ")


async def test_work_of_nested_calls_and_groups_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: they kept the event loop for seconds."""
    threads = set()

    def absolute(given: Sequence[Sequence[Group]], *_: object) -> list[Group]:
        threads.add(threading.get_ident())
        return list(given[0])

    monkeypatch.setitem(FUNCTIONS, "absolute", absolute)
    async with place([f"m {START_S + at} {at} host=h{at}" for at in range(20)]) as there:
        for depth, in_thread in ((1, False), (30, True)):
            threads.clear()
            assert (await there.gexp("absolute(" * depth + "none:m" + ")" * depth)).status == 200
            assert (threading.get_ident() not in threads) == in_thread


@pytest.mark.slow
async def test_other_expressions_of_the_same_metrics_may_run() -> None:
    async with place(duplicates=False) as there:
        other = MUCH | {"expressions": [{"id": "e", "expr": "a * 3"}], "outputs": []}

        async def post_query(client: Client) -> None:
            assert (await there.exp(other)).status == 200
            response = await there.exp(MUCH)
            assert (response.status, response.json["error"]["message"][:26]) == (400, "Query is already executing")
            [running] = there.registry.running
            running.cancel()
            assert (await read_response(client)).status == 503

        await evaluating(there, post_query)
