"""Pages of cells of points, as all engines but the embedded store read them."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tsd.codec.points import Int32, Int64
from tsd.store import CellPage
from tsd.tables.opentsdb.decode import NumberedRows, number_rows
from tsd.tables.reading import HourTable, PointPage, SeriesSet, StoredPage, TablePage

MOST_HOURS = 8  # of a page that is cut into tables: more of them have few rows each

DecodeNumbered = Callable[[CellPage, NumberedRows], PointPage]


class StoredPoints(StoredPage):
    """Cells of whole rows, and how to decode them."""

    def __init__(
        self, page: CellPage, pairs_start: int, series: SeriesSet, decode: DecodeNumbered, *, keeps: bool = False
    ) -> None:
        """`keeps`: keep what was decoded, for a page that is decoded again."""
        self._keeps = keeps
        self._kept: PointPage | None = None
        self._page = page
        self._pairs_start = pairs_start
        self._series = series
        self._decode = decode
        self._numbered: NumberedRows | None = None
        self.cells = len(page.keys)

    def series(self) -> dict[bytes, None]:
        """Return the distinct series, by their tag pairs, in order of rows: sorting them takes little time then."""
        start = self._pairs_start
        return dict.fromkeys([key[start:] for key in self._page.keys])

    def new_series(self) -> Sequence[bytes]:
        """Return the series without a number, see NumberingPage."""
        self._numbered = number_rows(self._page.keys, self._pairs_start, self._series)
        return self._numbered.unnumbered

    def decode(self) -> PointPage:
        """Decode the rows of matching series."""
        if self._kept is not None:
            return self._kept
        decoded = self._decode(self._page, self._rows())
        if self._keeps:
            self._kept = decoded
        return decoded

    def _rows(self) -> NumberedRows:
        """Return the number of each cell's series."""
        if self._numbered is None or self._numbered.unnumbered:
            self._numbered = number_rows(self._page.keys, self._pairs_start, self._series)
        return self._numbered

    def numbers(self) -> Int32:
        """Return the number of each cell's series, see StoredPage."""
        return self._rows().numbers

    def decode_tables(self) -> TablePage | None:
        """Decode the rows of matching series, see NumberingPage."""
        page = self.decode()
        if page.annotations or page.warnings or page.duplicates or page.rows is None:
            return None
        hours = _tables_of(page, page.rows.bases_s)
        return None if hours is None else TablePage(hours, page.rows_read, page.size, self.held)

    @property
    def held(self) -> int:
        """Bytes of the cells."""
        return sum(map(len, self._page.columns)) + sum(map(len, self._page.values))


def _tables_of(page: PointPage, bases_s: Int64) -> list[HourTable] | None:
    """Return rows as tables; None if the rows of an hour have different times, or if there are many hours."""
    series, starts, times, bits, floats = page.batch
    bounds = [0, *(np.flatnonzero(bases_s[1:] != bases_s[:-1]) + 1).tolist(), len(series)]
    if len(bounds) > MOST_HOURS + 1 or len(bases_s) != len(series):
        return None
    tables: list[HourTable] = []
    for first, stop in pairwise(bounds if len(series) else []):
        low, high = int(starts[first]), int(starts[stop])
        shape = stop - first, int(starts[first + 1]) - low
        if shape[0] * shape[1] != high - low or (np.diff(starts[first : stop + 1]) != shape[1]).any():
            return None
        own = times[low:high].reshape(shape)
        if (own != own[0]).any():
            return None
        base_s = int(bases_s[first])
        tables.append(
            HourTable(
                base_s, series[first:stop], own[0] - base_s * 1000, bits[low:high].reshape(shape),
                floats[low:high].reshape(shape),
            )
        )  # fmt: skip
    return tables
