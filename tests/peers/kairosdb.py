"""Real KairosDBs on the Cassandra of a test run, started with `scripts/kairosdb` as users do."""

import json
import os
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.peers.cassandra import RunningCassandra
from tests.peers.needs import run_script

HOST = "127.0.0.1"
ANSWER_S = 60  # how long a test waits for a peer
QUERY = "/api/v1/datapoints/query"


def ask(port: int, path: str, body: object = None, *, method: str = "") -> tuple[int, Any]:
    """Return status and JSON of a request to a KairosDB, or to what speaks its API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", data, method=method or ("POST" if data else "GET"))
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        text = answer.read()
        return answer.status, json.loads(text) if text else None


class Kairosdb:
    """A running KairosDB. It ends with this process."""

    def __init__(self, home: Path, cassandra: RunningCassandra, keyspace: str, **settings: str) -> None:
        """Start it on a keyspace, whose tables it makes if they are absent. Fail the test if it does not start."""
        self._home = home
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        how = ["--quick", "--port=0", "--telnet-port=0", f"--cql-port={cassandra.port}", f"--keyspace={keyspace}"]
        run_script("kairosdb", "start", home, *how, f"--until-exit={os.getpid()}", *given)
        started = json.loads((home / "run" / "kairosdb.json").read_text())
        self.port: int = started["port"]
        self._telnet_port: int = started["telnet_port"]

    def kill(self) -> None:
        """Kill it."""
        run_script("kairosdb", "kill", self._home)

    def send(self, lines: bytes) -> None:
        """Send whole lines over a new telnet connection. They are stored later."""
        with socket.create_connection((HOST, self._telnet_port), timeout=ANSWER_S) as connection:
            connection.sendall(lines + b"version\n")
            assert connection.recv(1000).startswith(b"KairosDB ")

    def await_points(self, metric: str, points: int) -> Any:
        """Return the answer to a query of all points of a metric once it has as many."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            _, found = ask(self.port, QUERY, {"start_absolute": 0, "metrics": [{"name": metric}]})
            if found["queries"][0]["sample_size"] == points:
                return found
            assert time.monotonic() < deadline, f"{found} after {ANSWER_S} s, wanted {points} points"
