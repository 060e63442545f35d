"""Notifications to systemd."""

import socket
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.unit.daemon.notify_socket import messages
from tests.unit.ingest.parts import Parts, line, make_store
from tsd.daemon.systemd import (
    EXTENSION_S,
    PROGRESS_INTERVAL_S,
    STALLED_CHECKS,
    Watchdog,
    WatchdogTimeouts,
    extend_timeout,
    notify,
    notify_soon,
)
from tsd.ingest.canary import Canary, Stage
from tsd.tables.opentsdb.series_rows import SeriesRows


def test_message_has_one_variable_a_line(systemd: socket.socket) -> None:
    notify(READY=1, STATUS="serving port 4242")
    assert messages(systemd) == ["READY=1\nSTATUS=serving port 4242"]


def test_missing_listener_is_ignored(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "absent")
    notify(READY=1)
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY=1)
    assert messages(systemd) == []


def fill(channel: socket.socket) -> int:
    """Fill the socket; return the number of messages."""
    count = 0
    while notify(STATUS="x" * 1000):
        count += 1
    return count


async def test_full_socket_does_not_block(systemd: socket.socket, autojump_clock: MockClock) -> None:
    """A send blocked the event loop."""
    async with trio.open_nursery() as nursery:
        came = fill(systemd)
        assert came > 0
        notify_soon(nursery, READY=1)
        await trio.sleep(60)
        assert len(messages(systemd)) == came
        await trio.sleep(1)
        assert messages(systemd) == ["READY=1"]


async def test_stopping_daemon_never_sends_ready(systemd: socket.socket, autojump_clock: MockClock) -> None:
    """Regression: READY=1 was retried until it was sent, even after STOPPING=1."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        came = fill(systemd)
        notify_soon(nursery, stop.is_set, READY=1)
        stop.set()
        notify_soon(nursery, STOPPING=1)
        assert len(messages(systemd)) == came
        await trio.sleep(1)
        notify_soon(nursery, stop.is_set, READY=1)
    assert messages(systemd) == ["STOPPING=1"]


async def test_extension_is_sent_again_after_a_full_socket(systemd: socket.socket, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        fill(systemd)
        nursery.start_soon(extend_timeout, lambda: 0, lambda: "0 of 3")
        await trio.sleep(PROGRESS_INTERVAL_S / 2)
        messages(systemd)
        await trio.sleep(2 * PROGRESS_INTERVAL_S)
        assert len(messages(systemd)) == 1
        nursery.cancel_scope.cancel()


async def test_extension_is_sent_while_there_is_progress(systemd: socket.socket, autojump_clock: MockClock) -> None:
    done = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(extend_timeout, lambda: done, lambda: f"{done} of 3")
        await trio.sleep(PROGRESS_INTERVAL_S / 2)
        prefix = f"EXTEND_TIMEOUT_USEC={EXTENSION_S:.0f}000000\nSTATUS="
        assert messages(systemd) == [prefix + "0 of 3"]
        done = 1
        await trio.sleep(PROGRESS_INTERVAL_S)
        assert messages(systemd) == [prefix + "1 of 3"]
        await trio.sleep(10 * PROGRESS_INTERVAL_S)
        assert messages(systemd) == []
        done = 2
        await trio.sleep(2 * PROGRESS_INTERVAL_S)
        assert messages(systemd) == [prefix + "2 of 3"]
        nursery.cancel_scope.cancel()


async def test_stall_is_logged_with_tasks(autojump_clock: MockClock) -> None:
    async def wait_for_the_store() -> None:
        await trio.sleep_forever()

    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_the_store)
            nursery.start_soon(extend_timeout, lambda: 0, lambda: "0 of 3")
            await trio.sleep(STALLED_CHECKS * PROGRESS_INTERVAL_S - 1)
            assert logs == []
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
    stalled, dump = logs
    assert (stalled["event"], stalled["status"], stalled["seconds"]) == (
        "progress.stalled",
        "0 of 3",
        STALLED_CHECKS * PROGRESS_INTERVAL_S,
    )
    assert any("wait_for_the_store" in line for line in dump["tasks"])


WATCHDOG_S = 40.0
STORE_S = 100.0


async def make_parts(folder: Path) -> Parts:
    """Return ingest with a recovered journal that does not run."""
    parts = Parts(folder, await make_store())
    parts.journal.recover()
    return parts


def watchdog_of(
    parts: Parts, canary: Canary | None = None, stop: trio.Event | None = None, watchdog_s: float | None = WATCHDOG_S
) -> Watchdog:
    stop = trio.Event() if stop is None else stop
    timeouts = WatchdogTimeouts(watchdog_s, STORE_S)
    return Watchdog(
        parts.journal, parts.writer, parts.backpressure, canary, lambda: parts.ledger.received, timeouts, stop.is_set
    )


async def test_watchdog_is_fed_while_nothing_fails(
    tmp_path: Path, systemd: socket.socket, autojump_clock: MockClock
) -> None:
    parts = await make_parts(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog_of(parts).run, "serving port 4242")
        await trio.sleep(WATCHDOG_S + 1)
        came = messages(systemd)
        nursery.cancel_scope.cancel()
    assert came.count("WATCHDOG=1") == 5
    assert came.count("STATUS=serving port 4242: 0 lines/s") == 4


async def test_without_watchdog_only_status_is_sent(
    tmp_path: Path, systemd: socket.socket, autojump_clock: MockClock
) -> None:
    parts = await make_parts(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog_of(parts, watchdog_s=None).run, "serving port 4242")
        await trio.sleep(11)
        nursery.cancel_scope.cancel()
    assert messages(systemd) == ["STATUS=serving port 4242: 0 lines/s"]


async def test_stalled_journal_stops_feeding(tmp_path: Path, systemd: socket.socket, autojump_clock: MockClock) -> None:
    parts = await make_parts(tmp_path)
    await parts.take(line(0, 1))  # the journal does not run
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog_of(parts, stop=stop).run, "serving port 4242")
        await trio.sleep(WATCHDOG_S)
        messages(systemd)
        await trio.sleep(10 * WATCHDOG_S)
        assert "WATCHDOG=1" not in messages(systemd)
        parts.journal.trouble = "No space left on device"  # a restart does not help
        await trio.sleep(WATCHDOG_S)
        came = messages(systemd)
        assert "WATCHDOG=1" in came
        [status] = {one for one in came if one.startswith("STATUS=")}
        assert parts.journal.trouble in status
        parts.journal.trouble = None
        stop.set()
        await trio.sleep(10 * WATCHDOG_S)
        assert set(messages(systemd)) == {"WATCHDOG=1"}  # a stop may take long
        nursery.cancel_scope.cancel()


class Lost:
    """A flush that does nothing, or hangs."""

    def __init__(self) -> None:
        self.hangs = False

    async def show(self, _: bytes) -> bool:
        if self.hangs:
            await trio.sleep_forever()
        return True


def canary_of(parts: Parts, lost: Lost) -> Canary:
    reader = SeriesRows(parts.store, "tsdb")
    return Canary(parts.intake, parts.resolver, reader, lost.show, "web01", "0", lambda: 1356998400000)


async def test_hanging_canary_stops_feeding(tmp_path: Path, mock_clock: MockClock) -> None:
    parts, lost = await make_parts(tmp_path), Lost()
    canary = canary_of(parts, lost)
    watchdog = watchdog_of(parts, canary)
    lost.hangs = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.journal.run)
        nursery.start_soon(canary.run_round)
        while canary.stage is not Stage.WRITTEN:
            mock_clock.jump(0.01)  # the journal waits for its interval
            await trio.lowlevel.checkpoint()
        assert watchdog.failure() is None
        mock_clock.jump(WATCHDOG_S / 2 + STORE_S - 1)
        assert watchdog.failure() is None
        parts.writer.retries += 1  # the store reports an error: the time starts again
        assert watchdog.failure() is None
        mock_clock.jump(WATCHDOG_S / 2 + STORE_S - 1)
        assert watchdog.failure() is None
        mock_clock.jump(2)
        assert watchdog.failure() is not None
        nursery.cancel_scope.cancel()


async def test_missing_canary_points_stop_feeding(tmp_path: Path) -> None:
    parts = await make_parts(tmp_path)
    canary = canary_of(parts, Lost())
    watchdog = watchdog_of(parts, canary)
    for missed in range(3):
        assert (canary.missing, watchdog.failure()) == (missed, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.journal.run)
            await canary.run_round()
            nursery.cancel_scope.cancel()
    assert watchdog.failure() is not None


async def test_status_has_pending_points_and_errors(tmp_path: Path) -> None:
    parts = await make_parts(tmp_path)
    watchdog = watchdog_of(parts)
    assert watchdog.status("serving port 4242", 12345.6) == "serving port 4242: 12,346 lines/s"
    await parts.take(line(0, 1))
    parts.backpressure.hold("the journal is full")
    parts.writer.trouble = "no gateway answers\nat all"
    status = watchdog.status("serving port 4242", 0)
    for part in ("1 point ", "the journal is full", "no gateway answers at all"):
        assert part in status
