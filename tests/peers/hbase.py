"""The one HBase of a test run, through `scripts/hbase`: the same way its users start theirs."""

import itertools
import json
import os
from pathlib import Path

from tests.peers.needs import run_script
from tests.peers.tables import FAMILIES, Hbase, Tables


class RunningHbase:
    """A real HBase and its Thrift gateway on ports of their own. It dies with this process, whatever ends that."""

    host = "127.0.0.1"

    def __init__(self, home: Path, **settings: str) -> None:
        """Start it in `home` with some settings of hbase-site.xml; fails the test if it does not come up."""
        self.home = home
        self._numbers = itertools.count(1)
        self._touched = False
        self._settings = settings
        self.restart()

    @property
    def gateway(self) -> str:
        """host:port of the Thrift gateway."""
        return f"{self.host}:{self.thrift_port}"

    def restart(self) -> None:
        """Start it, on other ports than before, with what it had in its folder."""
        more = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        how = ["--quick", "--port=0", "--zk-port=0", f"--until-exit={os.getpid()}"]
        run_script("hbase", "start", self.home, *how, *more)
        started = json.loads((self.home / "run" / "hbase.json").read_text())
        self.thrift_port: int = started["thrift_port"]
        self.zk_port: int = started["zk_port"]
        self.tables = Hbase(self.host, self.thrift_port)

    def stop(self) -> None:
        """End it as an operator does. Not for the one that a run shares."""
        run_script("hbase", "stop", self.home)

    def kill(self) -> None:
        """End it as a crash does. Not for the one that a run shares."""
        run_script("hbase", "kill", self.home)

    def unused_tables(self) -> Tables:
        """Names of tables that nobody has, nor will be given again."""
        prefix = f"t{next(self._numbers)}"
        return Tables(f"{prefix}-tsdb", f"{prefix}-uid", f"{prefix}-meta", f"{prefix}-tree")

    def new_tables(self) -> Tables:
        """Four empty tables that nobody else uses, with the families that OpenTSDB's script gives them."""
        tables = self.unused_tables()
        for kind, table in tables._asdict().items():
            self.tables.create(table, FAMILIES[kind])
        return tables

    def thrift_stop(self) -> None:
        """End the gateway as an operator does. When the test is over it comes back by itself, here and below."""
        self._gateway("thrift-stop")

    def thrift_kill(self) -> None:
        """End the gateway as a crash does."""
        self._gateway("thrift-kill")

    def thrift_pause(self) -> None:
        """Stall the gateway: connections stay open, nothing answers."""
        self._gateway("thrift-pause")

    def thrift_resume(self) -> None:
        """Let a stalled gateway go on where it was, and do not wait for an answer."""
        self._gateway("thrift-resume")

    def thrift_start(self) -> None:
        """Have the gateway up and answering, on the port it had, whatever was done to it."""
        run_script("hbase", "thrift-start", self.home)
        self._touched = False

    def mend(self) -> None:
        """Undo what a test did to the gateway."""
        if self._touched:
            self.thrift_start()

    def _gateway(self, verb: str) -> None:
        self._touched = True
        run_script("hbase", verb, self.home)
