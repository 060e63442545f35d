"""Whose settings tortured daemons have: their user's, but for what would touch the user's own."""

from pathlib import Path

import pytest

from tsd.config import Backend, Config, keys
from tsd.torture.faults import ANYWHERE, ON_HBASE, BadPlan, chosen
from tsd.torture.run import Plan
from tsd.torture.settings import EAGER, OWN, SHORT, TABLES, config_of, has_window, tortured


def test_all_keys_are_known() -> None:
    assert {*OWN, *SHORT, *EAGER, *TABLES} <= keys().keys()


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
