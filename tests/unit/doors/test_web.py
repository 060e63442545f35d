"""HTTP on the telnet port: one answer in OpenTSDB's error form, and nothing for what only looks like it."""

import http.client
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.running import Client, Running, running
from tsd.doors.web import MAX_REQUEST

ERROR = {
    "error": {
        "code": 501,
        "message": "Not implemented",
        "details": "This version takes data points over telnet only: put <metric> <time> <value> <tagk=tagv>",
    }
}
LENGTH = len(json.dumps(ERROR))
GET = b"GET /api/version HTTP/1.1\r\nHost: tsd\r\n\r\n"


class Answer(NamedTuple):
    """What Python's own client makes of an answer."""

    status: int
    kind: str | None
    length: str | None
    connection: str | None
    body: bytes


WANTED = Answer(501, "application/json; charset=UTF-8", str(LENGTH), "close", json.dumps(ERROR).encode())


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


async def ask(daemon: Running, method: str, path: str, body: bytes | None = None) -> Answer:
    """What a real client is answered."""

    def request() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
        try:
            connection.request(method, path, body)
            got = connection.getresponse()
            kind, length, end = map(got.getheader, ("Content-Type", "Content-Length", "Connection"))
            return Answer(got.status, kind, length, end, got.read())
        finally:
            connection.close()

    return await trio.to_thread.run_sync(request)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/q?start=1h-ago&m=sum:m"), ("PUT", "/api/put"), ("DELETE", "/api/query")],
)
async def test_a_request_is_answered_with_501_in_opentsdbs_form(daemon: Running, method: str, path: str) -> None:
    assert await ask(daemon, method, path) == WANTED
    assert daemon.daemon.web.tally.requests == 1


async def test_head_is_answered_without_a_body(daemon: Running) -> None:
    assert await ask(daemon, "HEAD", "/") == WANTED._replace(body=b"")
    async with daemon.client() as client:
        await client.send(b"HEAD / HTTP/1.0\r\n\r\n")
        assert (await client.read_to_end()).endswith(b"\r\n\r\n")


async def test_who_sends_much_hears_the_answer_all_the_same(daemon: Running) -> None:
    """A connection that is closed on unread bytes takes its answer with it."""
    points = b'[{"metric":"m","timestamp":1500000000,"value":1,"tags":{"a":"b"}}]' * 100_000
    assert await ask(daemon, "POST", "/api/put?details", points) == WANTED


async def test_a_request_torn_anywhere_is_one_request(daemon: Running) -> None:
    for at in range(1, len(GET)):
        async with daemon.client() as client:
            await client.send_whole(GET[:at])
            await client.send(GET[at:])
            assert (await client.read_to_end()).endswith(b"\r\n\r\n" + WANTED.body)
    assert daemon.daemon.web.tally.requests == len(GET) - 1


@pytest.mark.parametrize(
    "text",
    [
        b"PUT m 1500000000 1 a=b\n",
        b"VERSION\r\n",
        b"Put\n",
        b"GET /\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"A" + bytes(range(1, 256)) * 1000,
    ],
)
async def test_what_only_starts_like_http_is_hung_up_on_without_a_byte(daemon: Running, text: bytes) -> None:
    async with daemon.client() as client:
        await client.send(text)
        assert await client.read_to_end() == b""
    assert await daemon.tell(b"put m 1500000000 1 a=b\n") == b"synced 1\n"


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        (b"", "Missing mandatory Host: header"),
        (b"Accept: */*\r\n", "Missing mandatory Host: header"),
        (b"Host: a\r\nHost: b\r\n", "Found multiple Host: headers"),
        (b"no header\r\n", "illegal header line: bytearray(b'no header')"),
        (b"Host: a\r\nContent-Length: many\r\n", "bad Content-Length"),
    ],
)
async def test_bad_headers_are_told_in_opentsdbs_form(daemon: Running, headers: bytes, wrong: str) -> None:
    """Who left out Host was hung up on without a byte."""
    async with daemon.client() as client:
        await client.send(b"GET /api/version HTTP/1.1\r\n" + headers + b"\r\n")
        head, _, body = (await client.read_to_end()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 \r\n")
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert json.loads(body) == {"error": {"code": 400, "message": "Bad request", "details": wrong}}
    async with daemon.client() as client:
        await client.send(b"HEAD /api/version HTTP/1.1\r\n" + headers + b"\r\n")
        assert await client.read_to_end() == head + b"\r\n\r\n"


@pytest.mark.parametrize("text", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x"])
async def test_a_request_that_is_not_finished_is_not_answered(daemon: Running, text: bytes) -> None:
    async with daemon.client() as client:
        await client.send(text)
        await client.stream.send_eof()
        assert await client.read_to_end() == b""


@pytest.mark.parametrize("start", [b"X", b"GET / HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_endless_requests_are_not_kept(daemon: Running, start: bytes) -> None:
    more = b"a: b\r\n" if start.endswith(b"\n") else b"x" * 100
    async with daemon.client() as client:
        await client.send(start + more * (MAX_REQUEST // len(more) + 2000))
        assert await client.read_to_end() == b""


async def test_points_behind_a_request_are_not_taken(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GET + b"put m 1500000000 1 a=b\nsync\n")
        assert b"synced" not in await client.read_to_end()
    assert daemon.daemon.ledger.received == 0


async def test_a_reset_in_a_request_is_counted_as_one(daemon: Running) -> None:
    client = Client(await trio.open_tcp_stream("127.0.0.1", daemon.port))
    await client.send_whole(GET[:-1])
    client.reset()
    async with daemon.client() as other:
        with trio.fail_after(30):
            while (stats := await other.stats())["connectionmgr.connections type=open"] > 1:
                pass
    assert stats["connectionmgr.exceptions type=reset"] == 1
