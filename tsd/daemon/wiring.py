"""Wiring: the only module that chooses the storage engine; names of tables, and their creation.

Commands use `opened_store`, `make_uids` and `configured_reader`; `tsd.daemon.layouts` builds the tables.
"""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import trio

from tsd.codec.opentsdb.cell import FAMILY
from tsd.codec.opentsdb.histogram import LAST_ID, SIMPLE
from tsd.codec.opentsdb.rollup import Interval, Rollups, default_config, parse_config
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.config.loader import (
    Given,
    bigtable_address,
    bigtable_emulator,
    cassandra_hosts,
    gateways,
    key_layout,
    name_rules,
    state_folder,
    versions_gateways,
)
from tsd.config.settings import Backend, Config, Mode
from tsd.config.state_dir import STATE, folder_errors
from tsd.daemon.settings import elapsed_ms, now_ms
from tsd.errors import BadConfig, NoTable, TsdError
from tsd.lazy import LazyModule
from tsd.query.model import AGGREGATORS
from tsd.store import Family, Store, Table, VersionedCells, check_tables
from tsd.store.scheduling import IngestLoad
from tsd.tables.opentsdb import layout as opentsdb
from tsd.tables.opentsdb.reader import SummarySources
from tsd.tables.opentsdb.resolver import AutoCreate
from tsd.tables.opentsdb.rollup_progress import ROLLUPS_FILE, RollupProgress, reset_progress
from tsd.tables.opentsdb.rollup_sums import intervals_to_build
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.opentsdb.summaries import SummaryRules
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.reading import PointReader

if TYPE_CHECKING:
    from tsd.store.bigtable import engine as bigtable
    from tsd.store.bigtable import session as bigtable_session
    from tsd.store.cassandra import engine as cassandra
    from tsd.store.cassandra import keys as cassandra_keys
    from tsd.store.cassandra import session as cassandra_session
    from tsd.store.hbase import engine as hbase
    from tsd.store.rocksdb import engine as rocksdb
    from tsd.tables.entity import form as entity_form
    from tsd.tables.entity import tables as entity_tables
    from tsd.tables.heroic import layout as heroic
    from tsd.tables.kairosdb import layout as kairosdb
    from tsd.tables.tall import layout as tall
else:  # a command uses one engine and seldom entities; the others' drivers take a tenth of a second to import
    bigtable = LazyModule("tsd.store.bigtable.engine")
    bigtable_session = LazyModule("tsd.store.bigtable.session")
    cassandra = LazyModule("tsd.store.cassandra.engine")
    cassandra_keys = LazyModule("tsd.store.cassandra.keys")
    cassandra_session = LazyModule("tsd.store.cassandra.session")
    hbase = LazyModule("tsd.store.hbase.engine")
    rocksdb = LazyModule("tsd.store.rocksdb.engine")
    entity_form = LazyModule("tsd.tables.entity.form")
    entity_tables = LazyModule("tsd.tables.entity.tables")
    heroic = LazyModule("tsd.tables.heroic.layout")
    kairosdb = LazyModule("tsd.tables.kairosdb.layout")
    tall = LazyModule("tsd.tables.tall.layout")


def tables(config: Config) -> list[Table]:
    """Return OpenTSDB's tables, as its own script creates them, and those of rollups; or those of another layout.
    Raise BadConfig."""
    if config.has_heroic_tables:
        return heroic.heroic_tables(config.heroic_table, config.heroic_series)
    if config.has_tall_tables:
        return tall.tall_tables(config.tall_tables(), config.tall_series)
    return [
        Table(config.data_table, (Family(FAMILY),)),
        Table(config.uid_table, (Family(ID_FAMILY), Family(NAME_FAMILY))),
        Table(config.tree_table, (Family(FAMILY),)),
        Table(config.meta_table, (Family(NAME_FAMILY),)),
        *([Table(config.series_table, (Family(FAMILY),))] if config.indexes_series else []),
        *(Table(name, (Family(FAMILY),)) for name in rollup_tables(config)),
    ]


def configured_rollups(config: Config, aggregators: Iterable[str] = ()) -> Rollups | None:
    """Return the configured rollups, None if they are off. `aggregators` are all known ones. Raise BadConfig."""
    if not config.has_rollups:
        return None
    text = config.rollups_config.strip()
    if text.endswith(".json"):
        try:
            text = Path(text).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise BadConfig([f"tsd.rollups.config: {text}: cannot be read: {exc}"]) from exc
    return Rollups(
        parse_config(text.encode()) if text else default_config(config.data_table),
        config.rollups_tag_key.encode("latin-1"),
        config.rollups_raw_value.encode("latin-1"),
        config.rollups_tag_raw,
        config.rollups_block_derived,
        frozenset(name.lower() for name in aggregators),
    )


def configured_histograms(config: Config) -> int | None:
    """Return the id of the codec of simple histograms, None if histograms are off. Raise BadConfig."""
    text = config.histograms_config.strip()
    if not text:
        return None
    try:
        found = json.loads(Path(text).read_text("utf-8") if text.endswith(".json") else text)
    except (OSError, ValueError) as exc:
        raise BadConfig([f"tsd.core.histograms.config: {exc}"]) from exc
    if not isinstance(found, dict) or set(found) != {SIMPLE}:
        raise BadConfig(
            [f'tsd.core.histograms.config: got {text}, wanted {{"{SIMPLE}": id}}: no other codec is supported']
        )
    number = found[SIMPLE]
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= LAST_ID:
        raise BadConfig([f"tsd.core.histograms.config: {SIMPLE}: got {number!r}, wanted 0 to {LAST_ID}"])
    return number


def rollup_tables(config: Config) -> list[str]:
    """Return the tables of rollups and pre-aggregates, without the data table. Raise BadConfig."""
    configured = configured_rollups(config)
    return [name for name in configured.tables() if name != config.data_table] if configured else []


def summary_rules(config: Config) -> SummaryRules:
    """Return the rules for lines of rollups and histograms. Raise BadConfig."""
    return SummaryRules(
        name_rules(config),
        config.data_table,
        configured_rollups(config, AGGREGATORS),
        configured_histograms(config),
    )


LIBRARIES = {Backend.CASSANDRA: "cassandra", Backend.BIGTABLE: "grpc"}  # a module of what an engine's extra installs


def _check_library(backend: Backend) -> None:
    """Raise BadConfig if the engine's library is not installed: to repeat a call would not help."""
    module, extra = LIBRARIES.get(backend), backend.value
    if module is not None and find_spec(module) is None:
        raise BadConfig([f"tsd.storage.backend: {extra} lacks the module {module}: pip install 'tsd-daemon[{extra}]'"])


def check_parts(config: Config) -> None:
    """Raise BadConfig if the engine's library is not installed, or a file that the tables need cannot be used."""
    _check_library(config.backend)
    configured_rollups(config)
    configured_histograms(config)


@asynccontextmanager
async def opened_store(
    config: Config, on_loss: Callable[[str], None] = lambda _: None, load: IngestLoad | None = None
) -> AsyncIterator[Store]:
    """Open the configured store for the block. Tables of the embedded store are created; servers may be
    unavailable.

    `on_loss` is called when accepted writes that were not synced are lost; later writes are refused. Scans are
    throttled by the ingest `load`. Raise BadConfig if the engine's library is not installed.
    """
    _check_library(config.backend)
    store: Store
    may_lack_writes = False
    if config.backend is Backend.EMBEDDED:
        store = await rocksdb.EmbeddedStore.open(
            state_folder(config) / "store",
            now_ms,
            cache_bytes=config.cache_bytes,
            row_cache_bytes=config.row_cache_bytes,
            on_loss=on_loss,
            load=load,
        )
        may_lack_writes = store.may_lack_writes
    else:
        store = served_store(config)
    try:
        if config.backend is Backend.EMBEDDED:
            await store.create_tables(tables(config))
            if config.entity:
                await entity_tables.EntityTables(versioned_cells(config, store)).create()
        if may_lack_writes and config.has_opentsdb_tables:
            await SeriesIndex(store, config.series_table, key_layout(config)).outdate()
            await trio.to_thread.run_sync(reset_progress, state_folder(config) / ROLLUPS_FILE)
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def hbase_store(config: Config) -> "hbase.HBaseStore":
    """Return the store of the configured gateways, which need not answer. Close it with `aclose`."""
    return hbase.HBaseStore(
        gateways(config),
        versions_gateways=versions_gateways(config),
        connections=config.thrift_connections,
        timeout_s=config.thrift_timeout_ms / 1000,
        transport=config.thrift_transport,
        protocol=config.thrift_protocol,
        expected=tables(config),
    )


def bigtable_contact(config: Config) -> "bigtable_session.Contact":
    """Return how to reach Bigtable."""
    return bigtable_session.Contact(
        project=config.bigtable_project,
        instance=config.bigtable_instance,
        app_profile=config.bigtable_app_profile,
        credentials=config.bigtable_credentials,
        emulator=bigtable_emulator(config),
        channels=config.bigtable_channels,
        timeout_s=config.bigtable_timeout_ms / 1000,
    )


def server_setting(config: Config) -> str:
    """Return the key of the servers that a proxy may stand for, empty if the store has none: gateways of HBase, nodes
    of Cassandra, or an emulator of Bigtable."""
    if config.backend is Backend.CASSANDRA:
        return "tsd.storage.cassandra.hosts"
    if config.backend is Backend.BIGTABLE and bigtable_emulator(config):
        return "tsd.storage.bigtable.emulator"
    return "tsd.storage.hbase.thrift" if uses_hbase(config) else ""


def server_addresses(config: Config) -> list[tuple[str, int]]:
    """Return host and port of each of those servers."""
    if config.backend is Backend.CASSANDRA:
        return list(cassandra_hosts(config))
    return bigtable_address(config) if config.backend is Backend.BIGTABLE else gateways(config)


ServedStore: TypeAlias = "bigtable.BigtableStore | cassandra.CassandraStore | hbase.HBaseStore"


def served_store(config: Config) -> ServedStore:
    """Return the store on those servers, which need not answer. Close it with `aclose`."""
    if config.backend is Backend.CASSANDRA:
        return cassandra_store(config)
    if config.backend is Backend.BIGTABLE:
        changes = config.mode is not Mode.READ_ONLY
        return bigtable.BigtableStore(bigtable_contact(config), now_ms, expected=tables(config) if changes else ())
    return hbase_store(config)


async def check_store(config: Config) -> str:
    """Raise StoreError for a store that cannot be used as it is configured: credentials, names, permissions. On HBase
    and Cassandra tables may be made later: return which are missing, or an empty text."""
    async with opened_store(config) as store:
        if store.cql is not None:
            await store.cql.connect()
        try:
            await _check_tables(config, store)
        except NoTable as exc:
            if config.backend is Backend.BIGTABLE:
                raise
            return str(exc)
        if config.has_opentsdb_tables:
            await check_keys(config, store, make_uids(config, store))
    return ""


async def _check_tables(config: Config, store: Store) -> None:
    """Raise NoTable if tables of the configured layout are missing, StoreError."""
    if config.has_kairosdb_tables:
        await kairosdb.make_tables(store, config.cassandra_keyspace, now_ms).spec()
        return
    await check_tables(store, [table.name for table in tables(config)])


async def check_entities(config: Config) -> None:
    """Raise StoreError if the tables of entities are missing or keep too few versions, BadConfig for an engine without
    versions. Those of a local store are made by the daemon."""
    if has_local_store(config):
        return
    async with opened_store(config) as store:
        await entity_tables.EntityTables(versioned_cells(config, store)).check()


def cassandra_store(config: Config) -> "cassandra.CassandraStore":
    """Return the store on Cassandra, which need not answer. Close it with `aclose`."""
    return cassandra.CassandraStore(
        cassandra_contact(config),
        config.cassandra_keyspace,
        now_ms,
        lambda table: cassandra_widths(config, table),
        elapsed_ms=elapsed_ms,
        clock_limit_ms=config.cassandra_clock_limit_ms,
        longest_put_s=config.compaction_span_age_s / 2,
    )


def cassandra_contact(config: Config) -> "cassandra_session.Contact":
    """Return how to reach Cassandra."""
    return cassandra_session.Contact(
        hosts=tuple(cassandra_hosts(config)),
        consistency=config.cassandra_consistency,
        user=config.cassandra_user,
        password_file=config.cassandra_password,
        ca_file=config.cassandra_ca,
        certificate_file=config.cassandra_certificate,
        key_file=config.cassandra_key,
        timeout_s=config.cassandra_timeout_ms / 1000,
        checks_names=config.cassandra_checks_names,
    )


def cassandra_widths(config: Config, table: str) -> "cassandra_keys.Prefixes":
    """Return the prefixes of row keys that name directories and partitions of a table on Cassandra.

    A partition has the rows of one metric and salt in 18 hours (two of the four bytes of a base time). In other tables
    it has the rows that share two bytes, or a metric in tables of series.
    """
    if config.has_tall_tables:
        return tall.partition_widths(config.tall_tables(), table)
    metric = config.width_metric
    if table == config.data_table or table in rollup_tables(config):
        return cassandra_keys.Prefixes(config.salt_width + metric, config.salt_width + metric + 2)
    return cassandra_keys.Prefixes(0, metric if table in (config.meta_table, config.series_table) else 2)


def default_compression(config: Config) -> str:
    """Return the compression of new tables where none is named."""
    return "ZSTD" if config.backend is Backend.CASSANDRA else "NONE"


def store_address(config: Config) -> str:
    """Return the setting that says where the store is, empty for a local one."""
    if has_local_store(config):
        return ""
    if config.backend is Backend.BIGTABLE:
        return f"{bigtable_emulator(config)} {bigtable_contact(config).name}"
    return config.thrift if uses_hbase(config) else f"{config.cassandra_hosts} {config.cassandra_keyspace}"


def make_uids(config: Config, store: Store) -> Uids:
    """Return the UID table."""
    return opentsdb.make_uids(config, store, now_ms)


async def check_keys(config: Config, store: Store, uids: Uids) -> None:
    """Raise UnfitSettings if stored rows and UIDs have those of other settings, StoreError."""
    await opentsdb.make_key_check(config, store, uids).check()


def auto_create(config: Config) -> AutoCreate:
    """Return which kinds of unknown names get a UID."""
    return AutoCreate(config.creates_metrics, config.auto_create_tagks, config.auto_create_tagvs)


def has_local_store(config: Config) -> bool:
    """Return whether the store is a database in the state folder, which one process at a time may open."""
    return config.backend is Backend.EMBEDDED


def uses_hbase(config: Config) -> bool:
    """Return whether the store is HBase, through Thrift gateways."""
    return config.backend is Backend.HBASE


def needs_right_clock(config: Config) -> bool:
    """Return whether the store refuses writes of a process whose clock is wrong."""
    limits = config.backend is Backend.CASSANDRA and config.cassandra_clock_limit_ms > 0
    return limits and not config.has_kairosdb_tables


def uses_bigtable(config: Config) -> bool:
    """Return whether the store is Bigtable, or its emulator."""
    return config.backend is Backend.BIGTABLE


def store_name(config: Config) -> str:
    """Return a text that is the same for two configurations only if they use the same tables."""
    names = f" {config.data_table} {config.uid_table}"
    if config.has_heroic_tables or config.has_tall_tables:
        names = f" {config.heroic_table if config.has_heroic_tables else config.tall_rules}"
    if has_local_store(config):
        own = names if config.has_heroic_tables or config.has_tall_tables else ""
        return f"embedded:{os.path.realpath(state_folder(config))}{own}"
    if config.backend is Backend.CASSANDRA:
        hosts = ",".join(f"{host}:{port}" for host, port in sorted(cassandra_hosts(config)))
        return f"cassandra:{hosts} {config.cassandra_keyspace}{names}"
    if config.backend is Backend.BIGTABLE:
        return f"bigtable:{store_address(config)}{names}"
    addresses = ",".join(f"{host}:{port}" for host, port in sorted(gateways(config)))
    return f"hbase:{addresses}{names}"


def store_settings(target: str, option: str) -> list[Given] | None:
    """Return the settings of a store embedded:FOLDER hbase:HOST:PORT[,HOST:PORT] cassandra:HOST:PORT[,…] or
    bigtable:PROJECT/INSTANCE, None for a file.

    `option` is the command-line option with the text. Raise BadConfig.
    """
    kind, _, place = target.partition(":")
    keys = {
        Backend.EMBEDDED.value: "tsd.storage.path",
        Backend.HBASE.value: "tsd.storage.hbase.thrift",
        Backend.CASSANDRA.value: "tsd.storage.cassandra.hosts",
    }
    if kind == Backend.BIGTABLE.value:
        project, slash, instance = place.partition("/")
        if not project or not slash or not instance:
            raise BadConfig([f"{option}: got {target!r}, wanted bigtable:PROJECT/INSTANCE"])
        given = {"backend": kind, "bigtable.project": project, "bigtable.instance": instance}
        return [Given(option, f"tsd.storage.{key}", value) for key, value in given.items()]
    if kind in keys and place.strip():
        return [Given(option, "tsd.storage.backend", kind), Given(option, keys[kind], place)]
    if kind not in keys and os.path.exists(target) and not os.path.isdir(target):
        return None
    wanted = "embedded:FOLDER, hbase:HOST:PORT, cassandra:HOST:PORT, bigtable:PROJECT/INSTANCE or a file"
    raise BadConfig([f"{option}: got {target!r}, wanted {wanted}"])


async def configured_reader(config: Config, store: Store, uids: Uids, on_warning: Callable[[str], None]) -> PointReader:
    """Return a reader without series index, for one query. It takes rollups as far as the daemon of the state folder
    has built them, and none if it cannot read how far that is: `on_warning` gets the reason. Raise BadConfig."""
    rollups, complete = configured_rollups(config), None
    if rollups is not None and config.rollups_build:
        progress = rollup_progress(config, intervals_to_build(rollups.config))
        try:
            with folder_errors(state_folder(config), STATE):
                await progress.load()
        except TsdError as exc:
            on_warning(f"{exc}. Points are read instead of rollups")
        complete = progress.complete_until_s
    summaries = SummarySources(rollups, complete, configured_histograms(config))
    return opentsdb.make_reader(config, store, uids, summaries)


def rollup_progress(config: Config, intervals: Iterable[Interval]) -> RollupProgress:
    """Return the progress of the rollups that the daemon of the state folder builds, not read yet."""
    place = config.backend.value  # without addresses of servers, as these may change
    if config.backend is Backend.CASSANDRA:
        place = f"{place} {config.cassandra_keyspace}"
    elif config.backend is Backend.BIGTABLE:
        place = f"{place} {store_address(config)}"
    of = f"of {config.data_table} in {place}"
    tables = {one.name: f"{one.table} {of}" for one in intervals}
    return RollupProgress(state_folder(config) / ROLLUPS_FILE, tables)


OpenStore = Callable[[Config, Callable[[str], None], IngestLoad], AbstractAsyncContextManager[Store]]


def versioned_cells(config: Config, store: Store) -> VersionedCells:
    """Return the tables of entities, whose cells keep versions. Raise BadConfig for an engine without them."""
    if store.versioned_cells is None:
        wanted = (
            "wanted an engine whose cells keep versions: embedded, bigtable, or hbase with tsd.storage.hbase.thrift2"
        )
        raise BadConfig([f"tsd.entity.enabled: got tsd.storage.backend = {config.backend.value}, {wanted}"])
    return entity_form.FormedRows(
        store.versioned_cells, entity_form.RowForm(config.entity_period_s, config.entity_salt)
    )


async def create_tables(config: Config, store: Store, compression: str) -> dict[str, bool]:
    """Create the tables of the configured layout that are missing. Return all, and whether each is new. Raise
    StoreError, BadConfig."""
    if config.has_kairosdb_tables:
        made = await kairosdb.make_tables(store, config.cassandra_keyspace, now_ms).create(compression)
        return {name: name in made for name in kairosdb.TABLES}
    entities = await create_entities(config, store)
    made = await store.create_tables(tables(config), compression=compression)
    return {table.name: table.name in made for table in tables(config)} | entities


async def create_entities(config: Config, store: Store) -> dict[str, bool]:
    """Create the tables of entities, if they are configured."""
    if not config.entity:
        return {}
    made = await entity_tables.EntityTables(versioned_cells(config, store)).create()
    return {table.name: table.name in made for table in (entity_tables.ENTITIES, entity_tables.NEWEST)}
