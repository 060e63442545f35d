"""Answers of a daemon are those of a reference, whatever its caches hold."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.fuzz.__main__ import run_answers

SEEDS = int(os.environ.get("TSD_FUZZ_DAEMONS") or 2)
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)
STEPS = 120


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_answers_agree_with_reference(seed: int) -> None:
    """In a process of its own, since all clocks of the process run fast."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        done = pool.submit(run_answers, seed, STEPS).result()
    assert done["queries"] > STEPS
    assert done["query.cache.hits"] + done["store.row_cache.hits"] + done["store.row_cache.reads"] > 0
