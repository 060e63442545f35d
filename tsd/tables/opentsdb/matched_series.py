"""The series that a request matches, read again: without a look for series, and without a wait."""

from collections.abc import Callable, Sequence

import numpy as np

from tsd.codec.points import Batch
from tsd.errors import StoreError
from tsd.store import ColumnPart, StepLimit
from tsd.tables.opentsdb.column_pages import ColumnPage
from tsd.tables.reading import EncodedPage, PointPage, ScanRange, SeriesSet

NO_ROWS = PointPage(
    Batch(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64),
          np.empty(0, np.bool_)),
    0, 0, (), (), 0, None,
)  # fmt: skip


class NoRows:
    """A page without rows: EncodedPage."""

    cells = 0

    def series(self) -> Sequence[bytes]:
        """Return nothing."""
        return ()

    def decode(self) -> PointPage:
        """Return no points."""
        return NO_ROWS


class MatchedStoredSeries:
    """Some series of the data table: MatchedSeries."""

    def __init__(
        self,
        series: SeriesSet,
        is_current: Callable[[], bool],
        read_parts: Callable[[ScanRange, StepLimit], list[ColumnPart] | None],
        page_of: Callable[..., ColumnPage],
        *,
        by_key: bool,
    ) -> None:
        """`is_current` returns whether no other series can match by now. `read_parts` returns the rows of a span, those
        of other series too; None if they are too many. `page_of` makes a page of them, with or without `annotations`.
        `by_key`: `read_parts` reads no other rows."""
        self._series = series
        self._count = len(series.pairs)
        self._is_current = is_current
        self._read_parts = read_parts
        self._page_of = page_of
        self.by_key = by_key

    def are_all(self) -> bool:
        """See MatchedSeries."""
        return len(self._series.pairs) == self._count and self._is_current()

    def read(self, span: ScanRange, limit: StepLimit, *, annotations: bool) -> EncodedPage[PointPage] | None:
        """See MatchedSeries."""
        if not self.are_all():
            return None
        try:
            parts = self._read_parts(span, limit)
        except StoreError:  # a damaged block, too: a query that looks for series says which rows cannot be read
            return None
        if not parts:
            return None if parts is None else NoRows()
        page = self._page_of(parts, annotations=annotations)
        if page.cells > limit.cells or page.new_series() or len(self._series.pairs) > self._count:
            return None
        return page
