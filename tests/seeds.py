"""Seeds of drawn tests: a fast run tries few of them, a full run all.

TSD_SEED_FACTOR multiplies the number of seeds of a full run.
"""

import os

import pytest
from _pytest.mark import ParameterSet

FACTOR = int(os.environ.get("TSD_SEED_FACTOR") or 1)


def seeds(count: int, *, fast: int) -> list[int | ParameterSet]:
    """Return the numbers up to `count` as parameters. All but the first `fast` are slow."""
    return [*range(fast), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(fast, count * FACTOR))]


def groups(count: int, *, fast: int, size: int) -> list[range | ParameterSet]:
    """Return the same numbers in ranges: a short one for a fast run, and slow ones of at most `size`."""
    last = count * FACTOR
    starts = range(fast, last, size)
    return [range(fast), *(pytest.param(range(at, min(at + size, last)), marks=pytest.mark.slow) for at in starts)]
