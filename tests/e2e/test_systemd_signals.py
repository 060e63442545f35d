"""What passes between systemd and a daemon that serves: signals, the watchdog and its canary, words on what goes on."""

import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_hbase, until
from tests.e2e.notices import Notices
from tests.peers.hbase import RunningHbase
from tsd.torture.proxy import FaultyProxy, Mode

pytestmark = pytest.mark.slow
T = 1356998400
LINE = b"put sys.cpu %d 1 host=web01\n" % T
NOWHERE = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "127.0.0.1:1"}


def test_settings_are_read_again_and_those_that_cannot_change_are_named(tmp_path: Path, notices: Notices) -> None:
    path = tmp_path / "tsd.conf"
    path.write_text("tsd.core.drain_timeout = 5000\n")
    with Tsd(tmp_path / "state").serve("--config", str(path), "--port", "0", env=notices.env) as daemon:
        notices.take_until("READY=1")
        path.write_text("tsd.core.drain_timeout = 0\ntsd.log.level = warning\ntsd.mode = ro\n")
        daemon.signal(signal.SIGHUP)
        assert notices.take_until(r"RELOADING=1\nMONOTONIC_USEC=\d+")
        assert notices.take_until("READY=1")
        told = daemon.await_event("settings have changed that only a restart can make act")
        assert told["keys"] == "tsd.mode"
        path.write_text("tsd.log.level = loud\n")
        daemon.signal(signal.SIGHUP)
        assert daemon.await_event("not read again; what was read before holds")["what"] == "settings"
        assert notices.take_until("READY=1")
        path.write_text("tsd.log.level = info\ntsd.core.drain_timeout = 5000\n")
        daemon.signal(signal.SIGHUP)
        assert notices.take_until("READY=1")
        assert daemon.await_event("read again")["what"].split(" ")[0] == "settings"
        assert len(daemon.events("read again")) == 1  # before, only warnings were logged
        assert daemon.tell(LINE) == b"synced 1\n"


def test_a_second_sigterm_ends_at_once_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {**NOWHERE, "tsd.core.drain_timeout": "3600000"})
    with tsd.serve() as daemon:
        assert daemon.tell(LINE) == b"synced 1\n"
        daemon.signal(signal.SIGTERM)
        daemon.await_event("the store does not take cells; points wait in the journal")
        assert daemon.alive
        assert daemon.stop() == 0
        assert daemon.await_event("points wait in the journal for the next start")["points"] == 1
    again = Tsd(tsd.folder)
    with again.serve() as daemon:
        daemon.await_stat("ledger.stored", 1)
    assert again.lines("sys.cpu") == [f"sys.cpu {T} 1 host=web01"]


def test_an_end_is_not_held_up_by_clients_that_never_read(tmp_path: Path) -> None:
    with Tsd(tmp_path / "state").serve() as daemon, daemon.connect() as deaf:
        deaf.settimeout(1)
        with suppress(TimeoutError):  # until its answers fill both kernels' buffers, and it is not read any more
            while True:
                deaf.send(b"version\n" * 8192)
        assert daemon.tell(LINE) == b"synced 1\n"
        assert daemon.stop() == 0
    assert Tsd(tmp_path / "state").lines("sys.cpu") == [f"sys.cpu {T} 1 host=web01"]


def watched(notices: Notices, seconds: float = 4) -> dict[str, str]:
    """The environment of a service that systemd watches."""
    return notices.env | {"WATCHDOG_USEC": str(int(seconds * 1_000_000))}


def test_the_watchdog_is_fed_while_a_point_comes_back(tmp_path: Path, notices: Notices) -> None:
    with Tsd(tmp_path / "state").serve(env=watched(notices)) as daemon:
        until(lambda: daemon.stats()["canary.rounds"] > 1, "two rounds of the canary")
        for _ in range(3):
            notices.take_until("^WATCHDOG=1$")
        assert daemon.stats()["canary.missed"] == 0
    [series] = {line.split(" ", 3)[3] for line in Tsd(tmp_path / "state").lines("tsd.canary")}
    assert re.fullmatch(r"daemon=[0-9a-f]{8} host=\S+", series)


def test_without_a_watchdog_or_where_that_is_set_there_is_no_canary(tmp_path: Path, notices: Notices) -> None:
    with Tsd(tmp_path / "one").serve(env=notices.env) as daemon:
        assert "canary.rounds" not in daemon.stats()
    off = {"tsd.canary.enable": "false"}
    with Tsd(tmp_path / "other", off).serve(env=watched(notices)) as daemon:
        notices.take_until("^WATCHDOG=1$")
        assert "canary.rounds" not in daemon.stats()
    with Tsd(tmp_path / "third", {"tsd.canary.enable": "true"}).serve() as daemon:
        until(lambda: daemon.stats()["canary.rounds"] > 0, "a round of the canary")


def test_an_hbase_that_is_away_or_hangs_is_no_reason_to_start_again(
    hbase: RunningHbase, tmp_path: Path, notices: Notices
) -> None:
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        settings = on_hbase(hbase, hbase.new_tables()) | {
            "tsd.storage.hbase.thrift": f"{proxy.host}:{proxy.port}",
            "tsd.storage.hbase.thrift.timeout": "1000",
            "tsd.core.auto_create_metrics": "false",  # the canary's own name is made all the same
            "tsd.core.drain_timeout": "100",
        }
        with Tsd(tmp_path / "state", settings).serve(env=watched(notices, 2)) as daemon:
            until(lambda: daemon.stats()["canary.rounds"] > 0, "a round of the canary")
            for mode in (Mode.REFUSE, Mode.STALL):
                proxy.mode = mode
                rounds = daemon.stats()["canary.rounds"]
                for _ in range(12):  # twice the watchdog's time, and more
                    notices.take_until("^WATCHDOG=1$")
                assert daemon.events("the watchdog is not fed any more: systemd will start this daemon again") == []
                proxy.mode = Mode.PASS
                until(lambda rounds=rounds: daemon.stats()["canary.rounds"] > rounds + 1, "another")  # type: ignore[misc]
            assert daemon.stats()["canary.missed"] == 0
