"""Answers of a daemon are those of a reference, whatever its caches hold."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from tests.fuzz.__main__ import run_answers, run_held, run_kairosdb
from tests.peers.cassandra import RunningCassandra
from tests.peers.hbase import RunningHbase

SEEDS = int(os.environ.get("TSD_FUZZ_DAEMONS") or 1)
SEED = int(os.environ.get("TSD_FUZZ_SEED") or 1)
STEPS = 40
KAIROS_STEPS = 20
HELD_STEPS = 25


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_answers_agree_with_reference(seed: int) -> None:
    done = _run(STEPS, run_answers, seed)
    assert done["query.cache.hits"] + done["store.row_cache.hits"] + done["store.row_cache.reads"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_answers_of_open_hours_agree_with_reference(seed: int) -> None:
    _run(HELD_STEPS, run_held, seed)


@pytest.mark.slow
def test_answers_of_two_daemons_on_hbase_agree_with_reference(hbase: RunningHbase) -> None:
    _run(STEPS // 2, partial(run_answers, hbase=hbase.gateway), SEED)


@pytest.mark.slow
def test_answers_by_kairosdb_api_agree_with_reference() -> None:
    _run(KAIROS_STEPS, run_kairosdb, "", SEED)


@pytest.mark.slow
@pytest.mark.cassandra
def test_answers_from_kairosdb_tables_agree_with_reference(cassandra: RunningCassandra) -> None:
    _run(KAIROS_STEPS, run_kairosdb, cassandra.address, SEED)


def _run(steps: int, run: Callable[..., Counter[str]], *args: object) -> Counter[str]:
    """Run a seed in a process of its own, whose clocks, sizes and log it changes."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        done = pool.submit(run, *args, steps=steps).result()
    assert done["queries"] > steps
    return done
