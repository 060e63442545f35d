"""Parts as the configuration has them, for the daemon and for commands beside it; and the wall clock."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tsd import histograms, rollups
from tsd.codec.cell import FAMILY
from tsd.codec.meta import UidMeta, encode_uid_meta
from tsd.codec.putline import NameRules
from tsd.codec.uid import ID_FAMILY, NAME_FAMILY, Kind
from tsd.config import Backend, Config, gateways, layout, state_folder
from tsd.ingest.names import Creates
from tsd.ingest.summaries import SummaryRules
from tsd.query.names import AGGREGATORS
from tsd.series_index import SeriesIndex
from tsd.store import Family, Store, Table
from tsd.store.embedded import EmbeddedStore
from tsd.store.hbase import HBaseStore
from tsd.uids import Uids


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def tables(config: Config) -> list[Table]:
    """OpenTSDB's tables, as its own script makes them, and those of rollups; raises BadConfig."""
    return [
        Table(config.data_table, (Family(FAMILY),)),
        Table(config.uid_table, (Family(ID_FAMILY), Family(NAME_FAMILY))),
        Table(config.tree_table, (Family(FAMILY),)),
        Table(config.meta_table, (Family(NAME_FAMILY),)),
        *([Table(config.series_table, (Family(FAMILY),))] if config.indexes_series else []),
        *(Table(name, (Family(FAMILY),)) for name in rollup_tables(config)),
    ]


def rollup_tables(config: Config) -> list[str]:
    """The tables of rollups and pre-aggregates, without the points' own; raises BadConfig."""
    configured = rollups.configured(config)
    return [name for name in configured.tables() if name != config.data_table] if configured else []


def needed_tables(config: Config) -> list[str]:
    """Those without which points cannot be stored; raises BadConfig."""
    return [config.data_table, config.uid_table, *rollup_tables(config)]


def summary_rules(config: Config) -> SummaryRules:
    """What lines of rollups and histograms may say; raises BadConfig."""
    return SummaryRules(
        name_rules(config),
        config.data_table,
        rollups.configured(config, AGGREGATORS),
        histograms.configured(config),
    )


@asynccontextmanager
async def opened_store(config: Config, on_loss: Callable[[str], None] = lambda _: None) -> AsyncIterator[Store]:
    """The configured store, closed at the end. The embedded one has its tables made; HBase need not be there.

    `on_loss` is told when writes that it had taken, but not synced, are gone; it takes no more then."""
    store: Store
    doubtful = False
    if config.backend is Backend.EMBEDDED:
        store = await EmbeddedStore.open(
            state_folder(config) / "store", now_ms, cache_bytes=config.cache_bytes, on_loss=on_loss
        )
        doubtful = store.may_lack_writes
    else:
        store = HBaseStore(
            gateways(config),
            connections=config.thrift_connections,
            timeout_s=config.thrift_timeout_ms / 1000,
            transport=config.thrift_transport,
            protocol=config.thrift_protocol,
        )
    try:
        if config.backend is Backend.EMBEDDED:
            await store.create_tables(tables(config))
        if doubtful:
            await SeriesIndex(store, config.series_table, layout(config)).outdate()
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def make_uids(config: Config, store: Store) -> Uids:
    """The UID table as configured."""
    return Uids(
        store,
        config.uid_table,
        layout(config).widths,
        random_metrics=config.random_metrics,
        name_cache=config.name_cache,
        id_cache=config.id_cache,
        describe=_described_now if config.describe_names else None,
    )


def _described_now(kind: Kind) -> bytes:
    """The metadata of a name that is new."""
    return encode_uid_meta(UidMeta(kind, created_s=now_ms() // 1000))


def name_rules(config: Config) -> NameRules:
    """What series may be called."""
    return NameRules(config.allow_specialchars.encode("latin-1"), config.max_tags)


def creates(config: Config) -> Creates:
    """Which unknown names get a UID."""
    return Creates(config.creates_metrics, config.auto_create_tagks, config.auto_create_tagvs)


def control_path(config: Config) -> Path:
    """Where the control socket is."""
    return state_folder(config) / "control.sock"
