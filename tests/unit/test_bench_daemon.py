"""The processes that benchmarks and random tests run."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARK = """
import sys
from pathlib import Path
from bench.daemon import serving

with serving(Path(sys.argv[1]), {}) as daemon:
    print(daemon.pid, flush=True)
    sys.stdin.read()
"""


def test_daemon_ends_with_a_killed_benchmark(tmp_path: Path) -> None:
    """Regression: it ran on."""
    with subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, tmp_path / "state"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as benchmark:
        assert benchmark.stdout is not None
        daemon = int(benchmark.stdout.readline())
        ended = os.pidfd_open(daemon)
        try:
            benchmark.kill()
            assert select.select([ended], [], [], 60) == ([ended], [], [])
        finally:
            if not select.select([ended], [], [], 0)[0]:
                os.kill(daemon, 9)
            os.close(ended)


WORKERS = """
import os
import signal
from tests.workers import tied_workers

def work(_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"begun\\n")
    signal.pause()

with tied_workers(2) as pool:
    list(pool.map(work, range(2)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_command(number: signal.Signals) -> None:
    """Regression: after `timeout` had ended the command they ran on, as daemons in them take SIGTERM as their own."""
    with subprocess.Popen([sys.executable, "-c", WORKERS], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert [command.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
        command.send_signal(number)
        assert command.stdout.read() == b""  # at its end no process is left to write


FILES = """
import os
import signal
import subprocess
import sys
import tempfile
from tests.workers import tied_workers

WRITE = "for _ in range(1_000_000): open('file', 'w').close()"

def work(_):
    with tempfile.TemporaryDirectory() as folder:
        with subprocess.Popen([sys.executable, "-c", WRITE], cwd=folder):
            os.write(1, b"begun\\n")

with tied_workers(2) as pool:
    list(pool.map(work, range(2)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_workers_leave_no_files(number: signal.Signals, tmp_path: Path) -> None:
    """Regression: `timeout` left the folders of daemons that fuzz tests had started."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", FILES], env=environment, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert [command.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
        command.send_signal(number)
        assert command.stdout.read() == b""
    assert list(tmp_path.iterdir()) == []
