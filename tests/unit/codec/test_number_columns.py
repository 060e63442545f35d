"""Forms of the rows of a column of numbers: the compiled loop chooses as numpy does."""

import random
import struct

import numpy as np
import pytest

from tsd.codec.number_columns import HAS_LOOP, choose_forms


def one_value(dice: random.Random, kind: str) -> tuple[int, bool]:
    """Return the bits of a value, and whether it is a double."""
    if kind == "integer" or (kind == "mixed" and dice.random() < 0.5):
        return dice.choice([0, -1, dice.randrange(-100, 100), dice.randrange(-(1 << 63), 1 << 63)]), False
    number = dice.choice([dice.random(), dice.randrange(-500, 500) / 10 ** dice.randrange(8), float(1 << 52)])
    if kind == "decimal":
        number = round(dice.uniform(-50, 50), dice.choice([0, 2, 6]))
    elif dice.random() < 0.3:
        number = dice.choice([float("nan"), float("inf"), -0.0, 1e300, 5e-324, float((1 << 52) - 1), -(2.0**52)])
    return struct.unpack("q", struct.pack("d", number))[0], True


@pytest.mark.skipif(not HAS_LOOP, reason="no compiled loops")
@pytest.mark.parametrize("seed", range(40))
def test_compiled_loop_chooses_the_forms_that_numpy_does(seed: int) -> None:
    dice = random.Random(seed)
    counts = [dice.choice([1, 1, 2, 5, dice.randrange(1, 400)]) for _ in range(dice.choice([1, 30, 200]))]
    kinds = [kind for count in counts for kind in [dice.choice(["integer", "double", "decimal", "mixed"])] * count]
    bits, floats = zip(*[one_value(dice, kind) for kind in kinds], strict=True)
    columns = np.array(bits, np.int64), np.array(floats, np.bool_), np.cumsum([0, *counts])
    found, wanted = choose_forms(*columns, compiled=True), choose_forms(*columns, compiled=False)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
