"""kill -9 at random moments, under load, again and again on the same state folder.

TSD_KILLS says how many times; without it 50 in a full run and 5 in any other.
"""

import os
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from tests.faults.account import check_contents, embedded_contents, hbase_contents
from tests.faults.ledger import checked_stats, watch_ledger
from tests.faults.load import HttpSender, Lines, Sender
from tests.faults.process import Served, on_hbase, served
from tests.peers.hbase import RunningHbase
from tests.peers.needs import full_run

KILLS = int(os.environ.get("TSD_KILLS") or (50 if full_run() else 5))
CONNECTIONS = 3
WINDOWS_MS = ("10", "40", "3600000")  # the last one leaves all of a life to the next one's replay
SOON_S = 0.05  # moments are drawn from so long a time


@pytest.mark.slow
async def test_kills_on_the_embedded_store(tmp_path: Path) -> None:
    senders = make_senders()
    await live_and_die(tmp_path, {}, senders, most_lines=2000)
    check_contents(await embedded_contents(tmp_path), senders)


async def test_kills_on_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.new_tables()
    senders = make_senders()
    await live_and_die(tmp_path, on_hbase(hbase.gateway, tables), senders, most_lines=500)
    check_contents(hbase_contents(hbase.tables, tables), senders)


def make_senders() -> list[Sender]:
    """The last one speaks HTTP."""
    telnet = [Sender(Lines(number), seed=number) for number in range(CONNECTIONS - 1)]
    return [*telnet, HttpSender(Lines(CONNECTIONS - 1), block=200, seed=CONNECTIONS - 1)]


async def live_and_die(folder: Path, settings: Mapping[str, str], senders: list[Sender], most_lines: int) -> None:
    """KILLS lives that end by force, and one that ends in peace."""
    chance = random.Random(KILLS)
    for _ in range(KILLS):
        window = {"tsd.storage.flush_interval": chance.choice(WINDOWS_MS)}
        async with served(folder, {**settings, **window}) as daemon:
            await live(daemon, senders, chance, most_lines)
    async with served(folder, settings) as daemon:
        await daemon.ready()
        assert all(sender.confirmed_count for sender in senders)
        async with daemon.client() as client:
            stats = await checked_stats(client)
            assert stats["ledger.stored"] == stats["ledger.received"]
            assert stats["ledger.refused reason=journal_damaged"] == 0
        await daemon.terminate()


async def live(daemon: Served, senders: list[Sender], chance: random.Random, most_lines: int) -> None:
    """One life: it ends while the journal is replayed or soon after, or once up to `most_lines` were confirmed to one
    of the clients."""
    await daemon.logged("replaying the journal", "ready")
    async with trio.open_nursery() as nursery:
        if chance.random() < 0.75:
            await daemon.ready()
            for sender in senders:
                nursery.start_soon(sender.run, daemon.port)
            nursery.start_soon(watch_ledger, daemon)
            await chance.choice(senders).more_confirmed(chance.randint(0, most_lines))
        with trio.move_on_after(chance.uniform(0, SOON_S)):
            await daemon.ended()
        await daemon.kill()
