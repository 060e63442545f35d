"""A time limit for tests. A test that exceeds it fails and shows where it waited; the other tests continue.

pytest's `faulthandler_timeout` ends the whole worker, and pytest-xdist then waits forever for its remaining tests.
"""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import trio

from tsd.daemon.diagnostics import task_lines

LIMIT_S = 900.0  # of a test itself on a slow machine; session fixtures are not limited
CLEANUP_S = 60.0  # for a cancelled test to end


class TimeLimitExceeded(Exception):
    """A cancelled test did not end."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Fail the block if it runs longer than LIMIT_S: cancel it if trio runs, else raise an exception."""
    stacks: list[str] = []

    def on_alarm(_number: int, frame: FrameType | None) -> None:
        repeated = bool(stacks)
        stacks.extend(traceback.format_stack(frame))
        try:
            root = trio.lowlevel.current_root_task()
        except RuntimeError:  # trio does not run
            root = None
        if root is None or repeated:
            raise TimeLimitExceeded
        stacks.extend(line + "\n" for line in task_lines(root))
        for nursery in root.child_nurseries:
            for task in nursery.child_tasks:
                for inner in task.child_nurseries:
                    inner.cancel_scope.cancel()
        trio.lowlevel.current_trio_token().run_sync_soon(lambda: None)  # wakes trio's event loop

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, CLEANUP_S)
    try:
        yield
    except BaseException:
        if not stacks:
            raise
        stacks.append(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if stacks:
        pytest.fail(f"took more than {LIMIT_S:g} s; it was at:\n{''.join(stacks)}", pytrace=False)
