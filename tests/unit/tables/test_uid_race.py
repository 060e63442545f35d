"""Several daemons assign UIDs to the same new names: each name gets one UID, and no UID is left without use."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.peers.hbase import RunningHbase
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.store import Family, Store, Table
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.opentsdb.uid_table import UidFsck
from tsd.tables.opentsdb.uids import Found, Uids

NAMES = [b"race.name%d" % number for number in range(300)]
BATCH = 20
RESOLVERS = 3
WIDTHS = Widths()
FAR_MS = 10**15  # when the check runs: every cell is old


@asynccontextmanager
async def opened(engine: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Store, str]]:
    """Yield a store, and the name of an empty UID table in it."""
    if engine == "hbase":
        hbase: RunningHbase = request.getfixturevalue("hbase")
        tables = hbase.new_tables()
        store: Store = HBaseStore([(hbase.host, hbase.thrift_port)])
        name = tables.uid
    else:
        clock = itertools.count(1)
        embedded = engine == "embedded"
        store = await EmbeddedStore.open(folder / "store", clock.__next__) if embedded else MemoryStore(clock.__next__)
        name = "tsdb-uid"
        await store.create_tables([Table(name, (Family(ID_FAMILY), Family(NAME_FAMILY)))])
    try:
        yield store, name
    finally:
        await store.aclose()


@pytest.mark.parametrize("engine", ["memory", "embedded", pytest.param("hbase", marks=pytest.mark.hbase)])
async def test_racing_resolvers_leave_nothing_to_repair(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with opened(engine, tmp_path, request) as (store, table):
        answers: list[dict[bytes, Found]] = []

        async def resolve() -> None:
            uids, answer = Uids(store, table, WIDTHS), dict[bytes, Found]()
            for names in batches():
                answer.update(await uids.find_or_assign(Kind.METRIC, names))
            answers.append(answer)

        async with trio.open_nursery() as nursery:
            for _ in range(RESOLVERS):
                nursery.start_soon(resolve)
        check = await UidFsck(store, table, WIDTHS, lambda: FAR_MS).check()
    # The numbers of lost races stay counted, which is no error; nothing else is found.
    assert [finding.text for finding in check.findings if finding.is_error or not finding.of_counter] == []
    assert answers == [answers[0]] * RESOLVERS
    assert len(set(answers[0].values())) == len(NAMES)


def batches() -> list[list[bytes]]:
    """Return the names in batches."""
    return [NAMES[at : at + BATCH] for at in range(0, len(NAMES), BATCH)]
