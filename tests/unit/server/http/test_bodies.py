"""Bodies of requests and responses: chunks, compression, limits and the memory budget."""

import gzip
import math
import zlib
from collections.abc import AsyncIterator, Sequence

import pytest
import trio

from tests.unit.server.web_parts import LIMITS, Served, chunked, echo, get, post, read_response, serving
from tsd.server.clients import Clients
from tsd.server.http.bodies import MAX_GZIP_MEMBERS, MIN_COMPRESSED_BYTES, START_GRACE_S, MemoryBudget
from tsd.server.http.connection import UNCHUNKED_BYTES, HttpConnection, HttpPort, RequestLimits
from tsd.server.http.messages import Request, Response
from tsd.server.http.router import Router
from tsd.server.http.security import Authorizer, Cors
from tsd.server.http.stats import RequestStats
from tsd.server.peer import local_peer, peer_at

MUCH = b'{"metric":"sys.cpu","value":42}' * 3000
RAW = zlib.compressobj(wbits=-15)
HEADLESS = RAW.compress(MUCH) + RAW.flush()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving({"api/echo": echo, "echo": echo}) as served:
        yield served
        await trio.testing.wait_all_tasks_blocked()
        assert served.budget.used == 0


@pytest.mark.difference("large-bodies")
async def test_chunked_body_is_joined(served: Served) -> None:
    response = await served.request(chunked("/api/echo", b"a" * 100_000, b"b", MUCH))
    assert response.body == b"a" * 100_000 + b"b" + MUCH


async def test_tiny_chunks_let_other_tasks_run() -> None:
    ours, _ = trio.testing.memory_stream_pair()
    router = Router({"echo": echo}, Authorizer(Cors("", "")))
    session = HttpConnection(HttpPort(router, LIMITS, MemoryBudget(1 << 20), RequestStats()), ours, local_peer())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await session.run(chunked("/echo", *([b"x"] * 20_000)), _nothing)
        nursery.cancel_scope.cancel()
    assert turns >= 50


async def test_ipv6_prefix_has_one_share(autojump_clock: trio.abc.Clock) -> None:
    """A /64 belongs to one customer: bodies announced from many of its addresses share one client's part."""
    budget = MemoryBudget(4000)
    router = Router({"echo": echo}, Authorizer(Cors("", "")))
    heads = get("/echo", "Content-Length: 1000", method="POST")
    clients = Clients(prefix=64)
    async with trio.open_nursery() as nursery:
        for number in range(8):
            ours, _ = trio.testing.memory_stream_pair()
            peer = peer_at(f"2001:db8::{number}", 1, clients)
            session = HttpConnection(HttpPort(router, LIMITS, budget, RequestStats()), ours, peer)
            nursery.start_soon(session.run, heads, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.used == 1000
        nursery.cancel_scope.cancel()


async def _nothing() -> bytes:
    return b""


async def test_expect_header_gets_100_continue(served: Served) -> None:
    async with served.client() as client:
        await client.send(post("/api/echo", b"abc", "Expect: 100-continue").removesuffix(b"abc"))
        assert (await read_response(client)).status == 100
        await client.send(b"abc")
        assert (await read_response(client)).body == b"abc"


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(MUCH, mtime=0)),
        ("X-GZip", gzip.compress(MUCH, mtime=0)),
        ("gzip", gzip.compress(MUCH[:50], mtime=0) + gzip.compress(MUCH[50:], mtime=0)),
        ("deflate", zlib.compress(MUCH)),
        ("deflate", HEADLESS),
        ("X-Deflate", zlib.compress(MUCH)),
        ("deflate, gzip", gzip.compress(zlib.compress(MUCH), mtime=0)),
        ("gzip, identity,, gzip", gzip.compress(gzip.compress(MUCH, mtime=0), mtime=0)),
        ("identity", MUCH),
        ("UTF-8", MUCH),
    ],
)
async def test_compressed_body_is_decompressed(served: Served, coding: str, packed: bytes) -> None:
    assert (await served.request(post("/api/echo", packed, f"Content-Encoding: {coding}"))).body == MUCH


@pytest.mark.difference(
    "unknown-content-coding",
    topic="http",
    theirs="A body in an unknown coding is read as if it had none: `Unable to parse the given JSON`",
    ours="415 with the supported codings, also in the header `Accept-Encoding`",
)
@pytest.mark.parametrize("coding", ["br", "gzip, zstd", ",".join(["gzip"] * 50)])
@pytest.mark.parametrize("path", ["/api/echo", "/echo", "/echo?json"])
async def test_body_in_an_unknown_coding_is_unsupported(served: Served, coding: str, path: str) -> None:
    header = f"Content-Encoding: {coding}"
    for request in (post(path, MUCH, header), chunked(path, MUCH, headers=(header,))):
        response = await served.request(request)
        assert (response.status, response.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert (await served.request(post(path, b"", header))).status == 200


async def test_body_in_an_unknown_coding_is_refused_before_it_is_sent(served: Served) -> None:
    expecting = post("/api/echo", b"", "Content-Encoding: br", "Expect: 100-continue")
    response = await served.request(expecting.replace(b"Content-Length: 0", b"Content-Length: 1000"))
    assert response.status == 415
    assert "br" in response.json["error"]["details"]
    assert served.budget.used == 0


@pytest.mark.difference(
    "undecodable-requests",
    topic="http",
    theirs=(
        "A damaged gzip body closes the connection. An unknown charset, or a `%` without two digits, is never answered"
    ),
    ours="Each is answered with 400",
)
@pytest.mark.parametrize(
    "packed", [b"no gzip at all", gzip.compress(MUCH)[:-9], gzip.compress(b"", mtime=0) * (MAX_GZIP_MEMBERS + 1)]
)
async def test_damaged_body_is_refused(served: Served, packed: bytes) -> None:
    response = await served.request(post("/api/echo", packed, "Content-Encoding: gzip"))
    assert (response.status, response.json["error"]["message"]) == (400, "Bad request")


@pytest.mark.parametrize("codings", ["deflate, gzip", "gzip, gzip"])
async def test_body_that_is_empty_before_its_last_coding_is_refused(served: Served, codings: str) -> None:
    """Regression: the connection ended with an internal error, and without a response."""
    response = await served.request(post("/api/echo", gzip.compress(b"", mtime=0), f"Content-Encoding: {codings}"))
    assert response.status == 400


async def test_body_is_converted_to_utf8(served: Served) -> None:
    response = await served.request(
        post("/api/echo", "é".encode("latin-1"), "Content-Type: text/plain; charset=ISO-8859-1")
    )
    assert response.body.decode() == "é"
    wide = ("é" * 100_000).encode("utf-16")
    response = await served.request(post("/api/echo", wide, "Content-Type: text/plain; charset=utf-16"))
    assert response.body.decode() == "é" * 100_000
    half = await served.request(post("/api/echo", wide[:-1], "Content-Type: text/plain; charset=utf-16"))
    assert half.status == 400


@pytest.mark.difference("undecodable-requests")
@pytest.mark.parametrize("charset", ["rot13", "klingon", "punycode", "idna", "unicode_escape", "aliases", "../x"])
async def test_unsupported_charset_is_refused(served: Served, charset: str) -> None:
    """Decoding punycode takes quadratic time, and Python keeps every charset name that it looks up."""
    response = await served.request(post("/api/echo", b"x-" + b"a0" * 100_000, f"Content-Type: a/b; charset={charset}"))
    assert response.status == 400


async def test_text_that_grows_over_the_limit_is_refused(served: Served) -> None:
    body = "é".encode("latin-1") * (LIMITS.body - 1)
    assert (await served.request(post("/api/echo", body, "Content-Type: a/b; charset=latin1"))).status == 413


@pytest.mark.difference(
    "large-bodies",
    topic="http",
    theirs=(
        "A body that is large, chunked or announced by `Expect` is refused by default. Beyond `max_chunk` the "
        "connection is closed without a reply"
    ),
    ours="Bodies up to 32 MiB, uncompressed, are accepted. Larger ones are answered with 413",
)
@pytest.mark.difference(
    "compressed-bodies",
    topic="http",
    theirs="The limit applies to the compressed bytes",
    ours="It applies to the decompressed bytes",
    why="A few compressed bytes could fill the memory",
)
@pytest.mark.parametrize(
    "request_",
    [
        post("/api/echo", bytes(LIMITS.body + 1)),
        chunked("/api/echo", bytes(LIMITS.body), b"x"),
        post("/api/echo", gzip.compress(bytes(LIMITS.body + 1), mtime=0), "Content-Encoding: gzip"),
    ],
    ids=["whole", "chunks", "bomb"],
)
async def test_body_over_the_limit_gets_413(served: Served, request_: bytes) -> None:
    response = await served.request(request_)
    assert response.status == 413
    assert (
        response.json["error"]["details"] == f"The body is larger than {LIMITS.body} bytes (tsd.http.request.max_chunk)"
    )


async def test_body_at_the_limit_is_accepted(served: Served) -> None:
    body = bytes(LIMITS.body)
    packed = post("/api/echo", gzip.compress(body, mtime=0), "Content-Encoding: gzip")
    for request in (chunked("/api/echo", body), post("/api/echo", body), packed):
        assert len((await served.request(request)).body) == LIMITS.body


@pytest.mark.parametrize(
    "request_", [post("/api/put", bytes(UNCHUNKED_BYTES + 1)), chunked("/api/put", b"x"), post("/", b"", "Expect: x")]
)
async def test_without_chunked_only_small_bodies_are_accepted(request_: bytes) -> None:
    async with serving({"api/echo": echo}, limits=RequestLimits(1 << 20, 60, chunked=False)) as served:
        response = await served.request(request_)
        assert (response.status, response.headers["content-type"]) == (400, "text/html; charset=UTF-8")
        assert b"Chunked request not supported." in response.body
        assert (await served.request(post("/api/echo", bytes(UNCHUNKED_BYTES)))).status == 200


async def test_bodies_wait_for_memory_within_a_client_share(autojump_clock: trio.abc.Clock) -> None:
    """Eight clients at one address send a quarter of the budget each: they are served one after the other."""
    at_once, most = 0, 0

    async def slow(request: Request) -> Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(1)
        at_once -= 1
        return Response(204, b"", None)

    async with serving({"slow": slow}, budget=MemoryBudget(400_000)) as served, trio.open_nursery() as nursery:

        async def send_request() -> None:
            assert (await served.request(post("/slow", bytes(100_000)))).status == 204

        for _ in range(8):
            nursery.start_soon(send_request)
    assert (most, served.budget.used) == (1, 0)


async def test_small_compressed_bodies_take_little_memory(autojump_clock: trio.abc.Clock) -> None:
    """Many agents at one address wait for the disk at the same time."""

    async def slow(request: Request) -> Response:
        await trio.sleep(1)
        return Response(204, b"", None)

    async with serving({"slow": slow}, budget=MemoryBudget(8 << 20)) as served, trio.open_nursery() as nursery:

        async def send_request() -> None:
            request = post("/slow", gzip.compress(bytes(1000)), "Content-Encoding: gzip")
            assert (await served.request(request)).status == 204

        for _ in range(20):
            nursery.start_soon(send_request)
    assert served.budget.used == 0


async def test_body_without_memory_in_time_gets_an_error(autojump_clock: trio.abc.Clock) -> None:
    async def slow(request: Request) -> Response:
        await trio.sleep(1.5 * LIMITS.timeout_s)
        return Response(204, b"", None)

    async with serving({"api/slow": slow}, budget=MemoryBudget(400_000)) as served, served.client() as first:
        await first.send_whole(post("/api/slow", bytes(100_000)))
        assert (await served.request(post("/api/slow", bytes(100_000)))).status == 408
        assert (await read_response(first)).status == 204


@pytest.mark.parametrize(
    "request_",
    [
        post("/api/echo", bytes(500_001)),
        chunked("/api/echo", *[bytes(50_000)] * 11),
        post("/api/echo", gzip.compress(bytes(600_000)), "Content-Encoding: gzip"),
    ],
    ids=["announced", "chunked", "compressed"],
)
async def test_body_beyond_all_memory_is_refused_at_once(request_: bytes, autojump_clock: trio.abc.Clock) -> None:
    """Regression: it waited for the whole timeout, hurried other clients, and was told to be slow. Without a length, or
    compressed, it was told to send again."""
    async with serving({"api/echo": echo}, budget=MemoryBudget(500_000)) as served:
        response = await served.request(request_)
        assert (response.status, b"tsd.http.request.memory" in response.body) == (413, True)
        assert (await served.request(post("/api/echo", bytes(500_000)))).status == 200


@pytest.mark.parametrize(
    "request_",
    [
        chunked("/api/echo", *[bytes(50_000)] * 20),
        post("/api/echo", gzip.compress(bytes(1_000_000)), "Content-Encoding: gzip"),
    ],
    ids=["chunked", "compressed"],
)
async def test_only_body_of_unknown_size_may_exceed_its_client_share(request_: bytes) -> None:
    """Regression: it was told that other bodies use the memory, each time."""
    async with serving({"api/echo": echo}, budget=MemoryBudget(1_500_000)) as served:
        response = await served.request(request_)
        assert (response.status, response.body) == (200, bytes(1_000_000))


async def test_late_body_gives_up_its_reservation(autojump_clock: trio.abc.Clock) -> None:
    """A few slow clients must not hold the memory of all bodies."""
    router = Router({"echo": echo}, Authorizer(Cors("", "")))
    port = HttpPort(router, LIMITS, MemoryBudget(4 << 20), RequestStats())
    clients = Clients()
    closing: dict[str, tuple[float, bytes]] = {}

    async def send(address: str, parts: Sequence[tuple[float, int]]) -> None:
        """Send a body of a megabyte: so many bytes after so many seconds each."""
        ours, theirs = trio.testing.memory_stream_pair()
        coming = iter(parts)

        async def receive() -> bytes:
            pause_s, size = next(coming, (math.inf, 0))
            await trio.sleep(pause_s)
            return bytes(size)

        session = HttpConnection(port, ours, peer_at(address, 1, clients))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, get("/echo", f"Content-Length: {1 << 20}", method="POST"), receive)
            response = await theirs.receive_some()
            nursery.cancel_scope.cancel()
        closing[address] = (trio.current_time() - began, bytes(response).split(b" ")[1])

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(send, f"10.0.0.{number}", [(1, 1)] * 100)
        nursery.start_soon(send, "10.0.1.1", [(1, 1 << 16)] * 16)  # the minimum rate
        await trio.testing.wait_all_tasks_blocked()
        assert port.budget.used == 4 << 20
        nursery.start_soon(send, "10.0.2.1", [(0, 1 << 20)])
    assert closing["10.0.1.1"][1] == closing["10.0.2.1"][1] == b"200"
    assert closing["10.0.2.1"][0] <= START_GRACE_S + 1
    assert {status for _, status in closing.values()} == {b"200", b"408"}
    assert port.budget.used == 0


async def test_slow_body_is_accepted_while_no_other_waits(autojump_clock: trio.abc.Clock) -> None:
    async with serving({"api/echo": echo}) as served, served.client() as client:
        request = post("/api/echo", bytes(1000))
        await client.send_whole(request[:-900])
        await trio.sleep(LIMITS.timeout_s * 0.9)
        await client.send(request[-900:])
        assert (await read_response(client)).status == 200


async def test_budget_serves_waiters_in_order() -> None:
    budget = MemoryBudget(100)
    order: list[str] = []

    async def take(name: str, amount: int, release: trio.Event) -> None:
        with budget.reserve(name) as reservation:
            await reservation.take(amount)
            order.append(name)
            await release.wait()

    first, others = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, "a", 90, first)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as gone:
            async with trio.open_nursery() as inner:
                inner.start_soon(take, "b", 20, others)
                await trio.testing.wait_all_tasks_blocked()
                gone.cancel()
        nursery.start_soon(take, "c", 80, others)
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["a"]
        first.set()
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["a", "c"]
        others.set()
    assert budget.used == 0


@pytest.mark.parametrize(
    ("accept", "coding"), [("gzip", "gzip"), ("deflate", "deflate"), ("*", "gzip"), ("gzip;q=0, br", None), ("", None)]
)
async def test_responses_are_compressed_if_accepted(served: Served, accept: str, coding: str | None) -> None:
    response = await served.request(post("/api/echo", MUCH, f"Accept-Encoding: {accept}"))
    assert response.headers.get("content-encoding") == coding
    assert (zlib.decompress(response.body, wbits=47) if coding else response.body) == MUCH  # 47: detects gzip and zlib
    small = await served.request(post("/api/echo", MUCH[: MIN_COMPRESSED_BYTES - 1], f"Accept-Encoding: {accept}"))
    assert "content-encoding" not in small.headers


async def parts(request: Request) -> Response:
    """Respond with the number of chunks in `parts`."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(int(request.param("parts") or 0)):
            await trio.lowlevel.checkpoint()
            yield MUCH

    return Response(200, body())


@pytest.mark.parametrize("count", [0, 1, 2, 40])
async def test_streamed_body_is_sent_as_produced(count: int) -> None:
    async with serving({"api/parts": parts}) as served:
        response = await served.request(get(f"/api/parts?parts={count}"), get(f"/api/parts?parts={count}"))
        assert response.body == MUCH * count
        assert ("content-length" in response.headers) == (count < 2)
        packed = await served.request(get(f"/api/parts?parts={count}", "Accept-Encoding: gzip"))
        assert packed.body == b"" if count == 0 else gzip.decompress(packed.body) == MUCH * count
        called = await served.request(get(f"/api/parts?parts={count}&jsonp=f"))
        assert called.body == (b"f(" + MUCH * count + b")" if count else b"")
        to_the_end = await served.request(get(f"/api/parts?parts={count}", version="1.0"))
        assert to_the_end.body == MUCH * count
        assert (await served.request(get(f"/api/parts?parts={count}", method="HEAD"), get("/api/parts"))).status == 200


async def test_error_within_a_body_truncates_the_response() -> None:
    closing = trio.Event()

    async def broken(request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            try:
                yield b"["
                yield b"1"
                raise RuntimeError("a bug")
            finally:
                closing.set()

        return Response(200, body())

    async with serving({"api/broken": broken}) as served, served.client() as client:
        await client.send(get("/api/broken"))
        text = await client.read_to_end()
        assert text.endswith(b"1\r\n")
        assert closing.is_set()
        assert served.listener.statistics().failed == 1


async def test_abandoned_answer_stops_its_query(autojump_clock: trio.abc.Clock) -> None:
    """The body's iterator is closed when its client has disconnected, and releases what it holds."""
    made, closing = 0, trio.Event()

    async def endless(request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            nonlocal made
            try:
                while True:
                    made += 1
                    yield MUCH
            finally:
                closing.set()

        return Response(200, body())

    async with serving({"api/endless": endless}) as served:
        async with served.client() as client:
            await client.send(get("/api/endless"))
            await client.read_bytes(1000)
        await closing.wait()
    assert made < 1000
