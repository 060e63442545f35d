"""Connections of agents are accepted together."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import trio
import trio.testing
from trio.testing import MockClock

from tests.running import Client
from tests.unit.server.web_parts import Served, get, post, serving
from tsd.server.http.messages import Request, Response

ADDRESSES = [f"127.0.1.{number}" for number in range(1, 7)]
BETWEEN_S, LONG_S = 0.001, 5  # from connection to connection, and until all are served


class Port:
    """A port with /api/put and /api/query, and the times and bodies of its puts."""

    def __init__(self) -> None:
        self.puts: list[tuple[float, bytes]] = []

    async def put(self, request: Request) -> Response:
        self.puts.append((trio.current_time(), request.body))
        return Response(204, b"", None)

    async def answer_query(self, _: Request) -> Response:
        return Response(200, b"[]")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Served]:
        async with serving({"api/put": self.put, "api/query": self.answer_query}) as served:
            yield served


async def send(served: Served, port: Port, count: int, addresses: Sequence[str] = ADDRESSES) -> list[float]:
    """Return when the points of connections that come one after the other were served."""
    port.puts.clear()
    async with AsyncExitStack() as stack:
        for number in range(count):
            client = await connected(served, addresses[number % len(addresses)])
            stack.push_async_callback(client.stream.aclose)
            await client.send(post("/api/put", b"%d" % number))
            await trio.sleep(BETWEEN_S)
        await trio.sleep(LONG_S)
    assert sorted(body for _, body in port.puts) == [b"%d" % number for number in range(count)]
    return [at_s for at_s, _ in port.puts]


async def connected(served: Served, address: str) -> Client:
    """Return a connection from an address."""
    sock = trio.socket.socket()
    await sock.bind((address, 0))
    await sock.connect(("127.0.0.1", served.port))
    return Client(trio.SocketStream(sock))


async def test_connections_that_keep_coming_are_served_together(autojump_clock: MockClock) -> None:
    port = Port()
    async with port.serving() as served:
        first, *_, last_but_one, last = await send(served, port, 6)
        assert first < last_but_one == last


async def test_connections_do_not_wait_after_a_query(autojump_clock: MockClock) -> None:
    port = Port()
    async with port.serving() as served:
        assert (await served.request(get("/api/query"))).status == 200
        assert len(set(await send(served, port, 6))) == 6
        await trio.sleep(3600)
        assert len(set(await send(served, port, 6))) < 6


async def test_a_client_that_connects_again_does_not_wait(autojump_clock: MockClock) -> None:
    """Regression: a script that posted one point after the other got ten connections a second."""
    port = Port()
    async with port.serving() as served:
        assert len(set(await send(served, port, 9, ["127.0.1.9"]))) >= 8  # its second one is not yet known as such
        assert len(set(await send(served, port, 6))) == 6  # nor do others
        await trio.sleep(3600)
        assert len(set(await send(served, port, 6))) < 6


async def test_connections_that_wait_are_served_at_a_stop(autojump_clock: MockClock) -> None:
    port = Port()
    async with port.serving() as served, AsyncExitStack() as stack:
        for number in range(6):
            client = await connected(served, ADDRESSES[number])
            stack.push_async_callback(client.stream.aclose)
            await client.send(post("/api/put", b"%d" % number))
            await trio.sleep(BETWEEN_S)
        assert len(port.puts) < 6  # others wait
        served.listener.drain()
        await served.listener.closed.wait()
        assert len(port.puts) == 6
