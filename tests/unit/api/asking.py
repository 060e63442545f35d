"""A running daemon asked over HTTP."""

from tests.running import Running
from tests.unit.server.web_parts import Heard, get, hear, post


async def ask(daemon: Running, path: str, *headers: str, method: str = "GET") -> Heard:
    """The answer to a request without a body."""
    async with daemon.client() as client:
        await client.send(get(path, *headers, method=method))
        return await hear(client, head=method == "HEAD")


async def tell(daemon: Running, path: str, body: bytes, *headers: str) -> Heard:
    """The answer to one with a body."""
    async with daemon.client() as client:
        await client.send(post(path, body, *headers))
        return await hear(client)
