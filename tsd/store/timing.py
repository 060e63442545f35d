"""How long the calls of a store take, as who makes them has it: waits for a connection and repetitions included."""

import functools
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from tsd.latency import Latency

P = ParamSpec("P")
T = TypeVar("T")


@runtime_checkable
class Timed(Protocol):
    """A store that measures itself."""

    @property
    def took(self) -> Mapping[str, Latency]:
        """By the name of the call."""
        ...


S = TypeVar("S", bound=Timed)


def timed(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method of a store that is measured, also where it fails. Its name is a key of `took`."""
    name = call.__name__

    async def measured(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        begun = time.monotonic()
        try:
            return await call(self, *args, **kwargs)
        finally:
            self.took[name].note(time.monotonic() - begun)

    functools.update_wrapper(measured, call)
    return measured


def none_yet() -> dict[str, Latency]:
    """A store's times when it is made: of the calls that are measured, all of which are told from the start."""
    return {name: Latency() for name in ("get", "put", "delete", "page", "cells", "create", "increment", "sync")}
