"""A test without an end fails with where it waited."""

import threading

import pytest
import trio

from tests import timeouts


async def wait_for_nothing() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)


async def in_a_task() -> None:  # as pytest-trio runs tests
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_nothing)


def test_trio_test_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LIMIT_S", 0.01)
    with pytest.raises(pytest.fail.Exception, match="wait_for_nothing"), timeouts.time_limit():
        trio.run(in_a_task)


def test_other_test_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LIMIT_S", 0.01)
    with pytest.raises(pytest.fail.Exception, match=r"threading\.py"), timeouts.time_limit():
        threading.Event().wait()


def test_error_of_the_test_is_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), timeouts.time_limit():
        1 / 0  # noqa: B018
