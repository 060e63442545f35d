"""Answers of a daemon are those of a reference, also after deletes, imports, builds of rollups and kills."""

import os

import pytest

from tests.fuzz.__main__ import run_changes

SEEDS = int(os.environ.get("TSD_FUZZ_DAEMONS") or 1)
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)
STEPS = 25


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_answers_agree_with_reference_after_changes(seed: int) -> None:
    done = run_changes(seed, STEPS)
    assert done["queries"] > STEPS
