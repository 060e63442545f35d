"""200 query clients and 100 senders at the same time: no request is refused, and no point is lost."""

import json
from pathlib import Path

import pytest
import trio

from tests.running import Running, running
from tests.unit.server.web_parts import get, read_response

BASE = 1700000040  # a whole minute: a query does not show a partial first bucket
WRITERS, CLIENTS, ROUNDS, POINTS = 100, 200, 3, 60
URI = f"/api/query?start={BASE}&end={BASE + 7200}&m=sum:1m-sum:m%7Bhost=*%7D"

pytestmark = pytest.mark.slow


async def send(daemon: Running, host: int, acknowledged: trio.Event) -> None:
    """Send the points of one host in parts, each acknowledged. Set `acknowledged` after the first part."""
    async with daemon.client() as client:
        for part in range(ROUNDS):
            first = BASE + part * POINTS * 10
            lines = b"".join(b"put m %d 1.5 host=%d\n" % (first + 10 * at, host) for at in range(POINTS))
            assert await client.send_lines(lines) == b"synced %d\n" % (POINTS * (part + 1))
            acknowledged.set()


async def run_queries(daemon: Running, acknowledged: trio.Event) -> None:
    """Repeat a query. The number of points never decreases. Names may be unknown until a point is acknowledged."""
    found = 0.0
    async with daemon.client() as client:
        for _ in range(ROUNDS):
            names_exist = acknowledged.is_set()
            await client.send(get(URI))
            response = await read_response(client)
            if response.status == 400 and b"No such name for" in response.body and not names_exist:
                continue
            assert response.status == 200, response.body
            total = sum(sum(group["dps"].values()) for group in json.loads(response.body))
            assert total >= found
            found = total


async def test_200_query_clients_with_100_senders(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        acknowledged = trio.Event()
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                for host in range(WRITERS):
                    nursery.start_soon(send, daemon, host, acknowledged)
                for _ in range(CLIENTS):
                    nursery.start_soon(run_queries, daemon, acknowledged)
        async with daemon.client() as client:
            await client.send(get(URI))
            groups = (await read_response(client)).json
            stats = await client_stats(daemon)
        assert len(groups) == WRITERS
        assert sum(sum(group["dps"].values()) for group in groups) == 1.5 * WRITERS * ROUNDS * POINTS
        assert stats["http.query.exceptions"] == stats["connectionmgr.exceptions type=unknown"] == 0
        assert stats["http.body-bytes"] == 0


async def client_stats(daemon: Running) -> dict[str, int]:
    async with daemon.client() as client:
        return await client.stats()
