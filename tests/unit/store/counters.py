"""Increments of one counter by several stores at once."""

from collections.abc import Sequence

import trio

from tsd.store import Family, Store, Table

COUNTERS = Table("counters", (Family(b"t"),))
TIMES = 10


async def check_increments(stores: Sequence[Store]) -> None:
    """Increment a counter in turns that the engine decides: each value is returned once. Close the stores."""
    counted: list[int] = []

    async def count(store: Store) -> None:
        for _ in range(TIMES):
            counted.append(await store.increment(COUNTERS.name, b"row", b"t:column", 1))  # noqa: PERF401 (several tasks)

    await stores[0].create_tables([COUNTERS])
    async with trio.open_nursery() as nursery:
        for store in stores:
            nursery.start_soon(count, store)
    for store in stores:
        await store.aclose()
    assert sorted(counted) == list(range(1, TIMES * len(stores) + 1))
