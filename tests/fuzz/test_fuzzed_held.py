"""Answers that have points of open hours are those of a reference."""

import os

import pytest

from tests.fuzz.__main__ import run_held

SEEDS = int(os.environ.get("TSD_FUZZ_DAEMONS") or 1)
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)
STEPS = 25


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_answers_of_open_hours_agree_with_reference(seed: int) -> None:
    done = run_held(seed, STEPS)
    assert done["queries"] > STEPS
