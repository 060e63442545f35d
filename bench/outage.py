"""Memory of a daemon while HBase is away, and how soon points are stored after its return.

Agents send at a fixed rate before, during and after the outage. A proxy in front of the gateway refuses connections,
keeps the answers until the end, or drops requests. The daemon has its default settings.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import click

from bench.daemon import Daemon, serving
from bench.peers import Hbase, running_hbase
from bench.report import machine, publish, spread, table
from bench.sync import Pace, sending
from bench.telnet import Telnet
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode

CONNECTIONS = 100
WARM_S = 30.0  # until memory is level: several windows, and the driver's buffers
LEVEL_S = 10.0
POLL_S = 0.1
PATIENCE_S = 180
MODES = {
    "refuses connections": ProxyMode.REFUSE,
    "hangs, and answers later": ProxyMode.HOLD,
    "loses requests": ProxyMode.HANG,
}


class Figures(NamedTuple):
    """Results of one outage."""

    before_mib: float  # median
    before_peak_mib: float  # most, while windows are written
    away_mib: float  # most, during the outage
    after_mib: float  # most, until the points of the outage are stored
    stored_s: float  # from the return until points are stored
    caught_up_s: float  # from the return until the points of the outage are stored
    lines_per_s: float


@click.command()
@click.option("--pairs", default=1, help="Outages of each kind.")
@click.option("--rate", default=100_000, help="Lines a second.")
@click.option("--seconds", default=40, help="Duration of an outage.")
@click.option("--only", default="", help="Only outages with a name that contains this: 'loses'.")
@click.option("--hbase", "running", type=click.Path(path_type=Path), help="Folder of an HBase that scripts/hbase runs.")
def outage(pairs: int, rate: int, seconds: int, only: str, running: Path | None) -> None:
    """Memory while HBase is away, and how soon points are stored after its return. Takes six minutes."""
    found: dict[str, list[Figures]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder,
        nullcontext(Hbase(running)) if running else running_hbase(Path(folder) / "hbase") as base,
    ):
        for number in range(pairs):
            for at, (name, mode) in enumerate(MODES.items()):
                if only not in name:
                    continue
                home = Path(folder) / f"{number}-{at}"
                found.setdefault(name, []).append(_measure(base, home, mode, rate, seconds))
                print(f"bench: {name}: {found[name][-1]}", file=sys.stderr)
    head = ["HBase", "MiB before", "peak before ÷ before", "away ÷ before", "afterwards ÷ before"]
    head += ["s until points are stored", "s until all are", "lines/s"]
    rows = [
        [
            name,
            spread([f.before_mib for f in some], 0),
            spread([f.before_peak_mib / f.before_mib for f in some]),
            spread([f.away_mib / f.before_mib for f in some]),
            spread([f.after_mib / f.before_mib for f in some]),
            spread([f.stored_s for f in some], 1),
            spread([f.caught_up_s for f in some], 1),
            spread([f.lines_per_s for f in some], 0),
        ]
        for name, some in found.items()
    ]
    note = f"{CONNECTIONS} agents, {rate:,} lines/s, HBase away for {seconds:.0f} s; {machine()}.\n\n"
    publish("outage", note + table(head, rows), found)


def _measure(base: Hbase, home: Path, mode: ProxyMode, rate: int, seconds: float) -> Figures:
    pace = Pace(CONNECTIONS, rate // CONNECTIONS)
    host, _, port = base.gateway.rpartition(":")
    with FaultyProxy(host, int(port)) as proxy:
        settings = base.settings(f"outage{time.time_ns()}") | {"tsd.storage.hbase.thrift": f"{proxy.host}:{proxy.port}"}
        with serving(home, settings) as daemon, sending(daemon.port, pace):
            rest = threading.Event()
            rest.wait(WARM_S)
            before = _memory(daemon, LEVEL_S)
            begun, received = time.monotonic(), _stat(daemon, "ledger.received")
            proxy.mode = mode
            during = _memory(daemon, seconds)
            owed = _stat(daemon, "ledger.received")
            rate_seen = (owed - received) / (time.monotonic() - begun)
            stored = _stat(daemon, "ledger.stored")
            proxy.mode = ProxyMode.PASS
            back = time.monotonic()
            _until(lambda: _stat(daemon, "ledger.stored") > stored)
            stored_s = time.monotonic() - back
            after = [0.0]

            def has_all() -> bool:
                after.append(daemon.usage().now_mib)
                return _stat(daemon, "ledger.stored") >= owed

            _until(has_all)
            caught_up_s = time.monotonic() - back
    return Figures(statistics.median(before), max(before), max(during), max(after), stored_s, caught_up_s, rate_seen)


def _memory(daemon: Daemon, seconds: float) -> list[float]:
    """Return samples of the daemon's memory in MiB."""
    rest, end = threading.Event(), time.monotonic() + seconds
    found = []
    while time.monotonic() < end:
        found.append(daemon.usage().now_mib)
        rest.wait(POLL_S)
    return found


def _stat(daemon: Daemon, name: str) -> int:
    with Telnet(daemon.port) as telnet:
        return telnet.stats()[name]


def _until(condition: Callable[[], bool]) -> None:
    rest, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the points of the outage are not stored"
        rest.wait(POLL_S)
