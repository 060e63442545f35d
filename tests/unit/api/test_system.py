"""What runs here, its settings, numbers and log; files; and its end."""

import logging
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import trio

from tests.running import Running, running
from tests.unit.api.http_requests import http_request
from tests.unit.server.web_parts import get, serving
from tsd.api import system
from tsd.api.system import in_force
from tsd.config import log
from tsd.config.loader import keys
from tsd.config.settings import Config, Mode
from tsd.tables import filters
from tsd.tables.quirks import CORRECTED


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.mark.difference(
    "serializers-endpoint",
    topic="http",
    theirs="`/api/serializers` is documented but does not exist",
    ours="It exists",
)
async def test_serializers_are_listed(daemon: Running) -> None:
    """OpenTSDB documents the list and answers 404."""
    [json] = (await http_request(daemon, "/api/serializers")).json
    assert json["serializer"] == "json"
    assert json["response_content_type"] == "application/json; charset=UTF-8"


async def test_version_is_json_or_two_lines(daemon: Running) -> None:
    assert (await http_request(daemon, "/version?json")).json == (await http_request(daemon, "/api/version")).json
    async with daemon.client() as client:
        await client.send(b"version\nexit\n")
        assert (await http_request(daemon, "/version")).body == await client.read_to_end()


async def test_settings_are_texts_in_order_and_secrets_are_hidden(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (await http_request(daemon, "/api/config")).json
    assert list(body) == sorted(keys())
    assert body["tsd.mode"] == Mode.READ_WRITE.value
    assert body["tsd.network.port"] == "0"
    assert body["tsd.core.auto_create_metrics"] == "true"
    assert body["tsd.storage.flush_interval"].isdigit()
    assert (body["tsd.query.series_index"], body["tsd.tls.hsts"]) == ("true", "0")
    assert "None" not in body.values()
    field = keys()["tsd.http.staticroot"]
    monkeypatch.setattr("tsd.config.in_use.keys", lambda: {"tsd.my.passphrase": field})
    assert in_force(Config(staticroot="x"))["tsd.my.passphrase"] == "********"


async def test_filters_are_those_of_queries(daemon: Running) -> None:
    body = (await http_request(daemon, "/api/config/Filters")).json
    assert sorted(body) == sorted(
        "regexp iwildcard wildcard iliteral_or literal_or not_iliteral_or not_literal_or".split()
    )
    assert all(sorted(help_) == ["description", "examples"] for help_ in body.values())
    assert sorted(body) == sorted(filters.TYPES)
    for kind, help_ in body.items():
        for example in help_["examples"].split(", "):
            tagk, _, value = example.partition("=")
            assert filters.read_filter(tagk, value, group_by=False).type == kind


async def test_not_key_filter_is_listed_when_corrected(tmp_path: Path) -> None:
    """Menus of dashboards are made of this list."""
    async with running(tmp_path, {"tsd.query.corrected": "true"}) as daemon:
        body = (await http_request(daemon, "/api/config/filters")).json
    example = body["not_key"]["examples"].partition("=")[2]
    assert filters.read_filter("host", example, group_by=False, quirks=CORRECTED).type == "not_key"


@pytest.mark.parametrize(
    ("kind", "expression", "passing"),
    [
        ("regexp", "eb?0", ["web01", "web02"]),
        ("regexp", "^eb0", []),
        ("regexp", "^web0[12]$", ["web01", "web02"]),
        ("wildcard", "w*", ["web01", "web02"]),
        ("wildcard", "*", ["web01", "web02", "WeB03"]),
        ("iwildcard", "w*", ["web01", "web02", "WeB03"]),
        ("literal_or", "web01|web03", ["web01"]),
        ("iliteral_or", "WEB01|web03", ["web01", "WeB03"]),
        ("not_literal_or", "web01|web03", ["web02", "WeB03"]),
        ("not_iliteral_or", "WEB01|web03", ["web02"]),
    ],
)
def test_filters_match_as_described(kind: str, expression: str, passing: list[str]) -> None:
    matcher = filters.matcher_of(filters.make_filter("host", kind, expression))
    assert [value for value in ("web01", "web02", "WeB03") if matcher.matches(value)] == passing


async def test_stats_are_points_and_lines(daemon: Running) -> None:
    await daemon.send_lines(b"put m 1500000000 1 a=b\n")
    await http_request(daemon, "/nowhere")
    body = (await http_request(daemon, "/api/stats")).json
    points = {(point["metric"], point["tags"].get("type")): int(point["value"]) for point in body}
    assert points["tsd.rpc.received", "http"] == 2
    assert points["tsd.ledger.received", None] == 1
    lines = (await http_request(daemon, "/stats")).body.decode().splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        line.split(" ")[0] for line in (await http_request(daemon, "/stats?json")).json
    ]


@pytest.mark.parametrize("what", ["jvm", "threads", "region_clients", "anything"])
async def test_other_stats_are_json(daemon: Running, what: str) -> None:
    body = (await http_request(daemon, f"/api/stats/{what}")).json
    kinds = {"jvm": dict, "threads": list, "region_clients": list, "anything": list}
    assert isinstance(body, kinds[what])
    if what == "threads":
        assert any(thread["name"] == "MainThread" and thread["stack"] for thread in body)


async def test_log_is_newest_first_and_its_level_can_change() -> None:
    handlers = list(logging.getLogger().handlers)
    log.configure("info", "json", lambda: 0.0)
    try:
        async with serving(system.log_routes()) as served:
            logger = structlog.get_logger()
            logger.info("first", port=1)
            logger.debug("unheard")
            assert (await served.request(get("/logs?level=DEBUG"))).body == b"Set the log level to DEBUG on 1 logger.\n"
            logger.debug("second", trace="a\nb")
            second, action, first, *_ = (await served.request(get("/logs?json"))).json
            assert re.fullmatch(r"\d+\tINFO\tmain\ttsd\tfirst port=1", first)
            assert second.endswith("\tDEBUG\tmain\ttsd\tsecond trace='a\\nb'")
            assert (await served.request(get("/logs"))).body.decode().splitlines()[:3] == [second, action, first]
            response = await served.request(get("/logs?level=loud&json"))
            assert (response.status, response.json) == (400, {"err": "Invalid level: loud"})
            await served.request(get("/logs?level=error"))
            newest, *_ = (await served.request(get("/logs?json"))).json
            assert "\tadmin.action " in newest
            assert "action='GET /logs?level=error'" in newest
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers = handlers


async def test_dropcaches_drops_names(daemon: Running) -> None:
    response = await http_request(daemon, "/api/dropcaches", method="DELETE")
    assert response.json == {"message": "Caches dropped", "status": "200"}


async def test_only_files_below_the_folder_are_served(tmp_path: Path) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "a.js").write_text("a")
    (folder / "favicon.ico").write_text("i")
    (tmp_path / "secret").write_text("s")
    os.symlink(tmp_path / "secret", folder / "link")
    async with running(tmp_path / "state", {"tsd.http.staticroot": str(folder)}) as daemon:
        response = await http_request(daemon, "/s/a.js")
        assert (response.body, response.headers["content-type"]) == (b"a", "text/javascript")
        assert response.headers["cache-control"] == "max-age=31536000"
        assert (await http_request(daemon, "/s/a.js?nocache")).headers["cache-control"] == "max-age=0"
        assert (await http_request(daemon, "/favicon.ico")).body == b"i"
        for path in ("/s/link", "/s/nope", "/s//etc/passwd", "/s/%2e%2e/secret", "/s/."):
            response = await http_request(daemon, path)
            assert (response.status, response.json["error"]["message"]) == (404, "Page not found")
        assert b"Malformed URI <code>/s/../secret</code>" in (await http_request(daemon, "/s/../secret")).body
        assert b"URI too short <code>/s</code>" in (await http_request(daemon, "/s")).body


async def test_diediedie_stops_the_daemon_if_allowed(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as daemon:
        assert (await http_request(daemon, "/diediedie")).status == 404
    async with running(tmp_path / "b", {"tsd.no_diediedie": "false"}) as daemon:
        assert b"<title>TSD Exiting</title>" in (await http_request(daemon, "/diediedie")).body
        with trio.fail_after(30):
            await daemon.stop.wait()
