"""HTTP on the telnet port: connections, requests that are none, limits of size and time, and clients that go away."""

import http.client
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.running import Client, Running, running
from tests.unit.doors.web_parts import BOUNDS, Served, echo, get, hear, post, serving
from tsd.doors.exchange import Request, Response
from tsd.doors.web import HUNG_UP_S, MAX_REQUEST

GET = get("/api/version")


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving({"echo": echo}) as served:
        yield served


async def test_pythons_own_client_is_answered_on_one_connection(daemon: Running) -> None:
    def ask() -> list[tuple[int, bytes]]:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
        found = []
        for path in ("/api/version", "/api/aggregators", "/nowhere", "/version"):
            connection.request("GET", path)
            got = connection.getresponse()
            found.append((got.status, got.read()))
        connection.close()
        return found

    answers = await trio.to_thread.run_sync(ask)
    assert [status for status, _ in answers] == [200, 200, 404, 200]
    assert json.loads(answers[0][1])["repo_status"] == "MINT"
    assert daemon.daemon.web.tally.requests == 4
    async with daemon.client() as client:
        assert (await client.stats())["rpc.received type=http"] == 4


async def test_telnet_and_http_share_the_port(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GET)
        assert (await hear(client)).status == 200
    assert await daemon.tell(b"put m 1500000000 1 a=b\n") == b"synced 1\n"


async def test_points_behind_a_request_are_not_taken(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GET + b"put m 1500000000 1 a=b\nsync\n")
        await client.stream.send_eof()
        assert b"synced" not in await client.read_to_end()
    assert daemon.daemon.ledger.received == 0


async def test_a_request_torn_anywhere_is_one_request(served: Served) -> None:
    request = post("/echo", b"abc")
    async with served.client() as client:
        for at in range(1, len(request)):
            await client.send_whole(request[:at])
            await client.send(request[at:])
            assert (await hear(client)).body == b"abc"
    assert served.tally.requests == len(request) - 1


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    async with served.client() as client:
        await client.send(b"".join(post("/echo", b"%d" % number) for number in range(50)) + get("/nowhere"))
        assert [(await hear(client)).body for _ in range(50)] == [b"%d" % number for number in range(50)]
        assert (await hear(client)).status == 404


@pytest.mark.parametrize(
    "request_", [get("/echo", "Connection: close"), get("/echo", version="1.0"), get("/echo", "Connection: close, te")]
)
async def test_who_wants_no_more_is_hung_up_on(served: Served, request_: bytes) -> None:
    async with served.client() as client:
        await client.send(request_ + GET)
        assert (await hear(client)).headers["connection"] == "close"
        assert await client.read_to_end() == b""


async def test_head_is_answered_without_a_body(served: Served) -> None:
    heard = await served.ask(post("/echo", b"abc").replace(b"POST", b"HEAD", 1), post("/echo", b"x"))
    assert heard.body == b"x"  # nothing was left before it


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
        (b"Host: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n", "conflicting Content-Length headers"),
        (
            b"Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "A request has both Content-Length and Transfer-Encoding",
        ),
    ],
)
async def test_bad_headers_are_told_in_opentsdbs_form(served: Served, headers: bytes, wrong: str) -> None:
    """Who left out Host was hung up on without a byte."""
    async with served.client() as client:
        await client.send(b"GET /api/version HTTP/1.1\r\n" + headers + b"\r\n")
        heard = await hear(client)
        assert await client.read_to_end() == b""
    assert (heard.status, heard.headers["connection"]) == (400, "close")
    assert heard.json == {"error": {"code": 400, "message": "Bad request", "details": wrong}}


async def test_no_connection_becomes_a_tunnel(served: Served) -> None:
    for target in ("/echo", "tsd:4242"):
        async with served.client() as client:
            await client.send(get(target, method="CONNECT"))
            assert (await hear(client)).status == 405
            assert await client.read_to_end() == b""


async def test_an_upgrade_is_not_made_and_the_request_is_answered(served: Served) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    heard = await served.ask(get("/echo", *upgrade), get("/echo"))
    assert heard.status == 200


async def test_a_bad_request_behind_one_for_the_head_is_answered_with_a_body(served: Served) -> None:
    async with served.client() as client:
        await client.send(get("/echo", method="HEAD"))
        assert (await hear(client, head=True)).body == b""
        await client.send(get("/echo", "Content-Length: many"))
        assert (await hear(client)).json["error"]["code"] == 400


async def test_no_request_behind_a_good_one_is_told_too(served: Served) -> None:
    async with served.client() as client:
        await client.send(get("/echo"))
        assert (await hear(client)).status == 200
        await client.send(b"no request\r\n\r\n")
        assert await client.read_to_end() == b""


@pytest.mark.parametrize("text", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\n", post("/echo", b"whole")[:-1]])
async def test_a_request_that_is_not_finished_is_not_answered(served: Served, text: bytes) -> None:
    async with served.client() as client:
        await client.send(text)
        await client.stream.send_eof()
        assert await client.read_to_end() == b""


@pytest.mark.parametrize("start", [b"X", b"GET / HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_endless_requests_are_not_kept(served: Served, start: bytes) -> None:
    more = b"a: b\r\n" if start.endswith(b"\n") else b"x" * 100
    async with served.client() as client:
        await client.send(start + more * (MAX_REQUEST // len(more) + 2000))
        assert await client.read_to_end() == b""


@pytest.mark.parametrize("target", ["nowhere", "http://tsd/api/version", "/api/version?a=%zz", "/%"])
async def test_a_target_that_is_none_is_refused_and_the_connection_lives(served: Served, target: str) -> None:
    async with served.client() as client:
        await client.send(get(target) + get("/echo"))
        heard = await hear(client)
        assert (heard.status, heard.json["error"]["message"]) == (400, "Bad request")
        assert (await hear(client)).status == 200


async def test_a_reset_in_a_request_is_counted_as_one(daemon: Running) -> None:
    client = Client(await trio.open_tcp_stream("127.0.0.1", daemon.port))
    await client.send_whole(GET[:-1])
    client.reset()
    async with daemon.client() as other:
        with trio.fail_after(30):
            while (stats := await other.stats())["connectionmgr.connections type=open"] > 1:
                pass
    assert stats["connectionmgr.exceptions type=reset"] == 1


@pytest.mark.parametrize("text", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nHo", post("/echo", b"abc")[:-1]])
async def test_a_slow_request_ends_in_time_and_holds_up_nobody(text: bytes, autojump_clock: trio.abc.Clock) -> None:
    async with serving({"echo": echo}) as served, served.client() as slow:
        await slow.send_whole(text)
        assert (await served.ask(get("/echo"))).status == 200
        heard = await hear(slow)
        assert heard.status == 408
        assert heard.json["error"]["details"] == "The request did not come whole in time"
        assert await slow.read_to_end() == b""
        assert trio.current_time() >= BOUNDS.patience_s
        assert served.room.used == 0
        assert served.listener.statistics().failed == 0  # a first line that did not end was an error of ours


async def test_silence_between_requests_is_not_slowness(autojump_clock: trio.abc.Clock) -> None:
    async with serving({"echo": echo}) as served, served.client() as client:
        await client.send(get("/echo"))
        assert (await hear(client)).status == 200
        await trio.sleep(100 * BOUNDS.patience_s)
        await client.send(get("/echo"))
        assert (await hear(client)).status == 200


async def test_who_reads_nothing_is_hung_up_on(autojump_clock: trio.abc.Clock) -> None:
    async def much(request: Request) -> Response:
        return Response(200, bytes(64 << 20))

    async with serving({"much": much}) as served, served.client() as deaf:
        await deaf.send(get("/much"))
        with trio.fail_after(10 * BOUNDS.patience_s):
            while served.listener.statistics().silent == 0:  # noqa: ASYNC110 - the virtual clock goes on meanwhile
                await trio.sleep(1)


@pytest.mark.parametrize("path", ["/api/query", "/q", "/api/suggest"])
async def test_a_question_ends_when_its_client_hangs_up(path: str, autojump_clock: trio.abc.Clock) -> None:
    ended = trio.Event()

    async def ask(request: Request) -> Response:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with serving({path.strip("/"): ask}) as served:
        async with served.client() as client:
            await client.send_whole(get(path))
            await trio.testing.wait_all_tasks_blocked()
        await ended.wait()
        assert trio.current_time() <= HUNG_UP_S + 1
        await trio.testing.wait_all_tasks_blocked()
        assert (served.tally.hung_up, served.listener.statistics().failed) == (1, 0)


async def test_points_are_taken_although_their_client_hangs_up(autojump_clock: trio.abc.Clock) -> None:
    taken = trio.Event()

    async def put(request: Request) -> Response:
        await trio.sleep(10 * HUNG_UP_S)
        taken.set()
        return Response(204, b"", None)

    async with serving({"api/put": put}) as served:
        async with served.client() as client:
            await client.send_whole(post("/api/put", b"{}"))
        await taken.wait()


async def test_who_only_closes_his_side_hears_a_quick_answer(served: Served) -> None:
    async def ask(request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return Response(200, b"[]")

    async with serving({"api/query": ask}) as asking, asking.client() as client:
        await client.send(get("/api/query"))
        await client.stream.send_eof()
        assert (await hear(client)).body == b"[]"
