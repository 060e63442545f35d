"""The only series of a request, read again: without a look for series, and without a wait."""

from collections.abc import Callable

import numpy as np

from tsd.codec.points import Batch
from tsd.errors import StoreError
from tsd.store import ColumnPart
from tsd.tables.opentsdb.column_pages import ColumnPage
from tsd.tables.reading import PointPage, ScanRange

MOST_CELLS = 64  # of a read: more take too long for one step of the event loop
NO_ROWS = PointPage(
    Batch(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64),
          np.empty(0, np.bool_)),
    0, 0, (), (), 0, None,
)  # fmt: skip


class OnlyStoredSeries:
    """One series of the data table: OnlySeries."""

    def __init__(
        self,
        pairs: bytes,
        is_current: Callable[[], bool],
        read_parts: Callable[[ScanRange], list[ColumnPart] | None],
        page_of: Callable[..., ColumnPage],
    ) -> None:
        """`is_current` returns whether no other series can match by now. `read_parts` returns the rows of a span, those
        of other series too; None if they are too many. `page_of` makes a page of them, with or without
        `annotations`."""
        self._series = {pairs: None}
        self._is_current = is_current
        self._read_parts = read_parts
        self._page_of = page_of

    def read(self, span: ScanRange, *, annotations: bool) -> PointPage | None:
        """See OnlySeries."""
        if not self._is_current():
            return None
        try:
            parts = self._read_parts(span)
            if not parts:
                return None if parts is None else NO_ROWS
            page = self._page_of(parts, annotations=annotations)
            if page.cells > MOST_CELLS or page.series() != self._series:
                return None
            return page.decode()
        except StoreError:  # a damaged block, too: a query that looks for series says which rows cannot be read
            return None
