"""Files that are looked at again every few seconds, on a clock that tests move on."""

from trio.testing import MockClock, wait_all_tasks_blocked, wait_all_threads_completed


async def next_look(clock: MockClock, every_s: float) -> None:
    """Until the next look is over, and what it found was read."""
    await wait_all_tasks_blocked()
    clock.jump(every_s)
    for _ in range(4):  # threads look, look again, and read
        await wait_all_tasks_blocked()
        await wait_all_threads_completed()
    await wait_all_tasks_blocked()
