"""Signals: stop, stop now, reload, dump tasks."""

import os
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from tests.unit.daemon.notify_socket import messages
from tsd.daemon.lifecycle import reload, signals_handled
from tsd.errors import StoreError


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def serving() -> trio.Event:
    """Return a set event: a daemon is ready."""
    ready = trio.Event()
    ready.set()
    return ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_stops_and_second_stops_now(number: signal.Signals) -> None:
    stop, stop_now = trio.Event(), trio.Event()
    async with signals_handled(stop, stop_now, [], trio.Event()):
        send(number)
        await stop.wait()
        assert not stop_now.is_set()
        send(number)
        await stop_now.wait()


async def test_signal_after_another_stop_stops_now() -> None:
    stop, stop_now = trio.Event(), trio.Event()
    async with signals_handled(stop, stop_now, [], trio.Event()):
        stop.set()
        send(signal.SIGTERM)
        await stop_now.wait()


async def test_reloads_run_one_after_the_other() -> None:
    stop, stop_now = trio.Event(), trio.Event()
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
    async with signals_handled(stop, stop_now, reloads, serving()):
        reloads.append(reading("networks", last=True))
        send(signal.SIGHUP)
        await done.wait()
    assert seen == ["tokens begins", "tokens ends", "networks begins", "networks ends"]
    assert not stop.is_set()


async def test_failed_reload_does_not_stop_others() -> None:
    seen: list[str] = []

    async def fails() -> None:
        raise OSError("gone")

    async def works() -> None:
        seen.append("works")

    await reload([("certificates", fails), ("tokens", works)])
    assert seen == ["works"]


@pytest.mark.parametrize("error", [OSError("gone"), ZeroDivisionError("injected")])
async def test_unexpected_error_of_a_reload_is_logged_with_its_trace(error: Exception) -> None:
    async def fails() -> None:
        raise error

    with capture_logs() as logs:
        await reload([("accounts", fails)])
    [line, finished] = logs
    assert finished["what"] is None  # regression: an empty field
    assert (line["what"], line["error"]) == ("accounts", str(error))
    assert (line.get("exc_info") is error) == isinstance(error, ZeroDivisionError)


async def test_signals_during_a_reload_cause_one_more() -> None:
    stop, stop_now = trio.Event(), trio.Event()
    rounds = 0
    reading, go_on = trio.Event(), trio.Event()

    async def again() -> None:
        nonlocal rounds
        rounds += 1
        reading.set()
        await go_on.wait()

    async with signals_handled(stop, stop_now, [("tokens", again)], serving()):
        send(signal.SIGHUP)
        await reading.wait()
        for _ in range(3):
            send(signal.SIGHUP)
            await wait_all_tasks_blocked()
        send(signal.SIGTERM)
        await stop.wait()  # a running reload does not delay it
        go_on.set()
        await wait_all_tasks_blocked()
    assert rounds == 2


async def test_reload_before_ready_waits_until_ready(
    systemd: socket.socket,
) -> None:
    """Regression: READY=1 during a replay armed the watchdog, which was not fed yet."""
    ready, done = trio.Event(), trio.Event()

    async def again() -> None:
        done.set()

    async with signals_handled(trio.Event(), trio.Event(), reloads := [], ready):
        send(signal.SIGHUP)
        await wait_all_tasks_blocked()
        reloads.append(("settings", again))
        assert messages(systemd) == []
        ready.set()
        await done.wait()
        await wait_all_tasks_blocked()
    sent = messages(systemd)
    assert [one.partition("\n")[0] for one in sent] == ["RELOADING=1", "READY=1"]


async def test_stopping_daemon_is_not_ready_again(systemd: socket.socket) -> None:
    stop = trio.Event()

    async def again() -> None:
        stop.set()

    async with signals_handled(stop, trio.Event(), [("settings", again)], serving()):
        send(signal.SIGHUP)
        await stop.wait()
        await wait_all_tasks_blocked()
        assert [one.partition("\n")[0] for one in messages(systemd)] == ["RELOADING=1"]
        send(signal.SIGHUP)
        await wait_all_tasks_blocked()
    assert messages(systemd) == []


async def test_error_is_not_raised_in_a_group() -> None:
    with pytest.raises(StoreError, match=r"^gone$"):
        async with signals_handled(trio.Event(), trio.Event(), [], trio.Event()):
            raise StoreError("gone")


async def test_sigusr1_dumps_tasks_and_the_daemon_goes_on() -> None:
    stop = trio.Event()
    with capture_logs() as logs:
        async with signals_handled(stop, trio.Event(), [], trio.Event()):
            send(signal.SIGUSR1)
            send(signal.SIGTERM)
            await stop.wait()
    [dump] = [log for log in logs if log["event"] == "tasks.dumped"]
    assert any("_receive_signals" in line for line in dump["tasks"])
