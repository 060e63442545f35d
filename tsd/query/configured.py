"""The query engine as the configuration has it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tsd import histograms, rollups
from tsd.config import Backend, Config, layout
from tsd.query.beside import Beside
from tsd.query.engine import Engine, Flush, Settings
from tsd.query.histograms import HistogramReader
from tsd.query.limits import Bounds, Limits, read_overrides
from tsd.query.plan import PlanRules
from tsd.query.rollups import RollupReader
from tsd.query.running import Registry
from tsd.series_index import SeriesIndex
from tsd.store import Store
from tsd.uids import Uids


def make_index(config: Config, store: Store) -> SeriesIndex | None:
    """The index of the data table's series, if there is to be one."""
    return SeriesIndex(store, config.series_table, layout(config)) if config.indexes_series else None


def make_engine(
    config: Config,
    store: Store,
    uids: Uids,
    index: SeriesIndex | None = None,
    *,
    flush: Flush,
    now_ms: Callable[[], int],
    remembers: bool = False,
) -> Engine:
    """One for the data table; `flush` and `now_ms` as Engine has them; `remembers`: it will be asked more than once.
    Raises BadConfig."""
    form, settings = layout(config), _settings(config)
    if remembers:
        settings = replace(settings, remember_bytes=config.remember_memory)
    return Engine(
        store,
        config.data_table,
        uids,
        form,
        index=index,
        summaries=_beside(config, store, uids),
        settings=settings,
        flush=flush,
        now_ms=now_ms,
    )


def _beside(config: Config, store: Store, uids: Uids) -> Beside:
    """The readers of rollups and histograms that are configured."""
    form, table = layout(config), config.data_table
    summed = rollups.configured(config)
    simple_id = histograms.configured(config)
    return Beside(
        None if summed is None else RollupReader(store, table, form, summed),
        None if simple_id is None else HistogramReader(store, table, form, uids, simple_id),
    )


def make_registry(config: Config, now_ms: Callable[[], int]) -> Registry:
    """Where its queries are listed."""
    return Registry(now_ms, duplicates=config.query_duplicates)


def _settings(config: Config) -> Settings:
    overrides = read_overrides(Path(config.query_overrides)) if config.query_overrides else ()
    return Settings(
        Limits(
            Bounds(config.query_bytes, config.query_points),
            overrides,
            size_override=config.query_bytes_override,
            points_override=config.query_points_override,
            timeout_ms=config.query_timeout_ms,
        ),
        PlanRules(config.expansion_limit, config.skip_unresolved_tagvs, config.fuzzy_filter),
        memory_bytes=config.query_memory,
        at_once=config.queries_at_once,
        scans=config.query_scans if config.backend is Backend.HBASE else 1,
    )
