"""Commands that go over a whole store tell of damaged blocks, do the rest, and repair what they may."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.store.damaging import stored_blocks

HOUR_S = 1_600_000_000 // 3600 * 3600


@pytest.mark.slow
def test_fsck_removes_damaged_blocks(tmp_path: Path) -> None:
    state, lines = tmp_path / "state", tmp_path / "lines"

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "tsd", *words, "--data", str(state), "--set", "tsd.core.auto_create_metrics=true"],
            capture_output=True,
            text=True,
        )

    def seen(metric: str) -> int:
        done = run("query", "2020/01/01", "2021/01/01", "sum", metric)
        return len(done.stdout.splitlines()) if done.returncode == 0 else -1

    names = [(metric, hour, host) for metric in ("a", "b") for hour in range(2) for host in range(20)]
    lines.write_text("".join(f"{metric} {HOUR_S + 3600 * hour} 1 host={host}\n" for metric, hour, host in names))
    assert run("import", str(lines)).returncode == 0
    assert run("compact", "--since", "2020/01/01").returncode == 0
    first, *others = stored_blocks(state / "store", "tsdb")
    assert len(others) == 3
    stored_blocks(state / "store", "tsdb", (first, -1))
    assert (seen("a"), seen("b")) == (-1, 2)
    for words in (["compact", "--since", "2020/01/01"], ["fsck", "--full-scan"]):
        done = run(*words)
        assert done.returncode == 1, done.stderr
        assert first[:7].hex() in done.stdout + done.stderr
    whole = run("fsck", "2020/01/01", "2021/01/01", "sum", "b")
    assert whole.returncode == 0, whole.stderr
    assert run("fsck", "--full-scan", "--fix", "--delete-bad-compacts").returncode == 1
    done = run("fsck", "--full-scan")
    assert done.returncode == 0, done.stdout
    assert "Rows Processed: 60" in done.stdout
    assert (seen("a"), seen("b")) == (1, 2)
