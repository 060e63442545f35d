"""What systemd is told: as systemd reads it, from a socket of the test's."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tsd.systemd import LOOK_S, PATIENCE_S, STILL_LOOKS, keep_waiting, notify


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where messages come in."""
    monkeypatch.chdir(tmp_path)  # a socket's address is short
    monkeypatch.setenv("NOTIFY_SOCKET", "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("notify")
        channel.setblocking(False)
        yield channel


def messages(channel: socket.socket) -> list[str]:
    """What came up to now."""
    came = []
    with suppress(BlockingIOError):
        while True:
            came.append(channel.recv(4096).decode())
    return came


def test_a_message_is_lines(systemd: socket.socket) -> None:
    notify(READY=1, STATUS="serving port 4242")
    assert messages(systemd) == ["READY=1\nSTATUS=serving port 4242"]


def test_nobody_listens(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "nobody")
    notify(READY=1)
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY=1)
    assert messages(systemd) == []


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
