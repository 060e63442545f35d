"""Reads pages ahead: while one page is processed, a task for each sequence of pages reads its next one."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import trio

from tsd.errors import TsdError

P = TypeVar("P")


class PlainNursery:
    """A nursery that raises the first TsdError of its block and tasks itself. trio's raises a group with it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.start_soon = nursery.start_soon
        self.errors: list[TsdError] = []

    def fail(self, error: TsdError) -> None:
        """Cancel all tasks, and raise an error at the end of the block."""
        self.errors.append(error)
        self._nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_plain_nursery() -> AsyncIterator[PlainNursery]:
    """Open a nursery whose tasks report each TsdError by `fail`."""
    async with trio.open_nursery() as nursery:
        plain = PlainNursery(nursery)
        try:
            yield plain
        except TsdError as exc:
            plain.fail(exc)
    errors = plain.errors
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # or the error and this frame would reference each other


async def take_pages(pages: AsyncGenerator[P, None], take: Callable[[P], Awaitable[None]]) -> None:
    """Pass all pages to `take`, in order; read one ahead. Raise what reading raises, and any TsdError of `take`."""
    async with aclosing(pages):
        begin: list[P] = []
        async for page in pages:
            begin.append(page)
            if len(begin) > 1:
                await take_ahead([_resumed(begin, pages)], take, 1)
        for page in begin:  # one page, as most small queries have: no task needs to read ahead
            await take(page)


async def _resumed(begin: list[P], pages: AsyncGenerator[P, None]) -> AsyncGenerator[P, None]:
    """Yield the pages read so far, which leave `begin`, and the others."""
    while begin:
        yield begin.pop(0)
    async for page in pages:
        yield page


async def take_sequences(
    sequences: AsyncGenerator[AsyncGenerator[P, None], None], take: Callable[[P], Awaitable[None]], parallel: int
) -> None:
    """Pass the pages of sequences that are found one after the other to `take`, see `take_ahead`. Raise what finding
    raises, too."""
    async with aclosing(sequences):
        begin: list[AsyncGenerator[P, None]] = []
        async for pages in sequences:
            begin.append(pages)
            if len(begin) > 1:
                await _take_all(_resumed(begin, sequences), take, parallel)
        for pages in begin:
            await take_pages(pages, take)


async def take_ahead(
    sequences: Sequence[AsyncGenerator[P, None]], take: Callable[[P], Awaitable[None]], parallel: int
) -> None:
    """Pass the pages of several sequences to `take`, one sequence after the other. While one is taken, up to `parallel`
    others are read, each one page ahead. Raise as `take_pages` does."""

    async def each() -> AsyncGenerator[AsyncGenerator[P, None], None]:
        for pages in sequences:
            yield pages

    await _take_all(each(), take, parallel)


async def _take_all(
    sequences: AsyncGenerator[AsyncGenerator[P, None], None], take: Callable[[P], Awaitable[None]], parallel: int
) -> None:
    async with open_plain_nursery() as nursery:
        queue, channels = trio.open_memory_channel[trio.MemoryReceiveChannel[P]](max(parallel - 1, 0))
        nursery.start_soon(_start_readers, sequences, queue, nursery)
        async for pages in channels:
            async for page in pages:
                await take(page)


async def _start_readers(
    sequences: AsyncGenerator[AsyncGenerator[P, None], None],
    queue: trio.MemorySendChannel[trio.MemoryReceiveChannel[P]],
    nursery: PlainNursery,
) -> None:
    """Start the reader of each sequence when its channel fits into the queue."""
    try:
        async with queue, aclosing(sequences):
            async for part in sequences:
                pages, channel = trio.open_memory_channel[P](1)
                nursery.start_soon(_read, part, pages, nursery)
                await queue.send(channel)
    except TsdError as exc:
        nursery.fail(exc)


async def _read(
    part: AsyncGenerator[P, None],
    pages: trio.MemorySendChannel[P],
    nursery: PlainNursery,
) -> None:
    try:
        async with pages, aclosing(part) as found:
            async for page in found:
                await pages.send(page)
    except TsdError as exc:
        nursery.fail(exc)
