"""Debian's InfluxDB 1.x with its OpenTSDB listener."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.comparison.mixes import Sums
from bench.comparison.systems import Answer, Needs, Question, answer_of, free_ports, listening, wait_until
from bench.process_usage import Usage, usage

PROGRAM = shutil.which("influxd")
PATIENCE_S = 600
DATABASE = "opentsdb"
# Debian's configuration without limits on series and tag values, without a request log, and with its own folders.
CONFIGURATION = """
reporting-disabled = true
bind-address = "127.0.0.1:{own}"
[meta]
  dir = "{home}/meta"
[data]
  dir = "{home}/data"
  wal-dir = "{home}/wal"
  max-series-per-database = 0
  max-values-per-tag = 0
  query-log-enabled = false
  cache-snapshot-write-cold-duration = "{snapshot}"
  compact-full-write-cold-duration = "{compact}"
[http]
  bind-address = "127.0.0.1:{web}"
  log-enabled = false
[logging]
  level = "warn"
[[opentsdb]]
  enabled = true
  bind-address = "127.0.0.1:{lines}"
  database = "{database}"
"""
DEFAULTS = {"snapshot": "10m", "compact": "4h"}
AT_ONCE = {"snapshot": "5s", "compact": "5s"}


class Influx:
    """A running InfluxDB. It acknowledges no lines; a batch is in its log, fsynced, within a second."""

    last = ""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, port: int, web_port: int) -> None:
        self._process = process
        self._home = home
        self._web_port = web_port
        self.port = self.http_port = port  # it detects lines and HTTP

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return usage(self._process.pid)

    def store_cpu_s(self) -> float:
        """Return 0: it has no other processes."""
        return 0.0

    def await_stored(self, points: int) -> float:
        """Wait until its shards have received the points, which are then in its log."""
        return wait_until("InfluxDB stores", lambda: self._stored() >= points)

    def _stored(self) -> int:
        return sum(values["writePointsOk"] for values in self._values("shard"))

    def _values(self, kind: str) -> list[dict[str, int]]:
        """Its own figures of each thing of a kind, of the database that lines come into."""
        own = [one for one in self._get("/debug/vars").values() if isinstance(one, dict) and one.get("name") == kind]
        return [one["values"] for one in own if one["tags"]["database"] == DATABASE]

    def found(self, start_s: int, end_s: int) -> Sums:
        """Of the points of that time."""
        series = self._query(f"SELECT count(value), sum(value) FROM /.*/ WHERE {_times(start_s, end_s)}")
        rows = [row for one in series for row in one["values"]]
        return Sums(sum(row[1] for row in rows), sum(row[2] for row in rows))

    def query(self, question: Question) -> Answer:
        """Run a query."""
        times = _times(question.start_s, question.end_s)
        if question.host:
            query = f"SELECT value FROM \"{question.metric}\" WHERE host = '{question.host}' AND {times}"
        elif question.step_s:
            query = f'SELECT mean(value) FROM "{question.metric}" WHERE {times} GROUP BY time({question.step_s}s), host'
        else:
            query = f'SELECT sum(value) FROM "{question.metric}" WHERE {times} GROUP BY time(10s)'
        series = self._query(query)
        return answer_of(
            {
                one.get("tags", {}).get("host", ""): [row[1] for row in one["values"] if row[1] is not None]
                for one in series
            }
        )

    def merged_bytes(self) -> int:
        """Wait until it has merged the files of idle shards. Its settings define the delay."""
        wait_until("InfluxDB merges", self._is_merged)
        return sum(path.stat().st_size for path in self._files())

    def _files(self) -> list[Path]:
        return sorted((self._home / "data" / DATABASE).rglob("*.tsm"))

    def _is_merged(self) -> bool:
        written_out = not any(path.stat().st_size for path in (self._home / "wal" / DATABASE).rglob("*.wal"))
        files = self._files()
        engines = self._values("tsm1_engine")
        busy = any(value for one in engines for name, value in one.items() if name.endswith("CompactionsActive"))
        return written_out and not busy and bool(files) and len(files) == len({path.parent for path in files})

    def _query(self, query: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"db": DATABASE, "q": query, "epoch": "s"})
        result = self._get(f"/query?{words}")["results"][0]
        if "error" in result:
            raise RuntimeError(result["error"])
        series: list[dict[str, Any]] = result.get("series", [])
        return series

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}{path}", timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@contextmanager
def running_influx(home: Path, needs: Needs) -> Iterator[Influx]:
    """Start InfluxDB with its state in `home`, and stop it."""
    assert PROGRAM is not None
    home.mkdir(parents=True)
    own, web, lines = free_ports(3)
    durations: Mapping[str, str] = AT_ONCE if needs.compacts else DEFAULTS
    text = CONFIGURATION.format(own=own, web=web, lines=lines, home=home, database=DATABASE, **durations)
    (home / "influxdb.conf").write_text(text)
    words = [PROGRAM, "-config", str(home / "influxdb.conf")]
    with (home / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            wait_until("InfluxDB starts", lambda: _is_up(process, lines, web), 60)
            yield Influx(process, home, lines, web)
        finally:
            process.kill()


def _is_up(process: subprocess.Popen[bytes], *ports: int) -> bool:
    if process.poll() is not None:
        raise RuntimeError("InfluxDB does not start")
    return all(map(listening, ports))


def _times(start_s: int, end_s: int) -> str:
    return f"time >= {start_s}s AND time < {end_s}s"
