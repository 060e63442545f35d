"""The compiled reader of numbers reads what its Python twin does, and refuses the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.tall.values import HAS_LOOP, number_texts, parse_numbers
from tsd.errors import CorruptRow

USUAL = st.integers(-(1 << 63), (1 << 63) - 1).map(lambda number: b"%d" % number)
LONG = st.integers(-(10**20), 10**20).map(lambda number: b"%d" % number)  # most do not fit in 64 bits
DOUBLES = st.floats().map(lambda number: repr(number).encode())
ODD = st.text("0123456789.eE+-naif \0", max_size=24).map(str.encode)


@pytest.mark.skipif(not HAS_LOOP, reason="no compiled loops")
@given(st.lists(USUAL | LONG | DOUBLES | ODD, max_size=12))
def test_both_readers_read_the_same(values: list[bytes]) -> None:
    outcomes = []
    for compiled in (True, False):
        try:
            bits, floats = parse_numbers(values, compiled=compiled)
            outcomes.append((bits.tolist(), floats.tolist()))
        except CorruptRow as exc:
            outcomes.append(str(exc))
    assert outcomes[0] == outcomes[1]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False), max_size=12))
def test_texts_are_read_back(values: list[int | float]) -> None:
    floats = np.array([isinstance(value, float) for value in values], np.bool_)
    bits = np.array([np.float64(v).view(np.int64) if isinstance(v, float) else v for v in values], np.int64)
    found = parse_numbers(number_texts(bits, floats))
    assert (found[0].tolist(), found[1].tolist()) == (bits.tolist(), floats.tolist())
