"""The daemons that benchmarks run."""

import os
import select
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
