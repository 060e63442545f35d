"""The real HBase and OpenTSDB of a benchmark, started as users start them.

They run as in production: with the JVM's optimising compiler and OpenTSDB's default batches.
"""

import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from bench.process_usage import Usage, usage, written_bytes
from scripts.peers import hbase, opentsdb
from scripts.peers.process import pid_of
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import opened_store, tables

STORED_S = 600
COMPACTED_S = 1800  # OpenTSDB compacts the rows of an hour when it stops
BODY_BYTES = 4 << 20
BUFFERED_MS = 100  # OpenTSDB's longest wait for a batch; the default of 1 s would lengthen a short run
HEAP = "2g"  # of OpenTSDB: with 512m it ended after an hour and a half of 50,000 series, whose rows wait for compaction
# One region: a split would leave several files, and OpenTSDB refuses lines meanwhile.
ONE_REGION = {
    "hbase.regionserver.region.split.policy": "org.apache.hadoop.hbase.regionserver.DisabledRegionSplitPolicy"
}


class Hbase:
    """A running HBase with its gateway."""

    def __init__(self, home: Path) -> None:
        self.home = home
        started = hbase.read(home)
        self.zk_port = started.zk_port
        self.gateway = f"127.0.0.1:{started.thrift_port}"

    def settings(self, prefix: str, **others: str) -> dict[str, str]:
        """Create tables with names that start with `prefix`. Return a daemon's settings for them, including the
        others."""
        given = {
            "tsd.storage.backend": "hbase",
            "tsd.storage.hbase.thrift": self.gateway,
            "tsd.core.auto_create_metrics": "true",
            **{f"tsd.storage.hbase.{kind}_table": f"{prefix}-{kind}" for kind in ("data", "uid", "meta", "tree")},
            **others,
        }
        trio.run(_make_tables, read_config(Given("benchmark", key, value) for key, value in given.items())[0])
        return given

    def cpu_s(self) -> float:
        """Return the CPU time of HBase and its gateway."""
        return sum(_usage(self.home, name).cpu_s for name in (hbase.HBASE, hbase.THRIFT))

    def written_bytes(self) -> int:
        """Return what HBase and its gateway have caused to be written to disks."""
        return sum(written_bytes(_pid(self.home, name)) for name in (hbase.HBASE, hbase.THRIFT))


class Ended(NamedTuple):
    """What a process took until it ended."""

    cpu_s: float
    peak_mib: float
    written: int  # bytes


class Opentsdb:
    """A running OpenTSDB."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = opentsdb.read(home)

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return _usage(self._home, opentsdb.NAME)

    def await_idle(self) -> float:
        """Return once no request to HBase is left: the time by the monotonic clock."""
        deadline = time.monotonic() + STORED_S
        while not self._is_idle():
            assert time.monotonic() < deadline
        return time.monotonic()

    def stop(self) -> "Ended":
        """Stop it cleanly, which compacts its rows of past hours. Return what it took in all."""
        pid = _pid(self._home, opentsdb.NAME)
        stopping = threading.Thread(target=partial(opentsdb.stop, self._home, within_s=COMPACTED_S))
        stopping.start()
        found = Ended(*usage(pid)[:2], written_bytes(pid))
        while stopping.is_alive():
            with suppress(OSError, ValueError, KeyError):  # it has ended
                found = Ended(*usage(pid)[:2], written_bytes(pid))
            stopping.join(0.02)
        return found

    def _is_idle(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/stats/region_clients", timeout=60) as answer:
            clients = json.load(answer)
        return all(
            client["rpcsInFlight"] == client["pendingRPCs"] == client["pendingBatchedRPCs"] == 0
            and client["rpcsSent"] == client["rpcid"] + 1  # ids start at 0: no call is between the buffer and the wire
            for client in clients
        )


@contextmanager
def running_hbase(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[Hbase]:
    """Start HBase in `home` on free ports with settings of hbase-site.xml, and stop it."""
    options = hbase.Options(
        port=0, thrift2_port=0, zk_port=0, heap="4g", thrift_heap="512m", settings=settings or {}, owner=os.getpid()
    )
    hbase.start(home, options)
    try:
        yield Hbase(home)
    finally:
        hbase.kill(home)


@contextmanager
def running_opentsdb(
    home: Path, base: Hbase, settings: Mapping[str, str], *, compacts: bool = False
) -> Iterator[Opentsdb]:
    """Start OpenTSDB on the tables that `settings` name, and stop it. With `compacts` a clean stop compacts rows."""
    given = {
        **{key: value for key, value in settings.items() if key.endswith("_table")},
        "hbase.rpcs.buffered_flush_interval": str(BUFFERED_MS),
        "tsd.storage.hbase.prefetch_meta": "true",
        "tsd.http.request.enable_chunked": "true",  # for bodies in several packets
        "tsd.http.request.max_chunk": str(BODY_BYTES),
        # The lines are of a past hour, whose rows OpenTSDB would compact at once, unlike tsd's.
        "tsd.storage.enable_compaction": str(compacts).lower(),
        "tsd.storage.compaction.flush_interval": str(STORED_S),
    }
    opentsdb.start(home, opentsdb.Options(zk_port=base.zk_port, port=0, heap=HEAP, settings=given, owner=os.getpid()))
    try:
        yield Opentsdb(home)
    finally:
        opentsdb.kill(home)


async def _make_tables(config: Config) -> None:
    async with opened_store(config) as store:
        await store.create_tables(tables(config), compression="NONE")


def _usage(home: Path, name: str) -> Usage:
    return usage(_pid(home, name))


def _pid(home: Path, name: str) -> int:
    pid = pid_of(home, name)
    assert pid is not None, f"{name} has died"
    return pid
