"""Work of a query that goes on in a thread while its next page is read."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from tsd.errors import TsdError
from tsd.query.workers import WorkerPool
from tsd.tables.ahead import PlainNursery, open_plain_nursery


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


@asynccontextmanager
async def working(workers: WorkerPool) -> AsyncIterator[Background]:
    """Run work during the block. What is left is cancelled if the block ends with an error, or waited for."""
    async with open_plain_nursery() as nursery:
        yield Background(nursery, workers)
