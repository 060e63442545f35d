"""Some thousands of seeds; and bugs planted by hand, which the simulation must find."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.seed import simulate

SEEDS = int(os.environ.get("TSD_SEEDS") or 2000)
ROOT = Path(__file__).parents[2]
# Within how many seeds each is surely found: some five times as many as it took.
FOUND_WITHIN = {
    "told before it is on disk": 200,
    "never synced": 200,
    "replayed newest first": 1000,
    "segment removed before the put": 1000,
    "window given up": 600,
    "uid taken for ours": 1500,
    "gate stays shut": 600,
    "oldest value wins": 100,
    "compaction deletes first": 400,
    "reads before it is written": 100,
}


def run(*words: str) -> str:
    """What the command prints, which must not fail. In a process of its own: it sets how sets are ordered."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_nothing_is_lost_whatever_fails() -> None:
    said = run(f"1:{SEEDS}")
    count, crashes, acknowledged = map(int, re.findall(r"(\d+) (?:seeds|crashes|lines)", said))
    assert count == SEEDS
    assert crashes > SEEDS // 4
    assert acknowledged > SEEDS * 10


@pytest.mark.slow
def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = (re.sub(r"[\d.]+ s$", "", run("1:60", "--trace").strip()) for _ in range(2))
    assert first == second
    assert first.count("\n") == 60


@pytest.mark.slow
@pytest.mark.parametrize("bug", FOUND_WITHIN)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert any(simulate(seed, PLANTED[bug]).error for seed in range(1, FOUND_WITHIN[bug] + 1))
