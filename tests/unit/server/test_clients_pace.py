"""The pace of new names: a client beyond it is slowed, never refused, and other clients are not."""

from pathlib import Path

import trio

from tests.running import OPEN, Running, running
from tests.unit.server.networks import client_at
from tests.unit.server.web_parts import post, read_response
from tsd.server.clients import Quotas

READERS_AND_WRITERS = {"tsd.access.anonymous": "read,write"}
SLOW = {"tsd.quota.new_names_pace": "1"}
T = 1_500_000_000
NAMES = 2000  # more than a burst


def lines(first: int, count: int) -> bytes:
    return b"".join(b"put m %d 1 a=v%d\n" % (T, number) for number in range(first, first + count))


async def is_paused(daemon: Running) -> None:
    """Return once a client is not read from."""
    while not daemon.daemon.access.clients.statistics().connections_throttled:
        await trio.lowlevel.checkpoint()


async def test_client_beyond_the_pace_is_slowed_not_refused(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW, access=READERS_AND_WRITERS) as daemon:
        ledger, clients = daemon.daemon.ingest.ledger, daemon.daemon.access.clients
        async with client_at(daemon, "127.0.0.2") as sender, client_at(daemon, "127.0.0.3") as other:
            await sender.send_lines(lines(0, NAMES))
            await sender.send(lines(NAMES, 1) + b"sync\n")
            await is_paused(daemon)
            assert await other.send_lines(lines(0, 10)) == b"synced 10\n"
            assert ledger.received == NAMES + 10
            assert clients.statistics().names_over_pace > 0
            clients.set_quotas(Quotas())
            assert await sender.read_until(b"\n") == b"synced %d\n" % (NAMES + 1)
        assert not ledger.refused


async def test_batch_beyond_the_pace_is_slowed_not_refused(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW, access=READERS_AND_WRITERS) as daemon, client_at(daemon, "127.0.0.2") as sender:
        body = b"[%s]" % b",".join(
            b'{"metric":"m","timestamp":%d,"value":1,"tags":{"a":"v%d"}}' % (T, number) for number in range(10 * NAMES)
        )
        await sender.send(post("/api/put", body))
        await is_paused(daemon)
        daemon.daemon.access.clients.set_quotas(Quotas())
        assert (await read_response(sender)).status == 204
        assert daemon.daemon.ingest.ledger.received == 10 * NAMES


async def test_administrators_have_no_pace(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW, access=OPEN) as daemon, client_at(daemon, "127.0.0.2") as one:
        assert await one.send_lines(lines(0, NAMES)) == b"synced %d\n" % NAMES
        assert await one.send_lines(lines(NAMES, NAMES)) == b"synced %d\n" % (2 * NAMES)
        assert daemon.daemon.access.clients.statistics().names_over_pace == 0


async def test_exempt_clients_have_no_pace(tmp_path: Path) -> None:
    settings = {**SLOW, "tsd.quota.exempt": "127.0.0.2"}
    async with running(tmp_path, settings, access=READERS_AND_WRITERS) as daemon, client_at(daemon, "127.0.0.2") as one:
        assert await one.send_lines(lines(0, NAMES)) == b"synced %d\n" % NAMES
        assert await one.send_lines(lines(NAMES, NAMES)) == b"synced %d\n" % (2 * NAMES)
