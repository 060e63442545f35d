"""What settings contradict each other, or do not fit their engine or layout."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tsd.codec.opentsdb.rowkey import LONGEST_BIGTABLE_KEY, most_tags
from tsd.codec.text import illegal_character
from tsd.config.bigtable import key_file_problem
from tsd.config.layouts import NO_PERIOD
from tsd.config.limits import MIN_REJECTED_BYTES, exemptions
from tsd.config.loader import (
    Check,
    bigtable_emulator,
    cassandra_hosts,
    credential_name,
    gateways,
    journal_folder,
    key_layout,
    state_folder,
    versions_gateways,
)
from tsd.config.retention import parse_age, parse_rules
from tsd.config.settings import Backend, Config
from tsd.config.state_dir import STATE_FOLDERS

LAYOUT_NAMES = {"kairosdb": "KairosDB's", "heroic": "Heroic's", "tall": "tall"}
BIGTABLE_NAME = re.compile("[a-z][a-zA-Z0-9:.-]*")  # of projects and instances
KEYSPACE = re.compile("[a-zA-Z][a-zA-Z0-9_]{0,47}")  # of Cassandra


def _server_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with the servers of HBase and Cassandra: the keys concerned, and a sentence."""
    try:
        gateways(config)
    except ValueError as exc:
        yield set(), f"tsd.storage.hbase.thrift: {exc}"
    try:
        versions_gateways(config)
    except ValueError as exc:
        yield set(), f"tsd.storage.hbase.thrift2: {exc}"
    try:
        cassandra_hosts(config)
    except ValueError as exc:
        yield set(), f"tsd.storage.cassandra.hosts: {exc}"
    span_s, limit_s = config.compaction_span_age_s, config.cassandra_clock_limit_ms / 1000
    if config.backend is Backend.CASSANDRA and span_s < 4 * limit_s:
        least = f"{4 * limit_s:g} or more, four times tsd.storage.cassandra.clock_limit"
        concerned = {"tsd.storage.backend", "tsd.storage.cassandra.clock_limit"}
        yield concerned, f"tsd.storage.compaction.span_age: got {span_s}, wanted {least}"


def _bigtable_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is missing or wrong in the settings of Bigtable: the keys concerned, and a sentence."""
    for key, text in (
        ("project", config.bigtable_project),
        ("instance", config.bigtable_instance),
    ):
        if config.backend is Backend.BIGTABLE and not BIGTABLE_NAME.fullmatch(text):
            wanted = f"got {text!r}, wanted letters, digits and hyphens: tsd.storage.backend = bigtable needs it"
            yield {"tsd.storage.backend"}, f"tsd.storage.bigtable.{key}: {wanted}"
    found = key_layout(config)
    most = (LONGEST_BIGTABLE_KEY - found.pairs_start) // found.widths.pair
    if config.backend is Backend.BIGTABLE and config.max_tags > most:
        limit = f"a row key on Bigtable has up to {LONGEST_BIGTABLE_KEY} bytes"
        wanted = f"got {config.max_tags}, wanted {most} or less: {limit}"
        yield {"tsd.storage.max_tags", "tsd.storage.salt.width"}, f"tsd.storage.max_tags: {wanted}"
    try:
        bigtable_emulator(config)
    except ValueError as exc:
        yield set(), f"tsd.storage.bigtable.emulator: {exc}"
    file = config.bigtable_credentials
    if config.backend is not Backend.BIGTABLE or not file or credential_name(file) is not None:
        return
    if problem := key_file_problem(file):
        yield {"tsd.storage.backend"}, f"tsd.storage.bigtable.credentials: {problem}"


def _layout_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield settings that do not fit the table layout: the keys concerned, and a sentence."""
    if config.kairosdb_dialect and not (config.kairosdb or config.has_kairosdb_tables):
        yield {"tsd.kairosdb.enabled"}, "tsd.kairosdb.dialect: got true, which requires tsd.kairosdb.enabled = true"
    if not KEYSPACE.fullmatch(config.cassandra_keyspace):
        wanted = f"got {config.cassandra_keyspace!r}, wanted a letter and up to 47 letters, digits and underscores"
        yield set(), f"tsd.storage.cassandra.keyspace: {wanted}"
    if config.has_kairosdb_tables and config.backend is not Backend.CASSANDRA:
        wanted = "got kairosdb, which requires tsd.storage.backend = cassandra"
        yield {"tsd.storage.backend"}, f"tsd.storage.layout: {wanted}"
    if config.track_series and (config.has_heroic_tables or config.has_tall_tables):
        key = "tsd.core.meta.enable_tsuid_tracking"
        wanted = f"requires tsd.storage.layout = opentsdb, and it is {config.layout}"
        yield {"tsd.storage.layout", key}, f"{key}: {wanted}"
    if not config.has_opentsdb_tables:
        yield from _unsupported_problems(config)


def _unsupported_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield settings of what only OpenTSDB's tables have: the keys concerned, and a sentence."""
    name = f"{LAYOUT_NAMES[config.layout]} tables"
    for key, given in (
        ("tsd.rollups.enable", config.rollups_enable),
        ("tsd.rollups.build", config.rollups_build),
        ("tsd.core.histograms.config", config.histograms_config.strip()),
    ):
        if given:
            yield {"tsd.storage.layout"}, f"{key}: {name} (tsd.storage.layout) have no place for them"
    instead = "wanted a ttl in each point" if config.has_kairosdb_tables else "wanted tsd.retention.rules"
    for key, given in (
        ("tsd.retention.rules", config.has_kairosdb_tables and config.retention_rules.strip()),
        ("tsd.retention.rollups", config.retention_rollups.strip()),
        ("tsd.retention.annotations", config.retention_annotations.strip()),
        ("tsd.retention.series", config.retention_series.strip()),
    ):
        if given:
            yield {"tsd.storage.layout", key}, f"{key}: has no effect on {name}, {instead}"


def _heroic_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with the names of Heroic's tables: the keys concerned, and a sentence."""
    if not config.has_heroic_tables:
        return
    if config.heroic_table == config.heroic_series or not config.heroic_table or not config.heroic_series:
        got = f"got {config.heroic_table!r} and {config.heroic_series!r}, wanted two different names"
        yield {"tsd.heroic.table", "tsd.heroic.series_table"}, f"tsd.heroic.series_table: {got}"


def _tall_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with the tables of rows of events or days: the keys concerned, and a sentence."""
    if not config.has_tall_tables:
        return
    try:
        rules = config.tall_tables()
    except ValueError as exc:
        yield {"tsd.tall.tables"}, f"tsd.tall.tables: {exc}"
        return
    for rule in rules:
        if config.backend is Backend.CASSANDRA and not rule.template.prefix_bytes:
            wanted = "wanted a width of each tag, as in {host:32}: on Cassandra the first bytes of keys make partitions"
            got = f"tsd.tall.tables: {rule.table}: got {rule.template.shown()}, {wanted}"
            yield {"tsd.tall.tables", "tsd.storage.backend"}, got
    if not config.tall_series or config.tall_series in [rule.table for rule in rules]:
        got = f"got {config.tall_series!r}, wanted another name than the tables of tsd.tall.tables have"
        yield {"tsd.tall.tables", "tsd.tall.series_table"}, f"tsd.tall.series_table: {got}"


def _entity_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with the tables of entities: the keys concerned, and a sentence."""
    try:
        if (period := config.entity_period.strip()) not in ("", NO_PERIOD) and parse_age(period) is None:
            yield set(), f"tsd.entity.period: got {period!r}, wanted {NO_PERIOD} for no period"
    except ValueError as exc:
        yield set(), f"tsd.entity.period: {exc}; or {NO_PERIOD}"
    tag = config.entity_tag.encode("latin-1", "replace")
    if not tag or illegal_character(tag):
        yield set(), f"tsd.entity.tag: got {config.entity_tag!r}, wanted the name of a tag"


def _client_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with origins, names, exemptions and the log of refused lines: keys, and a sentence."""
    origins = [origin.strip() for origin in config.cors_domains.split(",")]
    if "*" in origins and len(origins) > 1:
        wanted = f"got {config.cors_domains}, wanted * alone, which allows all origins, or no *"
        yield {"tsd.http.request.cors_domains"}, f"tsd.http.request.cors_domains: {wanted}"
    try:
        config.allow_specialchars.encode("latin-1")
    except UnicodeEncodeError:
        got = config.allow_specialchars
        yield set(), f"tsd.core.tag.allow_specialchars: got {got!r}, wanted characters of ISO-8859-1 only"
    try:
        exemptions(config.quota_exempt)
    except ValueError as exc:
        yield set(), f"tsd.quota.exempt: {exc}; wanted networks as 10.0.0.0/8, and accounts as @NAME"
    if 0 < config.rejected_bytes < MIN_REJECTED_BYTES:
        wanted = f"got {config.rejected_bytes}, wanted {MIN_REJECTED_BYTES} or more, or 0"
        yield {"tsd.rejected.max_bytes"}, f"tsd.rejected.max_bytes: {wanted}"


def _folder_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield that the journal's folder has other files of the state folder: a restoration would remove them with it."""
    if not config.journal_path.strip():
        return
    state, journal = (Path(os.path.realpath(folder)) for folder in (state_folder(config), journal_folder(config)))
    parts = [state / name for name in (*STATE_FOLDERS, "rejected") if name != "journal"]
    if journal == state or any(map(journal.is_relative_to, parts)):
        wanted = f"wanted a folder of its own: state folder {state} has other files there"
        yield {"tsd.journal.path", "tsd.storage.path"}, f"tsd.journal.path: got {config.journal_path!r}, {wanted}"


def _retention_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with the rules of retention: the keys concerned, and a sentence."""
    for key, read in (
        ("rules", lambda: parse_rules(config.retention_rules)),
        ("rollups", lambda: parse_rules(config.retention_rollups, intervals=True)),
        ("annotations", lambda: config.retention_annotations and parse_age(config.retention_annotations)),
        ("series", lambda: config.retention_series and parse_age(config.retention_series)),
    ):
        try:
            read()
        except ValueError as exc:
            yield set(), f"tsd.retention.{key}: {exc}"


def _table_problems(config: Config) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with the names and row keys of OpenTSDB's tables: the keys concerned, and a sentence."""
    tables = [config.data_table, config.uid_table, config.tree_table, config.meta_table]
    if len(set(tables)) != len(tables) or "" in tables:
        keys = {f"tsd.storage.hbase.{table}_table" for table in ("data", "uid", "tree", "meta")}
        yield keys, f"tsd.storage.hbase.*_table: got {', '.join(tables)}, wanted four different names"
    if config.indexes_series and config.series_table in (*tables, ""):
        wanted = "wanted another name than tsd.storage.hbase.*_table have"
        yield {"tsd.query.series_table"}, f"tsd.query.series_table: got {config.series_table!r}, {wanted}"
    widths = {f"tsd.storage.uid.width.{kind}" for kind in ("metric", "tagk", "tagv")}
    if config.width_metric > 7 and config.random_metrics:
        yield widths, "tsd.core.uid.random_metrics: requires tsd.storage.uid.width.metric of 7 or less"
    most = most_tags(key_layout(config))
    if config.max_tags > most:
        yield (
            {"tsd.storage.max_tags", "tsd.storage.salt.width", *widths},
            f"tsd.storage.max_tags: got {config.max_tags}, wanted {most} or less: a row key has no room for more tags",
        )


CONTRADICTIONS: Sequence[Check] = (
    _server_problems,
    _bigtable_problems,
    _layout_problems,
    _heroic_problems,
    _tall_problems,
    _entity_problems,
    _client_problems,
    _folder_problems,
    _retention_problems,
    _table_problems,
)
