"""A daemon in a process of its own on a fast clock, and commands on the same clock."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench.scaled import Timeline, words_of
from scripts.peers.ports import pick
from tests.fuzz.world import Sent

COMMAND = (  # its arguments are a timeline and the words of a command
    "import sys, time; from bench.scaled import Timeline; line = Timeline(*map(float, sys.argv[1:4]));"
    "del sys.argv[1:4]; time.time = line.now_s; time.time_ns = lambda: int(line.now_s() * 1e9);"
    "from {} import main; main()"
)
DEADLINE_S = 60.0
LOG_CHARS = 5000  # of the daemon's log that are shown


class Client:
    """A telnet connection to a daemon, and requests over HTTP."""

    def __init__(self, port: int) -> None:
        self._port = port

    def connect(self) -> None:
        """Open the telnet connection."""
        self._telnet = socket.create_connection(("127.0.0.1", self._port), DEADLINE_S)

    def close(self) -> None:
        """Close the telnet connection."""
        self._telnet.close()

    def request(self, path: str, body: object = None, method: str = "") -> tuple[int, bytes]:
        """Return status and body of the answer to a request, by default a GET or POST."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, data)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def send(self, points: list[Sent]) -> None:
        """Send points, and return once they are on disk."""
        self.send_lines("".join(f"put {point.line()}" for point in points))

    def send_lines(self, lines: str) -> None:
        """Send lines, and return once they are on disk."""
        self._telnet.sendall(lines.encode() + b"sync\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += (data := self._telnet.recv(1 << 16))
            assert data, answer
        assert re.fullmatch(rb"synced \d+\n", answer), answer


class Daemon(Client):
    """A daemon in a process of its own."""

    def __init__(self, folder: Path, timeline: Timeline, settings: Mapping[str, str]) -> None:
        self._folder, self.timeline = folder, timeline
        super().__init__(pick(0))
        self._settings = {
            "tsd.network.port": str(self._port), "tsd.network.bind": "127.0.0.1", "tsd.log.level": "warning",
            "tsd.storage.path": str(folder / "state"), "tsd.access.anonymous": "read,write,admin", **settings,
        }  # fmt: skip
        if "tsd.storage.backend" in settings:
            self.run("create-tables")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words_of(self.timeline, self._settings), stdout=log, stderr=log)
        deadline_s = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert time.monotonic() < deadline_s, "the daemon does not start"
            self.run_on(0.05)
        self.connect()

    def run_on(self, real_s: float) -> None:
        """Let it run for a time. Raise AssertionError if it ends."""
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(real_s)
            raise AssertionError(f"the daemon has ended with status {status}")

    def _answers(self) -> bool:
        with suppress(OSError):
            return self.request("/api/version")[0] == 200
        return False

    def end(self, number: signal.Signals) -> None:
        """End it by a signal. Raise AssertionError for tracebacks in its log."""
        self.close()
        self._process.send_signal(number)
        status, log = self._process.wait(DEADLINE_S), (self._folder / "log").read_text("utf-8", "replace")
        assert status in (0, -number), (status, log[-LOG_CHARS:])
        assert "Traceback" not in log, log[-LOG_CHARS:]

    def change(self, settings: Mapping[str, str]) -> None:
        """Have other settings from the next start on."""
        self._settings |= settings

    def move(self) -> None:
        """Back it up, kill it, and start it in a new state folder that has the backup."""
        self.run("backup", str(self._folder / "backups"))
        self.end(signal.SIGKILL)
        self._settings["tsd.storage.path"] += "-moved"
        self.run("restore", str(self._folder / "backups"))
        self.start()

    def copy(self, file: Path, tables: Mapping[str, str], killed_at: int) -> None:
        """Copy all tables to others, with settings that go to a file, and start it on these. The copy is killed once at
        a change, unless that is 0."""
        self.end(signal.SIGTERM)
        settings = {**self._settings, **tables}
        file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()), "utf-8")
        if killed_at:
            self.interrupt(killed_at, "after", "copy", "--to", str(file))
        self.run("copy", "--to", str(file))
        self._settings = settings
        self.start()

    def run(self, *words: str, tries: int = 1, fails: bool = False) -> str:
        """Run a command; several times, as `tsd delete` asks for if points remain. Return what it prints.
        It `fails` with status 1 if it finds something."""
        for _ in range(tries):
            done = self._run("tsd.__main__", *words)
            if done.returncode == 0:
                break
        assert done.returncode in (0, int(fails)), (words, done.stdout, done.stderr)
        return done.stdout

    def interrupt(self, change: int, when: str, *words: str) -> bool:
        """Run a command that is killed `before` or `after` one of its changes. Return whether it had so many."""
        done = self._run("tests.fuzz.interrupted", str(change), when, *words)
        assert done.returncode in (0, 1, 3, -signal.SIGKILL), (words, done.stdout, done.stderr)
        return done.returncode == -signal.SIGKILL

    def _run(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        given = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        line = [sys.executable, "-c", COMMAND.format(module), *map(repr, self.timeline), *words, *given]
        return subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
