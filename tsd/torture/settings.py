"""A user's settings → those of the daemons that are tortured: their own ports, folders and tables, and short times."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from tsd.config import Backend, Config, Given, keys, read_settings

TABLES = {
    "tsd.storage.hbase.data_table": "tsdb",
    "tsd.storage.hbase.uid_table": "tsdb-uid",
    "tsd.storage.hbase.tree_table": "tsdb-tree",
    "tsd.storage.hbase.meta_table": "tsdb-meta",
    "tsd.query.series_table": "tsdb-series",
}
# Whatever the user has: nobody else may get in, nothing of theirs is touched, and what is sent is taken.
OWN = {
    "tsd.network.port": "0",
    "tsd.network.bind": "127.0.0.1",
    "tsd.core.connections.limit": "0",
    "tsd.core.socket.timeout": "0",
    "tsd.core.enable_api": "true",
    "tsd.network.allow": "",
    "tsd.network.connections_per_address": "0",
    "tsd.network.line_timeout": "0",
    "tsd.network.reuse_port": "false",
    "tsd.mode": "rw",
    "tsd.auth.file": "",
    "tsd.access.anonymous": "read,write",
    "tsd.access.read_networks": "",
    "tsd.access.write_networks": "",
    "tsd.access.admin_networks": "",
    "tsd.tls.certificate": "",
    "tsd.tls.key": "",
    "tsd.tls.required": "false",
    "tsd.tls.client_ca": "",
    "tsd.quota.lines_per_second": "0",
    "tsd.quota.new_names_per_minute": "0",
    "tsd.quota.account_lines_per_second": "0",
    "tsd.quota.account_new_names_per_minute": "0",
    "tsd.uid.new_per_minute": "0",
    "tsd.ingest.max_series": "0",
    "tsd.canary.enable": "false",  # its series is nobody's
    "tsd.core.auto_create_metrics": "true",
    "tsd.core.auto_create_tagks": "true",
    "tsd.core.auto_create_tagvs": "true",
    "tsd.rollups.enable": "false",  # their tables stand in a file
    "tsd.journal.path": "",
    "tsd.log.level": "info",
    "tsd.log.format": "json",
}
# Where the user has the default: a round would take minutes with it.
SHORT = {
    "tsd.journal.sync_interval": "10",
    "tsd.storage.hbase.thrift.timeout": "500",
    "tsd.ingest.memory_limit": "16777216",
    "tsd.storage.cache": "16777216",
}
# Likewise, so that rows are rewritten while a daemon dies. Not where memory is measured: what that takes varies.
EAGER = {
    "tsd.storage.compaction.flush_interval": "1",
    "tsd.storage.compaction.min_flush_threshold": "0",
    "tsd.storage.compaction.flush_speed": "3600",
}
WINDOW = "tsd.storage.flush_interval"
BRISK_MS = ("10", "40", "400")
LASTING_MS = ("1000",)  # where much is sent for long
WINDOWS_MS = (*BRISK_MS, "3600000")  # the last one leaves all of a life to the next one's replay


def tortured(config: Config, prefix: str, folder: Path, gateways: str, *, eager: bool = True) -> dict[str, str]:
    """The settings of a daemon with its state in `folder`, and on HBase with tables of this prefix; `eager` to rewrite
    rows."""
    given = {**SHORT, **(EAGER if eager else {}), **_changed(config), **OWN, "tsd.storage.path": str(folder)}
    if config.backend is Backend.HBASE:
        given["tsd.storage.hbase.thrift"] = gateways
        given |= {key: f"{prefix}{name}" for key, name in TABLES.items()}
    return given


def has_window(config: Config) -> bool:
    """Whether the user wants a window that is not the default one: then all lives have it."""
    return config.flush_interval_ms != Config().flush_interval_ms


def config_of(settings: Mapping[str, str]) -> Config:
    """The Config of settings; raises BadConfig."""
    return read_settings(Given("tsd torture", key, value) for key, value in settings.items())[0]


def _changed(config: Config) -> dict[str, str]:
    """What is not as by default."""
    usual = Config()
    values = {key: (getattr(config, field.name), getattr(usual, field.name)) for key, field in keys().items()}
    return {key: _spelt(value) for key, (value, default) in values.items() if value != default}


def _spelt(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, Enum) else value)
