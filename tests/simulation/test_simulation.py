"""Simulate thousands of seeds, and check that the simulation finds injected bugs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.injected_bugs import INJECTED_BUGS
from tests.simulation.seed import simulate

SEEDS = int(os.environ.get("TSD_SEEDS") or 600)
ROOT = Path(__file__).parents[2]
# Number of seeds within which each bug is found: about five times as many as needed.
FOUND_WITHIN = {
    "acknowledged before it is on disk": 200,
    "never synced": 200,
    "replayed newest first": 1000,
    "segment removed before the put": 1000,
    "removed segments come back": 1000,
    "failed put dropped": 600,
    "UID used after a lost answer": 1500,
    "backpressure never ends": 600,
    "oldest value wins": 100,
    "compaction deletes first": 700,
    "readable before it is written": 100,
}


def run(*words: str) -> str:
    """Return the command's output. It runs in its own process because it sets the order of sets."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_no_seed_loses_acknowledged_lines() -> None:
    output = run(f"1:{SEEDS}")
    count, crashes, acknowledged = map(int, re.findall(r"(\d+) (?:seeds|crashes|lines)", output))
    assert count == SEEDS
    assert crashes > SEEDS // 4
    assert acknowledged > SEEDS * 10


@pytest.mark.slow
def test_same_seed_gives_same_run() -> None:
    first, second = (re.sub(r"[\d.]+ s$", "", run("1:30", "--trace").strip()) for _ in range(2))
    assert first == second
    assert first.count("\n") == 30


@pytest.mark.slow
@pytest.mark.parametrize("bug", FOUND_WITHIN)
def test_injected_bug_is_found(bug: str) -> None:
    assert any(simulate(seed, INJECTED_BUGS[bug]).error for seed in range(1, FOUND_WITHIN[bug] + 1))
