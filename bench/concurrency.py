"""Run functions concurrently, each in its own thread."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Done(NamedTuple):
    """Start and end by the monotonic clock, and the results in any order."""

    start: float
    end: float
    answers: list[str]


def run_concurrently(deliveries: Sequence[Callable[[], str]]) -> Done:
    """Call the functions once all threads are running. If one raises, fail after the others have ended."""
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
