"""The HBase of a test run, started with `scripts/hbase` as users do."""

import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.peers.needs import run_script
from tests.peers.tables import FAMILIES, Hbase, Tables

# A run creates hundreds of tables, and each report of the region server lists all of their regions.
FEWER_REPORTS = {"hbase.regionserver.msginterval": "2000", "hbase.regionserver.metrics.period": "60000"}  # ms


class RunningHbase:
    """A real HBase and its Thrift gateways on free ports. They end with this process."""

    host = "127.0.0.1"

    def __init__(self, home: Path, **settings: str) -> None:
        """Start HBase in `home` with settings of hbase-site.xml. Fail the test if it does not start."""
        self.home = home
        self._numbers = itertools.count(1)
        self._touched = False
        self._settings = FEWER_REPORTS | settings
        self.restart()

    @property
    def gateway(self) -> str:
        """host:port of the Thrift gateway."""
        return f"{self.host}:{self.thrift_port}"

    def restart(self) -> None:
        """Start it again with its data, on other ports."""
        more = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        how = ["--quick", "--heap=2g", "--port=0", "--thrift2-port=0", "--zk-port=0", f"--until-exit={os.getpid()}"]
        run_script("hbase", "start", self.home, *how, *more)
        started = json.loads((self.home / "run" / "hbase.json").read_text())
        self.thrift_port: int = started["thrift_port"]
        self.thrift2_port: int = started["thrift2_port"]
        self.zk_port: int = started["zk_port"]
        self.tables = Hbase(self.host, self.thrift_port)

    def stop(self) -> None:
        """Stop it cleanly. Not for the shared HBase."""
        run_script("hbase", "stop", self.home)

    def kill(self) -> None:
        """Kill it. Not for the shared HBase."""
        run_script("hbase", "kill", self.home)

    def unused_tables(self) -> Tables:
        """Return unused names of tables."""
        prefix = f"t{next(self._numbers)}"
        return Tables(f"{prefix}-tsdb", f"{prefix}-uid", f"{prefix}-meta", f"{prefix}-tree")

    def new_tables(self) -> Tables:
        """Create four empty tables with the families of OpenTSDB's script."""
        tables = self.unused_tables()
        with ThreadPoolExecutor(len(tables)) as pool:  # HBase spends most of the time waiting
            list(pool.map(self.tables.create, tables, map(FAMILIES.__getitem__, tables._fields)))
        return tables

    def thrift_stop(self) -> None:
        """Stop the gateways cleanly. They are restarted after the test, here and below."""
        self._gateway("thrift-stop")

    def thrift_kill(self) -> None:
        """Kill the gateways."""
        self._gateway("thrift-kill")

    def thrift_pause(self) -> None:
        """Pause the gateways: connections stay open without answers."""
        self._gateway("thrift-pause")

    def thrift_resume(self) -> None:
        """Resume paused gateways without waiting for an answer."""
        self._gateway("thrift-resume")

    def thrift_start(self) -> None:
        """Make the gateways run and answer on their previous ports."""
        run_script("hbase", "thrift-start", self.home)
        self._touched = False

    def restore(self) -> None:
        """Restore the gateways after a test."""
        if self._touched:
            self.thrift_start()

    def _gateway(self, verb: str) -> None:
        self._touched = True
        run_script("hbase", verb, self.home)
