"""Assembly of a daemon: all parts, on a store and a table layout.

Commands do not import this module, nor the daemon, so that they start fast.
"""

import socket
from collections.abc import Sequence

import trio

from tsd.api.hot import HotKeys
from tsd.config.loader import state_folder
from tsd.config.settings import Config, Mode
from tsd.daemon.builders import build_access, build_canary, build_ingest, build_server, held_s
from tsd.daemon.daemon import Daemon
from tsd.daemon.engine import build_engine
from tsd.daemon.layouts import BuildTables, TableCallbacks, build_configured_tables
from tsd.daemon.parts import CoreParts, DaemonControl, QueryParts
from tsd.daemon.settings import Clock, now_ms
from tsd.daemon.systemd import watchdog_s
from tsd.query.registry import QueryRegistry
from tsd.store import Store
from tsd.store.counted import CountedStore
from tsd.store.key_load import KeyLoad
from tsd.store.scheduling import IngestLoad
from tsd.tables.catalog import Stat
from tsd.tables.opentsdb.rollup_progress import ROLLUPS_FILE, reset_progress


def build_daemon(
    config: Config,
    store: Store,
    stop: trio.Event,
    load: IngestLoad,
    *,
    now_ms: Clock = now_ms,
    build_tables: BuildTables = build_configured_tables,
) -> Daemon:
    """Build a daemon on a store and a table layout. Raise BadConfig.

    Some parts call parts that are built after them. Such calls are closures that look up the later part when called.
    """

    def drop_caches() -> None:
        daemon.drop_caches()

    def statistics() -> list[Stat]:
        return daemon.statistics()

    def stats_tags() -> str:
        return daemon.stats_tags()

    async def stats() -> bytes:
        return await daemon.stats()

    def split_key(table: str, key: bytes) -> Sequence[bytes]:
        return tables.key_ranges.split(table, key) if tables.key_ranges else ()

    key_load = KeyLoad(split_key, now_ms)
    store = CountedStore(store, key_load)
    callbacks = TableCallbacks(lambda: ingest.writer.is_behind, drop_caches)
    tables = build_tables(config, store, now_ms, callbacks)
    if not config.rollups_build and config.mode is not Mode.READ_ONLY:
        reset_progress(state_folder(config) / ROLLUPS_FILE)
    hold_s = held_s(config, tables, shared=store.capabilities.shared)
    ingest = build_ingest(config, tables, load, now_ms, hold_s=hold_s)
    engine = build_engine(config, tables.reader, ingest.writer.write_metric, load, now_ms, open_points=ingest.unstored)
    query = QueryParts(engine, QueryRegistry(now_ms, duplicates=config.query_duplicates))
    tables.include_open_points(ingest.unstored)
    if tables.entities is not None:
        tables.entities.include_open_points(ingest.unstored)
    access = build_access(config, now_ms)
    control = DaemonControl(drop_caches, stop.set, statistics, stats_tags, stats)
    hot = HotKeys(key_load, tables.key_ranges) if tables.key_ranges else None
    parts = CoreParts(config, store, tables, ingest, query, access, control, hot, now_ms)
    server = build_server(parts)
    watchdog = watchdog_s()
    canary = build_canary(parts, socket.gethostname(), watchdog)
    daemon = Daemon(parts, server, stop, canary=canary, watchdog_s=watchdog)
    return daemon
