"""Check during faults that the counts of lines in `stats` balance."""

from collections.abc import Mapping

import trio

from tests.faults.load import PATIENCE_S
from tests.running import Client

POLL_S = 0.05  # between two looks at a daemon


def check_ledger(stats: Mapping[str, int]) -> None:
    """Assert that received lines are stored, journaled or refused."""
    refused = sum(value for name, value in stats.items() if name.startswith("ledger.refused"))
    there = stats["ledger.stored"] + stats["ledger.journaled"] + refused
    assert stats["ledger.received"] == there, {name: v for name, v in stats.items() if name.startswith("ledger")}


async def checked_stats(client: Client) -> dict[str, int]:
    """Return the stats after checking that they balance."""
    stats = await client.stats()
    check_ledger(stats)
    return stats


async def all_stored(client: Client) -> None:
    """Return once no journaled line is unwritten."""
    with trio.fail_after(PATIENCE_S):
        while (await checked_stats(client))["ledger.journaled"]:  # noqa: ASYNC110 - of another process
            await trio.sleep(POLL_S)


async def grown(client: Client, name: str, by: int = 1) -> dict[str, int]:
    """Return the stats once one of them has grown by this much."""
    wanted = (await checked_stats(client))[name] + by
    with trio.fail_after(PATIENCE_S):
        while (stats := await checked_stats(client))[name] < wanted:  # noqa: ASYNC110 - of another process
            await trio.sleep(POLL_S)
    return stats
