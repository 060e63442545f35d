"""/api/query over HTTP: forms of a request, large answers, deletes, and the list of queries."""

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests import layouts
from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.server.web_parts import get, read_response, serving
from tsd.api import query
from tsd.api.query import DISABLED
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN
from tsd.config.settings import Config
from tsd.daemon.engine import build_engine
from tsd.daemon.wiring import configured_reader, make_uids, tables
from tsd.query.engine import QueryEngine
from tsd.query.gexp.engine import read_extra
from tsd.query.parse.uri import read_uri
from tsd.query.plan_reader import Flush
from tsd.query.registry import QueryRegistry
from tsd.server.http.messages import Request, parse_target
from tsd.store import Put, scan
from tsd.store.cells import prefix_end
from tsd.store.memory import MemoryStore
from tsd.tables.quirks import CORRECTED

pytestmark = layouts.on_all
CANCELLED = "The query was cancelled"
BASE = 1500000000
URI = f"/api/query?start={BASE}&end={BASE + 3600}&m=sum:a.b"
BODY = {"start": BASE, "end": BASE + 3600, "queries": [{"aggregator": "sum", "metric": "a.b"}]}
FOUND = [{"metric": "a.b", "tags": {"host": "x"}, "aggregateTags": [], "dps": {str(BASE): 1, str(BASE + 1): 2}}]


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        await daemon.send_lines(b"".join(b"put a.b %d %d host=x\n" % (BASE + at, at + 1) for at in range(2)))
        yield daemon


def post_of(**members: Any) -> bytes:
    return json.dumps(BODY | members).encode()


async def test_client_reads_its_own_writes(daemon: Running) -> None:
    assert (await http_request(daemon, URI)).json == FOUND
    assert (await http_post(daemon, "/api/query", post_of())).json == FOUND
    assert (
        await http_post(daemon, "/api/query/anything", gzip.compress(post_of()), "Content-Encoding: gzip")
    ).json == FOUND
    arrays = [FOUND[0] | {"dps": [[BASE, 1], [BASE + 1, 2]]}]
    assert (await http_post(daemon, "/api/query?arrays", post_of())).json == arrays
    assert (await http_request(daemon, URI + "&arrays=true")).json == arrays
    called = await http_request(daemon, URI + "&jsonp=f")
    assert called.body == b"f(" + json.dumps(FOUND, separators=(",", ":")).encode() + b")"


@pytest.mark.parametrize(
    "text",
    [
        f"start={BASE}&end={BASE + 3600}&m=sum:a.b",
        f"start={BASE}&end={BASE + 3600}&m=sum:a.b&corrected",
        f"start={BASE}000&end={BASE + 3600}&m=sum:1m-avg:a.b%7Bhost=*%7D&m=max:a.c&ms",
        f"start={BASE}&m=sum:a.b",
        f"start=1h-ago&end={BASE + 20_000}&m=sum:a.b",
        f"start={BASE}&end=now&m=sum:a.b",
        "start=2h-ago&m=sum:1m-avg:a.b",
        "start=90m-ago&end=30m-ago&m=sum:a.b&show_query",
        "start=1d-ago&end=&m=sum:a.b",
        f"end={BASE + 3600}&m=sum:a.b&start=2017/01/01",
        f"start={BASE}&end={BASE + 3600}&exp=absolute(sum:a.b)",
    ],
)
def test_repeated_uri_is_parsed_as_the_first_one(text: str) -> None:
    target = parse_target(f"/api/query?{text}")
    request = Request("GET", target.path, target.segments, target.params, split=target.split)
    for rules in (query.QueryRules(), query.QueryRules(CORRECTED)):
        clock = [0]
        reader = query.QueryReader(rules, lambda clock=clock: clock[0])  # type: ignore[misc]
        for now_ms in ((BASE + 9000) * 1000, (BASE + 9001) * 1000) * 2:
            clock[0] = now_ms
            extra = read_extra(target.params, quirks=rules.quirks) if "exp" in target.params else ()
            wanted = read_uri(target.params, now_ms, quirks=rules.quirks, extra=extra)
            assert reader.read(request) == wanted


async def test_large_answer_in_chunks_equals_a_small_one(daemon: Running) -> None:
    count = 20_000
    await daemon.send_lines(b"".join(b"put m %d %d.5 host=x\n" % (BASE + at, at) for at in range(count)))
    path = f"/api/query?start={BASE}&end={BASE + count}&m=sum:m"
    response = await http_request(daemon, path)
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.json[0]["dps"] == {str(BASE + at): at + 0.5 for at in range(count)}
    packed = await http_request(daemon, path, "Accept-Encoding: gzip")
    assert gzip.decompress(packed.body) == response.body
    assert len(packed.body) < len(response.body) / 3


async def test_values_json_cannot_express_are_an_error(daemon: Running) -> None:
    """Found before the first byte is out: an answer that has begun cannot become an error."""
    count = 10_000
    lines = [b"put m %d 1e308 host=%d\n" % (BASE + at, host) for host in range(2) for at in range(count)]
    await daemon.send_lines(b"".join(lines))
    response = await http_request(daemon, f"/api/query?start={BASE}&end={BASE + count}&m=sum:m")
    assert response.status == 400
    assert response.json["error"]["message"].startswith("Got Infinity: Infinity at ")


@pytest.mark.parametrize(
    "m", ["sum:m%7Bhost", "sum:", "sum:m%7Bhost%7D", "sum:m%7B%7D%7Bhost%7D", "sum:m%7Bhost=x(y)%7D"]
)
async def test_malformed_metric_is_a_mistake_of_the_client_for_graphs(daemon: Running, m: str) -> None:
    """As in OpenTSDB, whose API alone answers it with 500."""
    api = await http_request(daemon, f"/api/query?start={BASE}&m={m}")
    texts, summary = [await http_request(daemon, f"/q?start={BASE}&m={m}&{form}") for form in ("ascii", "json")]
    assert (api.status, texts.status, summary.status) == (500, 400, 400)
    assert summary.json == {"err": api.json["error"]["message"]}


@pytest.mark.parametrize("override", ["post", "PUT", "get"])
async def test_only_a_delete_override_changes_a_query(daemon: Running, override: str) -> None:
    """OpenTSDB asks only whether it is one."""
    assert (await http_request(daemon, f"{URI}&method_override={override}")).json == FOUND
    for path in ("/api/suggest?type=metrics", "/api/aggregators?", "/api/stats/query?", "/api/query/last?tsuids="):
        plain, overridden = [
            (await http_request(daemon, path + more)).status for more in ("", f"&method_override={override}")
        ]
        assert plain == overridden


@pytest.mark.parametrize(("override", "reason"), [("", "Missing"), ("patch", "Unknown or unsupported")])
async def test_unknown_method_override_is_refused(daemon: Running, override: str, reason: str) -> None:
    response = await http_request(daemon, f"{URI}&method_override={override}")
    assert (response.status, response.json["error"]["message"]) == (405, f"{reason} method override value")


@pytest.mark.difference(
    "delete-by-query",
    topic="http",
    theirs=(
        "A POST with `delete` deletes whatever the configuration says. `method_override=delete` reads where "
        "deletion is disabled"
    ),
    ours="Both are refused unless `tsd.http.query.allow_delete` is set",
)
@pytest.mark.parametrize("delete", ["DELETE", "override", "body"])
async def test_deletion_is_refused_unless_enabled(daemon: Running, delete: str) -> None:
    """OpenTSDB's POST deletes all the same."""
    if delete == "body":
        response = await http_post(daemon, "/api/query", post_of(delete=True))
    elif delete == "override":
        response = await http_request(daemon, URI + "&method_override=delete")
    else:
        response = await http_request(daemon, URI, method="DELETE")
    assert (response.status, response.json["error"]["details"]) == (400, DISABLED)
    assert (await http_request(daemon, URI)).json == FOUND


@pytest.mark.parametrize("delete", ["DELETE", "override", "body"])
async def test_enabled_deletion_deletes_rows(tmp_path: Path, delete: str) -> None:
    async with running(tmp_path, {"tsd.http.query.allow_delete": "true"}) as daemon:
        await daemon.send_lines(b"put a.b %d 1 host=x\nput a.b %d 2 host=x\n" % (BASE, BASE + 1))
        if delete == "body":
            response = await http_post(daemon, "/api/query", post_of(delete=True))
        elif delete == "override":
            response = await http_request(daemon, URI + "&method_override=delete")
        else:
            response = await http_request(daemon, URI, method="DELETE")
        assert response.json == FOUND
        assert (await http_request(daemon, URI)).json == []


async def test_pages_that_cors_allows_may_delete(tmp_path: Path) -> None:
    """Regression: a body with `delete` was refused, with a message that CORS does not allow the origin."""
    settings = {"tsd.http.query.allow_delete": "true", "tsd.http.request.cors_domains": "http://a.example"}
    async with running(tmp_path, settings) as daemon:
        await daemon.send_lines(b"put a.b %d 1 host=x\nput a.b %d 2 host=x\n" % (BASE, BASE + 1))
        await http_post(daemon, "/api/query", post_of(delete=True), "Origin: http://b.example")
        assert (await http_request(daemon, URI)).json == FOUND
        response = await http_post(daemon, "/api/query", post_of(delete=True), "Origin: http://a.example")
        assert (response.json, response.headers["access-control-allow-origin"]) == (FOUND, "http://a.example")
        assert (await http_request(daemon, URI)).json == []


@pytest.mark.difference(
    "delete-by-functions",
    topic="http",
    theirs=(
        "Where deletion is enabled, DELETE of `/api/query/gexp` deletes what the functions read. That of "
        "`/api/query/last` is answered like GET"
    ),
    ours="Both are answered with 405 and delete nothing",
)
async def test_gexp_and_the_newest_points_delete_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.http.query.allow_delete": "true"}) as daemon:
        await daemon.send_lines(b"put a.b %d 1 host=x\nput a.b %d 2 host=x\n" % (BASE, BASE + 1))
        gexp = f"/api/query/gexp?start={BASE}&end={BASE + 3600}&exp=scale(sum:a.b,2)"
        for path in (gexp, "/api/query/last?timeseries=a.b"):
            assert (await http_request(daemon, path, method="DELETE")).status == 405
        assert (await http_request(daemon, f"{gexp}&method_override=delete")).status == 405
        assert (await http_request(daemon, URI)).json == FOUND


async def test_pages_of_other_origins_may_not_delete(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.http.query.allow_delete": "true"}) as daemon:
        await daemon.send_lines(b"put a.b %d 1 host=x\nput a.b %d 2 host=x\n" % (BASE, BASE + 1))
        for header in ("Origin: http://a.example", "Sec-Fetch-Site: cross-site"):
            assert (await http_post(daemon, "/api/query", post_of(delete=True), header)).status == 403
        assert (await http_request(daemon, URI)).json == FOUND


@pytest.mark.difference(
    "number-of-queries",
    topic="queries",
    theirs="`/api/stats/query` shows `numRunningQueries` with each query, and no number to cancel it by",
    ours="It shows the `id` of each query, and no `numRunningQueries`: the list `running` has them",
)
async def test_running_queries_are_listed_and_can_be_cancelled() -> None:
    held = trio.Event()

    async def hold(_: bytes) -> None:
        held.set()
        await trio.sleep_forever()

    engine = await engine_that_waits(hold)
    queries = query.Queries(engine, QueryRegistry(lambda: 1), query.QueryRules(), lambda: 1)
    async with serving(query.routes(queries)) as served:
        async with served.client() as client:
            await client.send(
                get(URI, "Authorization: Basic c2VjcmV0", "X-Jwt-Assertion: s", "X-Session: s", "User-Agent: a")
            )
            await held.wait()
            [one] = (await served.request(get("/api/stats/query"))).json["running"]
            assert one["query"]["queries"][0]["metric"] == "a.b"
            assert one["requestHeaders"]["user-agent"] == "a"
            assert not {"authorization", "x-jwt-assertion", "x-session"} & one["requestHeaders"].keys()
            assert "numRunningQueries" not in one
            path = f"/api/stats/query?id={one['id']}"
            assert (await served.request(get(path + "0", method="DELETE"))).status == 404
            assert (await served.request(get(path, method="DELETE"))).status == 204
            response = await read_response(client)
            assert (response.status, response.json["error"]["message"]) == (503, CANCELLED)
        listed = (await served.request(get("/api/stats/query"))).json
    assert listed["running"] == []
    ended = {"code": 503, "reasonPhrase": "Service Unavailable"}  # OpenTSDB's form
    assert [(one["httpResponse"], one["exception"]) for one in listed["completed"]] == [(ended, CANCELLED)]


async def engine_that_waits(flush: Flush) -> QueryEngine:
    """An engine on an empty store whose open window is written by `flush`."""
    store = MemoryStore(lambda: 1)
    await store.create_tables(tables(Config()))
    uids = make_uids(Config(), store)
    await uids.find_or_assign(Kind.METRIC, [b"a.b"])
    reader = await configured_reader(Config(), store, uids, print)
    return build_engine(Config(), reader, flush, None, lambda: 1, cache=False)


async def test_outcomes_are_counted(daemon: Running) -> None:
    await http_request(daemon, URI)
    await http_request(daemon, "/api/query")
    await http_post(daemon, "/api/query", b"null")
    async with daemon.client() as client:
        stats = await client.stats()
    counts = [stats[f"http.query.{outcome}"] for outcome in ("success", "invalid_requests", "exceptions")]
    assert counts == [1, 1, 1]


@pytest.fixture
async def damaged(daemon: Running) -> Running:
    """The daemon with rows of a series of its own that cannot be read."""
    await daemon.send_lines(b"put bad.one %d 1 host=x\n" % BASE)
    assert await daemon.daemon.flush()
    store, table = daemon.daemon.store, daemon.daemon.config.data_table
    metric = (await make_uids(daemon.daemon.config, daemon.daemon.store).find(Kind.METRIC, [b"bad.one"]))[b"bad.one"]
    assert isinstance(metric, bytes)
    async for rows in scan(store, table, metric, prefix_end(metric)):
        await store.put(table, [Put(row.key, COLUMN + b"\0\0\0\x10", b"\1") for row in rows])
    return daemon


@layouts.opentsdb_only
@pytest.mark.difference("query-warnings")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URI.replace("a.b", "bad.one"), b"[]"),
        (f"/q?start={BASE}&end={BASE + 3600}&m=sum:bad.one&ascii", b""),
        (f"/api/query/gexp?start={BASE}&end={BASE + 3600}&exp=scale(sum:bad.one,2)", b"[]"),
    ],
)
async def test_unreadable_rows_are_reported_in_a_header(damaged: Running, path: str, body: bytes) -> None:
    before = {stat.name: stat.value for stat in damaged.daemon.statistics()}["query.warnings"]
    response = await http_request(damaged, path)
    assert (response.status, response.body) == (200, body)
    assert response.headers["x-tsd-warnings"].startswith("1; row 00")
    assert {stat.name: stat.value for stat in damaged.daemon.statistics()}["query.warnings"] == before + 1
    assert "x-tsd-warnings" not in (await http_request(damaged, URI)).headers
