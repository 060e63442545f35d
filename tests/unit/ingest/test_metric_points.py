"""The points of one metric in memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.points import Columns, joined_columns
from tsd.codec.putline import HOUR, HOUR_S
from tsd.ingest.metric_points import few_points_of_metric, points_of_metric
from tsd.ingest.packed_points import pack
from tsd.tables.open_points import OpenPoints
from tsd.tables.writing import SeriesKeys

SERIES = 100_000
FIRST = 400_000  # hours since the epoch
OWNERS = np.full(SERIES, 1, np.int32)


def points_of_hours(series: list[int], hours: list[int]) -> Columns:
    zeros = np.zeros(len(hours), np.uint8)
    instants = (FIRST + np.array(hours, np.int64)) * HOUR
    return Columns(np.array(series, np.int32), instants, zeros, np.arange(len(hours)))


def test_points_of_many_hours_take_little_memory() -> None:
    """Regression: each hour took some bytes for each series of the table."""
    part = points_of_hours([7] * 3000, list(range(3000)))
    tracemalloc.start()
    found = points_of_metric(1, None, [part], OWNERS)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 << 20
    assert found.present.bases == [(FIRST + hour) * HOUR_S for hour in range(3000)]


def test_series_of_each_hour() -> None:
    packed = pack(points_of_hours([3, 9, 3], [1, 1, 1]), OWNERS)
    plain = points_of_hours([9, 4, 3, 8, 9], [2, 0, 2, 2, 1])
    owners = OWNERS.copy()
    owners[8] = 2
    found = points_of_metric(1, None, [packed, plain], owners)
    assert found.numbers.tolist() == [3, 4, 9]
    present = {base_s // HOUR_S - FIRST: found.present.of(base_s).tolist() for base_s in found.present.bases}
    assert present == {0: [False, True, False], 1: [True, False, True], 2: [True, False, True]}
    assert not found.present.of(0).any()
    one = points_of_metric(1, np.array([9], np.int32), [packed, plain], owners)
    assert one.numbers.tolist() == [9]
    assert [base_s // HOUR_S - FIRST for base_s in one.present.bases] == [1, 2]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 0, 0, 1])), max_size=60), max_size=4),
    st.sets(st.integers(0, 40)) | st.none(),
)
def test_series_of_each_hour_whatever_parts_have(parts: list[list[tuple[int, int]]], wanted: set[int] | None) -> None:
    owners = np.arange(41, dtype=np.int32) % 3
    columns = [points_of_hours([series for series, _ in part], [hour for _, hour in part]) for part in parts]
    chosen = None if wanted is None else np.array([one for one in wanted if one % 3 == 1], np.int32)
    found = points_of_metric(1, chosen, columns, owners)
    own = range(1, 41, 3) if chosen is None else chosen.tolist()
    points = [(series, hour) for part in parts for series, hour in part if series in own]
    assert found.numbers.tolist() == sorted({series for series, _ in points})
    assert found.every.points == len(points)
    assert found.present.bases == sorted({(FIRST + hour) * HOUR_S for _, hour in points})
    for hour in (0, 1):
        present = found.present.of((FIRST + hour) * HOUR_S)
        assert found.numbers[present].tolist() == sorted({series for series, own_hour in points if own_hour == hour})


def test_points_of_an_hour_are_unpacked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: around the end of an hour each query unpacked the points of both hours twice."""
    monkeypatch.setattr("tsd.ingest.metric_points.SLICE_POINTS", 20_000)
    series = list(range(500)) * 100
    packed = [pack(points_of_hours(series, [hour] * 50_000), OWNERS) for hour in (1, 2)]
    found = points_of_metric(1, None, packed, OWNERS)
    assert len(found.slices) > 1
    hours, every = [(FIRST + hour) * HOUR_S for hour in (1, 2)], np.repeat(np.arange(500), 100).tolist()
    for base_s in hours:
        assert joined_columns(found.every.parts(base_s)).series.tolist() == every
        parts = [part for one in found.slices for part in one.parts(base_s)]
        assert joined_columns(parts).series.tolist() == every
        assert all((part.instants // HOUR * HOUR_S == base_s).all() for part in parts)
    assert len(joined_columns(found.every.parts(None)).series) == 100_000


def test_few_points_are_those_of_the_metric() -> None:
    plain = points_of_hours([9, 4, 3, 8, 9], [2, 0, 2, 2, 1])
    owners = OWNERS.copy()
    owners[8] = 2
    assert few_points_of_metric(1, None, [plain, plain], owners).bits.tolist() == [0, 1, 2, 4] * 2
    assert few_points_of_metric(1, np.array([4, 9]), [plain], owners).bits.tolist() == [0, 1, 4]
    assert few_points_of_metric(0, None, [plain], owners).bits.tolist() == []
    assert few_points_of_metric(0, None, [], owners).bits.tolist() == []


def test_few_points_know_their_hours() -> None:
    points = OpenPoints.of(points_of_hours([0, 1, 0], [2, 0, 0]), SeriesKeys.of([None, None]))
    assert [base_s // HOUR_S - FIRST for base_s in points.bases] == [0, 2]
    assert points.present((FIRST + 2) * HOUR_S).tolist() == [True, False]
    assert points.present((FIRST + 1) * HOUR_S).tolist() == [False, False]
