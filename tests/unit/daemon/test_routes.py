"""All endpoints of a daemon, and those whose modules are imported with the first request."""

import json
import threading
from pathlib import Path

import pytest
import trio

from tests.running import Client, running
from tests.unit.server.web_parts import get, post, read_response
from tsd.daemon.routes import DeferredEndpoints
from tsd.daemon.settings import now_ms
from tsd.server.http.messages import Endpoint, Request, Response

REQUEST = Request("GET", "/metrics", ("metrics",), {})


async def answer(request: Request) -> Response:
    return Response(200, request.path.encode(), "text/plain")


async def test_requests_at_the_same_time_build_once_in_a_thread() -> None:
    threads = []

    def build() -> dict[str, Endpoint]:
        threads.append(threading.current_thread())
        return {"metrics": answer, "q": answer}

    found = DeferredEndpoints(build).at("metrics", "q")
    bodies = []

    async def ask(path: str) -> None:
        bodies.append((await found[path](REQUEST)).body)

    async with trio.open_nursery() as nursery:
        for path in ("metrics", "q", "metrics"):
            nursery.start_soon(ask, path)
    assert bodies == [b"/metrics"] * 3
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


async def test_failed_build_is_tried_again_with_the_next_request() -> None:
    failures = [OSError("too many open files")]

    def build() -> dict[str, Endpoint]:
        if failures:
            raise failures.pop()
        return {"metrics": answer}

    endpoint = DeferredEndpoints(build).at("metrics")["metrics"]
    with pytest.raises(OSError, match="too many"):
        await endpoint(REQUEST)
    assert (await endpoint(REQUEST)).status == 200


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/metrics", 200, b"tsd_build_info"),
        ("/", 200, b"<!DOCTYPE html>"),
        ("/ui/access", 200, b"aggregators"),
        ("/q?start=1h-ago&m=sum:absent&ascii", 500, b"No such name"),
        ("/api/query/gexp?start=1h-ago&exp=absolute(sum:absent)", 400, b"No such name"),
        ("/api/query/exp", 500, b"error"),
        ("/api/entity/web01", 501, b"Entities are not kept"),
    ],
)
async def test_every_deferred_endpoint_of_a_daemon_answers(
    target: str, status: int, text: bytes, tmp_path: Path
) -> None:
    async with running(tmp_path) as daemon, daemon.client() as client:
        await client.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await client.read_to_end()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert text.lower() in body.lower()


# What follows the path of an endpoint, so that it would be answered with 200.
VALID = {
    "api/config": "/filters",
    "api/query": "?start=1h-ago&m=sum:a.b",
    "api/query/gexp": "?start=1h-ago&exp=alias(sum:a.b,c)",
    "api/query/last": "?timeseries=a.b",
    "api/search": "/lookup?m=a.b",
    "api/stats": "/jvm",
    "api/suggest": "?type=metrics",
    "api/uid": "/assign?metric=a.c",
    "q": "?start=1h-ago&m=sum:a.b&ascii",
    "s": "/file",
    "suggest": "?type=metrics",
}


@pytest.mark.parametrize(("tracking", "series"), [("false", 1), ("true", 2)])
async def test_back_scan_reads_one_series_only_without_tracking(tracking: str, series: int, tmp_path: Path) -> None:
    """As in OpenTSDB, which finds series with more tags in the meta table."""
    settings = {"tsd.core.auto_create_metrics": "true", "tsd.core.meta.enable_tsuid_tracking": tracking}
    async with running(tmp_path, settings) as daemon:
        now_s = now_ms() // 1000
        await daemon.send_lines(b"put a.b %d 1 host=a\nput a.b %d 2 host=a dc=b\n" % (now_s, now_s))
        async with daemon.client() as client:
            await client.send(get("/api/query/last?timeseries=a.b{host=a}&back_scan=2"))
            assert len((await read_response(client)).json) == series


@pytest.mark.difference(
    "points-to-other-endpoints",
    topic="http",
    theirs="Points that are posted to `/q`, `/s`, `/api/version` or another endpoint without a body are lost: 200",
    ours="Such requests are answered with 400. An empty body, `{}`, `[]` and `null` are allowed",
)
async def test_no_endpoint_loses_points(tmp_path: Path) -> None:
    """New endpoints that accept POST and read no body need an entry in `WITHOUT_BODY`."""
    (tmp_path / "file").write_text("a file")
    settings = {"kairosdb.enabled": "true", "heroic.enabled": "true", "entity.enabled": "true"}
    settings |= {"no_diediedie": "false", "http.staticroot": str(tmp_path), "core.auto_create_metrics": "true"}
    lost = []
    async with running(tmp_path / "state", {f"tsd.{key}": value for key, value in settings.items()}) as daemon:
        await daemon.send_lines(b"put a.b 1700000000 1 host=a\n")
        for key in sorted(daemon.daemon.server.http.endpoints):
            for number, form in enumerate(("[%s]", "%s", "\n[%s]\n")):
                host = f"{key.replace('/', '.')}.{number}"
                point = {"metric": "a.b", "timestamp": 1_700_000_000, "value": 1, "tags": {"host": host}}
                body = (form % json.dumps(point)).encode()
                async with daemon.client() as client:
                    await client.send(post(f"/{key}{VALID.get(key, '')}", body))
                    status = (await read_response(client)).status
                    if status < 400 and not await has_points(client, host):
                        lost.append((key, form, status))
    assert lost == []


async def has_points(client: Client, host: str) -> bool:
    await client.send(get(f"/api/query?start=1699999999&end=1700000001&m=sum:a.b{{host={host}}}"))
    return bool((await read_response(client)).json)
