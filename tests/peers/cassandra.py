"""The Cassandra of a test run, started with `scripts/cassandra` as users do."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

from tests.peers.needs import run_script
from tsd.daemon.settings import elapsed_ms, now_ms
from tsd.store.cassandra.engine import CassandraStore
from tsd.store.cassandra.keys import Prefixes
from tsd.store.cassandra.session import Contact

DEFAULT = Prefixes(0, 2)


class RunningCassandra:
    """A real Cassandra on free ports. It ends with this process."""

    host = "127.0.0.1"

    def __init__(self, home: Path, *words: str) -> None:
        """Start Cassandra in `home` with options of `scripts/cassandra start`. Fail the test if it does not start."""
        self.home = home
        self._words = words
        self._numbers = itertools.count(1)
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        """host:port of CQL."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start it, again with its data and on the same port, or resume it."""
        how = ["--quick", f"--port={self.port}", "--storage-port=0", f"--until-exit={os.getpid()}"]
        run_script("cassandra", "start", self.home, *how, *self._words)
        self.port = int(json.loads((self.home / "run" / "cassandra.json").read_text())["port"])

    def stop(self) -> None:
        """Stop it cleanly."""
        run_script("cassandra", "stop", self.home)

    def kill(self) -> None:
        """Kill it."""
        run_script("cassandra", "kill", self.home)

    def pause(self) -> None:
        """Pause it: connections stay open without answers."""
        run_script("cassandra", "pause", self.home)

    def unused_keyspace(self) -> str:
        """Return an unused name of a keyspace."""
        return f"t{next(self._numbers)}"

    def store(
        self,
        keyspace: str = "shared",
        *,
        widths: Prefixes = DEFAULT,
        port: int = 0,
        timeout_s: float = 20.0,
        clock_ms: Callable[[], int] = now_ms,
        elapsed_ms: Callable[[], float] = elapsed_ms,
        clock_limit_ms: int = 0,
    ) -> CassandraStore:
        """Return a store on it, or on a proxy at `port`, whose tables are made with these prefixes."""
        contact = Contact(((self.host, port or self.port),), timeout_s=timeout_s)
        return CassandraStore(
            contact, keyspace, clock_ms, lambda _: widths, elapsed_ms=elapsed_ms, clock_limit_ms=clock_limit_ms
        )
