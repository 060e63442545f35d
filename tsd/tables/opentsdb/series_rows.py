"""Reads the points of one series from its rows, without a query: what the canary does."""

import numpy as np

from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import data_cells, points
from tsd.codec.opentsdb.rowkey import BASE_BYTES
from tsd.codec.points import NO_POINTS, Points
from tsd.codec.putline import HOUR_MS, HOUR_S
from tsd.store import Store
from tsd.tables.opentsdb.encode import row_key
from tsd.tables.writing import SeriesKey

RULES = MergeRules(fix_duplicates=True)


class SeriesRows:
    """The `SeriesReader` of OpenTSDB's data table."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table

    async def read_series(self, key: SeriesKey, start_ms: int, end_ms: int) -> Points:
        """Return the points of a series from `start_ms` to `end_ms`, inclusive. Raise StoreError, or CorruptRow."""
        bases = range(start_ms // HOUR_MS * HOUR_S, end_ms // 1000 + 1, HOUR_S)
        keys = {row_key(key, base.to_bytes(BASE_BYTES, "big")): base for base in bases}
        found: list[tuple[int, int | float]] = []
        rows = await self._store.get(self._table, list(keys))
        for row, base in keys.items():
            cells = data_cells((cell.column, cell.value, cell.time_ms) for cell in rows.get(row, []))
            found += [(base * 1000 + point.offset_ms, point.number) for point in points(row, cells, RULES)]
        found = [(time_ms, number) for time_ms, number in found if start_ms <= time_ms <= end_ms]
        if not found:
            return NO_POINTS
        times, numbers = zip(*found, strict=True)
        floats = [isinstance(number, float) for number in numbers]
        bits = [np.float64(number).view(np.int64) if isinstance(number, float) else number for number in numbers]
        return Points(np.array(times, np.int64), np.array(bits, np.int64), np.array(floats, np.bool_))
