"""Running and recently ended queries, for listing and cancelling."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from tsd.errors import BadQuery
from tsd.query.model import Query
from tsd.query.result import SubFigures, totals

KEPT = 50  # ended queries
GONE = "The client has gone"


@dataclass(eq=False, slots=True)
class RunningQuery:
    """One request's query, from its start to its answer."""

    number: int
    query: Query
    peer: str  # address of the client
    headers: Mapping[str, str]
    started_ms: int  # wall clock
    expressions: Hashable = None  # what is computed from its answer
    ended_ms: int = 0
    status: int = 0  # HTTP status, once it has ended
    error: str = ""
    sent: bool = False  # whether the response was sent
    cancelled: bool = False
    figures: Sequence[SubFigures] = ()  # of its answer
    scopes: set[trio.CancelScope] = field(default_factory=set)  # of its running work

    @property
    def stats(self) -> Mapping[str, float]:
        """Times in ms, and counts, once there is an answer."""
        return totals(self.figures) if self.figures else {}

    def add(self, scope: trio.CancelScope) -> None:
        """Cancel a scope with the query."""
        self.scopes.add(scope)
        if self.cancelled:
            scope.cancel()

    def cancel(self) -> None:
        """Cancel it; its response is an error."""
        self.cancelled = True
        for scope in self.scopes:
            scope.cancel()


def cancelled_error() -> BadQuery:
    """Return the response to a cancelled query."""
    return BadQuery("The query was cancelled", status=503)


class QueryRegistry:
    """The queries of a daemon."""

    def __init__(self, now_ms: Callable[[], int], *, duplicates: bool = True) -> None:
        """`duplicates`: whether one client may run equal queries at the same time."""
        self._now_ms = now_ms
        self._duplicates = duplicates
        self._running: dict[int, RunningQuery] = {}
        self._ended: deque[RunningQuery] = deque(maxlen=KEPT)
        self._last = 0
        self.counts = {"succeeded": 0, "failed": 0, "cancelled": 0}

    def may_refuse(self) -> bool:
        """Return whether `begin` may refuse a query now, because its client waits for an equal one."""
        return not self._duplicates and bool(self._running)

    @property
    def running(self) -> list[RunningQuery]:
        """Running queries, oldest first."""
        return list(self._running.values())

    @property
    def ended(self) -> list[RunningQuery]:
        """The queries that ended last, newest first."""
        return list(reversed(self._ended))

    def cancel(self, number: int) -> bool:
        """Cancel a running query; return whether it exists."""
        running = self._running.get(number)
        if running is not None:
            running.cancel()
        return running is not None

    @contextmanager
    def register(
        self, query: Query, peer: str, headers: Mapping[str, str], expressions: Hashable = None
    ) -> Iterator[RunningQuery]:
        """Register a query while it runs; `expressions` are computed from its answer. Raise BadQuery if the client
        already waits for an equal query."""
        running = self.begin(query, peer, headers, expressions)
        try:
            yield running
        except BaseException as error:
            self.end(running, error)
            raise
        self.end(running)

    def begin(self, query: Query, peer: str, headers: Mapping[str, str], expressions: Hashable = None) -> RunningQuery:
        """Register a query until `end`, see `register`."""
        if not self._duplicates:
            client = peer.rpartition(":")[0]
            wanted = client, query, expressions
            for one in self._running.values():
                if (one.peer.rpartition(":")[0], one.query, one.expressions) == wanted:
                    raise BadQuery(f"Query is already executing for endpoint: {client}")
        self._last += 1
        running = RunningQuery(self._last, query, peer, headers, self._now_ms(), expressions)
        self._running[running.number] = running
        return running

    def add_answered(
        self, query: Query, peer: str, headers: Mapping[str, str], figures: Sequence[SubFigures], status: int
    ) -> None:
        """Count a query that was answered in one step of the event loop, while no other one runs."""
        self._last += 1
        now_ms = self._now_ms()
        self.counts["succeeded"] += 1
        self._ended.append(
            RunningQuery(
                self._last, query, peer, headers, now_ms, ended_ms=now_ms, status=status, sent=True, figures=figures
            )
        )

    def end(self, running: RunningQuery, error: BaseException | None = None) -> None:
        """Count a query that has ended, with the error that ended it."""
        if isinstance(error, Exception):
            running.error = running.error or f"{type(error).__name__}: {error}"
        elif error is not None:  # its client disconnected, or the daemon stops
            running.error = running.error or GONE
        del self._running[running.number]
        running.ended_ms = self._now_ms()
        kind = "cancelled" if running.cancelled else "failed" if running.error else "succeeded"
        self.counts[kind] += 1
        self._ended.append(running)
