"""Whose settings tortured daemons have: their user's, but for what would touch the user's own."""

from pathlib import Path

import pytest

from tsd.cli.torture.options import ANYWHERE, ON_BIGTABLE, ON_SERVERS, BadFaults, parse_faults
from tsd.cli.torture.run import TorturePlan
from tsd.cli.torture.settings import (
    EAGER_COMPACTION,
    FAST,
    FORCED,
    MINIMUM,
    TABLES,
    WINDOW,
    config_of,
    daemon_settings,
    has_own_window,
)
from tsd.config.loader import keys
from tsd.config.settings import Backend, Config

# No value of these settings can refuse anything to the clients of a run.
HARMLESS = {
    "how connections are made: all are accepted": (
        "tsd.network.ipv6_prefix",
    ),
    "bounds on what our clients never send, or do not ask": (
        "tsd.tls.minimum", "tsd.tls.hsts", "tsd.access.health",
        "tsd.access.metrics", "tsd.core.enable_ui", "tsd.http.request.cors_domains", "tsd.http.request.cors_headers",
        "tsd.http.query.allow_delete", "tsd.no_diediedie",
        "tsd.kairosdb.enabled", "tsd.heroic.enabled",
    ),
    "what names may be and get, beyond ours": (
        "tsd.core.tag.allow_specialchars", "tsd.core.uid.random_metrics", "tsd.core.meta.enable_tsuid_tracking",
        "tsd.core.meta.enable_realtime_ts", "tsd.core.meta.enable_realtime_uid", "tsd.core.tree.enable_processing",
        "tsd.rollups.agg_tag_key", "tsd.rollups.tag_raw", "tsd.rollups.raw_agg_tag_value",
        "tsd.rollups.block_derived",
    ),
    "how rows are laid out, kept, found and made one cell: what is to be tried": (
        "tsd.storage.backend", "tsd.storage.salt.width", "tsd.storage.salt.buckets", "tsd.storage.join_points",
        "tsd.storage.hold_open_hours", "tsd.storage.blocks", "tsd.storage.enable_compaction",
        "tsd.storage.hbase.thrift.connections",
        "tsd.storage.cassandra.keyspace", "tsd.storage.cassandra.consistency", "tsd.storage.cassandra.user",
        "tsd.storage.cassandra.password", "tsd.storage.cassandra.tls.ca", "tsd.storage.cassandra.tls.check_names",
        "tsd.storage.cassandra.tls.certificate", "tsd.storage.cassandra.tls.key",
        "tsd.storage.hbase.thrift.transport", "tsd.storage.hbase.thrift.protocol", "tsd.query.series_index",
        "tsd.uid.lru.name.size", "tsd.uid.lru.id.size", "tsd.uid.cache_ttl", "tsd.ingest.series_ttl",
        "tsd.core.drain_timeout", "tsd.journal.gather_interval",
    ),
    "how queries are answered: the same points to ours": (
        "tsd.query.corrected", "tsd.query.max_concurrent", "tsd.query.cache_memory", "tsd.storage.row_cache",
        "tsd.query.filter.expansion_limit", "tsd.query.skip_unresolved_tagvs", "tsd.query.enable_fuzzy_filter",
        "tsd.query.limits.bytes.allow_override", "tsd.query.limits.data_points.allow_override",
        "tsd.http.show_stack_trace",
    ),
    "an engine on which torture does not run": (
        "tsd.storage.bigtable.project", "tsd.storage.bigtable.instance", "tsd.storage.bigtable.app_profile",
        "tsd.storage.bigtable.credentials", "tsd.storage.bigtable.channels",
        "tsd.storage.layout", "tsd.storage.kairosdb.shared", "tsd.storage.kairosdb.tag_indexed_metrics",
        "tsd.heroic.resource_tags",
        "tsd.entity.tag", "tsd.entity.period", "tsd.entity.salt", "tsd.storage.hbase.thrift2",
    ),
    "what is told and kept of lines that are refused for good reason": (
        "tsd.rejected.max_bytes", "tsd.stats.canonical", "tsd.core.stats_with_port",
    ),
}  # fmt: skip
PLACES = (  # set by `tortured` itself
    "tsd.storage.path", "tsd.storage.hbase.thrift", "tsd.storage.cassandra.hosts", "tsd.storage.bigtable.emulator",
)  # fmt: skip
SECURED = Config(
    proxy_protocol_networks="10.0.0.0/8", trusted_proxies="10.0.0.0/8", network_allow="10.0.0.0/8", authentication=True,
    auth_file="/srv/accounts", anonymous="", tls_certificate="/srv/tsd.pem", tls_key="/srv/key.pem", tls_required=True,
    tls_client_ca="/srv/ca.pem", tls_client_certificate="required", enable_chunked=False, max_chunk=4096,
)  # fmt: skip


def test_every_setting_has_a_rule() -> None:
    """One that is new stands in none of these: can it refuse clients that send much, and cannot say who they are?"""
    harmless = [key for group in HARMLESS.values() for key in group]
    places = [*FORCED, *MINIMUM, *FAST, *EAGER_COMPACTION, *TABLES, *PLACES, WINDOW, *harmless]
    assert sorted(places) == sorted(keys())


def test_security_settings_are_removed() -> None:
    """Regression: `tsd.core.authentication.enable` stayed, and required the file that was taken away."""
    own = config_of(daemon_settings(SECURED, "", Path("/x"), ""))
    usual = config_of(daemon_settings(Config(), "", Path("/x"), ""))
    assert own == usual


def test_limits_that_are_too_low_are_raised() -> None:
    user = Config(max_tags=1, width_metric=1, width_tagk=2, width_tagv=4, journal_max_bytes=1 << 20, thrift="gw:9090")
    own = config_of(daemon_settings(user, "", Path("/x"), ""))
    assert (own.max_tags, own.width_metric, own.width_tagk, own.width_tagv) == (8, 3, 3, 4)
    assert own.journal_max_bytes == 64 << 20
    most = Config(width_metric=8, width_tagk=8, width_tagv=8, salt_width=8, max_tags=2046)
    assert config_of(daemon_settings(most, "", Path("/x"), "")).max_tags == 8


def test_other_settings_of_the_user_are_kept() -> None:
    user = Config(
        port=4242, path="/srv/tsd", journal_path="/srv/journal", backend=Backend.HBASE, thrift="gw:9090", salt_width=1,
        data_table="tsdb", auth_file="/srv/accounts", tls_certificate="/srv/tsd.pem", tls_required=True,
        thrift_timeout_ms=9000, auto_create_metrics=False, rollups_enable=True, join_points=False,
    )  # fmt: skip
    own = config_of(daemon_settings(user, "mine-", Path("/x"), "127.0.0.1:1"))
    assert (own.port, own.path, own.journal_path, own.thrift) == (0, "/x", "", "127.0.0.1:1")
    assert (own.data_table, own.uid_table, own.series_table) == ("mine-tsdb", "mine-tsdb-uid", "mine-tsdb-series")
    assert (own.salt_width, own.thrift_timeout_ms, own.join_points) == (1, 9000, False)
    assert (own.auth_file, own.tls_certificate, own.tls_required) == ("", "", False)
    assert own.auto_create_metrics
    assert not own.rollups_enable


def test_window_set_by_the_user_is_kept() -> None:
    assert has_own_window(Config(flush_interval_ms=1000))
    assert not has_own_window(Config())


def test_rounds_are_divided_among_lanes() -> None:
    plan = TorturePlan({"kill": 5, "full": 1}, 0, 4)
    assert sorted((fault, list(rounds)) for fault, rounds in plan.shares()) == [
        ("full", [0]), ("kill", [0, 1]), ("kill", [2, 3, 4]),
    ]  # fmt: skip


def test_faults_are_named_with_their_rounds() -> None:
    assert parse_faults("", 3, servers=False) == dict.fromkeys(ANYWHERE, 3)
    assert parse_faults("", 3, servers=True) == dict.fromkeys([*ANYWHERE, *ON_SERVERS], 3)
    assert parse_faults("", 3, servers=True, bigtable=True) == dict.fromkeys([*ANYWHERE, *ON_SERVERS, *ON_BIGTABLE], 3)
    assert parse_faults("pause=2", 3, servers=True) == {"pause": 2}
    with pytest.raises(BadFaults, match=r"'errors'.*\boutage, pause"):
        parse_faults("errors", 3, servers=True)
    with pytest.raises(BadFaults, match=r"'refuse'.*\bkill\b"):
        parse_faults("refuse", 3, servers=False)
    with pytest.raises(BadFaults, match="'kill=0'"):
        parse_faults("kill=0", 3, servers=False)
