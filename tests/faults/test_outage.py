"""HBase goes away under load, is not there at the start, or has no tables: the daemon takes lines in all the same."""

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.faults.account import check_contents, hbase_contents
from tests.faults.ledger import all_stored, checked_stats
from tests.faults.load import Lines, Sender
from tests.faults.process import address_of, command, on_hbase, served, words_of
from tests.peers.hbase import RunningHbase
from tests.peers.needs import run_script
from tsd.codec.uid import Kind, Widths
from tsd.errors import StoreError
from tsd.store import Put
from tsd.store.hbase import HBaseStore
from tsd.store.thrift import Connection
from tsd.torture.proxy import FaultyProxy, Mode
from tsd.uids import Uids

AWAY_S = 15  # longer ones: docs/torture.md
WARM_UP_LINES = 200_000  # by then caches are full, and the memory allocator has what it takes
AWAY = "the store does not take cells; points wait in the journal"
BACK = "the store takes cells again"
REFUSED = "journaled lines are refused by now"


async def test_the_gateway_ends_and_comes_back(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.new_tables()
    senders = [
        *(Sender(Lines(number, slots=300, life=0), seed=number) for number in range(3)),
        Sender(Lines(3), per_s=200),  # new names all the time
    ]
    # With so little memory the points of that time do not fit: most of them are read from the journal again.
    settings = {"tsd.storage.flush_interval": "500", "tsd.ingest.memory_limit": "16M"}
    async with served(tmp_path, {**on_hbase(hbase.gateway, tables), **settings}) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery, daemon.client() as client:
            for sender in senders:
                nursery.start_soon(sender.run, daemon.port)
            for sender in senders[:3]:
                await sender.more_confirmed(WARM_UP_LINES // 3)
                sender.pace(1500)
            before = daemon.resident_bytes()
            memory = []
            await trio.to_thread.run_sync(hbase.thrift_stop)
            await daemon.logged(AWAY)
            back_at = trio.current_time() + AWAY_S
            while trio.current_time() < back_at:
                for sender in senders:
                    await sender.more_confirmed()
                await checked_stats(client)
                memory.append(daemon.resident_bytes())
            assert not daemon.has_logged(BACK)
            await trio.to_thread.run_sync(hbase.thrift_start)
            await daemon.logged(BACK)
            for sender in senders:
                await sender.more_confirmed()
                sender.finish()
            await all_stored(client)
            memory.append(daemon.resident_bytes())
            assert max(memory) < 1.2 * before
        assert (await daemon.terminate()).count(AWAY) == 1
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), senders)
    assert all(sender.confirmed_count == sender.sent for sender in senders)


@pytest.mark.parametrize("mode", [Mode.REFUSE, Mode.LOSE, Mode.STALL], ids=lambda mode: mode.name.lower())
async def test_a_failed_call_leaves_nothing_behind(hbase: RunningHbase, mode: Mode) -> None:
    """Found with an outage: each error and its own frames held each other, and a window's cells with them, until
    the collector came by. It comes seldom, and counts objects, not bytes."""
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        store = HBaseStore([proxy.address], timeout_s=0.1)
        uids = Uids(store, hbase.new_tables().uid, Widths())
        cells = [Put(b"row", b"t:", b"value")]
        proxy.mode = mode
        gc.collect()
        others = store_errors()  # of earlier tests; held, so that no error of ours can have the place of one
        gc.disable()
        try:
            for ask in (lambda: store.put("tsdb", cells), lambda: uids.find(Kind.METRIC, [b"name"])) * 2:
                with suppress(StoreError):
                    await ask()
                    pytest.fail("the gateway answered")
            errors = [error for error in store_errors() if not any(error is other for other in others)]
            # A thread of trio's that idles keeps its last error, but not what was under way.
            assert [error for error in errors if error.__traceback__] == []
            assert connections() == []  # the buffers of one that cannot be opened are a megabyte
        finally:
            gc.enable()
            await store.aclose()


def connections() -> list[Connection]:
    """All that there are in this process."""
    return [found for found in gc.get_objects() if isinstance(found, Connection)]


def store_errors() -> list[StoreError]:
    """All that there are in this process."""
    return [found for found in gc.get_objects() if isinstance(found, StoreError)]


async def test_started_while_hbase_is_away(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.new_tables()
    senders = [Sender(Lines(number), seed=number) for number in range(3)]
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        proxy.mode = Mode.REFUSE
        async with served(tmp_path, on_hbase(address_of(proxy), tables)) as daemon:
            await daemon.ready()
            async with trio.open_nursery() as nursery, daemon.client() as client:
                for sender in senders:
                    nursery.start_soon(sender.run, daemon.port)
                for sender in senders:
                    await sender.more_confirmed(500)
                stats = await checked_stats(client)
                assert stats["ledger.stored"] == 0
                proxy.mode = Mode.PASS
                for sender in senders:
                    sender.finish()
                await all_stored(client)
            await daemon.terminate()
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), senders)


async def test_tables_are_made_while_it_runs(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.unused_tables()
    settings = on_hbase(hbase.gateway, tables)
    sender = Sender(Lines(0))
    async with served(tmp_path, settings) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery, daemon.client() as client:
            nursery.start_soon(sender.run, daemon.port)
            told = await daemon.logged("tables are missing; points wait in the journal until they are made")
            assert (told["level"], told["tables"]) == ("warning", f"{tables.data} {tables.uid}")
            assert "tsd create-tables" in told["what_to_do"]
            await sender.more_confirmed(100)
            away = await daemon.logged(AWAY)
            assert away["error"] == f"there is no table {tables.uid} in HBase: `tsd create-tables` makes it"
            assert away["level"] == "warning"
            done = await command("create-tables", *words_of(settings))
            assert done.returncode == 0, done.stderr
            await daemon.logged(BACK)
            sender.finish()
            await all_stored(client)
        await daemon.terminate()
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), [sender])


async def test_unknown_metrics_are_set_aside_and_named(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.new_tables()
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        settings = {**on_hbase(address_of(proxy), tables), "tsd.core.auto_create_metrics": "false"}
        done = await command("mkmetric", "known", *words_of(settings))
        assert done.returncode == 0, done.stderr
        for outage in (1, 2):  # the second one's file does not take the place of the first one's
            proxy.mode = Mode.REFUSE
            async with served(tmp_path, settings) as daemon:
                await daemon.ready()
                async with daemon.client() as client:
                    lines = b"put known %d 1 a=b\nput typo %d 2 a=b\n" % (outage, outage)
                    assert await client.ask(lines) == b"synced 2\n"
                    await daemon.logged(AWAY)
                    proxy.mode = Mode.PASS
                    told = await daemon.logged(REFUSED)
                    assert told["level"] == "error"
                    assert told["lines"] == 1
                    assert told["first"] == "unknown metric: No such name for 'metrics': 'typo'"
                    assert Path(told["kept"]).read_text() == f"# {told['first']}\nput typo {outage} 2 a=b\n"
                    await all_stored(client)
                    stats = await checked_stats(client)
                    assert (stats["ledger.stored"], stats["ledger.refused reason=unknown_metrics"]) == (1, 1)
                await daemon.terminate()
        assert len(list((tmp_path / "refused").iterdir())) == 2
        done = await command("scan", "0", "sum", "known", "--import", *words_of(settings))
        assert done.stdout == b"known 1 1 a=b\nknown 2 1 a=b\n"


@pytest.mark.hbase
async def test_the_whole_of_hbase_is_killed(tmp_path: Path) -> None:
    ours = RunningHbase(tmp_path / "hbase")  # not the one that all tests share
    tables = ours.new_tables()
    senders = [Sender(Lines(number), per_s=300, seed=number) for number in range(3)]
    async with served(tmp_path / "tsd", on_hbase(ours.gateway, tables)) as daemon:
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
    ours.kill()


def start_again(hbase: RunningHbase) -> None:
    """Start an HBase where it was, so that its clients find it. After a crash it may wait for ever for a region server
    that is no more; started once again it does not."""
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
