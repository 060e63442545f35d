"""Points as parallel arrays: the newest ones, found without a sort, are those of a sort."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import Columns, newest_points, no_columns, series_ends, sort_columns


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
    assert len(newest_points(no_columns()).series) == 0
