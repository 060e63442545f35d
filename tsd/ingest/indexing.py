"""Series that are written for the first time → the series index."""

import numpy as np
from numpy.typing import NDArray

from tsd.ingest.series import SeriesTable
from tsd.series_index import BATCH, SeriesIndex


class Indexer:
    """Enters series into the index, each once for as long as it is known."""

    def __init__(self, index: SeriesIndex, salt_width: int) -> None:
        self._index = index
        self._salt_width = salt_width
        self._births = np.zeros(1024, np.int64)  # by the series table's numbers: the series that was entered
        self.entered = 0

    async def note(self, numbers: NDArray[np.int32], table: SeriesTable) -> None:
        """Enter those series that are new, each given once, in order. Raises StoreError; then it may be repeated."""
        if not len(numbers):
            return
        missing = int(numbers[-1]) + 1 - len(self._births)
        if missing > 0:
            known, self._births = self._births, np.zeros(len(self._births) + max(missing, len(self._births)), np.int64)
            self._births[: len(known)] = known
        births = table.births(numbers)
        new = births != self._births[numbers]
        fresh = numbers[new]
        for at in range(0, len(fresh), BATCH):
            series = table.tags_of(fresh[at : at + BATCH], self._salt_width)
            await self._index.add({metric: some.pairs for metric, some in series.items()})
        self._births[numbers] = births
        self.entered += len(fresh)
