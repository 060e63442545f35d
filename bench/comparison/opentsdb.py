"""The daemon on its two stores, and OpenTSDB: all with OpenTSDB's API."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.daemon import Daemon, serving
from bench.files import hbase_bytes, merge_embedded, table_bytes
from bench.peers import Hbase, running_opentsdb
from bench.peers import Opentsdb as Peer
from bench.processes import Usage
from bench.together import opentsdb_api
from bench.together.mixes import Sums
from bench.together.systems import Answer, Needs, Question


class Tsd:
    """A running daemon. Its `sync` is answered when all lines before it are on disk."""

    last = "sync"

    def __init__(self, daemon: Daemon, hbase: Hbase | None, settings: Mapping[str, str]) -> None:
        self.daemon = daemon
        self._hbase = hbase
        self._settings = settings
        self.port = self.http_port = daemon.port

    def usage(self) -> Usage:
        """What it has used so far."""
        return self.daemon.usage()

    def store_cpu_s(self) -> float:
        """Of HBase and its gateway."""
        return self._hbase.cpu_s() if self._hbase else 0.0

    def await_stored(self, points: int) -> float:
        """It is told to write what waits to share a cell with others."""
        self.daemon.flush()
        return self.daemon.await_stored(points)

    def found(self, start_s: int, end_s: int) -> Sums:
        """Of the points of that time."""
        return opentsdb_api.found(self.port, start_s, end_s)

    def ask(self, question: Question) -> Answer:
        """The answer to a query."""
        return opentsdb_api.ask(self.port, question)

    def merged_bytes(self) -> int:
        """`tsd compact`, and the store's own compaction."""
        self.daemon.stop()
        _tsd(self._settings, "compact")
        if self._hbase:
            return hbase_bytes(self._hbase, self._settings["tsd.storage.hbase.data_table"])
        home = Path(self._settings["tsd.storage.path"])
        merge_embedded(home, "tsdb")
        return table_bytes(home)


class Opentsdb:
    """A running OpenTSDB. It tells senders of good lines nothing: `version` is answered when they were read."""

    last = "version"

    def __init__(self, peer: Peer, hbase: Hbase, table: str) -> None:
        self._peer = peer
        self._hbase = hbase
        self._table = table
        self.port = self.http_port = peer.port

    def usage(self) -> Usage:
        """What it has used so far."""
        return self._peer.usage()

    def store_cpu_s(self) -> float:
        """Of HBase and its gateway."""
        return self._hbase.cpu_s()

    def await_stored(self, points: int) -> float:
        """Nothing is on its way to HBase any more; what it dropped is missed when points are read back."""
        del points
        return self._peer.await_idle()

    def found(self, start_s: int, end_s: int) -> Sums:
        """Of the points of that time."""
        return opentsdb_api.found(self.port, start_s, end_s)

    def ask(self, question: Question) -> Answer:
        """The answer to a query."""
        return opentsdb_api.ask(self.port, question)

    def merged_bytes(self) -> int:
        """After HBase's major compaction. It joins rows' cells as `tsd compact` does, but nobody can tell it to."""
        return hbase_bytes(self._hbase, self._table)


@contextmanager
def running_tsd(home: Path, needs: Needs, hbase: Hbase | None = None, *, plain: bool = False) -> Iterator[Tsd]:
    """Start one with its state in `home`, or on new tables, and end it."""
    del needs
    settings = {"tsd.storage.path": str(home), **(hbase.settings(home.name) if hbase else {})}
    with serving(home, settings, plain=plain) as daemon:
        yield Tsd(daemon, hbase, settings)


@contextmanager
def running_peer(home: Path, needs: Needs, hbase: Hbase) -> Iterator[Opentsdb]:
    """Start an OpenTSDB on new tables, and end it."""
    del needs
    settings = hbase.settings(home.name)
    with running_opentsdb(home, hbase, settings) as peer:
        yield Opentsdb(peer, hbase, settings["tsd.storage.hbase.data_table"])


def _tsd(settings: Mapping[str, str], *words: str) -> None:
    named = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    subprocess.run([sys.executable, "-m", "tsd", *words, *named], check=True, stdout=subprocess.DEVNULL)
