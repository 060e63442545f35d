"""Real OpenTSDBs on the HBase of a test run, and their client functions."""

import contextlib
import http.client
import itertools
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.peers.java import find_java, jars_of
from scripts.peers.opentsdb import OPENS, QUICK
from tests.peers.hbase import RunningHbase
from tests.peers.needs import run_script
from tests.peers.tables import Tables

HOST = "127.0.0.1"
ANSWER_S = 60  # how long a test waits for a peer
IDLE_ANSWERS = 3  # in a row: its counters are not read together, so one may be wrong
SLOW_LOOKUP = b" HBaseClient: Slow DNS lookup! "  # of localhost: on a busy machine a tool's output has such warnings
SETTINGS = {
    "tsd.http.request.enable_chunked": "true",
    "tsd.http.request.max_chunk": "1048576",
    "hbase.rpcs.buffered_flush_interval": "20",  # ms; batches puts as in production, without the wait of 1 s
    "tsd.storage.hbase.prefetch_meta": "true",  # otherwise the first put waits for region look-ups, uncounted
}


class Opentsdb:
    """A running OpenTSDB. It ends with this process."""

    def __init__(self, home: Path, hbase: RunningHbase, tables: Tables, settings: dict[str, str]) -> None:
        """Start it on existing `tables`. Fail the test if it does not start."""
        self.tables = tables
        self._home = home
        self._marks = itertools.count(1)
        named = {f"tsd.storage.hbase.{kind}_table": name for kind, name in tables._asdict().items()}
        given = [word for key, value in (SETTINGS | named | settings).items() for word in ("--set", f"{key}={value}")]
        how = ["--quick", "--port=0", f"--zk-port={hbase.zk_port}", f"--until-exit={os.getpid()}"]
        run_script("opentsdb", "start", home, *how, *given)
        self.port: int = json.loads((home / "run" / "opentsdb.json").read_text())["port"]

    def send(self, lines: bytes) -> bytes:
        """Send whole lines over a new telnet connection. Return the replies once everything is stored.

        An unknown command follows the lines. Its reply, which is removed, proves that all lines before were read. Late
        replies (storage errors) are awaited as in `settle`. If the last line is incomplete, or if OpenTSDB closes the
        connection, everything up to the close is returned.
        """
        mark = f"tsd-mark-{next(self._marks)}"
        echo = f"unknown command: {mark}.  Try `help'.\n".encode()
        answer = b""
        with (
            socket.create_connection((HOST, self.port), timeout=ANSWER_S) as connection,
            contextlib.suppress(ConnectionError),  # it may close before it has read everything
        ):
            connection.sendall(lines)
            if lines.endswith(b"\n"):
                connection.sendall(f"{mark}\n".encode())
            else:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
                if echo in answer:
                    self.settle()
                    answer = answer.replace(echo, b"")
                    connection.sendall(b"exit\n")
        return answer

    def settle(self) -> None:
        """Return once no put is buffered or in flight to HBase."""
        deadline = time.monotonic() + ANSWER_S
        idle = 0
        while idle < IDLE_ANSWERS:  # each request limits the polling rate
            idle = idle + 1 if self._is_idle() else 0
            assert time.monotonic() < deadline, f"OpenTSDB still writes after {ANSWER_S} s"

    def http(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request. Return its status, and its body as JSON if possible, else as text, or None if empty. A `body`
        that is not bytes is sent as JSON."""
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_S)
        try:
            connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if "json" in (response.headers.get_content_type() if text else ""):
            return response.status, json.loads(text)
        return response.status, text or None

    def tool(self, name: str, *words: str) -> bytes:
        """Return the output of its command-line tool `net.opentsdb.tools.NAME` on the same tables. The tool must
        succeed."""
        classes = f"{self._home}:{jars_of('opentsdb')}/*"
        logs = f"-Dlogback.configurationFile={self._home / 'logback.xml'}"
        command = [str(find_java()), *OPENS, *QUICK, logs, "-cp", classes, f"net.opentsdb.tools.{name}"]
        done = subprocess.run(
            [*command, f"--config={self._home / 'opentsdb.conf'}", *words],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        return b"".join(line for line in done.stdout.splitlines(keepends=True) if SLOW_LOOKUP not in line)

    def stop(self) -> None:
        """Stop it cleanly, after it has written everything to HBase."""
        run_script("opentsdb", "stop", self._home)

    def kill(self) -> None:
        """Kill it."""
        run_script("opentsdb", "kill", self._home)

    def log(self) -> str:
        """Return its log (WARN and above)."""
        return (self._home / "log" / "opentsdb.log").read_text(errors="replace")

    def _is_idle(self) -> bool:
        status, clients = self.http("GET", "/api/stats/region_clients")
        assert status == 200, clients
        return all(
            client["rpcsInFlight"] == client["pendingRPCs"] == client["pendingBatchedRPCs"] == 0
            and client["rpcsSent"] == client["rpcid"] + 1  # ids start at 0: no call is between the buffer and the wire
            for client in clients
        )


class Opentsdbs:
    """Starts and stops OpenTSDBs for tests. Those with equal settings can be shared."""

    def __init__(self, hbase: RunningHbase, new_home: Callable[[str], Path]) -> None:
        self._hbase = hbase
        self._new_home = new_home
        self._running: list[Opentsdb] = []
        self._shared: dict[tuple[object, ...], Opentsdb] = {}

    def start(self, tables: Tables | None = None, **settings: str) -> Opentsdb:
        """Start one on `tables`, or on new tables."""
        tables = tables or self._hbase.new_tables()
        peer = Opentsdb(self._new_home("opentsdb"), self._hbase, tables, settings)
        self._running.append(peer)
        return peer

    def share(self, tables: Tables | None = None, **settings: str) -> Opentsdb:
        """Return one with the same tables and settings, or start it."""
        key = (tables, *sorted(settings.items()))
        if key not in self._shared:
            self._shared[key] = self.start(tables, **settings)
        return self._shared[key]

    def close(self) -> None:
        """Kill them all, without waiting for unwritten points."""
        while self._running:
            self._running.pop().kill()
