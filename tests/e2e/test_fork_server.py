"""Commands as forked processes (tsd/torture/forked.py): how tests and `tsd torture` start, end and await them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tsd.torture.forked import Forked

pytestmark = pytest.mark.slow


def test_who_looks_late_is_told_of_the_end_though_another_has_closed_the_process(tmp_path: Path) -> None:
    """He looked at whatever had the descriptor's number by then: the round of a killed daemon came to no end."""
    process = Forked(["version"], folder=tmp_path)
    found: list[int] = []
    late = threading.Thread(target=lambda: found.append(process.wait(30)))
    with stopped_at("_readable") as (reached, go_on):
        late.start()
        reached.wait()
    process.wait()
    process.close()
    silent = [os.pipe() for _ in range(4)]  # the numbers are others' now
    go_on.set()
    late.join()
    for fd in (fd for pipe in silent for fd in pipe):
        os.close(fd)
    assert found == [process.returncode]


@contextmanager
def stopped_at(name: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Threads that begin in the block stop where they first enter a function: it is told when one is there, and tells
    when to go on."""
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
