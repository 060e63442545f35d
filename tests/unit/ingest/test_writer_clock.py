"""A wall clock that is set, while windows wait: no window's points may become another series'."""

from collections.abc import Sequence
from pathlib import Path

import trio

from tests.flaky_store import FlakyStore
from tests.unit.ingest.parts import BASE
from tsd.codec.names import Kind
from tsd.config.loader import Given
from tsd.daemon.assembly import build_daemon
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import make_uids, tables
from tsd.errors import StoreDown
from tsd.store import Put, scan
from tsd.store.memory import MemoryStore
from tsd.store.scheduling import IngestLoad

PATIENCE_S = 60  # bounds a failure


class TakesNoCells(FlakyStore):
    """Gives UIDs, and takes no cells until it `takes`."""

    takes = False

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        if not self.takes:
            raise StoreDown("as the test wants")
        await super().put(table, cells, time_ms=time_ms)


async def test_clock_set_back_reuses_no_series_number(tmp_path: Path) -> None:
    now_ms = 1_700_000_000_000
    given = {"tsd.storage.path": str(tmp_path), "tsd.core.auto_create_metrics": "true"}
    config, _ = read_config(Given("test", key, value) for key, value in given.items())
    store = TakesNoCells(MemoryStore(lambda: now_ms))
    await store.create_tables(tables(config))
    daemon = build_daemon(config, store, trio.Event(), IngestLoad(), now_ms=lambda: now_ms)
    daemon.ingest.journal.recover()

    async def take(host: str, value: int) -> None:
        await daemon.ingest.intake.take(f"put m {BASE} {value} host={host}\n".encode())
        daemon.drop_caches()  # seals what is open, and has every series looked up again

    async with trio.open_nursery() as nursery:
        nursery.start_soon(daemon.ingest.journal.run)
        await take("a", 1)
        now_ms -= 3_600_000
        for value, host in enumerate("bcd", 2):  # new series: none may get the number of one that waits
            await take(host, value)
        store.takes = True
        nursery.start_soon(daemon.ingest.writer.write_windows)
        with trio.fail_after(PATIENCE_S):
            assert await daemon.ingest.writer.flush()
        daemon.ingest.writer.finish()
        daemon.ingest.journal.close()
    uids = await make_uids(config, store).find(Kind.TAGV, [b"a", b"b", b"c", b"d"])
    found = {}
    async for rows in scan(store.store, config.data_table):
        found.update((row.key[-3:], row.cells[0].value) for row in rows)
    assert found == {uids[b"a"]: b"\1", uids[b"b"]: b"\2", uids[b"c"]: b"\3", uids[b"d"]: b"\4"}
