"""Advance a test clock to the next periodic check of files."""

from trio.testing import MockClock, wait_all_tasks_blocked, wait_all_threads_completed


async def advance_to_next_poll(clock: MockClock, every_s: float) -> None:
    """Advance by the polling interval and wait until the check is complete."""
    await wait_all_tasks_blocked()
    clock.jump(every_s)
    for _ in range(4):  # threads check, check again, and read
        await wait_all_tasks_blocked()
        await wait_all_threads_completed()
    await wait_all_tasks_blocked()
