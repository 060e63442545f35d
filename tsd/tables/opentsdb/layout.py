"""Builds OpenTSDB's tables from the configuration: UIDs, rows of one hour per series, metadata, trees, annotations."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tsd.codec.metadata import UidMeta
from tsd.codec.names import Kind
from tsd.codec.opentsdb.meta import encode_uid_meta
from tsd.codec.opentsdb.rollup import Rollups
from tsd.config.loader import key_layout
from tsd.config.retention import parse_age, parse_rules
from tsd.config.settings import Config
from tsd.store import Store
from tsd.tables import Operation, Tables, Task
from tsd.tables.catalog import Stat
from tsd.tables.open_points import OpenPointSource
from tsd.tables.opentsdb.annotations import AnnotationRows
from tsd.tables.opentsdb.catalog import OpentsdbCatalog, UidNames, uid_stats
from tsd.tables.opentsdb.compaction.hour_folding import FoldStats
from tsd.tables.opentsdb.compaction.scheduler import CompactionScheduler
from tsd.tables.opentsdb.data_table import configured_data_table
from tsd.tables.opentsdb.kept_rollups import report_kept
from tsd.tables.opentsdb.key_check import KeyCheck
from tsd.tables.opentsdb.key_ranges import OpentsdbKeyRanges
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.opentsdb.last_points import LastPointReader
from tsd.tables.opentsdb.lookup import LookupTables, RowScanRules, SeriesFinder
from tsd.tables.opentsdb.metadata import MetadataTables, MetaTable, UidMetas
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadRules, ReadTable, SummarySources
from tsd.tables.opentsdb.retention import Retention, RetentionPolicy
from tsd.tables.opentsdb.rollup_progress import Changing, days_of
from tsd.tables.opentsdb.rollup_task import RollupTask
from tsd.tables.opentsdb.selection import FilterRules
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.opentsdb.series_rows import SeriesRows
from tsd.tables.opentsdb.summaries import HistogramChecker, RollupChecker, SummaryRules
from tsd.tables.opentsdb.trees import TreeTable
from tsd.tables.opentsdb.uid_table import COUNTERS_S, SHARED_COUNTERS_S, recheck_forever, watch_counters
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.opentsdb.unstored_newest import UnstoredNewest
from tsd.tables.retention_task import RetentionTask
from tsd.tables.writing import PointWriter, SeriesResolver

LOOKUP_LOOK_BACK_H = 6  # hours of rows that a lookup of series scans without index and meta table
LAST_LOOK_BACK_H = 2  # hours of rows that query/last scans for series that this daemon has not written
PARALLEL_SCANS = 4  # of one query, if the engine supports as many
CACHE_S = 60  # seconds that lookups cache tables that other processes may write


@dataclass(frozen=True)
class DaemonParts:
    """Parts that only a daemon has: what writes points, and what works on stored rows."""

    resolver: SeriesResolver
    writer: PointWriter
    compactor: CompactionScheduler | None
    retention: RetentionTask | None
    rollup_task: RollupTask | None

    def statistics(self) -> list[Stat]:
        """Return the statistics of the work on stored rows."""
        return [
            *compaction_stats(self.compactor),
            *(self.retention.statistics() if self.retention else []),
            *(self.rollup_task.statistics() if self.rollup_task else []),
        ]

    def operations(self) -> dict[str, Operation]:
        """Return the operations of the control socket."""
        return {
            **({"retention": self.retention.run_now} if self.retention else {}),
        }

    def connection_operations(self, connection: AsyncExitStack) -> Mapping[str, Operation]:
        """Return the operations of one connection of the control socket, which may begin what its end ends."""
        return self.rollup_task.operations(connection) if self.rollup_task else {}


@dataclass(frozen=True)
class OpentsdbParts:
    """Parts that several members of `Tables` share, one set per daemon."""

    uids: Uids
    index: SeriesIndex | None
    cache: LastPointCache  # the newest points of the series that this daemon writes
    finder: SeriesFinder
    points: LastPointReader
    uid_metas: UidMetas
    trees: TreeTable

    def drop_caches(self) -> None:
        """Drop all caches, so that names and series are read from the store again."""
        self.uids.drop_caches()
        self.cache.clear()
        self.finder.clear()


def make_parts(config: Config, store: Store, now_ms: Callable[[], int]) -> OpentsdbParts:
    """Make the shared parts from the configuration."""
    layout = key_layout(config)
    shared = store.capabilities.shared
    uids, index = make_uids(config, store, now_ms), make_index(config, store)
    cache = LastPointCache(layout.salt_width)
    uid_metas = UidMetas(store, config.uid_table)

    def now_s() -> int:
        return now_ms() // 1000

    tables = LookupTables(config.data_table, config.uid_table, config.meta_table if config.track_series else None)
    row_scans = RowScanRules(LOOKUP_LOOK_BACK_H, CACHE_S if shared else None)
    finder = SeriesFinder(store, tables, layout, cache, now_s, row_scans, index)
    points = LastPointReader(
        configured_data_table(config, store),
        cache,
        now_ms,
        look_back_h=LAST_LOOK_BACK_H,
        cache_ms=CACHE_S * 1000 if shared else None,
    )
    trees = TreeTable(store, config.tree_table, uids, uid_metas, layout.widths, now_s)
    return OpentsdbParts(uids, index, cache, finder, points, uid_metas, trees)


def build(
    parts: OpentsdbParts,
    config: Config,
    store: Store,
    now_ms: Callable[[], int],
    on_change: Callable[[], None],
    summaries: SummaryRules,
    daemon: DaemonParts,
) -> Tables:
    """Build the tables. `on_change` is called when another process renamed or deleted names: it must drop all
    caches."""
    layout, uids, codec_id = key_layout(config), parts.uids, summaries.histogram_id
    rollup_tables, task = _rollup_tables(config, summaries.rollups), daemon.rollup_task
    read = SummarySources(summaries.rollups, task.progress.complete_until_s if task else None, codec_id)
    deleting = _deleting(config, store, parts, summaries.rollups, task)
    keys = make_key_check(config, store, uids)

    async def check() -> None:
        await store.get(config.data_table, [b"\0"])
        await keys.check()
        await uids.read_counters()

    def forget_newest(table: str, rows: Collection[bytes]) -> None:
        if table == config.data_table:
            parts.cache.forget(layout, rows)

    def include_open_points(source: OpenPointSource) -> None:
        parts.points.include_unstored(UnstoredNewest(source, uids, layout.salt_width))

    meta_table = MetaTable(store, config.meta_table, layout.widths, lambda: now_ms() // 1000)
    return Tables(
        catalog=OpentsdbCatalog(store, config.uid_table, uids, layout.widths, parts.finder, parts.points),
        reader=make_reader(config, store, uids, read, index=parts.index, deleting=deleting),
        series_reader=SeriesRows(store, config.data_table),
        resolver=daemon.resolver,
        writer=daemon.writer,
        check=check,
        drop_caches=parts.drop_caches,
        statistics=lambda: [*uid_stats(uids), *daemon.statistics()],
        holds_hours=config.join_points,
        names=UidNames(store, config.uid_table, uids, layout.widths),
        metadata=MetadataTables(uids, parts.uid_metas, meta_table, layout.widths),
        trees=parts.trees,
        rollups=RollupChecker(summaries.rollups, summaries.names) if summaries.rollups else None,
        histograms=None if codec_id is None else HistogramChecker(codec_id, summaries.names),
        annotations=AnnotationRows(store, config.data_table, layout),
        key_ranges=OpentsdbKeyRanges(
            layout, uids, (config.data_table, *rollup_tables), (config.meta_table, config.series_table)
        ),
        on_change=forget_newest,
        include_open_points=include_open_points,
        required=(config.data_table, config.uid_table, *rollup_tables),
        tasks=_tasks(parts, config, daemon, on_change, is_shared=store.capabilities.shared),
        fatal_tasks=(daemon.compactor.run,) if daemon.compactor else (),
        operations=daemon.operations(),
        connection_operations=daemon.connection_operations,
    )


def _tasks(
    parts: OpentsdbParts, config: Config, daemon: DaemonParts, on_change: Callable[[], None], *, is_shared: bool
) -> dict[str, Task]:
    """Return the background tasks by name."""
    counters_s = SHARED_COUNTERS_S if is_shared else COUNTERS_S
    tasks: dict[str, Task] = {
        "names": lambda: recheck_forever(parts.uids, config.uid_cache_ttl_s, on_change),
        "UID counters": lambda: watch_counters(parts.uids, counters_s, on_change),
    }
    if (index := parts.index) is not None:
        tasks["series index"] = lambda: index.keep_complete(config.data_table)
    if daemon.retention is not None:
        tasks["retention"] = daemon.retention.run
    if daemon.rollup_task is not None:
        tasks["rollups"] = daemon.rollup_task.run
    return tasks


def _rollup_tables(config: Config, rollups: Rollups | None) -> list[str]:
    """Return the tables of rollups and pre-aggregates, without the data table."""
    return [name for name in rollups.tables() if name != config.data_table] if rollups else []


def make_reader(
    config: Config,
    store: Store,
    uids: Uids,
    summaries: SummarySources,
    *,
    index: SeriesIndex | None = None,
    deleting: Changing | None = None,
) -> OpenTsdbReader:
    """Return the reader of the data table. `deleting` is entered around deletes of rows; without it, the rollups that
    keep deleted points are logged after each."""
    filters = FilterRules(config.expansion_limit, config.skip_unresolved_tagvs, config.fuzzy_filter)
    rules = ReadRules(filters, scans=_parallel_scans(store))
    deleting = deleting or _reporting_kept(config, store, uids, summaries.rollups)
    table = ReadTable(*configured_data_table(config, store), rules, deleting)
    return OpenTsdbReader(table, uids, index=index, summaries=summaries)


def _deleting(
    config: Config, store: Store, parts: OpentsdbParts, rollups: Rollups | None, task: RollupTask | None
) -> Changing:
    """Return what a daemon enters around deletes of rows: rollups of their days are built again by `task`, and newest
    points are read again."""
    layout = key_layout(config)
    reporting = _reporting_kept(config, store, parts.uids, rollups)

    @asynccontextmanager
    async def deleting(rows: Sequence[bytes]) -> AsyncIterator[None]:
        async with task.changing(days_of(layout, rows), deleted=True) if task is not None else reporting(rows):
            parts.cache.forget(layout, rows)
            try:
                yield
            finally:  # a request may have read rows before they were deleted
                parts.cache.forget(layout, rows)

    return deleting


def _reporting_kept(config: Config, store: Store, uids: Uids, rollups: Rollups | None) -> Changing:
    """Return what is entered around deletes of rows whose rollups no daemon builds again: it logs which ones there
    are."""
    layout = key_layout(config)

    @asynccontextmanager
    async def deleting(rows: Sequence[bytes]) -> AsyncIterator[None]:
        yield
        await report_kept(store, layout, _rollup_tables(config, rollups), uids, days_of(layout, rows))

    return deleting


def make_points_reader(config: Config, store: Store, uids: Uids) -> OpenTsdbReader:
    """Return a reader of the points of whole metrics."""
    rules = ReadRules(scans=_parallel_scans(store))
    return OpenTsdbReader(ReadTable(*configured_data_table(config, store), rules), uids)


def _parallel_scans(store: Store) -> int:
    return min(PARALLEL_SCANS, store.capabilities.parallel_scans)


def make_uids(config: Config, store: Store, now_ms: Callable[[], int]) -> Uids:
    """Return the UID table."""

    def new_meta(kind: Kind) -> bytes:
        return encode_uid_meta(UidMeta(kind, created_s=now_ms() // 1000))

    return Uids(
        store,
        config.uid_table,
        key_layout(config).widths,
        random_metrics=config.random_metrics,
        name_cache=config.name_cache,
        id_cache=config.id_cache,
        describe=new_meta if config.describe_names else None,
    )


def make_key_check(config: Config, store: Store, uids: Uids) -> KeyCheck:
    """Return what compares stored row keys with the settings."""
    return KeyCheck(configured_data_table(config, store), uids)


def make_index(config: Config, store: Store) -> SeriesIndex | None:
    """Return the index of the data table's series; None if it is switched off."""
    return SeriesIndex(store, config.series_table, key_layout(config)) if config.indexes_series else None


def make_retention(config: Config, store: Store, uids: Uids, rollups: Rollups | None) -> Retention:
    """Return the retention of the configuration's rules."""
    return Retention(configured_data_table(config, store), uids, retention_policy(config), rollups)


def retention_policy(config: Config) -> RetentionPolicy:
    """Return the rules of retention."""
    age = config.retention_annotations
    return RetentionPolicy(
        parse_rules(config.retention_rules),
        parse_rules(config.retention_rollups, intervals=True),
        parse_age(age) if age else None,
        has_annotation_rule=bool(age),
    )


def compaction_stats(compactor: CompactionScheduler | None) -> list[Stat]:
    """Return the statistics of compaction, OpenTSDB's names first. Without a compactor: only the counters that OpenTSDB
    always reports."""
    if compactor is None:
        return [
            Stat("compaction.count", 0),
            Stat("compaction.duplicates", 0, "type=identical"),
            Stat("compaction.duplicates", 0, "type=variant"),
        ]
    counts = compactor.statistics()
    stats = counts.compaction
    return [
        Stat("compaction.count", stats.compacted),
        Stat("compaction.duplicates", stats.identical, "type=identical"),
        Stat("compaction.duplicates", stats.variant, "type=variant"),
        Stat("compaction.queue.size", counts.queued),
        *(Stat("compaction.errors", stats.errors[call], f"rpc={call}") for call in ("read", "put", "delete")),
        Stat("compaction.writes", stats.writes),
        Stat("compaction.deletes", stats.deletes),
        Stat("compactor.queue-full", counts.dropped),
        Stat("compactor.rows-skipped", stats.corrupt + stats.undecided, "type=corrupt"),
        Stat("compactor.rows-skipped", stats.hidden, "type=hidden"),
        Stat("compactor.oldest-seconds", counts.oldest_s),
        *_folding_stats(counts.folding),
    ]


def _folding_stats(stats: FoldStats | None) -> list[Stat]:
    if stats is None:
        return []
    return [
        Stat("compactor.folded-points", stats.points),
        Stat("compactor.hours-not-folded", stats.dropped, "type=queue-full"),
        Stat("compactor.hours-not-folded", stats.damaged, "type=damaged"),
    ]
