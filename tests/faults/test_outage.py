"""HBase fails under load, is unreachable at the start, or has no tables: the daemon still accepts lines."""

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.faults.accounting import all_stored, checked_stats
from tests.faults.load import Lines, Sender
from tests.faults.process import address_of, command, on_hbase, served, words_of
from tests.faults.verification import check_contents, hbase_contents
from tests.peers.hbase import RunningHbase
from tests.peers.needs import run_script
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode
from tsd.codec.names import Kind, Widths
from tsd.errors import UNKNOWN_NAME, StoreError
from tsd.store import Put
from tsd.store.hbase.connection import Connection
from tsd.store.hbase.engine import HBaseStore
from tsd.tables.opentsdb.uids import Uids

LINES = 400  # confirmed for each client before and during an outage; docs/torture.md describes longer outages
AWAY = "store.unavailable"
BACK = "store.available"
REFUSED = "journal.lines_refused"


async def test_gateway_restart_under_load(hbase: RunningHbase, tmp_path: Path) -> None:
    """The memory of a daemon during an outage is measured by `tsd torture`, see test_torture.py."""
    tables = hbase.new_tables()
    senders = [
        *(Sender(Lines(number, slots=300, life=0), per_s=1500, seed=number) for number in range(3)),
        Sender(Lines(3), per_s=200),  # with new names all the time
    ]
    settings = {**on_hbase(hbase.gateway, tables), "tsd.storage.flush_interval": "500"}
    async with served(tmp_path, settings) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery, daemon.client() as client:
            for sender in senders:
                nursery.start_soon(sender.run, daemon.port)
            for sender in senders:
                await sender.more_confirmed(LINES)
            await trio.to_thread.run_sync(hbase.thrift_stop)
            await daemon.logged(AWAY)
            for sender in senders:
                await sender.more_confirmed(LINES)
            await checked_stats(client)
            assert not daemon.has_logged(BACK)
            await trio.to_thread.run_sync(hbase.thrift_start)
            await daemon.logged(BACK)
            for sender in senders:
                await sender.more_confirmed()
                sender.finish()
            await all_stored(client)
        assert (await daemon.terminate()).count(AWAY) == 1
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), senders)
    assert all(sender.confirmed_count == sender.sent for sender in senders)


@pytest.mark.parametrize("mode", [ProxyMode.REFUSE, ProxyMode.LOSE, ProxyMode.HANG], ids=lambda mode: mode.name.lower())
async def test_failed_call_leaves_no_objects(hbase: RunningHbase, mode: ProxyMode) -> None:
    """Regression: each error and its frames referenced each other, and with them a window's cells, until the garbage
    collector ran. It runs rarely, because it counts objects and not bytes."""
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        store = HBaseStore([proxy.address], timeout_s=0.1)
        uids = Uids(store, hbase.new_tables().uid, Widths())
        cells = [Put(b"row", b"t:", b"value")]
        proxy.mode = mode
        gc.collect()
        others = store_errors()  # of earlier tests; referenced, so that no new error gets the id of one
        gc.disable()
        try:
            for sync in (lambda: store.put("tsdb", cells), lambda: uids.find(Kind.METRIC, [b"name"])) * 2:
                with suppress(StoreError):
                    await sync()
                    pytest.fail("the gateway answered")
            errors = [error for error in store_errors() if not any(error is other for other in others)]
            # An idle thread of trio keeps its last error, but not the call's data.
            assert [error for error in errors if error.__traceback__] == []
            assert connections() == []  # a connection that cannot be opened has buffers of a megabyte
        finally:
            gc.enable()
            await store.aclose()


def connections() -> list[Connection]:
    """Return all connections in this process."""
    return [found for found in gc.get_objects() if isinstance(found, Connection)]


def store_errors() -> list[StoreError]:
    """Return all store errors in this process."""
    return [found for found in gc.get_objects() if isinstance(found, StoreError)]


@pytest.mark.difference(
    "storage-errors",
    topic="connections",
    theirs="Storage errors are sent as error lines, late or never",
    ours="There are none: points that the store does not accept wait in the journal",
)
async def test_start_during_hbase_outage(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.new_tables()
    senders = [Sender(Lines(number), seed=number) for number in range(3)]
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        proxy.mode = ProxyMode.REFUSE
        async with served(tmp_path, on_hbase(address_of(proxy), tables)) as daemon:
            await daemon.ready()
            async with trio.open_nursery() as nursery, daemon.client() as client:
                for sender in senders:
                    nursery.start_soon(sender.run, daemon.port)
                for sender in senders:
                    await sender.more_confirmed(500)
                stats = await checked_stats(client)
                assert stats["ledger.stored"] == 0
                proxy.mode = ProxyMode.PASS
                for sender in senders:
                    sender.finish()
                await all_stored(client)
            await daemon.terminate()
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), senders)


async def test_tables_created_while_running(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.unused_tables()
    settings = on_hbase(hbase.gateway, tables)
    sender = Sender(Lines(0))
    async with served(tmp_path, settings) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery, daemon.client() as client:
            nursery.start_soon(sender.run, daemon.port)
            event = await daemon.logged("tables.missing")
            assert (event["level"], event["tables"]) == ("warning", f"{tables.data} {tables.uid}")
            assert "tsd create-tables" in event["next_step"]
            await sender.more_confirmed(100)
            away = await daemon.logged(AWAY)
            assert tables.uid in away["error"]
            assert away["level"] == "warning"
            done = await command("create-tables", *words_of(settings))
            assert done.returncode == 0, done.stderr
            await daemon.logged(BACK)
            sender.finish()
            await all_stored(client)
        await daemon.terminate()
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), [sender])


async def test_unknown_metrics_kept_and_reported(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.new_tables()
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        settings = {**on_hbase(address_of(proxy), tables), "tsd.core.auto_create_metrics": "false"}
        done = await command("mkmetric", "known", *words_of(settings))
        assert done.returncode == 0, done.stderr
        for outage in (1, 2):  # the second file does not replace the first
            proxy.mode = ProxyMode.REFUSE
            async with served(tmp_path, settings) as daemon:
                await daemon.ready()
                async with daemon.client() as client:
                    lines = b"put known %d 1 a=b\nput typo %d 2 a=b\n" % (outage, outage)
                    assert await client.send_lines(lines) == b"synced 2\n"
                    await daemon.logged(AWAY)
                    proxy.mode = ProxyMode.PASS
                    event = await daemon.logged(REFUSED)
                    assert event["level"] == "error"
                    assert event["lines"] == 1
                    assert event["reason"] == UNKNOWN_NAME
                    assert Path(event["path"]).read_text() == f"# {event['error']}\nput typo {outage} 2 a=b\n"
                    await all_stored(client)
                    stats = await checked_stats(client)
                    assert (stats["ledger.stored"], stats["ledger.refused reason=unknown_metrics"]) == (1, 1)
                await daemon.terminate()
        assert len(list((tmp_path / "refused").iterdir())) == 2
        done = await command("scan", "0", "sum", "known", "--import", *words_of(settings))
        assert done.stdout == b"known 1 1 a=b\nknown 2 1 a=b\n"


@pytest.mark.hbase
async def test_stop_and_kill_of_all_hbase_processes(tmp_path: Path) -> None:
    ours = RunningHbase(tmp_path / "a folder", **{"hbase.regionserver.handler.count": "5"})  # not the shared one
    tables = ours.new_tables()
    # Few names: a new HBase takes a minute to name thousands of series.
    senders = [Sender(Lines(number, life=1000), per_s=300, seed=number) for number in range(3)]
    settings = {**on_hbase(ours.gateway, tables), "tsd.storage.flush_interval": "500"}
    async with served(tmp_path / "tsd", settings) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery, daemon.client() as client:
            for sender in senders:
                nursery.start_soon(sender.run, daemon.port)
            for sender in senders:
                await sender.more_confirmed(300)
            await trio.to_thread.run_sync(ours.kill)
            await daemon.logged(AWAY)
            for sender in senders:
                await sender.more_confirmed(300)
            await checked_stats(client)
            await trio.to_thread.run_sync(start_again, ours)
            await daemon.logged(BACK)
            for sender in senders:
                await sender.more_confirmed(300)
                sender.finish()
            await all_stored(client)
        await daemon.terminate()
    check_contents(await trio.to_thread.run_sync(hbase_contents, ours.tables, tables), senders)
    ours.stop()  # fails unless all processes end


def start_again(hbase: RunningHbase) -> None:
    """Restart an HBase on the same ports. After a crash it may wait forever for a dead region server; a second restart
    solves that."""
    where = [f"--port={hbase.thrift_port}", f"--zk-port={hbase.zk_port}"]
    for last in (False, True):
        try:
            run_script("hbase", "start", hbase.home, "--quick", *where, f"--until-exit={os.getpid()}")
        except pytest.fail.Exception:
            if last:
                raise
            hbase.kill()
        else:
            return
