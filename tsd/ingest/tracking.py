"""Series that are written → markers in the meta table, as `tsd.core.meta.enable_tsuid_tracking` wants (FORMATS.md §10).

OpenTSDB writes a series' marker with every point. This daemon does when it first meets the series, and once in every
hour in which the series is written: so the marker's time leads OpenTSDB to the row that holds the newest point.
"""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import trio
from numpy.typing import NDArray

from tsd.codec.meta import NO_COUNT, TS_COUNTER, TS_META, TsMeta, encode_ts_meta
from tsd.codec.times import HOUR_S
from tsd.ingest.series import SeriesTable
from tsd.store import Put, Store

BATCH = 2000  # series, of one call


class Tracker:
    """Enters series into the meta table."""

    def __init__(
        self,
        store: Store,
        meta_table: str,
        salt_width: int,
        now_s: Callable[[], int],
        *,
        with_meta: bool,
        on_new: Callable[[Sequence[bytes]], Awaitable[None]] | None = None,
    ) -> None:
        """`with_meta` gives series that have none a TSMeta; `on_new` is then told of their TSUIDs."""
        self._store = store
        self._meta_table = meta_table
        self._salt_width = salt_width
        self._now_s = now_s
        self._with_meta = with_meta
        self._on_new = on_new
        self._births = np.zeros(1024, np.int64)  # by the series table's numbers
        self._hours = np.zeros(1024, np.int64)  # in which each was marked last
        self.marked = 0

    async def note(self, numbers: NDArray[np.int32], table: SeriesTable) -> None:
        """Mark series that were written, each given once, in order, where it is time. Raises StoreError; then it may
        be repeated."""
        if not len(numbers):
            return
        hour = self._now_s() // HOUR_S
        self._make_room(int(numbers[-1]) + 1)
        births = table.births(numbers)
        met = births != self._births[numbers]
        due = met | (self._hours[numbers] != hour)
        await self._mark(numbers[due], table)
        if self._with_meta:
            await self._describe(numbers[met], table)
        self._births[numbers] = births
        self._hours[numbers] = hour

    def _make_room(self, size: int) -> None:
        if size > len(self._births):
            more = np.zeros(max(size, 2 * len(self._births)) - len(self._births), np.int64)
            self._births = np.concatenate((self._births, more))
            self._hours = np.concatenate((self._hours, more))

    async def _mark(self, numbers: NDArray[np.int32], table: SeriesTable) -> None:
        for at in range(0, len(numbers), BATCH):
            tsuids = self._tsuids(numbers[at : at + BATCH], table)
            await self._store.put(self._meta_table, [Put(tsuid, TS_COUNTER, NO_COUNT) for tsuid in tsuids])
            self.marked += len(tsuids)

    async def _describe(self, numbers: NDArray[np.int32], table: SeriesTable) -> None:
        """Give those a TSMeta that have none."""
        for at in range(0, len(numbers), BATCH):
            tsuids = self._tsuids(numbers[at : at + BATCH], table)
            there = await self._store.get(self._meta_table, tsuids, columns=[TS_META])
            missing = [tsuid for tsuid in tsuids if tsuid not in there]
            now = self._now_s()
            puts = [
                Put(tsuid, TS_META, encode_ts_meta(TsMeta(tsuid.hex().upper(), created_s=now))) for tsuid in missing
            ]
            if puts:
                # Who is given up in between would find them there next time, told to nobody.
                with trio.CancelScope(shield=True):
                    created = await self._store.create(self._meta_table, puts)
                    new = [tsuid for tsuid, ours in zip(missing, created, strict=True) if ours]
                    if new and self._on_new is not None:
                        await self._on_new(new)

    def _tsuids(self, numbers: NDArray[np.int32], table: SeriesTable) -> list[bytes]:
        """Their TSUIDs, each once."""
        found: dict[bytes, None] = {}
        for number in numbers.tolist():
            parts = table.parts(number)
            if parts is not None:
                found[parts.before[self._salt_width :] + parts.after] = None
        return list(found)
