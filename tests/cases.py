"""Tests of many recorded cases, run as one: each parameter of a test costs pytest some milliseconds."""

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import TypeVar

T = TypeVar("T")


def all_of(cases: Iterable[T], name: Callable[[T], object]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Call a test with each case in turn. Then raise the first failure, with the names of all cases that failed."""
    kept = list(cases)

    def decorate(test: Callable[[T], None]) -> Callable[[], None]:
        def run() -> None:
            failed: list[tuple[object, Exception]] = []
            for case in kept:
                try:
                    test(case)
                except Exception as exc:  # noqa: BLE001 - of any kind
                    failed.append((name(case), exc))
            if failed:
                first = failed[0][1]
                first.add_note(f"{len(failed)} of {len(kept)} cases failed: {[one for one, _ in failed]}")
                raise first

        update_wrapper(run, test)  # its name and marks
        del run.__dict__["__wrapped__"]  # pytest would look for a fixture of its parameter's name
        return run

    return decorate
