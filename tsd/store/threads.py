"""Short calls that block, in threads: half of the CPU time of `trio.to_thread.run_sync`.

That has a limiter, names for threads and context variables, which a call of every block of lines cannot afford.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar, TypeVarTuple

import outcome
import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def run_in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Return what `function` returns in a thread. A cancelled caller waits for its end. The number of threads is not
    limited, and `function` must not use `trio.from_thread`."""
    await trio.lowlevel.checkpoint_if_cancelled()
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()

    def deliver(result: outcome.Outcome[T]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(trio.lowlevel.reschedule, task, outcome.Value(result))

    trio.lowlevel.start_thread_soon(partial(function, *args), deliver)
    result: outcome.Outcome[T] = await trio.lowlevel.wait_task_rescheduled(_wait_for_end)
    return result.unwrap()


def _wait_for_end(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
