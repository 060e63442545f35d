"""Pages of cells of points, as all engines but the embedded store read them."""

from collections.abc import Callable, Sequence

from tsd.codec.points import Int32
from tsd.store import CellPage
from tsd.tables.opentsdb.column_pages import hour_tables_of
from tsd.tables.opentsdb.decode import NumberedRows, number_rows
from tsd.tables.reading import PointPage, SeriesSet, StoredPage, TablePage

DecodeNumbered = Callable[[CellPage, NumberedRows], PointPage]


class StoredPoints(StoredPage):
    """Cells of whole rows of points: StoredPage."""

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
        hours = hour_tables_of(page)
        return None if hours is None else TablePage(hours, page.rows_read, page.size, self.held)

    @property
    def held(self) -> int:
        """Bytes of the cells."""
        return sum(map(len, self._page.columns)) + sum(map(len, self._page.values))
