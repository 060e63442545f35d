"""`tsd serve` as a child process that tests can kill, limit and measure. Its log is read as it is written."""

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
from tsd.cli.torture.fork_server import Forked
from tsd.cli.torture.process import DaemonProcess, supervised
from tsd.cli.torture.proxy import FaultyProxy

ROOT = Path(__file__).parents[2]
BASICS = {"tsd.network.port": "0", "tsd.log.format": "json", "tsd.journal.sync_interval": "10"}


class Served(DaemonProcess):
    """A daemon process with a connection for tests."""

    async def logged(self, *names: str, count: int = 1) -> dict[str, Any]:
        """Return the `count`-th event with one of these names, once it is logged."""
        with trio.fail_after(PATIENCE_S):
            while len(found := [event for event in self.events if event["event"] in names]) < count:
                assert self.alive, f"daemon exited with {self.process.returncode}: {self.events} {self.other_output}"
                await self.output_changed.wait()
        return found[count - 1]

    def has_logged(self, name: str) -> bool:
        return self.times_logged(name) > 0

    def times_logged(self, name: str) -> int:
        return sum(event["event"] == name for event in self.events)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)


@asynccontextmanager
async def served(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Served]:
    """Run `tsd serve` on the state folder `folder`. Kill it at the end if it still runs."""
    given = {**BASICS, "tsd.storage.path": str(folder), **(settings or {})}
    process = await trio.to_thread.run_sync(lambda: Forked(["serve", *words_of(given)], folder=ROOT))
    process.stdin.close()
    async with supervised(Served(process, Path(os.devnull))) as daemon:
        yield daemon


async def command(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run another `tsd` command and return its result. If cancelled, terminate it and do not wait for its end."""
    started: list[Forked] = []

    def run() -> subprocess.CompletedProcess[bytes]:
        with Forked(words, folder=ROOT) as process:
            started.append(process)
            out, err = process.communicate()
            return subprocess.CompletedProcess(words, process.wait(), out, err)

    try:
        return await trio.to_thread.run_sync(run, abandon_on_cancel=True)
    except trio.Cancelled:
        for process in started:
            process.terminate()
        raise


def words_of(settings: Mapping[str, str]) -> list[str]:
    """Format settings as command-line arguments."""
    return [word for item in settings.items() for word in ("--set", "=".join(item))]


def on_hbase(gateway: str, tables: Tables) -> dict[str, str]:
    """Settings of a daemon on these tables, with short windows and automatic UIDs for metrics."""
    return {
        "tsd.storage.backend": "hbase",
        "tsd.storage.hbase.thrift": gateway,
        **{f"tsd.storage.hbase.{kind}_table": name for kind, name in tables._asdict().items()},
        "tsd.core.auto_create_metrics": "true",
        "tsd.storage.flush_interval": "40",
    }


def address_of(proxy: FaultyProxy) -> str:
    """The proxy's host:port, in place of a gateway's."""
    return f"{proxy.host}:{proxy.port}"
