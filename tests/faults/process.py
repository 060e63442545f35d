"""`tsd serve` as a process of its own: to be killed, starved and measured. What it logs is read as it comes."""

import json
import os
import resource
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
from tsd.torture.proxy import FaultyProxy

ROOT = Path(__file__).parents[2]
BASICS = {"tsd.network.port": "0", "tsd.log.format": "json", "tsd.journal.sync_interval": "10"}


class Served:
    """A daemon's process."""

    def __init__(self, process: Forked) -> None:
        self._process = process
        self._stderr = trio.lowlevel.FdStream(os.dup(process.stderr.fileno()))
        self._news = trio.Event()
        self.events: list[dict[str, Any]] = []  # what it logged
        self.noise: list[str] = []  # what else it wrote: nothing, unless it fell over
        self.port = 0
        self.killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def read_log(self) -> None:
        """Take down what it writes, until it has ended."""
        tail = b""
        while data := await self._stderr.receive_some():
            *lines, tail = (tail + data).split(b"\n")
            for line in lines:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.noise.append(line.decode())
            self._news.set()
            self._news = trio.Event()
        await self.ended()
        self._news.set()

    async def logged(self, *wordings: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event with one of these wordings, once it has been logged."""
        with trio.fail_after(PATIENCE_S):
            while len(found := [event for event in self.events if event["event"] in wordings]) < count:
                assert self.alive, f"it ended with {self._process.returncode}: {self.events} {self.noise}"
                await self._news.wait()
        return found[count - 1]

    def has_logged(self, wording: str) -> bool:
        return any(event["event"] == wording for event in self.events)

    async def ready(self) -> None:
        """Return once it serves its port."""
        self.port = (await self.logged("ready"))["port"]

    async def ended(self) -> int:
        """Its exit status, once it has ended."""
        return await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    async def kill(self) -> None:
        """End it as a crash does."""
        assert self.alive, f"it ended by itself: {self.events} {self.noise}"
        self.killed = True
        self._process.kill()
        await self.ended()

    async def terminate(self) -> list[str]:
        """End it as an operator does; everything that waits is stored then. The wordings of its log."""
        self._process.terminate()
        with trio.fail_after(PATIENCE_S):
            status = await self.ended()
        assert status == 0, (status, self.events, self.noise)
        assert self.noise == []
        return [event["event"] for event in self.events]

    def close(self) -> None:
        """Leave nothing of it, once it has ended."""
        self._stderr.close()
        self._process.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    def resident_bytes(self) -> int:
        """Memory it holds now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


@asynccontextmanager
async def served(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Served]:
    """`tsd serve` on the state folder `folder`; killed at the end, unless it has ended by then."""
    given = {**BASICS, "tsd.storage.path": str(folder), **(settings or {})}
    process = await trio.to_thread.run_sync(lambda: Forked(["serve", *words_of(given)], folder=ROOT))
    process.stdin.close()
    daemon = Served(process)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.read_log)
            try:
                yield daemon
            finally:
                if daemon.alive:
                    process.kill()
                with trio.CancelScope(shield=True):  # a failing test leaves nothing behind either
                    await daemon.ended()
    finally:
        daemon.close()


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


def starve(pid: int, most_bytes: int | None) -> None:
    """Let no file of a process grow past `most_bytes`, as on a full disk; or (None) let them again."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if most_bytes is None else most_bytes, hard))
