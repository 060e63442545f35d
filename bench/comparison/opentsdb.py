"""The systems with OpenTSDB's API: the daemon on its two stores, and OpenTSDB."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.comparison import opentsdb_api
from bench.comparison.mixes import Sums
from bench.comparison.systems import Answer, Needs, Question
from bench.daemon import Daemon, run_tsd, serving
from bench.peers import Hbase, running_opentsdb
from bench.peers import Opentsdb as Peer
from bench.process_usage import Usage
from bench.table_size import hbase_bytes, merge_embedded, table_bytes


class Tsd:
    """A running daemon. Its `sync` is answered when all earlier lines are on disk."""

    last = "sync"

    def __init__(self, daemon: Daemon, hbase: Hbase | None, settings: Mapping[str, str]) -> None:
        self.daemon = daemon
        self._hbase = hbase
        self._settings = settings
        self.port = self.http_port = daemon.port

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return self.daemon.usage()

    def store_cpu_s(self) -> float:
        """Return the CPU time of HBase and its gateway."""
        return self._hbase.cpu_s() if self._hbase else 0.0

    def await_stored(self, points: int) -> float:
        """Make it write its open rows."""
        self.daemon.flush()
        return self.daemon.await_stored(points)

    def found(self, start_s: int, end_s: int) -> Sums:
        """Read the points of a time range."""
        return opentsdb_api.found(self.port, start_s, end_s)

    def query(self, question: Question) -> Answer:
        """Run a query."""
        return opentsdb_api.query(self.port, question)

    def merged_bytes(self) -> int:
        """Run `tsd compact` and the store's own compaction."""
        self.daemon.stop()
        run_tsd(self._settings, "compact")
        if self._hbase:
            return hbase_bytes(self._hbase, self._settings["tsd.storage.hbase.data_table"])
        home = Path(self._settings["tsd.storage.path"])
        merge_embedded(home, "tsdb")
        return table_bytes(home)


class Opentsdb:
    """A running OpenTSDB. It acknowledges no lines; `version` is answered after they were read."""

    last = "version"

    def __init__(self, peer: Peer, hbase: Hbase, table: str) -> None:
        self._peer = peer
        self._hbase = hbase
        self._table = table
        self.port = self.http_port = peer.port

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return self._peer.usage()

    def store_cpu_s(self) -> float:
        """Return the CPU time of HBase and its gateway."""
        return self._hbase.cpu_s()

    def await_stored(self, points: int) -> float:
        """Wait until no request to HBase is left. Dropped points are noticed when points are read back."""
        del points
        return self._peer.await_idle()

    def found(self, start_s: int, end_s: int) -> Sums:
        """Read the points of a time range."""
        return opentsdb_api.found(self.port, start_s, end_s)

    def query(self, question: Question) -> Answer:
        """Run a query."""
        return opentsdb_api.query(self.port, question)

    def merged_bytes(self) -> int:
        """Run HBase's major compaction. OpenTSDB joins cells as `tsd compact` does, but not on request."""
        return hbase_bytes(self._hbase, self._table)


@contextmanager
def running_tsd(home: Path, needs: Needs, hbase: Hbase | None = None, *, plain: bool = False) -> Iterator[Tsd]:
    """Start a daemon with its state in `home`, or on new tables, and stop it."""
    del needs
    settings = {"tsd.storage.path": str(home), **(hbase.settings(home.name) if hbase else {})}
    with serving(home, settings, plain=plain) as daemon:
        yield Tsd(daemon, hbase, settings)


@contextmanager
def running_peer(home: Path, needs: Needs, hbase: Hbase) -> Iterator[Opentsdb]:
    """Start an OpenTSDB on new tables, and stop it."""
    del needs
    settings = hbase.settings(home.name)
    with running_opentsdb(home, hbase, settings) as peer:
        yield Opentsdb(peer, hbase, settings["tsd.storage.hbase.data_table"])
