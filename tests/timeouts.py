"""A test that comes to no end fails, and says where it waited; the others go on.

pytest's `faulthandler_timeout` ends a whole worker, and pytest-xdist then waits for ever for the tests it was to run.
"""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import trio

from tsd.tasks import waiting

MOST_S = 420.0  # for a test's own part; what it starts for the whole run has more
REST_S = 60.0  # for a test that was told to end


class Overdue(Exception):
    """A test was told to end, and did not."""


@contextmanager
def bounded() -> Iterator[None]:
    """A block that is cancelled, where trio runs it, or ended by an exception after MOST_S; it fails then."""
    where: list[str] = []

    def ring(_number: int, frame: FrameType | None) -> None:
        told = bool(where)
        where.extend(traceback.format_stack(frame))
        try:
            root = trio.lowlevel.current_root_task()
        except RuntimeError:  # it does not run
            root = None
        if root is None or told:
            raise Overdue
        where.extend(line + "\n" for line in waiting(root))
        for nursery in root.child_nurseries:
            for task in nursery.child_tasks:
                for inner in task.child_nurseries:
                    inner.cancel_scope.cancel()
        trio.lowlevel.current_trio_token().run_sync_soon(lambda: None)  # it may be waiting for something to happen

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_S, REST_S)
    try:
        yield
    except BaseException:
        if not where:
            raise
        where.append(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if where:
        pytest.fail(f"took more than {MOST_S:g} s; where it was:\n{''.join(where)}", pytrace=False)
