"""What memory the columns of a window hold that waits."""

import pytest

from tsd.ingest import compiled
from tsd.ingest.looped import columns_of
from tsd.ingest.putlines import POINT_BYTES
from tsd.ingest.series import SeriesTable


@pytest.mark.skipif(not compiled.HAS, reason="nothing is compiled")
@pytest.mark.parametrize("count", [1, 700, 1024, 70_000, 89_000])
def test_points_that_wait_hold_little_more_than_they_take(count: int) -> None:
    points = compiled.Points(SeriesTable().texts)
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
