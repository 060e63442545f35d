"""Points that are deleted over HTTP leave the tables of entities, with OpenTSDB's and Heroic's layouts."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running, running
from tests.unit.api.http_requests import http_post, http_request
from tsd.daemon.settings import now_ms

START_S = 1_500_001_200  # the start of an hour
HOUR_S = 3600
WEB01 = [START_S + at for at in (0, 60, HOUR_S, HOUR_S + 60, 3 * HOUR_S)]
WEB02 = [START_S + 30, START_S + HOUR_S + 30]


@pytest.fixture(params=["opentsdb", "heroic"])
async def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """A daemon with points in memory and in the store."""
    settings = {
        "tsd.entity.enabled": "true",
        "tsd.core.auto_create_metrics": "true",
        "tsd.http.query.allow_delete": "true",
        "tsd.kairosdb.enabled": "true",
        "tsd.storage.layout": request.param,
    }
    async with running(tmp_path, settings) as made:
        given = [("web01", WEB01), ("web02", WEB02)]
        lines = [f"put sys.cpu {at} {at % 1000} host={host}" for host, times in given for at in times]
        await made.send_lines("".join(line + "\n" for line in [*lines, f"put sys.mem {START_S} 1 host=web01"]).encode())
        yield made


async def answer(daemon: Running, path: str, method: str = "GET") -> Any:
    response = await http_request(daemon, path, method=method)
    assert response.status == 200, response.body
    return response.json


async def delete(daemon: Running, first_s: int, last_s: int, series: str) -> None:
    await answer(daemon, f"/api/query?start={first_s}&end={last_s}&m=none:{series}", "DELETE")


async def times(daemon: Running, host: str, metric: str = "sys.cpu") -> list[int]:
    """Return the times of the points of a host, which the newest value must agree with."""
    response = await http_request(daemon, f"/api/entity/{host}?start=1")
    if response.status == 404:
        newest = await answer(daemon, f"/api/entity?prefix={host}")
        assert newest["entities"] == []
        return []
    found = {one["metric"]: [int(at) for at in one["dps"]] for one in response.json["series"]}.get(metric, [])
    entities = (await answer(daemon, f"/api/entity?prefix={host}"))["entities"]
    newest = {one["metric"]: one["timestamp"] for entity in entities for one in entity["series"]}
    assert newest.get(metric) == (found[-1] if found else None)
    return found


async def test_deleted_hours_leave_the_tables(daemon: Running) -> None:
    await delete(daemon, START_S, START_S + 10, "sys.cpu{host=web01}")
    assert await times(daemon, "web01") == [at * 1000 for at in WEB01[2:]]
    await delete(daemon, START_S + 3 * HOUR_S, START_S + 4 * HOUR_S, "sys.cpu{host=*}")
    assert await times(daemon, "web01") == [at * 1000 for at in WEB01[2:4]]
    assert await times(daemon, "web02") == [at * 1000 for at in WEB02]
    last = await answer(daemon, "/api/query/last?timeseries=sys.cpu%7Bhost=web01%7D&resolve")
    assert [one["timestamp"] for one in last] == [WEB01[3] * 1000]
    await delete(daemon, START_S, START_S + 9 * HOUR_S, "sys.cpu")
    await delete(daemon, START_S, START_S + 9 * HOUR_S, "sys.mem")
    assert await times(daemon, "web01") == await times(daemon, "web02") == []
    await daemon.send_lines(f"put sys.cpu {WEB01[0]} 5 host=web01\n".encode())
    await daemon.daemon.ingest.writer.flush()
    assert await times(daemon, "web01") == [WEB01[0] * 1000]


async def test_points_of_the_open_hour_are_deleted(daemon: Running) -> None:
    now_s = now_ms() // 1000
    await daemon.send_lines(f"put sys.cpu {now_s} 5 host=web01\nput sys.cpu {now_s} 5 host=web03\n".encode())
    await delete(daemon, now_s - 1, now_s + 1, "sys.cpu")
    assert await times(daemon, "web01") == [at * 1000 for at in WEB01]
    assert await times(daemon, "web03") == []


async def test_kairosdbs_deletes_reach_the_tables(daemon: Running) -> None:
    whole_hours = {"start_absolute": START_S * 1000, "end_absolute": (START_S + 2 * HOUR_S) * 1000 - 1}
    metric = {"name": "sys.cpu", "tags": {"host": ["web01"]}}
    body = json.dumps({**whole_hours, "metrics": [metric]}).encode()
    assert (await http_post(daemon, "/api/v1/datapoints/delete", body)).status == 204
    assert await times(daemon, "web01") == [WEB01[4] * 1000]
    assert await times(daemon, "web02") == [at * 1000 for at in WEB02]
    assert await times(daemon, "web01", "sys.mem") == [START_S * 1000]
