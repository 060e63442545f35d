"""HTTP with endpoints of the test's own: the real listener on a real port, and what a client makes of its answers."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from tests.running import Client
from tsd.access.doorkeeper import Doorkeeper
from tsd.access.needs import endpoints
from tsd.doors.bodies import Room
from tsd.doors.clients import Clients
from tsd.doors.cors import Cors
from tsd.doors.dispatch import Dispatcher, Rules
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.doors.listener import Limits, Listener, Receive
from tsd.doors.permits import Permits
from tsd.doors.tally import Tally
from tsd.doors.unfinished import Unfinished
from tsd.doors.visitor import Visitor
from tsd.doors.web import Bounds, WebSession

BOUNDS = Bounds(1 << 20, 60)


class Heard(NamedTuple):
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A port with some endpoints behind it."""

    def __init__(self, port: int, tally: Tally, room: Room, listener: Listener) -> None:
        self.port = port
        self.tally = tally
        self.room = room
        self.listener = listener

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def ask(self, *requests: bytes) -> Heard:
        """The answer to the last of some requests, on a connection of their own."""
        async with self.client() as client:
            for request in requests:
                await client.send(request)
                heard = await hear(client, head=request.startswith(b"HEAD"))
            return heard


@asynccontextmanager
async def serving(
    routes: Mapping[str, Endpoint],
    *,
    rules: Rules | None = None,
    bounds: Bounds = BOUNDS,
    room: Room | None = None,
    doorkeeper: Doorkeeper | None = None,
    unfinished: Unfinished | None = None,
) -> AsyncIterator[Served]:
    """Serve `routes` until the block ends; with a `doorkeeper` to those who may, and /health to everybody."""
    tally, space, cors = Tally(), room or Room(8 << 20), Cors("", "")
    permits = Permits(doorkeeper, endpoints("everybody", "read", may_delete=False), cors) if doorkeeper else None
    dispatcher = Dispatcher(routes, rules or Rules(), cors, permits)

    async def http(stream: trio.abc.Stream, first: bytes, receive: Receive, visitor: Visitor) -> None:
        await WebSession(stream, dispatcher, bounds, space, tally, visitor).run(first, receive)

    limits = Limits(0, 0, True, True)
    listener = Listener(http, http, limits, Clients(), None, doorkeeper, None, unfinished)
    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, sockets)
        try:
            yield Served(sockets[0].socket.getsockname()[1], tally, space, listener)
        finally:
            nursery.cancel_scope.cancel()


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request without a body."""
    lines = [f"{method} {path} HTTP/{version}", "Host: tsd", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request with one."""
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


def chunked(path: str, *chunks: bytes, headers: tuple[str, ...] = ()) -> bytes:
    """A request whose body comes in chunks."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return get(path, "Transfer-Encoding: chunked", *headers, method="POST") + body


async def hear(client: Client, *, head: bool = False) -> Heard:
    """The next answer on a connection, its body put together but not uncompressed."""
    first, *lines = (await client.read_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    status = int(first.split(" ")[1])
    if head or status in (100, 204, 304):
        return Heard(status, headers, b"")
    if "content-length" in headers:
        return Heard(status, headers, await client.read_bytes(int(headers["content-length"])))
    if headers.get("transfer-encoding") != "chunked":
        return Heard(status, headers, await client.read_to_end())
    body = b""
    while size := int(await client.read_until(b"\r\n"), 16):
        body += await client.read_bytes(size)
        await client.read_bytes(2)
    await client.read_bytes(2)
    return Heard(status, headers, body)


async def echo(request: Request) -> Response:
    """An endpoint that says what it was asked."""
    return Response(200, request.body, "text/plain", (("X-Asked", f"{request.method} {request.path}"),))
