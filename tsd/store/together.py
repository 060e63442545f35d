"""Several calls of a store at once."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from tsd.errors import TsdError

T = TypeVar("T")


async def together(parts: Iterable[T], ask: Callable[[T], Awaitable[None]], *, at_once: int) -> None:
    """Ask for each of `parts`, so many at a time. Raises the first TsdError, when the others under way have ended."""
    left = iter(parts)
    errors: list[TsdError] = []

    async def work() -> None:
        for part in left:
            try:
                await ask(part)
            except TsdError as exc:
                errors.append(exc)
                nursery.cancel_scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # or the error and this frame would hold each other
