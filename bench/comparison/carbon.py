"""Debian's carbon-cache with whisper files. It reads the plaintext format PATH VALUE TIME."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.comparison.mixes import Sums
from bench.comparison.systems import Needs, free_ports, listening, wait_until
from bench.lines import ROUND_S
from bench.process_usage import Usage, usage

PROGRAM = shutil.which("carbon-cache")
OWN = "carbon"  # first part of the paths of its internal metrics
FEW = 200  # points that may be unwritten at the end: its internal metrics arrive every second
# Debian's configuration without limits on new files and updates, and with sparse files.
CONFIGURATION = """
[cache]
STORAGE_DIR = {home}
LOCAL_DATA_DIR = {home}/whisper
CONF_DIR = {home}
LOG_DIR = {home}/log
PID_DIR = {home}
USER =
MAX_UPDATES_PER_SECOND = inf
MAX_CREATES_PER_MINUTE = inf
LINE_RECEIVER_INTERFACE = 127.0.0.1
LINE_RECEIVER_PORT = {lines}
PICKLE_RECEIVER_INTERFACE = 127.0.0.1
PICKLE_RECEIVER_PORT = {pickle}
CACHE_QUERY_INTERFACE = 127.0.0.1
CACHE_QUERY_PORT = {query}
ENABLE_TAGS = False
ENABLE_LOGROTATION = False
WHISPER_FALLOCATE_CREATE = False
WHISPER_SPARSE_CREATE = True
CARBON_METRIC_INTERVAL = 1
"""
SCHEMAS = """
[carbon]
pattern = ^carbon[.]
retentions = 1s:1h
[lines]
pattern = .*
retentions = {step}s:{slots}
"""
POINT = np.dtype([("time", ">u4"), ("value", ">f8")])
HEAD_BYTES = 28  # of a file with one archive


class Carbon:
    """A running carbon-cache. It acknowledges nothing, keeps points in memory until it writes them, and never calls
    fsync."""

    last = ""
    http_port = 0

    def __init__(self, process: subprocess.Popen[bytes], home: Path, port: int) -> None:
        self._process = process
        self._whisper = home / "whisper"
        self.port = port

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return usage(self._process.pid)

    def store_cpu_s(self) -> float:
        """Return 0: it has no other processes."""
        return 0.0

    def await_stored(self, points: int) -> float:
        """Wait until its internal metrics report that everything received is written."""
        wait_until("carbon reads", lambda: self._own("metricsReceived")["value"].sum() >= points)
        received = self._own("metricsReceived")
        read_s = int(received["time"][received["value"] > 0].max())
        wait_until("carbon writes", lambda: self._empty_since(read_s) > 0)
        ago_s = time.time() - self._empty_since(read_s)  # noqa: TID251 (its metrics use the wall clock)
        return time.monotonic() - max(0.0, ago_s)

    def _empty_since(self, after_s: int) -> int:
        sizes = self._own("cache/size")
        times = sizes["time"][(sizes["value"] < FEW) & (sizes["time"] >= after_s)]
        return int(times.min()) if len(times) else 0

    def _own(self, name: str) -> NDArray[np.void]:
        for path in self._whisper.glob(f"{OWN}/agents/*/{name}.wsp"):
            return points_of(path)
        return np.zeros(0, POINT)

    def found(self, start_s: int, end_s: int) -> Sums:
        """Read the points of a time range from its files."""
        total = Sums(0, 0.0)
        for path in self._files():
            points = points_of(path)
            points = points[(points["time"] >= start_s) & (points["time"] < end_s)]
            total += Sums(len(points), float(points["value"].sum()))
        return total

    def _files(self) -> Iterator[Path]:
        for folder in self._whisper.iterdir():
            if folder.name != OWN:
                yield from folder.rglob("*.wsp")

    def merged_bytes(self) -> int:
        """Return the size of its files, which are preallocated."""
        return sum(path.stat().st_blocks * 512 for path in self._files())


def points_of(path: Path) -> NDArray[np.void]:
    """Return the points of a whisper file with one archive. Unwritten slots have no time."""
    points = np.frombuffer(path.read_bytes()[HEAD_BYTES:], POINT)
    return points[points["time"] > 0]


@contextmanager
def running_carbon(home: Path, needs: Needs) -> Iterator[Carbon]:
    """Start carbon-cache with its state in `home`, and stop it."""
    assert PROGRAM is not None
    (home / "log").mkdir(parents=True)
    (home / "whisper").mkdir()
    lines, pickle, query = free_ports(3)
    (home / "carbon.conf").write_text(CONFIGURATION.format(home=home, lines=lines, pickle=pickle, query=query))
    slots = (needs.span_s + 3600) // ROUND_S
    (home / "storage-schemas.conf").write_text(SCHEMAS.format(step=ROUND_S, slots=slots))
    words = [PROGRAM, f"--config={home}/carbon.conf", "--nodaemon", "start"]
    with (home / "out").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            wait_until("carbon starts", lambda: _is_up(process, lines), 60)
            yield Carbon(process, home, lines)
        finally:
            process.kill()


def _is_up(process: subprocess.Popen[bytes], port: int) -> bool:
    if process.poll() is not None:
        raise RuntimeError("carbon does not start")
    return listening(port)
