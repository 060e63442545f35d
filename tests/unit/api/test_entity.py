"""`/api/entity` on a daemon with the embedded store."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tests.unit.server.web_parts import HttpResponse, post, read_response
from tests.unit.tables.endpoints import request_of
from tsd.api.entity import EntityAccess, EntityEndpoint
from tsd.daemon.settings import now_ms

SETTINGS = {"tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"}
PAST_S = 1_500_000_000
LATER_S = 1 << 31  # of uptime
PAST = f"start={PAST_S - 600}"


def put(metric: str, time_s: int, value: float, host: str, tags: str = "") -> bytes:
    return f"put {metric} {time_s} {value} host={host}{tags}\n".encode()


POINTS = b"".join(
    [
        put("sys.cpu", PAST_S, 7, "web01", " cpu=0"),
        put("sys.cpu", PAST_S + 60, 2.5, "web01", " cpu=0"),
        put("sys.cpu", PAST_S + 120, 9, "web01", " cpu=0"),
        put("sys.mem", PAST_S, 3, "web01"),
        put("net.in", PAST_S, 5, "web01"),
        put("sys.mem", PAST_S, 8, "web02"),
        put("sys.mem", PAST_S, 1, "db/1"),
    ]
)
CPU = {"metric": "sys.cpu", "tags": {"cpu": "0"}}
DPS = {f"{PAST_S}000": 7, f"{PAST_S + 60}000": 2.5, f"{PAST_S + 120}000": 9}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SETTINGS) as made:
        await made.send_lines(POINTS)
        await made.daemon.ingest.writer.flush()
        yield made


async def answer(daemon: Running, path: str) -> Any:
    response = await http_request(daemon, f"/api/entity{path}")
    assert response.status == 200, response.body
    return response.json


async def edit(daemon: Running, method: str, name: str, body: object) -> HttpResponse:
    request = post(f"/api/entity/{name}", json.dumps(body).encode())
    async with daemon.client() as client:
        await client.send(request.replace(b"POST ", f"{method} ".encode(), 1))
        return await read_response(client)


async def names(daemon: Running, query: str) -> list[str]:
    return [one["entity"] for one in (await answer(daemon, f"?{query}"))["entities"]]


async def test_all_series_of_an_entity(daemon: Running) -> None:
    found = await answer(daemon, f"/web01?{PAST}")
    assert (found["entity"], found["metadata"], found["omitted"]) == ("web01", {}, 0)
    assert [one["metric"] for one in found["series"]] == ["net.in", "sys.cpu", "sys.mem"]
    assert found["series"][1] == {**CPU, "dps": DPS}
    assert (await answer(daemon, f"/db%2F1?{PAST}"))["series"][0]["dps"] == {f"{PAST_S}000": 1}


async def test_range_metrics_versions_and_limit(daemon: Running) -> None:
    times = list(DPS)
    found = await answer(daemon, f"/web01?start={PAST_S + 60}&end={PAST_S + 120}")
    assert found["series"] == [{**CPU, "dps": {times[1]: 2.5}}]
    found = await answer(daemon, "/web01?versions=2&metrics=*.cpu,other")
    assert found["series"] == [{**CPU, "dps": {times[1]: 2.5, times[2]: 9}}]
    found = await answer(daemon, f"/web01?{PAST}&metrics=sys.*&limit=1")
    assert ([one["metric"] for one in found["series"]], found["omitted"]) == (["sys.cpu"], 1)


async def test_known_entity_without_points_in_the_range(daemon: Running) -> None:
    assert (await answer(daemon, "/web01"))["series"] == []
    response = await http_request(daemon, "/api/entity/nosuch.host")
    assert response.status == 404
    assert "nosuch.host" in response.json["error"]["message"]


async def test_metadata(daemon: Running) -> None:
    assert (await edit(daemon, "POST", "web01", {"rack": "r1", "owner": "ops"})).status == 204
    assert (await edit(daemon, "POST", "web01", {"rack": "r2 ü"})).status == 204
    found = await answer(daemon, f"/web01?{PAST}")
    assert (found["metadata"], len(found["series"])) == ({"rack": "r2 ü", "owner": "ops"}, 3)
    assert (await edit(daemon, "PUT", "web01", {"owner": "dev", "dc": "eu"})).status == 204
    assert (await answer(daemon, "/web01"))["metadata"] == {"owner": "dev", "dc": "eu"}
    assert (await http_request(daemon, "/api/entity/web01?keys=dc,x", method="DELETE")).status == 204
    assert (await answer(daemon, "/web01"))["metadata"] == {"owner": "dev"}
    assert (await http_request(daemon, "/api/entity/web01", method="DELETE")).status == 204
    assert (await answer(daemon, "/web01"))["metadata"] == {}
    assert (await http_request(daemon, "/api/entity/web01", method="DELETE")).status == 404


@pytest.mark.parametrize("body", [{"keys": ["rack"]}, {"rack": "r1"}, ["rack"], "rack"])
async def test_delete_with_a_body_deletes_nothing(daemon: Running, body: object) -> None:
    """Regression: the body was ignored, so all metadata was deleted."""
    metadata = {"rack": "r1", "owner": "ops"}
    assert (await edit(daemon, "POST", "web01", metadata)).status == 204
    response = await edit(daemon, "DELETE", "web01", body)
    assert response.status == 400
    assert "keys" in response.json["error"]["details"]
    assert (await answer(daemon, "/web01"))["metadata"] == metadata
    assert (await edit(daemon, "DELETE", "web01", {})).status == 204
    assert (await answer(daemon, "/web01"))["metadata"] == {}


async def test_metadata_of_names_with_special_characters(tmp_path: Path) -> None:
    async with running(tmp_path, {**SETTINGS, "tsd.core.tag.allow_specialchars": "%"}) as daemon:
        assert b"meta:" not in await daemon.send_lines(put("m", PAST_S, 1, "100%") + b"meta 100% a=b\n")
        await daemon.daemon.ingest.writer.flush()
        assert (await edit(daemon, "POST", "100%25", {"c": "d"})).status == 204
        assert (await answer(daemon, "/100%25"))["metadata"] == {"a": "b", "c": "d"}
        assert (await edit(daemon, "POST", "100(", {"c": "d"})).status == 400


async def test_bad_metadata_changes_nothing(daemon: Running) -> None:
    bodies: list[object] = [
        {"a": "1", "b c": "2"},
        {"a": "x" * 65_537},
        {"a": 1},
        [],
        {str(n): "" for n in range(1001)},
    ]
    for body in bodies:
        assert (await edit(daemon, "PUT", "web01", body)).status == 400
    assert (await edit(daemon, "PUT", "web%2001", {"a": "1"})).status == 400
    assert (await edit(daemon, "PUT", "", {"a": "1"})).status == 400
    assert (await answer(daemon, "/web01"))["metadata"] == {}


async def test_newest_values(daemon: Running) -> None:
    found = await answer(daemon, "?prefix=web&metrics=sys.*")
    assert found["next"] is None
    mem = {"metric": "sys.mem", "tags": {}, "timestamp": PAST_S * 1000}
    cpu = {**CPU, "timestamp": (PAST_S + 120) * 1000, "value": 9}
    assert found["entities"] == [
        {"entity": "web01", "series": [cpu, {**mem, "value": 3}]},
        {"entity": "web02", "series": [{**mem, "value": 8}]},
    ]
    assert await names(daemon, "order=sys.mem:desc") == ["web02", "web01", "db/1"]
    assert await names(daemon, "order=sys.mem:asc&limit=2") == ["db/1", "web01"]
    assert await names(daemon, "order=net.in:asc") == ["web01"]


async def test_series_of_many_entities(daemon: Running) -> None:
    found = await answer(daemon, f"?prefix=web&{PAST}&metrics=sys.*")
    mem = {"metric": "sys.mem", "tags": {}}
    assert found == {
        "next": None,
        "entities": [
            {"entity": "web01", "series": [{**CPU, "dps": DPS}, {**mem, "dps": {f"{PAST_S}000": 3}}]},
            {"entity": "web02", "series": [{**mem, "dps": {f"{PAST_S}000": 8}}]},
        ],
    }
    assert await names(daemon, f"{PAST}&end={PAST_S + 60}&metrics=net.in") == ["web01"]
    assert await names(daemon, f"start={PAST_S + 60}") == ["web01"]
    assert await names(daemon, f"start={PAST_S + 600}") == []


async def test_open_points_are_in_series(daemon: Running) -> None:
    now_s = now_ms() // 1000
    times = [now_s - 2, now_s - 1]
    for at, time_s in enumerate(times):
        await daemon.send_lines(put("sys.cpu", time_s, at, "web01", " cpu=0") + put("open", time_s, at, "new"))
        await daemon.daemon.ingest.writer.flush_due()
    await daemon.send_lines(
        put("sys.cpu", now_s, 5, "web01", " cpu=0") + put("sys.cpu", times[0], 9, "web01", " cpu=0")
    )
    opened = {f"{times[0]}000": 9, f"{times[1]}000": 1, f"{now_s}000": 5}
    assert (await answer(daemon, f"/web01?{PAST}&metrics=sys.cpu"))["series"] == [{**CPU, "dps": DPS | opened}]
    newest = dict(list(opened.items())[1:])
    assert (await answer(daemon, f"/web01?{PAST}&versions=2&metrics=sys.cpu"))["series"] == [{**CPU, "dps": newest}]
    part = {f"{times[1]}000": 1}
    found = await answer(daemon, f"?start={times[1]}&end={now_s}")
    assert [(one["entity"], one["series"][0]["dps"]) for one in found["entities"]] == [("new", part), ("web01", part)]
    await daemon.daemon.ingest.writer.flush()
    assert (await answer(daemon, f"/web01?{PAST}&metrics=sys.cpu"))["series"] == [{**CPU, "dps": DPS | opened}]


async def test_open_points_of_a_reused_number_are_not_those_of_its_first_series(daemon: Running) -> None:
    daemon.daemon.ingest.open_window.table.evict(
        LATER_S, held_since_s=LATER_S
    )  # new series get the numbers of the first ones
    now_s = now_ms() // 1000
    for name in ("other.a", "other.b", "other.c", "other.d", "other.e"):
        await daemon.send_lines(put(name, now_s, 1, "new"))
    found = await answer(daemon, f"/web01?{PAST}")
    counts = {one["metric"]: len(one["dps"]) for one in found["series"]}
    assert counts == {"net.in": 1, "sys.cpu": 3, "sys.mem": 1}


async def test_pages_of_series(daemon: Running) -> None:
    hosts = [f"h{n:03}" for n in range(50)]
    await daemon.send_lines(b"".join(put("m", PAST_S, 1, host) for host in hosts[::2]))
    await daemon.daemon.ingest.writer.flush()
    await daemon.send_lines(b"".join(put("m", now_ms() // 1000, 1, host) for host in hosts[1::2]))
    await daemon.daemon.ingest.writer.flush_due()
    found: list[str] = []
    start: str | None = ""
    while start is not None:
        page = await answer(daemon, f"?prefix=h&start={PAST_S}&limit=7&from={start}")
        assert len(page["entities"]) <= 7
        found += [one["entity"] for one in page["entities"]]
        start = page["next"]
    assert found == hosts


async def test_silent_entities(daemon: Running) -> None:
    await daemon.send_lines(put("sys.mem", now_ms() // 1000, 4, "web02") + put("a.b", now_ms() // 1000, 1, "new"))
    await daemon.daemon.ingest.writer.flush_due()
    assert await names(daemon, "max_age=1d") == ["new", "web02"]
    for stale in ("stale=true", "stale"):
        assert await names(daemon, f"max_age=1d&{stale}") == ["db/1", "web01"]
    assert await names(daemon, "max_age=1d&stale=false") == ["new", "web02"]
    assert await names(daemon, "max_age=100y") == ["db/1", "new", "web01", "web02"]
    assert (await answer(daemon, "/new"))["entity"] == "new"


async def test_pages(daemon: Running) -> None:
    hosts = [f"h{n:04}" for n in range(450)]
    await daemon.send_lines(b"".join(put("m", PAST_S, at, host) for at, host in enumerate(hosts)))
    await daemon.daemon.ingest.writer.flush()
    found: list[str] = []
    start: str | None = ""
    while start is not None:
        page = await answer(daemon, f"?prefix=h&limit=120&from={start}")
        assert len(page["entities"]) <= 120
        found += [one["entity"] for one in page["entities"]]
        start = page["next"]
    assert found == hosts
    assert await names(daemon, "order=m:desc&limit=2") == [hosts[-1], hosts[-2]]


async def test_a_large_answer_is_whole_and_its_memory_is_released(daemon: Running) -> None:
    lines = b"".join(put("big", PAST_S + at, at, "big") for at in range(12_000))
    await daemon.send_lines(lines)
    await daemon.daemon.ingest.writer.flush()
    dps = (await answer(daemon, f"/big?{PAST}"))["series"][0]["dps"]
    assert list(dps.values()) == list(range(12_000))
    await http_request(daemon, "/api/entity/nosuch")
    assert daemon.daemon.query.engine.memory.held == 0


async def test_an_answer_beyond_the_memory_limit_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        memory = daemon.daemon.query.engine.memory
        others = memory.share()
        others.add(memory.limit - 500_000)
        await daemon.send_lines(b"".join(put("big", PAST_S + at, at, "big") for at in range(6000)))
        await daemon.daemon.ingest.writer.flush()
        assert (await http_request(daemon, f"/api/entity/big?{PAST}")).status == 413
        assert memory.held == others.held
        assert (await http_request(daemon, "/api/entity/big?versions=1")).status == 200
        others.release()
        assert (await http_request(daemon, f"/api/entity/big?{PAST}")).status == 200


async def test_values_that_are_read_count_although_none_is_chosen(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon:
        memory = daemon.daemon.query.engine.memory
        hosts = [f"h{at}" for at in range(100)]
        await daemon.send_lines(b"".join(put(f"m{at}", PAST_S, at, host) for host in hosts for at in range(40)))
        await daemon.daemon.ingest.writer.flush()
        with_little = memory.share()
        with_little.add(memory.limit - 500_000)
        assert (await http_request(daemon, "/api/entity?metrics=none")).status == 413
        assert memory.held == with_little.held
        with_little.release()
        assert await names(daemon, "metrics=none") == []
        assert memory.held == 0


BAD_PARAMETERS = [
    "/web01?start=20&end=10",
    "/web01?start=yesterday",
    "/web01?end=2020/13/01-00:00",
    "/web01?start=99999999999999999",
    "/web01?start=" + "9" * 5000,
    "/web01?versions=0",
    "/web01?versions=100001",
    "/web01?limit=x",
    "/web01?metrics=" + "a," * 101,
    "/web%ff",
    "?order=sys.mem",
    "?order=sys.mem:up",
    "?order=sys.mem:asc&from=a",
    "?max_age=old",
    "?stale=true",
    "?limit=10001",
    "?end=1h-ago",
    "?start=20&end=10",
    "?start=1h-ago&order=name",
    "?start=1h-ago&versions=2",
    "?prefix=%E2%82%AC",
]


async def test_bad_parameter(daemon: Running) -> None:
    for path in BAD_PARAMETERS:
        response = await http_request(daemon, f"/api/entity{path}")
        assert response.status == 400, path
        details = response.json["error"]["details"]
        assert "got" in details, path
        assert "wanted" in details, path


async def test_more_words_in_the_path_are_not_found(daemon: Running) -> None:
    assert (await http_request(daemon, "/api/entity/web01/x")).status == 404
    assert (await http_request(daemon, "/api%2Fentity/web01")).status == 404


async def test_without_entities(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        for path in ("/api/entity", "/api/entity/web01"):
            response = await http_request(daemon, path)
            assert response.status == 501
            assert "tsd.entity.enabled" in response.json["error"]["details"]


@pytest.mark.parametrize(("mode", "read", "written"), [("ro", 200, 403), ("wo", 403, 204)])
async def test_modes(mode: str, read: int, written: int, tmp_path: Path) -> None:
    async with running(tmp_path, {**SETTINGS, "tsd.mode": mode}) as daemon:
        assert (await http_request(daemon, "/api/entity")).status == read
        assert (await edit(daemon, "POST", "web01", {"a": "1"})).status == written


@pytest.mark.parametrize("target", ["/api/entity", f"/api/entity?{PAST}", f"/api/entity/web01?{PAST}"])
async def test_answers_wait_for_what_only_the_journal_has(tmp_path: Path, target: str) -> None:
    async with running(tmp_path, SETTINGS) as daemon:

        async def stored(_: bytes) -> bool:  # as after a crash
            await daemon.send_lines(POINTS)
            return await daemon.daemon.ingest.writer.flush()

        entities = daemon.daemon.tables.entities
        assert entities is not None
        access, engine = EntityAccess(may_read=True, may_write=True), daemon.daemon.query.engine
        endpoint = EntityEndpoint(entities, engine, access, trio.lowlevel.checkpoint, stored, now_ms)
        response = await endpoint.handle(replace(request_of("GET", target), split=urlsplit(target)))
        assert isinstance(response.body, bytes)
        assert b"sys.mem" in response.body


async def test_series_has_one_column_however_numbers_of_row_keys_are_written(tmp_path: Path) -> None:
    tall = {"tsd.storage.layout": "tall", "tsd.tall.tables": "SENSOR {meter:05}#{day} kwh"}
    async with running(tmp_path, {**SETTINGS, **tall}) as daemon:
        await daemon.send_lines(put("kwh", PAST_S, 1, "a", " meter=007") + put("kwh", PAST_S + 60, 2, "a", " meter=7"))
        await daemon.daemon.ingest.writer.flush()
        dps = {f"{PAST_S}000": 1, f"{PAST_S + 60}000": 2}
        found = await answer(daemon, f"/a?{PAST}")
        assert found["series"] == [{"metric": "kwh", "tags": {"meter": "7"}, "dps": dps}]
        [newest] = (await answer(daemon, ""))["entities"]
        assert [(one["tags"], one["value"]) for one in newest["series"]] == [({"meter": "7"}, 2)]
