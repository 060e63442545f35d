"""A test without an end fails with where it waited."""

import signal
import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests import timeouts


async def wait_for_nothing() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)


async def in_a_task() -> None:  # as pytest-trio runs tests
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_nothing)
        await wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGALRM)  # the limit is reached


def block() -> None:
    signal.raise_signal(signal.SIGALRM)
    threading.Event().wait()


def test_trio_test_is_cancelled() -> None:
    with pytest.raises(pytest.fail.Exception, match="wait_for_nothing"), timeouts.time_limit():
        trio.run(in_a_task)


def test_other_test_is_interrupted() -> None:
    with pytest.raises(pytest.fail.Exception, match="in block"), timeouts.time_limit():
        block()


def test_limit_interrupts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LIMIT_S", 0.01)
    with pytest.raises(pytest.fail.Exception), timeouts.time_limit():
        threading.Event().wait()


def test_error_of_the_test_is_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), timeouts.time_limit():
        1 / 0  # noqa: B018


def test_limit_comes_before_the_end_of_the_worker(pytestconfig: pytest.Config) -> None:
    """Regression: the worker ended first, and the tests that it had left were not run."""
    assert float(pytestconfig.getini("faulthandler_timeout")) > timeouts.LIMIT_S + timeouts.CLEANUP_S
