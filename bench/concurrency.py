"""Deliveries that begin together, each in a thread of its own."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Done(NamedTuple):
    """When they were made, in seconds of the monotonic clock, and what each came to, in any order."""

    start: float
    end: float
    answers: list[str]


def at_once(deliveries: Sequence[Callable[[], str]]) -> Done:
    """Call them, once all threads are there. One that raises fails all, when the others have ended."""
    ready = threading.Barrier(len(deliveries) + 1)
    answers: list[str] = []

    def deliver(one: Callable[[], str]) -> None:
        ready.wait()
        answers.append(one())

    threads = [threading.Thread(target=deliver, args=(one,)) for one in deliveries]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.monotonic()
    for thread in threads:
        thread.join()
    assert len(answers) == len(deliveries), "a connection failed"
    return Done(start, time.monotonic(), answers)
