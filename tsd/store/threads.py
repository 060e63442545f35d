"""Runs short blocking calls in threads, with half of the CPU time of `trio.to_thread.run_sync`.

trio's function also limits the number of threads, names them and copies context variables. That is too expensive for
calls that the journal makes for each group of lines.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar, TypeVarTuple

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


class QuietThread(Generic[T]):
    """Runs calls in threads, one at a time. The end of a call wakes the event loop only if it is wanted, or if the call
    failed: a wake-up costs as much as a short call. A caller that waits for what the calls do calls `want` before. A
    cancel scope that ends does the same, and its task gets the result."""

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None  # waits for its call
        self._result: outcome.Outcome[T] | None = None  # of the last call, None until it ends
        self._is_wanted = False  # the end of this call, or of the next one if none runs

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what `function` returns in a thread, but not before a task wants its end. Restrictions are those of
        `run_in_thread`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        token = trio.lowlevel.current_trio_token()
        self._task, self._result = trio.lowlevel.current_task(), None

        def deliver(result: outcome.Outcome[T]) -> None:
            self._result = result  # before the flag is read: `want` sets the flag before it reads the result
            if self._is_wanted or isinstance(result, outcome.Error):
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self.want)

        trio.lowlevel.start_thread_soon(partial(function, *args), deliver)
        result: outcome.Outcome[T] = await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._is_wanted = False
        return result.unwrap()

    def want(self) -> None:
        """Let `run` return as soon as its call ends, or has ended. If no call runs, this is about the next one."""
        self._is_wanted = True
        if self._task is not None and self._result is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task, outcome.Value(self._result))

    def want_running(self) -> None:
        """Let `run` return as soon as its call ends, or has ended. If no call runs, nothing changes."""
        if self._task is not None:
            self.want()

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        """Let a cancelled caller wait for the end of its call."""
        self.want()
        return trio.lowlevel.Abort.FAILED
