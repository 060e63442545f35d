"""Records the series that a daemon writes:

- Markers in the meta table, for `tsd.core.meta.enable_tsuid_tracking` (FORMATS.md §10). OpenTSDB writes a series'
  marker with every point. This daemon writes it with the first point of a series, and once in every hour in which the
  series is written. So the marker's time leads OpenTSDB to the row that holds the newest point.
- Entries in the series index, for series that are written for the first time.
- The newest point of each series.
"""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import trio

from tsd.codec.kept_arrays import grown
from tsd.codec.metadata import TsMeta
from tsd.codec.opentsdb.meta import NO_COUNT, TS_COUNTER, TS_META, encode_ts_meta
from tsd.codec.points import Columns, Int32, series_ends
from tsd.codec.putline import HOUR_S
from tsd.config.loader import key_layout
from tsd.config.settings import Config
from tsd.errors import StoreError
from tsd.lazy import LazyLogger
from tsd.store import Put, Store
from tsd.tables.opentsdb.encode import series_by_metric
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.opentsdb.layout import OpentsdbParts
from tsd.tables.opentsdb.series_index import BATCH, SeriesIndex
from tsd.tables.opentsdb.trees import TreeBuilder
from tsd.tables.writing import SeriesLookup

log = LazyLogger(__name__)

META_BATCH = 2000  # series per call of the store
INITIAL_ROOM = 1024  # series


class MetaWriter:
    """Writes series into the meta table."""

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
        """`with_meta` creates a TSMeta for series without one; then `on_new` gets their TSUIDs."""
        self._store = store
        self._meta_table = meta_table
        self._salt_width = salt_width
        self._now_s = now_s
        self._with_meta = with_meta
        self._on_new = on_new
        self._generations = np.zeros(INITIAL_ROOM, np.int64)  # by number
        self._hours = np.zeros(INITIAL_ROOM, np.int64)  # by number: the hour of the last marker
        self.marked = 0

    async def record(self, numbers: Int32, series: SeriesLookup) -> None:
        """Write the due markers of series that were written. `numbers` ascend without duplicates. Raise StoreError; the
        call may then be repeated."""
        if not len(numbers):
            return
        hour = self._now_s() // HOUR_S
        room = int(numbers[-1]) + 1
        self._generations, self._hours = grown(self._generations, room), grown(self._hours, room)
        generations = series.generations(numbers)
        is_new = generations != self._generations[numbers]
        is_due = is_new | (self._hours[numbers] != hour)
        await self._mark(numbers[is_due], series)
        if self._with_meta:
            await self._describe(numbers[is_new], series)
        self._generations[numbers] = generations
        self._hours[numbers] = hour

    async def _mark(self, numbers: Int32, series: SeriesLookup) -> None:
        for at in range(0, len(numbers), META_BATCH):
            tsuids = self._tsuids(numbers[at : at + META_BATCH], series)
            await self._store.put(self._meta_table, [Put(tsuid, TS_COUNTER, NO_COUNT) for tsuid in tsuids])
            self.marked += len(tsuids)

    async def _describe(self, numbers: Int32, series: SeriesLookup) -> None:
        """Create a TSMeta for series without one."""
        for at in range(0, len(numbers), META_BATCH):
            tsuids = self._tsuids(numbers[at : at + META_BATCH], series)
            found = await self._store.get(self._meta_table, tsuids, columns=[TS_META])
            missing = [tsuid for tsuid in tsuids if tsuid not in found]
            now = self._now_s()
            puts = [
                Put(tsuid, TS_META, encode_ts_meta(TsMeta(tsuid.hex().upper(), created_s=now))) for tsuid in missing
            ]
            if puts:
                # Without the shield, a cancellation in between would lose the call of `on_new` for created series.
                with trio.CancelScope(shield=True):
                    created = await self._store.create(self._meta_table, puts)
                    new = [tsuid for tsuid, was_created in zip(missing, created, strict=True) if was_created]
                    if new and self._on_new is not None:
                        await self._on_new(new)

    def _tsuids(self, numbers: Int32, series: SeriesLookup) -> list[bytes]:
        """Return the TSUIDs of series, each once."""
        return list(dict.fromkeys(key.head[self._salt_width :] + key.tail for key in series.keys(numbers) if key.head))


class IndexWriter:
    """Writes series to the index, once per number and generation."""

    def __init__(self, index: SeriesIndex, salt_width: int) -> None:
        self._index = index
        self._salt_width = salt_width
        self._generations = np.zeros(INITIAL_ROOM, np.int64)  # by number: generation of the written series
        self.written = 0

    async def record(self, numbers: Int32, series: SeriesLookup) -> None:
        """Write the new ones of some series. Raise StoreError; the call may then be repeated."""
        if not len(numbers):
            return
        self._generations = grown(self._generations, int(numbers.max()) + 1)
        generations = series.generations(numbers)
        is_new = generations != self._generations[numbers]
        if not is_new.any():
            return
        new = np.unique(numbers[is_new])
        for at in range(0, len(new), BATCH):
            found = series_by_metric(new[at : at + BATCH], series, self._salt_width)
            await self._index.add({metric: some.series_pairs for metric, some in found.items()})
        self._generations[numbers] = generations
        self.written += len(new)

    async def finish(self) -> None:
        """Do nothing: the index has all series."""


class UnkeptIndex:
    """An index that this process does not write. It is marked as incomplete before the first series is: a daemon that
    keeps it again would not find the series of this process."""

    def __init__(self, index: SeriesIndex) -> None:
        self._index = index
        self._is_marked = self._has_failed = False

    async def record(self, numbers: Int32, series: SeriesLookup) -> None:  # noqa: ARG002 - as for a kept index
        """Mark the index. After an error points are stored all the same, and the next window tries again: nothing here
        reads the index."""
        if self._is_marked:
            return
        error: StoreError | None = None
        try:
            await self._index.outdate()
        except StoreError as exc:
            error = exc.with_traceback(None)
        if error is None:
            self._is_marked = True
        elif not self._has_failed:
            self._has_failed = True
            log.warning("series_index.not_marked", error=str(error), next_step="see tsd.query.series_index")

    async def finish(self) -> None:
        """Mark the index again: a daemon may have completed it meanwhile. Raise StoreError."""
        if self._is_marked:
            await self._index.outdate()


def make_index_writer(config: Config, store: Store, index: SeriesIndex | None) -> IndexWriter | UnkeptIndex:
    """Return what writes series to an index; None: it is switched off."""
    if index is None:
        return UnkeptIndex(SeriesIndex(store, config.series_table, key_layout(config)))
    return IndexWriter(index, config.salt_width)


class SeriesRecorder:
    """Records the series of one daemon, and their newest points."""

    def __init__(
        self,
        cache: LastPointCache,
        now_ms: Callable[[], int],
        index_writer: IndexWriter | UnkeptIndex,
        meta_writer: MetaWriter | None = None,
    ) -> None:
        self._cache = cache
        self._now_ms = now_ms
        self._index_writer = index_writer
        self._meta_writer = meta_writer

    async def record(self, columns: Columns, series: SeriesLookup, *, held: bool = False) -> None:
        """Record points that are written, or `held` and written later, in any order. Raise StoreError."""
        next_hour_ms = (self._now_ms() // 1000 // HOUR_S + 1) * HOUR_S * 1000
        await self._cache.record(columns, series, next_hour_ms, held=held)
        numbers = columns.series[series_ends(columns)]  # few, also if a series has many points
        await self._index_writer.record(numbers, series)
        if self._meta_writer is not None:
            await self._meta_writer.record(np.unique(numbers), series)


def make_recorder(parts: OpentsdbParts, config: Config, store: Store, now_ms: Callable[[], int]) -> SeriesRecorder:
    """Make the recorder from the configuration."""
    width = config.salt_width
    meta_writer = None
    if config.track_series:
        builder = TreeBuilder(parts.trees, lambda: now_ms() // 1000)
        meta_writer = MetaWriter(
            store,
            config.meta_table,
            width,
            lambda: now_ms() // 1000,
            with_meta=config.describe_series,
            on_new=builder.insert if config.grow_trees else None,
        )
    index_writer = make_index_writer(config, store, parts.index)
    return SeriesRecorder(parts.cache, now_ms, index_writer, meta_writer)
