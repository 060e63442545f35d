"""Plain requests are answered byte for byte as h11 answers the others."""

import gzip
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from tests.unit.server.web_parts import LIMITS, Served, chunked, echo, get, post, read_response, serving
from tsd.errors import Refused
from tsd.server.http.messages import Request, Response

BY_H11 = "TE: trailers"  # a request with this header is not plain, and its answer is the same
LARGE = b"0123456789" * 20_000


async def large(_: Request) -> Response:
    return Response(200, LARGE)


async def streamed(_: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    return Response(200, chunks())


async def nothing(_: Request) -> Response:
    return Response(204, b"", None)


async def redirecting(request: Request) -> Response:
    return Response(302, b"", headers=(("Location", request.param("to") or ""),))


async def refusing(_: Request) -> Response:
    raise Refused(400, "Bad", "Worse")


ROUTES = {
    "echo": echo,
    "large": large,
    "streamed": streamed,
    "nothing": nothing,
    "redirecting": redirecting,
    "refusing": refusing,
}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(ROUTES) as served:
        yield served


async def received(served: Served, request: bytes) -> bytes:
    """Return everything that the daemon sends to a request and a last one."""
    async with served.client() as client:
        await client.send(request + get("/echo", "Connection: close"))
        return await client.read_to_end()


@pytest.mark.parametrize(
    ("path", "method", "headers", "body"),
    [
        ("/echo", "GET", (), None),
        ("/echo", "HEAD", (), None),
        ("/echo", "POST", ("Content-Type: text/plain",), b"abc"),
        ("/echo", "PUT", ("Accept-Encoding: gzip",), b"a" * 1000),
        ("/echo", "POST", ("Accept-Encoding: gzip", "Content-Encoding: gzip"), gzip.compress(b"a" * 1000, mtime=0)),
        ("/echo", "POST", ("Content-Encoding: gzip",), b"damaged"),
        ("/large", "GET", (), None),
        ("/large", "GET", ("Accept-Encoding: deflate",), None),
        ("/large", "HEAD", (), None),
        ("/streamed", "GET", (), None),
        ("/streamed", "HEAD", (), None),
        ("/nothing", "GET", (), None),
        ("/refusing", "GET", (), None),
        ("/api/nowhere", "DELETE", (), None),
        ("/%zz", "GET", (), None),
        ("/redirecting?to=/x", "GET", (), None),
        ("/redirecting?to=/x%20%20y%C3%A9", "GET", (), None),
    ],
)
async def test_answers_are_those_of_h11(
    served: Served, path: str, method: str, headers: tuple[str, ...], body: bytes | None
) -> None:
    length = () if body is None else (f"Content-Length: {len(body)}",)
    plain = get(path, *length, *headers, method=method) + (body or b"")
    by_h11 = get(path, *length, *headers, BY_H11, method=method) + (body or b"")
    found = await received(served, plain)
    assert found == await received(served, by_h11)
    assert found.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("received_bytes", [0, 1, 12])
@pytest.mark.parametrize("path", ["/echo", "/nothing", "/refusing", "/%zz", "/streamed"])
@pytest.mark.parametrize("is_compressed", [False, True])
async def test_answers_to_requests_in_two_packets_are_those_of_h11(
    served: Served, path: str, received_bytes: int, is_compressed: bool
) -> None:
    body = gzip.compress(b"a" * 100, mtime=0) if is_compressed else b"a" * 100
    headers = ("Content-Encoding: gzip",) if is_compressed else ()
    found = []
    for other in ((), (BY_H11,)):
        request = post(path, body, *headers, *other)
        cut = len(request) - len(body) + received_bytes
        async with served.client() as client:
            await client.send(get("/echo"))
            await read_response(client)
            await client.send_whole(request[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await client.send(request[cut:] + get("/echo", "Connection: close"))
            found.append(await client.read_to_end())
    assert found[0] == found[1]


async def test_a_body_of_tiny_packets_is_joined(served: Served) -> None:
    request = post("/echo", b"abcdef")
    async with served.client() as client:
        await client.send_whole(request[:-6])
        for at in range(-6, -1):
            await client.send_whole(request[at : at + 1])
        await client.send(request[-1:] + post("/echo", b"ghi"))
        assert (await read_response(client)).body == b"abcdef"
        assert (await read_response(client)).body == b"ghi"


async def test_plain_and_other_requests_take_turns(served: Served) -> None:
    requests = [post("/echo", b"1"), chunked("/echo", b"2"), post("/echo", b"3"), post("/echo", b"4", BY_H11)]
    async with served.client() as client:
        for together in (True, False):
            if together:
                await client.send(b"".join(requests))
            for number, request in enumerate(requests, 1):
                if not together:
                    await client.send(request)
                assert (await read_response(client)).body == b"%d" % number
    assert served.stats.requests == 8


async def test_refused_request_behind_a_plain_one_ends_the_connection(served: Served) -> None:
    async with served.client() as client:
        smuggled = b"GET /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        await client.send(post("/echo", b"1") + smuggled + get("/echo"))
        assert (await read_response(client)).status == 200
        assert (await read_response(client)).status == 400
        assert await client.read_to_end() == b""


async def test_body_over_the_limit_is_refused() -> None:
    async with serving(ROUTES, limits=LIMITS._replace(body=10)) as served:
        response = await served.request(post("/echo", b"a" * 11))
        assert response.status == 413


async def test_a_client_that_reads_slowly_gets_a_whole_plain_response(served: Served) -> None:
    async with served.client() as client:
        for _ in range(50):  # ten megabytes: more than the kernel keeps
            await client.send(get("/large"))
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(50):
            assert (await read_response(client)).body == LARGE
