"""What a daemon learns of its series as it writes them, and what of it goes into the meta table."""

from collections.abc import Callable

from tsd.codec.columns import Columns, series_ends
from tsd.codec.times import HOUR_S
from tsd.config import Backend, Config, layout
from tsd.ingest.indexing import Indexer
from tsd.ingest.series import SeriesTable
from tsd.ingest.tracking import Tracker
from tsd.metadata.described import UidMetas
from tsd.metadata.growth import Grower
from tsd.metadata.known import KnownSeries
from tsd.metadata.latest import Latest
from tsd.metadata.trees import Trees
from tsd.query.last import LastPoints
from tsd.series_index import SeriesIndex
from tsd.store import Store
from tsd.uids import Uids

TRUST_S = 60  # in tables that others may write to, what is known of a series holds so long


class SeriesWatch:
    """The series of one daemon: which there are, and their newest points."""

    def __init__(
        self,
        config: Config,
        store: Store,
        table: SeriesTable,
        uids: Uids,
        now_ms: Callable[[], int],
        index: SeriesIndex | None = None,
    ) -> None:
        """New series are entered into `index`."""
        form = layout(config)
        shared = config.backend is Backend.HBASE
        self._table = table
        self._now_ms = now_ms
        self.latest = Latest(form.salt_width)
        self.known = KnownSeries(
            store,
            form,
            self.latest,
            lambda: now_ms() // 1000,
            data_table=config.data_table,
            uid_table=config.uid_table,
            meta_table=config.meta_table if config.track_series else None,
            look_back_h=config.lookup_look_back_h,
            trust_s=TRUST_S if shared else None,
            index=index,
        )
        self.points = LastPoints(
            store,
            config.data_table,
            form,
            self.latest,
            now_ms,
            look_back_h=config.last_look_back_h,
            trust_ms=TRUST_S * 1000 if shared else None,
        )
        self.indexer = Indexer(index, form.salt_width) if index else None
        self.tracker: Tracker | None = None
        if config.track_series:
            metas = UidMetas(store, config.uid_table)
            trees = Trees(store, config.tree_table, lambda: now_ms() // 1000)
            grower = Grower(trees, uids, metas, form.widths, lambda: now_ms() // 1000)
            self.tracker = Tracker(
                store,
                config.meta_table,
                form.salt_width,
                lambda: now_ms() // 1000,
                with_meta=config.describe_series,
                on_new=grower.plant if config.grow_trees else None,
            )

    async def note(self, columns: Columns) -> None:
        """Take note of a written window's points, sorted by series and time. Raises StoreError."""
        next_hour_ms = (self._now_ms() // 1000 // HOUR_S + 1) * HOUR_S * 1000
        await self.latest.note(columns, self._table, next_hour_ms)
        numbers = columns.series[series_ends(columns)]
        if self.indexer is not None:
            await self.indexer.note(numbers, self._table)
        if self.tracker is not None:
            await self.tracker.note(numbers, self._table)

    def forget(self) -> None:
        """Look into the store again from now on: names or points may have gone."""
        self.latest.drop()
        self.known.forget()
