"""Whose settings tortured daemons have: their user's, but for what would touch the user's own."""

from pathlib import Path

import pytest

from tsd.config import Backend, Config, keys
from tsd.torture.faults import ANYWHERE, ON_HBASE, BadPlan, chosen
from tsd.torture.run import Plan
from tsd.torture.settings import EAGER, LEAST, OWN, SHORT, TABLES, WINDOW, config_of, has_window, tortured

# What a user has of these can refuse our clients nothing.
HARMLESS = {
    "how connections are made: all are taken, of whoever it is": (
        "tsd.network.tcp_no_delay", "tsd.network.keep_alive", "tsd.network.ipv6_prefix",
    ),
    "bounds on what our clients never send, or do not ask": (
        "tsd.ingest.max_line", "tsd.tls.minimum", "tsd.tls.handshake_timeout", "tsd.tls.hsts", "tsd.access.health",
        "tsd.access.metrics", "tsd.core.enable_ui", "tsd.http.request.cors_domains", "tsd.http.request.cors_headers",
        "tsd.http.query.allow_delete", "tsd.query.last.look_back", "tsd.search.look_back", "tsd.no_diediedie",
    ),
    "what names may be and get, beyond ours": (
        "tsd.core.tag.allow_specialchars", "tsd.core.uid.random_metrics", "tsd.core.meta.enable_tsuid_tracking",
        "tsd.core.meta.enable_realtime_ts", "tsd.core.meta.enable_realtime_uid", "tsd.core.tree.enable_processing",
        "tsd.rollups.agg_tag_key", "tsd.rollups.tag_raw", "tsd.rollups.raw_agg_tag_value",
        "tsd.rollups.block_derived",
    ),
    "how rows are laid out, kept, found and made one cell: what is to be tried": (
        "tsd.storage.backend", "tsd.storage.salt.width", "tsd.storage.salt.buckets", "tsd.storage.join_points",
        "tsd.storage.enable_compaction", "tsd.storage.compaction.max_concurrent_flushes",
        "tsd.storage.compaction.queue_limit", "tsd.storage.hbase.thrift.connections",
        "tsd.storage.hbase.thrift.transport", "tsd.storage.hbase.thrift.protocol", "tsd.query.series_index",
        "tsd.uid.lru.name.size", "tsd.uid.lru.id.size", "tsd.uid.cache_ttl", "tsd.ingest.series_idle",
        "tsd.core.drain_timeout",
    ),
    "how queries are answered: the same points to ours": (
        "tsd.query.corrected", "tsd.query.at_once", "tsd.query.scans", "tsd.query.remember_memory",
        "tsd.query.filter.expansion_limit", "tsd.query.skip_unresolved_tagvs", "tsd.query.enable_fuzzy_filter",
        "tsd.query.limits.bytes.allow_override", "tsd.query.limits.data_points.allow_override",
        "tsd.http.show_stack_trace",
    ),
    "what is told and kept of lines that are refused for good reason": (
        "tsd.rejected.max_bytes", "tsd.rejected.per_second", "tsd.stats.canonical", "tsd.core.stats_with_port",
    ),
}  # fmt: skip
PLACES = ("tsd.storage.path", "tsd.storage.hbase.thrift")  # set by `tortured` itself
SECURED = Config(
    announcing="10.0.0.0/8", forwarding="10.0.0.0/8", network_allow="10.0.0.0/8", authentication=True,
    auth_file="/srv/accounts", anonymous="", tls_certificate="/srv/tsd.pem", tls_key="/srv/key.pem", tls_required=True,
    tls_client_ca="/srv/ca.pem", tls_client_certificate="required", enable_chunked=False, max_chunk=4096,
)  # fmt: skip


def test_of_every_setting_it_is_known_what_becomes_of_it() -> None:
    """One that is new stands in none of these: can it refuse clients that send much, and cannot say who they are?"""
    harmless = [key for some in HARMLESS.values() for key in some]
    places = [*OWN, *LEAST, *SHORT, *EAGER, *TABLES, *PLACES, WINDOW, *harmless]
    assert sorted(places) == sorted(keys())


def test_of_a_secured_daemon_nothing_is_left_that_keeps_anybody_out() -> None:
    """It was refused: `tsd.core.authentication.enable` stayed, and wanted the file that was taken away."""
    own = config_of(tortured(SECURED, "", Path("/x"), ""))
    usual = config_of(tortured(Config(), "", Path("/x"), ""))
    assert own == usual


def test_what_is_too_little_is_raised() -> None:
    user = Config(max_tags=1, width_metric=1, width_tagk=2, width_tagv=4, journal_max_bytes=1 << 20, thrift="gw:9090")
    own = config_of(tortured(user, "", Path("/x"), ""))
    assert (own.max_tags, own.width_metric, own.width_tagk, own.width_tagv) == (8, 3, 3, 4)
    assert own.journal_max_bytes == 64 << 20
    most = Config(width_metric=8, width_tagk=8, width_tagv=8, salt_width=8, max_tags=2046)
    assert config_of(tortured(most, "", Path("/x"), "")).max_tags == 8


def test_a_users_settings_stay_but_for_what_is_theirs_alone() -> None:
    user = Config(
        port=4242, path="/srv/tsd", journal_path="/srv/journal", backend=Backend.HBASE, thrift="gw:9090", salt_width=1,
        data_table="tsdb", auth_file="/srv/accounts", tls_certificate="/srv/tsd.pem", tls_required=True,
        thrift_timeout_ms=9000, auto_create_metrics=False, rollups_enable=True, join_points=False,
    )  # fmt: skip
    own = config_of(tortured(user, "mine-", Path("/x"), "127.0.0.1:1"))
    assert (own.port, own.path, own.journal_path, own.thrift) == (0, "/x", "", "127.0.0.1:1")
    assert (own.data_table, own.uid_table, own.series_table) == ("mine-tsdb", "mine-tsdb-uid", "mine-tsdb-series")
    assert (own.salt_width, own.thrift_timeout_ms, own.join_points) == (1, 9000, False)
    assert (own.auth_file, own.tls_certificate, own.tls_required) == ("", "", False)
    assert own.auto_create_metrics
    assert not own.rollups_enable


def test_a_window_of_the_users_is_kept() -> None:
    assert has_window(Config(flush_interval_ms=1000))
    assert not has_window(Config())


def test_rounds_are_shared_by_lanes() -> None:
    plan = Plan({"kill": 5, "full": 1}, 0, 4)
    assert sorted((fault, list(rounds)) for fault, rounds in plan.shares()) == [
        ("full", [0]), ("kill", [0, 1]), ("kill", [2, 3, 4]),
    ]  # fmt: skip


def test_faults_are_named_with_their_rounds() -> None:
    assert chosen("", 3, hbase=False) == dict.fromkeys(ANYWHERE, 3)
    assert chosen("", 3, hbase=True) == dict.fromkeys([*ANYWHERE, *ON_HBASE], 3)
    with pytest.raises(BadPlan, match="got fault 'refuse', wanted some of kill, full, clock"):
        chosen("refuse", 3, hbase=False)
    with pytest.raises(BadPlan, match="got 'kill=0', wanted kill=ROUNDS"):
        chosen("kill=0", 3, hbase=False)
