"""Points as parallel arrays: the newest ones, found without a sort, are those of a sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import (
    HAS_LOOP,
    NO_COLUMNS,
    Columns,
    columns_of_series,
    count_series,
    newest_points,
    place_rows,
    rows_of_parts,
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


@NEEDS_LOOP
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(1, 4)), max_size=8), max_size=3),
    st.lists(st.integers(-1, 3), min_size=1, max_size=5),
    st.tuples(st.integers(0, 4), st.integers(4, 20)),
)
def test_compiled_rows_of_parts_are_those_in_python(
    runs: list[list[tuple[int, int, int]]], row_of: list[int], span: tuple[int, int]
) -> None:
    wanted = [place for place, row in enumerate(row_of) if row >= 0]
    rows = np.full(len(row_of), -1, np.int32)
    rows[wanted] = np.arange(len(wanted))  # no two series share a row
    parts = []
    for some in runs:
        points = [(series, 2 * (first + at)) for series, first, count in some for at in range(count)]
        flags = np.array([FLOAT | 3 if at % 3 else 0 for at in range(len(points))], np.uint8)
        parts.append(columns(points)._replace(flags=flags))
    instants = (2 * span[0], 2 * span[1])
    found, plain = (rows_of_parts(parts, rows, len(wanted), instants, compiled=each) for each in (True, False))
    assert [column.tolist() for column in found[0]] == [column.tolist() for column in plain[0]]
    assert found[1].tolist() == plain[1].tolist()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=NEEDS_LOOP)])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=6), st.lists(st.booleans(), max_size=9))
def test_points_of_wanted_series_are_found_in_long_runs(
    compiled: bool, runs: list[tuple[int, int]], wanted: list[bool]
) -> None:
    every = [number for number, count in runs for _ in range(count)]
    found = columns_of_series(
        columns([(number, 2 * at) for at, number in enumerate(every)]), np.array(wanted, np.bool_), compiled=compiled
    )
    chosen = [(number, 2 * at) for at, number in enumerate(every) if number < len(wanted) and wanted[number]]
    assert list(zip(found.series.tolist(), found.instants.tolist(), strict=True)) == chosen


@NEEDS_LOOP
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4))))
def test_compiled_places_of_rows_are_those_in_python(rows: list[tuple[bool, int]]) -> None:
    chosen = np.array([is_chosen for is_chosen, _ in rows], np.bool_)
    counts = np.array([count for _, count in rows], np.int64)
    values = np.arange(int(counts[chosen].sum()))
    found, plain = (np.full(int(counts.sum()), -1) for _ in range(2))
    place_rows(values, chosen, counts, found, compiled=True)
    place_rows(values, chosen, counts, plain, compiled=False)
    assert found.tolist() == plain.tolist()
