"""The compiled encoder of rows of events and days writes the cells of its Python twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.tall.times import DAY_MS
from tsd.tables.tall.encode import HAS_LOOP, ColumnPlace, RowPoints, encode

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
POINTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9_999_999_999_999), LONGS | st.floats()), max_size=30)
PLACES = [
    ColumnPlace(b"host#", b"t:CPU/USR dc=x", False, ()),
    ColumnPlace(b"host#", b"t:IO", False, ()),
    ColumnPlace(b"0042#", b"t:", True, ((b"t:ID", b"42"), (b"t:X", b""))),
    ColumnPlace(b"NYSE  #", b"t:BID#", True, ()),
]


@pytest.mark.skipif(not HAS_LOOP, reason="no compiled loops")
@given(POINTS)
def test_both_encoders_write_the_same(points: list[tuple[int, int, int | float]]) -> None:
    whole = [(PLACES[number].prefix, *rest, number) for number, *rest in points]
    numbers = np.array([number for *_, number in sorted(whole, key=lambda one: (one[0], one[1]))], np.int64)
    ordered = sorted(whole, key=lambda one: (one[0], one[1]))
    times = np.array([time_ms for _, time_ms, _, _ in ordered], np.int64)
    days = np.array([PLACES[number].is_day for number in numbers], np.bool_)
    rows = np.where(days, times // DAY_MS * DAY_MS, times)
    floats = np.array([isinstance(value, float) for _, _, value, _ in ordered], np.bool_)
    bits = np.array(
        [np.float64(value).view(np.int64) if isinstance(value, float) else value for _, _, value, _ in ordered],
        np.int64,
    )
    found = RowPoints(numbers, rows, times, bits, floats)
    assert encode(PLACES, found, compiled=True) == encode(PLACES, found, compiled=False)
