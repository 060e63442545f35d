"""What signals do: end with all that waits, end at once, read files again."""

import os
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from tests.unit.hearing import messages
from tsd.errors import StoreError
from tsd.signals import heeded, reload


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def serving() -> trio.Event:
    """A daemon is ready."""
    ready = trio.Event()
    ready.set()
    return ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_asks_for_the_end_and_the_second_has_it_at_once(number: signal.Signals) -> None:
    stop, at_once = trio.Event(), trio.Event()
    async with heeded(stop, at_once, [], trio.Event()):
        send(number)
        await stop.wait()
        assert not at_once.is_set()
        send(number)
        await at_once.wait()


async def test_a_signal_after_another_way_to_ask_for_the_end_is_the_second() -> None:
    stop, at_once = trio.Event(), trio.Event()
    async with heeded(stop, at_once, [], trio.Event()):
        stop.set()
        send(signal.SIGTERM)
        await at_once.wait()


async def test_what_is_read_again_is_what_is_listed_by_then_one_after_the_other() -> None:
    stop, at_once = trio.Event(), trio.Event()
    seen: list[str] = []
    done = trio.Event()

    def reading(name: str, last: bool = False) -> tuple[str, Callable[[], Awaitable[None]]]:
        async def again() -> None:
            seen.append(f"{name} begins")
            await trio.lowlevel.checkpoint()
            seen.append(f"{name} ends")
            if last:
                done.set()

        return name, again

    reloads = [reading("tokens")]
    async with heeded(stop, at_once, reloads, serving()):
        reloads.append(reading("networks", last=True))
        send(signal.SIGHUP)
        await done.wait()
    assert seen == ["tokens begins", "tokens ends", "networks begins", "networks ends"]
    assert not stop.is_set()


async def test_what_cannot_be_read_harms_nobody() -> None:
    seen: list[str] = []

    async def fails() -> None:
        raise OSError("gone")

    async def works() -> None:
        seen.append("works")

    await reload([("certificates", fails), ("tokens", works)])
    assert seen == ["works"]


async def test_who_asks_while_files_are_read_has_them_read_once_more() -> None:
    stop, at_once = trio.Event(), trio.Event()
    rounds = 0
    reading, go_on = trio.Event(), trio.Event()

    async def again() -> None:
        nonlocal rounds
        rounds += 1
        reading.set()
        await go_on.wait()

    async with heeded(stop, at_once, [("tokens", again)], serving()):
        send(signal.SIGHUP)
        await reading.wait()
        for _ in range(3):
            send(signal.SIGHUP)
            await wait_all_tasks_blocked()
        send(signal.SIGTERM)
        await stop.wait()  # it is not held up by who reads
        go_on.set()
        await wait_all_tasks_blocked()
    assert rounds == 2


async def test_before_the_daemon_is_ready_files_are_read_once_it_is_and_systemd_is_told_no_sooner(
    systemd: socket.socket,
) -> None:
    """READY=1 was said in the middle of a replay: systemd armed its watchdog, and nobody fed it."""
    ready, done = trio.Event(), trio.Event()

    async def again() -> None:
        done.set()

    async with heeded(trio.Event(), trio.Event(), reloads := [], ready):
        send(signal.SIGHUP)
        await wait_all_tasks_blocked()
        reloads.append(("settings", again))
        assert messages(systemd) == []
        ready.set()
        await done.wait()
        await wait_all_tasks_blocked()
    told = messages(systemd)
    assert [one.partition("\n")[0] for one in told] == ["RELOADING=1", "READY=1"]


async def test_who_ends_is_not_ready_again(systemd: socket.socket) -> None:
    stop = trio.Event()

    async def again() -> None:
        stop.set()

    async with heeded(stop, trio.Event(), [("settings", again)], serving()):
        send(signal.SIGHUP)
        await stop.wait()
        await wait_all_tasks_blocked()
        assert [one.partition("\n")[0] for one in messages(systemd)] == ["RELOADING=1"]
        send(signal.SIGHUP)
        await wait_all_tasks_blocked()
    assert messages(systemd) == []


async def test_an_error_comes_out_as_it_is() -> None:
    with pytest.raises(StoreError, match=r"^gone$"):
        async with heeded(trio.Event(), trio.Event(), [], trio.Event()):
            raise StoreError("gone")


async def test_where_tasks_wait_is_told_to_who_asks_and_all_goes_on() -> None:
    stop = trio.Event()
    with capture_logs() as logs:
        async with heeded(stop, trio.Event(), [], trio.Event()):
            send(signal.SIGUSR1)
            send(signal.SIGTERM)
            await stop.wait()
    [told] = [log for log in logs if log["event"] == "where tasks wait"]
    assert any("_heed" in line for line in told["tasks"])
