"""What memory the columns of a window hold that waits."""

import numpy as np
import pytest

from tsd.codec.points import POINT_BYTES, columns_of
from tsd.ingest.series import HAS_LOOP, SeriesTable

if HAS_LOOP:
    from tsd.ingest import _parser


@pytest.mark.skipif(not HAS_LOOP, reason="nothing is compiled")
@pytest.mark.parametrize("count", [1, 700, 1024, 70_000, 89_000])
def test_open_window_uses_little_more_memory_than_their_points(count: int) -> None:
    points = _parser.ParsedPoints(SeriesTable().texts, _parser.Rules(b"m", 8))
    for number in range(count):
        points.append(number % 7, 2 * number, number % 16, -number)
    taken = points.take()
    assert taken is not None
    columns = columns_of(taken)
    assert memoryview(taken[0].obj).nbytes < 2 * count * POINT_BYTES
    assert columns.series.tolist() == [number % 7 for number in range(count)]
    assert columns.instants.tolist() == [2 * number for number in range(count)]
    assert columns.flags.tolist() == [number % 16 for number in range(count)]
    assert columns.bits.tolist() == [-number for number in range(count)]
    assert (len(points), points.take()) == (0, None)


@pytest.mark.skipif(not HAS_LOOP, reason="nothing is compiled")
def test_releasing_unused_memory_keeps_the_points() -> None:
    count = 140_001  # at least FEW_POINTS of the parser: columns are not copied, and end within a page
    points = _parser.ParsedPoints(SeriesTable().texts, _parser.Rules(b"m", 8))
    for number in range(count):
        points.append(number % 7, 2 * number, number % 16, -number)
    taken = points.take()
    assert taken is not None
    columns, numbers = columns_of(taken), np.arange(count)
    assert np.array_equal(columns.series, numbers % 7)
    assert np.array_equal(columns.instants, 2 * numbers)
    assert np.array_equal(columns.flags, numbers % 16)
    assert np.array_equal(columns.bits, -numbers)
