"""What systemd is told while the daemon serves: in words what it does, and, for the watchdog, that it is worth keeping.

The watchdog is fed while all of this holds; systemd starts the daemon again where it does not (WatchdogSec=):

- The event loop turns: it is a task of it that feeds.
- The journal moves: bytes that wait for it are written, or the disk says why not (a full disk is tried again and again,
  and no restart makes room).
- The canary's round (tsd/canary.py) gets on: each step of it ends, or the store says why not, within a time that the
  store's own timeouts leave. An HBase that is away is such an end, and so is one that hangs: no restart brings it back,
  and what comes meanwhile is safe in the journal.
- A point that the store took is there when it is read; so often missed, something in this process is wrong.

While the daemon ends, only the first is asked for.
"""

from collections.abc import Callable
from typing import NamedTuple

import structlog
import trio

from tsd.canary import Canary, Stage
from tsd.ingest.intake import Gate
from tsd.ingest.journal import Journal
from tsd.ingest.writer import Writer
from tsd.systemd import notify

log = structlog.get_logger(__name__)

LOOK_S = 10.0  # between words to systemd, unless the watchdog wants to hear sooner
FEEDS = 4  # in the watchdog's time
PATIENCE = 2  # what part of its time nothing may move before it is let down
MOST_MISSED = 3  # rounds, one after the other


class Limits(NamedTuple):
    """How long is too long, in seconds."""

    watchdog_s: float | None  # systemd's; None: it does not watch
    store_s: float  # what calls of the store may take until they have failed for good


class Standing:
    """How long a count has been what it is."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = 0.0

    def seconds(self, count: object, now: float) -> float:
        """Since when it has been this; 0 where it has just changed."""
        if count != self._seen:
            self._seen, self._since = count, now
        return now - self._since


class Watchdog:
    """Looks at the parts of one daemon, and tells systemd."""

    def __init__(
        self,
        journal: Journal,
        writer: Writer,
        gate: Gate,
        canary: Canary | None,
        received: Callable[[], int],
        limits: Limits,
        stopping: Callable[[], bool],
    ) -> None:
        """`received` counts put lines."""
        self._journal = journal
        self._writer = writer
        self._gate = gate
        self._canary = canary
        self._received = received
        self._limits = limits
        self._stopping = stopping
        self._journaling = Standing()
        self._going_round = Standing()
        self._let_down = False

    async def run(self, what: str) -> None:
        """Tell, and feed, until cancelled; `what` it does, e.g. serving port 4242, is said already."""
        watchdog_s = self._limits.watchdog_s
        pause_s = LOOK_S if watchdog_s is None else min(LOOK_S, watchdog_s / FEEDS)
        count, at = self._received(), trio.current_time()
        while True:
            trouble = self.trouble()
            if trouble is None and watchdog_s is not None:
                notify(WATCHDOG=1)
            if trouble is not None and not self._let_down:
                log.error("the watchdog is not fed any more: systemd will start this daemon again", because=trouble)
            self._let_down = trouble is not None
            await trio.sleep(pause_s)
            now, received = trio.current_time(), self._received()
            if now - at >= LOOK_S:
                if not self._stopping():
                    notify(STATUS=self.status(what, (received - count) / (now - at)))
                count, at = received, now

    def trouble(self) -> str | None:
        """Why a restart is wanted; None while it is not. To be asked again and again: it sees what has not moved."""
        if self._stopping() or self._limits.watchdog_s is None:
            return None
        now = trio.current_time()
        patience_s = self._limits.watchdog_s / PATIENCE
        journal = self._journal.statistics()
        waits = journal.pending > 0 and self._journal.trouble is None
        still_s = self._journaling.seconds((journal.syncs, journal.failures) if waits else None, now)
        if waits and still_s > patience_s:
            return f"the journal has written nothing for {still_s:.0f} s, though lines wait for it"
        return self._canary_trouble(now, patience_s)

    def _canary_trouble(self, now: float, patience_s: float) -> str | None:
        canary = self._canary
        if canary is None:
            return None
        if canary.missing >= MOST_MISSED:
            return f"{canary.missing} points of our own were not in the store, one after the other"
        still_s = self._going_round.seconds((canary.stage, self._moved(canary)), now)
        if canary.stage is Stage.IDLE or still_s <= patience_s + self._limits.store_s:
            return None
        return f"the canary has waited for {canary.stage.value} for {still_s:.0f} s"

    def _moved(self, canary: Canary) -> object:
        """What changes while the step that the canary waits for is under way, or fails for a reason that is known."""
        if canary.stage is Stage.DISK:
            journal = self._journal.statistics()
            return journal.syncs, journal.failures
        if canary.stage is Stage.WRITTEN:
            return self._writer.cells, self._writer.windows, self._writer.retries
        return canary.steps

    def status(self, what: str, lines_per_s: float) -> str:
        """What the daemon does, in one line."""
        parts = [f"{what}: {lines_per_s:,.0f} lines/s"]
        if waiting := self._writer.waiting_points:
            parts.append(f"{waiting:,} points wait")
        if held := self._gate.held:
            parts.append(f"not reading from clients: {', '.join(sorted(held))}")
        if self._journal.trouble:
            parts.append(f"the journal cannot be written: {self._journal.trouble}")
        if self._writer.trouble:
            parts.append(f"the store takes no cells: {self._writer.trouble}")
        return "; ".join(parts).replace("\n", " ")
