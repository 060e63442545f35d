"""A full journal and a full disk: the daemon waits and resumes by itself, and clients wait without losing lines."""

import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import trio

from tests.faults.accounting import all_stored, checked_stats, grown
from tests.faults.load import BASE, PATIENCE_S, Lines, Sender
from tests.faults.process import Served, address_of, on_hbase, served
from tests.faults.query_clients import http_request
from tests.faults.small_disk import fill, small_disk
from tests.faults.verification import check_contents, embedded_contents, hbase_contents, stored_points
from tests.peers.hbase import RunningHbase
from tsd.cli.torture.process import limit_file_size
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode
from tsd.ingest.accepted import JOURNAL_FULL, JOURNAL_SLOW

AWAY = "store.unavailable"
BACK = "store.available"
STOPPED = "ingest.backpressure_started"
GOING_ON = "ingest.backpressure_ended"
UNWRITTEN = "journal.write_failed"
WRITTEN = "journal.write_recovered"
SHORT = {"tsd.storage.flush_interval": "40"}
LONG = {"tsd.storage.flush_interval": "3600000"}
JOURNAL_BYTES = 1 << 20
READ_BYTES = 256 << 10  # read at once per connection: the journal may exceed its limit by that much
STORE_BYTES = 64 << 10  # of a file of the store
LINES = 200
LOOKS = 100
QUERY = f"/api/query?start={BASE}&end={BASE + 86_400}&m=sum:"


async def test_full_journal_during_hbase_outage(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.new_tables()
    pushing = Sender(Lines(0, life=0), ahead=1_000_000)  # only TCP flow control stops it
    senders = [pushing, Sender(Lines(1), seed=1), Sender(Lines(2), seed=2)]
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        settings = {**on_hbase(address_of(proxy), tables), "tsd.journal.max_bytes": str(JOURNAL_BYTES)}
        async with served(tmp_path, settings) as daemon:
            await daemon.ready()
            async with loaded(daemon, senders):
                await more_confirmed(senders)
                proxy.mode = ProxyMode.REFUSE
                await standstill(daemon, pushing)
                assert (await daemon.logged(STOPPED))["reason"] == JOURNAL_FULL
                assert pushing.unconfirmed < 1_000_000
                assert (await stats_of(daemon))["journal.bytes"] < JOURNAL_BYTES + 8 * READ_BYTES
                before = {name: daemon.times_logged(name) for name in (BACK, GOING_ON)}  # if HBase was slow
                proxy.mode = ProxyMode.PASS
                for name, count in before.items():
                    await daemon.logged(name, count=count + 1)
                await more_confirmed(senders)
            async with daemon.client() as client:
                await all_stored(client)
            await daemon.terminate()
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), senders)
    assert all(sender.confirmed_count == sender.sent for sender in senders)


async def test_journal_files_cannot_grow(tmp_path: Path) -> None:
    senders, late = make_senders(), Sender(Lines(3))
    async with served(tmp_path, LONG) as daemon:
        await daemon.ready()
        async with loaded(daemon, senders) as nursery:
            await more_confirmed(senders)
            limit_file_size(daemon.pid, 0)
            event = await daemon.logged(UNWRITTEN)
            assert "File too large" in event["error"]
            nursery.start_soon(late.run, daemon.port)
            await nothing_is_acknowledged(daemon, late)
            assert not daemon.has_logged(WRITTEN)
            limit_file_size(daemon.pid, None)
            await daemon.logged(WRITTEN)
            await more_confirmed([*senders, late])
            late.finish()
        await daemon.terminate()
    await check(tmp_path, [*senders, late])


async def test_kill_while_journal_files_cannot_grow(tmp_path: Path) -> None:
    senders = make_senders()
    async with served(tmp_path, SHORT) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        for sender in senders:
            nursery.start_soon(sender.run, daemon.port)
        await more_confirmed(senders)
        limit_file_size(daemon.pid, 0)
        await daemon.logged(UNWRITTEN)
        await daemon.kill()
    async with served(tmp_path) as daemon:
        await daemon.ready()
        await daemon.terminate()
    check_contents(await embedded_contents(tmp_path), senders)


async def test_memory_limit_while_journal_files_cannot_grow(tmp_path: Path) -> None:
    pushing = Sender(Lines(0), ahead=10_000_000, block=1000)
    senders = [pushing, Sender(Lines(1), seed=1)]
    async with served(tmp_path, {**LONG, "tsd.ingest.memory_limit": "16M"}) as daemon:
        await daemon.ready()
        async with loaded(daemon, senders):
            await more_confirmed(senders)
            limit_file_size(daemon.pid, 0)
            await standstill(daemon, pushing)
            assert (await daemon.logged(STOPPED))["reason"] == JOURNAL_SLOW
            await grown_at(daemon, "journal.failures", 2)
            stats = await stats_of(daemon)
            assert 4 << 20 <= stats["journal.pending-bytes"] < (4 << 20) + 8 * READ_BYTES
            before = daemon.times_logged(GOING_ON)  # if the disk was slow
            limit_file_size(daemon.pid, None)
            await daemon.logged(GOING_ON, count=before + 1)
            await more_confirmed(senders)
        await daemon.terminate()
    await check(tmp_path, senders)


async def test_embedded_store_cannot_grow(tmp_path: Path) -> None:
    """Slow clients and short windows keep the journal's files below the limit, which RocksDB's files soon exceed."""
    senders = make_senders(per_s=1000)
    async with served(tmp_path, SHORT) as daemon:
        await daemon.ready()
        async with loaded(daemon, senders), daemon.client() as client:
            await more_confirmed(senders)
            limit_file_size(daemon.pid, STORE_BYTES)
            await daemon.logged(AWAY)
            await grown(client, "writer.retries", 2)
            await more_confirmed(senders)
            assert (await checked_stats(client))["journal.failures"] == 0
            limit_file_size(daemon.pid, None)
            await daemon.logged(BACK)
            await more_confirmed(senders)
        await daemon.terminate()
    await check(tmp_path, senders)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system; file size limits are tested anyway")
async def test_disk_full(tmp_path: Path) -> None:
    senders, late = make_senders(), Sender(Lines(3))
    with small_disk(tmp_path) as disk:
        async with served(disk / "state", SHORT) as daemon:
            await daemon.ready()
            async with loaded(daemon, senders) as nursery:
                await more_confirmed(senders)
                ballast = fill(disk)
                await daemon.logged(UNWRITTEN)
                nursery.start_soon(late.run, daemon.port)
                await nothing_is_acknowledged(daemon, late)  # the store may or may not have failed first
                ballast.unlink()
                await daemon.logged(WRITTEN)
                await more_confirmed([*senders, late])
                late.finish()
            assert (await stats_of(daemon))["journal.failures"] >= 1
            await daemon.terminate()
        await check(disk / "state", [*senders, late])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system; the writer's end is tested anyway")
async def test_stop_stores_what_a_full_disk_keeps_out_of_the_journal(tmp_path: Path) -> None:
    """Regression: at a stop only the first window was stored, and the lines of the others were lost."""
    senders = make_senders(per_s=1000, ahead=1_000_000)  # they go on without confirmations
    with small_disk(tmp_path) as disk:
        settings = {**SHORT, "tsd.journal.path": str(disk / "journal"), "tsd.storage.hold_open_hours": "false"}
        async with served(tmp_path / "state", settings) as daemon:
            await daemon.ready()
            async with trio.open_nursery() as nursery:
                for sender in senders:
                    nursery.start_soon(sender.run, daemon.port)
                await more_confirmed(senders)
                fill(disk)
                await daemon.logged(UNWRITTEN)
                await grown_at(daemon, "ledger.received", 1000)
                nursery.cancel_scope.cancel()
            received = (await stats_of(daemon))["ledger.received"]
            await daemon.terminate()
            assert not daemon.has_logged("journal.lines_lost")
    contents = await embedded_contents(tmp_path / "state")
    check_contents(contents, senders)
    assert sum(1 for _ in stored_points(contents)) >= received


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system; the writer's memory is tested anyway")
async def test_queries_without_new_series_while_the_store_has_no_space(tmp_path: Path) -> None:
    """Regression: one new series made all queries fail."""
    with small_disk(tmp_path) as disk:
        settings = {**SHORT, "tsd.journal.path": str(tmp_path / "journal")}
        async with served(disk / "state", settings) as daemon:
            await daemon.ready()
            async with daemon.client() as client:
                hosts = [f"h{number}" for number in range(100)]
                await client.send_lines(put("known", 0, *hosts))
                ballast = fill(disk)
                sent = 0
                with trio.fail_after(PATIENCE_S):
                    while not daemon.has_logged(AWAY):
                        sent += 1
                        await client.send_lines(put("known", sent, *hosts))
                    names = map("new{}.".format, itertools.count())
                    new = next(names)
                    while await status_of(daemon, new) != 424:  # there may be space for some names
                        new = next(names)
                        await client.send_lines(put(new, 0, "h0"))
                await client.send_lines(put("known", 0, new))
                for m in ("known", "known{host=*}", f"known{{host={new}}}"):
                    assert await status_of(daemon, m) == 424
                status, answer = await http_request(daemon.port, f"{QUERY}known%7Bhost=h0%7D")
                assert (status, len(answer[0]["dps"])) == (200, sent + 1)
                ballast.unlink()
                await daemon.logged(BACK)
                assert await status_of(daemon, new) == 200
            await daemon.terminate()


def put(metric: str, second: int, *hosts: str) -> bytes:
    return "".join(f"put {metric} {BASE + second} 1 host={host}\n" for host in hosts).encode()


async def status_of(daemon: Served, m: str) -> int:
    return (await http_request(daemon.port, QUERY + quote(m)))[0]


def make_senders(*, per_s: float | None = None, ahead: int = 400) -> list[Sender]:
    return [Sender(Lines(number), per_s=per_s, ahead=ahead, seed=number) for number in range(3)]


async def more_confirmed(senders: Sequence[Sender]) -> None:
    for sender in senders:
        await sender.more_confirmed(LINES)


@asynccontextmanager
async def loaded(daemon: Served, senders: Sequence[Sender]) -> AsyncIterator[trio.Nursery]:
    """Let clients send during the block, and then until all lines are confirmed. The nursery accepts more clients."""
    async with trio.open_nursery() as nursery:
        for sender in senders:
            nursery.start_soon(sender.run, daemon.port)
        yield nursery
        for sender in senders:
            sender.finish()


async def stats_of(daemon: Served) -> dict[str, int]:
    """Return the stats over a new connection: its first bytes are read even while reading is stopped."""
    async with daemon.client() as client:
        return await checked_stats(client)


async def grown_at(daemon: Served, name: str, by: int) -> None:
    """Return once one of the stats has grown by this much."""
    wanted = (await stats_of(daemon))[name] + by
    with trio.fail_after(PATIENCE_S):
        while (await stats_of(daemon))[name] < wanted:  # each connection limits the polling rate
            pass


async def standstill(daemon: Served, sender: Sender) -> None:
    """Return once a client cannot send, and LOOKS requests of others see no received line while none is accepted."""
    since = None
    looks = 0
    with trio.fail_after(PATIENCE_S):
        while looks < LOOKS:
            stats = await stats_of(daemon)
            now = sender.sent, stats["ledger.received"]
            looks = looks + 1 if now == since and stats["ingest.backpressure"] else 0
            since = now


async def nothing_is_acknowledged(daemon: Served, late: Sender) -> None:
    """Assert that a new client is not acknowledged before the disk accepts its lines."""
    await grown_at(daemon, "journal.failures", 2)
    assert late.sent > 0
    assert late.confirmed_count == 0


async def check(folder: Path, senders: Sequence[Sender]) -> None:
    """Assert that all lines are stored."""
    check_contents(await embedded_contents(folder), senders)
    assert all(sender.confirmed_count == sender.sent for sender in senders)
