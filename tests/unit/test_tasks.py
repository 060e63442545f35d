"""Where tasks wait, as it is told: by names, those that are alike once."""

import threading

import trio
import trio.testing
from structlog.testing import capture_logs

from tsd.tasks import MOST_LINES, at_work, tell_tasks, waiting


async def wait_inside(event: trio.Event) -> None:
    await event.wait()


async def wait_for(event: trio.Event) -> None:
    await wait_inside(event)


async def test_calls_are_told_from_the_outermost_to_the_first_of_trio() -> None:
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait_for, event)
        nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        _, *inner = waiting(trio.lowlevel.current_task())
        event.set()
        nursery.cancel_scope.cancel()
    assert len(inner) == 2
    [alike] = [line for line in inner if "wait_for" in line]
    assert alike.startswith("  test_tasks.wait_for:")
    assert " > test_tasks.wait_inside:" in alike
    assert " > _sync.Event.wait:" in alike
    assert alike.endswith(" (3 alike)")
    assert any(line.startswith("  _timeouts.sleep_forever:") for line in inner)


async def test_who_has_many_tasks_is_told_of_some() -> None:
    async def deep(left: int) -> None:
        async with trio.open_nursery() as nursery:
            if left:
                nursery.start_soon(deep, left - 1)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deep, MOST_LINES + 10)
        await trio.testing.wait_all_tasks_blocked()
        with capture_logs() as logs:
            tell_tasks()
        nursery.cancel_scope.cancel()
    [told] = logs
    assert told["event"] == "where tasks wait"
    assert len(told["tasks"]) == MOST_LINES
    assert told["left_out"] > 10


async def test_a_thread_at_work_is_told_with_where_it_is() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hop() -> None:
        begun.set()
        go_on.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, hop)
        await trio.to_thread.run_sync(begun.wait)
        told = [line for line in at_work() if "hop" in line]
        go_on.set()
    assert len(told) == 1
    assert "test_tasks.test_a_thread_at_work_is_told_with_where_it_is.<locals>.hop:" in told[0]
    assert " > threading.Event.wait:" in told[0]
