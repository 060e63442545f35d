"""A start on a full disk waits for space and says so. It loses nothing, and goes on by itself."""

import os
import socket
from pathlib import Path

import pytest
import trio

from tests.faults.load import Lines, Sender
from tests.faults.process import Served, served
from tests.faults.small_disk import fill, small_disk
from tests.faults.verification import check_contents, embedded_contents
from tests.running import Client, running
from tests.unit.daemon.notify_socket import messages
from tests.unit.server.web_parts import HttpResponse, get, post, read_response

LONG = {"tsd.storage.flush_interval": "3600000"}  # all lines stay in the journal
LINES = 200
LARGE = 20_000_000  # bytes of a body that is accepted otherwise
FULL = "No space left on device"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")


async def ask(port: int, request: bytes) -> HttpResponse:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        return await read_response(Client(stream))


async def waits(daemon: Served, folder: Path) -> int:
    """Assert that a daemon waits for space and says so. Return its port."""
    event = await daemon.logged("start.disk_full")
    assert FULL in event["error"]
    assert str(folder) in event["error"]
    health = await ask(event["port"], get("/health/ready"))
    assert health.status == 503
    assert FULL in health.json["write"]
    assert (await ask(event["port"], get("/health/live"))).status == 200
    for request in (post("/api/put", b"[]"), get("/api/put", f"Content-Length: {LARGE}", method="POST")):
        put = await ask(event["port"], request)
        assert put.status == 503
        assert FULL in put.json["error"]["details"]
    assert not daemon.has_logged("daemon.ready")
    return int(event["port"])


@pytest.mark.parametrize("new", [True, False], ids=["a new folder", "a journal to replay"])
async def test_start_on_full_disk_waits_for_space(tmp_path: Path, new: bool) -> None:
    sender = Sender(Lines(0))
    with small_disk(tmp_path) as disk:
        folder = disk / "state"
        if not new:
            async with served(folder, LONG) as daemon, trio.open_nursery() as nursery:
                await daemon.ready()
                nursery.start_soon(sender.run, daemon.port)
                await sender.more_confirmed(LINES)
                await daemon.kill()
        ballast = fill(disk)
        async with served(folder) as daemon:
            port = await waits(daemon, folder)
            ballast.unlink()
            await daemon.ready()
            assert (await ask(daemon.port, get("/health/ready"))).status == 200
            assert port == daemon.port
            metrics = (await ask(daemon.port, get("/metrics"))).body.decode()
            assert 'tsd_http_errors_total{status="503"} 3.0' in metrics.splitlines()
            await daemon.terminate()
        check_contents(await embedded_contents(folder), [sender])


async def test_start_on_nearly_full_disk_waits(tmp_path: Path) -> None:
    """There is space for the lock and other small files, but not for the store."""
    with small_disk(tmp_path) as disk:
        ballast = fill(disk)
        os.truncate(ballast, ballast.stat().st_size - (16 << 10))
        async with served(disk / "state") as daemon:
            await daemon.logged("start.disk_full")
            ballast.unlink()
            await daemon.ready()
            await daemon.terminate()


async def test_page_of_an_allowed_origin_sees_that_a_start_waits(tmp_path: Path) -> None:
    origin = "http://page"
    with small_disk(tmp_path) as disk:
        fill(disk)
        async with served(disk / "state", {"tsd.http.request.cors_domains": origin}) as daemon:
            port = (await daemon.logged("start.disk_full"))["port"]
            for method, status in (("GET", 503), ("OPTIONS", 200)):
                found = await ask(port, get("/api/suggest?type=metrics", f"Origin: {origin}", method=method))
                assert (found.status, found.headers["access-control-allow-origin"]) == (status, origin)
            found = await ask(port, get("/api/suggest?type=metrics", "Origin: http://other"))
            assert "access-control-allow-origin" not in found.headers
            await daemon.terminate()


async def test_stop_while_a_start_waits_for_space(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        fill(disk)
        async with served(disk / "state") as daemon:
            await waits(daemon, disk / "state")
            await daemon.terminate()


async def test_systemd_sees_that_a_start_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    with (
        small_disk(tmp_path) as disk,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel,
    ):
        channel.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        ballast = fill(disk)
        heard: list[str] = []

        async def make_room() -> None:
            while not any(FULL in message for message in heard):
                await trio.lowlevel.checkpoint()
                heard.extend(messages(channel))
            ballast.unlink()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_room)
            async with running(disk / "state"):
                heard.extend(messages(channel))
    [waiting] = [message for message in heard if FULL in message]
    assert "STATUS=waiting for space" in waiting
    assert "EXTEND_TIMEOUT_USEC=" in waiting
    assert not any("READY=1" in message for message in heard[: heard.index(waiting)])
