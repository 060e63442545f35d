"""Points as parallel arrays: the newest ones, found without a sort, are those of a sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import (
    HAS_LOOP,
    NO_COLUMNS,
    Columns,
    count_series,
    newest_points,
    series_ends,
    shortest,
    sort_columns,
    wide_values,
)
from tsd.codec.text import FLOAT

NEEDS_LOOP = pytest.mark.skipif(not HAS_LOOP, reason="needs the compiled loop")


def columns(points: list[tuple[int, int]]) -> Columns:
    """Return points by series and instant; the values count them."""
    return Columns(
        np.array([series for series, _ in points], np.int32),
        np.array([instant for _, instant in points], np.int64),
        np.zeros(len(points), np.uint8),
        np.arange(len(points)),
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1))
def test_newest_points_are_the_ends_of_sorted_ones(points: list[tuple[int, int]]) -> None:
    given_ = columns(points)
    wanted = sort_columns(given_, join=True)
    ends = wanted.at(series_ends(wanted))
    assert [column.tolist() for column in newest_points(given_)] == [column.tolist() for column in ends]


def test_no_points_have_no_newest_ones() -> None:
    assert len(newest_points(NO_COLUMNS).series) == 0


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_LOOP)])
@given(st.lists(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.floats(width=32)), min_size=1))
def test_shortest_form_keeps_the_value(compiled: bool, values: list[int | float]) -> None:
    floats = np.array([isinstance(value, float) for value in values])
    words = [np.float64(value).view(np.int64) if isinstance(value, float) else value for value in values]
    bits = np.array(words, np.int64)
    flags, short = shortest(bits.copy(), floats, compiled=compiled)
    columns = Columns(np.zeros(len(values), np.int32), np.zeros(len(values), np.int64), flags, short)
    wide, are_floats = wide_values(columns)
    assert (wide.tolist(), are_floats.tolist()) == (bits.tolist(), floats.tolist())
    for value, flag in zip(values, flags.tolist(), strict=True):
        size = (flag & 7) + 1
        if isinstance(value, float):
            with np.errstate(over="ignore"):
                is_single = value == float(np.float32(value))
            assert flag == FLOAT | (3 if is_single else 7)
        else:
            assert -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1
            assert size == 1 or not -(1 << 4 * size - 1) <= value < 1 << 4 * size - 1


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_LOOP)])
@given(st.lists(st.integers(0, 6)), st.lists(st.integers(-2, 3), max_size=6))
def test_points_of_each_series_are_counted(compiled: bool, series: list[int], places: list[int]) -> None:
    counts, present = np.full(4, 7), np.array([False, True, False, False])
    count_series(np.array(series, np.int32), np.array(places, np.int32), counts, present, compiled=compiled)
    found = [places[one] for one in series if one < len(places)]
    assert counts.tolist() == [7 + found.count(place) for place in range(4)]
    assert present.tolist() == [place == 1 or place in found for place in range(4)]
