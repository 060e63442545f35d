"""One of several HBase gateways fails under load with new names: another one takes over.

`tsd torture` (test_torture.py) covers failures of all gateways.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio

from tests.faults.accounting import all_stored, checked_stats
from tests.faults.load import PATIENCE_S, Lines, Sender
from tests.faults.process import Served, address_of, on_hbase, served
from tests.faults.verification import check_contents, hbase_contents
from tests.peers.hbase import RunningHbase
from tests.peers.tables import Tables
from tests.running import Client
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode

SHORT = {"tsd.storage.hbase.thrift.timeout": "500"}  # ms: a late answer arrives after it
LINES = 100  # confirmed to each client between two changes


@pytest.fixture
def proxy(hbase: RunningHbase) -> Iterator[FaultyProxy]:
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        yield proxy


@pytest.mark.parametrize("mode", [ProxyMode.REFUSE, ProxyMode.HANG, ProxyMode.LOSE], ids=lambda mode: mode.name.lower())
async def test_other_gateway_takes_over(
    hbase: RunningHbase, proxy: FaultyProxy, mode: ProxyMode, tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    senders = make_senders()
    async with served(tmp_path, {**on_hbase(f"{address_of(proxy)},{hbase.gateway}", tables), **SHORT}) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery, daemon.client() as client:
            start(nursery, senders, daemon)
            await go_on(senders)
            assert proxy.accepted
            proxy.mode = mode
            for _ in range(3):
                await go_on(senders)
                await some_stored(client)  # although the first gateway still fails
            await end(senders, client)
            assert (await checked_stats(client))["store.gateways_down"] <= 1
        await daemon.terminate()
    await check(hbase, tables, senders)


def make_senders() -> list[Sender]:
    return [Sender(Lines(number), per_s=1000, seed=number) for number in range(3)]


def start(nursery: trio.Nursery, senders: Sequence[Sender], daemon: Served) -> None:
    for sender in senders:
        nursery.start_soon(sender.run, daemon.port)


async def go_on(senders: Sequence[Sender]) -> None:
    """Return once each client has more confirmed lines."""
    for sender in senders:
        await sender.more_confirmed(LINES)


async def some_stored(client: Client) -> None:
    """Return once every line received so far is stored."""
    received = (await checked_stats(client))["ledger.received"]
    with trio.fail_after(PATIENCE_S):
        while (await checked_stats(client))["ledger.stored"] < received:  # each request limits the polling rate
            pass


async def end(senders: Sequence[Sender], client: Client) -> None:
    """Let the clients finish and the daemon write everything."""
    for sender in senders:
        sender.finish()
    await all_sent(senders)
    await all_stored(client)


async def all_sent(senders: Sequence[Sender]) -> None:
    """Return once every sent line is confirmed."""
    for sender in senders:
        while sender.unconfirmed:
            await sender.more_confirmed()


async def check(hbase: RunningHbase, tables: Tables, senders: Sequence[Sender]) -> None:
    """Assert that exactly the sent lines are stored."""
    check_contents(await trio.to_thread.run_sync(hbase_contents, hbase.tables, tables), senders)
    assert all(sender.confirmed_count == sender.sent for sender in senders)
