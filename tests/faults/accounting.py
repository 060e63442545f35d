"""The stats' account of every line, looked at while things go wrong."""

from collections.abc import Mapping

import trio

from tests.faults.load import PATIENCE_S
from tests.faults.process import Served
from tests.running import Client


def check_ledger(stats: Mapping[str, int]) -> None:
    """What was received is stored, journaled or refused."""
    refused = sum(value for name, value in stats.items() if name.startswith("ledger.refused"))
    there = stats["ledger.stored"] + stats["ledger.journaled"] + refused
    assert stats["ledger.received"] == there, {name: v for name, v in stats.items() if name.startswith("ledger")}


async def checked_stats(client: Client) -> dict[str, int]:
    """The stats, which balance."""
    stats = await client.stats()
    check_ledger(stats)
    return stats


async def all_stored(client: Client) -> None:
    """Return once nothing waits any more."""
    with trio.fail_after(PATIENCE_S):
        while (await checked_stats(client))["ledger.journaled"]:  # each look is a request: it paces itself
            pass


async def grown(client: Client, name: str, by: int = 1) -> dict[str, int]:
    """The stats, once one of them has grown so far from now on."""
    wanted = (await checked_stats(client))[name] + by
    with trio.fail_after(PATIENCE_S):
        while (stats := await checked_stats(client))[name] < wanted:
            pass
    return stats


async def watch_ledger(daemon: Served) -> None:
    """Look at it over and over, until the daemon is killed or this is cancelled."""
    async with daemon.client() as client:
        while True:
            try:
                stats = await client.stats()
            except (AssertionError, trio.BrokenResourceError):  # the connection has ended
                assert daemon.killed
                return
            check_ledger(stats)
