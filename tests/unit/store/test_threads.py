"""Short calls in threads: results, errors and cancellation."""

import threading

import pytest
import trio
import trio.testing

from tsd.store.threads import run_in_thread


async def test_a_call_runs_in_another_thread() -> None:
    assert await run_in_thread(lambda a, b: (a + b, threading.get_ident()), 1, 2) != (3, threading.get_ident())
    assert await run_in_thread(lambda a, b: a + b, 1, 2) == 3


async def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(lambda: 1 / 0)


async def test_a_cancelled_caller_waits_for_the_end() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    async def caller(scope: trio.CancelScope) -> None:
        with scope:
            await run_in_thread(call)
            await trio.lowlevel.checkpoint()

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller, scope)
        await trio.to_thread.run_sync(begun.wait)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert ended.is_set()
    assert scope.cancelled_caught


async def test_a_cancelled_caller_starts_nothing() -> None:
    called: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_in_thread(called.append, 1)
    assert not called
