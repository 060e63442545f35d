"""Buckets of rows are joined to the points of their series."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tsd.query.buckets import Bucketed, SeriesBuckets, bucketed, by_series_of

HOUR_MS = 3_600_000
Row = tuple[int, list[int]]  # series, and the numbers of its buckets


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, list[list[Row]]]:
    """Hours of rows, in one or several parts: of all series with the same buckets, or of some with any."""
    count = draw(st.integers(1, 4))
    buckets = st.lists(st.integers(0, 5), unique=True, max_size=4).map(sorted)
    hours: list[list[Row]] = []
    for _ in range(draw(st.integers(1, 3))):
        some = draw(st.one_of(st.just(list(range(count))), st.lists(st.integers(0, count - 1), unique=True)))
        same = draw(buckets)
        hours.append([(one, draw(st.one_of(st.just(same), st.just(same), buckets))) for one in some])
    return count, hours


def made(first_hour: int, hours: list[list[Row]]) -> SeriesBuckets:
    rows = [
        (one, [(first_hour + at) * HOUR_MS + each for each in own])
        for at, hour in enumerate(hours)
        for one, own in hour
    ]
    of = np.repeat(np.arange(len(rows)), [len(own) for _, own in rows])
    stamps = np.array([stamp for _, own in rows for stamp in own], np.int64)
    found = (
        bucketed(of, stamps, stamps * 1.5, len(rows)) if rows else Bucketed(np.zeros(1, np.int64), stamps, stamps * 1.5)
    )
    return SeriesBuckets(np.array([one for one, _ in rows], np.int64), found)


@given(parts(), st.booleans())
def test_rows_of_hours_are_the_points_of_series(drawn: tuple[int, list[list[Row]]], together: bool) -> None:
    count, hours = drawn
    pieces = [made(0, hours)] if together else [made(at, [hour]) for at, hour in enumerate(hours)]
    found = by_series_of(pieces, count)
    assert len(found) == count
    for number in range(count):
        wanted = [
            at * HOUR_MS + each for at, hour in enumerate(hours) for one, own in hour if one == number for each in own
        ]
        points = found[number]
        assert points.times.tolist() == wanted
        assert points.doubles().tolist() == [stamp * 1.5 for stamp in wanted]
