"""Settings of the tested daemons: the user's, with other ports, folders and tables, and short times."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from tsd.config.loader import Given, keys
from tsd.config.settings import Config
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import server_setting

TABLES = {
    "tsd.storage.hbase.data_table": "tsdb",
    "tsd.storage.hbase.uid_table": "tsdb-uid",
    "tsd.storage.hbase.tree_table": "tsdb-tree",
    "tsd.storage.hbase.meta_table": "tsdb-meta",
    "tsd.query.series_table": "tsdb-series",
    "tsd.heroic.table": "metrics",
    "tsd.heroic.series_table": "metrics-series",
    "tsd.tall.tables": "METRIC {host:32}#{ts} *",
    "tsd.tall.series_table": "tall-series",
}
# Replace the user's values: only local clients connect, the user's files are not touched, and all lines are accepted
# and answered. A test checks that no other setting can refuse these clients anything.
FORCED = {
    "tsd.network.port": "0",
    "tsd.network.bind": "127.0.0.1",
    "tsd.network.reuse_port": "false",
    "tsd.network.telnet_charset": "iso-8859-1",
    "tsd.kairosdb.dialect": "false",
    "tsd.network.backlog": "1024",  # with a short queue, the kernel resets some of many connections at once
    "tsd.network.allow": "",
    "tsd.network.proxy_protocol": "",  # connections without its header would be closed
    "tsd.network.connections_per_address": "0",
    "tsd.network.line_timeout": "0",
    "tsd.network.partial_input_memory": "67108864",  # some clients truncate their lines
    "tsd.core.connections.limit": "0",
    "tsd.core.socket.timeout": "0",
    "tsd.mode": "rw",
    "tsd.core.authentication.enable": "false",
    "tsd.auth.file": "",
    "tsd.access.anonymous": "read,write",
    "tsd.access.read_networks": "",
    "tsd.access.write_networks": "",
    "tsd.access.admin_networks": "",
    "tsd.tls.certificate": "",
    "tsd.tls.key": "",
    "tsd.tls.required": "false",
    "tsd.tls.client_ca": "",
    "tsd.tls.client_crl": "",
    "tsd.tls.client_certificate": "optional",
    "tsd.quota.lines_per_second": "0",
    "tsd.quota.new_names_per_minute": "0",
    "tsd.quota.new_names_pace": "0",
    "tsd.quota.account_lines_per_second": "0",
    "tsd.quota.account_new_names_per_minute": "0",
    "tsd.quota.exempt": "",
    "tsd.uid.new_per_minute": "0",
    "tsd.ingest.max_series": "0",
    "tsd.core.auto_create_metrics": "true",
    "tsd.core.auto_create_tagks": "true",
    "tsd.core.auto_create_tagvs": "true",
    "tsd.storage.max_tags": "8",
    "tsd.core.enable_api": "true",
    "tsd.http.request.enable_chunked": "true",
    "tsd.http.request.max_chunk": "33554432",
    "tsd.http.request.memory": "268435456",
    "tsd.http.request.timeout": "60",
    "tsd.http.trusted_proxies": "",
    "tsd.http.hosts": "*",
    "tsd.http.header_tag": "",
    "tsd.http.staticroot": "",  # files may be relative to another working folder
    "tsd.query.timeout": "0",
    "tsd.query.allow_simultaneous_duplicates": "true",
    "tsd.query.limits.bytes.default": "0",
    "tsd.query.limits.data_points.default": "0",
    "tsd.query.limits.overrides.config": "",
    "tsd.query.memory_limit": "536870912",
    "tsd.storage.fix_duplicates": "true",  # otherwise rows with two values of one time cannot be read
    "tsd.storage.cassandra.clock_limit": "500",  # most jumps are longer
    "tsd.canary.enable": "false",  # its points would count as invented
    "tsd.rollups.enable": "false",  # their tables are in a file
    "tsd.rollups.config": "",
    "tsd.rollups.build": "false",
    "tsd.entity.enabled": "false",  # its tables are not checked for lost points
    "tsd.retention.rules": "",  # their points would count as lost
    "tsd.retention.rollups": "",
    "tsd.retention.annotations": "",
    "tsd.retention.series": "",
    "tsd.core.histograms.config": "",
    "tsd.journal.path": "",
    "tsd.log.level": "info",
    "tsd.log.format": "json",
}
# At least this: a run has many names, and the journal holds a window of an hour.
MINIMUM = {
    "tsd.journal.max_bytes": 64 << 20,
    "tsd.storage.uid.width.metric": 3,
    "tsd.storage.uid.width.tagk": 3,
    "tsd.storage.uid.width.tagv": 3,
}
# Instead of defaults, with which a round would take minutes.
FAST = {
    "tsd.journal.sync_interval": "10",
    "tsd.storage.hbase.thrift.timeout": "500",
    "tsd.storage.bigtable.timeout": "500",
    "tsd.storage.cassandra.timeout": "500",
    "tsd.ingest.memory_limit": "16777216",
    "tsd.storage.cache": "16777216",
}
# Likewise, so that rows are compacted while a daemon is killed. Not if memory is measured: compaction uses some.
EAGER_COMPACTION = {
    "tsd.storage.compaction.flush_interval": "1",
    "tsd.storage.compaction.min_flush_threshold": "0",
    "tsd.storage.compaction.flush_speed": "3600",
    "tsd.storage.compaction.span_age": "10",
    "tsd.storage.blocks_age": "0",
    "tsd.storage.blocks_delay": "0",
    "tsd.storage.blocks_least_rows": "1",
}
UNDERSCORES = str.maketrans("-.", "__")
WINDOW = "tsd.storage.flush_interval"
SHORT_WINDOWS_MS = ("10", "40", "400")
LONG_WINDOWS_MS = ("1000",)  # for long rounds at full load
WINDOWS_MS = (*SHORT_WINDOWS_MS, "3600000")  # the last one leaves all points to the replay by the next daemon


def daemon_settings(config: Config, prefix: str, folder: Path, gateways: str, *, eager: bool = True) -> dict[str, str]:
    """Return the settings of a daemon with the state folder `folder` and, on servers, tables with this prefix.

    `eager`: compact rows as soon as possible.
    """
    given = {
        **FAST,
        **(EAGER_COMPACTION if eager else {}),
        **_changed(config),
        **FORCED,
        "tsd.storage.path": str(folder),
    }
    given |= {key: str(max(getattr(config, keys()[key].name), least)) for key, least in MINIMUM.items()}
    if key := server_setting(config):
        given[key] = gateways
        given |= {key: f"{prefix}{name}" for key, name in TABLES.items()}
    if config.has_kairosdb_tables:  # whose tables have the same names in each keyspace
        given["tsd.storage.cassandra.keyspace"] = f"t_{prefix}".translate(UNDERSCORES)[-48:].lstrip("_0123456789")
    return given


def has_own_window(config: Config) -> bool:
    """Return whether the user has set the write window: all daemons then have it."""
    return config.flush_interval_ms is not None


def config_of(settings: Mapping[str, str]) -> Config:
    """Return the Config of settings. Raise BadConfig."""
    return read_config(Given("tsd torture", key, value) for key, value in settings.items())[0]


def _changed(config: Config) -> dict[str, str]:
    """Return the settings that differ from their defaults."""
    usual = Config()
    values = {key: (getattr(config, field.name), getattr(usual, field.name)) for key, field in keys().items()}
    return {key: _format(value) for key, (value, default) in values.items() if value != default}


def _format(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, Enum) else value)
