"""Queries that run, and the last that ran: to be listed, and to be cancelled."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from tsd.errors import BadQuery
from tsd.query.model import Query

KEPT = 50  # queries that are over
GONE = "The client has gone"


@dataclass(eq=False)
class Running:
    """One request's query, from its start to its answer."""

    number: int
    query: Query
    peer: str  # who asks
    headers: Mapping[str, str]
    started_ms: int  # wall clock
    made_of_it: Hashable = None  # the text of what its answer is put to
    ended_ms: int = 0
    status: int = 0  # HTTP's, once it is over
    error: str = ""
    sent: bool = False  # whether the client has it
    cancelled: bool = False
    stats: dict[str, float] = field(default_factory=dict)  # times in ms, counts
    scopes: set[trio.CancelScope] = field(default_factory=set)  # of what is done for it now

    def cancel(self) -> None:
        """End it: whoever asked is told that somebody did."""
        self.cancelled = True
        for scope in self.scopes:
            scope.cancel()


def was_cancelled() -> BadQuery:
    """What a query that somebody ended is answered with."""
    return BadQuery("The query was cancelled", status=503)


class Registry:
    """The queries of a daemon."""

    def __init__(self, now_ms: Callable[[], int], *, duplicates: bool = True) -> None:
        """`duplicates`: whether one client may ask the same twice at once."""
        self._now_ms = now_ms
        self._duplicates = duplicates
        self._running: dict[int, Running] = {}
        self._ended: deque[Running] = deque(maxlen=KEPT)
        self._last = 0
        self.counts = {"succeeded": 0, "failed": 0, "cancelled": 0}

    @property
    def running(self) -> list[Running]:
        """Those that run, oldest first."""
        return list(self._running.values())

    @property
    def ended(self) -> list[Running]:
        """The last that are over, newest first."""
        return list(reversed(self._ended))

    def cancel(self, number: int) -> bool:
        """Cancel a running query; whether there is such a one."""
        running = self._running.get(number)
        if running is not None:
            running.cancel()
        return running is not None

    @contextmanager
    def entered(
        self, query: Query, peer: str, headers: Mapping[str, str], made_of_it: Hashable = None
    ) -> Iterator[Running]:
        """A query while it runs; `made_of_it` is what its answer is put to, as expressions. Raises BadQuery where its
        client has asked the same and waits for the answer."""
        client = peer.rpartition(":")[0]
        asked = client, query, made_of_it
        if not self._duplicates and any(
            (one.peer.rpartition(":")[0], one.query, one.made_of_it) == asked for one in self._running.values()
        ):
            raise BadQuery(f"Query is already executing for endpoint: {client}")
        self._last += 1
        running = Running(self._last, query, peer, headers, self._now_ms(), made_of_it)
        self._running[running.number] = running
        try:
            yield running
        except Exception as exc:
            running.error = running.error or f"{type(exc).__name__}: {exc}"
            raise
        except BaseException:  # it was given up, or its answer was
            running.error = running.error or GONE
            raise
        finally:
            del self._running[running.number]
            running.ended_ms = self._now_ms()
            kind = "cancelled" if running.cancelled else "failed" if running.error else "succeeded"
            self.counts[kind] += 1
            self._ended.append(running)
