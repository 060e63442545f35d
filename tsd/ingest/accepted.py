"""Accepted lines, from the intake, which accepts them, to the writer, which stores them."""

from collections import Counter
from typing import NamedTuple

import trio

from tsd.ingest.journal.journal import Journal
from tsd.ingest.open_window import OpenWindow
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)


class Ledger:
    """Counts of lines since the start: each received line is stored, refused or waits in a window.

    The intake counts received and refused lines, the writer stored ones, and windows waiting ones. The counts are
    independent, so `balance` is a real check. Lines found in the journal at the start count as received.
    """

    def __init__(self) -> None:
        self.received = 0
        self.accepted = 0  # of this run: not those that were found in the journal
        self.stored = 0
        self.refused: Counter[str] = Counter()  # by reason

    def refuse(self, reason: str, lines: int = 1) -> None:
        """Count lines that will not be stored."""
        self.refused[reason] += lines

    def balance(self, waiting: int) -> int:
        """Return the number of missing lines, given the number that waits in windows. Anything but 0 is a bug."""
        return self.received - self.stored - sum(self.refused.values()) - waiting


JOURNAL_FULL = "the journal is full (tsd.journal.max_bytes)"
JOURNAL_SLOW = "the journal cannot be written fast enough"


class Backpressure:
    """Stops the acceptance of lines while there is any reason. Each component that cannot keep up adds its own."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._opened = trio.Event()
        self._opened.set()
        self._held = trio.Event()

    @property
    def is_open(self) -> bool:
        """Whether lines may be accepted."""
        return not self._reasons

    @property
    def reasons(self) -> frozenset[str]:
        """Reasons why no lines are accepted now; empty if they are."""
        return frozenset(self._reasons)

    def hold(self, reason: str) -> None:
        """Add a reason."""
        if not self._reasons:
            self._opened = trio.Event()
            self._held.set()
            log.warning("ingest.backpressure_started", reason=reason)
        self._reasons.add(reason)

    def release(self, reason: str) -> None:
        """Remove a reason."""
        if reason in self._reasons:
            self._reasons.remove(reason)
            if not self._reasons:
                self._opened.set()
                self._held = trio.Event()
                log.info("ingest.backpressure_ended")

    def set(self, reason: str, is_held: bool) -> None:
        """Add or remove a reason."""
        if is_held:
            self.hold(reason)
        else:
            self.release(reason)

    async def wait_held(self) -> None:
        """Return when no lines may be accepted."""
        await self._held.wait()

    async def wait_open(self) -> None:
        """Return when lines may be accepted."""
        while self._reasons:
            await self._opened.wait()


class AcceptedLines(NamedTuple):
    """Where lines are between the intake and the writer, and what both know of them."""

    open_window: OpenWindow  # their points, until the writer seals the window
    journal: Journal
    ledger: Ledger
    backpressure: Backpressure  # of both: why no lines are accepted now
