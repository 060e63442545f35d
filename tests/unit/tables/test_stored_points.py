"""Pages of cells of points."""

from types import SimpleNamespace
from typing import cast

import pytest

from tsd.codec.names import Widths
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.store import CellPage, cells_of_rows
from tsd.tables.opentsdb.decode import NumberedRows
from tsd.tables.opentsdb.stored_points import StoredPoints
from tsd.tables.reading import PointPage, SeriesSet


@pytest.mark.parametrize(("keeps", "times"), [(True, 1), (False, 2)])
def test_a_page_that_keeps_its_rows_is_decoded_once(keeps: bool, times: int) -> None:
    found, decoded = cast(PointPage, SimpleNamespace()), []

    def decode(page: CellPage, _: NumberedRows) -> PointPage:
        decoded.append(page)
        return found

    series = cast(SeriesSet, SimpleNamespace(numbers={}, series_pairs=[], required_tagks=None, widths=Widths()))
    page = StoredPoints(cells_of_rows([]), KeyLayout().pairs_start, series, decode, keeps=keeps)
    assert page.decode() is page.decode() is found
    assert len(decoded) == times
