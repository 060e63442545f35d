"""Backoff between retries, and bounded concurrency of calls."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from typing import TypeVar

import trio

from tsd.errors import StoreBusy, StoreError, TsdError

T = TypeVar("T")


def backoff(first_s: float, longest_s: float, tries: int) -> Iterator[float]:
    """Yield the seconds to wait before each of `tries` retries: doubled each time, up to `longest_s`.

    Each is shortened at random by up to half, so that callers that failed together do not retry together.

    >>> [0.5 <= wait / full <= 1 for wait, full in zip(backoff(1, 4, 4), [1, 2, 4, 4])]
    [True, True, True, True]
    """
    full = first_s
    for _ in range(tries):
        yield min(full, longest_s) * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        full *= 2


async def retried(call: Callable[[], Awaitable[T]], waits: Iterable[float], count: Counter[str]) -> T:
    """Return what `call` returns. While the store is busy, call again after each of `waits` in seconds. Count retries,
    and an error if the last call fails. Raise what it raises."""
    try:
        for wait_s in waits:
            try:
                return await call()
            except StoreBusy:
                count["retries"] += 1
            await trio.sleep(wait_s)
        return await call()
    except StoreError:
        count["errors"] += 1
        raise


async def run_bounded(items: Iterable[T], call: Callable[[T], Awaitable[None]], *, limit: int) -> None:
    """Await `call` for each item, at most `limit` at a time. After a TsdError no further calls start and running ones
    are cancelled; the error is raised when they have ended."""
    tasks = min(limit, len(items)) if isinstance(items, Sized) else limit
    if tasks == 1:  # no other task, and no nursery
        for item in items:
            await call(item)
        return
    left = iter(items)
    errors: list[TsdError] = []

    async def work() -> None:
        for item in left:
            try:
                await call(item)
            except TsdError as exc:
                errors.append(exc)
                nursery.cancel_scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(work)
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # breaks a reference cycle between the error and this frame
