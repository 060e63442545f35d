"""Where a round waits that comes to no end: for whoever has to find out why."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import trio


@asynccontextmanager
async def bounded(seconds: float, told: Path) -> AsyncIterator[trio.CancelScope]:
    """A block that is cancelled after some time; what waits for what then is written to the file `told`. Its scope says
    whether it was (`cancel_called`)."""
    me = trio.lowlevel.current_task()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_give_up, seconds, scope, me, told)
            yield scope
            nursery.cancel_scope.cancel()


async def _give_up(seconds: float, scope: trio.CancelScope, task: trio.lowlevel.Task, told: Path) -> None:
    await trio.sleep(seconds)
    told.write_text("\n".join(waiting(task)) + "\n")  # noqa: ASYNC240 - once
    scope.cancel()


def waiting(task: trio.lowlevel.Task, depth: int = 0) -> Iterator[str]:
    """A task and those it has started: the calls that each is in, outermost first."""
    calls = (f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in _frames(task.coro))
    yield f"{'  ' * depth}{' > '.join(calls)}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from waiting(child, depth + 1)


def _frames(waiting: Any) -> Iterator[FrameType]:
    while waiting is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(waiting, f"{kind}_frame")), None)
        if kind is None:
            return
        if (frame := getattr(waiting, f"{kind}_frame")) is not None:
            yield frame
        waiting = getattr(waiting, f"{kind}_yieldfrom" if kind == "gi" else f"{kind}_await")
