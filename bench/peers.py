"""The real HBase and OpenTSDB that a benchmark runs beside the daemon, started as users start them.

They run as in production: the JVM's optimising compiler on, OpenTSDB with the batches it has by default.
"""

import json
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trio

from bench.processes import Usage, usage
from scripts.peers import hbase, opentsdb
from scripts.peers.process import pid_of
from tsd.assembly import opened_store, tables
from tsd.config import Config, Given, read_settings

STORED_S = 600
BODY_BYTES = 4 << 20
BUFFERED_MS = 100  # OpenTSDB's longest wait for more of a batch; its default of 1 s would lengthen a short run


class Hbase:
    """A running HBase with its gateway."""

    def __init__(self, home: Path) -> None:
        self.home = home
        started = hbase.read(home)
        self.zk_port = started.zk_port
        self.gateway = f"127.0.0.1:{started.thrift_port}"

    def settings(self, prefix: str, **others: str) -> dict[str, str]:
        """Of a daemon on tables whose names start with `prefix`, and with those others; the tables are made."""
        given = {
            "tsd.storage.backend": "hbase",
            "tsd.storage.hbase.thrift": self.gateway,
            "tsd.core.auto_create_metrics": "true",
            **{f"tsd.storage.hbase.{kind}_table": f"{prefix}-{kind}" for kind in ("data", "uid", "meta", "tree")},
            **others,
        }
        trio.run(_make_tables, read_settings(Given("benchmark", key, value) for key, value in given.items())[0])
        return given

    def cpu_s(self) -> float:
        """Processor time that HBase and its gateway have used."""
        return sum(_usage(self.home, name).cpu_s for name in (hbase.HBASE, hbase.THRIFT))


class Opentsdb:
    """A running OpenTSDB."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = opentsdb.read(home)

    def usage(self) -> Usage:
        """What it has used so far."""
        return _usage(self._home, opentsdb.NAME)

    def await_idle(self) -> float:
        """Return once nothing is on its way to HBase any more, and when that was by the monotonic clock."""
        deadline = time.monotonic() + STORED_S
        while not self._is_idle():
            assert time.monotonic() < deadline
        return time.monotonic()

    def _is_idle(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/stats/region_clients", timeout=60) as answer:
            clients = json.load(answer)
        return all(
            client["rpcsInFlight"] == client["pendingRPCs"] == client["pendingBatchedRPCs"] == 0
            and client["rpcsSent"] == client["rpcid"] + 1  # ids count from 0: none is between gathered and in flight
            for client in clients
        )


@contextmanager
def running_hbase(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[Hbase]:
    """Start one in `home` on free ports, with some settings of hbase-site.xml, and end it."""
    options = hbase.Options(
        port=0, zk_port=0, heap="2g", thrift_heap="512m", settings=settings or {}, owner=os.getpid()
    )
    hbase.start(home, options)
    try:
        yield Hbase(home)
    finally:
        hbase.kill(home)


@contextmanager
def running_opentsdb(home: Path, beside: Hbase, settings: Mapping[str, str]) -> Iterator[Opentsdb]:
    """Start one on the tables that `settings` name, and end it."""
    given = {
        **{key: value for key, value in settings.items() if key.endswith("_table")},
        "hbase.rpcs.buffered_flush_interval": str(BUFFERED_MS),
        "tsd.storage.hbase.prefetch_meta": "true",
        "tsd.http.request.enable_chunked": "true",  # bodies that come in several packets
        "tsd.http.request.max_chunk": str(BODY_BYTES),
        # The lines are of a past hour: it would begin to compact their rows at once, which tsd's cells do not ask for.
        "tsd.storage.enable_compaction": "false",
    }
    opentsdb.start(home, opentsdb.Options(zk_port=beside.zk_port, port=0, settings=given, owner=os.getpid()))
    try:
        yield Opentsdb(home)
    finally:
        opentsdb.kill(home)


async def _make_tables(config: Config) -> None:
    async with opened_store(config) as store:
        await store.create_tables(tables(config), compression="NONE")


def _usage(home: Path, name: str) -> Usage:
    pid = pid_of(home, name)
    assert pid is not None, f"{name} has died"
    return usage(pid)
