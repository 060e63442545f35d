"""Several calls of a store at once, as many as it gains from."""

from collections.abc import Awaitable, Callable, Iterable

import trio

from tsd.errors import StoreError

IN_FLIGHT = 4  # a gateway's connections are shared with the writer

Ask = Callable[[], Awaitable[None]]


async def spread(asks: Iterable[Ask]) -> None:
    """Do all of `asks`, a few at a time. Raises the first StoreError; then the others in flight are cancelled, and no
    more are begun."""
    errors: list[StoreError] = []
    left = iter(asks)

    async def work() -> None:
        for ask in left:
            try:
                await ask()
            except StoreError as exc:
                errors.append(exc)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(work)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # or the error and this frame would hold each other
