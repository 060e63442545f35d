"""tcollector's protocol: a heartbeat, batches of lines with unread replies, and a new connection after a failure.
tcollector is not packaged, so a client imitates its sender."""

import re
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.e2e.command import HOST, ROOT, Tsd
from tsd.config.settings import Config

ANSWER_S = 15  # tcollector's timeout
READ_BYTES = 4096
T = 1700000000


class Tcollector:
    """The sender: one connection, checked with `version`. Unsent lines are kept."""

    def __init__(self, *tags: str) -> None:
        self.port = 0
        self.connections = 0
        self._tags = tags
        self._connection: socket.socket | None = None
        self._queue: list[str] = []
        self._sent = 0

    def verify(self) -> str:
        """Make a daemon answer `version`, over a new connection if the old one fails. Return the replies. Then queue
        its own counts, which have no tags."""
        while True:
            answer = self._request_version()
            if answer:
                self._queue.append(f"tcollector.reader.lines_collected {T + self._sent} {self._sent} ")
                return answer
            self.close()
            self._connection = socket.create_connection((HOST, self.port), timeout=ANSWER_S)
            self.connections += 1

    def send(self, lines: Iterable[str]) -> None:
        """Send the queue and these lines in one piece. Read nothing."""
        assert self._connection, "verify comes first"
        self._queue += lines
        words = (f"put {line}{''.join(f' {tag}' for tag in self._tags)}\n" for line in self._queue)
        self._connection.sendall("".join(words).encode())
        self._sent += len(self._queue)
        self._queue = []

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()

    def _request_version(self) -> str:
        """Return the answer, or nothing if the connection is broken. It ends when fewer bytes arrive than requested."""
        answer = b""
        try:
            if self._connection is None:
                return ""
            self._connection.sendall(b"version\n")
            while part := self._connection.recv(READ_BYTES):
                answer += part
                if len(part) < READ_BYTES:
                    return answer.decode()
        except ConnectionError:
            pass
        return ""


@pytest.mark.slow
def test_tcollector_batches_and_heartbeats(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    agent = Tcollector("host=web01", "dc=home")
    with tsd.serve() as daemon:
        agent.port = daemon.port
        assert re.fullmatch(r"net\.opentsdb\.tools \S+ built at revision .*\nBuilt on .*\n", agent.verify())
        agent.send([f"proc.stat.cpu {T} 17 type=user", f"proc.loadavg.1min {T}.250 0.25", f"df.inodes.free {T} 1e3 "])
        assert "Built on" in agent.verify()
        agent.send([f"proc.stat.cpu {T + 15} 19 type=user", *(f"bad {T} {n}x" for n in range(200))])
        assert "put: invalid value: Invalid character 'x' in 0x\n" in agent.verify()  # tcollector ignores it
        agent.send([f"proc.stat.cpu {T + 30} 21 type=user"])
        daemon.await_stat("ledger.received", 208)
        assert daemon.stats()["ledger.refused reason=invalid_values"] == 200
    agent.close()
    assert agent.connections == 1
    tags = "dc=home host=web01"
    assert sorted(map(by_name, stored(tsd))) == sorted(
        map(by_name, [
            f"df.inodes.free {T} 1000.0 {tags}",
            f"proc.loadavg.1min {T}250 0.25 {tags}",
            *(f"proc.stat.cpu {T + after} {value} {tags} type=user" for after, value in ((0, 17), (15, 19), (30, 21))),
            *(f"tcollector.reader.lines_collected {T + n} {n} {tags}" for n in (0, 4, 206)),
        ])
    )  # fmt: skip


@pytest.mark.slow
def test_tcollector_reconnects_to_restarted_daemon(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    agent = Tcollector("host=web01")
    for turn in range(3):
        with tsd.serve() as daemon:
            agent.port = daemon.port
            agent.verify()
            agent.send([f"proc.stat.cpu {T + turn} {turn}"])
            agent.verify()  # replies are in order: the lines before were accepted
    agent.close()
    assert agent.connections == 3
    assert tsd.lines("proc.stat.cpu") == [f"proc.stat.cpu {T + turn} {turn} host=web01" for turn in range(3)]


def test_tcollector_instructions_name_the_port() -> None:
    text = (ROOT / "conf" / "tcollector" / "tsd.md").read_text()
    assert f"--port {Config().port} " in text


def stored(tsd: Tsd) -> list[str]:
    """Return all points as lines."""
    found = tsd.run("uid", "grep", "metrics", ".").out.splitlines()
    return tsd.lines(*(line.split(" ")[1].rstrip(":") for line in found))


def by_name(line: str) -> list[str]:
    """Sort a line's tags by name instead of UID."""
    metric, time, value, *tags = line.split(" ")
    return [metric, time, value, *sorted(tags)]
