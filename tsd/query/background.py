"""Work of a query that goes on in threads while its next page is read."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

import trio

from tsd.errors import TsdError
from tsd.query.workers import WorkerPool
from tsd.tables.read_ahead import PlainNursery, open_plain_nursery

T = TypeVar("T")


class _Piece(Generic[T]):
    """A piece of work that has begun in a thread."""

    def __init__(self, nursery: PlainNursery, workers: WorkerPool, work: Callable[[], T]) -> None:
        self._ended = trio.Event()
        self._made: T | None = None
        self._error: TsdError | None = None
        nursery.start_soon(self._run, workers, work)

    async def _run(self, workers: WorkerPool, work: Callable[[], T]) -> None:
        try:
            self._made = await workers.run(work)
        except TsdError as exc:
            self._error = exc
        self._ended.set()

    async def result(self) -> T:
        """Return what the work returned, or raise what it raised, once."""
        await self._ended.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        assert self._made is not None
        return self._made


class Background:
    """One piece of work at a time."""

    def __init__(self, nursery: PlainNursery, workers: WorkerPool) -> None:
        self._nursery = nursery
        self._workers = workers
        self._piece: _Piece[bool] | None = None  # None: no work was begun since its result was asked for

    def begin(self, work: Callable[[], bool]) -> None:
        """Begin work. The result of the work before was asked for."""
        assert self._piece is None
        self._piece = _Piece(self._nursery, self._workers, work)

    async def result(self) -> bool:
        """Return what the last work returned, once; true without any. Raise what it raised."""
        piece, self._piece = self._piece, None
        return True if piece is None else await piece.result()


AT_ONCE = 2  # pieces of work of one query: more would not be fair


class Prepared(NamedTuple):
    """What a piece of work has made."""

    use: Callable[[], None]  # called in order
    is_short: bool  # `use` needs no thread


class InOrder:
    """Pieces of work, some at a time. What they make is used in the order in which they began."""

    def __init__(self, nursery: PlainNursery, workers: WorkerPool) -> None:
        self._nursery = nursery
        self._workers = workers
        self._begun: deque[_Piece[Prepared]] = deque()

    async def begin(self, work: Callable[[], Prepared]) -> None:
        """Begin a piece of work, when there is room for it. Raise what an earlier one raised."""
        while len(self._begun) >= AT_ONCE:
            await self._use_first()
        self._begun.append(_Piece(self._nursery, self._workers, work))

    async def finish(self) -> None:
        """Wait until all work is done and used. Raise what it raised."""
        while self._begun:
            await self._use_first()

    async def _use_first(self) -> None:
        use, is_short = await self._begun.popleft().result()
        if is_short:
            self._workers.run_here(use)
        else:
            await self._workers.run(use)


class InThreads(NamedTuple):
    """Work of one query in threads."""

    background: Background
    in_order: InOrder


@asynccontextmanager
async def working(workers: WorkerPool) -> AsyncIterator[InThreads]:
    """Run work during the block. What is left is cancelled if the block ends with an error, or waited for."""
    async with open_plain_nursery() as nursery:
        yield InThreads(Background(nursery, workers), InOrder(nursery, workers))
