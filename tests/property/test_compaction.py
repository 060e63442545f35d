"""Writers, compactors and crashes in any order: a reader always finds the last written values."""

import itertools
import tempfile
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from tests.peers.cassandra import RunningCassandra
from tests.peers.hbase import RunningHbase
from tests.property.compaction_schedules import SKEWED_AGES_MS, Graves, Regions, play
from tests.seeds import groups
from tsd.daemon.settings import elapsed_ms, now_ms
from tsd.store import Family, Table
from tsd.store.cassandra.engine import CassandraStore
from tsd.store.cassandra.keys import Prefixes
from tsd.store.cassandra.session import Contact
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.compaction.compactor import RowCompactor

CELLS = Table("cells", (Family(b"t"),))
NOW_MS = 10**12


def something_happened(compactors: list[RowCompactor]) -> None:
    """Fails where a run tested nothing."""
    tallies = [compactor.stats for compactor in compactors]
    assert sum(tally.writes for tally in tallies) > len(tallies) / 4
    assert sum(tally.deletes for tally in tallies) > len(tallies) / 4
    assert sum(tally.variant for tally in tallies) > 0


@pytest.mark.difference(
    "compaction-race",
    topic="rows",
    theirs=(
        "A compaction deletes up to the server's present time: a value written to a column between its read and "
        "its delete is lost"
    ),
    ours="The merged cell has the time of the newest cell that was read, and nothing newer is deleted or hidden",
)
@pytest.mark.parametrize("kind", [MemoryStore, Graves])
@pytest.mark.parametrize("seeds", groups(160, fast=10, size=150))
async def test_concurrent_compaction_in_memory(
    kind: Callable[[Callable[[], int]], MemoryStore],
    seeds: range,
    mock_clock: MockClock,  # stands still
) -> None:
    ticks = itertools.count(NOW_MS, 5)
    store = kind(ticks.__next__ if kind is Graves else lambda: NOW_MS)
    await store.create_tables([CELLS])
    something_happened(await play(seeds, store, "cells", cuts=True))
    assert not isinstance(store, Graves) or store.spans > len(seeds) / 4


@pytest.mark.parametrize("kind", [MemoryStore, Graves])
@pytest.mark.parametrize("seeds", groups(160, fast=10, size=150))
async def test_delete_during_a_compaction_keeps_other_points(
    kind: Callable[[Callable[[], int]], MemoryStore],
    seeds: range,
    mock_clock: MockClock,  # does not overtake that of the store
) -> None:
    clock_ms = itertools.count(NOW_MS, 5).__next__
    store = kind(clock_ms)
    await store.create_tables([CELLS])
    await play(seeds, store, "cells", cuts=True, clock_ms=clock_ms)


@pytest.mark.parametrize("seeds", groups(160, fast=10, size=150))
async def test_clocks_of_servers_may_differ_by_less_than_the_age_of_old_rows(
    seeds: range,
    mock_clock: MockClock,  # does not overtake that of the store
) -> None:
    for seed in seeds:
        store = Regions(itertools.count(NOW_MS, 5).__next__)
        await store.create_tables([CELLS])
        await play([seed], store, "cells", cuts=True, ages_ms=SKEWED_AGES_MS)


@pytest.mark.slow
async def test_delete_during_a_compaction_on_the_embedded_store() -> None:
    clock_ms = itertools.count(NOW_MS, 5).__next__
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(folder, clock_ms)
        try:
            await store.create_tables([CELLS])
            await play(range(100), store, "cells", cuts=True, clock_ms=clock_ms)
        finally:
            await store.aclose()


@pytest.mark.slow
async def test_concurrent_compaction_on_the_embedded_store() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(folder, lambda: NOW_MS)
        try:
            await store.create_tables([CELLS])
            something_happened(await play(range(100), store, "cells", cuts=True))
        finally:
            await store.aclose()


@pytest.mark.difference("compaction-race")
def test_concurrent_compaction_on_hbase(hbase: RunningHbase) -> None:
    async def run() -> None:
        store = HBaseStore([(hbase.host, hbase.thrift_port)], connections=2)
        name = hbase.unused_tables().data
        await store.create_tables([Table(name, CELLS.families)])
        # A daemon does not compact recent rows. Without its wait a write has to be 2 ms later than those before.
        something_happened(await play(range(25), store, name, cuts=False, gap_ms=3))
        await store.aclose()

    trio.run(run)


@pytest.mark.cassandra
@pytest.mark.slow
@pytest.mark.difference("compaction-race")
async def test_concurrent_compaction_on_cassandra(cassandra: RunningCassandra) -> None:
    last_ms = 0

    def clock_ms() -> int:  # no two puts share a millisecond, as in the schedules' model
        nonlocal last_ms
        last_ms = max(last_ms + 2, now_ms())
        return last_ms

    contact = Contact(((cassandra.host, cassandra.port),))
    store = CassandraStore(
        contact, cassandra.unused_keyspace(), clock_ms, lambda _: Prefixes(3, 5), elapsed_ms=elapsed_ms
    )
    try:
        await store.create_tables([CELLS])
        something_happened(await play(range(15), store, CELLS.name, cuts=False))
    finally:
        await store.aclose()
