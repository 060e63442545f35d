"""Commands as forked processes (tsd/cli/torture/fork_server.py): how tests and `tsd torture` start, stop and await
them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tsd.cli.torture.fork_server import Forked

pytestmark = pytest.mark.slow


def test_late_wait_returns_status_of_closed_process(tmp_path: Path) -> None:
    """Regression: the waiting thread polled a reused descriptor, so that a round of `tsd torture` never ended."""
    process = Forked(["version"], folder=tmp_path)
    found: list[int] = []
    late = threading.Thread(target=lambda: found.append(process.wait(30)))
    with stopped_at("_readable") as (reached, go_on):
        late.start()
        reached.wait()
    process.wait()
    process.close()
    silent = [os.pipe() for _ in range(4)]  # reuse the descriptors
    go_on.set()
    late.join()
    for fd in (fd for pipe in silent for fd in pipe):
        os.close(fd)
    assert found == [process.returncode]


@contextmanager
def stopped_at(name: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Stop threads started in the block at their first call of a function. Yield an event that is set when one is
    there, and an event that lets it continue."""
    reached, go_on = threading.Event(), threading.Event()

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        if frame.f_code.co_name == name and not reached.is_set():
            reached.set()
            go_on.wait()

    threading.settrace(trace)
    try:
        yield reached, go_on
    finally:
        threading.settrace(None)
