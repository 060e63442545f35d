"""Whoever writes, compacts or dies, and in whatever order: a reader always finds what was written last."""

import tempfile
from collections.abc import Callable

import pytest
import trio

from tests.peers.hbase import RunningHbase
from tests.property.compaction_schedules import Graves, play
from tsd.compaction.step import RowCompactor
from tsd.store import Family, Table
from tsd.store.embedded import EmbeddedStore
from tsd.store.hbase import HBaseStore
from tsd.store.memory import MemoryStore

CELLS = Table("cells", (Family(b"t"),))
NOW_MS = 10**12


def something_happened(compactors: list[RowCompactor]) -> None:
    """Fails where a run tested nothing."""
    tallies = [compactor.tally for compactor in compactors]
    assert sum(tally.writes for tally in tallies) > len(tallies) / 4
    assert sum(tally.deletes for tally in tallies) > len(tallies) / 4
    assert sum(tally.hidden for tally in tallies) > 0
    assert sum(tally.variant for tally in tallies) > 0


@pytest.mark.parametrize("kind", [MemoryStore, Graves])
@pytest.mark.parametrize(
    "seeds", [range(100), *(pytest.param(range(at, at + 275), marks=pytest.mark.slow) for at in range(100, 1200, 275))]
)
async def test_in_memory(kind: Callable[[Callable[[], int]], MemoryStore], seeds: range) -> None:
    store = kind(lambda: NOW_MS)
    await store.create_tables([CELLS])
    something_happened(await play(seeds, store, "cells", cuts=True))


@pytest.mark.slow
async def test_on_the_embedded_store() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(folder, lambda: NOW_MS)
        try:
            await store.create_tables([CELLS])
            something_happened(await play(range(200), store, "cells", cuts=True))
        finally:
            await store.aclose()


def test_on_hbase(hbase: RunningHbase) -> None:
    async def run() -> None:
        store = HBaseStore([(hbase.host, hbase.thrift_port)], connections=2)
        name = hbase.unused_tables().data
        await store.create_tables([Table(name, CELLS.families)])
        something_happened(await play(range(100), store, name, cuts=False))
        await store.aclose()

    trio.run(run)
