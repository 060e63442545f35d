"""Real OpenTSDBs on the HBase of a test run, and how tests talk to them."""

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
ANSWER_S = 60  # how long a test waits before it calls a peer dead
# On a busy machine a tool warns of slow look-ups of localhost, among what it prints.
NO_SLOW_LOOKUPS = '<logger name="org.hbase.async.HBaseClient" level="ERROR"/>'
SETTINGS = {
    "tsd.http.request.enable_chunked": "true",
    "tsd.http.request.max_chunk": "1048576",
    "hbase.rpcs.buffered_flush_interval": "20",  # ms; still gathers puts as it does in production, but nobody waits 1 s
    "tsd.storage.hbase.prefetch_meta": "true",  # or its first put waits, uncounted, until it knows where to go
}


class Opentsdb:
    """A running OpenTSDB. It dies with this process, whatever ends that."""

    def __init__(self, home: Path, hbase: RunningHbase, tables: Tables, settings: dict[str, str]) -> None:
        """Start it on `tables`, which must be there; fails the test if it does not come up."""
        self.tables = tables
        self._home = home
        self._marks = itertools.count(1)
        named = {f"tsd.storage.hbase.{kind}_table": name for kind, name in tables._asdict().items()}
        given = [word for key, value in (SETTINGS | named | settings).items() for word in ("--set", f"{key}={value}")]
        how = ["--quick", "--port=0", f"--zk-port={hbase.zk_port}", f"--until-exit={os.getpid()}"]
        run_script("opentsdb", "start", home, *how, *given)
        self.port: int = json.loads((home / "run" / "opentsdb.json").read_text())["port"]

    def send(self, lines: bytes) -> bytes:
        """What it answers to whole lines on a telnet connection of their own, with what it stored settled.

        A line of our own follows them: a command that it does not know. Its answer, which is left out, says that all
        lines before it were read. Late answers (storage errors) are waited for as `settle` does. Where the last line is
        not ended, or where it closes the connection, everything up to its close is returned.
        """
        mark = f"tsd-mark-{next(self._marks)}"
        echo = f"unknown command: {mark}.  Try `help'.\n".encode()
        answer = b""
        with (
            socket.create_connection((HOST, self.port), timeout=ANSWER_S) as connection,
            contextlib.suppress(ConnectionError),  # it may close before it has read all
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
        """Return once nothing is on its way to HBase, nor gathered to be sent there."""
        deadline = time.monotonic() + ANSWER_S
        while not self._is_idle():  # each look is a request: it paces itself
            assert time.monotonic() < deadline, f"OpenTSDB still writes after {ANSWER_S} s"

    def http(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and body of a request: as JSON where it is, else as text, None where it is empty. A `body` that is not
        bytes is sent as JSON."""
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
        """What one of its command-line tools prints, `net.opentsdb.tools.NAME`, on the same tables; it must succeed."""
        classes = f"{self._home}:{jars_of('opentsdb')}/*"
        logback = self._home / "tools.xml"
        usual = (self._home / "logback.xml").read_text()
        logback.write_text(usual.replace("</configuration>", f"{NO_SLOW_LOOKUPS}</configuration>"))
        logs = f"-Dlogback.configurationFile={logback}"
        command = [str(find_java()), *OPENS, *QUICK, logs, "-cp", classes, f"net.opentsdb.tools.{name}"]
        done = subprocess.run(
            [*command, f"--config={self._home / 'opentsdb.conf'}", *words],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        return done.stdout

    def stop(self) -> None:
        """End it in an orderly way: everything that it took is in HBase then."""
        run_script("opentsdb", "stop", self._home)

    def kill(self) -> None:
        """End it as a crash does."""
        run_script("opentsdb", "kill", self._home)

    def log(self) -> str:
        """What it logged (WARN and above)."""
        return (self._home / "log" / "opentsdb.log").read_text(errors="replace")

    def _is_idle(self) -> bool:
        status, clients = self.http("GET", "/api/stats/region_clients")
        assert status == 200, clients
        return all(
            client["rpcsInFlight"] == client["pendingRPCs"] == client["pendingBatchedRPCs"] == 0
            and client["rpcsSent"] == client["rpcid"] + 1  # ids count from 0: none is between gathered and in flight
            for client in clients
        )


class Opentsdbs:
    """Starts OpenTSDBs for tests, and ends them. Those of equal settings can be had as one."""

    def __init__(self, hbase: RunningHbase, new_home: Callable[[str], Path]) -> None:
        self._hbase = hbase
        self._new_home = new_home
        self._running: list[Opentsdb] = []
        self._shared: dict[tuple[object, ...], Opentsdb] = {}

    def start(self, tables: Tables | None = None, **settings: str) -> Opentsdb:
        """A new one on `tables`, or on new ones of its own."""
        tables = tables or self._hbase.new_tables()
        peer = Opentsdb(self._new_home("opentsdb"), self._hbase, tables, settings)
        self._running.append(peer)
        return peer

    def share(self, tables: Tables | None = None, **settings: str) -> Opentsdb:
        """The one that was started before with the same tables and settings, or a new one."""
        key = (tables, *sorted(settings.items()))
        if key not in self._shared:
            self._shared[key] = self.start(tables, **settings)
        return self._shared[key]

    def close(self) -> None:
        """Kill them all: nobody looks at what they had still to write."""
        while self._running:
            self._running.pop().kill()
