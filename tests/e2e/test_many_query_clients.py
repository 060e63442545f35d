"""Two hundred who ask and a hundred who send, at once: nobody is refused, and nothing is lost."""

import json
from pathlib import Path

import pytest
import trio

from tests.running import Running, running
from tests.unit.doors.web_parts import get, hear

BASE = 1700000040  # a whole minute: the first bucket of a query that begins within one is not shown
WRITERS, ASKERS, ROUNDS, POINTS = 100, 200, 3, 60
URI = f"/api/query?start={BASE}&end={BASE + 7200}&m=sum:1m-sum:m%7Bhost=*%7D"

pytestmark = pytest.mark.slow


async def send(daemon: Running, host: int) -> None:
    """Points of one host, a part at a time, each confirmed."""
    async with daemon.client() as client:
        for part in range(ROUNDS):
            first = BASE + part * POINTS * 10
            lines = b"".join(b"put m %d 1.5 host=%d\n" % (first + 10 * at, host) for at in range(POINTS))
            assert await client.ask(lines) == b"synced %d\n" % (POINTS * (part + 1))


async def ask(daemon: Running) -> None:
    """The same question some times; what was found never grows less."""
    found = 0.0
    async with daemon.client() as client:
        for _ in range(ROUNDS):
            await client.send(get(URI))
            heard = await hear(client)
            if heard.status == 400 and b"No such name for 'metrics'" in heard.body:
                continue  # who asks before the first point
            assert heard.status == 200, heard.body
            total = sum(sum(group["dps"].values()) for group in json.loads(heard.body))
            assert total >= found
            found = total


async def test_two_hundred_ask_while_a_hundred_send(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                for host in range(WRITERS):
                    nursery.start_soon(send, daemon, host)
                for _ in range(ASKERS):
                    nursery.start_soon(ask, daemon)
        async with daemon.client() as client:
            await client.send(get(URI))
            groups = (await hear(client)).json
            stats = await client_stats(daemon)
        assert len(groups) == WRITERS
        assert sum(sum(group["dps"].values()) for group in groups) == 1.5 * WRITERS * ROUNDS * POINTS
        assert stats["http.query.exceptions"] == stats["connectionmgr.exceptions type=unknown"] == 0
        assert stats["http.body-bytes"] == 0


async def client_stats(daemon: Running) -> dict[str, int]:
    async with daemon.client() as client:
        return await client.stats()
