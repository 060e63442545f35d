"""Bodies both ways: in chunks, compressed, too large, and more than there is room for."""

import gzip
import math
import zlib
from collections.abc import AsyncIterator, Sequence

import pytest
import trio

from tests.unit.doors.web_parts import BOUNDS, Served, chunked, echo, get, hear, post, serving
from tsd.doors.bodies import GRACE_S, MEMBERS, Room
from tsd.doors.clients import Clients
from tsd.doors.compression import LEAST_BYTES
from tsd.doors.cors import Cors
from tsd.doors.dispatch import Dispatcher, Rules
from tsd.doors.exchange import Request, Response
from tsd.doors.tally import Tally
from tsd.doors.visitor import here, visitor_at
from tsd.doors.web import TURN_CHUNKS, UNCHUNKED_BYTES, Bounds, WebSession

MUCH = b'{"metric":"sys.cpu","value":42}' * 3000
RAW = zlib.compressobj(wbits=-15)
HEADLESS = RAW.compress(MUCH) + RAW.flush()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving({"api/echo": echo}) as served:
        yield served
        await trio.testing.wait_all_tasks_blocked()
        assert served.room.used == 0


async def test_a_body_in_chunks_is_one_body(served: Served) -> None:
    heard = await served.ask(chunked("/api/echo", b"a" * 100_000, b"b", MUCH))
    assert heard.body == b"a" * 100_000 + b"b" + MUCH


async def test_others_have_their_turn_between_the_smallest_chunks() -> None:
    ours, _ = trio.testing.memory_stream_pair()
    session = WebSession(
        ours, Dispatcher({"echo": echo}, Rules(), Cors("", "")), BOUNDS, Room(1 << 20), Tally(), here()
    )
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
    assert turns >= 20_000 // TURN_CHUNKS


async def test_a_network_of_ipv6_has_one_share(autojump_clock: trio.abc.Clock) -> None:
    """A /64 is one customer's: who announces bodies from many of its addresses leaves room for others."""
    room = Room(4000)
    dispatcher = Dispatcher({"echo": echo}, Rules(), Cors("", ""))
    heads = get("/echo", "Content-Length: 1000", method="POST")
    clients = Clients(prefix=64)
    async with trio.open_nursery() as nursery:
        for number in range(8):
            ours, _ = trio.testing.memory_stream_pair()
            visitor = visitor_at(f"2001:db8::{number}", 1, clients)
            session = WebSession(ours, dispatcher, BOUNDS, room, Tally(), visitor)
            nursery.start_soon(session.run, heads, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        assert room.used == 1000
        nursery.cancel_scope.cancel()


async def _nothing() -> bytes:
    return b""


async def test_a_client_that_asks_first_is_told_to_go_on(served: Served) -> None:
    async with served.client() as client:
        await client.send(post("/api/echo", b"abc", "Expect: 100-continue").removesuffix(b"abc"))
        assert (await hear(client)).status == 100
        await client.send(b"abc")
        assert (await hear(client)).body == b"abc"


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(MUCH, mtime=0)),
        ("X-GZip", gzip.compress(MUCH, mtime=0)),
        ("gzip", gzip.compress(MUCH[:50], mtime=0) + gzip.compress(MUCH[50:], mtime=0)),
        ("deflate", zlib.compress(MUCH)),
        ("deflate", HEADLESS),
        ("snappy", MUCH),
    ],
)
async def test_a_packed_body_is_unpacked(served: Served, coding: str, packed: bytes) -> None:
    assert (await served.ask(post("/api/echo", packed, f"Content-Encoding: {coding}"))).body == MUCH


@pytest.mark.parametrize(
    "packed", [b"no gzip at all", gzip.compress(MUCH)[:-9], gzip.compress(b"", mtime=0) * (MEMBERS + 1)]
)
async def test_a_body_that_is_not_what_it_says_is_refused(served: Served, packed: bytes) -> None:
    heard = await served.ask(post("/api/echo", packed, "Content-Encoding: gzip"))
    assert (heard.status, heard.json["error"]["message"]) == (400, "Bad request")


async def test_a_text_in_another_charset_comes_as_utf8(served: Served) -> None:
    heard = await served.ask(post("/api/echo", "é".encode("latin-1"), "Content-Type: text/plain; charset=ISO-8859-1"))
    assert heard.body.decode() == "é"
    wide = ("é" * 100_000).encode("utf-16")
    heard = await served.ask(post("/api/echo", wide, "Content-Type: text/plain; charset=utf-16"))
    assert heard.body.decode() == "é" * 100_000
    half = await served.ask(post("/api/echo", wide[:-1], "Content-Type: text/plain; charset=utf-16"))
    assert half.status == 400


@pytest.mark.parametrize("charset", ["rot13", "klingon", "punycode", "idna", "unicode_escape", "aliases", "../x"])
async def test_a_charset_that_texts_are_not_written_in_is_refused(served: Served, charset: str) -> None:
    """To read punycode takes the square of a text's length, and Python keeps every name that it is asked for."""
    heard = await served.ask(post("/api/echo", b"x-" + b"a0" * 100_000, f"Content-Type: a/b; charset={charset}"))
    assert heard.status == 400


async def test_a_text_that_grows_past_the_limit_is_refused(served: Served) -> None:
    body = "é".encode("latin-1") * (BOUNDS.body - 1)
    assert (await served.ask(post("/api/echo", body, "Content-Type: a/b; charset=latin1"))).status == 413


@pytest.mark.parametrize(
    "request_",
    [
        post("/api/echo", bytes(BOUNDS.body + 1)),
        chunked("/api/echo", bytes(BOUNDS.body), b"x"),
        post("/api/echo", gzip.compress(bytes(BOUNDS.body + 1), mtime=0), "Content-Encoding: gzip"),
    ],
    ids=["whole", "chunks", "bomb"],
)
async def test_a_body_past_the_limit_is_answered_with_413(served: Served, request_: bytes) -> None:
    heard = await served.ask(request_)
    assert heard.status == 413
    assert heard.json["error"]["details"] == f"The body is larger than {BOUNDS.body} bytes (tsd.http.request.max_chunk)"


async def test_a_body_at_the_limit_is_taken(served: Served) -> None:
    assert len((await served.ask(chunked("/api/echo", bytes(BOUNDS.body)))).body) == BOUNDS.body


@pytest.mark.parametrize(
    "request_", [post("/api/put", bytes(UNCHUNKED_BYTES + 1)), chunked("/api/put", b"x"), post("/", b"", "Expect: x")]
)
async def test_where_chunks_are_off_only_small_bodies_are_taken(request_: bytes) -> None:
    async with serving({"api/echo": echo}, bounds=Bounds(1 << 20, 60, chunked=False)) as served:
        heard = await served.ask(request_)
        assert (heard.status, heard.headers["content-type"]) == (400, "text/html; charset=UTF-8")
        assert b"Chunked request not supported." in heard.body
        assert (await served.ask(post("/api/echo", bytes(UNCHUNKED_BYTES)))).status == 200


async def test_bodies_wait_for_room_and_one_client_has_a_share(autojump_clock: trio.abc.Clock) -> None:
    """Eight clients at one address send a quarter of the room each: they come one after the other."""
    at_once, most = 0, 0

    async def slow(request: Request) -> Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(1)
        at_once -= 1
        return Response(204, b"", None)

    async with serving({"slow": slow}, room=Room(400_000)) as served, trio.open_nursery() as nursery:

        async def ask() -> None:
            assert (await served.ask(post("/slow", bytes(100_000)))).status == 204

        for _ in range(8):
            nursery.start_soon(ask)
    assert (most, served.room.used) == (1, 0)


async def test_who_finds_no_room_in_time_is_told(autojump_clock: trio.abc.Clock) -> None:
    async def slow(request: Request) -> Response:
        await trio.sleep(1.5 * BOUNDS.patience_s)
        return Response(204, b"", None)

    async with serving({"api/slow": slow}, room=Room(400_000)) as served, served.client() as first:
        await first.send_whole(post("/api/slow", bytes(100_000)))
        assert (await served.ask(post("/api/slow", bytes(100_000)))).status == 408
        assert (await hear(first)).status == 204


async def test_who_announces_much_and_sends_little_makes_room_for_others(autojump_clock: trio.abc.Clock) -> None:
    """Four addresses could hold the memory of all bodies for as long as a request may take."""
    room = Room(4 << 20)
    dispatcher = Dispatcher({"echo": echo}, Rules(), Cors("", ""))
    clients = Clients()
    ended: dict[str, tuple[float, bytes]] = {}

    async def send(address: str, parts: Sequence[tuple[float, int]]) -> None:
        """A body of a megabyte, of which so many bytes come after so many seconds each."""
        ours, theirs = trio.testing.memory_stream_pair()
        coming = iter(parts)

        async def receive() -> bytes:
            pause_s, size = next(coming, (math.inf, 0))
            await trio.sleep(pause_s)
            return bytes(size)

        session = WebSession(ours, dispatcher, BOUNDS, room, Tally(), visitor_at(address, 1, clients))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, get("/echo", f"Content-Length: {1 << 20}", method="POST"), receive)
            heard = await theirs.receive_some()
            nursery.cancel_scope.cancel()
        ended[address] = (trio.current_time() - began, bytes(heard).split(b" ")[1])

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(send, f"10.0.0.{number}", [(1, 1)] * 100)
        nursery.start_soon(send, "10.0.1.1", [(1, 1 << 16)] * 16)  # as slow as it may be
        await trio.testing.wait_all_tasks_blocked()
        assert room.used == 4 << 20
        nursery.start_soon(send, "10.0.2.1", [(0, 1 << 20)])
    assert ended["10.0.1.1"][1] == ended["10.0.2.1"][1] == b"200"
    assert ended["10.0.2.1"][0] <= GRACE_S + 1
    assert {status for _, status in ended.values()} == {b"200", b"408"}
    assert room.used == 0


async def test_alone_who_is_slow_may_take_its_time(autojump_clock: trio.abc.Clock) -> None:
    async with serving({"api/echo": echo}) as served, served.client() as client:
        request = post("/api/echo", bytes(1000))
        await client.send_whole(request[:-900])
        await trio.sleep(BOUNDS.patience_s * 0.9)
        await client.send(request[-900:])
        assert (await hear(client)).status == 200


async def test_a_room_is_given_in_order_and_back_when_nobody_wants_it() -> None:
    room = Room(100)
    order: list[str] = []

    async def take(name: str, amount: int, release: trio.Event) -> None:
        async with room.claim(name) as claim:
            await claim.take(amount)
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
    assert room.used == 0


@pytest.mark.parametrize(
    ("accept", "coding"), [("gzip", "gzip"), ("deflate", "deflate"), ("*", "gzip"), ("gzip;q=0, br", None), ("", None)]
)
async def test_answers_are_packed_where_a_client_takes_it(served: Served, accept: str, coding: str | None) -> None:
    heard = await served.ask(post("/api/echo", MUCH, f"Accept-Encoding: {accept}"))
    assert heard.headers.get("content-encoding") == coding
    assert (zlib.decompress(heard.body, wbits=47) if coding else heard.body) == MUCH  # 47: whatever its head says
    small = await served.ask(post("/api/echo", MUCH[: LEAST_BYTES - 1], f"Accept-Encoding: {accept}"))
    assert "content-encoding" not in small.headers


async def parts(request: Request) -> Response:
    """A body in as many parts as `parts` says."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(int(request.param("parts") or 0)):
            await trio.lowlevel.checkpoint()
            yield MUCH

    return Response(200, body())


@pytest.mark.parametrize("count", [0, 1, 2, 40])
async def test_a_body_in_parts_is_sent_as_it_comes(count: int) -> None:
    async with serving({"api/parts": parts}) as served:
        heard = await served.ask(get(f"/api/parts?parts={count}"), get(f"/api/parts?parts={count}"))
        assert heard.body == MUCH * count
        assert ("content-length" in heard.headers) == (count < 2)
        packed = await served.ask(get(f"/api/parts?parts={count}", "Accept-Encoding: gzip"))
        assert packed.body == b"" if count == 0 else gzip.decompress(packed.body) == MUCH * count
        called = await served.ask(get(f"/api/parts?parts={count}&jsonp=f"))
        assert called.body == (b"f(" + MUCH * count + b")" if count else b"")
        to_the_end = await served.ask(get(f"/api/parts?parts={count}", version="1.0"))
        assert to_the_end.body == MUCH * count
        assert (await served.ask(get(f"/api/parts?parts={count}", method="HEAD"), get("/api/parts"))).status == 200


async def test_what_fails_in_the_middle_is_cut_not_ended() -> None:
    ended = trio.Event()

    async def broken(request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            try:
                yield b"["
                yield b"1"
                raise RuntimeError("a bug")
            finally:
                ended.set()

        return Response(200, body())

    async with serving({"api/broken": broken}) as served, served.client() as client:
        await client.send(get("/api/broken"))
        text = await client.read_to_end()
        assert text.endswith(b"1\r\n")
        assert ended.is_set()
        assert served.listener.statistics().failed == 1


async def test_nobody_reads_what_is_made_for_him_any_more(autojump_clock: trio.abc.Clock) -> None:
    """The parts of an answer whose client has gone are made no further, and what they hold is given back."""
    made, ended = 0, trio.Event()

    async def endless(request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            nonlocal made
            try:
                while True:
                    made += 1
                    yield MUCH
            finally:
                ended.set()

        return Response(200, body())

    async with serving({"api/endless": endless}) as served:
        async with served.client() as client:
            await client.send(get("/api/endless"))
            await client.read_bytes(1000)
        await ended.wait()
    assert made < 1000
