"""Where a round waits that comes to no end: for whoever has to find out why."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tsd.tasks import at_work, waiting


@asynccontextmanager
async def bounded(
    seconds: float, told: Path, others: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
) -> AsyncIterator[trio.CancelScope]:
    """A block that is cancelled after some time; what waits for what then is written to the file `told`, and `others`
    are asked to tell the same of themselves. Its scope says whether it was (`cancel_called`)."""
    me = trio.lowlevel.current_task()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_give_up, seconds, scope, me, told, others)
            yield scope
            nursery.cancel_scope.cancel()


async def _give_up(
    seconds: float,
    scope: trio.CancelScope,
    task: trio.lowlevel.Task,
    told: Path,
    others: Callable[[], Awaitable[None]],
) -> None:
    await trio.sleep(seconds)
    told.write_text("\n".join([*waiting(task), *at_work()]) + "\n")  # noqa: ASYNC240 - once
    await others()
    scope.cancel()
