"""Tables that were written with other settings of UIDs and salts: a daemon, an import and check-config name those."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_cassandra, on_hbase
from tests.peers.cassandra import RunningCassandra
from tests.peers.hbase import RunningHbase
from tsd.store import Put

pytestmark = pytest.mark.slow
T = 1356998400
LINES = [f"m {T} {host} host=h{host}" for host in range(40)]
SALTED = {"tsd.storage.salt.width": "1"}
FOUND = {
    "a salt": (SALTED, "tsd.storage.salt.width = 0 "),
    "wider UIDs": ({"tsd.storage.uid.width.tagv": "4"}, "'tagv' with 3 bytes, wanted 4 (tsd.storage.uid.width.tagv)"),
}


def imported(tsd: Tsd) -> Tsd:
    assert tsd.run("import", "-", stdin="".join(line + "\n" for line in LINES).encode()).status == 0
    return tsd


def check_refused(tsd: Tsd, wrong: Mapping[str, str], found: str) -> None:
    """Check that a daemon with wrong settings does not start, and that nothing is written with them."""
    other = tsd.but({**tsd.settings, **wrong})
    with other.spawn() as daemon:
        assert daemon.wait() == 2
        assert found in daemon.log_text()
        assert daemon.events("daemon.ready") == []
    refused = other.run("import", "-", stdin=b"m %d 7 host=h0\n" % (T + 1))
    assert refused.status == 3
    assert found in refused.err
    with tsd.serve() as daemon:
        daemon.send_lines(b"put m %d 8 host=h0\n" % (T + 2))
    assert sorted(tsd.lines("m")) == sorted([*LINES, f"m {T + 2} 8 host=h0"])


@pytest.mark.parametrize(("wrong", "found"), FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("blocks", ["false", "true"])
def test_daemon_does_not_start_on_an_embedded_store(
    tmp_path: Path, blocks: str, wrong: dict[str, str], found: str
) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "true", "tsd.storage.blocks": blocks})
    check_refused(imported(tsd), wrong, found)


def test_journal_is_kept_for_the_right_settings(tmp_path: Path) -> None:
    """Regression: it was replayed to rows with another salt, where no query found its points."""
    tsd = imported(Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "true"}))
    with tsd.serve() as daemon:
        daemon.send_lines(b"put m %d 9 host=h1\n" % (T + 3))
        daemon.kill()
    with tsd.but(SALTED).spawn() as daemon:
        assert daemon.wait() == 2
    with tsd.serve() as daemon:
        daemon.flush()
    assert f"m {T + 3} 9 host=h1" in tsd.lines("m")


def test_damaged_rows_do_not_stop_a_start(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    assert tsd.run("create-tables").status == 0
    tsd.put_directly("tsdb", *(Put(b"row%d" % n, b"t:\0\0", b"\1") for n in range(30)))
    tsd.put_directly("tsdb-uid", Put(b"name", b"id:tagv", b"\0\0\0\0\1"))
    with tsd.serve() as daemon:
        assert daemon.send_lines(b"put m %d 1 host=a\n" % T) == b"synced 1\n"
        daemon.flush()


def test_daemon_does_not_start_on_hbase(hbase: RunningHbase, tmp_path: Path) -> None:
    tsd = imported(Tsd(tmp_path / "state", on_hbase(hbase, hbase.new_tables())))
    checked = tsd.run("check-config")
    assert checked.status == 0, checked
    for wrong, found in FOUND.values():
        check_refused(tsd, wrong, found)
        refused = tsd.but(wrong).run("check-config")
        assert refused.status == 3
        assert found in refused.err


def test_daemon_does_not_start_with_another_number_of_salts(hbase: RunningHbase, tmp_path: Path) -> None:
    tsd = imported(Tsd(tmp_path / "state", on_hbase(hbase, hbase.new_tables(), SALTED)))
    check_refused(tsd, {"tsd.storage.salt.buckets": "7"}, "tsd.storage.salt.buckets = 20,")


def test_daemon_does_not_start_on_cassandra(cassandra: RunningCassandra, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", on_cassandra(cassandra))
    assert tsd.run("create-tables").status == 0
    check_refused(imported(tsd), *FOUND["a salt"])
