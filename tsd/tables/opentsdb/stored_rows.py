"""The rows of a decoded page, as the result cache sees them: hours, series, sizes and signatures."""

from typing import NamedTuple

import numpy as np

from tsd.codec.opentsdb.cell import COLUMN, MS_MARK
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.points import Int64
from tsd.store import CellPage
from tsd.store.cells import CellSigner
from tsd.tables.opentsdb.decode import Decoded

ROW_SPAN_MS = 1 << 22  # range of offsets in a qualifier of milliseconds


class StoredRows:
    """The rows of a decoded page, for the result cache."""

    def __init__(self, page: CellPage, decoded: Decoded, layout: KeyLayout) -> None:
        self._page = page
        self._decoded = decoded
        self._pairs_start = layout.pairs_start
        self._base_at = layout.metric_end
        self._cells: _CellSizes | None = None
        self.complete = len(decoded.row_of) == len(page.keys)
        self.plain = decoded.plain

    @property
    def first_s(self) -> int:
        """Hour of the page's first row, matching or not."""
        return self._base(self._page.keys[0])

    @property
    def last_s(self) -> int:
        """Hour of the page's last row."""
        return self._base(self._page.keys[-1])

    def _base(self, key: bytes) -> int:
        return int.from_bytes(key[self._base_at : self._pairs_start], "big")

    @property
    def bases_s(self) -> Int64:
        """Hour of each row."""
        return self._decoded.bases_ms // 1000

    def series(self, rows: slice) -> list[bytes]:
        """Return the tag pairs of each row."""
        start = self._pairs_start
        return [key[start:] for key in self._decoded.keys[rows]]

    def sizes(self, rows: slice) -> Int64:
        """Return the bytes of columns and values of each row."""
        cells, part = self._sizes(), self._part(rows)
        sizes = cells.columns[part] + cells.values[part]
        found = np.bincount(self._decoded.row_of[part] - rows.start, sizes, rows.stop - rows.start)
        return found.astype(np.int64)

    def names_size(self, rows: slice) -> int:
        """Return the bytes of keys and columns."""
        return int(self._sizes().names[self._part(rows)].sum())

    def sign(self, rows: slice, signing: CellSigner, newest_ms: int) -> bool:
        """Add the cells of rows of one hour to signatures. Return False if a signature could miss a change, or is
        larger than the cells."""
        page, cells, part = self._page, self._sizes(), self._part(rows)
        times_ms = np.array(page.times_ms[part], np.int64)
        if times_ms.max() >= newest_ms or cells.values[part].sum() < cells.names[part].sum():
            return False
        # OpenTSDB can be configured to use a point's time as cell timestamp: a changed value then has the same
        # timestamp.
        base_ms = int(self._decoded.bases_ms[rows.start])
        own = np.flatnonzero((times_ms >= base_ms) & (times_ms < base_ms + ROW_SPAN_MS)).tolist()
        columns = page.columns[part]
        if any(last_offset_ms(columns[at]) == times_ms[at] - base_ms for at in own):
            return False
        signing.add(page.keys[part], columns, cells.values[part], page.times_ms[part])
        return True

    def _part(self, rows: slice) -> slice:
        """Return the slice of the page's cells that some rows have."""
        return slice(*np.searchsorted(self._decoded.row_of, (rows.start, rows.stop)).tolist())

    def _sizes(self) -> "_CellSizes":
        if self._cells is None:
            self._cells = _cell_sizes(self._page)
        return self._cells


class _CellSizes(NamedTuple):
    """Bytes of a page's cells."""

    names: Int64  # keys and columns
    columns: Int64
    values: Int64


def _cell_sizes(page: CellPage) -> _CellSizes:
    count = len(page.keys)
    columns = np.fromiter(map(len, page.columns), np.int64, count)
    values = np.fromiter(map(len, page.values), np.int64, count) - page.ahead
    return _CellSizes(np.fromiter(map(len, page.keys), np.int64, count) + columns, columns, values)


def last_offset_ms(column: bytes) -> int:
    """Return the offset of the last point of a cell from its base time, in ms.

    >>> last_offset_ms(b"t:" + bytes.fromhex("00130f93")), last_offset_ms(b"t:" + bytes.fromhex("f0000043"))
    (249000, 1)
    """
    if column[len(COLUMN)] >= MS_MARK:
        return (int.from_bytes(column[-4:], "big") & 0x0FFFFFC0) >> 6
    return (int.from_bytes(column[-2:], "big") >> 4) * 1000
