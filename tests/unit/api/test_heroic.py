"""POST /write on daemons: Heroic's body on OpenTSDB's rows, on another layout and on Heroic's table."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import layouts
from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tests.unit.server.web_parts import HttpResponse

T_MS = 1_300_000_000_000
TAGS = {"site": "gew", "what": "cpu-idle-percentage", "system-component": "cpu", "cpu-type": "idle"}
RESOURCE = {"podname": "pod-example-123-abc", "host": "database.example.com"}
HEROIC = {"tsd.storage.layout": "heroic", "tsd.heroic.resource_tags": "host, podname"}
DATA = [[T_MS, 42.0], [T_MS + 1_000_000, 84.0]]


def body(tags: dict[str, str], resource: dict[str, str] | None = None, data: Any = DATA, **more: Any) -> dict[str, Any]:
    series = {"key": "system", "tags": tags, "resource": resource or {}}
    return {"series": series, "data": {"type": "points", "data": data, **more}}


async def write(daemon: Running, wanted: object) -> HttpResponse:
    return await http_post(daemon, "/write", json.dumps(wanted).encode())


async def answer(daemon: Running) -> list[Any]:
    found = await http_request(daemon, "/api/query?start=1299999999&end=1300002000&m=none:system")
    return [(group["tags"], group["dps"]) for group in found.json]


@pytest.fixture
async def heroic(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, HEROIC) as daemon:
        yield daemon


@layouts.on_all
async def test_points_arrive_on_any_layout(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.heroic.enabled": "true"}) as daemon:
        found = await write(daemon, body(TAGS, RESOURCE))
        assert (found.status, found.json) == (200, {"errors": []})
        assert await answer(daemon) == [({**TAGS, **RESOURCE}, {"1300000000": 42.0, "1300001000": 84.0})]


async def test_documented_points_arrive_in_heroics_table(heroic: Running) -> None:
    found = await write(heroic, body({**TAGS, "unit": "%"}, RESOURCE))
    assert (found.status, found.json) == (200, {"errors": []})
    assert await answer(heroic) == [({**TAGS, "unit": "%", **RESOURCE}, {"1300000000": 42.0, "1300001000": 84.0})]


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (body(TAGS, {"zone": "a"}), "zone"),
        (body({"host": "a"}), "host"),
        (body({"host": "a"}, {"host": "b"}), "host"),
        (body({}), "series"),
        (body(TAGS, type="spread"), "spread"),
        (body(TAGS, data=[["now", 1]]), "data"),
        ({"series": {"key": "system"}}, "data"),
        ([], "object"),
    ],
)
async def test_wrong_bodies_are_refused_whole(heroic: Running, wanted: object, named: str) -> None:
    found = await write(heroic, wanted)
    assert found.status == 400
    assert named in found.json["errors"][0]


async def test_only_bad_points_are_refused(heroic: Running) -> None:
    found = await write(heroic, body(TAGS, RESOURCE, [[T_MS, 1], [-5, 2], [T_MS + 1000, 3]]))
    assert found.status == 400
    [error] = found.json["errors"]
    assert error.startswith("data.data[1]")
    [(_, points)] = await answer(heroic)
    assert {time: float(value) for time, value in points.items()} == {"1300000000": 1.0, "1300000001": 3.0}


@pytest.mark.parametrize("wrong", [["now", 2], [T_MS], [T_MS, "2"], [T_MS, None], T_MS, {"t": 1}, [T_MS, 2, 3]])
async def test_points_of_wrong_types_are_refused_alone(heroic: Running, wrong: Any) -> None:
    found = await write(heroic, body(TAGS, RESOURCE, [[T_MS, 1], wrong, [T_MS + 1000, 3.5]]))
    assert found.status == 400
    [error] = found.json["errors"]
    assert error.startswith("data.data[1]: Expected ")
    [(_, points)] = await answer(heroic)
    assert {time: float(value) for time, value in points.items()} == {"1300000000": 1.0, "1300000001": 3.5}


async def test_bad_timeout_is_the_mistake_of_a_client(heroic: Running) -> None:
    found = await http_post(heroic, "/write?sync_timeout=x", json.dumps(body(TAGS, RESOURCE)).encode())
    assert (found.status, found.json) == (400, {"errors": ['For input string: "x"']})
    assert heroic.daemon.ingest.ledger.received == 0


async def test_a_name_with_a_blank_is_refused(heroic: Running) -> None:
    found = await write(heroic, body({**TAGS, "rack": "a b"}, RESOURCE))
    assert (found.status, len(found.json["errors"])) == (400, 2)


async def test_the_path_is_absent_unless_enabled(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        assert (await write(daemon, body(TAGS))).status == 404


@pytest.mark.parametrize("path", ["/write/anything", "/write/a/b"])
async def test_paths_below_are_unknown(heroic: Running, path: str) -> None:
    found = await http_post(heroic, path, json.dumps(body(TAGS, RESOURCE)).encode())
    assert (found.status, heroic.daemon.ingest.ledger.received) == (404, 0)
    assert (await http_post(heroic, "/write/", json.dumps(body(TAGS, RESOURCE)).encode())).status == 200
