"""How long to wait before asking a busy store again."""

import random
from collections.abc import Iterator


def pauses(first_s: float, longest_s: float, tries: int) -> Iterator[float]:
    """Seconds to wait before each of `tries` further tries: doubling up to `longest_s`, each shortened by up to a half,
    so that those who were turned away together do not come back together.

    >>> [0.5 <= pause / full <= 1 for pause, full in zip(pauses(1, 4, 4), [1, 2, 4, 4])]
    [True, True, True, True]
    """
    full = first_s
    for _ in range(tries):
        yield min(full, longest_s) * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        full *= 2
