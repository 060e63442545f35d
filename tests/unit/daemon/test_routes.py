"""Endpoints whose modules are imported with the first request."""

import threading
from pathlib import Path

import pytest
import trio

from tests.running import running
from tsd.daemon.routes import DeferredEndpoints
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
