"""HTTP connections: invalid requests, limits of size and time, and clients that disconnect."""

import http.client
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from tests.running import Client, Running, running
from tests.unit.server.web_parts import LIMITS, Served, chunked, echo, get, post, read_response, serving
from tsd.server.http.heads import MAX_HEAD_BYTES
from tsd.server.http.messages import Request, Response

GET = get("/api/version")


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving({"echo": echo}) as served:
        yield served


async def test_http_client_keeps_one_connection(daemon: Running) -> None:
    def answer_query() -> list[tuple[int, bytes]]:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
        found = []
        for path in ("/api/version", "/api/aggregators", "/nowhere", "/version"):
            connection.request("GET", path)
            got = connection.getresponse()
            found.append((got.status, got.read()))
        connection.close()
        return found

    answers = await trio.to_thread.run_sync(answer_query)
    assert [status for status, _ in answers] == [200, 200, 404, 200]
    assert json.loads(answers[0][1])["repo_status"] == "MINT"
    assert daemon.daemon.server.http.request_stats.requests == 4
    async with daemon.client() as client:
        assert (await client.stats())["rpc.received type=http"] == 4


async def test_telnet_and_http_share_the_port(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GET)
        assert (await read_response(client)).status == 200
    assert await daemon.send_lines(b"put m 1500000000 1 a=b\n") == b"synced 1\n"


async def test_lines_after_a_request_are_not_ingested(daemon: Running) -> None:
    async with daemon.client() as client:
        await client.send(GET + b"put m 1500000000 1 a=b\nsync\n")
        await client.stream.send_eof()
        assert b"synced" not in await client.read_to_end()
    assert daemon.daemon.ingest.ledger.received == 0


@pytest.mark.slow
async def test_request_may_be_split_anywhere(served: Served) -> None:
    request = post("/echo", b"abc")
    async with served.client() as client:
        for at in range(1, len(request)):
            await client.send_whole(request[:at])
            await client.send(request[at:])
            assert (await read_response(client)).body == b"abc"
    assert served.stats.requests == len(request) - 1


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b"\n\n\r\n"])
async def test_line_end_after_a_body_is_skipped(served: Served, size: int, line_end: bytes) -> None:
    """Some clients send it, and OpenTSDB skips it. The connection was closed."""
    body = b"a" * size
    async with served.client() as client:
        for end in (line_end, b""):
            await client.send(post("/echo", body) + end + post("/echo", b"next") + end)
            assert [(await read_response(client)).body for _ in range(2)] == [body, b"next"]
        await client.send(line_end)
        await client.send(post("/echo", b"last"))
        assert (await read_response(client)).body == b"last"


@pytest.mark.parametrize("parts", [(b"\r", b"\n"), (b"\r\n\r", b"\n\r\n")])
async def test_line_ends_after_a_body_may_be_split(served: Served, parts: tuple[bytes, bytes]) -> None:
    """Regression: the connection was closed after the first half."""
    async with served.client() as client:
        for body in (b"plain", b"a" * 100_000):
            await client.send_whole(post("/echo", body) + parts[0])
            assert (await read_response(client)).body == body
            await client.send(parts[1] + post("/echo", b"next"))
            assert (await read_response(client)).body == b"next"


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    async with served.client() as client:
        await client.send(b"".join(post("/echo", b"%d" % number) for number in range(50)) + get("/nowhere"))
        assert [(await read_response(client)).body for _ in range(50)] == [b"%d" % number for number in range(50)]
        assert (await read_response(client)).status == 404


async def test_repeated_requests_are_read_like_all_others() -> None:
    async def show(request: Request) -> Response:
        return Response(
            200, f"{request.method} {request.param('n')} {request.headers.get('x')} ".encode() + request.body
        )

    one, other = get("/show?n=1", "X: a"), get("/show?n=1", "X: b")
    with_body, longer = post("/show?n=1", b"abc"), get("/show?n=1", "X: " + "a" * 2000)
    sent = [one, one, other, one, with_body, with_body, longer, longer, one, get("/show?n=2", "X: a"), one]
    told = {one: b"GET 1 a ", other: b"GET 1 b ", with_body: b"POST 1 None abc", longer: b"GET 1 " + b"a" * 2000 + b" "}
    async with serving({"show": show}) as served, served.client() as client:
        for request in sent:
            await client.send_whole(request)
            assert (await read_response(client)).body == told.get(request, b"GET 2 a ")
        await client.send_whole(one + one + other + one[:20])
        assert [(await read_response(client)).body for _ in range(3)] == [told[one], told[one], told[other]]
        await client.send_whole(one[20:] + one)
        assert [(await read_response(client)).body for _ in range(2)] == [told[one], told[one]]
    assert served.stats.requests == len(sent) + 5


@pytest.mark.difference(
    "http-1-0-keep-alive",
    topic="http",
    theirs="HTTP/1.0 connections stay open on request",
    ours="They are closed after each answer",
)
@pytest.mark.parametrize(
    "request_", [get("/echo", "Connection: close"), get("/echo", version="1.0"), get("/echo", "Connection: close, te")]
)
async def test_connection_close_is_honoured(served: Served, request_: bytes) -> None:
    async with served.client() as client:
        await client.send(request_ + GET)
        assert (await read_response(client)).headers["connection"] == "close"
        assert await client.read_to_end() == b""


@pytest.mark.difference(
    "head-bodies",
    topic="http",
    theirs="The answer to HEAD has a body, which clients read as the start of the next answer",
    ours="It has none",
)
async def test_head_gets_no_body(served: Served) -> None:
    response = await served.request(post("/echo", b"abc").replace(b"POST", b"HEAD", 1), post("/echo", b"x"))
    assert response.body == b"x"  # no input was left before it


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
async def test_near_http_input_is_closed_without_a_reply(daemon: Running, text: bytes) -> None:
    with capture_logs() as logs:
        async with daemon.client() as client:
            await client.send(text)
            assert await client.read_to_end() == b""
    assert [line["reason"] for line in logs if line["event"] == "connection.closed"] == ["not_http"]
    async with daemon.client() as client:
        assert (await client.stats())["clients.closed reason=not-http"] == 1
    assert await daemon.send_lines(b"put m 1500000000 1 a=b\n") == b"synced 1\n"


@pytest.mark.parametrize("begin", [b"", b"put m 15000"])
async def test_lines_after_a_request_close_the_connection_at_once(daemon: Running, begin: bytes) -> None:
    """Regression: the connection waited for more headers, until a request had to be complete."""
    lines = b"put m 1500000000 1 a=b\nsync\n"
    with capture_logs() as logs:
        async with daemon.client() as client:
            await client.send(GET + begin)
            assert (await read_response(client)).status == 200
            await client.send(lines[len(begin) :])
            assert await client.read_to_end() == b""
    assert [line["reason"] for line in logs if line["event"] == "connection.closed"] == ["not_http"]


@pytest.mark.difference(
    "bad-headers",
    topic="http",
    theirs="HTTP/1.1 without `Host`, or with malformed headers, is accepted",
    ours="It is answered with 400",
)
@pytest.mark.difference(
    "request-smuggling",
    topic="http",
    theirs="A request with both `Content-Length` and `Transfer-Encoding` is read by the latter",
    ours="It is answered with 400, and the connection is closed",
    why="Behind a proxy that uses the former, clients could smuggle requests",
)
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
async def test_invalid_headers_get_opentsdbs_error_form(served: Served, headers: bytes, wrong: str) -> None:
    """A request without Host gets an error, too."""
    async with served.client() as client:
        await client.send(b"GET /api/version HTTP/1.1\r\n" + headers + b"\r\n")
        response = await read_response(client)
        assert await client.read_to_end() == b""
    assert (response.status, response.headers["connection"]) == (400, "close")
    assert response.json == {"error": {"code": 400, "message": "Bad request", "details": wrong}}


async def test_connect_is_refused(served: Served) -> None:
    for target in ("/echo", "tsd:4242"):
        async with served.client() as client:
            await client.send(get(target, method="CONNECT"))
            assert (await read_response(client)).status == 405
            assert await client.read_to_end() == b""


async def test_upgrade_is_ignored(served: Served) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    response = await served.request(get("/echo", *upgrade), get("/echo"))
    assert response.status == 200


async def test_bad_request_after_head_gets_a_body(served: Served) -> None:
    async with served.client() as client:
        await client.send(get("/echo", method="HEAD"))
        assert (await read_response(client, head=True)).body == b""
        await client.send(get("/echo", "Content-Length: many"))
        assert (await read_response(client)).json["error"]["code"] == 400


async def test_invalid_second_request_gets_an_error(served: Served) -> None:
    async with served.client() as client:
        await client.send(get("/echo"))
        assert (await read_response(client)).status == 200
        await client.send(b"no request\r\n\r\n")
        assert await client.read_to_end() == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post("/api/put", b"text", "Content-Encoding: gzip"), 400),
        (post("/api/put", b"text", "Content-Encoding: br"), 415),
        (get("/api/put", "Content-Length: 99999999", method="POST"), 413),
        (get("/api/put", *["A: b"] * 2000, method="POST"), 431),
        (get("/api/put", "Transfer-Encoding: gzip", method="POST"), 501),
    ],
)
async def test_request_that_is_not_read_is_counted_and_logged(daemon: Running, request_: bytes, status: int) -> None:
    with capture_logs() as logs:
        async with daemon.client() as client:
            await client.send(request_)
            assert (await read_response(client)).status == status
    assert [line["log_level"] for line in logs if line["event"] == "request.refused"] == ["warning"]
    async with daemon.client() as client:
        assert (await client.stats())[f"http.errors status={status}"] == 1


async def test_illegal_header_is_not_logged(daemon: Running) -> None:
    with capture_logs() as logs:
        async with daemon.client() as client:
            await client.send(get("/api/put", "Authorization Bearer secret"))
            assert (await read_response(client)).status == 400
    assert "request.refused" in [line["event"] for line in logs]
    assert "secret" not in str(logs)


@pytest.mark.parametrize("text", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\n", post("/echo", b"whole")[:-1]])
async def test_incomplete_request_gets_no_answer(served: Served, text: bytes) -> None:
    async with served.client() as client:
        await client.send(text)
        await client.stream.send_eof()
        assert await client.read_to_end() == b""


@pytest.mark.parametrize("start", [b"X", b"GET / HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_endless_head_is_not_stored(served: Served, start: bytes) -> None:
    more = b"a: b\r\n" if start.endswith(b"\n") else b"x" * 100
    async with served.client() as client:
        await client.send(start + more * (MAX_HEAD_BYTES // len(more) + 2000))
        answer = await client.read_to_end()
        assert not answer if start == b"X" else answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.difference(
    "long-heads",
    topic="http",
    theirs="A request line over 4,096 bytes, or headers over 8,192 bytes, close the connection without an answer",
    ours="Both together may have 64 KiB; more is answered with 414 or 431",
)
async def test_endless_target_is_refused(served: Served) -> None:
    """Regression: the connection was closed without an answer."""
    for before in (b"", get("/echo")):
        async with served.client() as client:
            await client.send(before + b"GET /echo?m=" + b"x" * 2 * MAX_HEAD_BYTES)
            if before:
                assert (await read_response(client)).status == 200
            response = await read_response(client)
            assert response.status == (431 if before else 414)
            assert str(MAX_HEAD_BYTES) in response.json["error"]["details"]
            assert await client.read_to_end() == b""


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "chunked, chunked", "identity"])
async def test_unknown_transfer_coding_is_refused(served: Served, coding: str) -> None:
    """Regression: the connection was closed without an answer."""
    async with served.client() as client:
        await client.send(get("/echo", f"Transfer-Encoding: {coding}", method="POST") + b"0\r\n\r\n" + get("/echo"))
        response = await read_response(client)
        assert (response.status, response.headers["connection"]) == (501, "close")
        assert "Transfer-Encoding" in response.json["error"]["details"]
        assert await client.read_to_end() == b""


@pytest.mark.difference(
    "absolute-targets",
    topic="http",
    theirs="An absolute target (`GET http://tsd/api/version`) is answered with 400",
    ours="It is served, and its host replaces the `Host` header, as HTTP demands",
)
async def test_target_may_be_absolute(served: Served) -> None:
    """RFC 9112, 3.2.2. It was refused with 400."""
    async with served.client() as client:
        for target, path in (
            ("http://tsd/echo", "/echo"), ("HTTPS://tsd:4242/echo?a=b", "/echo"), ("http://[::1]:4242/echo/", "/echo/"),
        ):  # fmt: skip
            await client.send(get(target))
            response = await read_response(client)
            assert (response.status, response.headers["x-asked"]) == (200, f"GET {path}")
        for target in ("http://tsd", "http://tsd?a=b"):
            await client.send(get(target))
            assert (await read_response(client)).status == 404  # the home page, which is not served here


async def test_host_of_an_absolute_target_replaces_the_header(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.http.hosts": "tsd.example"}) as daemon, daemon.client() as client:
        for target, host, wanted in (
            ("/api/version", "tsd.example", 200), ("/api/version", "evil.example", 403),
            ("http://tsd.example/api/version", "evil.example", 200),
            ("http://evil.example/api/version", "tsd.example", 403),
        ):  # fmt: skip
            await client.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await read_response(client)).status == wanted


@pytest.mark.difference("undecodable-requests")
@pytest.mark.parametrize(
    "target", ["nowhere", "http://", "http://a@tsd/echo", "ftp://tsd/echo", "*", "/api/version?a=%zz", "/%"]
)
async def test_invalid_target_is_refused_and_connection_stays(served: Served, target: str) -> None:
    async with served.client() as client:
        await client.send(get(target) + get("/echo"))
        response = await read_response(client)
        assert (response.status, response.json["error"]["message"]) == (400, "Bad request")
        assert (await read_response(client)).status == 200


@pytest.mark.parametrize(("chunks", "kept"), [(2, True), (10_000, False)])
async def test_many_chunks_of_a_refused_request_are_not_read(served: Served, chunks: int, kept: bool) -> None:
    """Regression: they were read in one step, which held up all other connections for 150 ms."""
    async with served.client() as client:
        await client.send(chunked("/echo?a=%zz", *[b"a"] * chunks) + get("/echo"))
        response = await read_response(client)
        assert (response.status, "connection" not in response.headers) == (400, kept)
        if kept:
            assert (await read_response(client)).status == 200
        else:
            assert await client.read_to_end() == b""


async def test_target_beyond_ascii_is_refused(served: Served) -> None:
    """curl sends such a target as it is typed, and got an empty reply."""
    for before in (b"", get("/echo")):
        async with served.client() as client:
            await client.send(before + get("/api/suggest?q=ü"))
            if before:
                assert (await read_response(client)).status == 200
            response = await read_response(client)
            assert (response.status, response.headers["connection"]) == (400, "close")
            assert "%XX" in response.json["error"]["details"]
            assert await client.read_to_end() == b""


async def test_reset_within_a_request_is_counted(daemon: Running) -> None:
    client = Client(await trio.open_tcp_stream("127.0.0.1", daemon.port))
    await client.send_whole(GET[:-1])
    client.reset()
    async with daemon.client() as other:
        with trio.fail_after(30):
            while (stats := await other.stats())["connectionmgr.connections type=open"] > 1:
                pass
    assert stats["connectionmgr.exceptions type=reset"] == 1


@pytest.mark.difference(
    "slow-clients",
    topic="http",
    theirs="A request may arrive, and an answer be read, without any time limit",
    ours="Each part of either has `tsd.http.request.timeout`; 408",
)
@pytest.mark.parametrize("text", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nHo", post("/echo", b"abc")[:-1]])
async def test_slow_request_times_out_and_delays_no_other(text: bytes, autojump_clock: trio.abc.Clock) -> None:
    async with serving({"echo": echo}) as served, served.client() as slow:
        await slow.send_whole(text)
        assert (await served.request(get("/echo"))).status == 200
        response = await read_response(slow)
        assert response.status == 408
        assert await slow.read_to_end() == b""
        assert trio.current_time() >= LIMITS.timeout_s
        assert served.budget.used == 0
        assert served.listener.statistics().failed == 0  # an incomplete first line is not an internal error


async def test_idle_between_requests_does_not_time_out(autojump_clock: trio.abc.Clock) -> None:
    async with serving({"echo": echo}) as served, served.client() as client:
        await client.send(get("/echo"))
        assert (await read_response(client)).status == 200
        await trio.sleep(100 * LIMITS.timeout_s)
        await client.send(get("/echo"))
        assert (await read_response(client)).status == 200


@pytest.mark.difference("slow-clients")
async def test_client_that_reads_nothing_is_closed(autojump_clock: trio.abc.Clock) -> None:
    async def much(request: Request) -> Response:
        return Response(200, bytes(64 << 20))

    async with serving({"much": much}) as served, served.client() as disconnected:
        await disconnected.send(get("/much"))
        with trio.fail_after(10 * LIMITS.timeout_s):
            while served.listener.statistics().timed_out == 0:  # noqa: ASYNC110 - the virtual clock advances
                await trio.sleep(1)


@pytest.mark.difference(
    "client-disconnect",
    topic="http",
    theirs="A query continues after its client has disconnected",
    ours="It is cancelled",
)
@pytest.mark.parametrize("path", ["/api/query", "/q", "/api/suggest", "/api/entity"])
async def test_query_is_cancelled_when_client_disconnects(path: str, autojump_clock: trio.abc.Clock) -> None:
    closing = trio.Event()

    async def answer_query(request: Request) -> Response:
        try:
            await trio.sleep_forever()
        finally:
            closing.set()

    async with serving({path.strip("/"): answer_query}) as served:
        async with served.client() as client:
            await client.send_whole(get(path))
            await trio.testing.wait_all_tasks_blocked()
        await closing.wait()
        assert trio.current_time() <= 5
        await trio.testing.wait_all_tasks_blocked()
        assert (served.stats.client_disconnects, served.listener.statistics().failed) == (1, 0)


@pytest.mark.parametrize(
    "sent",
    [
        post("/api/put", b"{}"),
        post("/api/entity/web01", b"{}"),
        get("/api/entity/web01?method_override=delete"),
    ],
)
async def test_a_write_ends_although_the_client_disconnects(sent: bytes, autojump_clock: trio.abc.Clock) -> None:
    taken = trio.Event()

    async def write(request: Request) -> Response:
        await trio.sleep(10)
        taken.set()
        return Response(204, b"", None)

    async with serving({"api/put": write, "api/entity": write}) as served:
        async with served.client() as client:
            await client.send_whole(sent)
        await taken.wait()


async def test_half_closed_client_gets_a_quick_answer(served: Served) -> None:
    async def answer_query(request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return Response(200, b"[]")

    async with serving({"api/query": answer_query}) as server, server.client() as client:
        await client.send(get("/api/query"))
        await client.stream.send_eof()
        assert (await read_response(client)).body == b"[]"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_half_closed_client_gets_a_slow_answer(version: bytes, autojump_clock: trio.abc.Clock) -> None:
    async def answer_query(request: Request) -> Response:
        await trio.sleep(10)
        return Response(200, b"[]")

    async with serving({"api/query": answer_query}) as server, server.client() as client:
        await client.send_whole(get("/api/query").replace(b"HTTP/1.1", b"HTTP/" + version))
        await client.stream.send_eof()
        answer = await client.read_to_end() if version == b"1.0" else await client.read_until(b"[]")
        assert answer.endswith(b"\r\n\r\n[]")
        assert b"HTTP/1.1 200 " in answer


async def test_head_with_too_many_headers_is_refused(served: Served) -> None:
    response = await served.request(b"GET /api/echo HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 5000 + b"\r\n")
    assert response.status == 431
