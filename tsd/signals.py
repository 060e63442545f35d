"""Signals → what the daemon does: SIGTERM and SIGINT end it, a second one at once; SIGHUP has files read again; SIGUSR1
has it log where its tasks wait."""

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
import trio

from tsd.errors import TsdError
from tsd.systemd import insist, microseconds, notify
from tsd.tasks import tell_tasks

log = structlog.get_logger(__name__)

Reload = tuple[str, Callable[[], Awaitable[None]]]


@asynccontextmanager
async def heeded(
    stop: trio.Event, at_once: trio.Event, reloads: Sequence[Reload], ready: trio.Event
) -> AsyncIterator[None]:
    """Heed signals until the block ends. `stop` is set by the first one that asks for the end, `at_once` by the next;
    `reloads` is what SIGHUP runs, one after the other, as it is then, and not before the daemon is `ready`."""
    failure: TsdError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(_heed, stop, at_once, reloads, ready)
        try:
            yield
        except TsdError as error:  # those who tell people of it want it as it is, not in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _heed(
    stop: trio.Event,
    at_once: trio.Event,
    reloads: Sequence[Reload],
    ready: trio.Event,
    task_status: trio.TaskStatus[None],
) -> None:
    on_terminal = _is_on_terminal()
    send, receive = trio.open_memory_channel[None](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reload_when_told, receive, reloads, ready, stop)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1) as signals:
            task_status.started()
            async for number in signals:
                log.info("signal", name=signal.Signals(number).name)
                if number == signal.SIGUSR1:
                    tell_tasks()
                elif number == signal.SIGHUP and not on_terminal:
                    with suppress(trio.WouldBlock):  # one waits already, and will see what this one would
                        send.send_nowait(None)
                elif stop.is_set():
                    at_once.set()
                else:
                    stop.set()


def _is_on_terminal() -> bool:
    """Whether somebody runs the daemon by hand: SIGHUP tells it then that the terminal has gone."""
    try:
        return os.isatty(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # a test has put something else there
        return False


async def _reload_when_told(
    told: trio.MemoryReceiveChannel[None], reloads: Sequence[Reload], ready: trio.Event, stop: trio.Event
) -> None:
    """READY=1 ends a reload, and a start as well: said before that has ended it would be believed, and the watchdog,
    which nobody feeds yet, would end the replay of a long journal. One that ends is not ready again either."""
    await ready.wait()
    async for _ in told:
        if not stop.is_set():
            notify(RELOADING=1, MONOTONIC_USEC=microseconds(time.monotonic()))
        await reload(reloads)
        await insist(stop.is_set, READY=1)


async def reload(reloads: Sequence[Reload]) -> None:
    """Run each; what one cannot read stays as it was, and is said."""
    failed = []
    for name, again in reloads:
        try:
            await again()
        except Exception as error:  # noqa: BLE001 - no file is worth a daemon that serves
            log.error("not read again; what was read before holds", what=name, error=str(error) or repr(error))
            failed.append(name)
    log.info(
        "read again", what=" ".join(name for name, _ in reloads if name not in failed), failed=" ".join(failed) or None
    )
