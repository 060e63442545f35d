"""KairosDB's REST API on a daemon with any layout."""

import gzip
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import layouts
from tests.kairosdb_series import body_of, is_same, recorded
from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.server.web_parts import HttpResponse, post, read_response

pytestmark = layouts.on_all
PUT, QUERY = "/api/v1/datapoints", "/api/v1/datapoints/query"
START_MS = 1_356_998_400_000
SETTINGS = {"tsd.kairosdb.enabled": "true", "tsd.http.query.allow_delete": "true"}
ADMIN = {"tsd.access.anonymous": "read,write,admin"}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SETTINGS) as daemon:
        yield daemon


async def put(daemon: Running, body: object, *headers: str, query: str = "") -> HttpResponse:
    return await http_post(daemon, PUT + query, json.dumps(body).encode(), *headers)


async def query(daemon: Running, *metrics: Mapping[str, Any], path: str = QUERY, **members: Any) -> Any:
    body = {"start_absolute": START_MS, "metrics": metrics} | members
    found = await http_post(daemon, path, json.dumps(body).encode())
    assert found.status == 200, found.body
    return found.json["queries"]


def metric_of(name: str, *points: Any, **tags: str) -> dict[str, Any]:
    return {"name": name, "tags": tags or {"host": "a"}, "datapoints": points}


async def test_client_reads_its_own_points(daemon: Running) -> None:
    response = await put(daemon, [metric_of("a.b", [START_MS, 7], [START_MS + 500, 1.5])])
    assert (response.status, response.body) == (204, b"")
    assert await query(daemon, {"name": "a.b"}) == [
        {
            "sample_size": 2,
            "results": [
                {
                    "name": "a.b",
                    "group_by": [{"name": "type", "type": "number"}],
                    "tags": {"host": ["a"]},
                    "values": [[START_MS, 7], [START_MS + 500, 1.5]],
                }
            ],
        }
    ]


async def test_gzip_by_content_type_is_read(daemon: Running) -> None:
    body = gzip.compress(json.dumps(metric_of("a.b", [START_MS, 7])).encode())
    assert (await http_post(daemon, PUT, body, "Content-Type: application/gzip")).status == 204
    assert (await http_post(daemon, PUT, body, "Content-Encoding: gzip")).status == 204
    assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 1


async def test_bad_point_costs_only_itself(daemon: Running) -> None:
    good = metric_of("a.b", [START_MS, 7], [START_MS, "text"], [START_MS + 1, 8])
    response = await put(daemon, [good, metric_of("", [START_MS, 1]), metric_of("a b", [START_MS, 1])])
    assert response.status == 400
    errors = response.json["errors"]
    assert [error.partition(" ")[0] for error in errors] == [
        "metric[0](name=a.b).datapoints[1].the",
        "metric[1].name",
        "metric[2](name=a",
    ]
    assert (await query(daemon, {"name": "a.b"}))[0]["results"][0]["values"] == [[START_MS, 7], [START_MS + 1, 8]]


async def test_value_that_is_no_number_is_named(daemon: Running) -> None:
    points = [[START_MS, 7], [START_MS + 1, "x", "double"], [START_MS + 1, "x", "long"]]
    response = await put(daemon, metric_of("a.b", *points))
    big = await http_post(daemon, PUT, json.dumps(metric_of("a.b", [START_MS + 1, 1e300])).encode())
    place = "metric[0](name=a.b).datapoints"
    assert response.json["errors"] == [f'{place}[1].value For input string: "x"'] * 2
    assert big.json["errors"] == [f"{place}[0].value 1e+300 does not fit in 64 bits"]


async def test_name_that_the_layout_lacks_is_refused(daemon: Running) -> None:
    response = await put(daemon, [metric_of("a.b:c", [START_MS, 7]), metric_of("a.b", [START_MS, 7])])
    assert response.status == 400
    assert len(response.json["errors"]) == 1
    assert response.json["errors"][0].startswith("metric[0](name=a.b:c).datapoints[0]")
    assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 1


@pytest.mark.slow
async def test_large_body_is_stored_whole(daemon: Running) -> None:
    points = [[START_MS + at, at] for at in range(30_000)]
    assert (await put(daemon, metric_of("a.b", *points))).status == 204
    found = await query(daemon, {"name": "a.b"})
    assert found[0]["results"][0]["values"] == points


async def test_lenient_json_is_stored(daemon: Running) -> None:
    text = f"{{name: 'a.b', tags: {{host: a}}, datapoints: [[{START_MS}, 7]]}}"
    assert (await http_post(daemon, PUT, text.encode())).status == 204
    assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 1


async def test_ledger_counts_all_points(daemon: Running) -> None:
    await put(daemon, [metric_of("a.b", [START_MS, 7], [START_MS, "x"]), {"name": "a.b"}], query="?sync")
    async with daemon.client() as client:
        stats = await client.stats()
    assert (stats["ledger.received"], stats["ledger.stored"], stats["ledger.balance"]) == (3, 1, 0)
    assert stats["ledger.refused reason=illegal_arguments"] == 2


async def test_unknown_names_answer_no_points(daemon: Running) -> None:
    await put(daemon, metric_of("a.b", [START_MS, 7]))
    for wanted in (
        {"name": "no.such"},
        {"name": "a.b", "tags": {"host": "b"}},
        {"name": "a.b", "tags": {"none": "a"}},
        {"name": "a.b", "tags": {"host": ["b", "c"]}},
    ):
        found = await query(daemon, wanted)
        assert found == [{"sample_size": 0, "results": [{"name": wanted["name"], "tags": {}, "values": []}]}]


async def test_tags_select_series(daemon: Running) -> None:
    await put(
        daemon, [metric_of("a.b", [START_MS, at], host=host) for at, host in enumerate(("web01", "web02", "db.1"))]
    )
    for values, wanted in (
        ("web01", [0]),
        (["web01", "nope", "db.1"], [0, 2]),
        ("regex:web.*", [0, 1]),
        ("regex:web", []),
        (["dbx1", "regex:web0[2-9]"], [1]),
    ):
        found = (await query(daemon, {"name": "a.b", "tags": {"host": values}}))[0]["results"][0]["values"]
        assert [value for _, value in found] == wanted


async def test_tags_of_series_are_answered(daemon: Running) -> None:
    await put(daemon, [metric_of("a.b", [START_MS, 1], host=host, dc="lga") for host in ("x", "y")])
    found = await query(daemon, {"name": "a.b"}, {"name": "no.such"}, path=f"{QUERY}/tags")
    assert found == [
        {"results": [{"name": "a.b", "tags": {"dc": ["lga"], "host": ["x", "y"]}, "values": []}]},
        {"results": [{"name": "no.such", "tags": {}, "values": []}]},
    ]
    later = await query(daemon, {"name": "a.b"}, path=f"{QUERY}/tags", start_absolute=START_MS + 86_400_000)
    assert later == [{"results": [{"name": "a.b", "tags": {}, "values": []}]}]


async def test_names_are_listed(daemon: Running) -> None:
    await put(daemon, [metric_of(name, [START_MS, 1], host="x") for name in ("b.c", "a.b", "a.c")])
    assert (await http_request(daemon, "/api/v1/metricnames?prefix=a.")).json == {"results": ["a.b", "a.c"]}
    assert (await http_request(daemon, "/api/v1/tagnames")).json == {"results": ["host"]}
    assert (await http_request(daemon, "/api/v1/tagvalues")).json == {"results": ["x"]}


async def test_health_and_features_are_answered(daemon: Running) -> None:
    assert (await http_request(daemon, "/api/v1/health/check")).status == 204
    assert all(one.endswith(": OK") for one in (await http_request(daemon, "/api/v1/health/status")).json)
    features = (await http_request(daemon, "/api/v1/features")).json
    assert [one["name"] for one in features] == ["aggregators", "group_by"]
    assert (await http_request(daemon, "/api/v1/features/group_by")).json == features[1]["properties"]
    assert (await http_request(daemon, "/api/v1/features/x")).json == {"errors": ["Unknown feature 'x'"]}


async def test_wrong_method_is_refused(daemon: Running) -> None:
    for path in (PUT, "/api/v1/metric/x", f"{QUERY}/tags"):
        assert (await http_request(daemon, path)).status == 405
    assert (await http_request(daemon, QUERY)).json == {"errors": ["query json must not be null or empty"]}


async def test_version_belongs_to_the_dialect(daemon: Running, tmp_path: Path) -> None:
    assert "short_revision" in (await http_request(daemon, "/api/v1/version")).json
    async with running(tmp_path / "other", SETTINGS | {"tsd.kairosdb.dialect": "true"}) as other:
        assert (await http_request(other, "/api/v1/version")).json["version"].startswith("KairosDB 1.3.0")


async def test_endpoints_are_off_by_default(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert (await put(daemon, metric_of("a.b", [START_MS, 7]))).status == 404
        assert (await http_request(daemon, "/api/v1/metricnames")).status == 404


async def test_read_only_daemon_refuses_points(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS | {"tsd.mode": "ro"}) as daemon:
        assert (await put(daemon, metric_of("a.b", [START_MS, 7]))).status == 404
        assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 0


async def test_other_paths_take_and_delete_nothing(tmp_path: Path) -> None:
    """Regression: in write-only mode a query was read as points, and refused and kept as such."""
    wanted = json.dumps(metric_of("a.b", [START_MS, 7])).encode()
    async with running(tmp_path, SETTINGS | {"tsd.mode": "wo"}, access=ADMIN) as daemon:
        for path in (QUERY, f"{QUERY}/tags", f"{PUT}/querry", f"{PUT}/delete/all"):
            assert (await http_post(daemon, path, wanted)).status == 404
        assert daemon.daemon.ingest.ledger.received == 0


HOLDABLE = ("q.cpu", "q.req", "q.day", "q.sparse", "q.rnd", "q.ms", "q.one", "q.edge", "q.gauge", "q.bigd")
UNLIKE = {"tags: rows, not points, decide": "rows have an hour", "tags: an earlier row": "rows have an hour"}


def comparable() -> list[dict[str, Any]]:
    """The recorded queries of metrics whose points any layout can hold."""
    found = []
    for case in recorded()["queries"]["cases"]:
        if case["status"] != 200 or "query" not in case:
            continue
        names = [one["name"] for one in case["query"]["metrics"]]
        if names and set(names) <= {*HOLDABLE, "q.nothing"} and case["name"] not in UNLIKE:
            found.append(case)
    return [case for case in found if "save_as" not in case["name"]]


@pytest.mark.slow
async def test_recorded_queries_are_answered(daemon: Running) -> None:
    for text in recorded()["queries"]["puts"]:
        if json.loads(text)["name"] in HOLDABLE if text.startswith("{") else False:
            assert (await http_post(daemon, PUT, text.encode())).status == 204, text[:100]
    cases = comparable()
    assert len(cases) > 300
    wrong = []
    async with daemon.client() as client:
        for case in cases:
            body = body_of(case).encode()
            path = case.get("path", QUERY)
            await client.send(post(path, body))
            response = await read_response(client)
            if response.status != 200 or not is_same(response.json, json.loads(case["answer"])):
                wrong.append((case["name"], response.status, response.body[:300]))
    assert wrong == []


async def test_empty_answers_have_a_content_type(tmp_path: Path) -> None:
    """KairosDB's Java client reports a failure without it."""
    async with running(tmp_path, SETTINGS, access=ADMIN) as daemon:
        span = json.dumps({"start_absolute": START_MS, "metrics": [{"name": "no.such"}]}).encode()
        for response in (
            await put(daemon, metric_of("a.b", [START_MS, 1])),
            await http_request(daemon, "/api/v1/health/check"),
            await http_post(daemon, f"{PUT}/delete", span),
            await http_request(daemon, "/api/v1/metric/a.b", method="DELETE"),
        ):
            assert (response.status, response.body) == (204, b"")
            assert response.headers["content-type"].startswith("application/json")


async def test_metric_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS, access=ADMIN) as daemon:
        await put(daemon, [metric_of("a.b", [START_MS, 1], [START_MS + 9_000_000, 2]), metric_of("b.c", [START_MS, 3])])
        assert (await http_request(daemon, "/api/v1/metric/a.b", method="DELETE")).status == 204
        assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 0
        assert (await query(daemon, {"name": "b.c"}))[0]["sample_size"] == 1
        assert (await http_request(daemon, "/api/v1/metric/no.such", method="DELETE")).status == 204
        await put(daemon, metric_of("a.b", [START_MS, 4]))
        assert (await query(daemon, {"name": "a.b"}))[0]["results"][0]["values"] == [[START_MS, 4]]


async def test_whole_hours_are_deleted(tmp_path: Path) -> None:
    hour = 3_600_000
    points = [[START_MS + at, at] for at in (0, hour - 1, hour, 2 * hour)]
    async with running(tmp_path, SETTINGS, access=ADMIN) as daemon:
        await put(daemon, [metric_of("a.b", *points), metric_of("a.b", *points, host="b")])
        body = {"start_absolute": START_MS, "end_absolute": START_MS + 10, "metrics": [{"name": "a.b"}]}
        refused = await http_post(daemon, f"{PUT}/delete", json.dumps(body).encode())
        assert refused.status == 400
        assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 8
        body |= {"end_absolute": START_MS + hour - 1, "metrics": [{"name": "a.b", "tags": {"host": "b"}}]}
        assert (await http_post(daemon, f"{PUT}/delete", json.dumps(body).encode())).status == 204
        assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 6


async def test_delete_needs_admin_and_the_setting(daemon: Running, tmp_path: Path) -> None:
    await put(daemon, metric_of("a.b", [START_MS, 1]))
    writer = {"tsd.access.anonymous": "read,write"}
    async with running(tmp_path / "writer", SETTINGS, access=writer) as other:
        assert (await http_request(other, "/api/v1/metric/a.b", method="DELETE")).status == 403
    enabled = SETTINGS | {"tsd.http.query.allow_delete": "false"}
    async with running(tmp_path / "off", enabled, access=ADMIN) as other:
        assert (await http_request(other, "/api/v1/metric/a.b", method="DELETE")).status == 403


async def test_pages_that_cors_allows_may_delete(tmp_path: Path) -> None:
    settings = SETTINGS | {"tsd.http.request.cors_domains": "http://a.example"}
    async with running(tmp_path, settings, access=ADMIN) as daemon:
        await put(daemon, metric_of("a.b", [START_MS, 1]))
        body = json.dumps({"start_absolute": START_MS, "metrics": [{"name": "a.b"}]}).encode()
        response = await http_post(daemon, f"{PUT}/delete", body, "Origin: http://a.example")
        assert response.status == 204
        assert (await query(daemon, {"name": "a.b"}))[0]["sample_size"] == 0


@pytest.mark.parametrize("value", [1 << 61, (1 << 63) - 1])
@pytest.mark.parametrize("unit", ["milliseconds", "seconds", "days", "weeks", "years"])
async def test_bucket_of_any_length_has_an_answer(daemon: Running, unit: str, value: int) -> None:
    """Regression: a length of more than 64 bits in ms was an internal error."""
    await http_post(daemon, PUT, json.dumps([metric_of("a.b", [START_MS, 1])]).encode())
    step = {"name": "sum", "sampling": {"value": value, "unit": unit}}
    body = {"start_absolute": START_MS, "metrics": [{"name": "a.b", "aggregators": [step]}]}
    found = await http_post(daemon, QUERY, json.dumps(body).encode())
    assert found.status in (200, 400), found.body


async def test_queries_beyond_their_bounds_are_refused(daemon: Running) -> None:
    tags = {f"t{at}": ["v"] for at in range(501)}
    many = [{"name": "a.b"}] * 501
    for metrics in (many, [{"name": "a.b", "tags": tags}]):
        body = {"start_absolute": START_MS, "metrics": metrics}
        refused = await http_post(daemon, QUERY, json.dumps(body).encode())
        assert refused.status == 400
        assert "501" in refused.json["errors"][0]
    assert len(await query(daemon, *many[:500])) == 500
