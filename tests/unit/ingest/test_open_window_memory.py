"""What memory the columns of a window hold that waits."""

import pytest

from tsd.codec.points import columns_of
from tsd.ingest.lines import POINT_BYTES
from tsd.ingest.series import HAS_LOOP, SeriesTable

if HAS_LOOP:
    from tsd.ingest import _parser


@pytest.mark.skipif(not HAS_LOOP, reason="nothing is compiled")
@pytest.mark.parametrize("count", [1, 700, 1024, 70_000, 89_000])
def test_open_rows_use_little_more_memory_than_their_points(count: int) -> None:
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
