"""The Bigtable emulator of a test run, started with `scripts/bigtable` as users do."""

import itertools
import json
import os
from pathlib import Path

from tests.peers.needs import run_script
from tsd.daemon.settings import now_ms
from tsd.store.bigtable.engine import BigtableStore
from tsd.store.bigtable.session import Contact

PROJECT = "tsd-test"


class RunningBigtable:
    """An emulator on a free port. It ends with this process, and its data with it."""

    host = "127.0.0.1"

    def __init__(self, home: Path) -> None:
        """Start it in `home`. Fail the test if it does not start."""
        self.home = home
        self._numbers = itertools.count(1)
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start it, again on the same port, or resume it."""
        run_script("bigtable", "start", self.home, f"--port={self.port}", f"--until-exit={os.getpid()}")
        self.port = int(json.loads((self.home / "run" / "bigtable.json").read_text())["port"])

    def kill(self) -> None:
        """Kill it: its data is gone."""
        run_script("bigtable", "kill", self.home)

    def pause(self) -> None:
        """Pause it: connections stay open without answers, and it keeps its data."""
        run_script("bigtable", "pause", self.home)

    def resume(self) -> None:
        """Resume it."""
        run_script("bigtable", "resume", self.home)

    def unused_instance(self) -> str:
        """Return an unused name of an instance."""
        return f"i{next(self._numbers)}"

    def store(self, instance: str = "shared", *, port: int = 0, timeout_s: float = 20.0) -> BigtableStore:
        """Return a store on it, or on another server at `port`."""
        address = f"{self.host}:{port or self.port}"
        return BigtableStore(Contact(PROJECT, instance, emulator=address, timeout_s=timeout_s), now_ms)
