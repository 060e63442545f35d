"""Notifications to systemd (sd_notify(3)): readiness, status, and the watchdog. Without systemd nothing is sent.

While the daemon serves, the watchdog is fed (WATCHDOG=1) if all of these hold; otherwise systemd restarts the daemon
(WatchdogSec=):

- The event loop runs: the feeding task is part of it.
- The journal makes progress: pending bytes are written, or the disk reports an error. A full disk is retried: a restart
  would not free space.
- The canary (tsd/ingest/canary.py) makes progress: each step ends, or the store reports an error, within the store's
  own timeouts. An unavailable or hanging HBase reports one: a restart would not help, and the journal has the points.
- A point that the store accepted is found when it is read. If it is missing several times, this process is broken.

While the daemon stops, only the first condition applies.
"""

import errno
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio

from tsd.daemon.diagnostics import log_tasks
from tsd.ingest.accepted import Backpressure
from tsd.ingest.canary import Canary, Stage
from tsd.ingest.journal.journal import Journal
from tsd.ingest.writer import Writer
from tsd.lazy import LazyLogger
from tsd.store.scheduling import sleep_until_next

log = LazyLogger(__name__)


PROGRESS_INTERVAL_S = 10.0  # between checks for progress
STALLED_CHECKS = 3  # checks without progress before tasks are logged
RETRY_S = 0.1  # before a retry if systemd's socket is full
EXTENSION_S = 120.0  # added to the start timeout at each step


def notify(**state: str | int) -> bool:
    """Send variables, e.g. READY=1 and STATUS="…", without waiting. False if systemd's socket is full.

    Without NOTIFY_SOCKET, or without a listener, nothing is sent.
    """
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


async def notify_until_sent(cancelled: Callable[[], bool] = _never, /, **state: str | int) -> None:
    """Send variables, and retry while systemd's socket is full, until `cancelled`."""
    while not cancelled() and not notify(**state):  # noqa: ASYNC110 - another process makes room
        await trio.sleep(RETRY_S)


def notify_soon(nursery: trio.Nursery, cancelled: Callable[[], bool] = _never, /, **state: str | int) -> None:
    """Send variables now; if systemd's socket is full, retry in `nursery` until `cancelled`."""
    if not cancelled() and not notify(**state):
        nursery.start_soon(partial(notify_until_sent, cancelled, **state))


async def extend_timeout(steps: Callable[[], int], status: Callable[[], str]) -> None:
    """Extend systemd's start timeout while `steps` grows, and send the status. Runs until cancelled.

    Without progress, the log shows where tasks wait, and the unit's own timeout ends the start.
    """
    before: int | None = None
    stalled = 0
    while True:
        now = steps()
        if now != before:
            sent = notify(EXTEND_TIMEOUT_USEC=microseconds(EXTENSION_S), STATUS=status())
            before = now if sent else None  # if not sent, retry at the next check
            stalled = 0
        elif (stalled := stalled + 1) % STALLED_CHECKS == 0:
            log.warning("progress.stalled", status=status(), seconds=stalled * PROGRESS_INTERVAL_S)
            log_tasks()
        await trio.sleep(PROGRESS_INTERVAL_S)


def microseconds(seconds: float) -> int:
    """Convert to systemd's unit.

    >>> microseconds(1.5)
    1500000
    """
    return round(seconds * 1_000_000)


def watchdog_s() -> float | None:
    """Return the watchdog's timeout in seconds; None if systemd does not watch this process.

    The variables are removed from the environment, because they do not apply to child processes.
    """
    pid, time_us = os.environ.pop("WATCHDOG_PID", ""), os.environ.pop("WATCHDOG_USEC", "")
    if not time_us.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return int(time_us) / 1_000_000 or None


STATUS_INTERVAL_S = 10.0  # between two status texts
FEEDS = 4  # feeds per watchdog timeout
STALL_SHARE = 2  # the watchdog fails after 1/2 of its timeout without progress
MAX_MISSING = 3  # successive missing points of the canary


class WatchdogTimeouts(NamedTuple):
    """Timeouts in seconds."""

    watchdog_s: float | None  # systemd's; None: no watchdog
    store_s: float  # longest time until a call to the store fails, including retries


class StallTimer:
    """Measures how long a value has been the same."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = 0.0

    def seconds(self, value: object, now: float) -> float:
        """Return how long this has been the value; 0 if it changed."""
        if value != self._value:
            self._value, self._since = value, now
        return now - self._since


class Watchdog:
    """Checks a daemon, feeds systemd's watchdog, and sends the status."""

    def __init__(
        self,
        journal: Journal,
        writer: Writer,
        backpressure: Backpressure,
        canary: Canary | None,
        received: Callable[[], int],
        timeouts: WatchdogTimeouts,
        stopping: Callable[[], bool],
    ) -> None:
        """`received` counts put lines."""
        self._journal = journal
        self._writer = writer
        self._backpressure = backpressure
        self._canary = canary
        self._received = received
        self._timeouts = timeouts
        self._stopping = stopping
        self._journal_stall = StallTimer()
        self._canary_stall = StallTimer()
        self._failing = False

    async def run(self, what: str) -> None:
        """Feed the watchdog and send the status until cancelled; `what` is e.g. "serving port 4242". Return at once if
        no process receives either."""
        watchdog_s = self._timeouts.watchdog_s
        if watchdog_s is None and not os.environ.get("NOTIFY_SOCKET"):
            return
        pause_s = STATUS_INTERVAL_S if watchdog_s is None else min(STATUS_INTERVAL_S, watchdog_s / FEEDS)
        count, at = self._received(), trio.current_time()
        while True:
            reason = self.failure()
            if reason is None and watchdog_s is not None:
                notify(WATCHDOG=1)
            if reason is not None and not self._failing:
                log.error("watchdog.failed", reason=reason)
            self._failing = reason is not None
            await sleep_until_next(pause_s)
            now, received = trio.current_time(), self._received()
            if now - at >= STATUS_INTERVAL_S:
                if not self._stopping():
                    notify(STATUS=self.status(what, (received - count) / (now - at)))
                count, at = received, now

    def failure(self) -> str | None:
        """Return why systemd must restart the daemon, or None. Call it periodically: it detects stalls between
        calls."""
        if self._stopping() or self._timeouts.watchdog_s is None:
            return None
        now = trio.current_time()
        limit_s = self._timeouts.watchdog_s / STALL_SHARE
        journal = self._journal.statistics()
        is_pending = journal.pending > 0 and self._journal.trouble is None
        stalled_s = self._journal_stall.seconds((journal.syncs, journal.failures) if is_pending else None, now)
        if is_pending and stalled_s > limit_s:
            return f"the journal has pending lines and has written nothing for {stalled_s:.0f} s"
        return self._canary_failure(now, limit_s)

    def _canary_failure(self, now: float, limit_s: float) -> str | None:
        canary = self._canary
        if canary is None:
            return None
        if canary.missing >= MAX_MISSING:
            return f"{canary.missing} points of the canary in succession were missing in the store"
        stalled_s = self._canary_stall.seconds((canary.stage, self._progress(canary)), now)
        if canary.stage is Stage.IDLE or stalled_s <= limit_s + self._timeouts.store_s:
            return None
        return f"the canary has waited for {canary.stage.value} for {stalled_s:.0f} s"

    def _progress(self, canary: Canary) -> object:
        """Return values that change if the canary's current step makes progress or fails with a known error."""
        if canary.stage is Stage.DISK:
            journal = self._journal.statistics()
            return journal.syncs, journal.failures
        if canary.stage is Stage.WRITTEN:
            return self._writer.cells, self._writer.windows, self._writer.retries
        return canary.steps

    def status(self, what: str, lines_per_s: float) -> str:
        """Return the status in one line."""
        parts = [f"{what}: {lines_per_s:,.0f} lines/s"]
        if pending := self._writer.waiting_points:
            parts.append(f"{pending:,} {'point' if pending == 1 else 'points'} pending")
        if reasons := self._backpressure.reasons:
            parts.append(f"backpressure: {', '.join(sorted(reasons))}")
        if self._journal.trouble:
            parts.append(f"journal: {self._journal.trouble}")
        if self._writer.trouble:
            parts.append(f"store: {self._writer.trouble}")
        return "; ".join(parts).replace("\n", " ")
