"""What systemd is told, where it started the daemon (sd_notify(3)); nothing elsewhere."""

import errno
import os
import socket
from collections.abc import Callable, MutableMapping
from functools import partial

import structlog
import trio

from tsd.tasks import tell_tasks

log = structlog.get_logger(__name__)

LOOK_S = 10.0  # between looks at what comes forward
STILL_LOOKS = 3  # without a step, until the log tells where tasks wait
AGAIN_S = 0.1  # before what must be heard is said again to a systemd that does not listen
PATIENCE_S = 120.0  # that systemd waits for the next step, whatever the unit's own timeout


def notify(**state: str | int) -> bool:
    """Send e.g. READY=1, STATUS="…". False where systemd reads nothing now and has no room for it, so that it may be
    sent again: nobody waits for that here. Without NOTIFY_SOCKET, or where nobody is there, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return True
    if address.startswith("@"):
        address = "\0" + address[1:]
    text = "\n".join(f"{key}={value}" for key, value in state.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as channel:
        try:
            channel.sendto(text.encode(), address)
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.ENOBUFS)
    return True


def _never() -> bool:
    return False


async def insist(past: Callable[[], bool] = _never, /, **state: str | int) -> None:
    """Send what systemd must hear, over and over until it has room for it, or until that is `past`."""
    while not past() and not notify(**state):  # noqa: ASYNC110 - another process makes room
        await trio.sleep(AGAIN_S)


def announce(nursery: trio.Nursery, past: Callable[[], bool] = _never, /, **state: str | int) -> None:
    """Send what systemd must hear: now, or else while `nursery` is open, until it is `past`."""
    if not past() and not notify(**state):
        nursery.start_soon(partial(insist, past, **state))


async def keep_waiting(steps: Callable[[], int], status: Callable[[], str]) -> None:
    """Until cancelled, have systemd wait on for as long as `steps` goes up, and tell it the status: a start that comes
    forward is not ended, one that stands still is, once the unit's own timeout has passed too. The log says by then
    what it waits for."""
    before: int | None = None
    still = 0
    while True:
        now = steps()
        if now != before:
            heard = notify(EXTEND_TIMEOUT_USEC=microseconds(PATIENCE_S), STATUS=status())
            before = now if heard else None  # what was not is said again at the next look
            still = 0
        elif (still := still + 1) % STILL_LOOKS == 0:
            log.warning("nothing comes forward", at=status(), seconds=still * LOOK_S)
            tell_tasks()
        await trio.sleep(LOOK_S)


def microseconds(seconds: float) -> int:
    """In systemd's unit.

    >>> microseconds(1.5)
    1500000
    """
    return round(seconds * 1_000_000)


def watchdog_s(environ: MutableMapping[str, str] = os.environ) -> float | None:
    """The time within which systemd wants to hear WATCHDOG=1 again; None where it does not. What says so in the
    environment is taken out: it is not for processes that this one starts."""
    pid, time_us = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
    if not time_us.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return int(time_us) / 1_000_000 or None
