"""A wall clock that is set, while windows wait: no window's points may become another series'."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.unit.ingest.parts import BASE
from tests.wavering import WaveringStore
from tsd.assembly import tables
from tsd.codec.uid import Kind
from tsd.config import Given, read_settings
from tsd.daemon import Daemon
from tsd.errors import StoreDown
from tsd.store import Put, scan
from tsd.store.memory import MemoryStore

PATIENCE_S = 60  # bounds a failure


class TakesNoCells(WaveringStore):
    """Gives UIDs, and takes no cells until it `takes`."""

    takes = False

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        if not self.takes:
            raise StoreDown("as the test wants")
        await super().put(table, cells, time_ms=time_ms)


async def test_a_clock_that_is_set_back_gives_no_series_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_700_000_000_000
    monkeypatch.setattr("tsd.daemon.now_ms", lambda: now_ms)
    given = {"tsd.storage.path": str(tmp_path), "tsd.core.auto_create_metrics": "true"}
    config, _ = read_settings(Given("test", key, value) for key, value in given.items())
    store = TakesNoCells(MemoryStore(lambda: now_ms))
    await store.create_tables(tables(config))
    daemon = Daemon(config, store, trio.Event())
    daemon.journal.recover()

    async def take(host: str, value: int) -> None:
        await daemon.intake.take_in(f"put m {BASE} {value} host={host}\n".encode())
        daemon.drop_caches()  # seals what is open, and has every series looked up again

    async with trio.open_nursery() as nursery:
        nursery.start_soon(daemon.journal.run)
        await take("a", 1)
        now_ms -= 3_600_000
        for value, host in enumerate("bcd", 2):  # new series: none may get the number of one that waits
            await take(host, value)
        store.takes = True
        nursery.start_soon(daemon.writer.write_windows)
        with trio.fail_after(PATIENCE_S):
            assert await daemon.writer.flush()
        daemon.writer.finish()
        daemon.journal.close()
    uids = await daemon.uids.find(Kind.TAGV, [b"a", b"b", b"c", b"d"])
    found = {}
    async for rows in scan(store.store, config.data_table):
        found.update((row.key[-3:], row.cells[0].value) for row in rows)
    assert found == {uids[b"a"]: b"\1", uids[b"b"]: b"\2", uids[b"c"]: b"\3", uids[b"d"]: b"\4"}
