"""`tsd serve` as a process of its own: to be killed, starved and measured. What it logs is read as it comes."""

import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.faults.load import PATIENCE_S
from tests.peers.tables import Tables
from tests.running import Client
from tsd.torture.forked import Forked
from tsd.torture.process import Daemon, attended
from tsd.torture.proxy import FaultyProxy

ROOT = Path(__file__).parents[2]
BASICS = {"tsd.network.port": "0", "tsd.log.format": "json", "tsd.journal.sync_interval": "10"}


class Served(Daemon):
    """A daemon's process, which tests talk to."""

    async def logged(self, *wordings: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event with one of these wordings, once it has been logged."""
        with trio.fail_after(PATIENCE_S):
            while len(found := [event for event in self.events if event["event"] in wordings]) < count:
                assert self.alive, f"it ended with {self.process.returncode}: {self.events} {self.noise}"
                await self.news.wait()
        return found[count - 1]

    def has_logged(self, wording: str) -> bool:
        return any(event["event"] == wording for event in self.events)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)


@asynccontextmanager
async def served(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Served]:
    """`tsd serve` on the state folder `folder`; killed at the end, unless it has ended by then."""
    given = {**BASICS, "tsd.storage.path": str(folder), **(settings or {})}
    process = await trio.to_thread.run_sync(lambda: Forked(["serve", *words_of(given)], folder=ROOT))
    process.stdin.close()
    async with attended(Served(process, Path(os.devnull))) as daemon:
        yield daemon


async def command(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    """What another command of `tsd` did."""

    def run() -> subprocess.CompletedProcess[bytes]:
        with Forked(words, folder=ROOT) as process:
            out, err = process.communicate()
            return subprocess.CompletedProcess(words, process.wait(), out, err)

    return await trio.to_thread.run_sync(run)


def words_of(settings: Mapping[str, str]) -> list[str]:
    """Settings on a command line."""
    return [word for item in settings.items() for word in ("--set", "=".join(item))]


def on_hbase(gateway: str, tables: Tables) -> dict[str, str]:
    """Settings of a daemon on these tables, with short windows; it gives new metrics their UIDs by itself."""
    return {
        "tsd.storage.backend": "hbase",
        "tsd.storage.hbase.thrift": gateway,
        **{f"tsd.storage.hbase.{kind}_table": name for kind, name in tables._asdict().items()},
        "tsd.core.auto_create_metrics": "true",
        "tsd.storage.flush_interval": "40",
    }


def address_of(proxy: FaultyProxy) -> str:
    """Its host:port, as a gateway's."""
    return f"{proxy.host}:{proxy.port}"
