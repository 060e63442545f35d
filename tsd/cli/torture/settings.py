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
# Whatever the user has: nobody else may get in, nothing of theirs is touched, and what is sent is taken, and answered.
# A test goes over all settings: one that is not here cannot refuse our clients anything.
OWN = {
    "tsd.network.port": "0",
    "tsd.network.bind": "127.0.0.1",
    "tsd.network.reuse_port": "false",
    "tsd.network.backlog": "1024",  # where few may wait, the kernel resets some of those who come in a gust
    "tsd.network.allow": "",
    "tsd.network.proxy_protocol": "",  # what does not begin with its header is hung up on
    "tsd.network.connections_per_address": "0",
    "tsd.network.line_timeout": "0",
    "tsd.network.unfinished_memory": "67108864",  # some leave their lines unfinished
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
    "tsd.quota.account_lines_per_second": "0",
    "tsd.quota.account_new_names_per_minute": "0",
    "tsd.quota.exempt": "",
    "tsd.uid.new_per_minute": "0",
    "tsd.ingest.max_series": "0",
    "tsd.ingest.reply_buffer": "1048576",  # each refused line is to be answered
    "tsd.ingest.reply_memory": "67108864",
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
    "tsd.http.header_tag": "",
    "tsd.http.staticroot": "",  # like all files that are named, it may be named from another folder
    "tsd.query.timeout": "0",
    "tsd.query.allow_simultaneous_duplicates": "true",
    "tsd.query.limits.bytes.default": "0",
    "tsd.query.limits.data_points.default": "0",
    "tsd.query.limits.overrides.config": "",
    "tsd.query.memory_limit": "536870912",
    "tsd.storage.fix_duplicates": "true",  # or rows with two values of one time are not read: some are sent
    "tsd.canary.enable": "false",  # its series is nobody's
    "tsd.rollups.enable": "false",  # their tables stand in a file
    "tsd.rollups.config": "",
    "tsd.core.histograms.config": "",
    "tsd.journal.path": "",
    "tsd.log.level": "info",
    "tsd.log.format": "json",
}
# No less than this: a run brings many names, and a window of an hour is not written because the journal is full.
LEAST = {
    "tsd.journal.max_bytes": 64 << 20,
    "tsd.storage.uid.width.metric": 3,
    "tsd.storage.uid.width.tagk": 3,
    "tsd.storage.uid.width.tagv": 3,
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
    given |= {key: str(max(getattr(config, keys()[key].name), least)) for key, least in LEAST.items()}
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
