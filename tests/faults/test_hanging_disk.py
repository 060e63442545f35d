"""A disk that hangs while the daemon stops: the stop ends in time, and loses no acknowledged line."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.command import HOST, PATIENCE_S, ROOT, Tsd, send_lines
from tests.faults.test_entity_kills import port_of

T = 1_500_000_000
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("signals", [1, 2])
def test_stop_ends_though_the_disk_of_the_journal_hangs(tmp_path: Path, signals: int) -> None:
    """Regression: it ended when the disk answered."""
    tsd, hangs = Tsd(tmp_path / "state"), tmp_path / "hangs"
    drain_ms = "0" if signals == 1 else "600000"
    words = ["serve", "--port", "0", "--data", str(tsd.folder), "--set", f"tsd.core.drain_timeout={drain_ms}"]
    command = [sys.executable, "-m", "tests.faults.hanging_daemon", str(hangs), *words, "--set", "tsd.log.format=json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            port = port_of(process)
            with socket.create_connection((HOST, port)) as connection:
                send_lines(connection, b"put m %d 1 host=a\n" % T)
                hangs.touch()
                connection.sendall(b"put m %d 2 host=a\nversion\n" % (T + 1))
                assert connection.recv(1)
            process.terminate()
            if signals == 2:
                next(line for line in process.stderr if b"daemon.stopping" in line)
                process.terminate()
            output = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            process.kill()
    assert process.returncode == 1
    events = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    assert {"points_pending", "lines_unsynced"} <= events[-1].keys()
    hangs.unlink()
    with tsd.serve():
        lines = tsd.lines("m")
    assert lines[0] == f"m {T} 1 host=a"
    assert all(line in (f"m {T} 1 host=a", f"m {T + 1} 2 host=a") for line in lines)
