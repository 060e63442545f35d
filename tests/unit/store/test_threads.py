"""Short calls in threads: results, errors and cancellation."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from tsd.store.threads import QuietThread, run_in_thread


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


async def quiet_call(
    thread: QuietThread[int], results: list[int], scope: trio.CancelScope, call: Callable[[], int]
) -> None:
    with scope:
        results.append(await thread.run(call))


async def test_end_of_a_quiet_call_is_noticed_when_it_is_wanted() -> None:
    thread, results, ended = QuietThread[int](), list[int](), threading.Event()

    def call() -> int:
        ended.set()
        return 3

    async with trio.open_nursery() as nursery:
        nursery.start_soon(quiet_call, thread, results, trio.CancelScope(), call)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(ended.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not results
        thread.want_running()
    assert results == [3]


async def test_end_of_a_quiet_call_that_was_wanted_before_it_began() -> None:
    thread = QuietThread[int]()
    thread.want_running()  # none runs
    thread.want()
    assert await thread.run(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):  # errors need not be wanted
        await thread.run(lambda: 1 // 0)


async def test_a_cancelled_quiet_call_ends_though_its_end_was_not_noticed() -> None:
    thread, results, ended = QuietThread[int](), list[int](), threading.Event()
    scope = trio.CancelScope()

    def call() -> int:
        ended.set()
        return 3

    async with trio.open_nursery() as nursery:
        nursery.start_soon(quiet_call, thread, results, scope, call)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(ended.wait)
        scope.cancel()
    thread.want()
    assert await thread.run(lambda: 4) == 4
