"""`/api/query/last` and lookups of entities, answered from the table of newest values, with OpenTSDB's and Heroic's
layouts."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tsd.daemon.settings import now_ms

PAST_S = 1_500_000_000
LINES = [
    f"put sys.cpu {PAST_S} 7 host=web01 cpu=0",
    f"put sys.cpu {PAST_S + 60} 42.1 host=web01 cpu=0",
    f"put sys.cpu {PAST_S} 8 host=web01 cpu=1",
    f"put sys.cpu {PAST_S} 9 host=web02 cpu=0",
    f"put sys.mem {PAST_S} 3 host=web01",
    f"put sys.mem {PAST_S} 4 dc=eu",
]


@pytest.fixture(params=["opentsdb", "heroic"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    return {
        "tsd.entity.enabled": "true",
        "tsd.core.auto_create_metrics": "true",
        "tsd.storage.layout": request.param,
    }


@pytest.fixture
async def daemon(tmp_path: Path, settings: dict[str, str]) -> AsyncIterator[Running]:
    """A daemon that has not written the points itself."""
    async with running(tmp_path, settings) as made:
        await made.send_lines("".join(line + "\n" for line in LINES).encode())
        await made.daemon.ingest.writer.flush()
    async with running(tmp_path, settings) as made:
        yield made


async def answer(daemon: Running, path: str) -> Any:
    response = await http_request(daemon, path)
    assert response.status == 200, response.body
    return response.json


async def last(daemon: Running, query: str) -> dict[str, tuple[int, str]]:
    found = await answer(daemon, f"/api/query/last?resolve&{query}")
    return {json.dumps(one["tags"], sort_keys=True): (one["timestamp"] // 1000, one["value"]) for one in found}


async def test_newest_points_are_found_however_old(daemon: Running) -> None:
    found = await last(daemon, "timeseries=sys.cpu{host=web01}")
    assert {tags: (at, float(value)) for tags, (at, value) in found.items()} == {
        '{"cpu": "0", "host": "web01"}': (PAST_S + 60, pytest.approx(42.1)),
        '{"cpu": "1", "host": "web01"}': (PAST_S, 8),
    }
    assert await last(daemon, "timeseries=sys.cpu{host=web01,cpu=0}&back_scan=2") == {}


async def test_open_and_new_points_count(daemon: Running) -> None:
    now_s = now_ms() // 1000
    await daemon.send_lines(f"put sys.cpu {now_s} 11 host=web02 cpu=0\nput sys.new {now_s} 1 host=web01\n".encode())
    found = await last(daemon, "timeseries=sys.cpu{host=web02,cpu=0}&back_scan=2")
    assert [(at, float(value)) for at, value in found.values()] == [(now_s, 11)]
    assert [at for at, _ in (await last(daemon, "timeseries=sys.new{host=web01}")).values()] == [now_s]


async def test_lookups_find_all_series_of_an_entity(daemon: Running) -> None:
    found = (await answer(daemon, "/api/search/lookup?m=*{host=web01}"))["results"]
    assert sorted((one["metric"], one["tags"].get("cpu")) for one in found) == [
        ("sys.cpu", "0"),
        ("sys.cpu", "1"),
        ("sys.mem", None),
    ]
    assert len({one["tsuid"] for one in found}) == 3
    tsuids = "&".join(f"tsuids={one['tsuid']}" for one in found)
    assert len(await last(daemon, tsuids)) == 3
    found = (await answer(daemon, "/api/search/lookup?m=*{host=web01,cpu=1}&limit=5"))["results"]
    assert [(one["metric"], one["tags"]) for one in found] == [("sys.cpu", {"host": "web01", "cpu": "1"})]
    assert len((await answer(daemon, "/api/search/lookup?m=*{host=web01,=1}"))["results"]) == 1
    assert len((await answer(daemon, "/api/search/lookup?m={host=web01,cpu=*}"))["results"]) == 2
    assert len((await answer(daemon, "/api/search/lookup?m=*{host=web01}&limit=2"))["results"]) == 2


async def test_series_of_a_metric_are_found_without_an_index(tmp_path: Path) -> None:
    settings = {
        "tsd.entity.enabled": "true",
        "tsd.core.auto_create_metrics": "true",
        "tsd.query.series_index": "false",
    }
    async with running(tmp_path, settings) as made:
        await made.send_lines("".join(line + "\n" for line in LINES).encode())
        await made.daemon.ingest.writer.flush()
    async with running(tmp_path, settings) as made:
        assert set(await last(made, "timeseries=sys.cpu{host=web01}")) == {
            '{"cpu": "0", "host": "web01"}',
            '{"cpu": "1", "host": "web01"}',
        }
        assert set(await last(made, "timeseries=sys.mem{host=web01}")) == {'{"host": "web01"}'}
        found = (await answer(made, "/api/search/lookup?m=sys.cpu{host=web01,cpu=*}&limit=1"))["results"]
        assert [one["tags"]["cpu"] for one in found] == ["0"]
        assert (await answer(made, "/api/search/lookup?m=sys.cpu{host=web01,dc=eu}"))["results"] == []
