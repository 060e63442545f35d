"""HTTP for tests: a real listener on a port with given endpoints, and a client that parses responses."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from tests.running import Client
from tsd.auth.authenticator import Authenticator
from tsd.auth.roles import endpoint_permissions
from tsd.config.settings import AccessSettings
from tsd.server.clients import Clients
from tsd.server.http.bodies import MemoryBudget
from tsd.server.http.connection import HttpConnection, HttpPort, RequestLimits
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.server.http.router import Router
from tsd.server.http.security import Authorizer, Cors
from tsd.server.http.stats import RequestStats
from tsd.server.listener import AccessControl, Listener, ListenerLimits, Receive
from tsd.server.peer import Peer

LIMITS = RequestLimits(1 << 20, 60)


class HttpResponse(NamedTuple):
    """A received response."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A listener with endpoints."""

    def __init__(self, port: int, stats: RequestStats, budget: MemoryBudget, listener: Listener) -> None:
        self.port = port
        self.stats = stats
        self.budget = budget
        self.listener = listener

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def request(self, *requests: bytes) -> HttpResponse:
        """Return the last response to some requests on one new connection."""
        async with self.client() as client:
            for request in requests:
                await client.send(request)
                response = await read_response(client, head=request.startswith(b"HEAD"))
            return response


@asynccontextmanager
async def serving(
    routes: Mapping[str, Endpoint],
    *,
    limits: RequestLimits = LIMITS,
    budget: MemoryBudget | None = None,
    authenticator: Authenticator | None = None,
    partial_input_bytes: int = 64 << 20,
    cors_domains: str = "",
) -> AsyncIterator[Served]:
    """Serve `routes` until the block ends; with an authenticator only to permitted senders, except /health."""
    stats, memory, cors = RequestStats(), budget or MemoryBudget(8 << 20), Cors(cors_domains, "X-A")
    permissions = endpoint_permissions("all", "read", may_delete=False)
    port = HttpPort(Router(routes, Authorizer(cors, authenticator, permissions)), limits, memory, stats)

    async def http(stream: trio.abc.Stream, first: bytes, receive: Receive, peer: Peer) -> None:
        await HttpConnection(port, stream, peer).run(first, receive)

    listener_limits = ListenerLimits(0, 0, partial_input_bytes=partial_input_bytes)
    access = AccessControl(Clients(), authenticator or Authenticator(AccessSettings(), lambda: 0))
    listener = Listener(http, http, listener_limits, access)
    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, sockets)
        try:
            yield Served(sockets[0].socket.getsockname()[1], stats, memory, listener)
        finally:
            nursery.cancel_scope.cancel()


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """Return a request without a body."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return a request with a body."""
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


def chunked(path: str, *chunks: bytes, headers: tuple[str, ...] = ()) -> bytes:
    """Return a request with a chunked body."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return get(path, "Transfer-Encoding: chunked", *headers, method="POST") + body


async def read_response(client: Client, *, head: bool = False) -> HttpResponse:
    """Return the next response of a connection, with its body joined but not decompressed."""
    first, *lines = (await client.read_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    status = int(first.split(" ")[1])
    if head or status in (100, 204, 304):
        return HttpResponse(status, headers, b"")
    if "content-length" in headers:
        return HttpResponse(status, headers, await client.read_bytes(int(headers["content-length"])))
    if headers.get("transfer-encoding") != "chunked":
        return HttpResponse(status, headers, await client.read_to_end())
    body = b""
    while size := int(await client.read_until(b"\r\n"), 16):
        body += await client.read_bytes(size)
        await client.read_bytes(2)
    await client.read_bytes(2)
    return HttpResponse(status, headers, body)


async def echo(request: Request) -> Response:
    """Respond with the request."""
    return Response(200, request.body, "text/plain", (("X-Asked", f"{request.method} {request.path}"),))
