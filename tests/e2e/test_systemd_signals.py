"""Signals, the watchdog with its canary, and status messages between systemd and a daemon."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_hbase, until
from tests.e2e.notify_socket import NotifySocket
from tests.peers.hbase import RunningHbase
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode

pytestmark = pytest.mark.slow
T = 1356998400
LINE = b"put sys.cpu %d 1 host=web01\n" % T
NOWHERE = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "127.0.0.1:1"}


def test_reload_applies_and_reports_fixed_settings(tmp_path: Path, notify_socket: NotifySocket) -> None:
    path = tmp_path / "tsd.conf"
    path.write_text("tsd.core.drain_timeout = 5000\n")
    with Tsd(tmp_path / "state").serve("--config", str(path), "--port", "0", env=notify_socket.env) as daemon:
        notify_socket.receive_until("READY=1")
        path.write_text("tsd.core.drain_timeout = 0\ntsd.log.level = warning\ntsd.mode = ro\n")
        daemon.signal(signal.SIGHUP)
        assert notify_socket.receive_until(r"RELOADING=1\nMONOTONIC_USEC=\d+")
        assert notify_socket.receive_until("READY=1")
        event = daemon.await_event("settings.restart_required")
        assert event["keys"] == "tsd.mode"
        path.write_text("tsd.log.level = loud\n")
        daemon.signal(signal.SIGHUP)
        assert daemon.await_event("reload.failed")["what"] == "settings"
        assert notify_socket.receive_until("READY=1")
        path.write_text("tsd.log.level = info\ntsd.core.drain_timeout = 5000\n")
        daemon.signal(signal.SIGHUP)
        assert notify_socket.receive_until("READY=1")
        assert daemon.await_event("reload.finished")["what"].split(" ")[0] == "settings"
        assert len(daemon.events("reload.finished")) == 1  # before, only warnings were logged
        assert daemon.send_lines(LINE) == b"synced 1\n"


def test_reload_during_the_start_happens_when_the_daemon_is_ready(tmp_path: Path) -> None:
    """Regression: SIGHUP ended a daemon that had not read its configuration yet."""
    path = tmp_path / "tsd.conf"
    os.mkfifo(path)
    with Tsd(tmp_path / "state").spawn("--config", str(path), "--port", "0") as daemon:
        with path.open("w") as read_first:
            daemon.signal(signal.SIGHUP)
            read_first.write("tsd.mode = rw\n")
        daemon.await_event("signal.received")
        path.write_text("tsd.mode = rw\n")
        daemon.await_ready()
        assert daemon.await_event("reload.finished")["what"].split(" ")[0] == "settings"


def test_second_sigterm_keeps_acknowledged_lines(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {**NOWHERE, "tsd.core.drain_timeout": "3600000"})
    with tsd.serve() as daemon:
        assert daemon.send_lines(LINE) == b"synced 1\n"
        daemon.signal(signal.SIGTERM)
        daemon.await_event("store.unavailable")
        assert daemon.alive
        assert daemon.stop() == 0
        assert daemon.await_event("journal.points_pending")["points"] == 1
    again = Tsd(tsd.folder)
    with again.serve() as daemon:
        daemon.await_stat("ledger.stored", 1)
    assert again.lines("sys.cpu") == [f"sys.cpu {T} 1 host=web01"]


def test_stop_not_delayed_by_clients_that_never_read(tmp_path: Path) -> None:
    with Tsd(tmp_path / "state").serve() as daemon, daemon.connect() as deaf:
        deaf.settimeout(1)
        with suppress(TimeoutError):  # until its replies fill both kernels' buffers and the daemon stops reading
            while True:
                deaf.send(b"version\n" * 8192)
        assert daemon.send_lines(LINE) == b"synced 1\n"
        assert daemon.stop() == 0
    assert Tsd(tmp_path / "state").lines("sys.cpu") == [f"sys.cpu {T} 1 host=web01"]


def watched(notify_socket: NotifySocket) -> dict[str, str]:
    """Return the environment of a service with a watchdog of four seconds."""
    return notify_socket.env | {"WATCHDOG_USEC": "4000000"}


def test_watchdog_notified_while_canary_succeeds(tmp_path: Path, notify_socket: NotifySocket) -> None:
    with Tsd(tmp_path / "state").serve(env=watched(notify_socket)) as daemon:
        until(lambda: daemon.stats()["canary.rounds"] > 1, "two rounds of the canary")
        for _ in range(3):
            notify_socket.receive_until("^WATCHDOG=1$")
        assert daemon.stats()["canary.missed"] == 0
    [series] = {line.split(" ", 3)[3] for line in Tsd(tmp_path / "state").lines("tsd.canary")}
    assert re.fullmatch(r"daemon=[0-9a-f]{8} host=\S+", " ".join(sorted(series.split())))


def test_no_canary_without_watchdog_or_if_disabled(tmp_path: Path, notify_socket: NotifySocket) -> None:
    with Tsd(tmp_path / "one").serve(env=notify_socket.env) as daemon:
        assert "canary.rounds" not in daemon.stats()
    off = {"tsd.canary.enable": "false"}
    with Tsd(tmp_path / "other", off).serve(env=watched(notify_socket)) as daemon:
        notify_socket.receive_until("^WATCHDOG=1$")
        assert "canary.rounds" not in daemon.stats()
    with Tsd(tmp_path / "third", {"tsd.canary.enable": "true"}).serve() as daemon:
        until(lambda: daemon.stats()["canary.rounds"] > 0, "a round of the canary")


def test_hbase_outage_does_not_trigger_watchdog(
    hbase: RunningHbase, tmp_path: Path, notify_socket: NotifySocket
) -> None:
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        settings = on_hbase(hbase, hbase.new_tables()) | {
            "tsd.storage.hbase.thrift": f"{proxy.host}:{proxy.port}",
            "tsd.storage.hbase.thrift.timeout": "1000",
            "tsd.core.auto_create_metrics": "false",  # does not apply to the canary's name
            "tsd.core.drain_timeout": "100",
        }
        with Tsd(tmp_path / "state", settings).serve(env=watched(notify_socket)) as daemon:
            until(lambda: daemon.stats()["canary.rounds"] > 0, "a round of the canary")
            for mode in (ProxyMode.REFUSE, ProxyMode.HANG):
                proxy.mode = mode
                rounds = daemon.stats()["canary.rounds"]
                for _ in range(9):  # more than twice the watchdog's interval
                    notify_socket.receive_until("^WATCHDOG=1$")
                assert daemon.events("watchdog.failed") == []
                proxy.mode = ProxyMode.PASS
                until(lambda rounds=rounds: daemon.stats()["canary.rounds"] > rounds + 1, "another")  # type: ignore[misc]
            assert daemon.stats()["canary.missed"] == 0
