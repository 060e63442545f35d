"""The VictoriaMetrics of a benchmark: Debian's, with its OpenTSDB listener."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bench.comparison.systems import free_ports
from bench.process_usage import Usage, usage

PROGRAM = shutil.which("victoria-metrics", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
PATIENCE_S = 600
SHOWN_S = 60  # until a query finds flushed points
QUIET_S = 5  # without a merge, after which none is expected


class Victoria:
    """A running VictoriaMetrics. It flushes about every second; before that, nothing is durable."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, port: int, web_port: int, http_port: int) -> None:
        self._process = process
        self._home = home
        self.port = port
        self.http_port = http_port  # for /api/put
        self.web_port = web_port  # for queries

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return usage(self._process.pid)

    def await_stored(self, lines: int) -> float:
        """Return once this many lines arrived since its start and are in its files: the time by the monotonic clock."""
        deadline = time.monotonic() + PATIENCE_S
        while self.received() < lines:
            assert time.monotonic() < deadline, (self.received(), lines)
        self._get("/internal/force_flush")
        return time.monotonic()

    def received(self) -> int:
        """Return the number of lines that arrived since its start."""
        lines = self._get("/metrics").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith('vm_rows_inserted_total{type="opentsdb'))

    def check(self, start_s: int, end_s: int, points: int) -> None:
        """End the benchmark with status 1 if it lacks points of a time range after a while."""
        deadline = time.monotonic() + SHOWN_S
        while (found := round(self.over_time("count", start_s, end_s))) != points:
            if time.monotonic() > deadline:
                raise SystemExit(f"VictoriaMetrics has {found} points of {points}: the figures mean nothing")

    def stop(self) -> None:
        """Stop it cleanly: it writes what it holds in memory."""
        self._process.terminate()
        self._process.wait()

    def await_merged(self) -> None:
        """Return once it has not merged files for a while, which it does by its own choice."""
        deadline = time.monotonic() + PATIENCE_S
        quiet = time.monotonic()
        while time.monotonic() < quiet + QUIET_S:
            assert time.monotonic() < deadline, "it does not stop merging"
            lines = self._get("/metrics").splitlines()
            if any(line.startswith("vm_active_merges") and line.split()[1] != "0" for line in lines):
                quiet = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)

    def merged_bytes(self, points: int) -> int:
        """Return the size of its points after merging files, without the index of series."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for order in ("force_flush", "force_merge"):  # repeated: a running merge skips its parts
                self._get(f"/internal/{order}")
            parts = list(self._home.glob("data/*/*/*_*_*"))  # names begin with the number of points
            months = {part.parent.name for part in parts}
            if sum(int(part.name.partition("_")[0]) for part in parts) == points and len(parts) == len(months):
                return sum(path.stat().st_size for part in parts for path in part.iterdir())
        raise SystemExit("VictoriaMetrics does not merge its files: the figures mean nothing")

    def over_time(self, of: str, start_s: int, end_s: int) -> float:
        """Return the count or sum (`of`) of all points of a time range."""
        query = f'sum({of}_over_time({{__name__=~".+"}}[{end_s - start_s}s]))'
        found = self.query("query", {"query": query, "time": end_s - 1, "nocache": 1})
        return float(found[0]["value"][1]) if found else 0.0

    def query(self, kind: str, words: Mapping[str, str | int]) -> list[dict[str, Any]]:
        """Return the result of /api/v1/KIND."""
        found: list[dict[str, Any]] = json.loads(self._get(f"/api/v1/{kind}?{urlencode(words)}"))["data"]["result"]
        return found

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())


@contextmanager
def running_victoria(home: Path) -> Iterator[Victoria]:
    """Start VictoriaMetrics with its data in `home`, and stop it."""
    assert PROGRAM is not None, "apt-get install victoria-metrics"
    port, web_port, http_port = free_ports(3)
    words = [
        PROGRAM,
        f"-storageDataPath={home}",
        f"-httpListenAddr=127.0.0.1:{web_port}",
        f"-opentsdbListenAddr=127.0.0.1:{port}",
        f"-opentsdbHTTPListenAddr=127.0.0.1:{http_port}",
        "-retentionPeriod=100y",
        "-maxConcurrentInserts=10000",  # each open connection counts: others wait, and are closed after a minute
        "-search.maxUniqueTimeseries=3000000",
        f"-search.maxQueryDuration={PATIENCE_S}s",  # the counts of all points take long next to other programs
    ]
    home.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.log").open("wb") as log, subprocess.Popen(words, stderr=log) as process:
        try:
            _await_listening(process, (port, web_port, http_port))
            yield Victoria(process, home, port, web_port, http_port)
        finally:
            process.kill()


def _await_listening(process: subprocess.Popen[bytes], ports: tuple[int, ...]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, "it did not start"
                assert time.monotonic() < deadline, "it does not listen"
