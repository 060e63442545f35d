"""What systemd is told."""

import socket

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.unit.hearing import messages
from tsd.systemd import LOOK_S, PATIENCE_S, STILL_LOOKS, announce, keep_waiting, notify


def test_a_message_is_lines(systemd: socket.socket) -> None:
    notify(READY=1, STATUS="serving port 4242")
    assert messages(systemd) == ["READY=1\nSTATUS=serving port 4242"]


def test_nobody_listens(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "nobody")
    notify(READY=1)
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY=1)
    assert messages(systemd) == []


def fill(channel: socket.socket) -> int:
    """Have it hear nothing more before something is read: how many messages it has."""
    count = 0
    while notify(STATUS="x" * 1000):
        count += 1
    return count


async def test_nobody_waits_for_a_systemd_that_does_not_read(systemd: socket.socket, autojump_clock: MockClock) -> None:
    """The event loop stood still in a send."""
    async with trio.open_nursery() as nursery:
        came = fill(systemd)
        assert came > 0
        announce(nursery, READY=1)
        await trio.sleep(60)
        assert len(messages(systemd)) == came
        await trio.sleep(1)
        assert messages(systemd) == ["READY=1"]


async def test_who_ends_is_not_said_to_be_ready(systemd: socket.socket, autojump_clock: MockClock) -> None:
    """READY=1 was said until systemd had room for it, be it after STOPPING=1."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        came = fill(systemd)
        announce(nursery, stop.is_set, READY=1)
        stop.set()
        announce(nursery, STOPPING=1)
        assert len(messages(systemd)) == came
        await trio.sleep(1)
        announce(nursery, stop.is_set, READY=1)
    assert messages(systemd) == ["STOPPING=1"]


async def test_more_time_is_asked_for_again_where_systemd_did_not_hear(
    systemd: socket.socket, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        fill(systemd)
        nursery.start_soon(keep_waiting, lambda: 0, lambda: "0 of 3")
        await trio.sleep(LOOK_S / 2)
        messages(systemd)
        await trio.sleep(2 * LOOK_S)
        assert len(messages(systemd)) == 1
        nursery.cancel_scope.cancel()


async def test_more_time_is_asked_for_while_something_comes_forward(
    systemd: socket.socket, autojump_clock: MockClock
) -> None:
    done = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_waiting, lambda: done, lambda: f"{done} of 3")
        await trio.sleep(LOOK_S / 2)
        asked = f"EXTEND_TIMEOUT_USEC={PATIENCE_S:.0f}000000\nSTATUS="
        assert messages(systemd) == [asked + "0 of 3"]
        done = 1
        await trio.sleep(LOOK_S)
        assert messages(systemd) == [asked + "1 of 3"]
        await trio.sleep(10 * LOOK_S)
        assert messages(systemd) == []
        done = 2
        await trio.sleep(2 * LOOK_S)
        assert messages(systemd) == [asked + "2 of 3"]
        nursery.cancel_scope.cancel()


async def test_what_stands_still_is_said_and_what_it_waits_for(autojump_clock: MockClock) -> None:
    async def wait_for_the_store() -> None:
        await trio.sleep_forever()

    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_the_store)
            nursery.start_soon(keep_waiting, lambda: 0, lambda: "0 of 3")
            await trio.sleep(STILL_LOOKS * LOOK_S - 1)
            assert logs == []
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
    still, told = logs
    assert (still["event"], still["at"], still["seconds"]) == ("nothing comes forward", "0 of 3", STILL_LOOKS * LOOK_S)
    assert any("wait_for_the_store" in line for line in told["tasks"])
