"""Newest points and lookups of points of the present hour, on each of the daemon's own layouts."""

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.running import running
from tests.unit.api.http_requests import http_request
from tsd.daemon.settings import now_ms


@pytest.mark.parametrize("entities", ["false", "true"])
@pytest.mark.parametrize("layout", ["opentsdb", "tall", "heroic"])
async def test_points_of_the_present_are_found_as_soon_as_they_are_accepted(
    tmp_path: Path, layout: str, entities: str
) -> None:
    settings = {
        "tsd.core.auto_create_metrics": "true",
        "tsd.storage.layout": layout,
        "tsd.entity.enabled": entities,
        "tsd.entity.tag": "dc",  # not all series have it
    }
    now_s = now_ms() // 1000
    async with running(tmp_path, settings) as daemon:
        for number, name in enumerate(("a", "b")):
            await daemon.send_lines(f"put new.{name} {now_s} {number + 1} host=a\n".encode())
            [found] = (await http_request(daemon, f"/api/search/lookup?m={quote(f'new.{name}')}")).json["results"]
            assert (found["metric"], found["tags"]) == (f"new.{name}", {"host": "a"})
        for name in ("a", "c"):
            await daemon.send_lines(f"put new.{name} {now_s} 3 host=b\nput new.{name} {now_s - 1} 4 host=c\n".encode())
            newest = (await http_request(daemon, f"/api/query/last?timeseries=new.{name}&resolve")).json
            values = {one["tags"]["host"]: float(one["value"]) for one in newest}
            assert values == {"b": 3.0, "c": 4.0, **({"a": 1.0} if name == "a" else {})}


@pytest.mark.parametrize("entities", ["false", "true"])
@pytest.mark.parametrize("layout", ["opentsdb", "tall", "heroic"])
async def test_deleted_points_are_not_the_newest(tmp_path: Path, layout: str, entities: str) -> None:
    settings = {
        "tsd.core.auto_create_metrics": "true",
        "tsd.http.query.allow_delete": "true",
        "tsd.storage.layout": layout,
        "tsd.entity.enabled": entities,
        "tsd.entity.tag": "host",
    }
    now_s = now_ms() // 1000
    async with running(tmp_path, settings) as daemon:
        await daemon.send_lines(
            f"put m {now_s - 3700} 1 host=a\nput m {now_s} 2 host=a\nput m {now_s} 3 host=b\n".encode()
        )
        for url, wanted in (
            ("/api/query/last?timeseries=m&resolve", {"a": 2.0, "b": 3.0}),
            (f"/api/query?start={now_s - 1}&m=none:m%7Bhost=a%7D&delete=true", None),
            ("/api/query/last?timeseries=m&resolve", {"a": 1.0, "b": 3.0}),
        ):
            method = "DELETE" if wanted is None else "GET"
            found = await http_request(daemon, url, method=method)
            assert found.status == 200, found.body
            if wanted is not None:
                assert {one["tags"]["host"]: float(one["value"]) for one in found.json} == wanted
