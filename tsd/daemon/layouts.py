"""The configured table layout: its tables, and what compacts, expires and summarises its rows.

Commands use `row_compactor`, `rollup_builder` and `build_configured_tables`; the store comes from `tsd.daemon.wiring`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.rollup import Rollups
from tsd.codec.opentsdb.rowkey import LAST_BASE
from tsd.config.loader import key_layout, name_rules, state_folder
from tsd.config.retention import parse_rules
from tsd.config.settings import Config
from tsd.daemon.settings import Clock, elapsed_ms
from tsd.daemon.wiring import (
    auto_create,
    configured_rollups,
    has_local_store,
    rollup_progress,
    summary_rules,
    versioned_cells,
)
from tsd.errors import BadConfig, CorruptRow, StoreError
from tsd.lazy import LazyModule
from tsd.store import Store
from tsd.tables import Tables
from tsd.tables.clock_guard import ClockGuard
from tsd.tables.opentsdb import layout as opentsdb
from tsd.tables.opentsdb.compaction.compactor import SETTLE_MS, RowCompactor
from tsd.tables.opentsdb.compaction.hour_folding import FoldRules, HourFolding
from tsd.tables.opentsdb.compaction.queue import RowQueue
from tsd.tables.opentsdb.compaction.scheduler import RECENT_S, CompactionRate, CompactionScheduler, log_corrupt_row
from tsd.tables.opentsdb.data_table import configured_data_table
from tsd.tables.opentsdb.resolver import UidResolver
from tsd.tables.opentsdb.rollup_builder import BuildRules, RollupBuilder
from tsd.tables.opentsdb.rollup_sums import intervals_to_build
from tsd.tables.opentsdb.rollup_task import DAEMON_PAUSE_RATIO, RollupTask, log_unread_rollups
from tsd.tables.opentsdb.series_recorder import make_recorder
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.opentsdb.writer import CellWriter, HourBlocks
from tsd.tables.retention_task import ExpiringTables, RetentionTask
from tsd.tables.writing import OnPoints

if TYPE_CHECKING:
    from tsd.tables.entity import layout as entity
    from tsd.tables.heroic import layout as heroic
    from tsd.tables.kairosdb import layout as kairosdb
    from tsd.tables.tall import layout as tall
else:  # a command uses one layout, and seldom entities
    entity = LazyModule("tsd.tables.entity.layout")
    heroic = LazyModule("tsd.tables.heroic.layout")
    kairosdb = LazyModule("tsd.tables.kairosdb.layout")
    tall = LazyModule("tsd.tables.tall.layout")

COMPACTION_QUEUE_ROWS = 3_000_000  # of the open hour and waiting for compaction; `tsd compact` finds other rows
LATE_QUEUE_ROWS = 1_000_000  # with late points
FOLDED_HOURS = 500_000  # of metrics, waiting to be folded into blocks; `tsd compact` finds others
COMPACTION_ROUND_ROWS = 10_000  # most rows of one round


class TableCallbacks(NamedTuple):
    """Callbacks of a table layout into parts that are built later."""

    is_writer_behind: Callable[[], bool]
    on_change: Callable[[], None]  # another process renamed or deleted names: drop all caches


NO_CALLBACKS = TableCallbacks(lambda: False, lambda: None)  # of a command, which has neither a writer nor caches
BuildTables = Callable[[Config, Store, Clock, TableCallbacks], Tables]


def build_opentsdb_tables(config: Config, store: Store, now_ms: Clock, callbacks: TableCallbacks) -> Tables:
    """Build OpenTSDB's table layout. Raise BadConfig."""
    parts = opentsdb.make_parts(config, store, now_ms)
    formats = summary_rules(config)
    compactor = compaction_scheduler(config, store, now_ms, callbacks.is_writer_behind)
    recorder = make_recorder(parts, config, store, now_ms)
    on_points: OnPoints = recorder.record
    on_held: OnPoints = partial(recorder.record, held=True)
    retention = daemon_retention(config, store, parts, formats.rollups, now_ms, callbacks.is_writer_behind)
    if retention is not None:
        on_points, on_held = retention.observing(on_points), retention.observing(on_held)
    rollup_task = daemon_rollups(config, store, parts.uids, now_ms)
    if rollup_task is not None:
        on_points, on_held = rollup_task.observing(on_points), rollup_task.observing(on_held)
    writer = CellWriter(
        store,
        formats,
        join=config.join_points,
        on_cells=compactor.record if compactor else None,
        on_points=on_points,
        on_held=on_held,
        index=parts.index,
        blocks=hour_blocks(config, store),
    )
    resolver = UidResolver(parts.uids, key_layout(config), auto_create(config))
    daemon = opentsdb.DaemonParts(resolver, writer, compactor, retention, rollup_task)
    return opentsdb.build(parts, config, store, now_ms, callbacks.on_change, formats, daemon)


def build_kairosdb_tables(config: Config, store: Store, now_ms: Clock, _: TableCallbacks) -> Tables:
    """Build KairosDB's table layout. Raise BadConfig."""
    settings = kairosdb.KairosTableSettings(
        config.cassandra_keyspace,
        config.kairosdb_shared,
        kairosdb.tag_indexed(config.kairosdb_tag_indexed),
        config.creates_metrics,
        name_rules(config),
    )
    return kairosdb.build(store, settings, now_ms)


def build_heroic_tables(config: Config, store: Store, now_ms: Clock, callbacks: TableCallbacks) -> Tables:
    """Build Heroic's table layout."""
    settings = heroic.HeroicTableSettings(
        config.heroic_table,
        config.heroic_series,
        config.resource_tags,
        config.creates_metrics,
    )
    return heroic.build(store, settings, now_ms, layout_retention(config, store, now_ms, callbacks))


def build_tall_tables(config: Config, store: Store, now_ms: Clock, callbacks: TableCallbacks) -> Tables:
    """Build the layout of rows of events or days."""
    settings = tall.TallTableSettings(config.tall_tables(), config.tall_series, config.creates_metrics)
    return tall.build(store, settings, now_ms, layout_retention(config, store, now_ms, callbacks))


def build_configured_tables(
    config: Config, store: Store, now_ms: Clock, callbacks: TableCallbacks = NO_CALLBACKS
) -> Tables:
    """Build the configured table layout, with entities if they are configured. Raise BadConfig."""
    build: BuildTables = build_opentsdb_tables
    if config.has_kairosdb_tables:
        build = build_kairosdb_tables
    elif config.has_heroic_tables:
        build = build_heroic_tables
    elif config.has_tall_tables:
        build = build_tall_tables
    tables = build(config, store, now_ms, callbacks)
    if not config.entity:
        return tables
    cells = versioned_cells(config, store)
    return entity.with_entities(config, cells, tables, now_ms, required=not has_local_store(config))


def row_compactor(
    config: Config,
    store: Store,
    now_ms: Callable[[], int],
    on_corrupt: Callable[[CorruptRow], None],
    *,
    dry: bool = False,
    settle_ms: int = SETTLE_MS,
) -> RowCompactor:
    """Return a compactor of the data table. `dry`: it writes nothing. `settle_ms` is for stores that need it."""
    return RowCompactor(
        configured_data_table(config, store),
        MergeRules(fix_duplicates=config.fix_duplicates),
        now_ms,
        on_corrupt,
        settle_ms=0 if store.capabilities.ascending_timestamps else settle_ms,
        span_age_ms=config.compaction_span_age_s * 1000,
        dry=dry,
    )


def compaction_scheduler(
    config: Config, store: Store, now_ms: Callable[[], int], is_writer_behind: Callable[[], bool]
) -> CompactionScheduler | None:
    """Return what compacts rows in a daemon, None if it is off. It pauses while `is_writer_behind`."""
    if not config.enable_compaction:
        return None
    # A daemon has time: it waits until the old cells of a row can be deleted together.
    waits_s = config.compaction_span_age_s if store.stamped_cells is not None else 0
    compactor = row_compactor(config, store, now_ms, log_corrupt_row, settle_ms=max(SETTLE_MS, waits_s * 1000))
    return CompactionScheduler(
        RowQueue(key_layout(config), COMPACTION_QUEUE_ROWS, now_ms() // 1000),
        compactor,
        CompactionRate(
            config.compaction_interval_s,
            config.compaction_threshold,
            COMPACTION_ROUND_ROWS,
            config.compaction_speed,
        ),
        is_writer_behind,
        lambda: now_ms() // 1000,
        hour_folding(config, store),
        late=RowQueue(key_layout(config), LATE_QUEUE_ROWS, LAST_BASE) if compactor.makes_requests else None,
        recent_s=waits_s or RECENT_S,
    )


def hour_folding(config: Config, store: Store) -> HourFolding | None:
    """Return what folds past hours into blocks, None if nothing does."""
    if not config.blocks or store.column_blocks is None:
        return None
    rules = FoldRules(FOLDED_HOURS, config.blocks_delay_s, config.blocks_least_rows, config.blocks_age_s)
    return HourFolding(store.column_blocks, config.data_table, key_layout(config), rules)


def hour_blocks(config: Config, store: Store) -> HourBlocks | None:
    """Return how a daemon writes hours straight to blocks, None if it does not."""
    if not config.blocks or not config.enable_compaction or store.column_blocks is None:
        return None
    return HourBlocks(store.column_blocks, key_layout(config).pairs_start, config.blocks_least_rows)


def daemon_retention(
    config: Config,
    store: Store,
    parts: opentsdb.OpentsdbParts,
    rollups: Rollups | None,
    now_ms: Clock,
    is_writer_behind: Callable[[], bool],
) -> RetentionTask | None:
    """Return the task that deletes expired points, None if nothing expires. It pauses while `is_writer_behind`."""
    retention = opentsdb.make_retention(config, store, parts.uids, rollups)
    if not retention.policy.expires:
        return None

    async def on_expired(prefix: bytes, stop_s: int) -> None:
        await parts.cache.forget_before(prefix[key_layout(config).salt_width :], stop_s)

    further = expiring_tables(config, store, now_ms)
    return RetentionTask(retention, clock_guard(config), now_ms, is_writer_behind, further, on_expired)


def layout_retention(config: Config, store: Store, now_ms: Clock, callbacks: TableCallbacks) -> RetentionTask | None:
    """Return the task that deletes expired points from other tables than OpenTSDB's, None if nothing expires."""
    if not parse_rules(config.retention_rules).expires:
        return None
    further = expiring_tables(config, store, now_ms)
    return RetentionTask(None, clock_guard(config), now_ms, callbacks.is_writer_behind, further)


def expiring_tables(config: Config, store: Store, now_ms: Clock) -> list[ExpiringTables]:
    """Return the tables, other than OpenTSDB's, from which points expire by tsd.retention.rules. Raise BadConfig."""
    rules = parse_rules(config.retention_rules)
    found: list[ExpiringTables] = []
    if config.has_tall_tables:
        found.append(tall.make_retention(store, config.tall_tables(), config.tall_series, rules))
    if config.has_heroic_tables:
        found.append(heroic.make_retention(store, config.heroic_table, config.heroic_series, rules))
    if config.entity:
        found.append(entity.make_retention(config, versioned_cells(config, store), now_ms))
    return found


def rollup_builder(
    config: Config,
    store: Store,
    uids: Uids,
    names: Sequence[str],
    now_ms: Clock,
    *,
    pause_ratio: float,
    on_retry: Callable[[StoreError], None],
    on_warning: Callable[[str], None],
) -> RollupBuilder:
    """Return what writes the rollups of some intervals, by name; without names, of all that can be computed. Raise
    BadConfig."""
    rollups = configured_rollups(config)
    if rollups is None:
        raise BadConfig(["tsd.rollups.enable: rollups are off: set it, or tsd.rollups.build"])
    policy = opentsdb.retention_policy(config)

    def keep_s(metric: str) -> int | None:
        rule = policy.points.find(metric)
        return rule.keep_s if rule else None

    rules = BuildRules(rollups, intervals_to_build(rollups.config, names), keep_s, pause_ratio)
    return RollupBuilder(
        configured_data_table(config, store),
        uids,
        opentsdb.make_points_reader(config, store, uids),
        rules,
        now_ms,
        on_retry=on_retry,
        on_warning=on_warning,
    )


def daemon_rollups(config: Config, store: Store, uids: Uids, now_ms: Clock) -> RollupTask | None:
    """Return the task that writes rollups, None if it is off. Raise BadConfig."""
    rollups = configured_rollups(config)
    if rollups is None or not config.rollups_build:
        return None
    intervals = intervals_to_build(rollups.config)
    progress = rollup_progress(config, intervals)

    def builder(names: Sequence[str]) -> RollupBuilder:
        return rollup_builder(
            config, store, uids, names, now_ms,
            pause_ratio=DAEMON_PAUSE_RATIO, on_retry=lambda _: None, on_warning=log_unread_rollups,
        )  # fmt: skip

    return RollupTask(builder, intervals, progress, config.salt_width, lambda: now_ms() // 1000)


def clock_guard(config: Config) -> ClockGuard:
    """Return the guard of the wall clock that deletes old points."""
    return ClockGuard(state_folder(config) / "retention.json", elapsed_ms)
