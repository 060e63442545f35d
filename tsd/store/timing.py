"""Durations of store calls and other operations, counted in histogram buckets."""

import functools
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

# Upper bounds of the buckets in seconds. A disk sync takes 1 to 20 ms and a call of HBase 1 to 100 ms; a stalled call
# takes its whole timeout.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

TIMED_CALLS = (
    "get",
    "get_between",
    "put",
    "replace",
    "delete",
    "page",
    "row_keys",
    "read_cells",
    "create",
    "increment",
    "sync",
)


class Latency:
    """Histogram of the durations of one operation since the start.

    >>> latency = Latency()
    >>> latency.record(0.001), latency.record(0.3), latency.record(99)
    (None, None, None)
    >>> latency.count, latency.total_s, latency.counts[0], latency.counts[-1]
    (3, 99.301, 1, 1)
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # the last bucket has no bound
        self.total_s = 0.0

    def record(self, took_s: float) -> None:
        """Count one operation."""
        self.counts[bisect_left(BOUNDS_S, took_s)] += 1
        self.total_s += took_s

    @property
    def count(self) -> int:
        """Number of operations."""
        return sum(self.counts)


P = ParamSpec("P")
T = TypeVar("T")


class Timed(Protocol):
    """An object whose calls are timed."""

    @property
    def latencies(self) -> Mapping[str, Latency]:
        """Latency of each call by its name."""
        ...


S = TypeVar("S", bound=Timed)


def timed(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Decorate a store's method to record its duration, including waits and retries, even if it fails."""
    return timed_as(call.__name__)(call)


def timed_as(
    name: str,
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
]:
    """Decorate a method as `timed` does, and record its duration under `name`, of which it is another form."""

    def decorate(
        call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        async def measured(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            started = time.monotonic()
            try:
                return await call(self, *args, **kwargs)
            finally:
                self.latencies[name].record(time.monotonic() - started)

        functools.update_wrapper(measured, call)
        return measured

    return decorate


def new_latencies() -> dict[str, Latency]:
    """Return an empty histogram for each timed call: statistics list them all from the start."""
    return {name: Latency() for name in TIMED_CALLS}
