"""Memory of idle connections, of which agents have thousands."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.command import Served, Tsd, send_lines

WARM, MANY = 100, 400
MOST_BYTES = 20 << 10  # per connection
LINE = b"put idle 1356998400 1 host=a\n"
REQUEST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def resident(served: Served) -> int:
    """Resident memory of the daemon in bytes."""
    status = Path(f"/proc/{served.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) << 10


def become_idle(connection: socket.socket, kind: str) -> None:
    """Use a connection as an agent does before it waits for the next interval."""
    if kind == "telnet":
        assert send_lines(connection, LINE) == b"synced 1\n"
    elif kind == "http":
        connection.sendall(REQUEST)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "telnet", "http"])
def test_idle_connection_memory_is_small(kind: str, tmp_path: Path) -> None:
    settings = {"tsd.journal.sync_interval": "1", "tsd.storage.flush_interval": "3600000"}
    with Tsd(tmp_path / "state", settings).serve() as served, ExitStack() as held:

        def hold(count: int) -> None:
            for _ in range(count):
                become_idle(held.enter_context(served.connect()), kind)

        hold(WARM)  # one-time allocations
        served.stats()
        before = resident(served)
        hold(MANY)
        assert served.stats()["connectionmgr.connections type=open"] > WARM + MANY  # includes the last one
        assert (resident(served) - before) / MANY < MOST_BYTES
