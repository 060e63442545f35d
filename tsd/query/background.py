"""Work of a query that goes on in threads while its next page is read."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from tsd.errors import TsdError
from tsd.query.workers import WorkerPool
from tsd.tables.read_ahead import PlainNursery, open_plain_nursery


class Background:
    """One piece of work at a time."""

    def __init__(self, nursery: PlainNursery, workers: WorkerPool) -> None:
        self._nursery = nursery
        self._workers = workers
        self._ended: trio.Event | None = None  # None: no work was begun since its result was asked for
        self._result = True
        self._error: TsdError | None = None

    def begin(self, work: Callable[[], bool]) -> None:
        """Begin work. The result of the work before was asked for."""
        assert self._ended is None
        self._ended = trio.Event()
        self._nursery.start_soon(self._run, work, self._ended)

    async def _run(self, work: Callable[[], bool], ended: trio.Event) -> None:
        try:
            self._result = await self._workers.run(work)
        except TsdError as exc:
            self._error = exc
        ended.set()

    async def result(self) -> bool:
        """Return what the last work returned, once; true without any. Raise what it raised."""
        if self._ended is None:
            return True
        await self._ended.wait()
        self._ended = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._result


AT_ONCE = 2  # pieces of work of one query: more would not be fair


class Prepared(NamedTuple):
    """What a piece of work has made."""

    use: Callable[[], None]  # called in order
    is_short: bool  # `use` needs no thread


class _Piece:
    """A piece of work that has begun."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.made: Prepared | None = None
        self.error: TsdError | None = None


class InOrder:
    """Pieces of work, some at a time. What they make is used in the order in which they began."""

    def __init__(self, nursery: PlainNursery, workers: WorkerPool) -> None:
        self._nursery = nursery
        self._workers = workers
        self._begun: deque[_Piece] = deque()

    async def begin(self, work: Callable[[], Prepared]) -> None:
        """Begin a piece of work, when there is room for it. Raise what an earlier one raised."""
        while len(self._begun) >= AT_ONCE:
            await self._use_first()
        self._begun.append(_Piece())
        self._nursery.start_soon(self._run, work, self._begun[-1])

    async def finish(self) -> None:
        """Wait until all work is done and used. Raise what it raised."""
        while self._begun:
            await self._use_first()

    async def _run(self, work: Callable[[], Prepared], piece: _Piece) -> None:
        try:
            piece.made = await self._workers.run(work)
        except TsdError as exc:
            piece.error = exc
        piece.ended.set()

    async def _use_first(self) -> None:
        piece = self._begun[0]
        await piece.ended.wait()
        self._begun.popleft()
        if piece.error is not None:
            error, piece.error = piece.error, None
            raise error
        assert piece.made is not None
        if piece.made.is_short:
            self._workers.run_here(piece.made.use)
        else:
            await self._workers.run(piece.made.use)


class InThreads(NamedTuple):
    """Work of one query in threads."""

    background: Background
    in_order: InOrder


@asynccontextmanager
async def working(workers: WorkerPool) -> AsyncIterator[InThreads]:
    """Run work during the block. What is left is cancelled if the block ends with an error, or waited for."""
    async with open_plain_nursery() as nursery:
        yield InThreads(Background(nursery, workers), InOrder(nursery, workers))
