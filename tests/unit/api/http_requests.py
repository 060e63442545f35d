"""HTTP requests to a running daemon."""

from tests.running import Running
from tests.unit.server.web_parts import HttpResponse, get, post, read_response


async def http_request(daemon: Running, path: str, *headers: str, method: str = "GET") -> HttpResponse:
    """Send a request without a body. Return the response."""
    async with daemon.client() as client:
        await client.send(get(path, *headers, method=method))
        return await read_response(client, head=method == "HEAD")


async def http_post(daemon: Running, path: str, body: bytes, *headers: str) -> HttpResponse:
    """Send a request with a body. Return the response."""
    async with daemon.client() as client:
        await client.send(post(path, body, *headers))
        return await read_response(client)
