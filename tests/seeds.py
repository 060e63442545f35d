"""Seeds of drawn tests: a fast run tries few of them, a full run all."""

import pytest
from _pytest.mark import ParameterSet


def seeds(count: int, *, fast: int) -> list[int | ParameterSet]:
    """Return the numbers up to `count` as parameters. All but the first `fast` are slow."""
    return [*range(fast), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(fast, count))]
