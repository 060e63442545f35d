"""Connections of clients whose networks give them roles."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from tests.running import Client, Running
from tsd.auth.authenticator import NETWORK_SETTINGS
from tsd.config.loader import keys

READER, WRITER, ADMIN, NO_ROLES = (f"127.0.0.{number}" for number in (2, 3, 4, 5))


@asynccontextmanager
async def client_at(daemon: Running, address: str) -> AsyncIterator[Client]:
    """A connection from an address."""
    async with await trio.open_tcp_stream("127.0.0.1", daemon.port, local_address=address) as stream:
        yield Client(stream)


def changed(daemon: Running, **settings: str) -> None:
    """Change settings one by one, as SIGHUP does."""
    config = daemon.daemon.config = replace(daemon.daemon.config, **settings)
    for key in NETWORK_SETTINGS:
        if keys()[key].name in settings:
            daemon.daemon.live[key](config)


async def client_disconnects(client: Client) -> bool:
    """Return whether the connection ends without a reply."""
    with trio.fail_after(60):
        try:
            return await client.read_to_end() == b""
        except trio.BrokenResourceError:
            return True
